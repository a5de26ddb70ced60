package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestQuery is about POST /query and what becomes of a question.
func TestQuery(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"QueryIsAnswered", testQueryIsAnswered},
		{"LookUpOfAQuestionAskedElsewhere", testLookUpOfAQuestionAskedElsewhere},
		{"QueryThatDoesNotWait", testQueryThatDoesNotWait},
		{"QueryThatIsGivenUp", testQueryThatIsGivenUp},
		{"QueryAskedAgain", testQueryAskedAgain},
		{"QueryWithAKey", testQueryWithAKey},
		{"QueryWhoseAnswerIsAnError", testQueryWhoseAnswerIsAnError},
		{"QueryTakesTooLong", testQueryTakesTooLong},
		{"AttachmentsTravelInTheirOwnField", testAttachmentsTravelInTheirOwnField},
		{"FilesOfAForm", testFilesOfAForm},
		{"QuestionToTheCommittee", testQuestionToTheCommittee},
		{"ClientGoesAway", testClientGoesAway},
		{"AnswerWhileTheLinkIsDown", testAnswerWhileTheLinkIsDown},
	})
}

// TestRoutes is about the other routes, and about start and stop.
func TestRoutes(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"PageFiles", testPageFiles},
		{"BadRequests", testBadRequests},
		{"Cancel", testCancel},
		{"Sessions", testSessions},
		{"Health", testHealth},
		{"StopInOrder", testStopInOrder},
		{"PortIsTaken", testPortIsTaken},
		{"BodyThatDoesNotCome", testBodyThatDoesNotCome},
	})
}

// checkAnswerEvents checks the events of the answer in testQueryIsAnswered: all of them, in order, with their authors.
func checkAnswerEvents(t *testing.T, a gateway.Answer) {
	t.Helper()
	want := []string{"query.received", "critique.result", "agent.state.generator", "response.generation"}
	if !slices.Equal(a.Events, want) {
		t.Errorf("events %v, want %v", a.Events, want)
	}
	var who []string
	for i, ev := range a.EventLog {
		who = append(who, ev.From)
		if i > 0 && (ev.Seconds < a.EventLog[i-1].Seconds || ev.Time.After(a.EventLog[0].Time) && ev.Seconds == 0) ||
			ev.Seconds < 0 || ev.Seconds > 60 {
			t.Errorf("event %s at %f s", ev.Subject, ev.Seconds)
		}
		if ev.Query != a.QueryID || ev.Session != "s-1" || ev.Time.IsZero() || !json.Valid(ev.Payload) || i > 0 &&
			ev.Seq <= a.EventLog[i-1].Seq {
			t.Errorf("event %+v", ev)
		}
	}
	if !slices.Equal(who, []string{"gateway", "critic", "generator", "generator"}) {
		t.Errorf("from %v", who)
	}
}

func testQueryIsAnswered(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	respondentB := w.out("respondent_b")
	critic := w.out("critic")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		if q.Model != "small:1b" || q.Query != "capital of France?" {
			t.Errorf("asked %+v", q)
		}
		// Respondent B is faster; a critic pretends to have answered; another question ends first. None of it is the
		// answer.
		emitStored(w, respondentB.WithIDs(q.SessionID, q.QueryID), subjects.ResponseGeneration, reply(q, "Lyon"))
		emitStored(w, out.WithIDs(q.SessionID, "other"), subjects.ResponseGeneration, reply(q, "Nice"))
		emitStored(w, critic.WithIDs(q.SessionID, q.QueryID), subjects.CritiqueResult,
			subjects.Critique{QueryID: q.QueryID, Score: 2, RespondentID: "committee"})
		emitStored(w, out, withTokens(t, subjects.AgentStateEvent, "generator"),
			subjects.AgentState{QueryID: q.QueryID, To: "GENERATING"})
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "Paris"))
	})
	status, _, body := w.do("POST", "/query", `{"query":"capital of France?","session_id":"s-1","model":"small:1b"}`)
	a := read[gateway.Answer](t, body)
	if status != 200 || a.Answer != "Paris" || a.SessionID != "s-1" || a.QueryID == "" || a.Thinking != "let me see" ||
		len(a.ToolCalls) != 1 || a.Model != "m" || a.Usage.PromptTokens != 3 {
		t.Fatalf("%d %s", status, body)
	}
	if a.Grade != nil || a.Pairwise != nil || a.Reward != nil {
		t.Errorf("judged by nobody: %s", body)
	}
	checkAnswerEvents(t, a)
	// The same answer can be fetched again, by somebody who was not there.
	status, _, body = w.do("GET", "/queries/"+a.QueryID, "")
	if again := read[gateway.Answer](t, body); status != 200 || again.Answer != "Paris" || len(again.EventLog) != 3 {
		t.Errorf("looked up: %d %s", status, body)
	}
	if status, _, body := w.do("GET", "/queries/nobody", ""); status != 404 ||
		!strings.Contains(body, "not asked here") {
		t.Errorf("looked up what is not there: %d %s", status, body)
	}
}

