package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/strict"
	"conclave/subjects"
)

type described struct{ testActor }

func (d *described) Describe() map[string]string {
	return map[string]string{"tools": "10"}
}

// The nats command line finds every actor: the replies follow the micro protocol.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	broker := &described{
		testActor{name: "broker", routes: []actor.Route{actor.Serve(subjects.ToolRequestService, echoArgs)}},
	}
	supervise(t, b, actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return broker, nil
	}}, actor.Config{})
	startActor(t, b, "critic", actor.Config{},
		actor.On(subjects.ResponseGeneration, func(context.Context, answerMsg, actor.Out) error { return nil }))
	tool, err := subjects.ToolEndpoint("get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	spec := (&testActor{
		name: "get_datetime",
		routes: []actor.Route{actor.Serve(tool, func(context.Context, actor.Msg[subjects.ToolOrder],
			actor.Out,
		) (subjects.ToolResult, error) {
			return subjects.ToolResult{}, nil
		})},
	}).spec()
	spec.Role = subjects.ToolRole("get_datetime")
	supervise(t, b, spec, actor.Config{Version: "v1.2.3"})
	startActor(t, b, subjects.Directory, actor.Config{Version: "(devel)"},
		actor.Subscribe(subjects.ResponseDelta, func(context.Context, actor.Msg[subjects.Delta], actor.Out) error {
			return nil
		}))
	user := b.Connect("user")

	// Everyone, as nats micro ls asks.
	inbox := subscribe(t, user, user.NewInbox())
	if err := user.PublishRequest("$SRV.PING", inbox.Subject, nil); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	versions := map[string]string{
		"broker": "0.0.0-dev", "critic": "0.0.0-dev", "gateway": "0.0.0-dev",
		"get_datetime": "1.2.3",
	}
	for range versions {
		var p micro.Ping
		if m := nextMessage(t, inbox); strict.DecodeJSON(m.Data, &p) != nil && json.Unmarshal(m.Data, &p) != nil {
			t.Fatalf("%s", m.Data)
		}
		if p.Type != micro.PingResponseType || p.ID == "" || p.Version != versions[p.Name] || p.Metadata == nil {
			t.Errorf("ping %+v", p)
		}
		ids[p.Name] = p.ID
	}
	if len(ids) != len(versions) {
		t.Fatalf("found %v", ids)
	}

	// One by name, and one by its instance.
	for _, subject := range []string{"$SRV.INFO.broker", "$SRV.INFO.broker." + ids["broker"]} {
		var info micro.Info
		if err := json.Unmarshal(sendRaw(t, user, rawMessage(subject, nil)).Data, &info); err != nil {
			t.Fatal(err)
		}
		if info.Type != micro.InfoResponseType || info.Name != "broker" || info.ID != ids["broker"] ||
			info.Description == "" || info.Metadata["tools"] != "10" ||
			len(info.Endpoints) != 1 || info.Endpoints[0].Subject != "agent.*.tool.request.>" ||
			info.Endpoints[0].QueueGroup != "broker" || info.Endpoints[0].Name != "tool-request" {
			t.Errorf("info %+v", info)
		}
	}
	var pulled micro.Info
	if err := json.Unmarshal(sendRaw(t, user, rawMessage("$SRV.INFO.critic", nil)).Data, &pulled); err != nil ||
		len(pulled.Endpoints) != 1 || pulled.Endpoints[0].Subject != "from.*.response.generation" {
		t.Errorf("info %+v, %v", pulled, err)
	}
	if s, f := readStats(t, user, "get_datetime"); s.Type != micro.StatsResponseType ||
		time.Since(s.Started).Abs() > time.Minute || len(f) != 1 || f[0].State != actor.Ready || f[0].P50 != 0 ||
		s.Endpoints[0].NumRequests != 0 {
		t.Errorf("stats %+v %+v", s, f)
	}
}

