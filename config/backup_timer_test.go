package config

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestBackupTimer: a backup is made ten minutes after the start, after a quiet minute or an hour of waiting for one, a
// day after the newest, and an hour after one that failed.
func TestBackupTimer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		newest time.Duration // before the start; 0 = none
		busy   time.Duration // from the start on, in which messages are stored all the time
		fails  int           // of the first attempts
		want   []time.Duration
	}{
		{"without a backup", 0, 0, 0, []time.Duration{11 * time.Minute, 24*time.Hour + 12*time.Minute}},
		{"a recent backup", 23 * time.Hour, 0, 0, []time.Duration{61 * time.Minute, 25*time.Hour + 2*time.Minute}},
		{"an old backup", 100 * time.Hour, 0, 0, []time.Duration{11 * time.Minute, 24*time.Hour + 12*time.Minute}},
		{
			"busy for half an hour", 0, 30 * time.Minute, 0,
			[]time.Duration{31 * time.Minute, 24*time.Hour + 32*time.Minute},
		},
		{"always busy", 0, 48 * time.Hour, 0, []time.Duration{70 * time.Minute, 26*time.Hour + 10*time.Minute}},
		{"a failure", 0, 0, 1, []time.Duration{11 * time.Minute, 72 * time.Minute, 25*time.Hour + 13*time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, newest, fails := time.Now(), time.Time{}, tt.fails
				if tt.newest > 0 {
					newest = began.Add(-tt.newest)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Hour)
				defer cancel()
				var made []time.Duration
				backupTimer{
					every: 24 * time.Hour, newest: func() time.Time { return newest },
					stored: func() int64 { return int64(min(time.Since(began), tt.busy) / time.Second) },
					make: func(context.Context) bool {
						made = append(made, time.Since(began))
						if fails--; fails >= 0 {
							return false
						}
						newest = time.Now()
						return true
					},
				}.run(ctx)
				if !slices.Equal(made, tt.want) {
					t.Errorf("made after %v, want %v", made, tt.want)
				}
			})
		})
	}
}
