package generator

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"conclave/pkg/model"
	"conclave/subjects"
)

func TestOnlyCompleteRoundsAreKept(t *testing.T) {
	t.Parallel()
	call := model.Message{
		Role: model.Assistant, Content: "let me see", Thinking: "hm",
		Calls: []model.Call{lookupCall("a"), lookupCall("b")},
	}
	result := func(id string) model.Message {
		return model.Message{Role: model.ToolRole, Content: "r" + id, ToolName: "clock", CallID: id}
	}
	user := model.Message{Role: model.User, Content: "q"}
	for _, tt := range []struct {
		name string
		in   []model.Message
		want int
	}{
		{"none", []model.Message{user, {Role: model.Assistant, Content: "a"}}, 0},
		{"whole", []model.Message{user, call, result("a"), result("b"), {Role: model.Assistant, Content: "a"}}, 3},
		{"half", []model.Message{user, call, result("a")}, 0},
		{"half, then words", []model.Message{user, call, result("a"), user}, 0},
		{"two, a nudge between", []model.Message{
			user, call, result("a"), result("b"), user, call, result("a"),
			result("b"),
		}, 6},
		{"open", []model.Message{user, call}, 0},
	} {
		got := selectCompleteRounds(tt.in)
		if len(got) != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
		b, _ := json.Marshal(got)
		if strings.Contains(string(b), "hm") || strings.Contains(string(b), "thinking") {
			t.Errorf("%s: thinking was kept: %s", tt.name, b)
		}
	}
}

func TestSessionCache(t *testing.T) {
	t.Parallel()
	h := newSessionCache(2)
	for _, s := range []string{"a", "b", "a", "c"} {
		if _, ok := h.get(s); !ok {
			h.put(s, sessionState{conversationRev: 1, recordRev: 2})
		}
	}
	for s, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, ok := h.get(s); ok != want {
			t.Errorf("%s: %v", s, ok)
		}
	}
	h.replaceOlder("a", subjects.Conversation{Summary: "old"}, 1)
	h.replaceOlder("a", subjects.Conversation{Summary: "new"}, 11)
	h.replaceOlder("b", subjects.Conversation{}, 12)
	if s, _ := h.get("a"); s.conversation.Summary != "new" || s.conversationRev != 11 || s.recordRev != 2 {
		t.Errorf("renewed: %+v", s)
	}
	h.remove("a")
	if _, ok := h.get("a"); ok || len(h.order) != 1 || len(h.entries) != 1 {
		t.Error("it was not dropped")
	}
}

// A process with an outdated session cache notices that another process went on with the session.
func TestTwoProcessesOneSession(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "Yes.")
	a, b := New(subjects.Generator, shippedConfig()), New(subjects.Generator, shippedConfig())
	for i, g := range []*Generator{a, b, b, a, a, b} {
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "Really?", 1); err != nil {
			t.Fatal(err)
		}
		if got := len(w.asked[i].Messages); got != 2+2*i {
			t.Errorf("question %d went with %d messages", i, got)
		}
	}
	if c := w.conversation("s1"); len(c.Turns) != 6 {
		t.Errorf("conversation: %+v", c)
	}
}

func TestMoreSessionsThanTheCacheHolds(t *testing.T) {
	t.Parallel()
	cfg := shippedConfig()
	cfg.HotSessions = 2
	w := newHarness(t, "Yes.")
	g := New(subjects.Generator, cfg)
	for i := range 12 {
		if err := w.ask(g, fmt.Sprint("s", i%4), fmt.Sprint("q", i), "Really?", 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if c := w.conversation(fmt.Sprint("s", i)); len(c.Turns) != 3 {
			t.Errorf("session %d: %+v", i, c)
		}
	}
	if n := len(g.sessions.entries); n != 2 {
		t.Errorf("%d sessions in memory", n)
	}
}
