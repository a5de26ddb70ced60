package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// The pieces add up to the answer, whichever tokens are lost.
func TestStreamedAnswer(t *testing.T) {
	t.Parallel()
	d := func(step, n int, text string) subjects.Delta { return subjects.Delta{Step: step, N: n, Text: text} }
	for _, tt := range []struct {
		name   string
		pieces []subjects.Delta
		answer string
		want   []string
	}{
		{
			"all pieces",
			[]subjects.Delta{d(0, 0, "It is"), d(0, 1, " noon.")},
			"It is noon.",
			[]string{"It is", " noon."},
		},
		{"no pieces", nil, "It is noon.", []string{"It is noon."}},
		{"the last is lost", []subjects.Delta{d(0, 0, "It is")}, "It is noon.", []string{"It is", " noon."}},
		{"the first is lost", []subjects.Delta{d(0, 1, " noon.")}, "It is noon.", []string{"It is noon."}},
		{
			"one in the middle is lost",
			[]subjects.Delta{d(0, 0, "It"), d(0, 2, " noon.")},
			"It is noon.",
			[]string{"It", " is noon."},
		},
		{
			"one comes twice",
			[]subjects.Delta{d(0, 0, "It"), d(0, 0, "It"), d(0, 1, " is")},
			"It is noon.",
			[]string{"It", " is noon."},
		},
		{
			"blanks at its ends",
			[]subjects.Delta{d(0, 0, "\n\n "), d(0, 1, "It is "), d(0, 2, "noon.\n"), d(0, 3, "\n")},
			"It is noon.",
			[]string{"It is", " noon."},
		},
		{
			"interim words, counted on",
			[]subjects.Delta{d(0, 0, "Let me look."), d(1, 1, "It is noon.")},
			"It is noon.",
			[]string{"Let me look.", "\nIt is noon."},
		},
		{
			"interim words, counted anew",
			[]subjects.Delta{d(0, 0, "Let me look."), d(1, 0, "It is"), d(1, 1, " noon.")},
			"It is noon.",
			[]string{"Let me look.", "\nIt is", " noon."},
		},
		{
			"interim words, the answer's pieces lost",
			[]subjects.Delta{d(0, 0, "Let me look.")},
			"It is noon.",
			[]string{"Let me look.", "\nIt is noon."},
		},
		{
			"a step without words",
			[]subjects.Delta{d(0, 0, "\n"), d(1, 1, "It is noon.")},
			"It is noon.",
			[]string{"It is noon."},
		},
		{
			"an earlier step comes late",
			[]subjects.Delta{d(1, 0, "It is"), d(0, 5, "Let me"), d(1, 1, " noon.")},
			"It is noon.",
			[]string{"It is", " noon."},
		},
		{
			"another answer in the end",
			[]subjects.Delta{d(0, 0, "I think")},
			"It is noon.",
			[]string{"I think", "\nIt is noon."},
		},
		{"nothing at all", nil, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			if err := gateway.StreamAnswer(func(s string) {
				got = append(got, s)
			}, tt.answer, tt.pieces...); err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// The pieces of an answer of one step add up to it, whichever tokens are lost.
func TestStreamedAnswerAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOf(rapid.StringOf(rapid.RuneFrom([]rune("ab \n\té")))).Draw(t, "texts")
		answer := strings.TrimSpace(strings.Join(texts, ""))
		var pieces []subjects.Delta
		for i, text := range texts {
			if rapid.IntRange(0, 5).Draw(t, "fate") > 0 {
				pieces = append(pieces, subjects.Delta{N: i, Text: text})
			}
		}
		sum := ""
		if err := gateway.StreamAnswer(func(s string) { sum += s }, answer, pieces...); err != nil || sum != answer {
			t.Fatalf("%q, want %q (%v)", sum, answer, err)
		}
	})
}

// ask sends query.ask with the key of the user and returns the pieces.
func (w *fixture) ask(body subjects.Query) (pieces []subjects.Delta, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for d, err := range actor.AskStream(ctx, w.out("user"), subjects.QueryAsk, body) {
		if err != nil {
			return pieces, err
		}
		pieces = append(pieces, d)
	}
	return pieces, nil
}

