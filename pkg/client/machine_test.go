package client_test

import (
	"strings"
	"testing"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/client"
)

// TestWitnessProblem: a witness confirms the log only with a copy, without a conflict, and with a recent comparison.
func TestWitnessProblem(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	heads := []audit.KeptHead{{}}
	for name, tt := range map[string]struct {
		said client.Witnessed
		want string // "" = none
	}{
		"confirmed": {client.Witnessed{Heads: heads, Synced: now.Add(-time.Minute)}, ""},
		"conflict": {
			client.Witnessed{Heads: heads, Synced: now, Conflict: "record 7 differs"},
			"record 7 differs",
		},
		"no copy":            {client.Witnessed{Synced: now}, "no copy"},
		"never compared":     {client.Witnessed{Heads: heads}, "last comparison"},
		"compared yesterday": {client.Witnessed{Heads: heads, Synced: now.AddDate(0, 0, -1)}, "last comparison"},
		"in the future":      {client.Witnessed{Heads: heads, Synced: now.AddDate(0, 0, 1)}, "clock"},
	} {
		if got := tt.said.Problem(now); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
