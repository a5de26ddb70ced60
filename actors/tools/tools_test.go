package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/actors/tools"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// everything turns on all that can be.
var everything = tools.Config{
	WebSearch: tools.WebSearch{Provider: "mock", Results: 5},
	WebFetch:  tools.WebFetch{Enabled: true},
}

// tool finds one of the build's tools.
func tool(t testing.TB, name string) *tools.Tool {
	t.Helper()
	for _, x := range tools.Configured(everything) {
		if x.Name() == name {
			return x
		}
	}
	t.Fatalf("no tool %s", name)
	return nil
}

// schema reads a tool's parameters as a JSON schema.
func schema(t testing.TB, x *tools.Tool) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(x.Schema().Parameters, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// matchesSchema reports whether args are what the schema describes.
func matchesSchema(r *jsonschema.Resolved, args string) bool {
	var v any
	return json.Unmarshal([]byte(args), &v) == nil && r.Validate(v) == nil
}

// TestMain makes Tokyo the zone of the machine, before anything reads the time: servers of other tests do so at any
// moment.
func TestMain(m *testing.M) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err == nil {
		err = os.Setenv("TZ", "Asia/Tokyo")
	}
	if err != nil {
		panic(err)
	}
	time.Local = tokyo
	os.Exit(m.Run())
}

