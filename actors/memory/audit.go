package memory

import (
	"context"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// newGate returns the gate between callers and the database.
func newGate(log actor.AuditLog, cfg Config) *actor.Gate {
	return &actor.Gate{
		Log: log, Timeout: cfg.AuditTimeout, TypeOf: cfg.AgentType, NotDone: "memory did nothing",
		Done: "it was done",
	}
}

// act describes an act of memory for a caller, for the audit log.
type act struct {
	caller  string // the account, with the path of spawned agents
	typ     string // agent type of the caller, as the broker says; "" = the manifest's type of the account
	action  string
	target  string // a tool or an operation
	params  []byte // only its keyed hash is recorded
	session string
	query   string
}

// access is the database during one audited act. Functions that read or change entries for a caller take one. Only
// [audited] makes one, and revokes it when the act ends: using it later panics.
type access struct{ *store.Store }

// audited records the intent of a, runs do with access to the database, and records the outcome. Without an
// acknowledged intent do does not run; without an acknowledged outcome its result is withheld, though do has run (see
// [actor.Audited]). The access is valid until do returns. Of a.params only the keyed hash is recorded.
func audited[T any](ctx context.Context, m *Memory, out actor.Out, a act, do func(ctx context.Context, db *access) (T,
	error),
) (T, error) {
	rec := subjects.AuditRecord{
		AgentID: a.caller, AgentType: a.typ, Action: a.action, Tool: a.target, ParamsHash: m.hash.Hash(a.params),
		Session: a.session, Query: a.query,
	}
	return actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (T, error) {
		db, err := m.grantAccess(p)
		if err != nil {
			var none T
			return none, err
		}
		defer func() { db.Store = nil }()
		return do(ctx, db)
	})
}

// grantAccess returns access to the database. It fails without a valid permit.
func (m *Memory) grantAccess(p *actor.Permit) (*access, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &access{m.unaudited}, nil
}