// TestAsk is about query.ask.
func TestAsk(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"Ask", testAsk},
		{"PlainRequestGetsTheWholeAnswer", testPlainRequestGetsTheWholeAnswer},
		{"AskThatFails", testAskThatFails},
		{"AskInVain", testAskInVain},
		{"AskWhatIsAnswered", testAskWhatIsAnswered},
		{"EveryQuestionIsFound", testEveryQuestionIsFound},
	})
}

// A question that is answered is not answered again: a retry gets the stored answer at once, and another question with
// its id learns so.
func testAskWhatIsAnswered(t *testing.T, b *bustest.Bus) {
	w, answered := startGateway(t, b, setup{}), atomic.Int32{}
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		answered.Add(1)
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "It is noon."))
	})
	q := subjects.Query{Query: "what time is it?", SessionID: "s", QueryID: "q"}
	for range 2 {
		pieces, err := w.ask(q)
		if err != nil || len(pieces) != 1 || pieces[0].Text != "It is noon." || answered.Load() != 1 {
			t.Fatalf("%+v, %v, answered %d times", pieces, err, answered.Load())
		}
	}
	q.Query = "and who are you?"
	if _, err := w.ask(q); actortest.Code(err) != "conflict" {
		t.Errorf("asked again: %v", err)
	}
	q.SessionID = ""
	if _, err := w.ask(q); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("without its session: %v", err)
	}
}

// A question is found by its id while it is answered and with its events afterwards, however it was asked.
func testEveryQuestionIsFound(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	asked, answer := make(chan subjects.Query), make(chan struct{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		<-answer
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "It is noon."))
	})
	mcpClient, nc := w.connectMCP(t, token), w.Connect("user")
	for name, ask := range map[string]func(){
		"http":      func() { w.do("POST", "/query", `{"query":"hi"}`) },
		"query.ask": func() { _, _ = w.ask(subjects.Query{Query: "hi"}) },
		"/v1": func() {
			w.do("POST", "/v1/chat/completions", `{"model":"assistant","messages":[{"role":"user","content":"hi"}]}`)
		},
		"mcp": func() {
			_, _ = mcpClient.CallTool(t.Context(),
				&mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"question": "hi"}})
		},
		"agent protocol": func() { sendPrompt(t, nc, "agents.prompt.assistant.user.main", []byte("hi")).finish() },
	} {
		done := make(chan struct{})
		go func() { defer close(done); ask() }()
		q := <-asked
		if status, _, body := w.do("GET", "/queries/"+q.QueryID, ""); status != http.StatusAccepted {
			t.Errorf("%s: while it is answered: %d %s", name, status, body)
		}
		answer <- struct{}{}
		<-done
		status, _, body := w.do("GET", "/queries/"+q.QueryID, "")
		a := read[gateway.Answer](t, body)
		if status != http.StatusOK || a.Answer != "It is noon." || len(a.Events) == 0 {
			t.Errorf("%s: answered: %d %s", name, status, body)
		}
	}
}

func testAsk(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	said := make(chan struct{}, 8)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		if q.Query != "what time is it?" || q.SessionID == "" || q.QueryID == "" {
			t.Errorf("asked %+v", q)
		}
		for i, text := range []string{"It ", "is"} {
			emitStored(w, out, withTokens(t, subjects.ResponseDelta, q.QueryID),
				subjects.Delta{QueryID: q.QueryID, N: i, Text: text})
		}
		emitStored(w, out, withTokens(t, subjects.ResponseThinking, q.QueryID),
			subjects.Delta{QueryID: q.QueryID, Text: "never said"})
		emitStored(w, out, withTokens(t, subjects.ResponseDelta, "other"),
			subjects.Delta{QueryID: q.QueryID, Text: "another's"})
		<-said // the pieces are there before the answer is
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "It is noon."))
	})
	// As nats req -H Conclave-Stream:1 --wait-for-empty does it: plain text, an inbox, an empty message at the end.
	nc := w.Connect("user")
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(&nats.Msg{
		Subject: "query.ask", Reply: sub.Subject, Data: []byte("what time is it?"),
		Header: nats.Header{subjects.HeaderStream: []string{"1"}},
	}); err != nil {
		t.Fatal(err)
	}
	text := ""
	for {
		m, err := sub.NextMsg(testTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 && len(m.Header) == 0 {
			break
		}
		if code := m.Header.Get(subjects.HeaderErrCode); code != "" {
			t.Fatalf("%s %s", code, m.Data)
		}
		if text += string(m.Data); text == "It is" {
			said <- struct{}{}
		}
	}
	if text != "It is noon." {
		t.Errorf("%q", text)
	}
	said <- struct{}{}
	pieces, err := w.ask(subjects.Query{Query: "what time is it?", SessionID: "s", QueryID: "q"})
	text = ""
	for i, p := range pieces {
		text += p.Text
		if p.QueryID != "q" || p.N != i {
			t.Errorf("piece %d: %+v", i, p)
		}
	}
	if err != nil || text != "It is noon." {
		t.Errorf("%q %v", text, err)
	}
}

