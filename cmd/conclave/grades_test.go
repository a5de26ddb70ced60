package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// idle is an actor that answers discovery and does nothing else.
type idle string

func (i idle) Name() string        { return strings.TrimSuffix(string(i), switchedOff) }
func (idle) Routes() []actor.Route { return nil }

// Describe implements [actor.Describer], as the critic does.
func (i idle) Describe() (version, text string, metadata map[string]string) {
	if strings.HasSuffix(string(i), switchedOff) {
		return "1", "", nil
	}
	return "1", "", map[string]string{"definition.compare_answers": "{}"}
}

// switchedOff ends the name of an actor that is there and does nothing.
const switchedOff = " (off)"

// present makes discovery find an actor of this name.
func (c *crew) present(name string, atEnd func(func())) error {
	s, err := actor.Supervise(c.t.Context(), actor.Spec{Name: idle(name).Name(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return idle(name), nil }}, c.b.Dial, actor.Config{})
	if err != nil {
		return err
	}
	atEnd(func() { _ = s.Stop() })
	return nil
}

func cmdCritic(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(ts.Value(crewKey{}).(*crew).present("critic", ts.Defer))
}

func cmdReward(ts *testscript.TestScript, _ bool, _ []string) {
	c := ts.Value(crewKey{}).(*crew)
	ts.Check(c.present("reward", ts.Defer))
	ts.Check(c.rewards())
}

// rewards counts feedback as reward would. What it does with some of it is in the id of the question.
func (c *crew) rewards() error {
	ear, seen := c.b.As("user"), map[string]subjects.Feedback{}
	_, err := ear.Subscribe("user.feedback", func(m *nats.Msg) {
		s, ok := heard(m)
		var f subjects.Feedback
		if !ok || json.Unmarshal(s.Body, &f) != nil {
			return
		}
		dead, err := subjects.DeadLetterEvent.With("reward")
		good(c.t, err)
		sum := sha256.Sum256(m.Data)
		letter := subjects.DeadLetter{Actor: "reward", Subject: "from.user.user.feedback", Code: "malformed", Reason: "nobody has answered\x1b[2J it", SHA256: hex.EncodeToString(sum[:])}
		out := c.reward.WithIDs(s.Session, s.Query)
		r := subjects.Reward{SessionID: s.Session, QueryID: f.QueryID, RespondentID: "generator", Value: float64(f.Thumb), Source: subjects.RewardUser, Thumb: f.Thumb, Stars: f.Stars, Words: f.Words}
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
	})
	if err == nil {
		err = ear.Flush()
	}
	return err
}

// grade is a grade of somebody's answer to the turn's question.
func (x *turn) grade(respondent string, score int) subjects.Critique {
	return subjects.Critique{SessionID: x.q.SessionID, QueryID: x.q.QueryID, RespondentID: respondent, Score: score, Feedback: "Right,\nand short\x1b[2J.", Rubric: subjects.RubricPlain, Model: "judge:1b"}
}

func (x *turn) judge(c subjects.Critique) { say(x, x.critic, subjects.CritiqueResult, c) }

