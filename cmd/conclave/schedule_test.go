package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// TestScheduleSurvivesKill: the process is killed again and again while a schedule of every minute is due. Each
// occurrence is asked at most once, the answers go on, and what was missed is made up once.
func TestScheduleSurvivesKill(t *testing.T) {
	t.Parallel()
	if os.Getenv("CONCLAVE_CHAOS") == "" {
		t.Skip("takes minutes: set CONCLAVE_CHAOS=1")
	}
	p := newInstallation(t)
	results := func() (out []scheduleResult) {
		if err := json.Unmarshal([]byte(p.run(0, "conclave", "schedule", "results", "--limit", "1000", "--json")),
			&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	up := p.begin("conclave", "up")
	p.must(up.stdout, `"pid"`)
	p.run(0, "conclave", "schedule", "add", "every 1m", "what time is it?", "--name", "clock", "--timezone", "UTC")
	begun := time.Now()
	kills := 0
	for ; time.Since(begun) < 6*time.Minute; kills++ {
		time.Sleep(time.Duration(rand.IntN(25_000)) * time.Millisecond) // the moment of the kill
		up.kill()
		up = p.begin("conclave", "up")
		p.must(up.stdout, `"pid"`)
	}
	for deadline := time.Now().Add(3 * time.Minute); len(results()) < 5; time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatalf("%d answers after %d kills", len(results()), kills)
		}
	}
	seen := map[string]bool{}
	for _, r := range results() {
		if seen[r.SessionID] {
			t.Errorf("%s was answered twice", r.SessionID)
		}
		seen[r.SessionID] = true
	}
	t.Logf("%d answers, %d kills", len(seen), kills)
}
