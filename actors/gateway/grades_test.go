package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestGrades tests the judgements in an answer, and the wait for the grade.
func TestGrades(t *testing.T) {
	t.Parallel()
	runOnBus(t, []busTest{
		{"TheGradeIsWaitedFor", testTheGradeIsWaitedFor},
		{"OnlyTheVisibleGradeEndsTheWait", testOnlyTheVisibleGradeEndsTheWait},
		{"ACriticThatIsBehindIsNotWaitedFor", testACriticThatIsBehindIsNotWaitedFor},
		{"LookUpHasTheJudgements", testLookUpHasTheJudgements},
		{"RespondentBIsLeftOut", testRespondentBIsLeftOut},
		{"AReferenceIsPassedOn", testAReferenceIsPassedOn},
	})
}

// critique is a grade for a respondent's answer.
func critique(q subjects.Query, respondent string, score int) subjects.Critique {
	return subjects.Critique{
		SessionID: q.SessionID, QueryID: q.QueryID, RespondentID: respondent, Score: score,
		Feedback: "said so", Rubric: subjects.RubricPlain, Model: "judge:1b",
	}
}

func testTheGradeIsWaitedFor(t *testing.T, b *bustest.Bus) {
	for name, wait := range map[string]struct {
		cfg  time.Duration
		path string
	}{"as configured": {testTimeout, "/query"}, "as the client asks": {0, "/query?grade_wait=20s"}} {
		t.Run(name, func(t *testing.T) {
			w := startGateway(t, b, setup{Config: gateway.Config{GradeWait: wait.cfg}})
			critic := w.out("critic")
			w.answerQuestions(func(q subjects.Query, out actor.Out) {
				emitStored(w, out, subjects.ResponseGeneration, reply(q, "42"))
				emitStored(w, critic.WithIDs(q.SessionID, q.QueryID), subjects.CritiqueResult,
					critique(q, "generator", 4))
			})
			status, _, body := w.do("POST", wait.path, `{"query":"?"}`)
			a := read[gateway.Answer](t, body)
			if status != 200 || a.Grade == nil || a.Grade.Score != 4 || a.Grade.RespondentID != "generator" ||
				!slices.Equal(a.Events, []string{"query.received", "response.generation", "critique.result"}) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// Neither respondent B's grade, nor another's, nor one that somebody else pretends to have given ends the wait.
func testOnlyTheVisibleGradeEndsTheWait(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{Config: gateway.Config{GradeWait: testTimeout}})
	critic := w.out("critic")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		graded := critic.WithIDs(q.SessionID, q.QueryID)
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "42"))
		emitStored(w, graded, subjects.CritiqueResult, critique(q, "respondent_b", 5))
		emitStored(w, graded, subjects.CritiqueResult, critique(q, "committee", 3))
		emitStored(w, critic.WithIDs(q.SessionID, "another"), subjects.CritiqueResult,
			critique(subjects.Query{QueryID: "another"}, "generator", 2))
		emitStored(w, graded, subjects.PairwiseResult, subjects.Pairwise{
			QueryID: q.QueryID, Winner: "respondent_b",
			Between: []string{"generator", "respondent_b"}, Reason: "shorter",
		})
		emitStored(w, graded, subjects.CritiqueResult, critique(q, "generator", 1))
	})
	_, _, body := w.do("POST", "/query", `{"query":"?"}`)
	a := read[gateway.Answer](t, body)
	if a.Grade == nil || a.Grade.Score != 1 || a.Pairwise == nil || a.Pairwise.Winner != "respondent_b" {
		t.Errorf("%s", body)
	}
	if want := []string{
		"query.received", "response.generation", "critique.result", "pairwise.result",
		"critique.result",
	}; !slices.Equal(a.Events, want) {
		t.Errorf("events %v, want %v", a.Events, want)
	}
}