// A question in another mode goes to its respondent, and only that account's response and grade are its own.
func testQuestionToTheCommittee(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{GradeWait: testTimeout}})
	committee, generator, critic := w.out("committee"), w.out("generator"), w.out("critic")
	asked := make(chan subjects.Query, 1)
	bustest.Subscribe(t, w.Connect("user"), "query.committee", asked)
	done := make(chan struct{})
	go func() {
		defer close(done)
		q := <-asked
		if !slices.Equal(q.Personas, []string{"inner child"}) || q.Rounds != 2 || !q.Parallel || q.Hint != "reasoning" {
			t.Errorf("asked %+v", q)
		}
		emitStored(w, generator.WithIDs(q.SessionID, q.QueryID), subjects.ResponseGeneration, reply(q, "not asked"))
		r := reply(q, "decided")
		r.RespondentID, r.Deliberations = "committee", []subjects.DeliberationSummary{{
			Persona: "The Inner Child",
			Round:   1, Status: "done", Dissents: true,
		}}
		emitStored(w, committee.WithIDs(q.SessionID, q.QueryID), subjects.ResponseGeneration, r)
		for _, of := range []string{"generator", "committee.inner_child", "committee"} {
			emitStored(w, critic.WithIDs(q.SessionID, q.QueryID), subjects.CritiqueResult,
				subjects.Critique{QueryID: q.QueryID, Score: len(of) % 6, RespondentID: of})
		}
	}()
	status, _, body := w.do("POST", "/query",
		`{"query":"should I?","mode":"committee","personas":["inner child"],"rounds":2,"parallel":true,`+
			`"hint":"reasoning"}`)
	<-done
	a := read[gateway.Answer](t, body)
	if status != 200 || a.Answer != "decided" || len(a.Deliberations) != 1 || !a.Deliberations[0].Dissents ||
		a.Grade == nil || a.Grade.RespondentID != "committee" {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := w.do("GET", "/queries/"+a.QueryID, ""); status != 200 ||
		read[gateway.Answer](t, body).Answer != "decided" {
		t.Errorf("looked up: %d %s", status, body)
	}
	emitStored(w, committee.WithIDs("s9", "q9"), subjects.ResponseGeneration,
		subjects.Response{SessionID: "s9", QueryID: "q9", Answer: "elsewhere", RespondentID: "committee"})
	if status, _, body := w.do("GET", "/queries/q9", ""); status != 200 ||
		read[gateway.Answer](t, body).Answer != "elsewhere" {
		t.Errorf("asked elsewhere: %d %s", status, body)
	}
	for _, bad := range []string{
		`"mode":"oracle"`, `"mode":"assistant","rounds":2`, `"personas":["x"]`,
		`"mode":"committee","rounds":9`, `"hint":"hard"`,
	} {
		if status, _, body := w.do("POST", "/query", `{"query":"x",`+bad+`}`); status != 400 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
}

// Over HTTP, text that the user did not type has a field of its own.
func testAttachmentsTravelInTheirOwnField(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		if q.Query != "summarize" || len(q.Attachments) != 1 ||
			q.Attachments[0] != (subjects.Attachment{Name: "mail", Source: "file", Text: "Dear user"}) {
			t.Errorf("asked %+v", q)
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "short"))
	})
	if status, _,
		body := w.do("POST", "/query",
		`{"query":"summarize","attachments":[{"name":"mail","source":"file","text":"Dear user"}]}`); status != 200 ||
		!strings.Contains(body, "short") {
		t.Errorf("%d %s", status, body)
	}
	for _, bad := range []string{
		`[{"text":" "}]`, `[{"source":"user","text":"x"}]`, `[{"text":"x","trusted":true}]`,
		`"x"`, `[{"name":"a\nb","text":"x"}]`,
	} {
		if status, _, body := w.do("POST", "/query", `{"query":"summarize","attachments":`+bad+`}`); status != 400 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
}

// A user asked with the plain nats tool; the gateway finds the answer all the same.
func testLookUpOfAQuestionAskedElsewhere(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	out := w.out("generator")
	for i := range 5 {
		q := subjects.Query{QueryID: fmt.Sprintf("q%d", i), SessionID: "s"}
		emitStored(w, out.WithIDs("s", q.QueryID), subjects.ResponseGeneration, reply(q, fmt.Sprintf("answer %d", i)))
	}
	status, _, body := w.do("GET", "/queries/q3", "")
	if a := read[gateway.Answer](t, body); status != 200 || a.Answer != "answer 3" || a.SessionID != "s" {
		t.Errorf("%d %s", status, body)
	}
}

