// Package memory stores answers, facts and documents, and recalls them.
//
// It consumes response.generation, critique.result, pairwise.result and reward.event from the event stream, where they
// wait while the actor is down. It serves tool.request.{search_memory, save_memory, search_knowledge_graph}, which the
// grants open to the broker only, and memory.{query, write, correlated, admin}, which they open to the user only. It
// publishes memory.{stored, annotated, recalled} and tool.schema.*.
//
// DuckDB is the system of record (package store). The search index is in memory (package recall): it is built at start
// and updated after each write. Package digest derives names, descriptions and relations from texts: by plain rules
// when an entry is stored, and again with a small model, one call per entry, when that is idle.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/damage"
	"conclave/pkg/model/scripted"
	"conclave/pkg/vector"
	"conclave/subjects"
)

const (
	name        = "memory"
	version     = "0.1.0" // of the tools, in discovery
	defaultDims = 768     // of a vector, until an embedding model has made one
)

// Memory is the actor.
type Memory struct {
	cfg   Config
	audit actor.Audit
	gate  *actor.Gate
	hash  actor.Hasher
	cache *recall.Cache
	now   func() time.Time
	data  string // the data folder, of whose damage it tells readers that have another one

	// unaudited is the database. Requests of callers reach it through [audited] only; what remains is upkeep: the
	// index, missing vectors, counters and status.
	unaudited   *store.Store
	unavailable *subjects.Fault // why there is no database; the reply to every request
	disabled    bool            // switched off by the user: events are discarded instead of waiting in the stream

	// search is the index over the vectors of one embedding model. A writer holds the lock for reading while it updates
	// the index; switchIndex holds it for writing.
	search struct {
		sync.RWMutex
		index *recall.Recall
		model string
		dims  int
	}

	indexMu    sync.Mutex // one index update at a time, so that an older read never overwrites a newer one
	editMu     sync.Mutex // one change of existing entries at a time; no model is called under it
	importMu   sync.Mutex // one message of a document at a time
	decisionMu sync.Mutex // one decision on candidates at a time

	started        atomic.Bool // Start has run: failed events are retried
	stopBackground context.CancelFunc
	background     sync.WaitGroup
	backfillWake   chan struct{}       // there are entries without vectors
	deferred       map[string]deferral // entries that the embedding model rejects, by id; owned by the backfill
	refineBackoff  refineBackoff

	// For the status: why the last request for embeddings failed, if it did, and why an entry was rejected last.
	embedProblem, rejection atomic.Pointer[string]
}

// newMemory returns the actor on an open database and builds its index: when it returns, every entry can be recalled,
// by its words as soon as the backfill has indexed them.
// On an error the caller still owns db. cfg must be valid.
func newMemory(ctx context.Context, cfg Config, db *store.Store, a actor.Audit, h actor.Hasher,
	now func() time.Time,
) (*Memory, error) {
	m := &Memory{
		cfg: cfg, unaudited: db, audit: a, gate: newGate(a, cfg), hash: h,
		backfillWake: make(chan struct{}, 1), now: now, cache: recall.NewCache(now),
	}
	stats, err := db.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.switchIndex(ctx, stats.Model, cmp.Or(stats.Dims, defaultDims)); err != nil {
		return nil, err
	}
	return m, nil
}

// maxKept bounds what is kept of entries before calls change them, in bytes: all of it is read for a list.
const maxKept = 64 << 20

