package actor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// insides are internal terms that must not appear in a fault.
var insides = regexp.MustCompile(
	`(?i)\bgo\b|\.go|json:|msgpack:|unmarshal|struct|interface|runtime|reflect|subjects\.|rawmessage|toolrequest|` +
		`int64|offset|nil\b|panic|0x|/`)

const secret = "hunter2"

// Every malformed message ends in a typed fault for the sender, a dead letter that does
// not repeat the message, and a call of the route's hook; no handler sees any of them.
func TestMalformedMessagesAreRejected(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var handled atomic.Int64
	rejected := make(chan actor.Rejection, 8)
	book := &logRecorder{}
	startActor(t, b, "broker", actor.Config{Log: book.logger()},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				handled.Add(1)
				return echoArgs(ctx, in, out)
			}, actor.OnReject(func(_ context.Context, rej actor.Rejection, _ actor.Out) { rejected <- rej })))
	user, nc := b.Connect("user"), b.Connect("operator")
	letters := subscribe(t, user, "dead.broker")

	good := []byte(`{"call_id":"` + secret + `","args":{}}`)
	packed := packMsgpack(t, subjects.ToolRequest{CallID: secret, Args: json.RawMessage(`{}`)})
	asIs := func(s string) []byte { return []byte(s) }
	// key is a packed map with one more key and value behind its own.
	key := func(name, value string) []byte {
		p := bytes.Clone(packed)
		p[0]++
		return append(append(append(p, 0xa0|byte(len(name))), name...), value...)
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10) }
	none := "-" // no header

	rows := []struct {
		name        string
		contentType string
		body        []byte
		code        string
		headers     []string
		hides       bool // the fault itself must not say the secret either
	}{
		// JSON
		{"JSON that is none", "json", asIs(secret + " {"), subjects.CodeMalformed, nil, true},
		{"JSON cut short", "json", good[:len(good)-3], subjects.CodeMalformed, nil, true},
		{"JSON cut short in a text", "json", good[:15], subjects.CodeMalformed, nil, true},
		{"JSON with bytes behind it", "json", append(bytes.Clone(good), "x"...), subjects.CodeMalformed, nil, true},
		{"JSON with a NUL behind it", "json", append(bytes.Clone(good), 0), subjects.CodeMalformed, nil, true},
		{"a second JSON value", "json", append(bytes.Clone(good), good...), subjects.CodeMalformed, nil, true},
		{"a JSON list", "json", asIs(`["` + secret + `"]`), subjects.CodeMalformed, nil, true},
		{"a JSON list of a good message", "json", asIs("[" + string(good) + "]"), subjects.CodeMalformed, nil, true},
		{"a JSON text", "json", asIs(`"` + secret + `"`), subjects.CodeMalformed, nil, true},
		{"a JSON null", "json", asIs(`null`), subjects.CodeMalformed, nil, true},
		{"an empty body", "json", nil, subjects.CodeMalformed, nil, true},
		{"blanks", "json", asIs(" \n"), subjects.CodeMalformed, nil, true},
		{
			"an unknown field", "json", asIs(`{"call_id":"c","args":{},"` + secret + `":1}`), subjects.CodeMalformed,
			nil,
			false,
		},
		{
			"an unknown field of 10,000 characters", "json",
			asIs(`{"call_id":"c","args":{},"` + strings.Repeat(secret, 1429) + `":1}`), subjects.CodeMalformed, nil,
			false,
		},
		{
			"trick: a field in another case", "json", asIs(`{"Call_ID":"` + secret + `","args":{}}`),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: the same field in two cases", "json", asIs(`{"call_id":"c","CALL_ID":"` + secret + `","args":{}}`),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: a field with a long s, which folds to another", "json",
			asIs("{\"call_id\":\"" + secret + "\",\"arg\u017f\":{}}"), subjects.CodeMalformed, nil, true,
		},
		{
			"trick: a field with an escape in it, doubled", "json",
			asIs(`{"call_id":"c","c\u0061ll_id":"` + secret + `","args":{}}`), subjects.CodeMalformed, nil, true,
		},
		{
			"trick: a doubled key", "json", asIs(`{"call_id":"c","call_id":"` + secret + `","args":{}}`),
			subjects.CodeMalformed, nil, true,
		},
		{"trick: a doubled key inside the arguments", "json", asIs(`{"call_id":"c","args":{"a":{"p":1,"p":"` + secret +
			`"}}}`), subjects.CodeMalformed, nil, true},
		{"trick: nested 100 deep", "json", asIs(`{"call_id":"` + secret + `","args":` + strings.Repeat("[", 100) +
			strings.Repeat("]", 100) + "}"), subjects.CodeMalformed, nil, true},
		{
			"trick: 200,000 opening brackets", "json",
			asIs(`{"call_id":"` + secret + `","args":` + strings.Repeat("[", 200_000)), subjects.CodeMalformed, nil,
			true,
		},
		{"a number for a text", "json", asIs(`{"call_id":31337,"args":{}}`), subjects.CodeMalformed, nil, true},
		{
			"an object for a text", "json", asIs(`{"call_id":{"` + secret + `":1},"args":{}}`), subjects.CodeMalformed,
			nil, true,
		},

		// msgpack
		{"msgpack that is none", "msgpack", asIs("\xc1" + secret), subjects.CodeMalformed, nil, true},
		{"msgpack cut short", "msgpack", packed[:len(packed)-2], subjects.CodeMalformed, nil, true},
		{"msgpack cut short in a key", "msgpack", packed[:4], subjects.CodeMalformed, nil, true},
		{
			"msgpack with bytes behind it", "msgpack", append(bytes.Clone(packed), 0xc0), subjects.CodeMalformed, nil,
			true,
		},
		{"a second msgpack map", "msgpack", append(bytes.Clone(packed), packed...), subjects.CodeMalformed, nil, true},
		{"a msgpack list", "msgpack", asIs("\x92\xa7" + secret + "\xa2{}"), subjects.CodeMalformed, nil, true},
		{
			"trick: a list that fits the fields", "msgpack", asIs("\x95\xa7" + secret + "\xa0\xa0\xa0\xc4\x02{}"),
			subjects.CodeMalformed, nil, true,
		},
		{"a msgpack nil", "msgpack", asIs("\xc0"), subjects.CodeMalformed, nil, true},
		{"an empty body as msgpack", "msgpack", nil, subjects.CodeMalformed, nil, true},
		{"an unknown msgpack field", "msgpack", key(secret, "\x01"), subjects.CodeMalformed, nil, false},
		{"trick: a msgpack field in another case", "msgpack", key("Tool", "\xa1x"), subjects.CodeMalformed, nil, true},
		{"trick: a doubled msgpack key", "msgpack", key("call_id", "\xa1x"), subjects.CodeMalformed, nil, true},
		{
			"trick: a msgpack key that is a number", "msgpack", asIs("\x81\x01\xa7" + secret), subjects.CodeMalformed,
			nil,
			true,
		},
		{
			"trick: a key as bytes", "msgpack", asIs("\x81\xc4\x07call_id\xa7" + secret), subjects.CodeMalformed, nil,
			true,
		},
		{
			"trick: a key that is a list", "msgpack", asIs("\x81\x91\x01\xa7" + secret), subjects.CodeMalformed, nil,
			true,
		},
		{
			"trick: a list of four billion in five bytes", "msgpack", asIs("\x81\xa4args\xdd\xff\xff\xff\xff" + secret),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: a text of four billion bytes", "msgpack", asIs("\x81\xa7call_id\xdb\xff\xff\xff\xff" + secret),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: a map of four billion", "msgpack", asIs("\xdf\xff\xff\xff\xff\xa7call_id\xa7" + secret),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: msgpack nested 100 deep", "msgpack",
			asIs("\x82\xa7call_id\xa7" + secret + "\xa4args" + strings.Repeat("\x91", 100) + "\xc0"),
			subjects.CodeMalformed, nil, true,
		},
		{
			"trick: 200,000 opening lists", "msgpack",
			asIs("\x82\xa7call_id\xa7" + secret + "\xa4args" + strings.Repeat("\x91", 200_000)), subjects.CodeMalformed,
			nil, true,
		},
		{
			"trick: bytes for a text", "msgpack", asIs("\x81\xa7call_id\xc4\x07" + secret), subjects.CodeMalformed, nil,
			true,
		},
		{"a msgpack number for a text", "msgpack", asIs("\x81\xa7call_id\x01"), subjects.CodeMalformed, nil, true},

		// Content types
		{"JSON that says it is msgpack", "msgpack", good, subjects.CodeMalformed, nil, true},
		{"msgpack that says it is JSON", "json", packed, subjects.CodeMalformed, nil, true},
		{"an unknown content type", "application/xml", good, subjects.CodeCodec, nil, true},
		{
			"trick: a content type that begins like ours", "application/json+" + secret, good, subjects.CodeCodec, nil,
			true,
		},
		{"trick: two content types", "application/json, application/msgpack", good, subjects.CodeCodec, nil, true},
		{"plain text where none is read", subjects.TypeText, asIs(secret), subjects.CodeCodec, nil, true},
		{"plain text with no content type", none, asIs(secret), subjects.CodeMalformed, nil, true},

		// Size
		{
			"a byte over the subject's limit", "json",
			asIs(`{"call_id":"` + secret + `","args":{}}` +
				strings.Repeat(" ", subjects.ToolRequestService.MaxPayload-len(good)+1)), subjects.CodeTooLarge, nil,
			true,
		},
		{
			"a megabyte without its headers", "json", asIs(secret + strings.Repeat("x", 1<<20-600)),
			subjects.CodeTooLarge,
			nil, true,
		},

		// Deadlines
		{"no deadline", "json", good, subjects.CodeNoDeadline, []string{subjects.HeaderDeadline, none}, true},
		{"an empty deadline", "json", good, subjects.CodeNoDeadline, []string{subjects.HeaderDeadline, " "}, true},
		{
			"an expired deadline", "json", good, subjects.CodeExpired,
			[]string{subjects.HeaderDeadline, ms(-time.Millisecond)},
			true,
		},
		{
			"a deadline in seconds", "json", good, subjects.CodeExpired,
			[]string{subjects.HeaderDeadline, strconv.FormatInt(time.Now().Unix()+60, 10)},
			true,
		},
		{
			"a deadline in words", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderDeadline, "tomorrow"},
			true,
		},
		{
			"a deadline as a date", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderDeadline, "2030-01-02T03:04:05Z"},
			true,
		},
		{
			"a deadline with a fraction", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderDeadline, "1e15"},
			true,
		},
		{
			"a negative deadline", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderDeadline, "-" + ms(time.Minute)},
			true,
		},
		{"a deadline of zero", "json", good, subjects.CodeMalformed, []string{subjects.HeaderDeadline, "0"}, true},
		{
			"trick: a deadline that overflows", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderDeadline, "9223372036854775808"},
			true,
		},

		// Ids: they become subject tokens and keys.
		{"a query id with a blank", "json", good, subjects.CodeMalformed, []string{subjects.HeaderQuery, "q 1"}, true},
		{"a query id with a dot", "json", good, subjects.CodeMalformed, []string{subjects.HeaderQuery, "q.1"}, true},
		{
			"trick: a query id that is a wildcard", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderQuery, "*"},
			true,
		},
		{
			"trick: a query id that is the rest", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderQuery, ">"},
			true,
		},
		{
			"trick: a query id that is a template", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderQuery, "{{wildcard(1)}}"},
			true,
		},
		{
			"a query id of 65 characters", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderQuery, strings.Repeat("q", 65)},
			true,
		},
		{
			"a session id with a blank", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderSession, "s 1"},
			true,
		},
		{
			"a session id with a dot", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderSession, "s.1"},
			true,
		},
		{
			"trick: a session id that is a wildcard", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderSession, "*"},
			true,
		},
		{
			"trick: a session id with a path", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderSession, "..%2fx"},
			true,
		},
		{
			"a session id of 65 characters", "json", good, subjects.CodeMalformed,
			[]string{subjects.HeaderSession, strings.Repeat("s", 65)},
			true,
		},
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			types := map[string]string{"json": subjects.TypeJSON, "msgpack": subjects.TypeMsgpack, none: ""}
			contentType, ok := types[tt.contentType]
			if !ok {
				contentType = tt.contentType
			}
			m := rawMessage("tool.request.x", tt.body, subjects.HeaderType, contentType, subjects.HeaderDeadline,
				nearDeadline())
			for i := 0; i < len(tt.headers); i += 2 {
				if m.Header[tt.headers[i]] = []string{tt.headers[i+1]}; tt.headers[i+1] == none {
					delete(m.Header, tt.headers[i])
				}
			}
			r := sendRaw(t, nc, m)

			var f subjects.Fault
			if err := strict.DecodeJSON(r.Data, &f); err != nil {
				t.Fatalf("told %s %q: %v", r.Header, r.Data, err)
			}
			if f.Code != tt.code || f.Code != r.Header.Get(subjects.HeaderErrCode) || f.Text == "" ||
				len(f.Text) > 300 || f.Denial != nil {
				t.Errorf("told %+v, want %s; headers %s", f, tt.code, r.Header)
			}
			if inside := insides.FindString(f.Text); inside != "" {
				t.Errorf("the sender is told %q: %s", inside, f.Text)
			}
			if tt.hides && strings.Contains(string(r.Data), secret) {
				t.Errorf("the sender's words come back: %s", r.Data)
			}

			raw := nextMessage(t, letters)
			if strings.Contains(string(raw.Data), secret) || strings.Contains(string(raw.Data), "31337") {
				t.Errorf("the dead letter repeats the body: %s", raw.Data)
			}
			var l subjects.DeadLetter
			if err := json.Unmarshal(raw.Data, &l); err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(tt.body)
			if l.Actor != "broker" || l.Subject != "agent.operator.tool.request.x" || l.Code != tt.code ||
				l.Reason == "" || insides.MatchString(l.Reason) ||
				l.Size != len(tt.body) || l.SHA256 != hex.EncodeToString(sum[:]) ||
				time.Since(l.Time).Abs() > time.Minute {
				t.Errorf("dead letter %s", raw.Data)
			}

			rej := receive(t, "the hook", rejected)
			if rej.Fault.Code != tt.code || rej.Subject != l.Subject || fmt.Sprint(rej.Tokens) != "[operator x]" ||
				strings.ContainsAny(rej.Query+rej.Session, " .*>{") {
				t.Errorf("the hook was told %+v", rej)
			}
		})
	}
	if handled.Load() != 0 {
		t.Errorf("%d of them reached the handler", handled.Load())
	}
	if lines := book.linesWith(`panic`); len(lines) > 0 {
		t.Errorf("panic: %s", lines)
	}
	for _, l := range book.linesWith(secret) {
		t.Errorf("the log repeats a body: %s", l)
	}
	if _, err := askTool(t, newOut(t, nc), "good"); err != nil || handled.Load() != 1 {
		t.Errorf("after all that: %v, %d handled", err, handled.Load())
	}

	// What people see live is what is kept.
	last, err := eventsStream(t, user).GetLastMsgForSubject(t.Context(), "from.broker.dead.broker")
	var l subjects.DeadLetter
	if err != nil || json.Unmarshal(last.Data, &l) != nil || l.Code != rows[len(rows)-1].code {
		t.Errorf("kept %+v, %v", last, err)
	}
	if _, f := readStats(t, user, "broker"); f[0].Rejected != len(rows) {
		t.Errorf("%d refused counted, want %d", f[0].Rejected, len(rows))
	}
}