func init() {
	acts["graded"] = func(x *turn) {
		x.answer(x.response("The answer"))
		x.judge(x.grade("generator", 4))
	}
	acts["low"] = func(x *turn) {
		x.answer(x.response("I have saved it."))
		c := x.grade("generator", 1)
		c.Claims, c.Retry = []subjects.Claim{{Said: "I have saved it\x1b[2J", Needs: []string{"save_memory", "fs_write"}}}, true
		x.judge(c)
	}
	acts["ungraded"] = func(x *turn) {
		x.answer(x.response("The answer"))
		c := x.grade("generator", 0)
		c.Feedback, c.Ungraded = "", "the judge could not be read"
		x.judge(c)
	}
	// Only the last of these is the critic's word on what the user was shown.
	acts["compared"] = func(x *turn) {
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
			SessionID: x.q.SessionID, QueryID: x.q.QueryID, Winner: subjects.Tie, Between: []string{"generator", "respondent_b"}, Verdicts: []string{"generator", "respondent_b"},
			Reason: "It changes with the order.", Model: "judge:1b",
		})
	}
	acts["later"] = func(x *turn) {
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
	c := newCrew(t)
	p := c.place(t)
	if err := c.present("critic", t.Cleanup); err != nil {
		t.Fatal(err)
	}
	end := func(a *process) string {
		t.Helper()
		if code, err := a.wait(); code != exitDone || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, a.stdout)
		}
		return strings.ReplaceAll(a.stdout.String(), "\r\n", "\n")
	}
	summary := "\x1b[2m(test:1b, 3 tokens, 1.2s; --continue goes on from here)\x1b[0m\n"
	later := p.onTerminal("ask", "--grade-wait", "1m", "later")
	p.must(later.stdout, "^The answer")
	p.must(later.stdout, "goes on from here")
	close(c.goOn)
	if got, want := end(later), "The answer\n"+summary+"\x1b[2mgraded 4 of 5: Right,; and short\uFFFD[2J.\x1b[0m\n"; got != want {
		t.Errorf("graded later: %q, want %q", got, want)
	}
	want := "I have saved it.\n" + summary +
		"\x1b[33mthe answer says \"I have saved it\uFFFD[2J\", and no call did that: it would have taken save_memory or fs_write\x1b[0m\n" +
		"\x1b[2mgraded 1 of 5: Right,; and short\uFFFD[2J.\x1b[0m\n\x1b[2mtry again: conclave ask --retry\x1b[0m\n"
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "low")); got != want {
		t.Errorf("low: %q, want %q", got, want)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "ungraded")); !strings.HasSuffix(got, "\x1b[2mungraded: the judge could not be read\x1b[0m\n") {
		t.Errorf("ungraded: %q", got)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "1m", "compared")); !strings.Contains(got, "graded 3 of 5") || strings.Contains(got, "graded 5") || strings.Contains(got, "respondent_b") {
		t.Errorf("compared: %q", got)
	}
	if got := end(p.onTerminal("ask", "--grade-wait", "0", "graded")); got != "The answer\n"+summary {
		t.Errorf("without waiting: %q", got)
	}
	// A grade that does not come is waited for as long as was said, and no longer; Ctrl-C ends the wait, and the answer was given.
	if got := end(p.onTerminal("ask", "--grade-wait", "50ms", "capital")); !strings.HasSuffix(got, summary) {
		t.Errorf("never graded: %q", got)
	}
	leave := p.onTerminal("ask", "--grade-wait", "1h", "capital")
	p.must(leave.stdout, "goes on from here")
	if code, err := leave.end(os.Interrupt); code != exitDone || err != nil {
		t.Errorf("left while waiting: %d, %v: %s", code, err, leave.stdout)
	}
}

