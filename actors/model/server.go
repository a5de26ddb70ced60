package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/model"
)

const (
	infoTTL       = time.Minute      // of the cached properties of a model
	probeTTL      = time.Second      // of a failed search for Ollama, while the demo model answers
	probeTimeout  = 2 * time.Second  // of one search for Ollama
	lookupTimeout = 10 * time.Second // of one question about models
	maxModels     = 200              // of a server's list
)

// server is a backend with its queues and the cached properties of its models.
type server struct {
	name       string
	backend    model.Backend
	remoteHost string // host of another machine; "" = this machine
	large      *queue // chats
	small      *queue // chats with models that may run beside a large one
	embeddings *queue

	mu    sync.Mutex
	cache map[string]*cachedInfo // by the name of the model at the server
}

// newServer returns a server with empty queues and cache. Limits that are 0 in cfg have the defaults of this package;
// Anthropic and Google always count as remote.
func newServer(name string, cfg Server, b model.Backend) *server {
	newServerQueue := func(exclusive bool) *queue {
		q := newQueue(cmp.Or(cfg.Slots, defaultSlots), cmp.Or(cfg.Queue, defaultQueue), exclusive,
			cmp.Or(cfg.Batch, defaultBatch))
		q.ahead = cfg.Ahead
		return q
	}
	s := &server{
		name: name, backend: b, remoteHost: cfg.RemoteHost(), cache: map[string]*cachedInfo{},
		large: newServerQueue(cfg.Exclusive), small: newServerQueue(false), embeddings: newServerQueue(false),
	}
	if s.remoteHost == "" && (name == Anthropic || name == Google) {
		s.remoteHost = name // whatever the address is, these services run on another machine
	}
	return s
}

// setLimits changes the limits of all queues, for a machine that reports its own. The number of waiting requests stays.
func (s *server) setLimits(cfg Server) {
	for _, q := range []*queue{s.large, s.small, s.embeddings} {
		q.mu.Lock()
		q.slots, q.batch = cfg.Slots, cfg.Batch
		q.exclusive = cfg.Exclusive && q == s.large
		q.admit()
		q.mu.Unlock()
	}
}

// countRequests counts the requests that run or wait.
func (s *server) countRequests() (n int) {
	for _, q := range []*queue{s.large, s.small, s.embeddings} {
		q.mu.Lock()
		n += len(q.running)
		for _, waiting := range q.waiting {
			n += waiting
		}
		q.mu.Unlock()
	}
	return n
}

// askedModels returns the models that are asked by somebody who waits, now or since then. Embeddings do not count.
func (s *server) askedModels(since time.Time) (models []string) {
	for _, q := range []*queue{s.large, s.small} {
		q.mu.Lock()
		for _, e := range q.running {
			if e.priority == foreground {
				models = append(models, e.model)
			}
		}
		for name, ended := range q.ended {
			if ended.After(since) {
				models = append(models, name)
			}
		}
		q.mu.Unlock()
	}
	return models
}

// slotCount returns how many requests run at once.
func (q *queue) slotCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slots
}

// isExclusive reports whether two large models never run at once.
func (q *queue) isExclusive() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.exclusive
}

// cachedInfo is the properties of a model as its server reported them last.
type cachedInfo struct {
	lock    chan struct{} // held while the server is asked: the others wait for the same reply
	info    model.Info
	fetched time.Time // zero = not yet
}

// isFresh reports whether the properties can be used without asking the server.
func (c *cachedInfo) isFresh(now time.Time) bool {
	return !c.fetched.IsZero() && now.Sub(c.fetched) < infoTTL
}

// lookupInfo returns the properties of a model, from the cache or from the server. Concurrent calls for one model ask
// the server once and wait for the reply. Failures are not cached; no reply within lookupTimeout is
// [model.ErrUnreachable].
func (s *server) lookupInfo(ctx context.Context, backendName string, now time.Time) (model.Info, error) {
	s.mu.Lock()
	c := s.cache[backendName]
	if c == nil {
		c = &cachedInfo{lock: make(chan struct{}, 1)}
		s.cache[backendName] = c
	}
	if c.isFresh(now) {
		defer s.mu.Unlock()
		return c.info, nil
	}
	s.mu.Unlock()
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return model.Info{}, context.Cause(ctx)
	}
	s.mu.Lock()
	if c.isFresh(now) { // fetched while this call waited
		defer s.mu.Unlock()
		return c.info, nil
	}
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	info, err := s.backend.Show(bounded, backendName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.cache[backendName] == c { // unknown names must not fill the cache
			delete(s.cache, backendName)
		}
		if bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: timeout after %s when asked what %s can do", model.ErrUnreachable, lookupTimeout,
				backendName)
		}
		return model.Info{}, err
	}
	c.info, c.fetched = info, now
	s.cache[backendName] = c
	return info, nil
}

// close closes the backend, if it can be closed.
func (s *server) close() {
	if c, ok := s.backend.(interface{ Close() }); ok {
		c.Close()
	}
}

// dropCache makes the next lookupInfo of every model ask the server.
func (s *server) dropCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cache)
}

// listModels lists the models of the server, at most [maxModels]; it does not cache. Those without a valid name are
// left out. It waits for lookupTimeout at most.
func (s *server) listModels(ctx context.Context) ([]model.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	infos, err := s.backend.List(ctx)
	if err != nil {
		return nil, err
	}
	infos = slices.DeleteFunc(infos, func(i model.Info) bool { return checkName(i.Name) != nil })
	return infos[:min(len(infos), maxModels)], nil
}