// A payload over the server's limit is not sent.
func TestPayloadOverServerLimit(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{}, actor.Serve(subjects.ToolRequestService, echoArgs))
	nc := b.Connect("operator")
	if err := nc.PublishMsg(rawMessage("tool.request.x", make([]byte, 1<<20+1))); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("a message over the limit: %v", err)
	}
	s := toolX(t)
	s.MaxPayload = 2 << 20
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err := actor.Ask(ctx, newOut(t, nc), s,
		subjects.ToolRequest{Args: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)})
	if faultCode(err) != subjects.CodeTooLarge {
		t.Errorf("asking over the limit: %v", err)
	}
}

// Only questions may be plain text.
func TestPlainText(t *testing.T) {
	t.Parallel()
	var got subjects.Query
	question := actor.On(subjects.QueryReceived, func(_ context.Context, in actor.Msg[subjects.Query],
		_ actor.Out,
	) error {
		got = in.Body
		return nil
	})
	var stop subjects.Cancel
	cancel := actor.Subscribe(subjects.QueryCancel, func(_ context.Context, in actor.Msg[subjects.Cancel],
		_ actor.Out,
	) error {
		stop = in.Body
		return nil
	})
	tool := actor.Serve(subjects.ToolRequestService, echoArgs)
	for _, tt := range []struct {
		name        string
		route       actor.Route
		subject     string
		contentType string
		body        string
		code        string
		want        string
	}{
		{
			"a bare question", question, "query.received", "", "What is the capital of France?", "",
			"What is the capital of France?",
		},
		{"as text", question, "query.received", subjects.TypeText, "  hi\n", "", "hi"},
		{"text with a charset", question, "query.received", "text/plain; charset=utf-8", "h\u00f6", "", "h\u00f6"},
		{"text that is no UTF-8", question, "query.received", "", "h\xf6", "", "h\uFFFD"},
		{"text that looks like a list", question, "query.received", "", "[1]", "", "[1]"},
		{
			"text that looks like JSON but says it is text", question, "query.received", subjects.TypeText,
			`{"query":"x"}`, "", `{"query":"x"}`,
		},
		{"JSON", question, "query.received", "", `{"query":"hi","session_id":"s"}`, "", "hi"},
		{"JSON that is none", question, "query.received", "", `{"query":"hi"`, subjects.CodeMalformed, ""},
		{"nothing", question, "query.received", "", "", subjects.CodeMalformed, ""},
		{"blanks", question, "query.received", "", " \n ", subjects.CodeMalformed, ""},
		{"a reason to stop", cancel, "query.cancel.q1", "", "enough", "", "enough"},
		{"text for a tool", tool, "agent.operator.tool.request.x", "", "hi", subjects.CodeMalformed, ""},
		{
			"text for a tool that says so", tool, "agent.operator.tool.request.x", subjects.TypeText, "hi",
			subjects.CodeCodec, "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, stop = subjects.Query{}, subjects.Cancel{}
			rec := &actortest.Recorder{Time: time.Now()}
			_, err := rec.Deliver(t, &testActor{name: "x", routes: []actor.Route{tt.route}}, actortest.Message{
				Subject: tt.subject, Type: tt.contentType, Body: []byte(tt.body), Deadline: time.Now().Add(time.Minute),
			})
			if faultCode(err) != tt.code || (err == nil) != (tt.code == "") {
				t.Fatalf("%v, want %q", err, tt.code)
			}
			if have := got.Query + stop.Reason; have != tt.want {
				t.Errorf("read %q, want %q", have, tt.want)
			}
		})
	}
}

