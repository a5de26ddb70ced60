//go:build !race

package bus_test

// Without the race detector: NATS 2.15 writes the account of an import again in a reload, while a subscription reads it
// without a lock. It is the account that is there already, see [TestReloadImportsRunningAccounts].

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestSubscribeDuringReload shows that a subscription made while principals are added receives what its account
// imports.
func TestSubscribeDuringReload(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	const subject = "tool.output.q1"
	user := bustest.Dial(t, b, "user")
	added, client := make(chan struct{}), sync.WaitGroup{}
	var subs []*nats.Subscription
	client.Go(func() {
		for {
			s, err := user.SubscribeSync(subject)
			if err == nil {
				err = user.FlushTimeout(testTimeout)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if subs = append(subs, s); len(subs) > 100 {
				_ = subs[0].Unsubscribe()
				subs = subs[1:]
			}
			select {
			case <-added:
				return
			default:
			}
		}
	})
	for i := range 3 {
		addPrincipals(t, b, subjects.Principal{
			Name: fmt.Sprintf("tool-%d", i), Kind: subjects.ToolPrincipal,
			Tools: []string{fmt.Sprintf("x%d", i)},
		})
	}
	close(added)
	client.Wait()
	broker := bustest.Dial(t, b, "broker")
	if err := broker.Publish(subject, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for i, s := range subs {
		if _, err := s.NextMsg(testTimeout); err != nil {
			t.Fatalf("subscription %d of %d: %v", i+1, len(subs), err)
		}
	}
}