// One answer waits in vain for a critic that is not there, the next does not, and after a grade in time the next does
// again. Who asks to wait waits.
func testACriticThatIsBehindIsNotWaitedFor(t *testing.T, b *bustest.Bus) {
	const window = 2 * time.Second
	w := startGateway(t, b, setup{Config: gateway.Config{GradeWait: window}})
	critic := w.out("critic")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "42"))
		if q.Query == "graded" {
			emitStored(w, critic.WithIDs(q.SessionID, q.QueryID), subjects.CritiqueResult, critique(q, "generator", 4))
		}
	})
	ask := func(query, path string) (gateway.Answer, time.Duration) {
		t.Helper()
		begin := time.Now()
		_, _, body := w.do("POST", path, fmt.Sprintf(`{"query":%q}`, query))
		return read[gateway.Answer](t, body), time.Since(begin)
	}
	if gateway.CriticLate(w.gw) {
		t.Error("a critic that nobody has waited for is not trusted")
	}
	// A short wait of the client's own says nothing about the critic.
	if a, _ := ask("ungraded", "/query?grade_wait=1ms"); a.Answer != "42" || a.Grade != nil ||
		gateway.CriticLate(w.gw) {
		t.Errorf("%+v, behind: %v", a, gateway.CriticLate(w.gw))
	}
	if a, took := ask("ungraded", "/query"); a.Grade != nil || took < window || !gateway.CriticLate(w.gw) {
		t.Errorf("the first answer waited %s: %+v", took, a)
	}
	if a, took := ask("ungraded", "/query?grade_wait=300ms"); took < 300*time.Millisecond || a.Grade != nil {
		t.Errorf("who asked to wait waited %s: %+v", took, a)
	}
	if !gateway.CriticLate(w.gw) {
		t.Error("it is waited for although no grade arrived")
	}
	begin := gateway.LastEvent(w.gw)
	if a, _ := ask("ungraded", "/query"); a.Answer != "42" || !gateway.CriticLate(w.gw) {
		t.Errorf("%+v", a)
	}
	// Where it would have to wait for as long as its client, it does not.
	patient := startGateway(t, b, setup{
		Config: gateway.Config{GradeWait: time.Minute},
		change: (*gateway.Gateway).SetCriticLate,
	})
	if status, _, body := patient.do("POST", "/query", `{"query":"ungraded"}`); status != 200 ||
		read[gateway.Answer](t, body).Answer != "42" {
		t.Errorf("with a long window: %d %s", status, body)
	}
	// A grade that comes long after its answer says that the critic is slow, and so does one of an answer of long ago.
	late := gateway.LastEvent(w.gw)
	emitStored(w, critic.WithIDs("s", "old"), subjects.CritiqueResult,
		critique(subjects.Query{QueryID: "old"}, "generator", 3))
	eventually(t, "the late grade was read", func() bool { return gateway.LastEvent(w.gw) > max(begin, late) })
	if !gateway.CriticLate(w.gw) {
		t.Error("a late grade counts as one in time")
	}
	if a, _ := ask("graded", "/query"); a.Answer != "42" {
		t.Errorf("%+v", a)
	}
	eventually(t, "a grade in time was read", func() bool { return !gateway.CriticLate(w.gw) })
	if a, _ := ask("graded", "/query"); a.Grade == nil || gateway.CriticLate(w.gw) {
		t.Errorf("after a grade was read: %+v", a)
	}
}

// What came after the answer was given is found later, also when the question was asked elsewhere.
func testLookUpHasTheJudgements(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	out, critic, reward := w.out("generator"), w.out("critic"), w.out("reward")
	for i := range 3 {
		q := subjects.Query{QueryID: fmt.Sprintf("judged%d", i), SessionID: "s"}
		emitStored(w, out.WithIDs("s", q.QueryID), subjects.ResponseGeneration, reply(q, "42"))
	}
	q := subjects.Query{QueryID: "judged1", SessionID: "s"}
	if _, _, body := w.do("GET", "/queries/judged1", ""); read[gateway.Answer](t, body).Grade != nil {
		t.Errorf("graded before anybody did: %s", body)
	}
	emitStored(w, critic.WithIDs("s", "judged0"), subjects.CritiqueResult, critique(subjects.Query{QueryID: "judged0"},
		"generator", 5))
	emitStored(w, critic.WithIDs("s", "judged1"), subjects.CritiqueResult, critique(q, "respondent_b", 2))
	emitStored(w, critic.WithIDs("s", "judged1"), subjects.CritiqueResult, critique(q, "generator", 4))
	emitStored(w, critic.WithIDs("s", "judged1"), subjects.PairwiseResult,
		subjects.Pairwise{QueryID: "judged1", Winner: subjects.Tie, Reason: "as good"})
	// the highest count holds
	for _, r := range []subjects.Reward{{Value: 1, Count: 1}, {Value: -1, Count: 3}, {Value: 0.5, Count: 2}} {
		r.QueryID, r.RespondentID, r.Source = "judged1", "generator", subjects.RewardUser
		emitStored(w, reward.WithIDs("s", "judged1"), subjects.RewardEvent, r)
	}
	_, _, body := w.do("GET", "/queries/judged1", "")
	a := read[gateway.Answer](t, body)
	if a.Grade == nil || a.Grade.Score != 4 || a.Pairwise == nil || a.Pairwise.Winner != subjects.Tie ||
		a.Reward == nil || a.Reward.Value != -1 || a.Reward.Count != 3 {
		t.Errorf("%s", body)
	}
	if _, _, body := w.do("GET", "/queries/judged2", ""); strings.Contains(body, `"score"`) ||
		!strings.Contains(body, `"grade":null,"pairwise":null,"reward":null`) {
		t.Errorf("nobody judged this one: %s", body)
	}
}

