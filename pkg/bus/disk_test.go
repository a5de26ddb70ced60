package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus/bustest"
)

// A disk that is full between two checks is noticed by the error of the server: the stream would store nothing until a
// restart.
func TestServerRestartsAfterFailedWrite(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	nc := b.Connect("user")
	again := make(chan struct{}, 1)
	nc.SetReconnectHandler(func(*nats.Conn) { again <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.Server.WatchDisk(ctx, 10*time.Millisecond)
	}()
	defer func() {
		cancel()
		<-stopped
	}()
	b.Server.LogServerError("Filestore [TURNS] Critical write error: write msgs/1.blk: no space left on device")
	select {
	case <-again:
	case <-time.After(testTimeout):
		t.Fatal("the server was not restarted")
	}
}
