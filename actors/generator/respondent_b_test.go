package generator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// newRespondentB is respondent B with the shipped configuration.
func newRespondentB() *Generator { return New(subjects.RespondentB, shippedConfig()) }

// requireUnseen fails a test in which respondent B publishes anything that users see.
func (w *harness) requireUnseen() {
	w.t.Helper()
	for _, s := range w.Published() {
		switch s.Subject {
		case "response.generation":
		case "agent.state.respondent_b":
			var a subjects.AgentState
			if err := json.Unmarshal([]byte(s.Body), &a); err != nil || a.Event == "" || a.Code != "" || a.Words != "" {
				w.t.Errorf("it told %s, %v", s.Body, err)
			}
		default:
			w.t.Errorf("respondent B spoke on %s", s.Subject)
		}
	}
}

// chats are the requests to the model, as they went over the wire.
func (w *harness) chats() (out []subjects.ChatRequest) {
	w.t.Helper()
	for _, a := range w.Requested() {
		if a.Subject != "model.chat" {
			continue
		}
		var q subjects.ChatRequest
		if err := json.Unmarshal([]byte(a.Body), &q); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, q)
	}
	return out
}

// storeConversation stores a conversation in the generator's bucket.
func (w *harness) storeConversation(c subjects.Conversation) {
	w.t.Helper()
	data, err := actor.EncodeValue(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.storeRawConversation(c.SessionID, data)
}

func (w *harness) storeRawConversation(session string, data []byte) {
	w.t.Helper()
	store := w.Out().Store(bucket)
	_, rev, _ := store.Get(w.t.Context(), subjects.ConversationKey(session))
	if _, err := store.Put(w.t.Context(), subjects.ConversationKey(session), data, rev); err != nil {
		w.t.Fatal(err)
	}
}

func TestRespondentBTurn(t *testing.T) {
	t.Parallel()
	w := newHarness(t, lookupCall("c1"), "Noon, I would say.")
	w.tools = []string{"clock"}
	g := newRespondentB()
	var steps []string
	w.observe(g, func(s string) { steps = append(steps, s) })
	if err := w.ask(g, "s1", "q1", "What time is it?", 1); err != nil {
		t.Fatal(err)
	}
	all := w.responses()
	if len(all) != 1 {
		t.Fatalf("answers: %+v", all)
	}
	if r := all[0]; r.Answer != "Noon, I would say." || r.RespondentID != "respondent_b" ||
		r.GeneratorID != "respondent_b" || r.Thinking != "" || len(r.ToolCalls) != 1 || r.Error != nil {
		t.Errorf("answer: %+v", r)
	}
	w.requireUnseen()
	for _, q := range w.chats() {
		if q.Stream || q.Role != subjects.RoleAssistant || q.Model != "" ||
			!strings.Contains(string(q.Options), `"temperature":1`) {
			t.Errorf("the model was asked %+v, options %s", q, q.Options)
		}
	}
	if slices.Contains(steps, "dialog/before") || !slices.Contains(steps, "conversation/after") {
		t.Errorf("steps: %v", steps)
	}
	if keys, err := w.Out().Store(bucket).Keys(t.Context(), ""); err != nil || len(keys) != 0 {
		t.Errorf("it wrote where another keeps his: %v, %v", keys, err)
	}
	w.requireNoErrors()
}

// Respondent B uses its own model and temperature where they are set.
func TestRespondentBModel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, own, asked, want string }{
		{"as the other", "", "", ""},
		{"its own", "tiny:1b", "", "tiny:1b"},
		{"the user's choice", "", "big:9b", "big:9b"},
		{"its own, whatever the user chose", "tiny:1b", "big:9b", "tiny:1b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "Paris.")
			cfg := shippedConfig()
			cfg.RespondentB.Model, cfg.RespondentB.Temperature = tt.own, 0
			q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Capital?", Model: tt.asked}
			for _, name := range []string{subjects.RespondentB, subjects.Generator} {
				if err := w.askCtx(t.Context(), New(name, cfg), q, 1); err != nil {
					t.Fatal(err)
				}
			}
			if b := w.chats()[0]; b.Model != tt.want || !strings.Contains(string(b.Options), `"temperature":0`) {
				t.Errorf("respondent B asked %q, options %s", b.Model, b.Options)
			}
			if a := w.chats()[1]; a.Model != tt.asked || !a.Stream ||
				strings.Contains(string(a.Options), "temperature") {
				t.Errorf("the other asked %q, options %s", a.Model, a.Options)
			}
		})
	}
}

