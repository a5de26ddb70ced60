package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// idle is an actor that answers discovery and does nothing else.
type idle string

func (i idle) Name() string        { return strings.TrimSuffix(string(i), switchedOff) }
func (idle) Routes() []actor.Route { return nil }

// Describe implements [actor.Describer], as the critic does.
func (i idle) Describe() map[string]string {
	if strings.HasSuffix(string(i), switchedOff) {
		return nil
	}
	return map[string]string{"definition.compare_answers": "{}"}
}

// switchedOff ends the name of an actor that is there and does nothing.
const switchedOff = " (off)"

// present makes discovery find an actor of this name.
func (c *fixture) present(name string, atEnd func(func())) error {
	s, err := actor.Supervise(c.t.Context(),
		actor.Spec{Name: idle(name).Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return idle(name), nil
		}}, c.b.Dial, actor.Config{})
	if err != nil {
		return err
	}
	atEnd(func() { _ = s.Stop() })
	return nil
}

func cmdCritic(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(ts.Value(fixtureKey{}).(*fixture).present("critic", ts.Defer))
}

func cmdReward(ts *testscript.TestScript, _ bool, _ []string) {
	c := ts.Value(fixtureKey{}).(*fixture)
	ts.Check(c.present("reward", ts.Defer))
	ts.Check(c.rewards())
}

// rewards counts feedback as reward would. What it does with some of it is in the id of the question.
func (c *fixture) rewards() error {
	seen := map[string]subjects.Feedback{}
	count := func(s client.Event) {
		var f subjects.Feedback
		if !s.Decode(&f) {
			return
		}
		dead, err := subjects.DeadLetterEvent.With("reward")
		good(c.t, err)
		sum := sha256.Sum256(s.Body)
		letter := subjects.DeadLetter{
			Actor: "reward", Subject: "from.user.user.feedback", Code: "malformed",
			Reason: "nobody has answered\x1b[2J it", SHA256: hex.EncodeToString(sum[:]),
		}
		out := c.reward.WithIDs(s.Session, s.Query)
		r := subjects.Reward{
			SessionID: s.Session, QueryID: f.QueryID, RespondentID: "generator",
			Value: float64(f.Thumb), Source: subjects.RewardUser, Thumb: f.Thumb, Stars: f.Stars, Words: f.Words,
		}
		if f.Stars > 0 {
			r.Value = float64(f.Stars-3) / 2
		}
		old := seen[f.QueryID]
		seen[f.QueryID] = f
		switch {
		case f.QueryID == "q-of-nobody":
			good(c.t, actor.Emit(c.t.Context(), out, dead, letter))
			return
		case f.QueryID == "q-tricks": // what is not about this rating, though it looks so
			other := letter
			other.SHA256 = strings.Repeat("0", 64)
			good(c.t, actor.Emit(c.t.Context(), out, dead, other))
			other = letter
			other.Subject = "from.generator.response.generation"
			good(c.t, actor.Emit(c.t.Context(), out, dead, other))
			wrong := r
			wrong.Thumb, wrong.Value = -f.Thumb, -0.5
			good(c.t, actor.Emit(c.t.Context(), out, subjects.RewardEvent, wrong))
			wrong = r
			wrong.Source, wrong.Value = subjects.RewardConversation, 0.5
			good(c.t, actor.Emit(c.t.Context(), out, subjects.RewardEvent, wrong))
			critic, err := subjects.DeadLetterEvent.With("critic")
			good(c.t, err)
			good(c.t, actor.Emit(c.t.Context(), c.critic.WithIDs(s.Session, s.Query), critic, letter))
		case old == f:
			return // the same was said before
		case old != subjects.Feedback{}:
			r.Count = 1
		}
		r.Count++
		good(c.t, actor.Emit(c.t.Context(), out, subjects.RewardEvent, r))
	}
	user, err := client.New(c.b.Connect("user"))
	if err != nil {
		return err
	}
	feedback, err := user.Watch(c.t.Context(), "user.feedback", 0)
	if err != nil {
		return err
	}
	go func() {
		for e, err := range feedback.Events(c.t.Context()) {
			if err == nil {
				count(e)
			}
		}
	}()
	return nil
}

