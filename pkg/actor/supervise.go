package actor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/telemetry"
)

// Budget bounds restarts: Intensity within Period. Beyond it the actor stays down, and the other actors go on.
type Budget struct {
	Intensity int
	Period    time.Duration
}

// withDefaults returns b with 5 restarts within a minute for fields that are not positive.
func (b Budget) withDefaults() Budget {
	if b.Intensity <= 0 {
		b.Intensity = 5
	}
	if b.Period <= 0 {
		b.Period = time.Minute
	}
	return b
}

// State is the lifecycle state of an actor.
type State string

const (
	Starting   State = "starting"
	Ready      State = "ready"
	Restarting State = "restarting"
	Draining   State = "draining"
	Stopped    State = "stopped"
	Failed     State = "failed" // restart budget used up
)

// Health is the state of a supervised actor. It is safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	state    State
	restarts int
	last     error

	id    string           // of the counters, for those who add them up
	meter *telemetry.Meter // counts over all runs
}

// Snapshot returns the state, the number of restarts and the error of the last failure.
func (h *Health) Snapshot() (State, int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.restarts, h.last
}

// set changes the state. A nil err keeps the last failure; Restarting counts one restart.
func (h *Health) set(s State, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = s
	if err != nil {
		h.last = err
	}
	if s == Restarting {
		h.restarts++
	}
}

// Supervised is an actor that is restarted when it fails.
type Supervised struct {
	Spec   Spec
	Health Health

	cancel context.CancelFunc
	abort  chan struct{}
	again  chan chan error // requests of Restart
	done   chan struct{}
	err    error // of the last stop
}

// Supervise starts an actor and returns when it is ready, or with the error of its first start, which is not retried.
// Later failures cause restarts within [Config] Budget; when it is used up the actor stays down as Failed. ctx is for
// the start only: the actor runs until [Supervised.Stop], which must be called.
func Supervise(ctx context.Context, spec Spec, dial Dial, cfg Config) (*Supervised, error) {
	cfg = cfg.withDefaults()
	s := &Supervised{
		Spec: spec, Health: Health{id: NewID(), meter: telemetry.NewMeter()}, abort: make(chan struct{}),
		again: make(chan chan error), done: make(chan struct{}),
	}
	s.Health.set(Starting, nil)
	r, err := startActor(ctx, spec, dial, cfg, &s.Health)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	s.Health.set(Ready, nil)
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go s.superviseRuns(ctx, r, dial, cfg)
	return s, nil
}

// superviseRuns restarts the actor after a failure or an abort, with a backoff of 100 ms per recent failure, until ctx
// ends; then it drains r and sets s.err. A failed restart counts as a failure. When the budget is used up the state is
// Failed, and it only waits for ctx.
func (s *Supervised) superviseRuns(ctx context.Context, r *running, dial Dial, cfg Config) {
	defer close(s.done)
	log := cfg.Log.With("actor", s.Spec.Name)
	var falls []time.Time
	for {
		var cause error
		stopped := false // the run was shut down already
		select {
		case <-ctx.Done():
			s.Health.set(Draining, nil)
			s.err = r.shutDown(context.WithoutCancel(ctx))
			s.Health.set(Stopped, nil)
			return
		case cause = <-r.fail:
		case <-s.abort:
			cause = errAborted
			r.closeConnections()
		case reply := <-s.again:
			s.Health.set(Draining, nil)
			_ = r.shutDown(context.WithoutCancel(ctx))
			next, err := startActor(ctx, s.Spec, dial, cfg, &s.Health)
			if err == nil {
				r = next
				s.Health.set(Ready, nil)
				reply <- nil
				continue
			}
			reply <- fmt.Errorf("starting %s: %w", s.Spec.Name, err)
			cause, stopped = err, true
		}
		if !stopped {
			_ = r.shutDown(context.WithoutCancel(ctx))
		}
		for {
			now := time.Now()
			falls = append(falls, now)
			for len(falls) > 0 && now.Sub(falls[0]) > cfg.Budget.Period {
				falls = falls[1:]
			}
			if len(falls) > cfg.Budget.Intensity {
				log.Error("restart budget used up", "restarts", cfg.Budget.Intensity, "within", cfg.Budget.Period,
					"err", cause)
				s.Health.set(Failed, cause)
				<-ctx.Done()
				return
			}
			log.Warn("restarting", "err", cause)
			s.Health.set(Restarting, cause)
			select { // linear backoff
			case <-ctx.Done():
				s.Health.set(Stopped, nil)
				return
			case <-time.After(time.Duration(len(falls)) * 100 * time.Millisecond):
			}
			var err error
			if r, err = startActor(ctx, s.Spec, dial, cfg, &s.Health); err == nil {
				s.Health.set(Ready, nil)
				break
			}
			cause = err
		}
	}
}

