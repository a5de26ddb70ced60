package generator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"conclave/subjects"
)

func TestClipInFrame(t *testing.T) {
	t.Parallel()
	const begin, end = "[TOOL_RESULT: UNTRUSTED 0123456789abcdef]\n", "\n[END OF TOOL_RESULT 0123456789abcdef]"
	long := begin + strings.Repeat("é", 2000) + end
	for _, tt := range []struct {
		name, in string
		most     int
		same     bool
	}{
		{"short", begin + "x" + end, 4096, true},
		{"exactly", long, len(long), true},
		{"one byte too long", long, len(long) - 1, false},
		{"much too long", long, 512, false},
		{"not framed", strings.Repeat("x\n", 2000), 512, true},
		{"a frame that is larger than the room", long, 20, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := clipInFrame(tt.in, tt.most)
			if tt.same {
				if got != tt.in {
					t.Fatalf("changed: %q", got)
				}
				return
			}
			if len(got) > tt.most || !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) || !strings.Contains(got, clipMark) || !utf8.ValidString(got) {
				t.Fatalf("%d bytes of %d: %q", len(got), tt.most, got)
			}
		})
	}
}

// The labels of concurrent results are joined.
func TestResultLabels(t *testing.T) {
	t.Parallel()
	turn := &turn{}
	turn.addLabels(nil)
	if l, _ := turn.answerLabels(); l != nil {
		t.Fatal("labels of nothing")
	}
	var wg sync.WaitGroup
	for _, l := range []subjects.Labels{
		{Trust: subjects.Trusted, Privacy: subjects.Public},
		{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: []string{"override"}},
		{Trust: subjects.Trusted, Privacy: subjects.Private, Flags: []string{"override", "hidden_text"}},
		{Trust: "", Privacy: subjects.Public}, // nobody vouches for it
	} {
		wg.Go(func() { turn.addLabels(&l) })
	}
	wg.Wait()
	got, _ := turn.answerLabels()
	slices.Sort(got.Flags)
	if got.Trust != subjects.Untrusted || got.Privacy != subjects.Private || !slices.Equal(got.Flags, []string{"hidden_text", "override"}) {
		t.Fatalf("%+v", got)
	}
}

// Each fault has a text of its own for the model: no answer of the user is not a denial.
func TestDescribeFault(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, code := range []string{subjects.CodeDenied, subjects.CodeNotApproved, subjects.CodeUnanswered, subjects.CodeLimit, subjects.CodeNoSecret, subjects.CodeUncertain, subjects.CodeTimeout, subjects.CodeTool} {
		r := describeFault(subjects.Faultf(code, "the reason"))
		if r.Fault != code || r.Text == "" {
			t.Errorf("%s: %+v", code, r)
		}
		if other, ok := seen[r.Text]; ok {
			t.Errorf("%s reads like %s: %q", code, other, r.Text)
		}
		seen[r.Text] = code
	}
}

// A response holds no credentials from arguments.
func TestArgumentsAreRedacted(t *testing.T) {
	t.Parallel()
	token := "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	for in, want := range map[string]string{
		`{"query":"fish"}`:              `{"query":"fish"}`,
		`{"content":"` + token + `"}`:   "",
		`{"a":["x","` + token + ` y"]}`: "",
	} {
		got := string(redactArguments(json.RawMessage(in)))
		if strings.Contains(got, token) || want != "" && got != want || got != "" && !json.Valid([]byte(got)) {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// For servers that count calls from one in every reply, call ids must differ between turns, and stay
// the same when the turn is resumed.
func TestCallIDs(t *testing.T) {
	t.Parallel()
	by := func(name, session, query, id string) string {
		return (&turn{g: New(name, shippedConfig()), sessionID: session, query: subjects.Query{QueryID: query}}).callID(id)
	}
	of := func(session, query, id string) string { return by(subjects.Generator, session, query, id) }
	same := of("s1", "q1", "call_1")
	if same != of("s1", "q1", "call_1") || subjects.CheckToken(same) != nil {
		t.Errorf("%q is no name to come back to", same)
	}
	for _, other := range []string{of("s1", "q2", "call_1"), of("s2", "q1", "call_1"), of("s1", "q1", "call_2"), by(subjects.RespondentB, "s1", "q1", "call_1")} {
		if other == same {
			t.Error("two calls have one name")
		}
	}
}

// TestCallIDsAreStable: a turn that an earlier version began finds its calls in the broker's ledger.
func TestCallIDsAreStable(t *testing.T) {
	t.Parallel()
	got := (&turn{g: New(subjects.Generator, shippedConfig()), sessionID: "s1", query: subjects.Query{QueryID: "q1"}}).callID("call_1")
	sum := sha256.Sum256([]byte("s1 q1 call_1"))
	if want := hex.EncodeToString(sum[:16]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