// TestRespondentBHistory: respondent B continues the user's conversation before its question, and never sees the answer
// to it.
func TestRespondentBHistory(t *testing.T) {
	t.Parallel()
	labels := func(trust string) *subjects.Labels {
		return &subjects.Labels{Trust: trust, Privacy: subjects.Public}
	}
	turn := func(query, trust string) subjects.Turn {
		return subjects.Turn{QueryID: query, Query: "asked " + query, Answer: "told " + query, Labels: labels(trust)}
	}
	safe := turn("q1", subjects.Trusted)
	for _, tt := range []struct {
		name  string
		conv  *subjects.Conversation
		raw   string
		want  []string // before the question
		trust string
		note  bool
	}{
		{name: "nothing was said", want: nil, trust: subjects.Trusted},
		{
			name: "the question is not there yet", conv: &subjects.Conversation{Turns: []subjects.Turn{safe}},
			want: []string{"asked q1", "told q1"}, trust: subjects.Trusted,
		},
		{
			name: "it is there, and what came after it",
			conv: &subjects.Conversation{Turns: []subjects.Turn{
				safe, turn("q2", subjects.Untrusted),
				turn("q3", subjects.Untrusted),
			}, Labels: labels(subjects.Untrusted)}, want: []string{
				"asked q1",
				"told q1",
			}, trust: subjects.Trusted,
		},
		{
			name: "it is the first", conv: &subjects.Conversation{Turns: []subjects.Turn{turn("q2", subjects.Trusted)}},
			want: nil, trust: subjects.Trusted,
		},
		{
			name: "with a summary", conv: &subjects.Conversation{
				Summary: "they spoke of fish", Summarized: 4,
				Past: []string{"q0"}, Turns: []subjects.Turn{safe, turn("q2", subjects.Trusted)},
				Labels: labels(subjects.Untrusted),
			}, want: []string{"they spoke of fish", "asked q1", "told q1"},
			trust: subjects.Untrusted,
		},
		{
			name: "a stranger wrote into it",
			conv: &subjects.Conversation{Turns: []subjects.Turn{turn("q1", subjects.Untrusted)}},
			want: []string{"asked q1", "told q1"}, trust: subjects.Untrusted,
		},
		{
			name: "what nobody vouches for", conv: &subjects.Conversation{
				Summary: "they spoke of fish", Summarized: 1,
				Turns: []subjects.Turn{safe},
			}, want: []string{"they spoke of fish", "asked q1", "told q1"},
			trust: subjects.Untrusted,
		},

		{
			name: "trick: its answer is in the summary", conv: &subjects.Conversation{
				Summary: "told q2", Summarized: 2,
				Past: []string{"q1", "q2"}, Turns: []subjects.Turn{turn("q3", subjects.Trusted)},
			}, trust: subjects.Trusted,
			note: true,
		},
		{name: "trick: its answer was let go", conv: &subjects.Conversation{
			Dropped: 2, Past: []string{"q1", "q2"},
			Turns: []subjects.Turn{turn("q3", subjects.Trusted)},
		}, trust: subjects.Trusted, note: true},
		{name: "it cannot be read", raw: "no JSON", trust: subjects.Trusted, note: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "An answer.")
			switch {
			case tt.conv != nil:
				tt.conv.SessionID = "s1"
				w.storeConversation(*tt.conv)
			case tt.raw != "":
				w.storeRawConversation("s1", []byte(tt.raw))
			}
			if err := w.ask(newRespondentB(), "s1", "q2", "asked q2", 1); err != nil {
				t.Fatal(err)
			}
			sent := w.asked[0].Messages[1:]
			if len(sent) != len(tt.want)+1 || sent[len(sent)-1].Content != "asked q2" {
				t.Fatalf("it was sent %+v", sent)
			}
			for i, want := range tt.want {
				if !strings.HasSuffix(sent[i].Content, want) {
					t.Errorf("message %d is %q, want %q", i, sent[i].Content, want)
				}
			}
			r := w.responses()[0]
			if r.Labels == nil || r.Labels.Trust != tt.trust {
				t.Errorf("labels: %+v", r.Labels)
			}
			if noted := slices.Contains(noteCodes(r.Notes), subjects.NoteNoHistory); noted != tt.note {
				t.Errorf("notes: %+v", r.Notes)
			}
			w.requireUnseen()
		})
	}
}

