package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Spawned agents are stored in the bucket spawns, keyed by account and path. An entry is written once and never
// changed: it fixes the agent's type, tools and budget. Each call is still decided by the rules in force at that time.

// spawnEntry is an agent in the spawn registry.
type spawnEntry struct {
	Type     string          `json:"type"`
	Narrowed bool            `json:"narrowed,omitempty"` // the agent has at most Tools, also when Tools is empty
	Tools    []string        `json:"tools,omitempty"`
	Budget   subjects.Budget `json:"budget"`
	Session  string          `json:"session"` // the only session in which the agent may act: that flow binds it
	Query    string          `json:"query"`
	Made     time.Time       `json:"made"`
}

// bucketSpawns is the bucket of the spawn registry.
const bucketSpawns = "spawns"

// onSpawn spawns an agent below the caller: it decides, stores the decision in the audit log, registers the agent,
// stores the outcome and replies with the agent's name and tools, in this order. It denies what [Broker.decideSpawn]
// does; denials are recorded. Without the outcome's record the reply is an error, though the agent is registered.
func (b *Broker) onSpawn(ctx context.Context, in actor.Msg[subjects.SpawnRequest], out actor.Out) (subjects.SpawnReply,
	error,
) {
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: in.From, Action: subjects.ActionSpawn, Session: in.Session,
		Query: in.Query,
	}
	caller, err := subjects.ParseAgentSubject("agent.spawn", in.Subject)
	if err != nil {
		return subjects.SpawnReply{}, b.refuseSpawn(ctx, out, rec, subjects.StatusRefused,
			subjects.Faultf(subjects.CodeSubject, "invalid spawn subject: %v", err))
	}
	asked, err := json.Marshal(in.Body)
	if err != nil {
		return subjects.SpawnReply{}, fmt.Errorf("encoding a spawn request: %w", err)
	}
	rec.AgentID, rec.ParamsHash = caller.ID(), b.hash.Hash(asked)
	e, tools, fault := b.decideSpawn(ctx, out, caller, in, &rec)
	if fault != nil {
		return subjects.SpawnReply{}, b.refuseSpawn(ctx, out, rec, subjects.StatusDenied, fault)
	}
	id := out.NewID()
	name := e.Type + "-" + id[max(0, len(id)-8):]
	below := subjects.Caller{Account: caller.Account, Path: append(slices.Clone(caller.Path), name)}
	rec.Reason = name
	reply, err := actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SpawnReply,
		error,
	) {
		if err := b.registerAgent(ctx, out, p, below, e); err != nil {
			out.LogError(fmt.Errorf("writing %s into the spawn registry: %w", below.ID(), err))
			return subjects.SpawnReply{}, subjects.Faultf(subjects.CodeUnavailable, "the spawn registry cannot be "+
				"written, so no agent was spawned; see conclave doctor")
		}
		if in.Body.Plan != "" {
			if err := b.recordPlan(ctx, out, caller.Account, in.Session, in.Query, in.Body.Plan); err != nil {
				out.LogError(fmt.Errorf("recording the plan of a query: %w; its searches may ask the user", err))
			}
		}
		return subjects.SpawnReply{Child: name, Tools: tools}, nil
	})
	if errors.Is(err, actor.ErrUnrecorded) {
		return subjects.SpawnReply{}, subjects.Faultf(subjects.CodeUnrecorded, "the outcome could not be recorded in "+
			"the audit log, so the agent is withheld")
	}
	return reply, err
}

