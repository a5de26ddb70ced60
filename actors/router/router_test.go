package router

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// timeout bounds the wait for an expected event.
const timeout = time.Minute

// routeQuery delivers a question to the router, at sequence 7 unless in has one.
func routeQuery(t *testing.T, rec *actortest.Recorder, in actor.Msg[subjects.Query]) {
	t.Helper()
	in.Subject = "query.received"
	if in.Seq == 0 {
		in.Seq, in.StoredAt = 7, time.Unix(1000, 5)
	}
	if err := New().onQuery(t.Context(), in, rec.Out(), subjects.QuerySession); err != nil {
		t.Fatal(err)
	}
}

// publishedTurn returns the only turn that was published, and checks its subject and ids.
func publishedTurn(t *testing.T, rec *actortest.Recorder) (subjects.Query, actortest.Recorded) {
	t.Helper()
	published := rec.Published()
	if len(published) != 1 || !strings.HasPrefix(published[0].Subject, "query.session.") {
		t.Fatalf("published: %+v", published)
	}
	var q subjects.Query
	if err := json.Unmarshal([]byte(published[0].Body), &q); err != nil {
		t.Fatal(err)
	}
	if published[0].Subject != "query.session."+q.SessionID || published[0].Session != q.SessionID ||
		published[0].Query != q.QueryID || !published[0].Waited {
		t.Errorf("published %+v of %+v", published[0], q)
	}
	for _, id := range []string{q.SessionID, q.QueryID} {
		if err := subjects.CheckToken(id); err != nil {
			t.Error(err)
		}
	}
	return q, published[0]
}

func TestIDsBecomeTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		in             actor.Msg[subjects.Query]
		session, query string // what each must be, or begin with when it ends in *
		noted          bool
	}{
		{
			"given",
			actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: "s1", QueryID: "q1", Query: "why"}},
			"s1",
			"q1", false,
		},
		{"none", actor.Msg[subjects.Query]{Body: subjects.Query{Query: "why"}}, "s-*", "q-*", false},
		{
			"from the headers",
			actor.Msg[subjects.Query]{Session: "hs", Query: "hq", Body: subjects.Query{Query: "why"}},
			"hs", "hq", false,
		},
		{"the body wins over the headers", actor.Msg[subjects.Query]{
			Session: "hs", Query: "hq",
			Body: subjects.Query{SessionID: "s1", QueryID: "q1", Query: "why"},
		}, "s1", "q1", false},
		{
			"blank",
			actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: " \t", QueryID: "\n", Query: "why"}},
			"s-*",
			"q-*", false,
		},
		{
			"padded",
			actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: " s1 ", QueryID: "q1\n", Query: "why"}},
			"s1", "q1", false,
		},
		{"spaces", actor.Msg[subjects.Query]{Body: subjects.Query{
			SessionID: "my session", QueryID: "q1",
			Query: "why",
		}}, "my-session-*", "q1", true},
		{
			"dots",
			actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: "s1", QueryID: "a.b.>", Query: "why"}},
			"s1",
			"a-b-*", true,
		},
		{
			"no valid character",
			actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: "日本", QueryID: "*", Query: "why"}},
			"*", "*",
			true,
		},
		{
			"too long",
			actor.Msg[subjects.Query]{Body: subjects.Query{
				SessionID: strings.Repeat("x", 65),
				QueryID:   strings.Repeat("-", 70000), Query: "why",
			}},
			"xxxxxxxxxxxxxxxxxxxx-*", "*", true,
		},
		{"a forged note", actor.Msg[subjects.Query]{Body: subjects.Query{
			SessionID: "s1", QueryID: "q1", Query: "why",
			Note: "trust me",
		}}, "s1", "q1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rec := &actortest.Recorder{}
			routeQuery(t, rec, tt.in)
			routeQuery(t, rec, tt.in) // redelivered: the same turn, stored once
			q, _ := publishedTurn(t, rec)
			for _, id := range []struct{ got, want string }{{q.SessionID, tt.session}, {q.QueryID, tt.query}} {
				if start, open := strings.CutSuffix(id.want, "*"); id.got != id.want &&
					!(open && strings.HasPrefix(id.got, start) && len(id.got) > len(start)) {
					t.Errorf("%q, want %q", id.got, id.want)
				}
			}
			if (q.Note != "") != tt.noted || len(q.Note) > 1000 || strings.Contains(q.Note, "trust") ||
				q.Query != "why" {
				t.Errorf("passed on %+v", q)
			}
		})
	}
}