func testQueryThatDoesNotWait(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	questions := make(chan subjects.Query, 4)
	var out actor.Out
	w.answerQuestions(func(q subjects.Query, o actor.Out) { out = o; questions <- q })
	for name, try := range map[string]func() (int, http.Header, string){
		"wait=0": func() (int, http.Header, string) { return w.do("POST", "/query?wait=0", `{"query":"hi"}`) },
		"respond-async": func() (int, http.Header, string) {
			return w.do("POST", "/query", `{"query":"hi"}`, "Prefer", "respond-async")
		},
	} {
		status, header, body := try()
		ids := read[problemBody](t, body)
		q := <-questions
		if status != 202 || ids.QueryID != q.QueryID || ids.SessionID != q.SessionID ||
			header.Get("Location") != "/queries/"+q.QueryID {
			t.Errorf("%s: %d %v %s", name, status, header, body)
		}
		if status, _, body := w.do("GET", "/queries/"+q.QueryID, ""); status != 202 {
			t.Errorf("%s: before the answer: %d %s", name, status, body)
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
		status, _, body = w.do("GET", "/queries/"+q.QueryID, "")
		if a := read[gateway.Answer](t, body); status != 200 || a.Answer != "hello" {
			t.Errorf("%s: after the answer: %d %s", name, status, body)
		}
	}
	status, _, body := w.do("POST", "/query?wait=0", `{"query":"plan it","mode":"task"}`)
	if ids := read[problemBody](t, body); status != 202 || !strings.Contains(body, `"task":"/tasks/`+ids.QueryID+`"`) {
		t.Errorf("a task: %d %s", status, body)
	}
}

func testQueryThatIsGivenUp(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	router := w.out("router")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		// About something else of the same question, and by somebody whose word does not count: both change nothing.
		emitStored(w, out, withTokens(t, subjects.DeadLetterEvent, "generator"),
			subjects.DeadLetter{Actor: "generator", Subject: "query.cancel.x", Code: "malformed", Reason: "odd cancel"})
		emitStored(w, w.out("critic").WithIDs(q.SessionID, q.QueryID),
			withTokens(t, subjects.DeadLetterEvent, "critic"), subjects.DeadLetter{
				Actor:   "router",
				Subject: "query.received", Code: "x", Reason: "forged",
			})
		emitStored(w, router.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.DeadLetterEvent, "router"),
			subjects.DeadLetter{
				Actor: "x", Subject: "core.EVENT.MAX_DELIVERIES.TURNS.respondent_b-1", Code: "x",
				Reason: "only respondent B",
			})
		emitStored(w, router.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.DeadLetterEvent, "router"),
			subjects.DeadLetter{
				Actor: "x", Subject: "core.EVENT.MAX_DELIVERIES.TURNS.generator-3", Code: "unavailable",
				Reason: "given up after 5 tries",
			})
	})
	status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"s","query_id":"q1"}`)
	f := read[problemBody](t, body)
	if status != 502 || f.Error.Code != "unavailable" ||
		f.Error.Text != "router failed permanently: given up after 5 tries" || f.QueryID != "q1" || f.SessionID == "" {
		t.Errorf("%d %s", status, body)
	}
	if status, _, again := w.do("GET", "/queries/q1", ""); status != 502 || again != body {
		t.Errorf("looked up: %d %s", status, again)
	}
}

// A question that was answered before would not be answered again: nobody is left waiting for it.
func testQueryAskedAgain(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.storeConversations(subjects.Conversation{
		SessionID: "answered",
		Turns:     []subjects.Turn{{QueryID: "q9", Query: "hi", Answer: "there"}},
	})
	if status, _,
		body := w.do("POST", "/query", `{"query":"hi","session_id":"answered","query_id":"q9"}`); status != 409 ||
		!strings.Contains(body, "GET /queries/q9") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := w.do("POST", "/query", `{"query":"hi","query_id":"q9"}`); status != 400 ||
		!strings.Contains(body, "session_id") {
		t.Errorf("%d %s", status, body)
	}
	if status, _,
		body := w.do("POST", "/query?wait=0",
		`{"query":"hi","session_id":"answered","query_id":"q10"}`); status != 202 {
		t.Errorf("%d %s", status, body)
	}
}

// testQueryWithAKey: a question with an Idempotency-Key is asked once, whenever it is repeated; the key of another
// client is another one, and with another question it is a conflict.
func testQueryWithAKey(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	registry := &listRegistry{}
	startActor(t, b, registry)
	phone, token := newClient("phone", time.Unix(1, 0))
	w.setClients(registry, token, true, phone)
	asked := make(chan subjects.Query, 10)
	release := make(chan struct{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		asked <- q
		if q.Query == "slow" {
			<-release
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "to "+q.Query))
	})
	ask := func(body string, header ...string) (status int, id, answer string) {
		status, _, text := w.do("POST", "/query", body, append(header, "Idempotency-Key", "k1")...)
		a := read[gateway.Answer](t, text)
		return status, a.QueryID, a.Answer
	}
	status, first, answer := ask(`{"query":"hi"}`)
	if status != http.StatusOK || answer != "to hi" || (<-asked).QueryID != first {
		t.Fatalf("%d %s %s", status, first, answer)
	}
	if status, id, answer := ask(`{"query":"hi"}`); status != http.StatusOK || id != first || answer != "to hi" {
		t.Errorf("repeated: %d %s %s", status, id, answer)
	}
	status, id, _ := ask(`{"query":"hi"}`, "Authorization", "Bearer "+token)
	if q := <-asked; status != http.StatusOK || id == first || q.QueryID != id || q.Client != "phone" {
		t.Errorf("another client: %d %s, %+v", status, id, q)
	}
	for _, body := range []string{`{"query":"ho"}`, `{"query":"hi","session_id":"s2"}`} {
		if status, _, text := w.do("POST", "/query", body, "Idempotency-Key", "k1"); status !=
			http.StatusUnprocessableEntity || read[problemBody](t, text).Error.Code != "conflict" {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	// While one request waits, another with the same key gets the state.
	done := make(chan string, 1)
	go func() {
		_, _, text := w.do("POST", "/query", `{"query":"slow"}`, "Idempotency-Key", "k2")
		done <- read[gateway.Answer](t, text).QueryID
	}()
	slow := (<-asked).QueryID
	if status, _, body := w.do("POST", "/query?wait=0", `{"query":"slow"}`, "Idempotency-Key", "k2"); status !=
		http.StatusAccepted || read[problemBody](t, body).QueryID != slow {
		t.Errorf("while it waits: %d %s", status, body)
	}
	close(release)
	if id := <-done; id != slow {
		t.Errorf("%s, want %s", id, slow)
	}
	if len(asked) != 0 {
		t.Errorf("asked again: %+v", <-asked)
	}
	for _, try := range [][2]string{
		{`{"query":"hi","session_id":"s","query_id":"q"}`, "k1"},
		{`{"query":"hi"}`, strings.Repeat("k", 256)},
		{`{"query":"hi"}`, ""},
	} {
		if status, _, body := w.do("POST", "/query", try[0], "Idempotency-Key", try[1]); status !=
			http.StatusBadRequest {
			t.Errorf("%q: %d %s", try, status, body)
		}
	}
}

func testQueryWhoseAnswerIsAnError(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		r := reply(q, "")
		if q.Query == "partly" {
			r.Answer = "The capital"
		}
		r.Partial, r.Error = true, subjects.Faultf(subjects.CodeModelUnreachable, "Ollama does not answer")
		emitStored(w, out, subjects.ResponseGeneration, r)
	})
	for query, want := range map[string]int{"partly": 200, "not at all": 502} {
		status, _, body := w.do("POST", "/query", fmt.Sprintf(`{"query":%q}`, query))
		if a := read[gateway.Answer](t, body); status != want || !a.Partial || a.Error == nil ||
			a.Error.Code != subjects.CodeModelUnreachable {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

func testQueryTakesTooLong(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{QueryTimeout: 30 * time.Millisecond}})
	status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"s1","query_id":"q1"}`)
	f := read[problemBody](t, body)
	if status != 504 || f.QueryID != "q1" || f.SessionID != "s1" || f.Error.Code != subjects.CodeTimeout ||
		f.Later["answer"] != "/queries/q1" {
		t.Fatalf("%d %s", status, body)
	}
	// The answer comes later and is found where the client was told to look.
	emitStored(w, w.out("generator").WithIDs("s1", "q1"), subjects.ResponseGeneration,
		reply(subjects.Query{QueryID: "q1", SessionID: "s1"}, "late"))
	if status, _, body := w.do("GET", f.Later["answer"].(string), ""); status != 200 ||
		read[gateway.Answer](t, body).Answer != "late" {
		t.Errorf("later: %d %s", status, body)
	}
	s := w.follow(f.Later["events"].(string))
	if ev := s.next(); ev.data.Subject != "response.generation" || ev.data.Query != "q1" {
		t.Errorf("events: %+v", ev)
	}
}

