package critic

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// TestRoutesAndTools: what the critic listens to, and what it says when it starts.
func TestRoutesAndTools(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	if got := listens(w.c); w.c.Name() != "critic" ||
		!slices.Equal(got, []string{
			"from.*.committee.deliberation.*", "from.*.response.generation",
			"tool.request.compare_answers",
		}) {
		t.Errorf("%s listens to %q", w.c.Name(), got)
	}
	if err := w.c.Start(t.Context(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	said := w.rec.Published()
	if len(said) != 1 || said[0].Subject != "tool.schema.compare_answers" {
		t.Fatalf("it announces %+v", said)
	}
	described := w.c.Describe()
	var s subjects.ToolSchema
	if err := strict.DecodeJSON([]byte(described["definition.compare_answers"]), &s); err != nil ||
		!reflect.DeepEqual(s, Tools()[0].Schema) {
		t.Errorf("it is described as %+v, %v", s, err)
	}
}

// TestDisabledCriticIgnoresAnswers: a critic that is switched off takes what is said and keeps nothing of it, so that
// switching it on brings nothing back.
func TestDisabledCriticIgnoresAnswers(t *testing.T) {
	t.Parallel()
	w := newHarness(t, func(c *Config) { *c = Config{} })
	if got := listens(w.c); !slices.Equal(got,
		[]string{"from.*.committee.deliberation.*", "from.*.response.generation"}) {
		t.Errorf("it listens to %q", got)
	}
	if err := w.c.Start(t.Context(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.rec.Deliver(t, w.c, actortest.Message{
		Subject: "from.generator.response.generation",
		Body:    plainAnswer("q1"), Query: "q1",
	}); err != nil {
		t.Error(err)
	}
	d := subjects.Deliberation{
		QueryID: "q1", Persona: "The Self", Round: 1, Status: subjects.DeliberationDone,
		Response: "yes", Query: "q", Rubric: rubricPlain,
	}
	if _, err := w.rec.Deliver(t, w.c, actortest.Message{
		Subject: "from.committee.committee.deliberation.q1", Body: d,
		Query: "q1",
	}); err != nil {
		t.Error(err)
	}
	described := w.c.Describe()
	keys, _ := w.rec.Out().Store(bucket).Keys(t.Context(), "")
	if len(w.rec.Published())+len(w.rec.Requested())+len(keys)+len(described) > 0 {
		t.Errorf("it said %+v, asked %+v, kept %q and is described as %v", w.rec.Published(), w.rec.Requested(), keys,
			described)
	}
}

// TestGrades: one row an answer, and what is said of it.
func TestGrades(t *testing.T) {
	t.Parallel()
	private := &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	for _, c := range []struct {
		name   string
		from   string
		change func(*subjects.Response)
		cfg    func(*Config)
		says   string
		chunk  subjects.ChatChunk
		want   subjects.Critique
	}{
		{
			name: "a good one", says: "Feedback: Right. [RESULT] 5",
			want: subjects.Critique{Score: 5, Feedback: "Right."},
		},
		{
			name: "a bad one offers a retry", says: "Feedback: Wrong. [RESULT] 2",
			want: subjects.Critique{Score: 2, Feedback: "Wrong.", Retry: true},
		},
		{
			name: "above the threshold", says: "Feedback: So so. [RESULT] 3",
			want: subjects.Critique{Score: 3, Feedback: "So so."},
		},
		{name: "never a retry", cfg: func(c *Config) {
			c.RetryAt = 0
		}, says: "Feedback: Wrong. [RESULT] 1", want: subjects.Critique{Score: 1, Feedback: "Wrong."}},
		{name: "who answered is what the server says", from: "committee", change: func(r *subjects.Response) {
			r.RespondentID, r.GeneratorID = "generator", "generator"
		}, says: "Feedback: Right. [RESULT] 5", want: subjects.Critique{
			RespondentID: "committee", Score: 5,
			Feedback: "Right.",
		}},
		{
			name: "another model judged", says: "Feedback: Right. [RESULT] 4",
			chunk: subjects.ChatChunk{Model: "gemma4:12b", Notice: "prometheus:7b is not there"},
			want: subjects.Critique{
				Score: 4, Feedback: "Right.", Model: "gemma4:12b",
				Notice: "prometheus:7b is not there",
			},
		},
		{
			name: "the model of the answer judged", says: "Feedback: Right. [RESULT] 4",
			change: func(r *subjects.Response) { r.Model = "gemma4:latest" },
			chunk:  subjects.ChatChunk{Model: "gemma4"},
			want:   subjects.Critique{Score: 4, Feedback: "Right.", Model: "gemma4", SelfGraded: true},
		},
		{name: "without labels anybody could have written it", change: func(r *subjects.Response) {
			r.Labels = nil
		}, says: "Feedback: Right. [RESULT] 5", want: subjects.Critique{Score: 5, Feedback: "Right.", Labels: private}},
		{name: "labels of the answer", change: func(r *subjects.Response) {
			r.Labels = &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: []string{"role"}}
		}, says: "Feedback: Right. [RESULT] 5", want: subjects.Critique{
			Score: 5, Feedback: "Right.",
			Labels: &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: []string{"role"}},
		}},
		{
			name: "after thinking aloud", says: "<think>[RESULT] 1 or 5?</think>Feedback: Right. [RESULT] 4",
			want: subjects.Critique{Score: 4, Feedback: "Right."},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, func(cfg *Config) {
				if c.cfg != nil {
					c.cfg(cfg)
				}
			})
			w.setJudge(always(c.says))
			if c.chunk.Model != "" {
				w.last = c.chunk
			}
			r := plainAnswer("q1")
			if c.change != nil {
				c.change(&r)
			}
			want := c.want
			want.SessionID, want.QueryID = "s1", "q1"
			for to, v := range map[*string]string{
				&want.RespondentID: "generator", &want.Model: "judge:7b",
				&want.Rubric: subjects.RubricPlain,
			} {
				if *to == "" {
					*to = v
				}
			}
			if want.Labels == nil {
				want.Labels = &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}
			}
			from := c.from
			if from == "" {
				from = "generator"
			}
			w.mustDeliver(from, r)
			if got := w.critique(); !reflect.DeepEqual(got, want) {
				t.Errorf("it says\n%+v, want\n%+v", got, want)
			}
			if s := w.rec.Published()[0]; s.Query != "q1" || s.Session != "s1" || strings.HasPrefix(s.ID, "q1") {
				t.Errorf("it is said as %+v", s)
			}
		})
	}
}