// Respondent B notes when the generator has not answered the previous question yet.
func TestRespondentBNotesMissingHistory(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "An answer.")
	g := newRespondentB()
	for _, q := range []string{"q1", "q2"} {
		if err := w.ask(g, "s1", q, "asked "+q, 1); err != nil {
			t.Fatal(err)
		}
	}
	if r := w.responses(); slices.Contains(noteCodes(r[0].Notes), subjects.NoteNoHistory) ||
		!slices.Contains(noteCodes(r[1].Notes), subjects.NoteNoHistory) {
		t.Errorf("notes %+v and %+v", r[0].Notes, r[1].Notes)
	}
	if sent := w.asked[1].Messages; len(sent) != 2 {
		t.Errorf("it was sent %+v", sent)
	}
}

// Respondent B keeps few turns, answers no duplicate and does not write to the user's conversation.
func TestRespondentBKeepsFewTurns(t *testing.T) {
	t.Parallel()
	w := newHarness(t, longAnswer(85))
	w.role.Window, w.summary = 4096, "nobody may ask for this"
	w.storeConversation(subjects.Conversation{
		SessionID: "s1",
		Turns:     []subjects.Turn{{QueryID: "q0", Query: "asked", Answer: "told"}},
	})
	before, rev, err := w.Out().Store(bucket).Get(t.Context(), subjects.ConversationKey("s1"))
	if err != nil {
		t.Fatal(err)
	}
	g := newRespondentB()
	for i := range 8 {
		if err := w.ask(g, "s1", fmt.Sprint("b", i), "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
	}
	g.summaries.running.Wait()
	for _, who := range []*Generator{g, newRespondentB()} {
		if err := w.ask(who, "s1", "b1", "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.responses()); n != 8 {
		t.Errorf("%d answers", n)
	}
	own, _, err := conversation.Read(t.Context(), w.Out().Store("state_respondent_b"), "s1")
	if err != nil || len(own.Turns) != respondentBTurns || own.Summary != "" || !own.Answered("b0") {
		t.Errorf("it keeps %d turns, %q, %v", len(own.Turns), own.Summary, err)
	}
	after, now, err := w.Out().Store(bucket).Get(t.Context(), subjects.ConversationKey("s1"))
	if err != nil || string(after) != string(before) || now != rev {
		t.Errorf("the conversation is %s, %v", after, err)
	}
	w.requireUnseen()
}

// After an outage respondent B does not answer the backlog.
func TestRespondentBSkipsOldQuestions(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		who    string
		stored time.Time
		want   int
	}{
		{"new", subjects.RespondentB, now, 1},
		{"just in time", subjects.RespondentB, now.Add(-5 * time.Minute), 1},
		{"too old", subjects.RespondentB, now.Add(-5*time.Minute - time.Nanosecond), 0},
		{"of last week", subjects.RespondentB, now.AddDate(0, 0, -7), 0},
		{"trick: nobody knows since when", subjects.RespondentB, time.Time{}, 0},
		{"of last week, for the one who answers", subjects.Generator, now.AddDate(0, 0, -7), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "Paris.")
			w.Time = now
			in := actor.Msg[subjects.Query]{
				Tokens: []string{"3", "s1"}, Attempt: 1, StoredAt: tt.stored,
				Body: subjects.Query{QueryID: "q1", Query: "Capital?"},
			}
			if err := New(tt.who, shippedConfig()).onTurn(t.Context(), in, w.Out()); err != nil {
				t.Fatal(err)
			}
			keys, err := w.Out().Store(subjects.StateBucket(tt.who)).Keys(t.Context(), "")
			if err != nil || len(w.responses()) != tt.want || len(w.asked) != tt.want || tt.want == 0 &&
				len(w.Published())+len(w.Requested())+len(keys) != 0 {
				t.Errorf("%d answers, said %d, asked %d, wrote %v, %v", len(w.responses()), len(w.Published()),
					len(w.Requested()), keys, err)
			}
		})
	}
}

