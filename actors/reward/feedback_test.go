package reward

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

var errTest = errors.New("the disk is full")

// TestFeedback: what feedback is worth, and what is no feedback.
func TestFeedback(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		from string
		f    subjects.Feedback
		want subjects.Reward // value, thumb, stars and words
		code string          // of the refusal
	}{
		{name: "thumb up", f: subjects.Feedback{Thumb: 1}, want: subjects.Reward{Value: 1, Thumb: 1}},
		{name: "thumb down", f: subjects.Feedback{Thumb: -1}, want: subjects.Reward{Value: -1, Thumb: -1}},
		{name: "one star", f: subjects.Feedback{Stars: 1}, want: subjects.Reward{Value: -1, Stars: 1}},
		{name: "two stars", f: subjects.Feedback{Stars: 2}, want: subjects.Reward{Value: -0.5, Stars: 2}},
		{name: "three stars", f: subjects.Feedback{Stars: 3}, want: subjects.Reward{Stars: 3}},
		{name: "four stars", f: subjects.Feedback{Stars: 4}, want: subjects.Reward{Value: 0.5, Stars: 4}},
		{name: "five stars", f: subjects.Feedback{Stars: 5}, want: subjects.Reward{Value: 1, Stars: 5}},
		{
			name: "words alone", f: subjects.Feedback{Words: " that was wrong\n"},
			want: subjects.Reward{Words: "that was wrong"},
		},
		{
			name: "from the page", from: "gateway", f: subjects.Feedback{Thumb: 1},
			want: subjects.Reward{Value: 1, Thumb: 1},
		},
		{
			name: "stars before a thumb", f: subjects.Feedback{Stars: 2, Thumb: 1},
			want: subjects.Reward{Value: -0.5, Stars: 2, Thumb: 1},
		},
		{
			name: "a thumb before words", f: subjects.Feedback{Thumb: 1, Words: "wrong"},
			want: subjects.Reward{Value: 1, Thumb: 1, Words: "wrong"},
		},
		{
			name: "stars before all", f: subjects.Feedback{Stars: 3, Thumb: -1, Words: "perfect"},
			want: subjects.Reward{Stars: 3, Thumb: -1, Words: "perfect"},
		},
		{
			name: "trick: a credential in the words", f: subjects.Feedback{Words: "wrong, my password: " + canary +
				" is not that"},
			want: subjects.Reward{Words: "wrong, my password: [redacted: password] is not that"},
		},
		{
			name: "trick: a credential with something unseen in it", f: subjects.Feedback{
				Thumb: 1,
				Words: "password: hunter2\u200b-correct-horse",
			},
			want: subjects.Reward{Value: 1, Thumb: 1, Words: "password: [redacted: password]"},
		},
		{
			name: "trick: a book", f: subjects.Feedback{Words: "wrong " + strings.Repeat("ä", maxWords)},
			want: subjects.Reward{Words: "wrong " + strings.Repeat("ä", (maxWords-6)/2) + "..."},
		},
		{
			name: "trick: signs that turn the terminal",
			f:    subjects.Feedback{Words: "wrong\x1b[31m\u202e\r\nand\tslow"},
			want: subjects.Reward{Words: "wrong[31m \nand slow"},
		},

		{name: "nothing", f: subjects.Feedback{}, code: subjects.CodeMalformed},
		{name: "blanks", f: subjects.Feedback{Words: " \n\t "}, code: subjects.CodeMalformed},
		{
			name: "trick: words nobody sees", f: subjects.Feedback{Words: "\u200b\u2060\ufe0f"},
			code: subjects.CodeMalformed,
		},
		{name: "trick: two thumbs", f: subjects.Feedback{Thumb: 2}, code: subjects.CodeMalformed},
		{name: "trick: two thumbs down", f: subjects.Feedback{Thumb: -2}, code: subjects.CodeMalformed},
		{name: "trick: six stars", f: subjects.Feedback{Stars: 6}, code: subjects.CodeMalformed},
		{name: "trick: less than no stars", f: subjects.Feedback{Stars: -1}, code: subjects.CodeMalformed},
		{
			name: "trick: a bad thumb behind good stars", f: subjects.Feedback{Stars: 5, Thumb: 7},
			code: subjects.CodeMalformed,
		},
		{name: "trick: every question", f: subjects.Feedback{QueryID: "*", Thumb: 1}, code: subjects.CodeMalformed},
		{
			name: "trick: a question of two tokens", f: subjects.Feedback{QueryID: "q1.x", Thumb: 1},
			code: subjects.CodeMalformed,
		},
		{name: "trick: another account", from: "generator", f: subjects.Feedback{Thumb: 1}, code: subjects.CodeDenied},
		{name: "trick: no account", from: "-", f: subjects.Feedback{Thumb: 1}, code: subjects.CodeDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.deliverAnswer("s1", "q1", 1)
			if tt.f.QueryID == "" {
				tt.f.QueryID = "q1"
			}
			in := feedback(2, 1, tt.f)
			in.Query = ""
			if tt.from != "" {
				in.From = strings.Trim(tt.from, "-")
			}
			if err := w.r.onFeedback(t.Context(), in, w.Out()); err != nil {
				t.Fatal(err)
			}
			got, letters := w.rewards(), w.deadLetters()
			if tt.code != "" {
				if len(got) > 0 || len(letters) != 1 || letters[0].Code != tt.code || letters[0].Reason == "" ||
					w.storedAnswer("q1").Count != 0 {
					t.Errorf("rewards %+v, letters %+v", got, letters)
				}
				return
			}
			want := tt.want
			want.SessionID, want.QueryID, want.RespondentID, want.Count, want.Source = "s1", "q1", "generator", 1,
				subjects.RewardUser
			if len(got) != 1 || got[0] != want || len(letters) > 0 {
				t.Errorf("rewards\n%+v, want\n%+v; letters %+v", got, want, letters)
			}
			for _, s := range w.Published() {
				if strings.Contains(s.Body, canary) || s.Subject == "reward.event" &&
					(s.Session != "s1" || s.Query != "q1" || !s.Waited || s.ID == "") {
					t.Errorf("said %+v", s)
				}
			}
			if a := w.storedAnswer("q1"); !a.Said || strings.Contains(fmt.Sprint(a), canary) {
				t.Errorf("the book has %+v", a)
			}
		})
	}
}

