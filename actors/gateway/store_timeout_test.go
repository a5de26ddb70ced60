package gateway_test

import (
	"testing"
	"time"

	"conclave/actors/gateway"
)

// TestStoreTimeout: in a cluster a question is stored again for as long as an election takes, otherwise a client learns
// soon that the bus is down.
func TestStoreTimeout(t *testing.T) {
	t.Parallel()
	for servers, want := range map[int]time.Duration{1: 2 * time.Second, 3: 18 * time.Second} {
		g := gateway.New(defaultConfig(gateway.Config{}), links(servers))
		if got := gateway.StoreTimeout(g); got > want || got < want-time.Second {
			t.Errorf("with %d servers %s, want %s", servers, got, want)
		}
	}
}

// links is a connection to a bus of so many servers.
type links int

func (n links) IsConnected() bool { return true }
func (n links) Servers() []string { return make([]string, n) }
