package client_test

import (
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/client"
	"conclave/subjects"
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

// TestWitnessIsAskedAgain: a request to a witness that gets no reply is repeated, and any other error is not.
func TestWitnessIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code  string // of every reply but the third
		asked int
		ok    bool
	}{
		"lost twice":  {subjects.CodeTimeout, 3, true},
		"unavailable": {subjects.CodeUnavailable, 1, false},
	} {
		asked := 0
		rec := &actortest.Recorder{Reply: func(string, []byte) (any, error) {
			if asked++; asked < 3 {
				return nil, subjects.Faultf(tt.code, "no reply")
			}
			return subjects.WitnessHeads{Conflict: "record 7 differs"}, nil
		}}
		got, err := client.Wrap(rec.Out()).WitnessHeads(t.Context(), "gpu-box")
		if (err == nil) != tt.ok || (got.Conflict != "") != tt.ok || asked != tt.asked {
			t.Errorf("%s: %+v, %v after %d requests", name, got, err, asked)
		}
	}
}