func TestGetDatetime(t *testing.T) {
	winter := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	summer := time.Date(2026, 7, 15, 22, 30, 0, 0, time.UTC)
	newYear := time.Date(2027, 1, 1, 0, 30, 0, 0, time.UTC)
	x := tool(t, "get_datetime")
	described := schema(t, x)
	for _, tt := range []struct {
		name string
		at   time.Time
		args string
		want string // the result; "" = an error result
		text string // part of the error
		fits bool   // what the schema says; it knows no zones and no doubled keys
	}{
		{"UTC", winter, `{"timezone":"UTC"}`, "2026-01-15T12:00:00Z (Thursday, week 3, UTC)", "", true},
		{"Berlin in winter", winter, `{"timezone":"Europe/Berlin"}`, "2026-01-15T13:00:00+01:00 (Thursday, week 3, " +
			"Europe/Berlin)", "", true},
		{"Berlin in summer", summer, `{"timezone":"Europe/Berlin"}`, "2026-07-16T00:30:00+02:00 (Thursday, week 29, " +
			"Europe/Berlin)", "", true},
		{"half an hour off", winter, `{"timezone":"Asia/Kolkata"}`, "2026-01-15T17:30:00+05:30 (Thursday, week 3, " +
			"Asia/Kolkata)", "", true},
		{
			"a week of the year before", newYear, `{"timezone":"UTC"}`, "2027-01-01T00:30:00Z (Friday, week 53, UTC)",
			"",
			true,
		},
		{
			"unknown zone", winter, `{"timezone":"Europe/Atlantis"}`, "",
			`there is no time zone "Europe/Atlantis"; use an IANA name`, true,
		},
		{"empty", winter, `{"timezone":""}`, "", "must be an IANA name", false},
		{"number", winter, `{"timezone":1}`, "", "bad arguments", false},
		{"null", winter, `{"timezone":null}`, "2026-01-15T21:00:00+09:00 (Thursday, week 3, Asia/Tokyo)", "", false},
		{"list", winter, `{"timezone":["UTC"]}`, "", "bad arguments", false},
		{"the machine's own zone", winter, `{}`, "2026-01-15T21:00:00+09:00 (Thursday, week 3, Asia/Tokyo)", "", true},
		{"extra field", winter, `{"timezone":"UTC","format":"unix"}`, "", `unknown field "format"`, false},
		{"not an object", winter, `"UTC"`, "", "not a JSON object", false},
		{"not JSON", winter, `{"timezone":`, "", "not one valid JSON object", false},

		{"trick: the machine's own zone", winter, `{"timezone":"Local"}`, "", "must be an IANA name", true},
		{
			"trick: the machine's own zone by its file", winter, `{"timezone":"localtime"}`, "", "must be an IANA name",
			true,
		},
		{"trick: out of the folder", winter, `{"timezone":"../../etc/passwd"}`, "", "there is no time zone", true},
		{
			"trick: out of the folder and back", winter, `{"timezone":"Europe/../../zoneinfo/UTC"}`, "",
			"must be an IANA name", true,
		},
		{"trick: from the root", winter, `{"timezone":"/usr/share/zoneinfo/UTC"}`, "", "there is no time zone", true},
		{
			"trick: a second spelling of a zone", winter, `{"timezone":"Europe//Berlin"}`, "", "must be an IANA name",
			true,
		},
		{"trick: a third spelling of a zone", winter, `{"timezone":"./UTC"}`, "", "must be an IANA name", true},
		{"trick: a folder", winter, `{"timezone":"Europe"}`, "", "there is no time zone", true},
		{"trick: a file that is no zone", winter, `{"timezone":"tzdata.zi"}`, "", "there is no time zone", true},
		{"trick: a zero byte", winter, `{"timezone":"UTC\u0000"}`, "", "there is no time zone", true},
		{"trick: a line break", winter, `{"timezone":"UTC\n"}`, "", "there is no time zone", true},
		{
			"trick: too long by one", winter, `{"timezone":"` + strings.Repeat("A", 65) + `"}`, "",
			"must be an IANA name",
			false,
		},
		{
			"trick: long and slashed", winter, `{"timezone":"` + strings.Repeat("./", 2000) + `UTC"}`, "",
			"must be an IANA name", false,
		},
		{"trick: the name in capitals", winter, `{"TIMEZONE":"UTC"}`, "", `unknown field "TIMEZONE"`, false},
		{"trick: doubled key", winter, `{"timezone":"UTC","timezone":"Europe/Berlin"}`, "", "duplicate key", true},
		{
			"trick: a second object", winter, `{"timezone":"UTC"}{"timezone":"Europe/Berlin"}`, "",
			"not one valid JSON object", false,
		},
		{
			"trick: a different letter that looks the same", winter, `{"timezone":"UТC"}`, "", "there is no time zone",
			true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &actortest.Recorder{Time: tt.at}
			reply, err := rec.Deliver(t, x, actortest.Message{
				Subject: "tool.request.get_datetime", Deadline: tt.at.Add(time.Minute),
				Body: subjects.ToolOrder{CallID: "c1", QueryID: "q1", Args: json.RawMessage(tt.args)},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got subjects.ToolResult
			if err := json.Unmarshal([]byte(reply), &got); err != nil {
				t.Fatal(err)
			}
			if got.CallID != "c1" || got.QueryID != "q1" || got.Tool != "get_datetime" {
				t.Errorf("answers another call: %+v", got)
			}
			if got.Result != tt.want {
				t.Errorf("result %q, want %q", got.Result, tt.want)
			}
			switch {
			case tt.want != "" && got.Error != nil:
				t.Errorf("error %v", got.Error)
			case tt.want == "" && (got.Error == nil || got.Error.Code != subjects.CodeTool ||
				!strings.Contains(got.Error.Text, tt.text)):
				t.Errorf("error %v, want %q", got.Error, tt.text)
			case got.Error != nil && len(got.Error.Text) > 300:
				t.Errorf("an error of %d bytes repeats what was sent", len(got.Error.Text))
			}
			if ok := matchesSchema(described, tt.args); ok != tt.fits {
				t.Errorf("the schema says %t, want %t", ok, tt.fits)
			}
			if len(rec.Published()) > 0 || len(rec.Requested()) > 0 || len(rec.Logged()) > 0 {
				t.Errorf("it said %v, asked %v, noted %v", rec.Published(), rec.Requested(), rec.Logged())
			}
		})
	}
}

// What is too large, late or unreadable never reaches the tool.
func TestGetDatetimeEnvelope(t *testing.T) {
	now := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	good := subjects.ToolOrder{CallID: "c", Args: json.RawMessage(`{"timezone":"UTC"}`)}
	huge := subjects.ToolOrder{CallID: "c", Args: json.RawMessage(`{"timezone":"` + strings.Repeat("A", 1<<20) + `"}`)}
	for _, tt := range []struct {
		name string
		msg  actortest.Message
		code string
	}{
		{"a megabyte", actortest.Message{Body: huge, Deadline: now.Add(time.Minute)}, subjects.CodeTooLarge},
		{"no deadline", actortest.Message{Body: good}, subjects.CodeNoDeadline},
		{"expired", actortest.Message{Body: good, Deadline: now.Add(-time.Second)}, subjects.CodeExpired},
		{"trick: unknown field", actortest.Message{
			Body: []byte(`{"call_id":"c","args":{},"tool_":"x"}`),
			Type: subjects.TypeJSON, Deadline: now.Add(time.Minute),
		}, subjects.CodeMalformed},
		{"trick: plain text", actortest.Message{
			Body: []byte("UTC"), Type: subjects.TypeText,
			Deadline: now.Add(time.Minute),
		}, subjects.CodeCodec},
		{"trick: another tool's subject", actortest.Message{
			Subject: "tool.request.run_shell", Body: good,
			Deadline: now.Add(time.Minute),
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.msg.Subject == "" {
				tt.msg.Subject = "tool.request.get_datetime"
			}
			reply, err := (&actortest.Recorder{Time: now}).Deliver(t, tool(t, "get_datetime"), tt.msg)
			if err == nil || actortest.Code(err) != tt.code || reply != "" {
				t.Errorf("reply %q, error %v, want %q", reply, err, tt.code)
			}
		})
	}
}

// What every tool of the build owes the broker and the model.
func TestToolDefinitions(t *testing.T) {
	for _, x := range tools.Configured(everything) {
		t.Run(x.Name(), func(t *testing.T) {
			s, facts := x.Schema(), x.Facts()
			text, err := os.ReadFile(x.Name() + ".md")
			if err != nil {
				t.Fatal(err)
			}
			if s.Description != strings.TrimSpace(string(text)) {
				t.Errorf("announces %q, the reviewed text is %q", s.Description, text)
			}
			r := schema(t, x)
			if matchesSchema(r, `{}`) && x.Name() != "get_datetime" && x.Name() != "get_location" {
				t.Error("a call without arguments is described as fine; some parsers miss those")
			}
			if matchesSchema(r, `[]`) || matchesSchema(r, `"x"`) || matchesSchema(r, `null`) {
				t.Error("the schema takes what is no object")
			}
			if extra := r.Schema().AdditionalProperties; extra == nil || extra.Not == nil {
				t.Error("the schema takes fields that the tool does not know")
			}
			for name, p := range r.Schema().Properties {
				if p.Description == "" {
					t.Errorf("parameter %s is not explained", name)
				}
			}
			if facts.Name != s.Name || !facts.Known || facts.Zone != subjects.ZoneOf(s.Name) || facts.Timeout <= 0 {
				t.Errorf("facts %+v", facts)
			}
			if x.Role() != subjects.ToolRole(s.Name) || subjects.Table().AccountOf(x.Role()) != x.Role() {
				t.Errorf("role %s", x.Role())
			}

			// It announces itself when it starts, and discovery tells a broker that comes later the same.
			rec := &actortest.Recorder{}
			if err := x.Start(t.Context(), rec.Out()); err != nil {
				t.Fatal(err)
			}
			said := rec.Published()
			if len(said) != 1 || said[0].Subject != "tool.schema."+s.Name {
				t.Fatalf("said %+v", said)
			}
			var heard, found subjects.ToolSchema
			if err := strict.DecodeJSON([]byte(said[0].Body), &heard); err != nil {
				t.Fatal(err)
			}
			meta := x.Describe()
			if err := strict.DecodeJSON([]byte(meta["definition"]), &found); err != nil {
				t.Fatal(err)
			}
			want, _ := json.Marshal(s)
			for who, d := range map[string]subjects.ToolSchema{"announcement": heard, "discovery": found} {
				if got, _ := json.Marshal(d); string(got) != string(want) {
					t.Errorf("%s\n%s\nwant\n%s", who, got, want)
				}
			}
		})
	}
}

func TestStartReportsFailure(t *testing.T) {
	down := errors.New("the link is down")
	rec := &actortest.Recorder{FailPublish: func(string) error { return down }}
	if err := tool(t, "get_datetime").Start(t.Context(), rec.Out()); !errors.Is(err, down) {
		t.Errorf("error %v", err)
	}
}

// On the bus under the real grants: found by nats micro, reached by the broker, and by nobody else.
func TestBusGrants(t *testing.T) {
	b := bustest.Start(t)
	x := tool(t, "get_datetime")
	broker := b.Connect("broker")
	announced, err := broker.SubscribeSync("tool.schema.*.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Flush(); err != nil {
		t.Fatal(err)
	}
	b.Run(actor.Spec{Name: x.Name(), Role: x.Role(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return x, nil
	}}, actor.Config{})
	if m, err := announced.NextMsg(10 * time.Second); err != nil || m.Subject != "tool.schema.tools.get_datetime" {
		t.Fatalf("announcement %v, %v", m, err)
	}

	user := b.Connect("user")
	var info micro.Info
	mustAsk(t, user, "$SRV.INFO.get_datetime", &info)
	if info.Name != "get_datetime" || info.Version == "" || info.Metadata["definition"] == "" ||
		len(info.Endpoints) != 1 || info.Endpoints[0].Subject != "tool.request.get_datetime" {
		t.Errorf("discovery says %+v", info)
	}
	runs := func() int {
		var s micro.Stats
		mustAsk(t, user, "$SRV.STATS.get_datetime", &s)
		return s.Endpoints[0].NumRequests + s.Endpoints[0].NumErrors
	}

	out, err := actor.NewOut(broker)
	if err != nil {
		t.Fatal(err)
	}
	call, err := subjects.ToolCallService.With("tools", "get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := actor.Ask(ctx, out, call, subjects.ToolOrder{CallID: "c1", Args: json.RawMessage(`{"timezone":"UTC"}`)})
	if err != nil || res.Error != nil || !strings.HasSuffix(res.Result, ", UTC)") {
		t.Fatalf("the broker got %+v, %v", res, err)
	}
	if n := runs(); n != 1 {
		t.Fatalf("%d runs after one call", n)
	}

	// Everybody else, by every name the tool could have. What the server refuses it refuses here on purpose.
	var mu sync.Mutex
	refused := map[string]int{}
	others := &bus.Bus{URL: b.URL, Keys: b.Keys, Server: b.Server, OnConnError: func(tr bus.ConnError) {
		mu.Lock()
		defer mu.Unlock()
		if tr.IsDenied() {
			refused[tr.Role]++
		}
	}}
	lasting, _ := subjects.Table().Roles()
	tried := 0
	for _, role := range lasting {
		if role == "broker" {
			continue
		}
		nc, err := others.Dial(role)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range []string{
			"tool.request.get_datetime", "tool.call.tools.get_datetime", "agent.operator.tool.request.get_datetime",
			"tools.tool.request.get_datetime", "$SRV.tool.request.get_datetime",
		} {
			m := nats.NewMsg(subject)
			m.Data = []byte(`{"call_id":"x","args":{"timezone":"UTC"}}`)
			m.Reply = nats.NewInbox()
			m.Header.Set(subjects.HeaderType, subjects.TypeJSON)
			m.Header.Set(subjects.HeaderDeadline, "9999999999999")
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			tried++
		}
		// After the flush the server has routed or refused all of it.
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	if n := runs(); n != 1 {
		t.Errorf("%d runs: somebody but the broker reached the tool", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(refused) == 0 {
		t.Error("the server refused nobody: the attempts did not reach it")
	}
	t.Logf("%d attempts by %d roles, none reached the tool", tried, len(lasting)-1)
}

// mustAsk asks discovery and reads the first answer.
func mustAsk(t testing.TB, nc *nats.Conn, subject string, into any) {
	t.Helper()
	m, err := nc.Request(subject, nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		t.Fatal(err)
	}
}