// Errors of respondent B are in its answer and nowhere else.
func TestRespondentBReportsErrorsOnlyInItsAnswer(t *testing.T) {
	t.Parallel()
	w := newHarness(t, subjects.Faultf(subjects.CodeModelMissing, "model not found: x"))
	if err := w.ask(newRespondentB(), "s1", "q1", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	if r := w.responses(); len(r) != 1 || r[0].Error == nil || r[0].Error.Code != subjects.CodeModelMissing ||
		!r[0].Partial {
		t.Errorf("answers: %+v", r)
	}
	w.requireUnseen()
	w.requireNoErrors()

	w = newHarness(t, func() any { panic("a bug") })
	if err := w.ask(newRespondentB(), "s1", "q1", "Hello?", subjects.MaxDeliver); err == nil {
		t.Error("no dead letter")
	}
	if r := w.responses(); len(r) != 1 || r[0].Error == nil {
		t.Errorf("answers: %+v", r)
	}
	w.requireUnseen()
}

// Respondent B resumes after a crash, and its abandoned turns are not finished.
func TestRespondentBResumesAfterCrash(t *testing.T) {
	t.Parallel()
	for _, at := range crashPoints() {
		if strings.HasPrefix(at, "dialog") {
			continue
		}
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.replies = []any{func() any {
				last := w.asked[len(w.asked)-1].Messages
				if last[len(last)-1].Role == model.ToolRole {
					return "It is noon."
				}
				return lookupCall("c1")
			}}
			w.tools = []string{"clock"}
			w.storeConversation(subjects.Conversation{
				SessionID: "s1",
				Turns:     []subjects.Turn{{QueryID: "q0", Query: "asked", Answer: "told"}},
			})
			w.crashGeneratorAt(newRespondentB(), at, 1, "s1", "q1", 1)
			if err := w.ask(newRespondentB(), "s1", "q1", "What time is it?", 2); err != nil {
				t.Fatal(err)
			}
			r := w.responses()
			if len(r) != 1 || r[0].Answer != "It is noon." || len(r[0].ToolCalls) != 1 || w.ran != 1 {
				t.Errorf("the tool ran %d times: %+v", w.ran, r)
			}
			for _, sent := range w.asked {
				if sent.Messages[2].Content != "told" {
					t.Errorf("it was sent %+v", sent.Messages)
				}
			}
			w.requireUnseen()
			w.requireNoErrors()
		})
	}
	w := newHarness(t, lookupCall("c1"), "It is noon.")
	w.tools = []string{"clock"}
	w.crashGeneratorAt(newRespondentB(), "turn.step/after", 1, "s1", "q1", 4)
	if err := w.ask(newRespondentB(), "s1", "q2", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	if r := w.responses(); len(r) != 1 || r[0].QueryID != "q2" {
		t.Errorf("what was given up is answered: %+v", r)
	}
}

// The reference answer is for the critic. No model that answers sees it.
func TestReference(t *testing.T) {
	t.Parallel()
	const secret = "the good answer says MARZIPAN"
	for _, name := range []string{subjects.Generator, subjects.RespondentB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, lookupCall("c1"), "It is noon.", "Yes.")
			w.tools = []string{"clock"}
			g := New(name, shippedConfig())
			q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "What time is it?", Reference: secret}
			if err := w.askCtx(t.Context(), g, q, 1); err != nil {
				t.Fatal(err)
			}
			if err := w.ask(g, "s1", "q2", "Really?", 1); err != nil {
				t.Fatal(err)
			}
			if r := w.responses(); r[0].Reference != secret || r[1].Reference != "" {
				t.Errorf("references %q and %q", r[0].Reference, r[1].Reference)
			}
			for _, a := range w.Requested() {
				if strings.Contains(a.Body, "MARZIPAN") {
					t.Errorf("%s was asked %s", a.Subject, a.Body)
				}
			}
			conv, _, err := w.Out().Store(subjects.StateBucket(name)).Get(t.Context(), subjects.ConversationKey("s1"))
			if err != nil || strings.Contains(string(conv), "MARZIPAN") {
				t.Errorf("the conversation holds it: %s, %v", conv, err)
			}
		})
	}
	// It is not lost with the process, and a large one does not keep a turn from being written down.
	w := newHarness(t, "It is noon.")
	long := secret + strings.Repeat("!", 900<<10)
	func() {
		defer func() { _ = recover() }()
		g := New(subjects.Generator, shippedConfig())
		w.observe(g, func(s string) {
			if s == "turn.answer/before" {
				panic(crash(s))
			}
		})
		_ = w.askCtx(t.Context(), g, subjects.Query{
			SessionID: "s1", QueryID: "q1", Query: "What time is it?",
			Reference: long,
		}, subjects.MaxDeliver-1)
	}()
	if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q2", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	if r := w.responses(); len(r) != 2 || r[0].QueryID != "q1" || !strings.HasPrefix(r[0].Reference, secret) ||
		len(r[0].Reference) > maxReference+3 {
		t.Errorf("%d answers, the first with %d bytes", len(r), len(r[0].Reference))
	}
}
