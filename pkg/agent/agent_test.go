package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/loop"
	"conclave/pkg/model"
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
			if len(got) > tt.most || !strings.Contains(got, begin) || !strings.HasSuffix(got, end) ||
				!strings.Contains(got, clipMark) || !utf8.ValidString(got) {
				t.Fatalf("%d bytes of %d: %q", len(got), tt.most, got)
			}
		})
	}
}

// Each fault has a text of its own for the model: no answer of the user is not a denial.
func TestDescribeFault(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, code := range []string{
		subjects.CodeDenied, subjects.CodeNotApproved, subjects.CodeUnanswered,
		subjects.CodeLimit, subjects.CodeNoSecret, subjects.CodeUncertain, subjects.CodeTimeout, subjects.CodeTool,
	} {
		r := DescribeFault(subjects.Faultf(code, "the reason"))
		if r.Fault != code || r.Text == "" {
			t.Errorf("%s: %+v", code, r)
		}
		if other, ok := seen[r.Text]; ok {
			t.Errorf("%s reads like %s: %q", code, other, r.Text)
		}
		seen[r.Text] = code
	}
}

// Call ids differ between turns and between agents of one account, for servers that count calls from one in every
// reply, and stay the same when the turn is resumed.
func TestCallIDs(t *testing.T) {
	t.Parallel()
	of := func(scope, session, query, id string) string {
		return (&Agent{Scope: scope, Session: session, Query: query}).CallID(id)
	}
	same := of("", "s1", "q1", "call_1")
	if same != of("", "s1", "q1", "call_1") || subjects.CheckToken(same) != nil {
		t.Errorf("%q", same)
	}
	for _, other := range []string{
		of("", "s1", "q2", "call_1"), of("", "s2", "q1", "call_1"),
		of("", "s1", "q1", "call_2"), of("respondent_b", "s1", "q1", "call_1"),
	} {
		if other == same {
			t.Error("two calls have one id")
		}
	}
	// A turn that an earlier version began finds its calls in the broker's ledger.
	sum := sha256.Sum256([]byte("s1 q1 call_1"))
	if want := hex.EncodeToString(sum[:16]); same != want {
		t.Errorf("%s, want %s", same, want)
	}
}

// A spawned agent asks and calls under its own path, and its calls have ids of their own.
func TestSpawnedAgentCallsUnderItsPath(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{Reply: func(subject string, _ []byte) (any, error) {
		switch subject {
		case "agent.spawn":
			return subjects.SpawnReply{Child: "coder-1", Tools: []string{"fs_read"}}, nil
		case "agent.spawn.coder-1":
			return subjects.SpawnReply{Child: "researcher-2"}, nil
		case "broker.discover.coder-1":
			return subjects.DiscoverReply{
				Tools: []subjects.ToolSchema{{Name: "fs_read", Parameters: json.RawMessage(`{}`)}, {Name: "fs_list"}},
			}, nil
		case "tool.request.fs_read.coder-1":
			return subjects.ToolResult{
				Result: "text", Labels: &subjects.Labels{Trust: subjects.Untrusted},
				Recalls: []string{"m1", "m1"},
			}, nil
		}
		return nil, subjects.Faultf(subjects.CodeDenied, "no")
	}}
	var got Collection
	root := &Agent{
		Out: rec.Out(), Session: "s1", Query: "q1", ToolTimeout: time.Minute, MaxResult: 1 << 10,
		OnResult: func(_ string, r subjects.ToolResult) { got.Add(r) },
	}
	child, tools, err := root.Spawn(t.Context(), subjects.SpawnRequest{Type: "coder"})
	if err != nil || !slices.Equal(child.Path, []string{"coder-1"}) || !slices.Equal(tools, []string{"fs_read"}) ||
		len(root.Path) != 0 {
		t.Fatalf("%+v %v %v", child, tools, err)
	}
	if offered, _, err := child.Discover(t.Context(), "read", 1); err != nil || len(offered) != 1 ||
		offered[0].Name != "fs_read" {
		t.Errorf("%v %v", offered, err)
	}
	if r := child.RunTool(t.Context(),
		model.Call{ID: "c1", Name: "fs_read", Arguments: json.RawMessage(`{}`)}); r.Text != "text" || r.Fault != "" {
		t.Errorf("%+v", r)
	}
	if r := child.RunTool(t.Context(), model.Call{ID: "c1", Name: "a.b"}); r.Fault != subjects.CodeUnknownTool {
		t.Errorf("a name that is no token: %+v", r)
	}
	if r := root.RunTool(t.Context(), model.Call{ID: "c1", Name: "fs_read"}); r.Fault != subjects.CodeDenied {
		t.Errorf("the root's own call: %+v", r)
	}
	if root.CallID("c1") == child.CallID("c1") {
		t.Error("two agents have one call id")
	}
	if labels, recalls := got.Result(); labels == nil || labels.Trust != subjects.Untrusted ||
		!slices.Equal(recalls, []string{"m1"}) {
		t.Errorf("%+v %v", labels, recalls)
	}
	if grandchild, _, err := child.Spawn(t.Context(), subjects.SpawnRequest{Type: "researcher"}); err != nil ||
		!slices.Equal(grandchild.Path, []string{"coder-1", "researcher-2"}) {
		t.Errorf("%+v %v", grandchild, err)
	}
}

// The record of a call holds no credentials from its arguments, and is bounded.
func TestRecordCall(t *testing.T) {
	t.Parallel()
	token := "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	for in, want := range map[string]string{
		`{"query":"fish"}`:                            `{"query":"fish"}`,
		`{"content":"` + token + `"}`:                 "",
		`{"a":["x","` + token + ` y"]}`:               "",
		`{"long":"` + strings.Repeat("x", 200) + `"}`: "",
		`no JSON`: "",
	} {
		c := (&Agent{Session: "s", Query: "q"}).RecordCall(loop.FinishedCall{
			Call:   model.Call{ID: "c1", Name: "fs_read", Arguments: json.RawMessage(in)},
			Result: loop.Result{Text: strings.Repeat("y", 100), Fault: subjects.CodeTool},
		}, 10, 100)
		got := string(c.Args)
		if strings.Contains(got, token) || want != "" && got != want || got != "" && !json.Valid([]byte(got)) ||
			len(got) > 100 {
			t.Errorf("%s: %s", in, got)
		}
		if len(c.Result) > 20 || c.Error == nil || c.Error.Code != subjects.CodeTool || len(c.Error.Text) > 20 {
			t.Errorf("%+v", c)
		}
	}
}

// The labels of concurrent results are joined.
func TestCollectionJoinsLabels(t *testing.T) {
	t.Parallel()
	var c Collection
	c.Add(subjects.ToolResult{})
	if l, _ := c.Result(); l != nil {
		t.Fatal("labels of nothing")
	}
	var wg sync.WaitGroup
	for _, l := range []subjects.Labels{
		{Trust: subjects.Trusted, Privacy: subjects.Public},
		{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: []string{"override"}},
		{Trust: subjects.Trusted, Privacy: subjects.Private, Flags: []string{"override", "hidden_text"}},
		{Trust: "", Privacy: subjects.Public}, // nobody vouches for it
	} {
		wg.Go(func() { c.Add(subjects.ToolResult{Labels: &l}) })
	}
	wg.Wait()
	got, _ := c.Result()
	slices.Sort(got.Flags)
	if got.Trust != subjects.Untrusted || got.Privacy != subjects.Private ||
		!slices.Equal(got.Flags, []string{"hidden_text", "override"}) {
		t.Fatalf("%+v", got)
	}
}