// The name of a service is what the table grants its key, not what its reply claims: a tool's key cannot be listed as
// the broker, neither with a subscription to another's discovery subjects nor with a reply on its own.
func TestToolCannotListItselfAsBroker(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, subjects.Directory, actor.Config{},
		actor.Subscribe(subjects.ResponseDelta, func(context.Context, actor.Msg[subjects.Delta], actor.Out) error {
			return nil
		}))
	denials := make(chan error, 8)
	rogue := b.Connect(subjects.ToolRole("web_fetch"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denials <- err }))
	asked := make(chan struct{}, 8)
	for _, subject := range []string{"$SRV.PING.web_fetch", "$SRV.PING", "$SRV.PING.broker", "$SRV.PING.*"} {
		if _, err := rogue.Subscribe(subject, func(m *nats.Msg) {
			_ = m.Respond(
				[]byte(
					`{"name":"broker","id":"x","version":"1.0.0","metadata":{},` +
						`"type":"io.nats.micro.v1.ping_response"}`))
			asked <- struct{}{}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := rogue.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-denials; !errors.Is(err, nats.ErrPermissionViolation) {
			t.Fatal(err)
		}
	}
	user := b.Connect("user")
	inbox := subscribe(t, user, user.NewInbox())
	if err := user.PublishRequest("$SRV.PING", inbox.Subject, nil); err != nil {
		t.Fatal(err)
	}
	<-asked // the directory asks the tool under its own name
	listed := map[string]bool{}
	for m, err := inbox.NextMsg(timeout); err == nil; m, err = inbox.NextMsg(500 * time.Millisecond) {
		var p micro.Ping
		if err := json.Unmarshal(m.Data, &p); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		listed[p.Name] = true
	}
	if len(listed) != 1 || !listed["gateway"] {
		t.Errorf("listed %v, want the gateway only", listed)
	}
	if _, err := user.Request("$SRV.PING.broker", nil, timeout); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("the broker, which does not run, was answered for: %v", err)
	}
}

// Every request is counted once: as handled, failed or rejected.
func TestStatsCountRequests(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				switch in.Body.CallID {
				case "error":
					return subjects.ToolResult{}, errors.New("no")
				case "fault":
					return subjects.ToolResult{}, subjects.Faultf(subjects.CodeDenied, "no")
				case "panic":
					panic("no")
				}
				return echoArgs(ctx, in, out)
			}))
	user, nc := b.Connect("user"), b.Connect("operator")
	for body, times := range map[string]int{
		`{"call_id":"good","args":{}}`: 10, `{"call_id":"error","args":{}}`: 3, `{"call_id":"fault","args":{}}`: 2,
		`{"call_id":"panic","args":{}}`: 1,
		`{`:                             4, `{"unknown":1}`: 3,
	} {
		for range times {
			sendRaw(t, nc, rawMessage("tool.request.x", []byte(body), subjects.HeaderDeadline, nearDeadline()))
		}
	}
	for range 2 {
		sendRaw(t, nc, rawMessage("tool.request.x", []byte(`{}`))) // no deadline
	}
	s, f := readStats(t, user, "broker")
	e := s.Endpoints[0]
	if e.NumRequests != 25 || e.NumErrors != 15 || f[0].Rejected != 9 || e.LastError == "" {
		t.Errorf("%d requests, %d errors, %d refused, last %q; want 25, 15, 9", e.NumRequests, e.NumErrors,
			f[0].Rejected, e.LastError)
	}
	if f[0].P50 <= 0 || f[0].P95 < f[0].P50 || f[0].P99 < f[0].P95 || e.ProcessingTime <= 0 ||
		e.AverageProcessingTime <= 0 || e.AverageProcessingTime > e.ProcessingTime {
		t.Errorf("times %+v %+v", f[0], e)
	}
	if f[0].Mailbox != 0 || f[0].InFlight != 0 {
		t.Errorf("at rest %+v", f[0])
	}
}
