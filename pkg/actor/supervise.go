package actor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Budget is how often an actor may be restarted: Intensity times within Period. Beyond it the actor stays down and the
// rest of the system goes on.
type Budget struct {
	Intensity int
	Period    time.Duration
}

func (b Budget) withDefaults() Budget {
	if b.Intensity <= 0 {
		b.Intensity = 5
	}
	if b.Period <= 0 {
		b.Period = time.Minute
	}
	return b
}

// State of an actor.
type State string

const (
	Starting   State = "starting"
	Ready      State = "ready"
	Restarting State = "restarting"
	Draining   State = "draining"
	Stopped    State = "stopped"
	Failed     State = "failed" // out of budget
)

// Health is what the supervisor knows of an actor.
type Health struct {
	mu       sync.Mutex
	state    State
	restarts int
	last     error
}

// Snapshot returns the state, how often the actor was restarted, and why last.
func (h *Health) Snapshot() (State, int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.restarts, h.last
}

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

// Supervised is an actor that is started again when it fails.
type Supervised struct {
	Spec   Spec
	Health Health

	cancel context.CancelFunc
	abort  chan struct{}
	done   chan struct{}
	err    error // of the last stop
}

// Supervise starts an actor and returns when it is ready, or with the error of its first start. Later failures are met
// with a restart while the budget lasts. It runs until [Supervised.Stop].
func Supervise(ctx context.Context, spec Spec, dial Dial, cfg Config) (*Supervised, error) {
	cfg = cfg.withDefaults()
	s := &Supervised{Spec: spec, abort: make(chan struct{}), done: make(chan struct{})}
	s.Health.set(Starting, nil)
	r, err := launch(ctx, spec, dial, cfg, &s.Health)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	s.Health.set(Ready, nil)
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go s.watch(ctx, r, dial, cfg)
	return s, nil
}

// watch waits for the actor to fail or to be stopped.
func (s *Supervised) watch(ctx context.Context, r *running, dial Dial, cfg Config) {
	defer close(s.done)
	log := cfg.Log.With("actor", s.Spec.Name)
	var falls []time.Time
	for {
		var cause error
		select {
		case <-ctx.Done():
			s.Health.set(Draining, nil)
			s.err = r.halt(context.WithoutCancel(ctx))
			s.Health.set(Stopped, nil)
			return
		case cause = <-r.fail:
		case <-s.abort:
			cause = errAborted
			r.sever()
		}
		_ = r.halt(context.WithoutCancel(ctx))
		for {
			now := time.Now()
			falls = append(falls, now)
			for len(falls) > 0 && now.Sub(falls[0]) > cfg.Budget.Period {
				falls = falls[1:]
			}
			if len(falls) > cfg.Budget.Intensity {
				log.Error("given up", "restarts", cfg.Budget.Intensity, "within", cfg.Budget.Period, "err", cause)
				s.Health.set(Failed, cause)
				<-ctx.Done()
				return
			}
			log.Warn("restarting", "err", cause)
			s.Health.set(Restarting, cause)
			select { // a little longer each time: what failed at once will fail at once again
			case <-ctx.Done():
				s.Health.set(Stopped, nil)
				return
			case <-time.After(time.Duration(len(falls)) * 100 * time.Millisecond):
			}
			var err error
			if r, err = launch(ctx, s.Spec, dial, cfg, &s.Health); err == nil {
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

var errAborted = errors.New("it was cut off")

// Abort ends this life of the actor as if its process were killed: its connections first, so that no handler can say,
// store or acknowledge anything any more, then its handlers. The supervisor starts it anew. It is for tests and stories
// of crashes.
func (s *Supervised) Abort() {
	select {
	case s.abort <- struct{}{}:
	case <-s.done:
	}
}

// sever closes the connections without a word.
func (r *running) sever() {
	for _, nc := range []*nats.Conn{r.nc, r.pullNC} {
		if nc != nil {
			nc.Close()
		}
	}
	r.stop()
}

// System is several actors, started in order and stopped in the opposite one: whoever is asked leaves after whoever asks.
type System struct {
	mu     sync.Mutex
	actors []*Supervised
}

// Start starts one more actor.
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

// Actors lists who lives here.
func (h *System) Actors() []*Supervised {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*Supervised(nil), h.actors...)
}

// Abort cuts off the actor of this name: see [Supervised.Abort].
func (h *System) Abort(name string) error {
	for _, s := range h.Actors() {
		if s.Spec.Name == name {
			s.Abort()
			return nil
		}
	}
	return fmt.Errorf("no actor %s lives here", name)
}

// Stop stops all, last started first.
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