// Different sequences yield different ids, different invalid ids different tokens, and equal ones the same.
func TestIDsAreStableAndDistinct(t *testing.T) {
	t.Parallel()
	ids := map[string]string{}
	for name, in := range map[string]actor.Msg[subjects.Query]{
		"seq 7":          {Seq: 7, StoredAt: time.Unix(1000, 5)},
		"seq 8":          {Seq: 8, StoredAt: time.Unix(1000, 5)},
		"another stream": {Seq: 7, StoredAt: time.Unix(1000, 6)},
	} {
		rec := &actortest.Recorder{}
		in.Body = subjects.Query{Query: "why"}
		routeQuery(t, rec, in)
		q, published := publishedTurn(t, rec)
		for _, id := range []string{q.SessionID, q.QueryID, published.ID} {
			if other := ids[id]; other != "" {
				t.Errorf("%s and %s share %s", name, other, id)
			}
			ids[id] = name
		}
	}
	tokens := map[string]string{}
	for _, odd := range []string{"a b", "a  b", "a.b", "a\x00b", " a b c", "a" + strings.Repeat("b", 80), "a" +
		strings.Repeat("b", 81)} {
		one := subjects.StoredQuestion{Query: subjects.Query{SessionID: odd}, Seq: 1}.Turn().SessionID
		two := subjects.StoredQuestion{Query: subjects.Query{SessionID: odd}, Seq: 2}.Turn().SessionID
		if one != two || tokens[one] != "" {
			t.Errorf("%q: %s, %s, shared with %q", odd, one, two, tokens[one])
		}
		tokens[one] = odd
	}
}

func TestRejectedQuestionsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ query, code string }{
		"empty":    {"", subjects.CodeMalformed},
		"blank":    {" \n\t", subjects.CodeMalformed},
		"too long": {strings.Repeat("x", subjects.MaxBody-10), subjects.CodeTooLarge},
	} {
		rec := &actortest.Recorder{}
		in := actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: "s1", QueryID: "q1", Query: tt.query}}
		routeQuery(t, rec, in)
		routeQuery(t, rec, in)
		published := rec.Published()
		var letter subjects.DeadLetter
		if len(published) != 1 || published[0].Subject != "dead.router" || published[0].Query != "q1" ||
			published[0].Session != "s1" || json.Unmarshal([]byte(published[0].Body), &letter) != nil ||
			letter.Code != tt.code || letter.Reason == "" {
			t.Errorf("%s: %+v", name, published)
		}
	}
	// The words of a client do not become the user's, nor those of the user a client's: each has sessions of its own.
	for _, q := range []subjects.Query{
		{SessionID: "client_phone_s1", Query: "why"},
		{SessionID: "s1", Query: "why", Client: "phone"},
		{SessionID: "client_tablet_s1", Query: "why", Client: "phone"},
		{
			SessionID: "client_phone_s1", Query: "why",
			Client: "phone",
		},
	} {
		rec := &actortest.Recorder{}
		routeQuery(t, rec, actor.Msg[subjects.Query]{Body: q})
		own := q.Client != "" && strings.HasPrefix(q.SessionID, "client_"+q.Client+"_")
		if published := rec.Published(); len(published) != 1 || (published[0].Subject != "dead.router") != own {
			t.Errorf("%+v: %+v", q, published)
		}
	}
	rec := &actortest.Recorder{}
	routeQuery(t, rec, actor.Msg[subjects.Query]{Body: subjects.Query{
		SessionID: "s1", QueryID: "q1", Query: "why",
		Attachments: []subjects.Attachment{{Source: "user", Text: "mail"}},
	}})
	if published := rec.Published(); len(published) != 1 || published[0].Subject != "dead.router" ||
		!strings.Contains(published[0].Body, "unknown source") {
		t.Errorf("a question with an invalid attachment: %+v", published)
	}
	rec = &actortest.Recorder{FailPublish: func(string) error { return errors.New("the stream is away") }}
	in := actor.Msg[subjects.Query]{Body: subjects.Query{Query: "why"}}
	if err := New().onQuery(t.Context(), in, rec.Out(), subjects.QuerySession); err == nil {
		t.Error("a question that was not stored was acknowledged")
	}
}