// Open returns the actor on the database in the data folder; it never returns nil. When the database cannot be opened,
// or memory is switched off, the actor replies to every request with the reason; the rest of the system works on. A
// rewrite that the last shutdown left undone is done first. cfg must be valid.
func Open(ctx context.Context, cfg Config, data string, a actor.Audit, h actor.Hasher) (m *Memory) {
	defer func() { m.data = data }()
	if !cfg.Enabled {
		m = newUnavailable(errors.New("it is switched off in memory.yaml"), a, h)
		m.disabled = true
		return m
	}
	o := store.Options{Now: time.Now, KeepDays: cfg.Undo.Days, KeepBytes: min(int64(cfg.Undo.Size), maxKept)}
	if cfg.Limit > 0 {
		o.MemoryLimit = strconv.FormatInt(int64(cfg.Limit), 10) + "B"
	}
	db, err := store.Open(ctx, DatabaseFile(data), o)
	if err != nil {
		return newUnavailable(errors.Join(err, reportDamage(data, err)), a, h)
	}
	if lost := db.Lost(); lost != "" {
		if err := damage.Add(data, damage.Report{Found: time.Now(), Text: "memory: " + lost}); err != nil {
			return newUnavailable(errors.Join(err, db.Close(ctx)), a, h)
		}
	}
	// The last shutdown may have had no time to rewrite the file without forgotten content.
	if pending, err := db.NeedsRewrite(ctx); err == nil && pending {
		if err = db.Close(ctx); err == nil {
			db, err = store.Open(ctx, DatabaseFile(data), o)
		}
		if err != nil {
			return newUnavailable(err, a, h)
		}
	}
	if m, err = newMemory(ctx, cfg, db, a, h, time.Now); err != nil {
		return newUnavailable(errors.Join(err, reportDamage(data, err), db.Close(ctx)), a, h)
	}
	return m
}

// reportDamage adds err to the damage of the data folder if it means that the database is damaged or missing.
func reportDamage(data string, err error) error {
	if !IsDamaged(err) {
		return nil
	}
	return damage.Add(data, damage.Report{
		Found: time.Now(), Part: damage.Memory, Text: "memory is unavailable: " + err.Error() +
			"; the next start takes it back from a scheduled backup, if there is one",
	})
}

// newUnavailable returns an actor without a database. It consumes no events, so that they wait in the stream, and
// replies to every request with the reason.
func newUnavailable(reason error, a actor.Audit, h actor.Hasher) *Memory {
	return &Memory{
		unavailable: subjects.Faultf(subjects.CodeUnavailable, "memory is unavailable: %v", reason),
		audit:       a, gate: newGate(a, Config{}), hash: h, now: time.Now,
	}
}

// Name implements [actor.Actor].
func (m *Memory) Name() string { return name }

// Routes implements [actor.Actor]. Without a database only requests are served, and rejected with the reason: events
// wait in the stream, or are discarded when memory is switched off.
func (m *Memory) Routes() []actor.Route {
	requests := []actor.Route{
		actor.ServeStream(subjects.MemoryQueryService, m.onRecall, m.gate.OnReject(subjects.ActionMemoryRead, nil)),
		actor.Serve(subjects.MemoryCorrelated, m.onCorrelated, m.gate.OnReject(subjects.ActionMemoryRead, nil)),
		actor.Serve(subjects.MemoryWriteService, m.onWrite, m.gate.OnReject(subjects.ActionMemoryWrite, nil)),
		actor.Serve(subjects.MemoryAdminService, m.onAdmin, m.gate.OnReject(subjects.ActionMemoryAdmin, nil)),
	}
	switch {
	case m.disabled:
		return append(requests,
			actor.On(subjects.ResponseGeneration, discardEvent[subjects.Response]), actor.On(subjects.CritiqueResult,
				discardEvent[subjects.Critique]),
			actor.On(subjects.PairwiseResult, discardEvent[subjects.Pairwise]), actor.On(subjects.RewardEvent,
				discardEvent[subjects.Reward]))
	case m.unavailable != nil:
		return requests
	}
	// Several workers: each calls a model. Events about one answer may arrive in any order.
	routes := append(requests,
		actor.On(subjects.ResponseGeneration, m.onResponse, actor.Workers(4)),
		actor.On(subjects.CritiqueResult, m.onCritique, actor.Workers(4)),
		actor.On(subjects.PairwiseResult, m.onPairwise, actor.Workers(4)),
		actor.On(subjects.RewardEvent, m.onReward, actor.Workers(4)),
	)
	return append(routes, m.toolset().Routes()...)
}

// discardEvent acknowledges an event and stores nothing.
func discardEvent[T any](context.Context, actor.Msg[T], actor.Out) error { return nil }