// TestUngraded: why an answer has no grade, and whether a model was asked.
func TestUngraded(t *testing.T) {
	t.Parallel()
	fault := func(err error) error { return wire.EncodeError(err) }
	for _, c := range []struct {
		name   string
		change func(*actor.Msg[subjects.Response])
		judge  func(model.Request) (string, error)
		chunk  subjects.ChatChunk
		want   string
		asks   int
	}{
		{name: "an error", change: func(m *actor.Msg[subjects.Response]) {
			m.Body.Error = subjects.Faultf(subjects.CodeTimeout, "late")
		}, want: "there is no answer to grade"},
		{name: "nothing", change: func(m *actor.Msg[subjects.Response]) {
			m.Body.Answer = " \n"
		}, want: "there is no answer to grade"},
		{name: "a part", change: func(m *actor.Msg[subjects.Response]) {
			m.Body.Partial = true
		}, want: "the answer is not whole"},
		{name: "too old", change: func(m *actor.Msg[subjects.Response]) {
			m.StoredAt = noon.Add(-25 * time.Hour)
		}, want: "the answer is older than 24h"},
		{name: "unreadable twice", judge: always("I would say 4 of 5."), want: "the judge's words could not be read, " +
			"twice: the judge did not keep to the form: there is no [RESULT]", asks: 2},
		{name: "nothing said, twice", judge: always(""), want: "the judge's words could not be read, twice: the " +
			"judge did not keep to the form: it said nothing", asks: 2},
		{
			name: "a server that cannot read it", judge: fails(fault(fmt.Errorf("%w: broken", model.ErrMalformed))),
			want: "the judge's words could not be read, twice: the judge did not keep to the form: malformed model " +
				"output: broken", asks: 2,
		},
		{name: "the script", judge: always("Feedback: Fine. [RESULT] 5"), chunk: subjects.ChatChunk{
			Model:     "built-in",
			DemoModel: true,
		}, want: "no model judges: the built-in demo model stands in", asks: 1},
		{
			name: "no model", judge: fails(fault(fmt.Errorf("%w: fetch it with: ollama pull x", model.ErrMissing))),
			want: "no model judged: model not found: fetch it with: ollama pull x", asks: 1,
		},
		{
			name: "it would leave the machine", judge: fails(fault(fmt.Errorf("%w: x:cloud", model.ErrRemote))),
			want: "no model judged: the request would leave this machine: x:cloud", asks: 1,
		},
		{
			name:  "a key that is not accepted",
			judge: fails(fault(fmt.Errorf("%w: see https://me:hunter22@judge.example", model.ErrUnauthorized))),
			want: "no model judged: the model server requires a valid key: see https://me:[redacted: password in a " +
				"link]@judge.example", asks: 1,
		},
		{
			name: "stopped by the user", judge: fails(subjects.Faultf(subjects.CodeStopped, "the user stopped it")),
			want: "no model judged: the user stopped it", asks: 1,
		},
		{
			name: "too long, however short", judge: fails(fault(fmt.Errorf("%w: no", model.ErrTooLong))),
			want: "no model judged: the prompt exceeds the model's context window: no", asks: 1 + maxShrinks,
		},
		{
			name: "busy at the last try", change: func(m *actor.Msg[subjects.Response]) {
				m.Attempt = subjects.MaxDeliver
			}, judge: fails(subjects.Faultf(subjects.CodeBusy, "too many wait")),
			want: "given up after 5 tries: too many wait", asks: 1,
		},
		{name: "begun too often", change: func(m *actor.Msg[subjects.Response]) {
			m.Attempt = subjects.MaxDeliver + 2
		}, want: "given up after 7 tries: it was begun too often and never finished"},
		{
			name: "nobody there at the last try", change: func(m *actor.Msg[subjects.Response]) {
				m.Attempt = subjects.MaxDeliver
			}, judge: fails(subjects.Faultf(subjects.CodeUnavailable, "gone")),
			want: "given up after 5 tries: the model actor is not running; see conclave top", asks: 1,
		},
		{
			name: "a bug at the last try", change: func(m *actor.Msg[subjects.Response]) {
				m.Attempt = subjects.MaxDeliver
			}, judge: fails(errors.New("inside of us: token=abcdefghijkl")),
			want: "given up after 5 tries: something went wrong; the critic's log says what", asks: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			if c.judge != nil {
				w.setJudge(c.judge)
			}
			if c.chunk.Model != "" {
				w.last = c.chunk
			}
			m := message("generator", plainAnswer("q1"))
			if c.change != nil {
				c.change(&m)
			}
			if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
				t.Fatal(err)
			}
			got := w.critique()
			if got.Score != 0 || got.Ungraded != c.want || got.Retry || got.RespondentID != "generator" {
				t.Errorf("it says %+v\nwant %q", got, c.want)
			}
			if n := len(w.prompts()); n != c.asks {
				t.Errorf("a model was asked %d times, want %d", n, c.asks)
			}
		})
	}
}