// nats req without flags prints the first message of the reply and ends.
func testPlainRequestGetsTheWholeAnswer(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		// interim text before a tool call, and the first token of the answer
		for i, text := range []string{"Let me see. ", "It "} {
			emitStored(w, out, withTokens(t, subjects.ResponseDelta, q.QueryID),
				subjects.Delta{QueryID: q.QueryID, Step: i, Text: text})
		}
		r := reply(q, "It is noon.")
		if q.Query == "partly" {
			r.Error = subjects.Faultf(subjects.CodeModelMissing, "pull it first")
		}
		emitStored(w, out, subjects.ResponseGeneration, r)
	})
	nc := w.Connect("user")
	for question, want := range map[string]string{
		"what time is it?": "It is noon.",
		"partly":           "It is noon.\n\n[incomplete: pull it first]",
	} {
		m, err := nc.Request("query.ask", []byte(question), testTimeout)
		if err != nil || string(m.Data) != want || m.Header.Get(subjects.HeaderErrCode) != "" {
			t.Errorf("%s: %+v %v, want %q", question, m, err, want)
		}
	}
}

func testAskThatFails(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	router := w.out("router")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		r := reply(q, "")
		r.Error = subjects.Faultf(subjects.CodeModelMissing, "pull it first")
		switch q.Query {
		case "partly":
			r.Answer = "It is"
			fallthrough
		case "not at all":
			emitStored(w, out, subjects.ResponseGeneration, r)
		case "given up":
			emitStored(w, router.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.DeadLetterEvent, "router"),
				subjects.DeadLetter{Subject: "query.received", Code: subjects.CodeTooLarge, Reason: "too long"})
		}
	})
	for _, tt := range []struct {
		query subjects.Query
		code  string
		text  string
	}{
		{subjects.Query{Query: "partly"}, subjects.CodeModelMissing, "It is"},
		{subjects.Query{Query: "not at all"}, subjects.CodeModelMissing, ""},
		{subjects.Query{Query: "given up"}, subjects.CodeTooLarge, ""},
		{subjects.Query{Query: " "}, subjects.CodeMalformed, ""},
		{subjects.Query{Query: "x", SessionID: "a.b"}, subjects.CodeMalformed, ""},
		{subjects.Query{Query: "x", QueryID: "*"}, subjects.CodeMalformed, ""},
	} {
		pieces, err := w.ask(tt.query)
		text := ""
		for _, p := range pieces {
			text += p.Text
		}
		if actortest.Code(err) != tt.code || text != tt.text {
			t.Errorf("%+v: %q %v", tt.query, text, err)
		}
	}
}

// The caller's deadline holds, and a stop tells the caller that the question is kept.
func testAskInVain(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{drain: 300 * time.Millisecond})
	asked := make(chan struct{}, 2)
	w.answerQuestions(func(subjects.Query, actor.Out) { asked <- struct{}{} })
	nc := w.Connect("user")
	fault := func(deadline string) (code, text string) {
		sub, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		m := nats.NewMsg("query.ask")
		m.Reply, m.Data = sub.Subject, []byte("hi")
		if deadline != "" {
			m.Header.Set(subjects.HeaderDeadline, deadline)
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		<-asked
		if deadline == "" {
			w.stop()
		}
		r, err := sub.NextMsg(testTimeout)
		if errors.Is(err, nats.ErrTimeout) {
			t.Fatal("no answer")
		}
		return r.Header.Get(subjects.HeaderErrCode), r.Header.Get(subjects.HeaderErrText)
	}
	if code, text := fault(formatMillis(time.Now().Add(5 * time.Second))); code != subjects.CodeTimeout ||
		!strings.Contains(text, "is still running") {
		t.Errorf("%s %s", code, text)
	}
	if code, text := fault(""); code != subjects.CodeUnavailable || !strings.Contains(text, "will be answered") {
		t.Errorf("%s %s", code, text)
	}
}