// A closed tab does not end the run, and another client can come back for the answer.
func testClientGoesAway(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{MaxWaiting: 1}})
	questions := make(chan subjects.Query, 1)
	var out actor.Out
	w.answerQuestions(func(q subjects.Query, o actor.Out) { out = o; questions <- q })
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", w.base+"/query",
			strings.NewReader(`{"query":"hi","session_id":"s","query_id":"q1"}`))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			var res *http.Response
			if res, err = w.client.Do(req); err == nil {
				err = res.Body.Close()
			}
		}
		gone <- err
	}()
	q := <-questions
	// Somebody waits for it: the same id is taken, and so is the only place.
	if status, header, body := w.do("POST", "/query", `{"query":"hi"}`); status != 429 ||
		header.Get("Retry-After") == "" {
		t.Errorf("beyond the limit: %d %s", status, body)
	}
	if status, _,
		body := w.do("POST", "/query?wait=0", `{"query":"hi","session_id":"s","query_id":"q1"}`); status != 409 {
		t.Errorf("the same id: %d %s", status, body)
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
	if status, _, body := w.do("GET", "/queries/q1", ""); status != 200 ||
		read[gateway.Answer](t, body).Answer != "hello" {
		t.Errorf("%d %s", status, body)
	}
	eventually(t, "the place is free again", func() bool { return len(gateway.WaitingSlots(w.gw)) == 0 })
}

// An answer that comes while the link is down is not missed: the live copy is, what is stored is not.
func testAnswerWhileTheLinkIsDown(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		if err := w.nc.ForceReconnect(); err != nil {
			t.Error(err)
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "still here"))
	})
	status, _, body := w.do("POST", "/query", `{"query":"hi"}`)
	if status != 200 || read[gateway.Answer](t, body).Answer != "still here" {
		t.Errorf("%d %s", status, body)
	}
}