// TestTransientFailureIsRetried: what may be over in a moment is no reason for an answer without a grade.
func TestTransientFailureIsRetried(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"busy":                  subjects.Faultf(subjects.CodeBusy, "too many wait"),
		"late":                  subjects.Faultf(subjects.CodeTimeout, "no answer in time"),
		"nobody there":          subjects.Faultf(subjects.CodeUnavailable, "gone"),
		"no server":             wire.EncodeError(model.ErrUnreachable),
		"cut off":               wire.EncodeError(model.ErrCut),
		"no audit":              subjects.Faultf(subjects.CodeNoAudit, "the audit does not answer"),
		"what nobody knows":     errors.New("odd"),
		"a code nobody knows":   subjects.Faultf("new_code", "odd"),
		"an empty fault's code": &subjects.Fault{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.setJudge(fails(err))
			m := message("generator", plainAnswer("q1"))
			for m.Attempt = 1; m.Attempt < subjects.MaxDeliver; m.Attempt++ {
				if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err == nil {
					t.Fatalf("try %d: it gave up: %+v", m.Attempt, w.critiques())
				}
			}
			w.setJudge(always("Feedback: Right. [RESULT] 4"))
			if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
				t.Fatal(err)
			}
			if got := w.critique(); got.Score != 4 || got.Ungraded != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestShutdownKeepsGrade: an answer whose judgement is broken off because the system closes comes again; at its last
// try it is concluded, because it would be buried.
func TestShutdownKeepsGrade(t *testing.T) {
	t.Parallel()
	for try, concludes := range map[int]bool{1: false, subjects.MaxDeliver - 1: false, subjects.MaxDeliver: true} {
		w := newHarness(t)
		ctx, shut := context.WithCancel(t.Context())
		w.setJudge(func(model.Request) (string, error) {
			shut()
			return "", fmt.Errorf("asking: %w", context.Canceled)
		})
		m := message("generator", plainAnswer("q1"))
		m.Attempt = try
		err := w.c.onResponse(ctx, m, w.rec.Out())
		if got := w.critiques(); concludes != (err == nil) || concludes != (len(got) == 1) {
			t.Errorf("try %d: %v, it said %+v", try, err, got)
		}
	}
}

// TestMalformedReplyIsRemindedOnce: a judge that did not keep to the form is told so once, in the same conversation,
// and a server that can is made to hold it to a schema; one that cannot may reply in the form.
func TestMalformedReplyIsRemindedOnce(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"Feedback: Right. [RESULT] 4", `{"feedback": "Right.", "result": "4"}`} {
		testRemindedJudge(t, second)
	}
}

