package bus_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
)

// TestPause pauses a server: what an in-process client publishes arrives after the pause and not before, and nothing
// fails. A client over TCP is not paused.
func TestPause(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	inside := b.Connect("user")
	remote := &bus.Bus{URL: b.URL, Keys: b.Keys, TCP: true}
	outside, err := remote.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	ask := func(nc *nats.Conn) error {
		_, err := nc.Request("query.received", []byte("hello"), time.Minute)
		return err
	}
	resume := b.Server.Pause(time.Hour)
	replied := make(chan error, 1)
	go func() { replied <- ask(inside) }()
	for range 20 { // each is a round trip through the server and its store
		if err := ask(outside); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-replied:
		t.Errorf("a paused client was served: %v", err)
	default:
	}
	if !resume() {
		t.Error("the pause ended by itself")
	}
	if err := <-replied; err != nil {
		t.Errorf("a request that began during the pause: %v", err)
	}
	expired := b.Server.Pause(time.Millisecond)
	if err := ask(inside); err != nil {
		t.Error(err)
	}
	if expired() {
		t.Error("the pause did not end by itself")
	}
}
