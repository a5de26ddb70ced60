package broker_test

import (
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// TestBrokerAsksSilentToolAgain starts a broker while a tool does not reply to the request for its definition. The tool
// runs later without announcing itself, as a process does that was stopped and continued: the broker must find it.
func TestBrokerAsksSilentToolAgain(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	nc := w.Connect(subjects.ToolRole("get_datetime"))
	definition, err := json.Marshal(clock)
	if err != nil {
		t.Fatal(err)
	}
	info, err := json.Marshal(map[string]any{"metadata": map[string]string{"definition": string(definition)}})
	if err != nil {
		t.Fatal(err)
	}
	var speaks atomic.Bool
	var asked atomic.Int64
	subscribe := func(subject string, f nats.MsgHandler) {
		t.Helper()
		if _, err := nc.Subscribe(subject, f); err != nil {
			t.Fatal(err)
		}
	}
	subscribe("$SRV.INFO.get_datetime", func(m *nats.Msg) {
		asked.Add(1)
		if speaks.Load() {
			_ = m.Respond(info)
		}
	})
	at, err := subjects.ToolEndpoint("get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	subscribe(at.Subscription(), func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{
			Data:   []byte(`{"call_id":"c","tool":"get_datetime","result":"noon"}`),
			Header: nats.Header{subjects.HeaderType: {subjects.TypeJSON}},
		})
	})
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	w.startBroker()
	if asked.Load() == 0 {
		t.Fatal("the broker did not ask at its start")
	}
	speaks.Store(true)
	if res := w.client("operator").callUntil("c", ""); res.Result != "noon" {
		t.Errorf("result %+v", res)
	}
}
