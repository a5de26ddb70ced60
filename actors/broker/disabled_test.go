package broker_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/broker"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestDisabledToolIsNotOffered announces a tool that this machine cannot run: it is in no discovery, and a call is
// denied with the reason, recorded, and does not reach the tool.
func TestDisabledToolIsNotOffered(t *testing.T) {
	t.Parallel()
	w := &callFixture{hash: newHasher(t), refuse: map[string]error{}}
	w.rec.Time = now
	k := broker.Known{
		Tool:     policy.Tool{Name: "web_search", Zone: "tools", Known: true, Effects: policy.Declare(policy.Exec)},
		Pin:      broker.Pin(search),
		Disabled: "bwrap is not installed; install it",
	}
	w.b = broker.New(broker.Config{CallTimeout: time.Minute, AuditTimeout: time.Minute},
		rules(parseTestManifest(t), manifestLayerOnly(t)), w, w.hash, []broker.Known{clockFacts(), k})
	if err := w.b.Start(t.Context(), (&actortest.Recorder{Time: now}).Out()); err != nil {
		t.Fatal(err)
	}
	w.answer(func(subject string, _ []byte) (any, error) {
		t.Errorf("the tool was called: %s", subject)
		return subjects.ToolResult{}, nil
	})
	for _, s := range []subjects.ToolSchema{clock, search} {
		if err := w.announce(t, "tools", s.Name, s); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := w.rec.Deliver(t, w.b, actortest.Message{
		Subject: "agent.generator.broker.discover",
		Body:    subjects.DiscoverRequest{}, Deadline: now.Add(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got subjects.DiscoverReply
	if err := json.Unmarshal([]byte(reply), &got); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(got.Tools, func(s subjects.ToolSchema) bool { return s.Name == "web_search" }) ||
		len(got.Tools) != 1 {
		t.Errorf("offered: %+v", got.Tools)
	}
	res, err := w.call(t, searchMessage("generator", "c1", `{"query":"x"}`))
	if err != nil || res.Error == nil || res.Error.Code != subjects.CodeUnavailable ||
		!strings.Contains(res.Error.Text, "web_search is disabled: bwrap is not installed; install it") {
		t.Errorf("%+v, %v", res, err)
	}
	if s := w.statuses(); !slices.Contains(s, "before denied") {
		t.Errorf("records %q", s)
	}
}
