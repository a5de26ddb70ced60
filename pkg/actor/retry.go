package actor

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// A request without a responder is repeated noResponderRetries times, noResponderWait apart: no service received it. A
// responder that forges this reply gets the request again, which it could have repeated by itself. While the server
// reloads its configuration, an account has no imports for a fraction of a millisecond, and every request in that time
// has no responder.
const (
	noResponderRetries = 3
	noResponderWait    = 20 * time.Millisecond
)

// retryNoResponders calls request, and repeats it while it fails because no service received it. It returns the last
// error, also when ctx ends while it waits.
func retryNoResponders[T any](ctx context.Context, request func() (T, error)) (T, error) {
	for n := 0; ; n++ {
		v, err := request()
		if n == noResponderRetries || !errors.Is(err, nats.ErrNoResponders) || !waitNoResponders(ctx) {
			return v, err
		}
	}
}

// waitNoResponders waits before the next attempt. It reports false when ctx ends first.
func waitNoResponders(ctx context.Context) bool {
	t := time.NewTimer(noResponderWait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
