package subjects

import (
	"slices"
	"strings"
	"testing"
)

// TestWatchedPayloads: docs/bus.md has the fields of every subject that is republished, on lines that fit.
func TestWatchedPayloads(t *testing.T) {
	t.Parallel()
	all := watchedPayloads()
	for _, subject := range republished {
		if !slices.ContainsFunc(all, func(p payload) bool { return p.subject == subject }) {
			t.Errorf("%s has no payload", subject)
		}
	}
	for _, p := range all {
		if len(p.fields()) == 0 {
			t.Errorf("%s has no fields", p.subject)
		}
	}
	var b strings.Builder
	writePayloads(&b)
	if want := "- `query.received`, `query.committee`, `query.task`: `session_id`, `query_id`, "; !strings.Contains(
		b.String(), want) {
		t.Errorf("%q is not in\n%s", want, b.String())
	}
	for line := range strings.Lines(b.String()) {
		if len(strings.TrimSuffix(line, "\n")) > maxDocWidth {
			t.Errorf("too long: %s", line)
		}
	}
}