// decideSpawn decides about a spawn request and returns the registry entry and the tools that the agent has now. It
// sets the caller's type in rec. It denies a request without session or query, one that the manifest does not allow,
// one over the query's spawn limit, and every request when the session's records cannot be read. A request that it
// allows is counted.
func (b *Broker) decideSpawn(ctx context.Context, out actor.Out, caller subjects.Caller,
	in actor.Msg[subjects.SpawnRequest], rec *subjects.AuditRecord,
) (spawnEntry, []string, *subjects.Fault) {
	if subjects.CheckToken(in.Session) != nil || subjects.CheckToken(in.Query) != nil {
		return spawnEntry{}, nil, subjects.Faultf(subjects.CodeMalformed, "a spawned agent needs a session and a "+
			"query; set both headers")
	}
	if in.Body.Plan != "" && !isOrchestrator(caller) {
		return spawnEntry{}, nil, subjects.Faultf(subjects.CodeMalformed, "plan is for the orchestrator; leave it "+
			"out")
	}
	m := b.rules.Load().Manifest
	line, _, err := loadLineage(ctx, out, caller, in.Session)
	over, err2 := callerOverride(ctx, out, caller, in.Session, in.Query, false)
	if err := errors.Join(err, err2); err != nil {
		out.LogError(fmt.Errorf("gathering the facts of %s: %w", caller.ID(), err))
		return spawnEntry{}, nil, subjects.Faultf(subjects.CodeUnavailable, "the session's records cannot be read, "+
			"so no agent was spawned; see conclave doctor")
	}
	rec.AgentType = m.Accounts[caller.Account]
	if n := len(caller.Path); n > 0 {
		rec.AgentType = ""
		if len(line) == n {
			rec.AgentType = line[n-1].Type
		}
	}
	var fault *subjects.Fault
	c, tools, err := m.AuthorizeSpawn(caller, line, in.Body, over.Grant...)
	budget := subjects.Budget{}
	if err == nil {
		budget, err = m.SpawnBudget(in.Body.Type, in.Body.Budget)
	}
	if err == nil {
		err = b.countSpawn(ctx, out, m, caller.Account, in.Session, in.Query)
	}
	if err != nil && !errors.As(err, &fault) {
		out.LogError(fmt.Errorf("counting the agents of a query: %w", err))
		fault = subjects.Faultf(subjects.CodeUnavailable, "the agents of this query cannot be counted, so no agent "+
			"was spawned; see conclave doctor")
	}
	if fault != nil {
		return spawnEntry{}, nil, fault
	}
	tools = slices.DeleteFunc(tools, func(t string) bool { return slices.Contains(over.Disable, t) })
	return spawnEntry{
		Type: c.Type, Narrowed: c.Narrowed, Tools: c.Tools, Budget: budget, Session: in.Session, Query: in.Query,
		Made: out.Now(),
	}, tools, nil
}

// refuseSpawn records that no agent was spawned, and returns f, or a no-audit fault when the record is not stored.
func (b *Broker) refuseSpawn(ctx context.Context, out actor.Out, rec subjects.AuditRecord, status string,
	f *subjects.Fault,
) error {
	if err := b.gate.Record(ctx, out, rec, status, denialReason(f)); err != nil {
		return err
	}
	return f
}

// countSpawn adds one agent to the query's count; at the limit it returns a fault and adds none. Any other error means
// that the count is unknown, and the caller must deny. The count is stored by compare-and-set before the agent is
// registered, so that concurrent requests cannot exceed the limit; an agent that is not registered after all counts
// too.
func (b *Broker) countSpawn(ctx context.Context, out actor.Out, m policy.Manifest, account, session,
	query string,
) error {
	// no account name begins with _
	store, key := out.Store(bucketSpawns), strings.Join([]string{"_query", account, session, query}, ".")
	for range maxWriteAttempts {
		n := 0
		data, rev, err := store.Get(ctx, key)
		if err == nil {
			n, err = strconv.Atoi(string(data))
		}
		if err != nil && !errors.Is(err, actor.ErrNotFound) {
			return err
		}
		if n >= m.Limits.Spawns {
			return m.SpawnLimitFault()
		}
		if _, err = store.Put(ctx, key, []byte(strconv.Itoa(n+1)), rev); !errors.Is(err, actor.ErrChanged) {
			return err
		}
	}
	return errWriteConflict
}

// registerAgent writes a new agent to the spawn registry and fails when its name exists. The caller's deadline does
// not interrupt the write. Without a valid permit nothing is written.
func (b *Broker) registerAgent(ctx context.Context, out actor.Out, p *actor.Permit, who subjects.Caller,
	e spawnEntry,
) error {
	if err := p.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = out.Store(bucketSpawns).Put(ctx, who.ID(), data, 0)
	return err
}

// loadLineage returns the registered agents of the caller's path, and the budget of each. It stops before the first one
// that is not registered in this session: the lineage layer denies a lineage shorter than the path. An entry that
// cannot be read or decoded is an error. Without a session both lists are empty.
func loadLineage(ctx context.Context, out actor.Out, caller subjects.Caller,
	session string,
) ([]policy.SpawnedAgent, []subjects.Budget, error) {
	var line []policy.SpawnedAgent
	var budgets []subjects.Budget
	for i, name := range caller.Path {
		who := subjects.Caller{Account: caller.Account, Path: caller.Path[:i+1]}
		data, _, err := out.Store(bucketSpawns).Get(ctx, who.ID())
		if errors.Is(err, actor.ErrNotFound) {
			break
		}
		var e spawnEntry
		if err == nil {
			err = strict.DecodeJSON(data, &e)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading the spawn registry: %w", err)
		}
		if e.Session != session || session == "" {
			break
		}
		line = append(line, policy.SpawnedAgent{Name: name, Type: e.Type, Narrowed: e.Narrowed, Tools: e.Tools})
		budgets = append(budgets, e.Budget)
	}
	return line, budgets, nil
}