// Stop drains the actor and waits until its connections are closed.
func (s *Supervised) Stop() error {
	s.cancel()
	<-s.done
	return s.err
}

// Restart drains the actor and starts it again by its [Spec], which may make it differently now; it does not count as a
// failure. It returns when the actor is ready, or with the error of the start: the supervisor then retries within the
// budget. An actor that has failed or stopped is not started.
func (s *Supervised) Restart(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case s.again <- reply:
	case <-s.done:
		return fmt.Errorf("restarting %s: it has stopped", s.Spec.Name)
	case <-ctx.Done():
		return fmt.Errorf("restarting %s: %w", s.Spec.Name, context.Cause(ctx))
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return fmt.Errorf("restarting %s: %w", s.Spec.Name, context.Cause(ctx))
	}
}

var errAborted = errors.New("aborted")

// Abort ends this run of the actor as if its process were killed: its connections first, so that no handler can
// publish, store or acknowledge anything, then its handlers. The supervisor restarts it. It blocks until a restarting
// actor runs again, and for a failed or draining one until it has stopped, when it aborts nothing. It is for crash
// tests and stories.
func (s *Supervised) Abort() {
	select {
	case s.abort <- struct{}{}:
	case <-s.done:
	}
}

// closeConnections closes the connections without draining and cancels the handlers.
func (r *running) closeConnections() {
	for _, nc := range []*nats.Conn{r.nc, r.pullNC} {
		if nc != nil {
			nc.Close()
		}
	}
	r.stop()
}

// System is a set of actors, started in order and stopped in reverse: a service stops after its clients.
type System struct {
	mu     sync.Mutex
	actors []*Supervised
}

// Start starts one more actor and returns when it is ready. An actor whose first start fails is not added.
func (h *System) Start(ctx context.Context, spec Spec, dial Dial, cfg Config) error {
	s, err := Supervise(ctx, spec, dial, cfg)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.actors = append(h.actors, s)
	return nil
}

// Actors lists the actors in the order of their start.
func (h *System) Actors() []*Supervised {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*Supervised(nil), h.actors...)
}

// Abort aborts the first actor of this name, see [Supervised.Abort], and does not wait for the restart that follows. It
// fails only when there is none of this name.
func (h *System) Abort(name string) error {
	for _, s := range h.Actors() {
		if s.Spec.Name == name {
			s.Abort()
			return nil
		}
	}
	return fmt.Errorf("no actor %s in this process", name)
}

// Restart restarts the actors of this name, see [Supervised.Restart], and reports whether there is one.
func (h *System) Restart(ctx context.Context, name string) (found bool, err error) {
	for _, s := range h.Actors() {
		if s.Spec.Name == name {
			found = true
			err = errors.Join(err, s.Restart(ctx))
		}
	}
	return found, err
}

// Stop drains all actors, last started first, one after the other, and joins their errors. A second call does nothing.
func (h *System) Stop() error {
	h.mu.Lock()
	actors := h.actors
	h.actors = nil
	h.mu.Unlock()
	var errs []error
	for i := len(actors) - 1; i >= 0; i-- {
		errs = append(errs, actors[i].Stop())
	}
	return errors.Join(errs...)
}