func testBadRequests(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"unknown field", "POST", "/query", `{"query":"hi","temprature":1}`, 400, `unknown field \"temprature\"`},
		{"wrong type", "POST", "/query", `{"query":7}`, 400, `not a text: field \"query\"`},
		{"no question", "POST", "/query", `{"session_id":"s"}`, 400, "write the question"},
		{"a blank question", "POST", "/query", `{"query":" \n "}`, 400, "write the question"},
		{"two objects", "POST", "/query", `{"query":"a"}{"query":"b"}`, 400, "not one valid JSON object"},
		{"a key twice", "POST", "/query", `{"query":"a","query":"b"}`, 400, "duplicate key"},
		{"not an object", "POST", "/query", `["hi"]`, 400, "not a JSON object"},
		{"odd model", "POST", "/query", `{"query":"a","model":"x y"}`, 400, "model"},
		{"odd wait", "POST", "/query?wait=yes", `{"query":"a"}`, 400, "wait must be 0 or 1"},
		{"odd grade_wait", "POST", "/query?grade_wait=2h", `{"query":"a"}`, 400, "at most 1m"},
		{"unknown parameter", "POST", "/query?waits=0", `{"query":"a"}`, 400, `unknown parameter \"waits\"`},
		{"parameter twice", "POST", "/query?wait=0&wait=1", `{"query":"a"}`, 400, "more than once"},
		{"feedback without anything", "POST", "/feedback", `{"query_id":"q"}`, 400, "thumb, stars or words"},
		{"thumb", "POST", "/feedback", `{"query_id":"q","thumb":2}`, 400, "-1 or 1"},
		{"thumb sideways", "POST", "/feedback", `{"query_id":"q","thumb":0}`, 400, "-1 or 1"},
		{"stars", "POST", "/feedback", `{"query_id":"q","stars":6}`, 400, "1 to 5"},
		{"no stars", "POST", "/feedback", `{"query_id":"q","stars":0}`, 400, "1 to 5"},
		{"feedback on nothing", "POST", "/feedback", `{"thumb":1}`, 400, "query_id"},
		{"feedback on two things", "POST", "/feedback", `{"query_id":"q","session_id":"s","thumb":1}`, 400, "not both"},
		{"feedback on an odd session", "POST", "/feedback", `{"session_id":"a.b","thumb":1}`, 400, "session_id"},
		{
			"feedback on a session without an answer", "POST", "/feedback", `{"session_id":"nobody","thumb":1}`, 404,
			"no answer in the session",
		},
		{
			"a long reference", "POST", "/query", `{"query":"a","reference":"` + strings.Repeat("x", 16<<10+1) + `"}`,
			400,
			"at most 16 KB",
		},
		{"no such place", "GET", "/nothing", "", 404, "openapi.yaml"},
		{"other method", "GET", "/query", "", 405, "POST"},
		{"other method on an id", "POST", "/queries/x", `{}`, 405, "GET or DELETE"},
		{"events parameter", "GET", "/events?since=1", "", 400, "the parameters are"},
		{"events of respondent B", "GET", "/events?respondent_b=yes", "", 400, "0 or 1"},
		{"events deltas", "GET", "/events?deltas=yes", "", 400, "0 or 1"},
		{"events pattern", "GET", "/events?subject=a.>.b", "", 400, "tokens joined by dots"},
		{"unknown session", "GET", "/sessions/nobody", "", 404, "GET /sessions lists"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, header, body := w.do(tt.method, tt.path, tt.body)
			if status != tt.status || !strings.Contains(body, tt.says) || read[problemBody](t, body).Error.Code == "" {
				t.Errorf("%d %s, want %d and %q", status, body, tt.status, tt.says)
			}
			if status == 405 && header.Get("Allow") == "" {
				t.Error("no Allow header")
			}
		})
	}
}

func testCancel(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	s := w.follow("/events?query=q1")
	if status, _, body := w.do("DELETE", "/queries/q1", ""); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	if ev := s.next().data; ev.Subject != "query.cancel.q1" || ev.From != "gateway" || ev.Query != "q1" {
		t.Errorf("%+v", ev)
	}
}