// The publisher chooses an event's reply subject: a reply there would be sent with the actor's own permissions.
func TestEventsGetNoReply(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService, echoArgs),
		actor.Subscribe(subjects.ToolSchemaEvent, func(context.Context, actor.Msg[subjects.ToolSchema],
			actor.Out,
		) error {
			return errors.New("no")
		}))
	user, tool := b.Connect("user"), b.Connect("tool_get_datetime")
	letters := subscribe(t, user, "dead.broker")
	target := subscribe(t, b.Connect("tool_run_shell"), "tool.request.run_shell")
	good, err := json.Marshal(subjects.ToolSchema{Name: "get_datetime"})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range [][]byte{good, []byte(`{`)} {
		m := rawMessage("tool.schema.get_datetime", body)
		m.Reply = "tool.call.tools.run_shell"
		if err := tool.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if l := nextDeadLetter(t, letters); l.Code != subjects.CodeMalformed ||
		l.Subject != "tool.schema.tools.get_datetime" {
		t.Errorf("dead letter %+v", l)
	}
	waitUntil(t, "both read", func() bool {
		s, _ := readStats(t, user, "broker")
		return s.Endpoints[1].NumRequests == 2
	})
	expectNone(t, target, user)
}

// The error of a request without a reply subject is visible as a dead letter, which holds nothing of the request.
func TestFailedRequestWithoutReplySubjectIsADeadLetter(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService, func(_ context.Context, in toolMsg, _ actor.Out) (subjects.ToolResult,
			error,
		) {
			if in.Body.CallID == "ok" {
				return subjects.ToolResult{}, nil
			}
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeDenied, "%s is not allowed", in.Body.CallID)
		}))
	user, nc := b.Connect("user"), b.Connect("operator")
	letters := subscribe(t, user, "dead.broker")
	for _, id := range []string{"ok", secret} {
		if err := nc.PublishMsg(rawMessage("tool.request.x", []byte(`{"call_id":"`+id+`","args":{}}`),
			subjects.HeaderDeadline, nearDeadline())); err != nil {
			t.Fatal(err)
		}
	}
	if m := sendRaw(t, nc, rawMessage("tool.request.x", []byte(`{"call_id":"c","args":{}}`), subjects.HeaderDeadline,
		nearDeadline())); !strings.Contains(string(m.Data), "c is not allowed") {
		t.Errorf("reply %s", m.Data)
	}
	letter := nextDeadLetter(t, letters)
	if letter.Code != subjects.CodeDenied || !strings.Contains(letter.Reason, "no reply subject") ||
		strings.Contains(letter.Reason, secret) {
		t.Errorf("dead letter %+v", letter)
	}
	expectNone(t, letters, user)
}