// TestAskGradeAbsent: without a critic nobody waits, however long the wait may be, and nor for one that is switched off.
func TestAskGradeAbsent(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	for i, v := range [][]string{{"--json"}, {"--stream-json"}, {}, {"--json"}} {
		if i == 3 {
			if err := c.present("critic"+switchedOff, t.Cleanup); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.run(exitDone, "conclave", append([]string{"ask", "--grade-wait", "1h", "capital"}, v...)...); !strings.Contains(got, "Paris") || strings.Contains(got, "grade") {
			t.Errorf("%v: %s", v, got)
		}
	}
}

// TestGradeWindow is about when a grade is waited for at all.
func TestGradeWindow(t *testing.T) {
	t.Parallel()
	_, slave := terminalFor(t)
	for _, tt := range []struct {
		name string
		out  io.Writer
		q    ask
		want time.Duration
	}{
		{"a terminal", slave, ask{gradeWait: gradeTime}, gradeTime},
		{"a pipe", io.Discard, ask{gradeWait: gradeTime}, 0},
		{"a pipe, asked for", io.Discard, ask{gradeWait: time.Minute, gradeAsked: true}, time.Minute},
		{"lines", io.Discard, ask{gradeWait: gradeTime, streamJSON: true}, gradeTime},
		{"not at all", slave, ask{gradeAsked: true}, 0},
		{"nobody waits for the answer", slave, ask{gradeWait: time.Minute, gradeAsked: true, noWait: true}, 0},
	} {
		tt.q.app = newApp(nil, tt.out, io.Discard)
		if got := tt.q.window(); got != tt.want {
			t.Errorf("%s: %s", tt.name, got)
		}
		if tt.want == 0 { // the fast path listens to nothing more, and asks nobody: it has no connection here
			if err := tt.q.listenForGrade(); err != nil || tt.q.critiques != "" || tt.q.pings != "" {
				t.Errorf("%s: it listens, %v", tt.name, err)
			}
			if g := tt.q.grade(t.Context(), subjects.Response{}); g != nil {
				t.Errorf("%s: %+v", tt.name, g)
			}
		}
	}
	q := ask{app: newApp(nil, io.Discard, io.Discard), gradeWait: gradeTime}
	q.json = true
	if q.window() != gradeTime {
		t.Error("a document is not waited for")
	}
}

// TestTakeGrade: whose word it is stands in the event log, and only the visible answer's grade counts.
func TestTakeGrade(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, from, body string
		taken            bool
	}{
		{"the critic's", "critic", `{"query_id":"q1","respondent_id":"generator","score":4}`, true},
		{"trick: respondent B grades itself", "respondent_b", `{"query_id":"q1","respondent_id":"generator","score":5}`, false},
		{"respondent B's grade", "critic", `{"query_id":"q1","respondent_id":"respondent_b","score":5}`, false},
		{"trick: another question in the body", "critic", `{"query_id":"q2","respondent_id":"generator","score":5}`, false},
		{"nobody's", "critic", `{"query_id":"q1","score":5}`, false},
		{"no object", "critic", `"generator"`, false},
	} {
		q := ask{query: "q1"}
		if q.takeGrade(said{From: tt.from, Body: json.RawMessage(tt.body)}); (q.graded != nil) != tt.taken {
			t.Errorf("%s: %+v", tt.name, q.graded)
		}
	}
}

// TestAskAgain is about the question of another try: the critic's words go with it only where no stranger could have
// written them.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	feedback := &subjects.Grades{Critic: 1, Feedback: "Too\nlong\x1b[2J."}
	for _, tt := range []struct {
		name string
		turn subjects.Turn
		want string
	}{
		{"nothing known", subjects.Turn{Query: "Why?"}, "Why?\n\n" + retryLine},
		{"trusted", subjects.Turn{Query: "Why?", Grades: feedback, Labels: &subjects.Labels{Trust: subjects.Trusted}}, "Why?\n\n" + retryLine + " A critic said of it: Too\uFFFDlong\uFFFD[2J."},
		{"untrusted", subjects.Turn{Query: "Why?", Grades: feedback, Labels: &subjects.Labels{Trust: subjects.Untrusted}}, "Why?\n\n" + retryLine},
		{"trick: no labels", subjects.Turn{Query: "Why?", Grades: feedback}, "Why?\n\n" + retryLine},
		{"trick: labels that say nothing", subjects.Turn{Query: "Why?", Grades: feedback, Labels: &subjects.Labels{}}, "Why?\n\n" + retryLine},
		{"the third try", subjects.Turn{Query: "Why?\n\n" + retryLine + " A critic said of it: bad"}, "Why?\n\n" + retryLine},
		{"a grade without words", subjects.Turn{Query: "Why?", Grades: &subjects.Grades{Critic: 2}, Labels: &subjects.Labels{Trust: subjects.Trusted}}, "Why?\n\n" + retryLine},
	} {
		if got := askAgain(tt.turn); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	long := subjects.Turn{Query: "Why?", Grades: &subjects.Grades{Feedback: strings.Repeat("x", 4*retryWords)}, Labels: &subjects.Labels{Trust: subjects.Trusted}}
	if got := askAgain(long); len(got) > 2*retryWords {
		t.Errorf("%d bytes", len(got))
	}
}