// emitRespondentB stores the events of respondent B for a question, and those of other actors about them.
func (w *fixture) emitRespondentB(q subjects.Query) {
	w.t.Helper()
	respondentB, broker, memory, critic := w.out("respondent_b").WithIDs(q.SessionID, q.QueryID),
		w.out("broker").WithIDs(q.SessionID, q.QueryID), w.out("memory").WithIDs(q.SessionID, q.QueryID),
		w.out("critic").WithIDs(q.SessionID, q.QueryID)
	emitStored(w, respondentB, withTokens(w.t, subjects.AgentStateEvent, "respondent_b"),
		subjects.AgentState{QueryID: q.QueryID, To: "GENERATING"})
	emitStored(w, broker, withTokens(w.t, subjects.ToolRequestEvent, "get_datetime"),
		subjects.ToolRequest{CallID: "b", Caller: "respondent_b", Args: json.RawMessage(`{}`)})
	emitStored(w, broker, withTokens(w.t, subjects.ToolResultEvent, "get_datetime"),
		subjects.ToolResult{CallID: "b", Tool: "get_datetime", Caller: "respondent_b", Result: "noon"})
	emitStored(w, memory, subjects.MemoryRecalled, subjects.MemoryEvent{
		QueryID: q.QueryID, Action: "recalled",
		IDs: []string{}, By: "respondent_b",
	})
	emitStored(w, respondentB, subjects.ResponseGeneration, reply(q, "43"))
	emitStored(w, critic, subjects.CritiqueResult, critique(q, "respondent_b", 2))
}

func testRespondentBIsLeftOut(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	shown, all := w.follow("/events?query=q1"), w.follow("/events?query=q1&respondent_b=1")
	replies := w.follow("/events?query=q1&subject=response.generation")
	broker := w.out("broker")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		w.emitRespondentB(q)
		emitStored(w, broker.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.ToolRequestEvent, "get_datetime"),
			subjects.ToolRequest{CallID: "a", Caller: "generator", Args: json.RawMessage(`{}`)})
		emitStored(w, broker.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.ToolResultEvent, "get_datetime"),
			subjects.ToolResult{CallID: "a", Tool: "get_datetime", Caller: "generator"})
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "42"))
	})
	_, _, body := w.do("POST", "/query", `{"query":"?","session_id":"withRespondentB","query_id":"q1"}`)
	want := []string{"query.received", "tool.request.get_datetime", "tool.result.get_datetime", "response.generation"}
	if a := read[gateway.Answer](t, body); a.Answer != "42" || !slices.Equal(a.Events, want) ||
		strings.Contains(body, "respondent_b") {
		t.Errorf("%s", body)
	}
	_, _, body = w.do("GET", "/queries/q1", "")
	if a := read[gateway.Answer](t, body); !slices.Equal(a.Events, want[1:]) ||
		strings.Contains(body, "respondent_b") || a.Grade != nil {
		t.Errorf("looked up: %s", body)
	}
	// Questions are live, not kept: what is kept is compared.
	kept := func(s *sse) gateway.Event {
		t.Helper()
		for {
			if ev := s.next().data; ev.Seq > 0 {
				return ev
			}
		}
	}
	for _, subject := range want[1:] {
		if ev := kept(shown); ev.Subject != subject || ev.From == "respondent_b" {
			t.Errorf("%+v, want %s", ev, subject)
		}
	}
	if ev := replies.next().data; ev.From != "generator" {
		t.Errorf("of the answers: %+v", ev)
	}
	for _, subject := range []string{
		"agent.state.respondent_b", "tool.request.get_datetime",
		"tool.result.get_datetime", "memory.recalled", "response.generation", "critique.result",
		"tool.request.get_datetime", "tool.result.get_datetime", "response.generation",
	} {
		if ev := kept(all); ev.Subject != subject {
			t.Errorf("with respondent B: %+v, want %s", ev, subject)
		}
	}
}

