package actor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestSenderCannotUseUpDeadLetters: the dead letters about the malformed messages of one account leave room for those
// about another.
func TestSenderCannotUseUpDeadLetters(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, "broker", actor.Config{}, actor.Serve(subjects.ToolRequestService, echoArgs))
	user := b.Connect("user")
	letters := make(chan subjects.DeadLetter, 2*subjects.MaxDeadLetters)
	if _, err := user.Subscribe("dead.broker", func(m *nats.Msg) {
		var d subjects.DeadLetter
		if err := json.Unmarshal(m.Data, &d); err != nil {
			t.Error(err)
		}
		letters <- d
	}); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	// reject sends a malformed request and waits until it is rejected.
	reject := func(nc *nats.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		if _, err := nc.RequestWithContext(ctx, "tool.request.x", []byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	flooding := b.Connect("generator")
	for range subjects.MaxDeadLetters + 1 {
		reject(flooding)
	}
	reject(b.Connect("committee"))
	for n := 0; ; n++ {
		select {
		case d := <-letters:
			if d.Subject == "agent.committee.tool.request.x" {
				if n < 100 {
					t.Errorf("only %d letters about the first sender", n)
				}
				return
			}
		case <-time.After(timeout):
			t.Fatalf("%d letters, none about the second sender", n)
		}
	}
}

// TestSharesLeaveRoomForOthers: five accounts that each use all they get, one after the other, still leave something
// for a sixth, and a day later everything is there again.
func TestSharesLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := actor.Shares{Quota: 6400}
	use := func(account string, weight int64) (n int) {
		for s.Admit(account, "", 1, weight, now) {
			n++
		}
		return n
	}
	for _, tt := range []struct {
		account string
		weight  int64
		want    int
	}{
		{"generator", 4, 1280}, // refused calls: a fifth
		{"generator", 1, 2560}, // half of the rest, although its refusals have used theirs up
		{"generator", 4, 0},
		{"committee", 1, 1280},
		{"orchestrator", 1, 640},
		{"respondent_b", 1, 320},
		{"operator", 1, 160},
	} {
		if got := use(tt.account, tt.weight); got != tt.want {
			t.Errorf("%s with weight %d used %d, want %d", tt.account, tt.weight, got, tt.want)
		}
	}
	now = now.Add(23 * time.Hour)
	if n := use("generator", 1); n != 0 {
		t.Errorf("%d more within the day", n)
	}
	now = now.Add(2 * time.Hour)
	if n := use("generator", 1); n != 3200 {
		t.Errorf("a day later %d, want 3200", n)
	}
	s = actor.Shares{Quota: 6400}
	for i, want := range []int{640, 512, 409} { // a tenth of the rest each
		n := 0
		for s.Admit("generator", fmt.Sprint("q", i), 1, 1, now) {
			n++
		}
		if n != want {
			t.Errorf("question %d used %d, want %d", i, n, want)
		}
	}
	if (&actor.Shares{}).Admit("generator", "", 1, 1, now) {
		t.Error("the zero value admits")
	}
}