// TestRepeatedFeedbackCountsOnce: what holds is what the user thinks now, each change is told once, and nothing else
// is.
func TestRepeatedFeedbackCountsOnce(t *testing.T) {
	t.Parallel()
	up, down := subjects.Feedback{QueryID: "q1", Thumb: 1}, subjects.Feedback{QueryID: "q1", Thumb: -1}
	type says struct {
		seq uint64
		f   subjects.Feedback
	}
	for _, tt := range []struct {
		name string
		says []says
		want string
	}{
		{"once", []says{{2, up}}, "+1.0/1 "},
		{"said again", []says{{2, up}, {3, up}}, "+1.0/1 "},
		{"handed out again", []says{{2, up}, {2, up}, {2, up}}, "+1.0/1 "},
		{"another opinion", []says{{2, up}, {3, down}}, "+1.0/1 -1.0/2 "},
		{"and back", []says{{2, up}, {3, down}, {4, up}}, "+1.0/1 -1.0/2 +1.0/3 "},
		{
			"more words for the same thumb",
			[]says{{2, up}, {3, subjects.Feedback{QueryID: "q1", Thumb: 1, Words: "clear"}}},
			"+1.0/1 +1.0/2 ",
		},
		{
			"as many stars as the thumb is worth",
			[]says{{2, up}, {3, subjects.Feedback{QueryID: "q1", Stars: 5}}},
			"+1.0/1 +1.0/2 ",
		},
		{"trick: the first handed out again after the second", []says{{2, up}, {3, down}, {2, up}}, "+1.0/1 -1.0/2 "},
		{"trick: out of order", []says{{3, down}, {2, up}}, "-1.0/1 "},
		{"trick: late, between two that say the same", []says{{2, up}, {4, up}, {3, down}}, "+1.0/1 "},
		{"trick: the same words but for blanks", []says{
			{2, subjects.Feedback{QueryID: "q1", Words: "wrong"}},
			{3, subjects.Feedback{QueryID: "q1", Words: " wrong\n"}},
		}, "+0.0/1 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.deliverAnswer("s1", "q1", 1)
			for i, s := range tt.says {
				if err := w.deliverFeedback(s.seq, s.f); err != nil {
					t.Fatal(i, err)
				}
			}
			if got := w.rewardSummary(); got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
			ids := map[string]bool{}
			for _, s := range w.Published() {
				ids[s.ID] = true
			}
			if len(w.deadLetters()) > 0 || len(ids) != len(w.rewards())+1 { // and "" of the announcement
				t.Errorf("said %+v", w.Published())
			}
		})
	}
}

