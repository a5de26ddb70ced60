package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// form says which parts of the system share a process. Each of its parts is a process of its own, connected over TCP;
// without any, everything is in this process, which makes the calls in every form.
type form struct {
	name  string
	parts []string // in the order of their start
	empty []string // the same with the empty broker
}

var forms = []form{
	{"four processes", []string{"bus", "tools", "broker"}, []string{"bus", "empty-tool", "empty-broker"}},
	{
		"broker in the server's process",
		[]string{"bus+broker", "tools"},
		[]string{"bus+empty-broker", "empty-tool"},
	},
	{name: "one process"},
}

// syncModes are the measured values of the setting system.sync. The last one is shipped.
var syncModes = []string{"10s", "always"}

// callKind is a call of get_datetime by the account "operator" on a system in a form.
type callKind struct {
	form
	sync  string
	empty bool // the empty broker and tool instead of those of the product
}

func (k callKind) name() string {
	who := "brokered"
	if k.empty {
		who = "empty broker"
	}
	return fmt.Sprintf("%s, %s, sync %s", who, k.form.name, k.sync)
}

// start starts the system and returns the call.
func (k callKind) start(ctx context.Context, name string) (_ kind, _ func(), err error) {
	dir, err := os.MkdirTemp("", "conclave-bench-")
	if err != nil {
		return kind{}, nil, err
	}
	stops := []func(){func() { _ = os.RemoveAll(dir) }}
	stop := func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	home := homeIn(dir)
	b := &bus.Bus{Keys: home.Keys()}
	var children []*child
	parts := k.form.parts
	if k.empty {
		parts = k.form.empty
	}
	for _, part := range parts {
		c, err := start(part, dir, k.sync, b.URL)
		if err != nil {
			return kind{}, nil, err
		}
		b.URL, stops, children = c.url, append(stops, c.stop), append(children, c)
	}
	if len(parts) == 0 {
		c, err := k.startHere(ctx, home)
		if err != nil {
			return kind{}, nil, err
		}
		b, stops = c.Bus, append(stops, func() { _ = c.Stop(ctx) })
	}
	nc, err := b.Dial("operator")
	if err != nil {
		return kind{}, nil, err
	}
	stops = append(stops, nc.Close)
	call, err := timeCall(nc, k.empty)
	return kind{name, call, children}, stop, err
}

// startHere starts the whole system in this process.
func (k callKind) startHere(ctx context.Context, home bus.Home) (*config.Instance, error) {
	cfg, err := load(k.sync)
	if err != nil {
		return nil, err
	}
	if !k.empty {
		return cfg.Start(ctx, home, nil, config.Actors...)
	}
	c, err := cfg.Start(ctx, home, nil)
	if err != nil {
		return nil, err
	}
	if err := runEmptyTool(c.Bus); err != nil {
		return nil, err
	}
	return c, runEmptyBroker(c.Bus)
}

func homeIn(dir string) bus.Home { return bus.Home{Data: dir + "/data", Config: dir + "/config"} }

// timeCall asks for the time over the connection of an agent: as the product's agents do, or with a plain request.
func timeCall(nc *nats.Conn, plain bool) (func(context.Context) error, error) {
	ask, err := subjects.ToolRequestService.With("get_datetime")
	if err != nil {
		return nil, err
	}
	args := json.RawMessage(`{"timezone":"Europe/Berlin"}`)
	if plain {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			m, err := nc.RequestWithContext(ctx, ask.Name, args)
			if err != nil {
				return err
			}
			return sane(string(m.Data))
		}, nil
	}
	out, err := actor.NewOut(nc)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		res, err := actor.Ask(ctx, out, ask, subjects.ToolRequest{CallID: actor.NewID(), Args: args})
		if err != nil {
			return err
		}
		if res.Error != nil {
			return res.Error
		}
		return sane(res.Result)
	}, err
}

// runEmptyTool replies to the calls of get_datetime with a text.
func runEmptyTool(b *bus.Bus) error {
	nc, err := b.Dial(subjects.ToolRole("get_datetime"))
	if err != nil {
		return err
	}
	if _, err := nc.Subscribe("tool.request.get_datetime", func(m *nats.Msg) { _ = m.Respond(fixedTime) }); err != nil {
		return err
	}
	return nc.Flush()
}

// runEmptyBroker does what the order of an audited call needs and nothing else: it stores a record, calls the tool,
// stores a record and replies. It decides nothing, and the records are bytes of the usual size.
func runEmptyBroker(b *bus.Bus) error {
	nc, err := b.Dial("broker")
	if err != nil {
		return err
	}
	record, err := subjects.AuditRecordEvent.With(actor.NewID())
	if err != nil {
		return err
	}
	call, err := subjects.ToolCallService.With("tools", "get_datetime")
	if err != nil {
		return err
	}
	store := func() error {
		m := &nats.Msg{Subject: record.Name, Data: make([]byte, recordBytes), Header: nats.Header{
			jetstream.MsgIDHeader:          {actor.NewID()},
			jetstream.ExpectedStreamHeader: {subjects.Audit},
		}}
		r, err := nc.RequestMsg(m, 10*time.Second)
		if err != nil {
			return err
		}
		var ack jetstream.PubAck
		if err := json.Unmarshal(r.Data, &ack); err != nil || ack.Sequence == 0 {
			return fmt.Errorf("the record was not stored: %s", r.Data)
		}
		return nil
	}
	handle := func(m *nats.Msg) error {
		if err := store(); err != nil {
			return err
		}
		r, err := nc.Request(call.Name, m.Data, 10*time.Second)
		if err != nil {
			return err
		}
		if err := store(); err != nil {
			return err
		}
		return m.Respond(r.Data)
	}
	if _, err := nc.Subscribe("agent.*.tool.request.>", func(m *nats.Msg) {
		go func() {
			if err := handle(m); err != nil {
				fmt.Fprintln(os.Stderr, "empty broker:", err)
			}
		}()
	}); err != nil {
		return err
	}
	return nc.Flush()
}

// recordBytes is the size of a record of the broker, with the links of its chain.
const recordBytes = 450

// fixedTime is the reply of the tools that do not look at the clock.
var fixedTime = []byte("2026-01-02T03:04:05+01:00 (Friday, week 1, Europe/Berlin)")
