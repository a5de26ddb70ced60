package critic

import (
	"context"
	"errors"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// token is a credential by its looks.
var token = "ghp_" + strings.Repeat("aB3", 12)

// TestNoHalfCredential: what is cut first and looked at then would let a part of a credential through.
func TestNoHalfCredential(t *testing.T) {
	t.Parallel()
	for pad := maxFeedback - 56; pad < maxFeedback; pad += 4 {
		w := newHarness(t)
		w.setJudge(always("Feedback: " + strings.Repeat("word ", pad/5) + token + " is bad, " +
			strings.Repeat("more ", 30) + "[RESULT] 2"))
		w.mustDeliver("generator", plainAnswer("q1"))
		if g := w.critique(); g.Score != 2 || strings.Contains(g.Feedback, "ghp_") {
			t.Errorf("after %d bytes the feedback ends with %q", pad, g.Feedback[max(0, len(g.Feedback)-60):])
		}
	}
	for _, before := range []string{"5 ", "5, key ", "5 for the key "} {
		w := newHarness(t)
		w.setJudge(always("Feedback: Bad. [RESULT] " + before + token))
		w.mustDeliver("generator", plainAnswer("q1"))
		if g := w.critique(); g.Ungraded == "" || strings.Contains(g.Ungraded, "ghp_") {
			t.Errorf("ungraded: %q", g.Ungraded)
		}
	}
}

// TestOneIDInTwoSessions: whoever asks chooses the id of a question, and may choose it twice. Each answer is told of,
// one of them as ungraded, and answers of two sessions are not compared.
func TestOneIDInTwoSessions(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	a, b := plainAnswer("q1"), plainAnswer("q1")
	b.SessionID, b.Answer, b.Query = "s2", "I refuse.", "something else"
	for range 2 { // handed out again, nothing is said again
		w.mustDeliver("generator", a)
		w.mustDeliver("generator", b)
	}
	all := w.critiques()
	if len(all) != 2 || all[0].SessionID != a.SessionID || all[0].Score == 0 || all[1].SessionID != "s2" ||
		!strings.Contains(all[1].Ungraded, "used in another session before") {
		t.Errorf("%+v", all)
	}
	w = newHarness(t)
	w.setJudge(judgeEither)
	w.mustDeliver("generator", a)
	w.mustDeliver("respondent_b", b)
	if v := w.verdicts(); len(v) > 0 {
		t.Errorf("answers of two sessions were compared: %+v", v)
	}
}

// fullOut speaks through a bucket that takes nothing more.
type fullOut struct{ actor.Out }

func (f fullOut) Store(b string) actor.Store    { return fullStore{f.Out.Store(b)} }
func (f fullOut) WithIDs(s, q string) actor.Out { return fullOut{f.Out.WithIDs(s, q)} }

type fullStore struct{ actor.Store }

func (fullStore) Put(context.Context, string, []byte, uint64) (uint64, error) {
	return 0, errors.New("maximum bytes exceeded")
}

// TestFullBucketPublishesOnLastAttempt: an answer that cannot be written down is told of all the same, at the last try.
func TestFullBucketPublishesOnLastAttempt(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	for try := 1; try <= subjects.MaxDeliver; try++ {
		m := message("committee", plainAnswer("q1"))
		m.Attempt = try
		err := w.c.onResponse(t.Context(), m, fullOut{w.rec.Out()})
		if last := try == subjects.MaxDeliver; (err == nil) != last || len(w.critiques()) > 0 != last {
			t.Fatalf("try %d: %v, %+v", try, err, w.critiques())
		}
	}
}

// TestTurnMarkersAreNeutralized: what a server may take for the end of a speaker's turn is none when the judge reads
// it.
func TestTurnMarkersAreNeutralized(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{
		"<|im_end|>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<start_of_turn>", "[/INST]", "<</SYS>>", "<|turn>model",
		"<turn|>", "<|channel>thought", "<think>", "</think>", "</reasoning>",
	} {
		if got := sanitize("before "+mark+" after", 1000); strings.Contains(got, mark) ||
			!strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s became %q", mark, got)
		}
	}
	for _, text := range []string{"a < b | c > d", "List<String>", "x <= y"} {
		if got := sanitize(text, 1000); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
