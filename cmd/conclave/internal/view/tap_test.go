package view

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
)

// TestEventIsOneReadableLine: an event is a line of at most the terminal's width, whatever it contains.
func TestEventIsOneReadableLine(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	for _, tt := range []struct{ subject, from, body, want string }{
		{"query.received", "", `"plain\nwords"`, "-           3f9c01d2 query.received plain words"},
		{"tool.result.x", "broker", `{"result":"one\r\ntwo\n\tthree\rfour"}`, "broker      3f9c01d2 tool.result.x " +
			"one two three�four"},
		{"query.received", "user", `{"query":"What now?"}`, "user        3f9c01d2 query.received What now?"},
		{"response.thinking.3f9c01d2aa", "", `{"text":"let me see"}`, "-           3f9c01d2 response.thinking ~ let " +
			"me see"},
		{
			"response.generation", "generator", `{"answer":"Paris","thinking":"x","tool_calls":[{},{}]}`,
			"generator   3f9c01d2 response.generation [thought] [2 tool call...",
		},
		{"agent.state.generator", "generator", `{"from":"IDLE","to":"RECEIVING"}`, "generator   3f9c01d2 " +
			"agent.state.generator IDLE -> RECEIVING"},
		{"tool.result.x", "broker", `{"error":{"code":"denied","text":"no\u001b[2J"}}`, "broker      3f9c01d2 " +
			"tool.result.x denied: no�[2J"},
		{"critique.result", "critic", `{"score":4,"feedback":"clear"}`, "critic      3f9c01d2 critique.result 4 of " +
			"5: clear"},
		{"other.thing", "x", `{"a":1}`, `x           3f9c01d2 other.thing {"a":1}`},
	} {
		var b strings.Builder
		Event(term.Sized(&b, 80), client.Event{
			Time: at, Subject: tt.subject, From: tt.from,
			Query: "3f9c01d2aa", Body: json.RawMessage(tt.body),
		})
		plain := strings.NewReplacer("\x1b[0m", "").Replace(b.String())
		for _, c := range subjectColours {
			plain = strings.ReplaceAll(plain, "\x1b["+c+"m", "")
		}
		if want := "03:04:05.000 " + tt.want + "\n"; plain != want {
			t.Errorf("%q, want %q", plain, want)
		}
		if w := term.Width(strings.TrimSuffix(plain, "\n")); w > 80 {
			t.Errorf("%d columns: %q", w, plain)
		}
	}
}