func testSessions(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	if status, _, body := w.do("GET", "/sessions", ""); status != 200 || body != `{"sessions":[],"more":0}`+"\n" {
		t.Errorf("empty: %d %s", status, body)
	}
	store := w.out("generator").Store("state_generator")
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	var stored []subjects.Conversation
	for i := range 20 {
		stored = append(stored, subjects.Conversation{
			SessionID: fmt.Sprintf("s%02d", i),
			Updated:   at.Add(time.Duration(i) * time.Minute), Turns: []subjects.Turn{
				{QueryID: "q", Query: strings.Repeat("long\n", 40), Answer: "yes", Messages: []subjects.Message{
					{
						Role: "assistant",
						Calls: []subjects.MessageCall{{
							ID: "c", Name: "get_datetime",
							Arguments: json.RawMessage(`{"zone":"UTC"}`),
						}},
					},
					{Role: "tool", Content: "noon", ToolName: "get_datetime", CallID: "c"},
				}},
			},
		})
	}
	w.storeConversations(stored...)
	for key, value := range map[string]string{"turn.s1.q1": "a checkpoint", subjects.ConversationKey("damaged"): "{"} {
		if _, err := store.Put(t.Context(), key, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	status, _, body := w.do("GET", "/sessions", "")
	list := read[struct {
		Sessions []gateway.Session `json:"sessions"`
	}](t, body).Sessions
	if status != 200 || len(list) != 21 || list[0].ID != "s19" || list[19].ID != "s00" || list[20].ID != "damaged" ||
		list[20].Title == "" || list[0].Turns != 1 || len([]rune(list[0].Title)) != 80 ||
		strings.Contains(list[0].Title, "\n") {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = w.do("GET", "/sessions/s07", "")
	one := read[struct {
		ID       string             `json:"session_id"`
		Messages []subjects.Message `json:"messages"`
	}](t, body)
	var roles []string
	for _, m := range one.Messages {
		roles = append(roles, m.Role)
	}
	if status != 200 || one.ID != "s07" || !slices.Equal(roles, []string{"user", "assistant", "tool", "assistant"}) ||
		string(one.Messages[1].Calls[0].Arguments) != `{"zone":"UTC"}` {
		t.Errorf("%d %s", status, body)
	}
	checkSessionLimit(w, at)
}

// checkSessionLimit stores more sessions than are listed, all used after the time at: the latest 500 are listed.
func checkSessionLimit(w *fixture, at time.Time) {
	w.t.Helper()
	var stored []subjects.Conversation
	for i := range 500 {
		stored = append(stored, subjects.Conversation{
			SessionID: fmt.Sprintf("t%03d", i),
			Updated:   at.Add(time.Duration(i+1) * time.Hour),
		})
	}
	w.storeConversations(stored...)
	status, _, body := w.do("GET", "/sessions", "")
	got := read[struct {
		Sessions []gateway.Session `json:"sessions"`
		More     int               `json:"more"`
	}](w.t, body)
	if status != 200 || len(got.Sessions) != 500 || got.More != 21 || got.Sessions[0].ID != "t499" ||
		got.Sessions[499].ID != "t000" {
		w.t.Errorf("%d, %d sessions, %d more: %s", status, len(got.Sessions), got.More, body[:min(len(body), 300)])
	}
}

// modelActor serves a list of models.
type modelActor struct {
	mu    sync.Mutex
	asked int
	list  subjects.ModelList
}

func (m *modelActor) Name() string { return "model" }

func (m *modelActor) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.ModelListService, func(context.Context, actor.Msg[subjects.Empty],
		actor.Out,
	) (subjects.ModelList, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked++
		return m.list, nil
	})}
}

func testHealth(t *testing.T, b *bustest.Bus) {
	for _, tt := range []struct {
		name     string
		list     *subjects.ModelList
		status   string
		model    *gateway.ModelHealth
		degraded string
	}{
		{"no model actor", nil, "degraded", nil, "the model actor is not running; start it"},
		{
			"no assistant", &subjects.ModelList{Roles: []subjects.RoleModel{{Role: "critic", Model: "m"}}}, "degraded",
			nil, "models.yaml",
		},
		{
			"well",
			&subjects.ModelList{Roles: []subjects.RoleModel{
				{Role: "critic", Model: "c"},
				{Role: "assistant", Model: "gemma4:12b"},
			}}, "ok", &gateway.ModelHealth{
				Role:  "assistant",
				Model: "gemma4:12b",
			}, "",
		},
		{
			"demo model",
			&subjects.ModelList{Roles: []subjects.RoleModel{{
				Role: "assistant", Model: "script", DemoModel: true,
				Notice: "run: ollama serve",
			}}}, "degraded",
			&gateway.ModelHealth{Role: "assistant", Model: "script", DemoModel: true, Notice: "run: ollama serve"},
			"run: ollama serve",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startGateway(t, b, setup{change: func(g *gateway.Gateway) {
				g.Version = "1.2.3"
				g.SetModelTimes(testTimeout, time.Hour)
			}})
			m := &modelActor{}
			if tt.list != nil {
				m.list = *tt.list
				startActor(t, b, m)
			}
			for range 3 {
				status, _, body := w.do("GET", "/health", "")
				h := read[gateway.Health](t, body)
				if status != 200 || h.Status != tt.status || h.Version != "1.2.3" || !h.NATS.Connected ||
					fmt.Sprint(h.Model) != fmt.Sprint(tt.model) && *h.Model != *tt.model ||
					!strings.Contains(strings.Join(h.Degraded, "\n"), tt.degraded) ||
					(tt.degraded == "") != (len(h.Degraded) == 0) {
					t.Errorf("%d %s", status, body)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if tt.list != nil && m.asked != 1 {
				t.Errorf("the model actor was asked %d times", m.asked)
			}
		})
	}
}

// Without the bus the gateway still answers, and says what is wrong.
func TestHealthWithoutTheBus(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{drain: 200 * time.Millisecond})
	w.Server.Stop(context.Background())
	// It cannot say goodbye to a server that is not there, and says so. The test is not about that.
	t.Cleanup(func() { w.stopped.Do(func() { _ = w.actor.Stop() }) })
	eventually(t, "the link is down", func() bool { return !w.nc.IsConnected() })
	status, _, body := w.do("GET", "/health", "")
	if h := read[gateway.Health](t, body); status != 200 || h.Status != "degraded" || h.NATS.Connected ||
		!strings.HasPrefix(h.Degraded[0], "nats: ") {
		t.Errorf("%d %s", status, body)
	}
	for _, tt := range []struct{ method, path, body string }{
		{"POST", "/query", `{"query":"hi"}`},
		{"GET", "/sessions", ""},
		{"DELETE", "/queries/q", ""},
		{"GET", "/events?after=0", ""},
	} {
		if status, header, body := w.do(tt.method, tt.path, tt.body); status != 503 ||
			header.Get("Retry-After") == "" || read[problemBody](t, body).Error.Code != subjects.CodeUnavailable {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, status, body)
		} else if p := read[problemBody](t, body); tt.path == "/query" && (p.QueryID == "" || p.SessionID == "" ||
			p.State != "unknown" || !strings.Contains(p.Error.Text, "Idempotency-Key")) {
			t.Errorf("how to retry is not said: %s", body)
		}
	}
}

