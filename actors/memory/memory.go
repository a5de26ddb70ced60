// Package memory keeps what was said and learned, and finds it again.
//
// It listens on response.generation, critique.result, pairwise.result and reward.event, which come from the event stream
// one by one and wait there while it is away; on tool.request.{search_memory, save_memory, search_knowledge_graph}, which
// only the broker reaches; and on memory.{query, write, correlated, admin}, which only the user reaches. It speaks on
// memory.{stored, annotated, recalled} and tool.schema.*.
//
// DuckDB is the system of record (package store). What a recall needs is in memory beside it (package recall), built at
// the start and kept in step with each write. What a small model makes of a text, and what plain code does without one, is
// in package digest.
package memory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// name is the actor's.
const name = "memory"

// defaultDims is the size of a vector as long as no model has made one.
const defaultDims = 768

// Audit stores a record. It returns nil only when the record is acknowledged.
type Audit interface {
	Append(ctx context.Context, rec subjects.AuditRecord) error
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a request.
type Hasher interface{ Hash(params []byte) string }

// Memory is the actor.
type Memory struct {
	cfg         Config
	unaudited   *store.Store
	unavailable *subjects.Fault // why there is no database; every request is answered with it
	disabled    bool            // the user does not want it: what is said meanwhile is not kept later either
	audit       Audit
	hash        Hasher
	cache       *recall.Cache // nil = none

	// search is what is searched: vectors of one model. Whoever writes holds it for reading while the index follows what
	// was stored; whoever changes it for that of another model holds it for writing.
	search struct {
		sync.RWMutex
		index *recall.Recall
		model string
		dims  int
		bad   []uint64               // rows whose vectors cannot be used: they are made anew
		near  store.ApproximateIndex // nil = every search is exact; see ready
	}

	approximateReady atomic.Bool          // the approximate index knows everything
	started          atomic.Bool          // it runs, so what fails for a while is tried again
	deferred         map[string]time.Time // entries that the embedding model refuses, until when; the one who catches up has it

	indexMu        sync.Mutex // the index takes one step at a time: what was read before a write must not be put after it
	editMu         sync.Mutex // one hand at a time changes what is there; nobody is asked anything meanwhile
	importMu       sync.Mutex // one message of a document at a time
	decisionMu     sync.Mutex // one decision upon proposals at a time
	stopBackground context.CancelFunc
	background     sync.WaitGroup
	backfillWake   chan struct{} // there are entries without vectors
	now            func() time.Time
}

// newMemory returns a memory on an open database. cfg must be valid. The index is built here: when New returns, everything that
// has vectors is found.
func newMemory(ctx context.Context, cfg Config, db *store.Store, a Audit, h Hasher, now func() time.Time) (*Memory, error) {
	m := &Memory{cfg: cfg, unaudited: db, audit: a, hash: h, backfillWake: make(chan struct{}, 1), now: now}
	if cfg.Cache.Entries > 0 {
		m.cache = recall.NewCache(recall.CacheOptions{
			Max: cfg.Cache.Entries, Near: float64(cfg.Cache.Near) / 100,
			TTL: map[string]time.Duration{subjects.KindEngram: cfg.Cache.Engram, subjects.KindFact: cfg.Cache.Fact, subjects.KindDocument: cfg.Cache.Document},
		}, now)
	}
	stats, err := db.Stats(ctx)
	if err != nil {
		return nil, err
	}
	dims := stats.Dims
	if dims == 0 {
		dims = defaultDims
	}
	if err := m.switchIndex(ctx, stats.Model, dims); err != nil {
		return nil, err
	}
	return m, nil
}

// Open opens the database below the data folder and returns a memory on it. When that fails the memory is shut: everything
// else goes on, and what there is to be remembered waits in the event stream.
func Open(ctx context.Context, cfg Config, data string, a Audit, h Hasher) *Memory {
	if !cfg.Enabled {
		m := newUnavailable(errors.New("it is switched off in memory.yaml"), a, h)
		m.disabled = true
		return m
	}
	o := store.Options{MemoryLimit: strconv.FormatInt(int64(cfg.Limit), 10) + "B", VSS: cfg.VSS, Now: time.Now}
	db, err := store.Open(ctx, DatabaseFile(data), o)
	if err != nil {
		return newUnavailable(err, a, h)
	}
	if left, err := db.NeedsRewrite(ctx); err == nil && left { // the last stop had no time to write a large file anew
		if err = db.Close(ctx); err == nil {
			db, err = store.Open(ctx, DatabaseFile(data), o)
		}
		if err != nil {
			return newUnavailable(err, a, h)
		}
	}
	m, err := newMemory(ctx, cfg, db, a, h, time.Now)
	if err != nil {
		return newUnavailable(errors.Join(err, db.Close(ctx)), a, h)
	}
	return m
}

// newUnavailable returns a memory without a database, for the reason given. It takes no events, so that they wait in the stream, and
// tells everybody why.
func newUnavailable(why error, a Audit, h Hasher) *Memory {
	return &Memory{unavailable: subjects.Faultf(subjects.CodeUnavailable, "memory is shut: %v", why), audit: a, hash: h, now: time.Now}
}

// Name implements [actor.Actor].
func (m *Memory) Name() string { return name }

// Routes implements [actor.Actor].
func (m *Memory) Routes() []actor.Route {
	people := []actor.Route{
		actor.ServeStream(subjects.MemoryQueryService, m.onRecall, actor.OnReject(m.onUnreadable(actRead))),
		actor.Serve(subjects.MemoryCorrelated, m.onCorrelated, actor.OnReject(m.onUnreadable(actRead))),
		actor.Serve(subjects.MemoryWriteService, m.onWrite, actor.OnReject(m.onUnreadable(actWrite))),
		actor.Serve(subjects.MemoryAdminService, m.onAdmin, actor.OnReject(m.onUnreadable(actAdmin))),
	}
	switch {
	case m.disabled:
		return append(people,
			actor.On(subjects.ResponseGeneration, discardEvent[subjects.Response]), actor.On(subjects.CritiqueResult, discardEvent[subjects.Critique]),
			actor.On(subjects.PairwiseResult, discardEvent[subjects.Pairwise]), actor.On(subjects.RewardEvent, discardEvent[subjects.Reward]))
	case m.unavailable != nil:
		return people
	}
	routes := append(people,
		// Several at once: each asks a model. What is about the same answer comes in any order and is put together.
		actor.On(subjects.ResponseGeneration, m.onResponse, actor.Workers(4)),
		actor.On(subjects.CritiqueResult, m.onCritique, actor.Workers(4)),
		actor.On(subjects.PairwiseResult, m.onPairwise, actor.Workers(4)),
		actor.On(subjects.RewardEvent, m.onReward, actor.Workers(4)),
	)
	for _, t := range tools {
		if s, err := subjects.ToolEndpoint(t.schema.Name); err == nil {
			routes = append(routes, actor.Serve(s, t.handler(m)))
		}
	}
	return routes
}

// discardEvent takes an event and keeps nothing of it.
func discardEvent[T any](context.Context, actor.Msg[T], actor.Out) error { return nil }

// Start implements [actor.Starter]: the tools announce themselves, and what is left to do begins.
func (m *Memory) Start(ctx context.Context, out actor.Out) error {
	if m.unavailable != nil {
		return nil
	}
	for _, t := range tools {
		topic, err := subjects.ToolSchemaEvent.With(t.schema.Name)
		if err != nil {
			return err
		}
		if err := actor.Emit(ctx, out, topic, t.schema); err != nil {
			return err
		}
	}
	m.started.Store(true)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stopBackground = stop
	m.background.Go(func() { m.runBackfill(background, out) })
	m.wakeBackfill()
	return nil
}

// Describe implements [actor.Describer]: a broker that starts later reads the definitions from discovery.
func (m *Memory) Describe() (version, text string, metadata map[string]string) {
	metadata = map[string]string{}
	if m.unavailable == nil {
		for _, t := range tools {
			metadata["definition."+t.schema.Name] = t.definition()
		}
	}
	return version, "conclave memory", metadata
}

// Close implements [actor.Closer].
func (m *Memory) Close(ctx context.Context) error {
	if m.stopBackground != nil {
		m.stopBackground()
		m.background.Wait()
	}
	var errs []error
	if m.unaudited != nil {
		errs = append(errs, m.unaudited.Close(ctx))
		m.search.Lock()
		errs = append(errs, m.search.index.Close())
		m.search.Unlock()
	}
	return errors.Join(append(errs, m.audit.Close(ctx))...)
}

// switchIndex makes the index for the vectors of a model, from the database.
func (m *Memory) switchIndex(ctx context.Context, model string, dims int) error {
	m.search.Lock()
	defer m.search.Unlock()
	if m.search.index != nil && m.search.model == model && m.search.dims == dims {
		return nil // somebody else was faster
	}
	index, err := recall.New(recall.Options{Dims: dims, Threads: m.cfg.Threads, Names: m.cfg.Results, Top: m.cfg.Top, Hybrid: m.cfg.Hybrid, Now: m.now})
	if err != nil {
		return fmt.Errorf("making the index: %w", err)
	}
	bad, err := index.Load(func(put func(recall.Row, []float32, []float32) error) error {
		return m.unaudited.Load(ctx, model, func(l store.IndexEntry) error { return put(indexRow(l), l.NameVector, l.DescriptionVector) })
	})
	if err == nil && m.search.index != nil {
		err = index.Warm(ctx) // little has vectors of another model, so words must find it at once
	}
	if err != nil {
		_ = index.Close()
		return fmt.Errorf("reading what is remembered: %w", err)
	}
	old := m.search.index
	m.search.index, m.search.model, m.search.dims, m.search.bad = index, model, dims, bad
	m.search.near = nil // made anew, when it is wanted
	m.approximateReady.Store(false)
	if m.cache != nil {
		m.cache.Clear()
	}
	if old != nil {
		return old.Close() // nobody reads it: they hold the lock while they do
	}
	return nil
}

// newDigester is what reads texts, with the model that the settings allow.
func (m *Memory) newDigester(out actor.Out) *digest.Digester {
	o := digest.Options{}
	if m.cfg.Model {
		o.Ask = m.askModel(out)
	}
	return digest.New(o)
}