func testRemindedJudge(t *testing.T, second string) {
	t.Helper()
	w := newHarness(t)
	w.setJudge(inTurn("The answer is right. 4/5", second))
	w.mustDeliver("generator", plainAnswer("q1"))
	if got := w.critique(); got.Score != 4 || got.Feedback != "Right." {
		t.Errorf("%s: %+v", second, got)
	}
	if len(w.asked[0].Format) > 0 || string(w.asked[1].Format) != string(replySchema(scores)) {
		t.Errorf("schemas %s and %s", w.asked[0].Format, w.asked[1].Format)
	}
	if len(w.asked) != 2 {
		t.Fatalf("asked %d times", len(w.asked))
	}
	var roles []string
	for _, m := range w.asked[1].Messages {
		roles = append(roles, m.Role)
	}
	if !slices.Equal(roles, []string{model.System, model.User, model.Assistant, model.User}) ||
		w.asked[1].Messages[2].Content != "The answer is right. 4/5" ||
		w.asked[1].Messages[3].Content != reminders[scores] {
		t.Errorf("the second time it is asked %+v", w.asked[1].Messages)
	}
}

// TestInvalidIDsAreRejected: ids become keys and subjects. What cannot be one is refused, and nothing is asked or kept.
func TestInvalidIDsAreRejected(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"", "a.b", "*", ">", "a b", "$KV", strings.Repeat("x", subjects.MaxToken+1), "q\n1",
		"ä",
	} {
		w := newHarness(t)
		r := plainAnswer(id)
		m := message("generator", r)
		m.Query = ""
		err := w.c.onResponse(t.Context(), m, w.rec.Out())
		if actortest.Code(err) != subjects.CodeMalformed || len(w.rec.Published())+len(w.rec.Requested()) > 0 {
			t.Errorf("%q: %v, it said %+v", id, err, w.rec.Published())
		}
	}
	w := newHarness(t)
	r := plainAnswer("")
	r.SessionID = "no.session"
	m := message("generator", r)
	m.Query, m.Session = "q7", "s7"
	if err := w.c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	if got := w.critique(); got.QueryID != "q7" || got.SessionID != "s7" {
		t.Errorf("without ids in the body: %+v", got)
	}
}

// TestTooManyDeliveriesAreUngraded: the same through the route, as the runtime reads it.
func TestTooManyDeliveriesAreUngraded(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	if _, err := w.rec.Deliver(t, w.c, actortest.Message{
		Subject: "from.orchestrator.response.generation",
		Body:    plainAnswer("q1"), Query: "q1", Session: "s1",
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.critique(); got.RespondentID != "orchestrator" || got.Rubric != subjects.RubricTask {
		t.Errorf("%+v", got)
	}
}

// TestCredentialsAreRedacted: what looks like a credential is in no prompt, event, log or book, wherever it stood.
func TestCredentialsAreRedacted(t *testing.T) {
	t.Parallel()
	const secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"
	w := newHarness(t)
	w.setJudge(func(r model.Request) (string, error) {
		if strings.Contains(r.Messages[1].Content, "###Response A:") {
			return "Feedback: Both show " + secret + " [RESULT] A", nil
		}
		return "Feedback: It shows " + secret + " to all. [RESULT] 2", nil
	})
	w.last = subjects.ChatChunk{Model: secret, Notice: "with " + secret}
	for _, from := range pairAccounts {
		r := plainAnswer("q1")
		r.Query, r.Reference, r.Answer = "My key is "+secret, secret, "I ran the code with "+secret+"."
		r.ToolCalls = []subjects.ToolCall{{
			Tool: "web_search", Args: []byte(`{"query":"` + secret + `"}`),
			Result: "found " + secret,
		}}
		w.mustDeliver(from, r)
		w.checkNoTrace(secret) // while the first waits in the book too
	}
	if got := w.critiques(); len(got) != 2 ||
		!strings.Contains(got[0].Feedback, "[redacted: github token]") {
		t.Errorf("%+v", got)
	}
	if got := w.verdicts(); len(got) != 1 || got[0].Reason == "" && got[0].Winner != subjects.Tie {
		t.Errorf("%+v", got)
	}
	w.setJudge(always("no form, but " + secret))
	w.mustDeliver("committee", plainAnswer("q2"))
	w.setJudge(fails(subjects.Faultf(subjects.CodeDenied, "not with %s", secret)))
	w.mustDeliver("committee", plainAnswer("q3"))
	w.checkNoTrace(secret)
}