// TestLateFeedbackChangesNothing: weeks later, in another process and from a stream that counts from one again, an
// opinion still counts.
func TestLateFeedbackChangesNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.deliverAnswer("s1", "q1", 1000)
	if err := w.deliverFeedback(1001, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	w.Time, w.r = noon.Add(80*24*time.Hour), New()
	in := feedback(1, 1, subjects.Feedback{QueryID: "q1", Stars: 2})
	in.StoredAt, in.Time = w.Time, w.Time
	for range 2 {
		if err := w.r.onFeedback(t.Context(), in, w.Out()); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.rewardSummary(); got != "+1.0/1 -0.5/2 " {
		t.Errorf("told %q", got)
	}
	// An answer of that stream is the last one of its session, too.
	m := response("generator", "s1", "q2", 2)
	m.StoredAt = w.Time
	if err := w.r.onResponse(t.Context(), m, w.Out()); err != nil || w.lastQuery("s1") != "q2" {
		t.Errorf("the last one is %q, %v", w.lastQuery("s1"), err)
	}
}

// TestFeedbackOnUnknownAnswer: feedback about no answer waits for it a moment, and is refused in words then. The letter
// can be told by the hash of what was sent and by the question.
func TestFeedbackOnUnknownAnswer(t *testing.T) {
	t.Parallel()
	f := subjects.Feedback{QueryID: "q1", Thumb: 1, Words: "<ok> & \"so\" ä"}
	for _, tt := range []struct {
		name    string
		started time.Duration // ago; 0 = not at all
		try     int
		waits   bool
	}{
		{"the first time", time.Hour, 1, true},
		{"the second time", time.Hour, maxUnknownAttempts, false},
		{"handed out often, after crashes", time.Hour, 40, false},
		{"right after a start", 5 * time.Second, maxUnknownAttempts, true},
		{"right after a start, the last time but one", 5 * time.Second, subjects.MaxDeliver - 1, true},
		{"right after a start, the last time", 5 * time.Second, subjects.MaxDeliver, false},
		{"before it was started", 0, maxUnknownAttempts, true},
		{"some time after a start", 2 * subjects.AckWait, maxUnknownAttempts, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			if w.r.startedAt.Store(noon.Add(-tt.started).UnixNano()); tt.started == 0 {
				w.r.startedAt.Store(0)
			}
			w.deliverAnswer("s1", "other", 1)
			in := feedback(2, tt.try, f)
			in.Query, in.Session = "", "s1"
			err := w.r.onFeedback(t.Context(), in, w.Out())
			letters := w.deadLetters()
			if tt.waits {
				if actortest.Code(err) != subjects.CodeUnknownAnswer || len(letters) > 0 {
					t.Errorf("%v, letters %+v", err, letters)
				}
				w.deliverAnswer("s1", "q1", 3) // it was on its way
				if err := w.r.onFeedback(t.Context(), in, w.Out()); err != nil || w.rewardSummary() != "+1.0/1 " {
					t.Errorf("then: %v, told %q", err, w.rewardSummary())
				}
				return
			}
			body, merr := json.Marshal(f)
			if merr != nil {
				t.Fatal(merr)
			}
			sum := sha256.Sum256(body)
			want := subjects.DeadLetter{
				Actor: "reward", Subject: "from.user.user.feedback",
				Code: subjects.CodeUnknownAnswer, Size: len(body), SHA256: hex.EncodeToString(sum[:]), Time: noon,
			}
			if err != nil || len(letters) != 1 || !strings.Contains(letters[0].Reason, "no answer to q1 ") ||
				!strings.Contains(letters[0].Reason, "conclave session list") ||
				strings.Contains(letters[0].Reason, "<ok>") {
				t.Fatalf("%v, letters %+v", err, letters)
			}
			want.Reason = letters[0].Reason
			if letters[0] != want {
				t.Errorf("the letter is %+v, want %+v", letters[0], want)
			}
			for _, s := range w.Published() {
				if s.Subject == "dead.reward" && (s.Query != "q1" || s.Session != "s1" || !s.Waited) {
					t.Errorf("said as %+v", s)
				}
			}
			if w.storedAnswer("q1") != nil || len(w.rewards()) > 0 {
				t.Error("something was written down")
			}
		})
	}
}