func testPortIsTaken(t *testing.T, b *bustest.Bus) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	g := gateway.New(defaultConfig(gateway.Config{Listen: ln.Addr().String(), TokenFile: tokenFile(t, token, 0o600)}),
		nil)
	out, err := actor.NewOut(b.Connect("gateway"))
	if err != nil {
		t.Fatal(err)
	}
	err = g.Start(t.Context(), out)
	if err == nil || !strings.Contains(err.Error(), "another program has this port") ||
		!strings.Contains(err.Error(), "gateway.listen") {
		t.Errorf("%v", err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A stop ends streams, tells those who wait where their answer will be, and frees the port.
func testStopInOrder(t *testing.T, b *bustest.Bus) {
	var reported string
	w := startGateway(t, b, setup{change: func(g *gateway.Gateway) {
		g.OnListen = func(addr string) { reported = addr }
	}})
	if reported != w.gw.Addr() || reported == "" {
		t.Errorf("reported %q, listens on %q", reported, w.gw.Addr())
	}
	asked := make(chan struct{})
	w.answerQuestions(func(subjects.Query, actor.Out) { close(asked) })
	s := w.follow("/events")
	type result struct {
		status int
		body   string
	}
	waiting := make(chan result, 1)
	go func() {
		status, _, body := w.do("POST", "/query", `{"query":"hi","session_id":"s","query_id":"q1"}`)
		waiting <- result{status, body}
	}()
	<-asked
	w.stop()
	r := <-waiting
	if f := read[problemBody](t, r.body); r.status != 503 || f.QueryID != "q1" || f.Later["answer"] != "/queries/q1" ||
		!strings.Contains(f.Error.Text, "will be answered") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if !strings.Contains(s.rest(), "reconnect with the last id") {
		t.Error("the stream just broke off")
	}
	ln, err := net.Listen("tcp", w.gw.Addr())
	if err != nil {
		t.Fatalf("the port is not free: %v", err)
	}
	ln.Close()
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  gateway.Config
		says string
	}{
		{"as usual", gateway.Config{}, ""},
		{"loopback", gateway.Config{Listen: "[::1]:0"}, ""},
		{"localhost", gateway.Config{Listen: "localhost:80", Hosts: []string{"conclave.example", "10.1.2.3"}}, ""},
		{"open to all without a token", gateway.Config{Listen: "0.0.0.0:8765"}, "can be reached from other machines"},
		{"any address without a token", gateway.Config{Listen: ":8765"}, "can be reached from other machines"},
		{"loopback in another dress", gateway.Config{Listen: "[::ffff:127.0.0.1]:1"}, ""},
		{"open to all with a token", gateway.Config{Listen: "0.0.0.0:8765", TokenFile: "/t"}, ""},
		{"a relative token file", gateway.Config{TokenFile: "t"}, "not an absolute path"},
		{"a relative socket", gateway.Config{Socket: "s"}, "not an absolute path"},
		{"a name", gateway.Config{Listen: "example.com:1", TokenFile: "/t"}, "neither localhost nor an IP"},
		{"no port", gateway.Config{Listen: "127.0.0.1"}, "not an address"},
		{"odd port", gateway.Config{Listen: "127.0.0.1:+1"}, "not an address"},
		{"a host with a scheme", gateway.Config{Hosts: []string{"a", "http://a"}}, "hosts[1]: \"http://a\" is not a " +
			"host name"},
		{"a host with a port", gateway.Config{Hosts: []string{"a:80"}}, "not a host name"},
		{"all hosts", gateway.Config{Hosts: []string{"*"}}, "not a host name"},
		{"a proxy", gateway.Config{URL: "https://conclave.example:8443"}, ""},
		{"a proxy without a scheme", gateway.Config{URL: "conclave.example"}, "url: \"conclave.example\" is not the " +
			"address of a proxy"},
		{"a proxy with a path", gateway.Config{URL: "https://conclave.example/"}, "not the address of a proxy"},
		{"a proxy with a password", gateway.Config{URL: "https://a:b@conclave.example"}, "not the address of a proxy"},
		{"a proxy by script", gateway.Config{URL: "javascript://x"}, "not the address of a proxy"},
		{"too long", gateway.Config{GradeWait: time.Hour}, "grade_wait"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := defaultConfig(tt.cfg).Validate(); (err == nil) != (tt.says == "") || err != nil &&
				!strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
	// Nothing is filled in: what is left out or zero is said.
	for _, path := range []string{"listen", "query_timeout", "client_interval", "heartbeat"} {
		if err := (gateway.Config{}).Validate(); !strings.Contains(err.Error(), path+": ") {
			t.Errorf("%s is not missed: %v", path, err)
		}
	}
}

// The actor alone, with a recorder: what it says on the bus when somebody asks.
func TestAskIsPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAskIsPublished)
}

func testAskIsPublished(t *testing.T) {
	g := gateway.New(defaultConfig(gateway.Config{}), links(1))
	defer g.Close(t.Context())
	rec := &actortest.Recorder{}
	listed := false
	rec.Reply = func(subject string, _ []byte) (any, error) {
		if subject != "principal.list" || !listed {
			return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
		}
		return subjects.PrincipalList{
			Principals: []subjects.Principal{{Name: "phone", Kind: subjects.ClientPrincipal}},
		}, nil
	}
	ask := func(body any, query string) error {
		_, err := rec.Deliver(t, g, actortest.Message{
			Subject: "client.user.query.ask", Body: body, Query: query, Session: "s-7",
			Deadline: rec.Out().Now().Add(time.Minute),
		})
		return err
	}
	for _, tt := range []struct {
		name string
		body any
		code string
	}{
		{"plain", []byte("hi"), subjects.CodeTimeout},
		{"blank", []byte("  "), subjects.CodeMalformed},
		{"odd id", []byte(`{"query":"hi","query_id":"a.b"}`), subjects.CodeMalformed},
		{"no question", []byte(`{"session_id":"s"}`), subjects.CodeMalformed},
		{
			"an unknown attachment", []byte(`{"query":"hi","attachments":[{"source":"user","text":"x"}]}`),
			subjects.CodeMalformed,
		},
	} {
		if err := ask(tt.body, "q-7"); actortest.Code(err) != tt.code {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	got := rec.Published()
	if len(got) != 1 || got[0].Subject != "query.received" || got[0].Query != "q-7" || !got[0].Waited ||
		!bytes.Contains([]byte(got[0].Body), []byte(`"query_id":"q-7","query":"hi"`)) {
		t.Errorf("%+v", got)
	}
	// A run-time principal that the registry does not list asks nothing; one that it lists names no session and no
	// question of another account.
	askAsPhone := func(body, query string) error {
		_, err := rec.Deliver(t, g, actortest.Message{
			Subject: "client.phone.query.ask", Body: []byte(body),
			Query: query, Deadline: rec.Out().Now().Add(time.Minute),
		})
		return err
	}
	if err := askAsPhone(`{"query":"hi"}`, ""); actortest.Code(err) != subjects.CodeUnavailable {
		t.Errorf("without the registry: %v", err)
	}
	listed = true
	scope := gateway.ClientScope(subjects.Principal{Name: "phone"})
	err := askAsPhone(`{"query":"hi","session_id":"s"}`, "q-8")
	if got := rec.Published(); actortest.Code(err) != subjects.CodeTimeout || len(got) != 2 ||
		got[1].Query != scope+"q-8" || got[1].Session != scope+"s" {
		t.Errorf("a question of a run-time principal: %v, %+v", err, got)
	}
	if got := rec.Published(); !strings.Contains(got[1].Body, `"client":"phone"`) ||
		strings.Contains(got[0].Body, "client") {
		t.Errorf("asked as %s and %s", got[0].Body, got[1].Body)
	}
	// Without ids it gets ids of its own, so that every record names it; a name in the body counts for nothing.
	err = askAsPhone(`{"query":"hi","client":"tablet"}`, "")
	if got := rec.Published(); actortest.Code(err) != subjects.CodeTimeout ||
		!strings.HasPrefix(got[2].Session, scope) || !strings.HasPrefix(got[2].Query, scope) ||
		!strings.Contains(got[2].Body, `"client":"phone"`) || subjects.CheckToken(got[2].Session) != nil {
		t.Errorf("a question without ids: %v, %+v", err, got)
	}
	// It chooses no model.
	if err := askAsPhone(`{"query":"hi","model":"other"}`, ""); actortest.Code(err) != subjects.CodeDenied {
		t.Errorf("with a model: %v", err)
	}
	// It has no more than four questions without an answer, also when it no longer waits; the user has no such limit.
	for range 2 {
		if err := askAsPhone("wait", ""); actortest.Code(err) != subjects.CodeTimeout {
			t.Error(err)
		}
	}
	if err := askAsPhone("one more", ""); actortest.Code(err) != subjects.CodeLimit {
		t.Errorf("a fifth question: %v", err)
	}
	if err := ask([]byte("hi"), "q-9"); actortest.Code(err) != subjects.CodeTimeout {
		t.Errorf("the user meanwhile: %v", err)
	}
}