// grade is a grade of somebody's answer to the turn's question.
func (x *turn) grade(respondent string, score int) subjects.Critique {
	return subjects.Critique{
		SessionID: x.q.SessionID, QueryID: x.q.QueryID, RespondentID: respondent, Score: score,
		Feedback: "Right,\nand short\x1b[2J.", Rubric: subjects.RubricPlain, Model: "judge:1b",
	}
}

func (x *turn) judge(c subjects.Critique) { say(x, x.critic, subjects.CritiqueResult, c) }

func init() {
	scriptedAnswers["graded"] = func(x *turn) {
		x.answer(x.response("The answer"))
		x.judge(x.grade("generator", 4))
	}
	scriptedAnswers["low"] = func(x *turn) {
		x.answer(x.response("I have saved it."))
		c := x.grade("generator", 1)
		c.Retry = true
		x.judge(c)
	}
	scriptedAnswers["ungraded"] = func(x *turn) {
		x.answer(x.response("The answer"))
		c := x.grade("generator", 0)
		c.Feedback, c.Ungraded = "", "the judge could not be read"
		x.judge(c)
	}
	// Only the last of these is the critic's word on what the user was shown.
	scriptedAnswers["compared"] = func(x *turn) {
		b := x.response("Respondent B's answer")
		b.Model = "other:1b"
		say(x, x.respondentB, subjects.ResponseGeneration, b)
		x.judge(x.grade("respondent_b", 5))
		x.answer(x.response("The answer"))
		other := x.grade("generator", 5)
		other.QueryID = "another"
		say(x, x.critic.WithIDs("s", "another"), subjects.CritiqueResult, other)
		c := x.grade("generator", 3)
		c.Notice = "judge:1b stands in for prometheus:7b"
		x.judge(c)
		say(x, x.critic, subjects.PairwiseResult, subjects.Pairwise{
			SessionID: x.q.SessionID, QueryID: x.q.QueryID, Winner: subjects.Tie, Between: []string{
				"generator",
				"respondent_b",
			}, Verdicts: []string{"generator", "respondent_b"},
			Reason: "It changes with the order.", Model: "judge:1b",
		})
	}
	scriptedAnswers["later"] = func(x *turn) {
		x.answer(x.response("The answer"))
		select {
		case <-x.goOn:
			x.judge(x.grade("generator", 4))
		case <-x.t.Context().Done():
		}
	}
}

// TestAskGradeTerminal looks at what a user sees of a grade: a dim line below the answer, which is there before.
func TestAskGradeTerminal(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	if err := c.present("critic", t.Cleanup); err != nil {
		t.Fatal(err)
	}
	end := func(a *process) string {
		t.Helper()
		if code, err := a.wait(); code != cli.ExitOK || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, a.stdout)
		}
		return strings.ReplaceAll(a.stdout.String(), "\r\n", "\n")
	}
	summary := "\x1b[2m(test:1b, 3 tokens, 1.2s, nothing left this machine; continue with --continue)\x1b[0m\n"
	later := p.onTerminal("ask", "--grade-wait", "1m", "later")
	p.must(later.stdout, "^The answer")
	p.must(later.stdout, "continue with --continue")
	close(c.goOn)
	if got, want := end(later), "The answer\n"+summary+
		"\x1b[2mgraded 4 of 5: Right,; and short\uFFFD[2J.\x1b[0m\n"; got != want {
		t.Errorf("graded later: %q, want %q", got, want)
	}
	want := "I have saved it.\n" + summary +
		"\x1b[2mgraded 1 of 5: Right,; and short\uFFFD[2J.\x1b[0m\n\x1b[2mtry again: conclave ask --retry\x1b[0m\n"
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "low")); got != want {
		t.Errorf("low: %q, want %q", got, want)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "ungraded")); !strings.HasSuffix(got,
		"\x1b[2mungraded: the judge could not be read\x1b[0m\n") {
		t.Errorf("ungraded: %q", got)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "compared")); !strings.Contains(got, "graded 3 of 5") ||
		strings.Contains(got, "graded 5") || strings.Contains(got, "respondent_b") {
		t.Errorf("compared: %q", got)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "0", "graded")); got != "The answer\n"+summary {
		t.Errorf("without waiting: %q", got)
	}
	// A grade that does not come is waited for as long as was said, and no longer; Ctrl-C ends the wait, and the answer
	// was given.
	if got := end(p.onTerminal("ask", "--grade-wait", "50ms", "capital")); !strings.HasSuffix(got, summary) {
		t.Errorf("never graded: %q", got)
	}
	leave := p.onTerminal("ask", "--grade-wait", "1h", "capital")
	p.must(leave.stdout, "continue with --continue")
	if code, err := leave.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("left while waiting: %d, %v: %s", code, err, leave.stdout)
	}
}