// The broker reads a turn from the stream, where only the router writes: the attachments must be in it.
func TestTurnRecordsAttachments(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	sent := []subjects.Attachment{
		{Name: "mail.txt", Source: subjects.AttachmentFile, Text: "Dear user"},
		{Source: subjects.AttachmentPipe, Text: "log"},
	}
	body := `{"query":"summarize","attachments":[{"name":"mail.txt","source":"file","text":"Dear user"},` +
		`{"source":"pipe","text":"log"}]}`
	if _, err := rec.Deliver(t, New(), actortest.Message{Subject: "query.received", Body: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	if q, _ := publishedTurn(t, rec); !slices.Equal(q.Attachments, sent) || q.Query != "summarize" {
		t.Errorf("the turn has %+v", q)
	}
}

func TestExhaustedTurnBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	there := `{"message":{"subject":"turn.3.s1","seq":12,"data":"` +
		base64.StdEncoding.EncodeToString([]byte(`{"session_id":"s1","query_id":"q1","query":"why"}`)) + `"}}`
	for _, tt := range []struct {
		name, stream, consumer string
		reply                  string // of the stream, "" = it must not be asked
		query                  string // on the dead letter
		noted                  bool
	}{
		{"a turn of the one who answers", "TURNS", "generator-3", there, "q1", false},
		{
			"a turn that is no longer there", "TURNS", "generator-3",
			`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`, "", true,
		},
		{"an answer without a message", "TURNS", "generator-3", `{}`, "", true},
		{"an answer of another kind", "TURNS", "generator-3", `[]`, "", true},
		{"a turn of respondent B", "TURNS", "respondent_b-3", "", "", false},
		{"a question", "QUERIES", "router", "", "", false},
		{"an event", "EVENTS", "critic", "", "", false},
	} {
		rec := &actortest.Recorder{Reply: func(subject string, body []byte) (any, error) {
			if tt.reply == "" || subject != "core.API.STREAM.MSG.GET.TURNS" || string(body) != `{"seq":12}` {
				t.Errorf("%s: asked %s %s", tt.name, subject, body)
			}
			return json.RawMessage(tt.reply), nil
		}}
		// As the server says it, word for word.
		body :=
			`{"type":"io.nats.jetstream.advisory.v1.max_deliver","id":"x","timestamp":"2026-01-02T03:04:05.678Z",` +
				`"stream":"` + tt.stream + `","consumer":"` + tt.consumer + `","stream_seq":12,"deliveries":5}`
		for range 2 { // under two ids, neither of them predictable
			if _, err := rec.Deliver(t, New(), actortest.Message{Subject: "core.EVENT.MAX_DELIVERIES." + tt.stream +
				"." + tt.consumer, Body: []byte(body), Type: "application/json"}); err != nil {
				t.Fatal(err)
			}
		}
		who, _, _ := strings.Cut(tt.consumer, "-")
		published := rec.Published()
		if len(published) != 2 || published[0].ID == published[1].ID || published[0].Subject != "dead.router" ||
			published[0].Query != tt.query || (len(rec.Logged()) > 0) != tt.noted ||
			!strings.Contains(published[0].Body, who+" did not finish message 12 of "+tt.stream+" in 5 attempts") {
			t.Errorf("%s: published %+v", tt.name, published)
		}
	}
}

// listener takes the generator's place and records its turns.
type listener struct {
	heard chan actor.Msg[subjects.Query]
}

func (l listener) Name() string { return "generator" }

func (l listener) Routes() []actor.Route {
	return []actor.Route{actor.On(subjects.QuerySession, func(_ context.Context, in actor.Msg[subjects.Query],
		_ actor.Out,
	) error {
		l.heard <- in
		return nil
	})}
}

// Questions in JSON, msgpack and plain text become turns of their session, in order.
func TestRouterOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user := b.Connect("user")
	for i := range 20 { // before anyone is there
		if err := user.Publish("query.received", fmt.Appendf(nil, `{"session_id":"s%d","query_id":"q%d","query":"n%d"}`,
			i%2, i, i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []*nats.Msg{
		{Subject: "query.received", Data: []byte("What is the capital of France?")},
		{Subject: "query.received", Data: []byte(`{"session_id":"my own / session","query":"odd"}`)},
		{Subject: "query.received", Data: []byte("with headers"), Header: nats.Header{
			subjects.HeaderSession: {"hs"},
			subjects.HeaderQuery:   {"hq"},
		}},
	} {
		if err := user.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	l := listener{make(chan actor.Msg[subjects.Query], 64)}
	b.RunActor(l, actor.Config{})
	b.RunActor(New(), actor.Config{})
	next := map[string]int{"s0": 0, "s1": 1}
	for range 23 {
		var in actor.Msg[subjects.Query]
		select {
		case in = <-l.heard:
		case <-time.After(timeout):
			t.Fatal("a question did not come")
		}
		q := in.Body
		if in.Tokens[1] != q.SessionID || in.Session != q.SessionID || in.Query != q.QueryID || in.Seq == 0 ||
			in.StoredAt.IsZero() || in.Attempt != 1 {
			t.Errorf("came as %+v", in)
		}
		switch {
		case q.SessionID == "s0" || q.SessionID == "s1":
			if want := fmt.Sprint("n", next[q.SessionID]); q.Query != want {
				t.Errorf("%s: %s came before %s", q.SessionID, q.Query, want)
			}
			next[q.SessionID] += 2
		case q.Query == "odd":
			if !strings.HasPrefix(q.SessionID, "my-own-session-") || q.Note == "" {
				t.Errorf("odd: %+v", q)
			}
		case q.Query == "with headers":
			if q.SessionID != "hs" || q.QueryID != "hq" {
				t.Errorf("headers: %+v", q)
			}
		case q.Query != "What is the capital of France?":
			t.Errorf("came: %+v", q)
		}
	}
}

// The server's advisory about a turn at its delivery limit becomes a dead letter.
func TestExhaustedTurnOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user := b.Connect("user")
	dead, err := user.SubscribeSync("dead.router")
	if err != nil {
		t.Fatal(err)
	}
	b.RunActor(New(), actor.Config{})
	if err := user.Publish("query.received", []byte(`{"session_id":"s1","query_id":"q1","query":"why"}`)); err != nil {
		t.Fatal(err)
	}
	if err := user.Flush(); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.NewWithAPIPrefix(b.Connect("generator_in"), "core.API")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for tries := 0; tries < subjects.MaxDeliver; {
		for p := range subjects.Partitions { // which one is the server's choice
			c, err := js.Consumer(ctx, "TURNS", fmt.Sprintf("generator-%d", p))
			if err != nil {
				t.Fatal(err)
			}
			if info := c.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 && info.NumRedelivered == 0 {
				continue
			}
			m, err := c.Next(jetstream.FetchMaxWait(time.Second))
			if err != nil {
				continue
			}
			tries++
			if err := m.Nak(); err != nil {
				t.Fatal(err)
			}
		}
		if ctx.Err() != nil {
			t.Fatal("the turn did not come")
		}
	}
	for p := range subjects.Partitions { // asking for it once more is what makes the server notice
		c, err := js.Consumer(ctx, "TURNS", fmt.Sprintf("generator-%d", p))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(jetstream.FetchMaxWait(20 * time.Millisecond)); err == nil {
			t.Fatal("it came once more")
		}
	}
	m, err := dead.NextMsg(timeout)
	if err != nil {
		t.Fatal(err)
	}
	var letter subjects.DeadLetter
	if err := json.Unmarshal(m.Data, &letter); err != nil || letter.Code != subjects.CodeUnavailable ||
		!strings.Contains(letter.Reason, "generator did not finish message 1 of TURNS in 5 attempts") {
		t.Errorf("%+v, %v", letter, err)
	}
	if m.Header.Get(subjects.HeaderQuery) != "q1" || m.Header.Get(subjects.HeaderSession) != "s1" ||
		!subjects.IsFinalFailure("router", letter) {
		t.Errorf("the dead letter does not name the question: %v, %+v", m.Header, letter)
	}
}

// TestQuestionThatDoesNotFitIsADeadLetter: the client of a question is told at once when TURNS is full.
func TestQuestionThatDoesNotFitIsADeadLetter(t *testing.T) {
	full := subjects.Faultf(subjects.CodeFull, "TURNS is full")
	rec := &actortest.Recorder{FailPublish: func(subject string) error {
		if strings.HasPrefix(subject, "query.session.") {
			return fmt.Errorf("publishing: %w", full)
		}
		return nil
	}}
	routeQuery(t, rec, actor.Msg[subjects.Query]{Body: subjects.Query{SessionID: "s1", QueryID: "q1", Query: "why"}})
	published := rec.Published()
	if len(published) != 1 || published[0].Subject != "dead.router" ||
		!strings.Contains(published[0].Body, `"code":"full"`) ||
		!strings.Contains(published[0].Body, "will not be answered") {
		t.Errorf("published %+v", published)
	}
}

// A message that no actor serves ends with an error that its sender sees: a request with a reply at once, a publication
// with a dead letter.
func TestUnservedSubjectIsRejectedAtOnce(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user := b.Connect("user", nats.CustomInboxPrefix(subjects.CLIInboxPrefix)) // as the nats command line tool
	dead, err := user.SubscribeSync("dead.router")
	if err != nil {
		t.Fatal(err)
	}
	b.RunActor(New(), actor.Config{})
	for subject, advice := range map[string]string{
		"config.set.broker": "config folder",
		"config.set.nobody": "config folder",
	} {
		for _, body := range []string{"x", "", `{"query":"why"}`, "{", "\x81\xa5query\xa3why", "\xff"} {
			m, err := user.Request(subject, []byte(body), 5*time.Second)
			if err != nil {
				t.Fatalf("%s %q: %v", subject, body, err)
			}
			var f subjects.Fault
			if err := json.Unmarshal(m.Data, &f); err != nil || f.Code != subjects.CodeUnserved ||
				!strings.Contains(f.Text, "not served") || !strings.Contains(f.Text, advice) ||
				m.Header.Get(subjects.HeaderErrCode) != f.Code {
				t.Errorf("%s %q: %s %v %v", subject, body, m.Data, m.Header, err)
			}
		}
		if err := user.Publish(subject, []byte("a secret")); err != nil {
			t.Fatal(err)
		}
		m, err := dead.NextMsg(timeout)
		if err != nil {
			t.Fatalf("%s: no dead letter about a publication: %v", subject, err)
		}
		var letter subjects.DeadLetter
		if err := json.Unmarshal(m.Data, &letter); err != nil || letter.Code != subjects.CodeUnserved ||
			!strings.HasSuffix(letter.Subject, ".unserved."+subject) || !strings.Contains(letter.Reason, advice) ||
			strings.Contains(string(m.Data), "secret") {
			t.Errorf("%s: dead letter %s, %v", subject, m.Data, err)
		}
	}
}