func TestOpinion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		words string
		want  subjects.Feedback
		code  int
	}{
		{"up", subjects.Feedback{Thumb: 1}, exitDone},
		{"+1", subjects.Feedback{Thumb: 1}, exitDone},
		{"DOWN", subjects.Feedback{Thumb: -1}, exitDone},
		{"down|too|long", subjects.Feedback{Thumb: -1, Words: "too long"}, exitDone},
		{"1", subjects.Feedback{Stars: 1}, exitDone},
		{"5|because of it", subjects.Feedback{Stars: 5, Words: "because of it"}, exitDone},
		{"too long", subjects.Feedback{Words: "too long"}, exitDone},
		{"upside|down", subjects.Feedback{Words: "upside down"}, exitDone},
		{"5 stars", subjects.Feedback{Words: "5 stars"}, exitDone},
		{"0", subjects.Feedback{}, exitUsage},
		{"6|great", subjects.Feedback{}, exitUsage},
		{"-1", subjects.Feedback{}, exitUsage},
		{"", subjects.Feedback{}, exitUsage},
		{" | ", subjects.Feedback{}, exitUsage},
		{"a\xffb", subjects.Feedback{}, exitUsage},
		{strings.Repeat("x", maxWords+1), subjects.Feedback{}, exitUsage},
	} {
		got, err := opinion(strings.Split(tt.words, "|"))
		if codeOf(err) != tt.code || err == nil && got != tt.want {
			t.Errorf("%q: %+v, %v", clip(tt.words, 40), got, err)
		}
	}
	if _, err := opinion(nil); codeOf(err) != exitUsage {
		t.Errorf("nothing: %v", err)
	}
}

// TestBack walks back through a log that is longer than one stride, and stops where it is told to.
func TestBack(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	nc := c.b.As("user")
	state, err := subjects.AgentStateEvent.With("generator")
	if err != nil {
		t.Fatal(err)
	}
	const n = 2*stride + 100
	for i := range n {
		if i%1000 == 0 {
			good(t, actor.Emit(t.Context(), c.critic, subjects.CritiqueResult, subjects.Critique{QueryID: fmt.Sprint(i)}))
		}
		good(t, actor.EmitAsync(t.Context(), c.generator, state, subjects.AgentState{To: "IDLE"}))
	}
	good(t, actor.Emit(t.Context(), c.generator, state, subjects.AgentState{To: "IDLE"}))
	var got []string
	each := func(most int) func(s said) bool {
		got = nil
		return func(s said) bool {
			got = append(got, s.Query)
			return len(got) < most
		}
	}
	for _, tt := range []struct {
		name   string
		before uint64
		limit  int
		most   int
		want   string
	}{
		{"all", 0, 100, 100, "4000 3000 2000 1000 0"},
		{"until enough", 0, 100, 2, "4000 3000"},
		{"bounded", 0, 3, 100, "4000 3000 2000"},
		{"before a place", 1500, 100, 100, "1000 0"},
		{"before all", 1, 100, 100, ""},
	} {
		if err := back(t.Context(), nc, subjects.CritiqueResult.StoredBy("critic"), tt.before, tt.limit, each(tt.most)); err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, %v", tt.name, got, err)
		}
	}
	if err := forth(t.Context(), nc, subjects.CritiqueResult.StoredBy("critic"), 1500, 2, each(100)); err != nil || strings.Join(got, " ") != "2000 3000" {
		t.Errorf("forth: %v, %v", got, err)
	}
}

