package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// A server with room for one model unloads the model that answers when an embedding is requested, and loads it again
// for the next answer: two loads for each question, which the user waits for. So an embedding never unloads a chat
// model while one is in use: until it is known that both stay loaded, the request is refused with [model.ErrSwap], and
// memory works by words. What the server does is observed, since no server reports its limit:
//
//   - Both are loaded: they fit.
//   - No chat model is loaded: the embedding model is loaded, which unloads none. If it is gone when a chat model is
//     loaded
//     next, they do not fit.
//   - Only the chat model is loaded, and nothing is known: one request that no user waits for is let through after an
//     idle
//     delay. If it unloads the chat model, they do not fit, and that one is loaded again at once.

// beside is whether an embedding model stays loaded beside a chat model.
type beside struct {
	Other string    `json:"other"` // the chat model
	Fits  bool      `json:"fits"`
	Seen  time.Time `json:"seen"`
}

// isStale reports whether models that did not fit are tried again: the server may have been configured anew.
func (b beside) isStale(now time.Time) bool { return !b.Fits && now.Sub(b.Seen) > residencyRetry }

// residencyRetry is the time after which models that did not fit together are tried together again, once.
const residencyRetry = 24 * time.Hour

// residencyDelay is the time without a foreground request after which an embedding may unload a chat model, once.
const residencyDelay = time.Minute

// checkResidency refuses, with [model.ErrSwap], an embedding that would unload a chat model. displaced is the chat
// model that the request may unload all the same: the caller calls [Model.observeResidency] with it afterwards; "" =
// none.
func (m *Model) checkResidency(ctx context.Context, t target, task string, now time.Time) (displaced string,
	err error,
) {
	loaded, other, ok := t.loadedModels(ctx)
	if !ok {
		return "", nil
	}
	known := m.meter.of(t.name).Beside
	if known != nil && known.isStale(now) {
		known = nil
	}
	evicted := t.server.embedderUsed.Load() && t.opts.KeepAlive == "-1" && !loaded
	switch {
	case other == "":
		return "", nil
	case loaded:
		m.noteResidency(t, other, true, now)
		return "", nil
	case evicted:
		m.noteResidency(t, other, false, now)
	case known != nil && known.Other == trimLatest(other) && known.Fits:
		return other, nil
	case known != nil && known.Other == trimLatest(other):
	case task == subjects.EmbedDocument && t.server.untilIdle(residencyDelay) == 0:
		return other, nil
	default:
		return "", fmt.Errorf("%w: it is not known yet whether %s stays loaded beside %s; that is tried when no "+
			"question was asked for %s",
			model.ErrSwap, t.name, other, residencyDelay)
	}
	return "", fmt.Errorf("%w: %s", model.ErrSwap, describeSwap(t.name, other))
}

// describeSwap says why an embedding model is not used, and what to do.
func describeSwap(name, other string) string {
	return fmt.Sprintf("the server does not keep %s loaded beside %s, and would load one of them again for each "+
		"question, so that memory is searched by words only; "+
		"if both fit into memory, set OLLAMA_MAX_LOADED_MODELS to 2 or more and restart Ollama", name, other)
}

// observeResidency notes whether a chat model is still loaded after an embedding, and has it loaded again if it is not.
func (m *Model) observeResidency(ctx context.Context, t target, displaced string, now time.Time) {
	loaded, other, ok := t.loadedModels(ctx)
	if !ok || !loaded {
		return
	}
	fits := other != ""
	m.noteResidency(t, displaced, fits, now)
	if !fits {
		m.startTask(func(ctx context.Context, out actor.Out) error {
			return m.loadModel(ctx, out, t.server, displaced)
		})
	}
}

// noteResidency keeps what was observed. The time of a verdict that stays the same is renewed only when it is stale.
func (m *Model) noteResidency(t target, other string, fits bool, now time.Time) {
	t.server.embedderUsed.Store(fits)
	m.meter.update(t.name, func(v *measured) {
		if old, name := v.Beside, trimLatest(other); old == nil || old.Other != name || old.Fits != fits ||
			old.isStale(now) {
			v.Beside = &beside{name, fits, now}
		}
	})
}

// loadModel loads a chat model of a server, by a request without messages. It waits while foreground requests run. It
// refuses a name that means a model of another server or one that runs on another machine.
func (m *Model) loadModel(ctx context.Context, out actor.Out, from *server, name string) error {
	t, err := m.findLocal(ctx, name, out.Now())
	switch {
	case err != nil:
		return fmt.Errorf("loading %s again: %w", name, err)
	case t.server != from || isRemote(t.backendName, t.server.remoteHost) || t.info.Remote != "":
		return fmt.Errorf("loading %s again: the name belongs to a model of another server", name)
	}
	r, err := t.buildRequest(model.Request{})
	if err != nil {
		return err
	}
	_, err = m.runOwnChat(ctx, out, t, r)
	return err
}

// loadedModels reports whether an embedding model is loaded, and the other model that was used last, "" = none. ok is
// false where that is not known: the server does not report it or cannot be reached.
func (t target) loadedModels(ctx context.Context) (loaded bool, other string, ok bool) {
	lister, ok := t.server.backend.(model.LoadLister)
	if !ok {
		return false, "", false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	names, err := lister.Loaded(ctx)
	if err != nil {
		return false, "", false
	}
	isEmbedder := func(name string) bool { return trimLatest(name) == trimLatest(t.backendName) }
	for _, name := range names {
		if !isEmbedder(name) {
			other = name
			break
		}
	}
	return slices.ContainsFunc(names, isEmbedder), other, true
}

// untilIdle returns how long no request of a user must still arrive, until the last one left delay ago; 0 = it is so.
// While one runs or waits it is delay.
func (s *server) untilIdle(delay time.Duration) (remaining time.Duration) {
	for _, q := range []*queue{s.large, s.small} {
		q.mu.Lock()
		if remaining = max(remaining, q.remainingDelay(lowest, delay)); q.waiting[foreground] > 0 {
			remaining = delay
		}
		q.mu.Unlock()
	}
	return remaining
}