// TestAskGradeAbsent: without a critic nobody waits, however long the wait may be, and nor for one that is switched
// off.
func TestAskGradeAbsent(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	for i, v := range [][]string{{"--json"}, {"--stream-json"}, {}, {"--json"}} {
		if i == 3 {
			if err := c.present("critic"+switchedOff, t.Cleanup); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.run(cli.ExitOK, "conclave", append([]string{"ask", "--grade-wait", "1h", "capital"},
			v...)...); !strings.Contains(got, "Paris") || strings.Contains(got, "grade") {
			t.Errorf("%v: %s", v, got)
		}
	}
}

// TestGradeWindow: a pipe waits for a grade only on request, and --no-wait never does.
func TestGradeWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		flags            askFlags
		asJSON, terminal bool
		want             time.Duration
	}{
		{"terminal", askFlags{gradeWait: defaultGradeWait}, false, true, defaultGradeWait},
		{"pipe", askFlags{gradeWait: defaultGradeWait}, false, false, 0},
		{"pipe with --grade-wait", askFlags{gradeWait: time.Minute, gradeWaitSet: true}, false, false, time.Minute},
		{"pipe with --stream-json", askFlags{gradeWait: defaultGradeWait, lines: true}, false, false, defaultGradeWait},
		{"pipe with --json", askFlags{gradeWait: defaultGradeWait}, true, false, defaultGradeWait},
		{"terminal with --grade-wait 0", askFlags{gradeWaitSet: true}, false, true, 0},
		{"--json with --grade-wait 0", askFlags{gradeWaitSet: true}, true, false, 0},
		{"--no-wait", askFlags{gradeWait: time.Minute, gradeWaitSet: true, noWait: true}, true, true, 0},
	} {
		if got := tt.flags.gradeWindow(tt.asJSON, tt.terminal); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestParseFeedback(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		words string
		want  subjects.Feedback
		code  int
	}{
		{"up", subjects.Feedback{Thumb: 1}, cli.ExitOK},
		{"+1", subjects.Feedback{Thumb: 1}, cli.ExitOK},
		{"DOWN", subjects.Feedback{Thumb: -1}, cli.ExitOK},
		{"down|too|long", subjects.Feedback{Thumb: -1, Words: "too long"}, cli.ExitOK},
		{"1", subjects.Feedback{Stars: 1}, cli.ExitOK},
		{"5|because of it", subjects.Feedback{Stars: 5, Words: "because of it"}, cli.ExitOK},
		{"too long", subjects.Feedback{Words: "too long"}, cli.ExitOK},
		{"upside|down", subjects.Feedback{Words: "upside down"}, cli.ExitOK},
		{"5 stars", subjects.Feedback{Words: "5 stars"}, cli.ExitOK},
		{"0", subjects.Feedback{}, cli.ExitUsage},
		{"6|great", subjects.Feedback{}, cli.ExitUsage},
		{"-1", subjects.Feedback{}, cli.ExitUsage},
		{"", subjects.Feedback{}, cli.ExitUsage},
		{" | ", subjects.Feedback{}, cli.ExitUsage},
		{"a\xffb", subjects.Feedback{}, cli.ExitUsage},
		{strings.Repeat("x", client.MaxFeedback+1), subjects.Feedback{}, cli.ExitUsage},
	} {
		got, err := parseFeedback(strings.Split(tt.words, "|"))
		if cli.Code(err) != tt.code || err == nil && got != tt.want {
			t.Errorf("%q: %+v, %v", term.Clip(tt.words, 40), got, err)
		}
	}
	if _, err := parseFeedback(nil); cli.Code(err) != cli.ExitUsage {
		t.Errorf("nothing: %v", err)
	}
}