// TestFailedDeadLetterIsRetried: then the message comes again, and the runtime writes the letter after the last try.
func TestFailedDeadLetterIsRetried(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.FailPublish = func(subject string) error {
		if subject == "dead.reward" {
			return errTest
		}
		return nil
	}
	if err := w.deliverFeedback(1, subjects.Feedback{QueryID: "q1", Stars: 9}); actortest.Code(
		err) != subjects.CodeMalformed || len(w.Logged()) != 1 {
		t.Errorf("%v, noted %v", err, w.Logged())
	}
}

// TestConcurrentFeedback: of several that come at once none is told twice, and the latest holds.
func TestConcurrentFeedback(t *testing.T) {
	t.Parallel()
	const many = 24
	w := newHarness(t)
	w.deliverAnswer("s1", "q1", 1)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			r := New()
			in := feedback(uint64(i+2), 1, subjects.Feedback{
				QueryID: "q1", Stars: 1 + i%5,
				Words: fmt.Sprint("as of ", i),
			})
			for try := 0; ; try++ {
				err := r.onFeedback(t.Context(), in, w.Out())
				if err == nil {
					return
				}
				if !errors.Is(err, actor.ErrBusy) && !errors.Is(err, actor.ErrChanged) || try > 1000 {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	all, a := w.rewards(), w.storedAnswer("q1")
	seen := map[int]bool{}
	for _, r := range all {
		if seen[r.Count] || r.Count < 1 || r.Count > len(all) {
			t.Errorf("%d was told twice, or one before it never: %s", r.Count, w.rewardSummary())
		}
		seen[r.Count] = true
		if r.Count == len(all) && r.Words != fmt.Sprint("as of ", many-1) {
			t.Errorf("the last one is %+v", r)
		}
	}
	if a.Count != len(all) || !a.Said || a.Opinion.Words != fmt.Sprint("as of ", many-1) || a.Heard.Seq != many+1 ||
		len(w.deadLetters()) > 0 {
		t.Errorf("the book has %+v after %d rewards", a, len(all))
	}
}

// TestOneIDInTwoSessions: feedback about an answer whose id was used in another session before is not counted for that
// other answer, and a conversation rates none of another's.
func TestOneIDInTwoSessions(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.deliverAnswer("s1", "q1", 1)
	w.deliverAnswer("s2", "q0", 2)
	w.deliverAnswer("s2", "q1", 3) // the same id in another conversation
	in := feedback(4, 1, subjects.Feedback{QueryID: "q1", Thumb: -1})
	in.Session = "s2"
	if err := w.r.onFeedback(t.Context(), in, w.Out()); err != nil {
		t.Fatal(err)
	}
	if letters := w.deadLetters(); len(letters) != 1 || letters[0].Code != subjects.CodeUnknownAnswer {
		t.Errorf("letters %+v", letters)
	}
	res := w.callTool(`{"opinion":"bad","words":"that is wrong"}`, func(o *subjects.ToolOrder, s *string) {
		*s = "s2"
		o.QueryID = "q9"
	})
	if res.Error == nil {
		t.Errorf("%+v", res)
	}
	if got := w.rewards(); len(got) != 0 {
		t.Errorf("rewards %+v", got)
	}
}
