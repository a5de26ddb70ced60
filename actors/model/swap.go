package model

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/model"
)

// The server decides which models stay loaded. Only what it was seen to do is held against a model: when a background
// call or an embedding made it unload a model that shall stay loaded, the next question has to load that one again.
// Such a model is not used in the background for [swapRetry], as long as exclusive is set for the server and the model
// is not loaded anyway.

// swap is a model that was unloaded for another one.
type swap struct {
	unloaded string
	at       time.Time
}

// swaps holds the last swap that each model caused, by its key.
type swaps struct {
	mu   sync.Mutex
	seen map[string]swap
}

// swapRetry is the time after which a model that caused a swap is used again: the server may have more memory then, or
// other settings.
const swapRetry = time.Hour

// checkSwap denies, with [model.ErrSwap], a background call or an embedding with a model that made its server unload
// one that shall stay loaded.
func (m *Model) checkSwap(ctx context.Context, t target) error {
	m.swaps.mu.Lock()
	s, seen := m.swaps.seen[t.key()]
	m.swaps.mu.Unlock()
	if !seen || time.Since(s.at) > swapRetry || !t.server.large.isExclusive() || t.isLoaded(ctx) {
		return nil
	}
	return fmt.Errorf("%w: at %s the server unloaded %s to load %s, so that the next question had to wait for it; %s "+
		"is left out for %s after that. If there is memory for both, set OLLAMA_MAX_LOADED_MODELS to 2 or more and "+
		"restart Ollama; exclusive: false in models.yaml accepts the wait", model.ErrSwap, s.at.Format(time.TimeOnly),
		s.unloaded, t.name, t.name, swapRetry)
}

// watchSwap runs a background call or an embedding and notes when it made the server unload a model that shall stay
// loaded. Beside a question to yet another model nothing is noted: that may have been the cause.
func (m *Model) watchSwap(ctx context.Context, t target, work func() error) error {
	if !t.server.large.isExclusive() {
		return work() // swaps are accepted
	}
	begun := time.Now()
	before, _ := t.listLoaded(ctx)
	kept := slices.DeleteFunc(before, func(name string) bool { return !m.isKept(t, name) })
	err := work()
	if slices.ContainsFunc(t.server.askedModels(begun), func(name string) bool {
		isSame := func(other string) bool { return trimLatest(other) == trimLatest(name) }
		return !isSame(t.backendName) && !slices.ContainsFunc(kept, isSame)
	}) {
		return err
	}
	after, listErr := t.listLoaded(context.WithoutCancel(ctx))
	if unloaded := m.findUnloaded(t, kept, after, err == nil); listErr == nil && unloaded != "" {
		m.swaps.mu.Lock()
		m.swaps.seen[t.key()] = swap{unloaded, time.Now()}
		m.swaps.mu.Unlock()
	}
	return err
}

// findUnloaded returns the model that the server unloaded for t, "" when it unloaded none: one of kept, which were
// loaded before the call, that is missing after it. A question may have loaded that one again meanwhile. So when only
// models that shall stay are loaded after a call that succeeded, and t is not, one of them has taken its place.
func (m *Model) findUnloaded(t target, kept, after []string, succeeded bool) string {
	for _, name := range kept {
		if !slices.Contains(after, name) {
			return name
		}
	}
	keep, _ := time.ParseDuration(t.opts.KeepAlive)
	stays := t.opts.KeepAlive == "-1" || keep >= time.Minute
	if succeeded && stays && len(after) > 0 &&
		!slices.ContainsFunc(after, func(name string) bool { return !m.isKept(t, name) }) {
		return after[0]
	}
	return ""
}

// isKept reports whether a model other than t shall stay loaded.
func (m *Model) isKept(t target, name string) bool {
	return trimLatest(name) != trimLatest(t.backendName) && m.cfg.OptionsFor(name).KeepAlive == "-1"
}

// isLoaded reports whether the server of t says that the model is loaded.
func (t target) isLoaded(ctx context.Context) bool {
	loaded, _ := t.listLoaded(ctx)
	return slices.ContainsFunc(loaded, func(name string) bool { return trimLatest(name) == trimLatest(t.backendName) })
}

// listLoaded asks the server which models are loaded. It fails where the server does not report that.
func (t target) listLoaded(ctx context.Context) ([]string, error) {
	lister, ok := t.server.backend.(model.LoadLister)
	if !ok {
		return nil, model.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return lister.Loaded(ctx)
}
