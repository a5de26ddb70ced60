package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A limited context is in every way what the standard library makes, whatever is asked of it and when.
func TestLimitedIsADeadline(t *testing.T) {
	t.Parallel()
	cause := errors.New("late")
	type key struct{}
	ends := map[string]func(stop, cancel func()){
		"time":   func(_, _ func()) { time.Sleep(time.Minute) },
		"cancel": func(_, cancel func()) { cancel() },
		"parent": func(stop, _ func()) { stop() },
		"both":   func(stop, cancel func()) { cancel(); stop(); time.Sleep(time.Minute) },
	}
	for _, touched := range []string{"nothing", "done", "err", "child", "value"} {
		for name, end := range ends {
			synctest.Test(t, func(t *testing.T) {
				look := func(ours bool) (saw [8]any) {
					parent, stop := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
					defer stop(nil)
					var ctx context.Context
					var cancel func()
					if ours {
						l := limit(parent, time.Now().Add(time.Minute), cause)
						ctx, cancel = l, l.end
					} else {
						ctx, cancel = context.WithTimeoutCause(parent, time.Minute, cause)
					}
					defer cancel()
					at, ok := ctx.Deadline()
					saw[0], saw[1] = time.Until(at), ok
					child := ctx
					switch touched {
					case "done":
						ctx.Done()
					case "err":
						saw[2] = ctx.Err()
					case "child":
						c, drop := context.WithCancel(ctx)
						defer drop()
						child = c
					case "value":
						saw[2] = ctx.Value(key{})
					}
					end(func() { stop(errors.ErrUnsupported) }, cancel)
					synctest.Wait()
					saw[3], saw[4], saw[5] = ctx.Err(), context.Cause(ctx), child.Err()
					select {
					case <-child.Done():
						saw[6] = context.Cause(child)
					default:
						saw[6] = "not ended"
					}
					saw[7] = ctx.Value(key{})
					return saw
				}
				if got, want := look(true), look(false); got != want {
					t.Errorf("ended by %s, asked for %s before: %v, want %v", name, touched, got, want)
				}
			})
		}
	}
}

// What nobody waits for needs no timer: one piece of memory.
func TestLimitedIsCheap(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		l := limit(context.Background(), time.Now().Add(time.Minute), errCallTimeout)
		if l.Err() != nil || l.Value(0) != nil {
			t.Error("it ended")
		}
		l.end()
	}); n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}
