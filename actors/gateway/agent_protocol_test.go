package gateway_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// chunk is a chunk of the agent protocol.
type chunk struct {
	Type string
	Data any
}

// stream is a prompt with its reply.
type stream struct {
	t   testing.TB
	sub *nats.Subscription
}

// sendPrompt publishes a prompt with headers, and returns its reply.
func sendPrompt(t testing.TB, nc *nats.Conn, subject string, body []byte, header ...string) stream {
	t.Helper()
	sub, err := nc.SubscribeSync("_INBOX.agents." + actor.NewID()) // the prefix of the SDKs of the protocol
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	m := &nats.Msg{Subject: subject, Reply: sub.Subject, Data: body, Header: nats.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	return stream{t, sub}
}

// next returns the next chunk. At the end code is that of the error, or "end".
func (s stream) next() (c chunk, code string) {
	s.t.Helper()
	m, err := s.sub.NextMsg(testTimeout)
	switch {
	case err != nil:
		s.t.Fatal(err)
	case len(m.Data) == 0 && len(m.Header) == 0:
		return c, "end"
	case m.Header.Get(subjects.HeaderErrCode) != "":
		return c, m.Header.Get(subjects.HeaderErrCode)
	case len(m.Header) > 0:
		s.t.Errorf("a chunk with headers %v", m.Header)
	}
	return read[chunk](s.t, string(m.Data)), ""
}

// finish returns the text of the reply and the code of its error, "" without one. After an error the end follows.
func (s stream) finish() (text, code string) {
	s.t.Helper()
	for {
		c, end := s.next()
		switch {
		case end == "end":
			return text, code
		case end != "":
			code = end
		case c.Type == "response":
			text += c.Data.(string)
		}
	}
}

// agentFixture is a gateway with the clients phone and tablet on the bus.
type agentFixture struct {
	*fixture
	registry      *listRegistry
	phone, tablet *nats.Conn
	scope         string // of the phone
	asked         chan subjects.Query
}

// startAgents starts the gateway. The tablet is allowed tabletMay.
func startAgents(t *testing.T, with setup, tabletMay ...string) *agentFixture {
	t.Helper()
	b := bustest.Start(t)
	f := &agentFixture{registry: &listRegistry{}, asked: make(chan subjects.Query, 64)}
	for _, name := range []string{"phone", "tablet"} {
		if _, err := b.Keys.Ensure([]string{name}); err != nil {
			t.Fatal(err)
		}
		key, err := b.Keys.Public(name)
		if err != nil {
			t.Fatal(err)
		}
		f.registry.list = append(f.registry.list, subjects.Principal{
			Name: name, Kind: subjects.ClientPrincipal,
			Keys: map[string]string{name: key}, Added: time.Unix(1, 0),
		})
	}
	f.registry.list[1].Allow = tabletMay
	if err := b.Server.Apply(t.Context(), f.registry.list); err != nil {
		t.Fatal(err)
	}
	startActor(t, b, f.registry)
	f.fixture, f.scope = startGateway(t, b, with), gateway.ClientScope(f.registry.list[0])
	f.phone, f.tablet = b.Connect("phone"), b.Connect("tablet")
	return f
}

// answer answers each question with hello, after a live token; "wait" is not answered.
func (f *agentFixture) answer() {
	f.answerQuestions(func(q subjects.Query, out actor.Out) {
		f.asked <- q
		if q.Query != "wait" {
			emitStored(f.fixture, out, withTokens(f.t, subjects.ResponseDelta, q.QueryID),
				subjects.Delta{QueryID: q.QueryID, Text: "hel"})
			emitStored(f.fixture, out, subjects.ResponseGeneration, reply(q, "hello"))
		}
	})
}

// request returns the replies to a request that arrive before a further one is overdue, want of them at least.
func request(t testing.TB, nc *nats.Conn, subject string, want int) (out []string) {
	t.Helper()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(subject, sub.Subject, nil); err != nil {
		t.Fatal(err)
	}
	for {
		wait := 200 * time.Millisecond
		if len(out) < want {
			wait = testTimeout
		}
		m, err := sub.NextMsg(wait)
		if err != nil {
			return out
		}
		out = append(out, string(m.Data))
	}
}

func TestAgentProtocol(t *testing.T) {
	t.Parallel()
	f := startAgents(t, setup{Config: gateway.Config{Heartbeat: time.Second}, drain: 300 * time.Millisecond})
	f.answer()

	t.Run("discovery names the caller's own agents", func(t *testing.T) {
		for owner, nc := range map[string]*nats.Conn{"phone": f.phone, "user": f.Connect("user")} {
			infos := request(t, nc, "$SRV.INFO.agents", 3)
			for i, name := range []string{"assistant", "committee", "orchestrator"} {
				info := read[micro.Info](t, infos[i])
				if len(infos) != 3 || info.Name != "agents" || info.Type != micro.InfoResponseType ||
					info.Metadata["agent"] != name || info.Metadata["owner"] != owner ||
					info.Metadata["session"] != "main" || info.Metadata["protocol_version"] != "0.3" ||
					info.Endpoints[0].Name != "prompt" || info.Endpoints[0].Subject != "agents.prompt."+name+"."+owner+
					".main" || info.Endpoints[0].QueueGroup != "agents" ||
					info.Endpoints[0].Metadata["max_payload"] != "768KB" ||
					info.Endpoints[0].Metadata["attachments_ok"] != "true" {
					t.Errorf("%+v", infos)
				}
				if got := request(t, nc, "$SRV.PING.agents."+info.ID, 1); len(got) != 1 ||
					read[micro.Ping](t, got[0]).ID != info.ID {
					t.Errorf("ping %s: %q", info.ID, got)
				}
				beat := read[subjects.AgentsHeartbeat](t, request(t, nc, "agents.status."+name+"."+owner+".main", 1)[0])
				if beat.Agent != name || beat.Owner != owner || beat.Session != "main" || beat.InstanceID != info.ID ||
					beat.IntervalSeconds != 1 {
					t.Errorf("status %+v", beat)
				}
			}
		}
		if got := request(t, f.phone, "$SRV.PING.agents.assistant-nobody", 0); len(got) != 0 {
			t.Errorf("ping of nobody: %q", got)
		}
	})
	t.Run("heartbeats reach their owner only", func(t *testing.T) {
		sub, err := f.phone.SubscribeSync("agents.hb.*.*.*")
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			m, err := sub.NextMsg(testTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if beat := read[subjects.AgentsHeartbeat](t, string(m.Data)); beat.Owner != "phone" ||
				m.Subject != "agents.hb."+beat.Agent+".phone.main" {
				t.Errorf("%s %+v", m.Subject, beat)
			}
		}
	})
	t.Run("a prompt gets ack, text and the end", func(t *testing.T) {
		s := sendPrompt(t, f.phone, "agents.prompt.assistant.phone.main",
			[]byte(`{"prompt":"hi","later_field":1,"attachments":[{"filename":"a.txt","content":"`+
				base64.StdEncoding.EncodeToString([]byte("a note"))+`"}]}`))
		if c, _ := s.next(); c != (chunk{"status", "ack"}) {
			t.Errorf("first chunk %+v", c)
		}
		if text, code := s.finish(); text != "hello" || code != "" {
			t.Errorf("%q %s", text, code)
		}
		q := <-f.asked
		if q.Query != "hi" || q.Client != "phone" || q.SessionID != f.scope+"assistant_main" ||
			!strings.HasPrefix(q.QueryID, f.scope) || len(q.Attachments) != 1 || q.Attachments[0].Text != "a note" {
			t.Errorf("%+v", q)
		}
	})
	t.Run("with the user's key it is still a program's text", func(t *testing.T) {
		if text, code := sendPrompt(t, f.Connect("user"), "agents.prompt.assistant.user.main", []byte("hi")).
			finish(); text != "hello" || code != "" {
			t.Errorf("%q %s", text, code)
		}
		if q := <-f.asked; q.Client != subjects.APIClient {
			t.Errorf("%+v", q)
		}
	})
	t.Run("a silent prompt is kept alive, and ends at its timeout", func(t *testing.T) {
		s := sendPrompt(t, f.phone, "agents.prompt.assistant.phone.silent", []byte("wait"), subjects.HeaderDeadline,
			formatMillis(time.Now().Add(7*time.Second)))
		<-f.asked
		for range 3 {
			if c, code := s.next(); c != (chunk{"status", "ack"}) {
				t.Fatalf("%+v %s", c, code)
			}
		}
		if text, code := s.finish(); text != "" || code != "500" {
			t.Errorf("%q %s", text, code)
		}
	})
	t.Run("hostile", func(t *testing.T) { testHostilePrompts(t, f) })
	t.Run("a revoked client", func(t *testing.T) {
		s := sendPrompt(t, f.phone, "agents.prompt.assistant.phone.revoked", []byte("wait"))
		<-f.asked
		f.registry.set(f.registry.list[1])
		f.announceClients()
		if _, code := s.finish(); code != "403" {
			t.Errorf("running prompt: %s", code)
		}
		if _, code := sendPrompt(t, f.phone, "agents.prompt.assistant.phone.main", []byte("hi")).
			finish(); code != "500" {
			t.Errorf("new prompt: %s", code)
		}
	})
}

// testHostilePrompts: each row is a prompt of the phone that is denied by the server, rejected, or asked in a session
// of the phone.
func testHostilePrompts(t *testing.T, f *agentFixture) {
	const main = "agents.prompt.assistant.phone.main"
	attached := func(name, content string) []byte {
		data,
			err := json.Marshal(map[string]any{
			"prompt":      "hi",
			"attachments": []any{map[string]string{"filename": name, "content": content}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, tt := range []struct {
		name, subject string
		body          []byte
		code          string
	}{
		{"empty body", main, nil, "400"},
		{"malformed JSON", main, []byte(`{"prompt":`), "400"},
		{"no prompt", main, []byte(`{"text":"hi"}`), "400"},
		{"empty prompt", main, []byte(`{"prompt":" "}`), "400"},
		{"prompt of another type", main, []byte(`{"prompt":["hi"]}`), "400"},
		{"deep JSON", main, []byte(`{"prompt":"hi","x":` + strings.Repeat("[", 200000) + `}`), "400"},
		{"not UTF-8", main, []byte("h\xff"), "400"},
		{"JSON that is not UTF-8", main, []byte("{\"prompt\":\"h\xff\"}"), "400"},
		{"larger than max_payload", main, []byte(strings.Repeat("x", subjects.MaxBody+1)), "400"},
		{"larger than the budget of a client", main, []byte(strings.Repeat("x", 100<<10)), "400"},
		{"attachment with a path", main, attached("../a.txt", "YQ=="), "400"},
		{"attachment without a name", main, attached("", "YQ=="), "400"},
		{"attachment in URL-safe base64", main, attached("a.txt", "-_-_"), "400"},
		{"attachment without padding", main, attached("a.txt", "YQ"), "400"},
		{
			"attachment of unknown content", main,
			attached("a.bin", base64.StdEncoding.EncodeToString([]byte{0x7f, 'E', 'L', 'F', 0, 1, 2, 3})), "400",
		},
		{
			"too many attachments", main,
			[]byte(`{"prompt":"hi","attachments":[` +
				strings.TrimSuffix(strings.Repeat(`{"filename":"a","content":"YQ=="},`, 17), ",") + `]}`), "400",
		},
		{"unknown agent", "agents.prompt.generator.phone.main", []byte("hi"), "404"},
		{"respondent B as agent", "agents.prompt.respondent_b.phone.main", []byte("hi"), "404"},
		{"session with a template", "agents.prompt.assistant.phone.{{main}}", []byte("hi"), "400"},
		{
			"session longer than a token", "agents.prompt.assistant.phone." + strings.Repeat("x", 65), []byte("hi"),
			"400",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if text, code := sendPrompt(t, f.phone, tt.subject, tt.body).finish(); text != "" || code != tt.code {
				t.Errorf("%q %q, want %s", text, code, tt.code)
			}
			if len(f.asked) > 0 {
				t.Errorf("asked %+v", <-f.asked)
			}
		})
	}
	for _, tt := range []struct{ name, subject, session string }{
		{
			"session of another client", "agents.prompt.assistant.phone." + gateway.ClientScope(f.registry.list[1]) +
				"m",
			"assistant_" + gateway.ClientScope(f.registry.list[1]) + "m",
		},
		{"session of its own scope", "agents.prompt.assistant.phone." + f.scope + "m", "assistant_" + f.scope + "m"},
		{"session of another agent", "agents.prompt.assistant.phone.committee_main", "assistant_committee_main"},
		{"long session name", "agents.prompt.assistant.phone." + strings.Repeat("x", 64), ""},
		{"forged headers", main, "assistant_main"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, code := sendPrompt(t, f.phone, tt.subject, []byte("hi"), subjects.HeaderSession, "mine",
				subjects.HeaderQuery, "mine", "Agent-Sender", "user", "Nats-Request-Info", `{"acc":"user"}`).finish()
			q := <-f.asked
			if text != "hello" || code != "" || q.Client != "phone" || !strings.HasPrefix(q.QueryID, f.scope) ||
				!strings.HasPrefix(q.SessionID, f.scope) || tt.session != "" && q.SessionID != f.scope+tt.session ||
				len(q.SessionID) > subjects.MaxToken {
				t.Errorf("%q %s %+v", text, code, q)
			}
		})
	}
	t.Run("denied by the server", func(t *testing.T) {
		denied := []string{
			"agents.prompt.assistant.tablet.main", "agents.prompt.assistant.user.main",
			"agents.status.assistant.tablet.main", "agents.hb.assistant.phone.main",
			"agents.prompt.assistant.*.main", "agents.prompt.>", "agents.prompt.assistant.phone",
			"agents.prompt.assistant.phone.main.x",
			"client.tablet.agents.prompt.assistant.main", "client.user.agents.reply.x", "agents.reply.phone.x",
			"agents.reply.user.x", "$SRV.INFO", "$SRV.INFO.broker", "approval.decision.q1",
		}
		f.ExpectViolations(len(denied))
		for _, s := range denied {
			if err := f.phone.PublishRequest(s, f.phone.NewInbox(), []byte("hi")); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.phone.Flush(); err != nil {
			t.Fatal(err)
		}
		f.ExpectViolations(3)
		for _, s := range []string{"agents.prompt.>", "agents.>", "_INBOX_tablet.>"} {
			if _, err := f.phone.SubscribeSync(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.phone.Flush(); err != nil {
			t.Fatal(err)
		}
		if len(f.asked) > 0 {
			t.Errorf("asked %+v", <-f.asked)
		}
	})
	t.Run("replies of another client", func(t *testing.T) {
		spy, err := f.tablet.SubscribeSync("_INBOX.>")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.tablet.Flush(); err != nil {
			t.Fatal(err)
		}
		if text, _ := sendPrompt(t, f.phone, main, []byte("hi")).finish(); text != "hello" {
			t.Error(text)
		}
		<-f.asked
		// a later message has arrived
		if got := request(t, f.tablet, "agents.status.assistant.tablet.main", 1); len(got) != 1 {
			t.Error(got)
		}
		if n, _, _ := spy.Pending(); n != 1 { // the status
			t.Errorf("%d messages", n)
		}
	})
	t.Run("without a reply subject", func(t *testing.T) {
		if err := f.phone.Publish(main, []byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, code := sendPrompt(t, f.phone, main, []byte("hi")).finish(); code != "" {
			t.Error(code)
		}
		if <-f.asked; len(f.asked) > 0 {
			t.Errorf("asked %+v", <-f.asked)
		}
	})
	t.Run("more prompts than a client may have waiting", func(t *testing.T) {
		for range 4 {
			sendPrompt(t, f.tablet, "agents.prompt.assistant.tablet.main", []byte("wait"))
			<-f.asked
		}
		if _, code := sendPrompt(t, f.tablet, "agents.prompt.assistant.tablet.other", []byte("hi")).
			finish(); code != "429" {
			t.Errorf("the fifth: %s", code)
		}
		if text, code := sendPrompt(t, f.phone, main, []byte("hi")).finish(); text != "hello" || code != "" {
			t.Errorf("another client: %q %s", text, code)
		}
		<-f.asked
	})
}

// TestAgentProtocolApproval: a query chunk asks the user's account alone. A client gets a status without the arguments.
func TestAgentProtocolApproval(t *testing.T) {
	t.Parallel()
	f := startAgents(t, setup{drain: 300 * time.Millisecond})
	broker := &brokerStub{}
	startActor(t, f.Bus, broker)
	events := f.out("broker")
	f.answerQuestions(func(q subjects.Query, out actor.Out) {
		f.asked <- q
		args := json.RawMessage(`{"url":"https://private.example"}`)
		if q.Query == "long" {
			args = json.RawMessage(`{"url":"` + strings.Repeat("x", 5000) + `"}`)
		}
		emitStored(f.fixture, events.WithIDs(q.SessionID, q.QueryID), withTokens(t, subjects.ApprovalRequestEvent,
			"q1"), subjects.ApprovalRequest{
			ID: "q1", QueryID: q.QueryID, Caller: "generator", Tool: "web_fetch",
			Args: args, Reason: "because",
		})
	})
	user := f.Connect("user")
	skipAcks := func(s stream) chunk {
		for {
			if c, code := s.next(); code != "" || c.Data != "ack" {
				return c
			}
		}
	}
	for _, tt := range []struct {
		name    string
		replies []string
		decided string
		status  string // after the last reply
	}{
		{"approve", []string{"approve"}, `gateway q1 {"approve":true}`, "decided: approved"},
		{"yes in an envelope", []string{`{"prompt":" Yes "}`}, `gateway q1 {"approve":true}`, "decided: approved"},
		{"deny", []string{"no"}, `gateway q1 {"approve":false}`, "decided: denied"},
		{"no decision, then approve", []string{"maybe", "approve"}, `gateway q1 {"approve":true}`, "decided: approved"},
		{"never a decision", []string{"approve it always", "", "\xff"}, "", "waiting: no decision"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sendPrompt(t, user, "agents.prompt.assistant.user.main", []byte("fetch"))
			<-f.asked
			var subjectsSeen []string
			for _, r := range tt.replies {
				c := skipAcks(s)
				q, _ := c.Data.(map[string]any)
				reply, _ := q["reply_subject"].(string)
				if prompt, _ := q["prompt"].(string); c.Type != "query" || q["id"] != "q1" ||
					!strings.HasPrefix(reply, "agents.reply.user.") || slices.Contains(subjectsSeen, reply) ||
					!strings.Contains(prompt, "https://private.example") {
					t.Fatalf("%+v", c)
				}
				subjectsSeen = append(subjectsSeen, reply)
				if err := user.Publish(reply, []byte(r)); err != nil {
					t.Fatal(err)
				}
			}
			if c := skipAcks(s); c.Type != "status" || !strings.HasPrefix(c.Data.(string), tt.status) {
				t.Errorf("%+v", c)
			}
			for _, reply := range subjectsSeen { // a second reply to the same query
				if _, err := user.Request(reply, []byte("approve"), testTimeout); err != nil {
					t.Error(err)
				}
			}
			if got := broker.take(""); got != tt.decided {
				t.Errorf("decided %q, want %q", got, tt.decided)
			}
		})
	}
	for _, tt := range []struct {
		name, query, subject string
		nc                   *nats.Conn
	}{
		{"a client", "fetch", "agents.prompt.assistant.phone.main", f.phone},
		{"arguments too long for a query", "long", "agents.prompt.assistant.user.main", user},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sendPrompt(t, tt.nc, tt.subject, []byte(tt.query))
			<-f.asked
			if c := skipAcks(s); c != (chunk{"status", "waiting: web_fetch needs the approval of the user, with " +
				"conclave approve or in the page"}) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestMetricsClientOnTheBus: a client that reads metrics cannot ask with its key on the bus either.
func TestMetricsClientOnTheBus(t *testing.T) {
	t.Parallel()
	f := startAgents(t, setup{}, subjects.ClientMetrics)
	f.answer()
	if text, code := sendPrompt(t, f.tablet, "agents.prompt.assistant.tablet.main", []byte("hi")).
		finish(); code != "403" {
		t.Errorf("prompt: %q, %s", text, code)
	}
	if m, err := f.tablet.Request("query.ask", []byte("hi"), testTimeout); err != nil ||
		!strings.Contains(m.Header.Get(subjects.HeaderErrText), "metrics only") {
		t.Errorf("question: %+v, %v", m, err)
	}
	if text, code := sendPrompt(t, f.phone, "agents.prompt.assistant.phone.main", []byte("hi")).
		finish(); text != "hello" || code != "" {
		t.Errorf("another client: %q, %s", text, code)
	}
	if len(f.asked) != 1 {
		t.Errorf("%d questions were stored", len(f.asked))
	}
}