// TestDoctorJudging is about who grades, and about the model of the second respondent.
func TestDoctorJudging(t *testing.T) {
	t.Parallel()
	role := func(r subjects.RoleModel) []subjects.RoleModel {
		r.Role = subjects.RoleCritic
		return []subjects.RoleModel{{Role: subjects.RoleAssistant, Model: "big:1b"}, r}
	}
	for _, tt := range []struct {
		name, critic, generator     string
		roles                       []subjects.RoleModel
		level, text, fix            string
		respondentB, respondentBFix string
	}{
		{"its own model", "", "", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b grades every answer", "", "", ""},
		{"the assistant's stands in", "", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b", Notice: "judge:1b is not there, so big:1b answers; fetch it with: conclave model pull judge:1b"}), levelWarn, "judge:1b is not there, so big:1b grades", "conclave model pull judge:1b", "", ""},
		{"without a notice", "", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b"}), levelWarn, "judge:1b is not there, so big:1b grades", "conclave model pull judge:1b", "", ""},
		{"one that cannot be fetched", "", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "far/judge", Notice: "far/judge is not there, so big:1b answers; check its name in models.yaml"}), levelWarn, "big:1b grades", "far/judge is not there, so big:1b answers; check its name in models.yaml", "", ""},
		{"a script", "", "", role(subjects.RoleModel{Model: "script", Wanted: "judge:1b", DemoModel: true}), levelWarn, "answers stay ungraded", "run ollama serve, then conclave model pull judge:1b", "", ""},
		{"no such role", "", "", nil, levelWarn, "no model has the role critic", "models.yaml", "", ""},
		{"off", "enabled: false", "", role(subjects.RoleModel{Model: "big:1b", Wanted: "judge:1b"}), levelOK, "switched off in critic.yaml", "", "", ""},
		{"a second respondent", "", "respondent_b: {enabled: true}", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b", "", "with the assistant's model", ""},
		{"started by a flag", "", "", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b", "", "started by a flag", ""},
		{"with a model of its own", "", "respondent_b: {enabled: true, model: other}", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b", "", "with other", ""},
		{"with a model that is not there", "", "respondent_b: {enabled: true, model: 'gone:1b'}", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b", "", "gone:1b is not there", "conclave model pull gone:1b"},
		{"with a model that is refused", "", "respondent_b: {enabled: true, model: 'cloud:1b'}", role(subjects.RoleModel{Model: "judge:1b"}), levelOK, "judge:1b", "", "cloud:1b is not there", "conclave model pull cloud:1b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newApp(nil, io.Discard, io.Discard)
			a.home.Config = t.TempDir()
			for name, body := range map[string]string{"critic.yaml": tt.critic, "generator.yaml": tt.generator} {
				if body != "" {
					if err := os.WriteFile(a.home.Config+"/"+name, []byte(body+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			x := examination{app: a}
			x.judging(subjects.ModelList{Models: []subjects.ModelInfo{{Name: "big:1b"}, {Name: "judge:1b"}, {Name: "other:latest"}, {Name: "cloud:1b", Refused: "far away"}}, Roles: tt.roles}, tt.name == "started by a flag")
			if c := x.checks[0]; c.Name != "critic" || c.Level != tt.level || !strings.Contains(c.Text, tt.text) || tt.fix == "" && c.Fix != "" || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("the critic: %+v", c)
			}
			if tt.respondentB == "" {
				if len(x.checks) != 1 {
					t.Errorf("more: %+v", x.checks)
				}
				return
			}
			if c := x.checks[1]; c.Name != "respondent_b" || !strings.Contains(c.Text, tt.respondentB) || c.Fix != tt.respondentBFix || (c.Level == levelOK) != (c.Fix == "") {
				t.Errorf("the second respondent: %+v", c)
			}
		})
	}
}