// Start implements [actor.Starter]: it announces the tools and starts the backfill of missing vectors, which runs until
// Close whatever becomes of ctx. Without a database it does nothing.
func (m *Memory) Start(ctx context.Context, out actor.Out) error {
	if m.unavailable != nil {
		return nil
	}
	if err := m.toolset().Announce(ctx, out); err != nil {
		return err
	}
	m.started.Store(true)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stopBackground = stop
	m.background.Go(func() { m.runBackfill(background, out) })
	m.wakeBackfill()
	return nil
}

// Describe implements [actor.Describer]: a broker that starts later reads the tool definitions from discovery.
// It also says what is damaged in the data folder, which the gateway may not share.
func (m *Memory) Describe() (metadata map[string]string) {
	metadata = map[string]string{}
	if m.unavailable == nil {
		metadata = m.toolset().Definitions()
	}
	maps.Copy(metadata, damage.Notice(m.data))
	return metadata
}

// Close implements [actor.Closer]. It stops the backfill and waits for it, then closes database, index and audit log.
// ctx bounds the rewrite of the database after content was forgotten, not the wait for queued writes.
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
	return errors.Join(append(errs, m.gate.Close(ctx), m.audit.Close(ctx))...)
}

// switchIndex builds the index for the vectors of a model from the database and replaces the current one, with searches
// and index updates waiting. It does nothing when that model and size are in use already. On an error from building,
// the current index stays. model "" means that no entry has vectors yet.
func (m *Memory) switchIndex(ctx context.Context, model string, dims int) error {
	m.search.Lock()
	defer m.search.Unlock()
	if m.search.index != nil && m.search.model == model && m.search.dims == dims {
		return nil
	}
	index, err := recall.New(recall.Options{
		Dims: dims, Hybrid: m.cfg.Hybrid, Hashed: model == scripted.Name, Weights: m.cfg.Weights, Now: m.now,
	})
	if err != nil {
		return fmt.Errorf("building the index: %w", err)
	}
	var damaged []string
	err = m.unaudited.Load(ctx, model, func(e store.IndexEntry) error {
		err := index.PutLater(e.Row, e.MemoryEntry, indexVectors(e.Vectors))
		if errors.Is(err, vector.ErrNotFinite) || errors.Is(err, vector.ErrZero) {
			damaged = append(damaged, e.ID)
			err = index.PutLater(e.Row, e.MemoryEntry, recall.Vectors{})
		}
		return err
	})
	if err == nil && len(damaged) > 0 { // the backfill embeds them again
		err = m.unaudited.DropVectors(ctx, damaged...)
	}
	if err == nil && m.search.index != nil {
		err = index.IndexWords(ctx) // few entries have vectors of a new model yet, so words must find the others
	}
	if err != nil {
		return errors.Join(fmt.Errorf("loading the index: %w", err), index.Close())
	}
	old := m.search.index
	m.search.index, m.search.model, m.search.dims = index, model, dims
	m.cache.Clear()
	if old != nil {
		return old.Close() // readers hold the lock while they use it, so there are none
	}
	return nil
}

// newDigester returns a digester that calls a small model through out when the configuration allows it, else one with
// plain rules only. background means that no user waits for the result.
func (m *Memory) newDigester(out actor.Out, background bool) *digest.Digester {
	o := digest.Options{}
	if m.cfg.Model {
		o.Ask = m.askModel(out, background)
	}
	return digest.New(o)
}

// plainDigester returns the digester of new entries, which calls no model: an entry can be recalled at once, and a
// model describes it when it is idle (see refineBatch).
func plainDigester() *digest.Digester { return digest.New(digest.Options{}) }

// Verify checks every entry and every invariant of the database in a data folder that no actor has open. A folder
// without a database is no error.
func Verify(ctx context.Context, data string) error {
	if _, err := os.Stat(DatabaseFile(data)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := store.Open(ctx, DatabaseFile(data), store.Options{})
	if err != nil {
		return err
	}
	return errors.Join(db.Verify(ctx), db.Close(ctx))
}

// IsDamaged reports whether err means that the database is damaged, or missing although it was written to.
func IsDamaged(err error) bool { return errors.Is(err, store.ErrDamaged) }

// emitState publishes what memory does for a question: see [agent.EmitState].
func emitState(out actor.Out, session, query, state string) {
	agent.EmitState(out, subjects.AgentState{SessionID: session, QueryID: query, To: state}, name)
}