func testAReferenceIsPassedOn(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	got := make(chan subjects.Query, 2)
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		got <- q
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "42"))
	})
	w.do("POST", "/query", `{"query":"?","reference":"It says 42."}`)
	if q := <-got; q.Reference != "It says 42." {
		t.Errorf("%+v", q)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	out := w.out("user")
	for _, err := range actor.AskStream(ctx, out, subjects.QueryAsk,
		subjects.Query{Query: "?", Reference: "It says 43."}) {
		if err != nil {
			t.Error(err)
		}
	}
	if q := <-got; q.Reference != "It says 43." {
		t.Errorf("%+v", q)
	}
}

// TestEventsOfRespondentB tests which events belong to respondent B's answer.
func TestEventsOfRespondentB(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, from, subject, payload string
		hidden                       bool
	}{
		{"the answer", "generator", "response.generation", `{"respondent_id":"generator"}`, false},
		{"respondent B's answer", "respondent_b", "response.generation", `{"respondent_id":"respondent_b"}`, true},
		{"its states", "respondent_b", "agent.state.respondent_b", `{}`, true},
		{"its dead letters", "respondent_b", "dead.respondent_b", `{"subject":"turn.1.s"}`, true},
		{
			"trick: respondent B calls itself the generator", "respondent_b", "response.generation",
			`{"respondent_id":"generator"}`, true,
		},
		{
			"trick: the generator calls itself respondent B", "generator", "response.generation",
			`{"respondent_id":"respondent_b","caller":"respondent_b","by":"respondent_b"}`, false,
		},
		{"its grade as memory took it down", "memory", "memory.annotated", `{"by":"critic","of":"respondent_b"}`, true},
		{
			"the answer's grade as memory took it down", "memory", "memory.annotated",
			`{"by":"critic","of":"generator"}`,
			false,
		},
		{"a verdict as memory took it down", "memory", "memory.annotated", `{"by":"critic"}`, false},
		{
			"what the broker could not read of it", "broker", "dead.broker",
			`{"subject":"agent.respondent_b.tool.request.search_memory"}`, true,
		},
		{
			"what the broker could not read of another", "broker", "dead.broker",
			`{"subject":"agent.generator.tool.request.search_memory"}`, false,
		},
		{"a call", "broker", "tool.request.get_datetime", `{"caller":"generator"}`, false},
		{"respondent B's call", "broker", "tool.request.get_datetime", `{"caller":"respondent_b"}`, true},
		{
			"a call of an agent below it", "broker", "tool.request.get_datetime.a.b", `{"caller":"respondent_b.a.b"}`,
			true,
		},
		{
			"trick: a name that begins alike", "broker", "tool.request.get_datetime", `{"caller":"respondent_bad"}`,
			false,
		},
		{
			"trick: an agent called like it below another", "broker", "tool.request.x.y",
			`{"caller":"generator.respondent_b"}`, false,
		},
		{"its result", "broker", "tool.result.get_datetime", `{"caller":"respondent_b","result":"x"}`, true},
		{
			"a result", "broker", "tool.result.get_datetime",
			`{"caller":"generator","result":"{\"caller\":\"respondent_b\"}"}`, false,
		},
		{"a result of nobody", "broker", "tool.result.get_datetime", `{"result":"x"}`, false},
		{"what memory did for it", "memory", "memory.recalled", `{"by":"respondent_b"}`, true},
		{"what memory did", "memory", "memory.recalled", `{"by":"generator"}`, false},
		{"what memory stored of it", "memory", "memory.stored", `{"by":"respondent_b"}`, true},
		{"its grade", "critic", "critique.result", `{"respondent_id":"respondent_b"}`, true},
		{
			"a grade", "critic", "critique.result", `{"respondent_id":"generator","feedback":"respondent_b was worse"}`,
			false,
		},
		{
			"a verdict about both", "critic", "pairwise.result",
			`{"winner":"respondent_b","between":["generator","respondent_b"],"respondent_id":"respondent_b"}`, false,
		},
		{"a question to the user for it", "broker", "approval.request.x", `{"caller":"respondent_b"}`, false},
		{
			"a letter about its answer", "critic", "dead.critic", `{"subject":"from.respondent_b.response.generation"}`,
			true,
		},
		{
			"a letter about the answer", "critic", "dead.critic", `{"subject":"from.generator.response.generation"}`,
			false,
		},
		{
			"a letter about its turn", "router", "dead.router",
			`{"subject":"core.EVENT.MAX_DELIVERIES.TURNS.respondent_b-1"}`, true,
		},
		{
			"a letter about a turn", "router", "dead.router",
			`{"subject":"core.EVENT.MAX_DELIVERIES.TURNS.generator-1"}`,
			false,
		},
		{"not an object", "broker", "tool.request.x", `["respondent_b"]`, false},
		{"another type", "broker", "tool.request.x", `{"caller":["respondent_b"]}`, false},
		{"nothing", "broker", "tool.request.x", ``, false},
		{"trick: other letters", "broker", "tool.request.x", `{"Caller":"respondent_b"}`, false},
	} {
		if got := gateway.IsOfRespondentB(gateway.Event{
			From: tt.from, Subject: tt.subject,
			Payload: json.RawMessage(tt.payload),
		}); got != tt.hidden {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// serveRewards publishes rewards for feedback as the reward actor does; special query ids make it reject or ignore it.
func (w *fixture) serveRewards() {
	w.t.Helper()
	out, nc := w.out("reward"), w.Connect("user")
	counts := map[string]int{}
	if _, err := nc.Subscribe("user.feedback", func(m *nats.Msg) {
		var f subjects.Feedback
		if err := json.Unmarshal(m.Data, &f); err != nil {
			w.t.Errorf("feedback %q: %v", m.Data, err)
			return
		}
		out := out.WithIDs(m.Header.Get(subjects.HeaderSession), m.Header.Get(subjects.HeaderQuery))
		r := subjects.Reward{
			QueryID: f.QueryID, RespondentID: "generator", Value: float64(f.Thumb),
			Source: subjects.RewardUser, Thumb: f.Thumb, Stars: f.Stars, Words: f.Words,
		}
		dead := withTokens(w.t, subjects.DeadLetterEvent, "reward")
		switch f.QueryID {
		case "silent":
			return
		case "gone":
			emitStored(w, out, dead, subjects.DeadLetter{
				Actor: "reward", Subject: "from.gateway.user.feedback",
				Code: "malformed", Reason: "nobody has answered gone", SHA256: sum(m.Data),
			})
			return
		case "tricks":
			// Somebody else's, of another kind, older, and about something else: none of it is what became of this one.
			other := r
			other.Thumb, other.Value = -f.Thumb, 0.25
			emitStored(w, out, subjects.RewardEvent, other)
			other = r
			other.Source, other.Value = subjects.RewardConversation, 0.25
			emitStored(w, out, subjects.RewardEvent, other)
			emitStored(w, out.WithIDs("s", "else"), subjects.RewardEvent,
				subjects.Reward{QueryID: "else", Source: subjects.RewardUser, Thumb: f.Thumb, Value: 0.25})
			emitStored(w, out, dead, subjects.DeadLetter{
				Subject: "from.gateway.user.feedback", Reason: "another body",
				SHA256: sum([]byte("{}")),
			})
			emitStored(w, out, dead, subjects.DeadLetter{
				Subject: "from.generator.response.generation",
				Reason:  "another subject", SHA256: sum(m.Data),
			})
			critic := w.out("critic").WithIDs("", "tricks")
			emitStored(w, critic, withTokens(w.t, subjects.DeadLetterEvent, "critic"),
				subjects.DeadLetter{Subject: "from.gateway.user.feedback", Reason: "another's", SHA256: sum(m.Data)})
		}
		counts[f.QueryID]++
		r.Count = counts[f.QueryID]
		emitStored(w, out, subjects.RewardEvent, r)
	}); err != nil {
		w.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

// TestFeedback tests ratings of an answer.
func TestFeedback(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{change: func(g *gateway.Gateway) { g.SetOutcomeTimeout(testTimeout) }})
	s := w.follow("/events?subject=user.feedback")
	// Nobody is there: it is stored, and the client hears so.
	hasty := startGateway(t, w.Bus, setup{change: func(g *gateway.Gateway) {
		g.SetOutcomeTimeout(50 * time.Millisecond)
	}})
	if status, _,
		body := hasty.do("POST", "/feedback",
		`{"query_id":"q0","thumb":-1,"stars":2,"words":" <meh> "}`); status != 202 ||
		body != `{"query_id":"q0","state":"stored"}`+"\n" {
		t.Errorf("nobody there: %d %s", status, body)
	}
	ev := s.next().data
	if got := read[subjects.Feedback](t, string(ev.Payload)); ev.From != "gateway" || ev.Query != "q0" ||
		got != (subjects.Feedback{QueryID: "q0", Thumb: -1, Stars: 2, Words: "<meh>"}) {
		t.Errorf("%+v %s", ev, ev.Payload)
	}
	w.serveRewards()
	w.storeConversations(subjects.Conversation{SessionID: "rated", Turns: []subjects.Turn{
		{QueryID: "first"},
		{QueryID: "last"},
	}})
	for _, tt := range []struct {
		name, body string
		status     int
		says       string
	}{
		{
			"counted", `{"query_id":"q1","thumb":1,"words":"<b>"}`, 200,
			`{"query_id":"q1","state":"counted","value":1,"count":1}`,
		},
		{
			"counted again", `{"query_id":"q1","thumb":-1}`, 200,
			`{"query_id":"q1","state":"counted","value":-1,"count":2}`,
		},
		{
			"words alone", `{"query_id":"q2","words":"so so"}`, 200,
			`{"query_id":"q2","state":"counted","value":0,"count":1}`,
		},
		{
			"the last of a session", `{"session_id":"rated","stars":4}`, 200,
			`{"query_id":"last","state":"counted","value":0,"count":1}`,
		},
		{"refused", `{"query_id":"gone","words":"a \u003c b & c"}`, 404, `nobody has answered gone`},
		{
			"tricks: what is not about this", `{"query_id":"tricks","thumb":1}`, 200,
			`{"query_id":"tricks","state":"counted","value":1,"count":1}`,
		},
	} {
		if status, _, body := w.do("POST", "/feedback", tt.body); status != tt.status ||
			!strings.Contains(body, tt.says) {
			t.Errorf("%s: %d %s", tt.name, status, body)
		}
	}
	// Where nobody has room to wait, it is stored all the same.
	waiting := gateway.WaitingSlots(w.gw)
	for range cap(waiting) {
		waiting <- struct{}{}
	}
	if status, _, body := w.do("POST", "/feedback", `{"query_id":"silent","thumb":1}`); status != 202 {
		t.Errorf("no room: %d %s", status, body)
	}
}

// FuzzHidden: whatever stands in a payload, what the generator and the user said is shown, and what respondent B said
// is not.
func FuzzHidden(f *testing.F) {
	for _, s := range []string{
		`{"caller":"respondent_b"}`, `{"by":["respondent_b"]}`,
		`{"respondent_id":"respondent_b","subject":"from.respondent_b.x"}`, `[`, ``, `"respondent_b"`,
	} {
		f.Add("tool.request.x", s)
		f.Add("critique.result", s)
		f.Add("memory.stored", s)
	}
	f.Fuzz(func(t *testing.T, subject, payload string) {
		ev := gateway.Event{Subject: subject, Payload: json.RawMessage(payload)}
		for _, from := range []string{"generator", "gateway", "user"} {
			ev.From = from
			if !strings.HasPrefix(subject, "dead") && gateway.IsOfRespondentB(ev) {
				t.Errorf("%s by %s is hidden: %s", subject, from, payload)
			}
		}
		ev.From = "respondent_b"
		if !gateway.IsOfRespondentB(ev) {
			t.Errorf("%s is shown: %s", subject, payload)
		}
	})
}
