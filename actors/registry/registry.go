// Package registry keeps the principals that were added while the system runs: users' tools, clients and machines. Each
// has an account and a key of its own. It also serves the settings of the running system.
//
// It listens on principal.change, settings.list, settings.change and doctor.run, which only the user may send, and on
// principal.list. A change is recorded in the audit log, stored in the data folder and applied to the running NATS
// server, in this order; then it publishes principal.changed. A revoked principal is disconnected before the reply.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/damage"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Server is the NATS server whose principals are changed.
type Server interface {
	// Apply replaces the run-time principals of the running server, and closes the connections of those whose key is
	// gone. After an error the earlier ones may hold.
	Apply(ctx context.Context, principals []subjects.Principal) error
}

// Store keeps the list over restarts.
type Store interface {
	// ReadPrincipals returns nil when no list was ever stored.
	ReadPrincipals() ([]subjects.Principal, error)
	WritePrincipals(principals []subjects.Principal) error
}

// Config is what the registry gets from the configuration.
type Config struct {
	AuditTimeout time.Duration
	Data         string // the data folder, of whose damage it tells readers that have another one
}

// Registry is the actor.
type Registry struct {
	server Server
	store  Store
	audit  actor.Audit
	gate   *actor.Gate
	hash   actor.Hasher
	data   string
	stored bool // a list was stored, which may be empty after a revocation

	unapplied bool // the server did not apply the last revocation; guarded by changing

	machines *machines                                        // nil = none may join
	settings Settings                                         // nil = not served
	doctor   func(ctx context.Context) []subjects.DoctorCheck // nil = not served

	changing sync.Mutex // held during a change
	mu       sync.Mutex
	list     []subjects.Principal // sorted by name
}

// New returns a registry with the stored list. It fails when the list cannot be read: without it a revoked principal
// could come back.
func New(cfg Config, server Server, store Store, a actor.Audit, h actor.Hasher) (*Registry, error) {
	list, err := store.ReadPrincipals()
	if err != nil {
		return nil, err
	}
	gate := &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, TypeOf: func(string) string {
		return "user"
	}, NotDone: "nothing was changed", Done: "the change was made"}
	r := &Registry{server: server, store: store, audit: a, gate: gate, hash: h, data: cfg.Data, stored: list != nil}
	r.setList(list)
	return r, nil
}

// Name implements [actor.Actor].
func (r *Registry) Name() string { return subjects.Registry }

// Describe implements [actor.Describer].
func (r *Registry) Describe() (metadata map[string]string) { return damage.Notice(r.data) }

// Routes implements [actor.Actor].
func (r *Registry) Routes() []actor.Route {
	rejected := r.gate.OnReject(subjects.ActionPrincipalAdd, nil)
	return slices.Concat([]actor.Route{
		actor.Serve(subjects.PrincipalChangeService, r.onChange, actor.Workers(1), rejected),
		actor.Serve(subjects.PrincipalListService, r.onList),
	}, r.machines.routes(), r.settingRoutes(), r.doctorRoutes())
}

// Start implements [actor.Starter]: it applies the stored list, for a server in another process and after a crash
// between storing and applying. The audit log has the hash of the list, so that one which was replaced while the system
// was stopped shows. Actors that started before it read the list now.
func (r *Registry) Start(ctx context.Context, out actor.Out) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.stored {
		if err := r.applyStored(ctx, out); err != nil {
			return err
		}
	}
	if err := actor.Emit(ctx, out, subjects.PrincipalChanged, subjects.PrincipalNotice{}); err != nil {
		return err
	}
	return r.machines.start(ctx, out)
}

// applyStored applies the stored list, on the record.
func (r *Registry) applyStored(ctx context.Context, out actor.Out) error {
	list := r.principals()
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	rec := subjects.AuditRecord{
		AgentID: r.Name(), AgentType: "actor", Action: subjects.ActionPrincipalApply,
		ParamsHash: r.hash.Hash(data),
	}
	_, err = actor.Audited(ctx, out, r.gate, rec, func(ctx context.Context, p *actor.Permit) (none struct{},
		err error,
	) {
		if err := p.Check(); err != nil {
			return none, err
		}
		return none, r.server.Apply(ctx, list)
	})
	return err
}

// Close implements [actor.Closer].
func (r *Registry) Close(ctx context.Context) error {
	r.machines.close()
	return errors.Join(r.gate.Close(ctx), r.audit.Close(ctx))
}

func (r *Registry) setList(list []subjects.Principal) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b subjects.Principal) int { return strings.Compare(a.Name, b.Name) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = list
}

// principals returns the list in force.
func (r *Registry) principals() []subjects.Principal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// onList returns the list in force.
func (r *Registry) onList(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.PrincipalList, error) {
	return subjects.PrincipalList{Principals: r.principals()}, nil
}

// actions are the audit actions of the changes.
var actions = map[string]string{
	subjects.PrincipalAdd: subjects.ActionPrincipalAdd, subjects.PrincipalRevoke: subjects.ActionPrincipalRevoke,
	subjects.PrincipalRotate: subjects.ActionPrincipalRotate,
	subjects.PrincipalUpdate: subjects.ActionPrincipalUpdate,
}

// onChange makes a change of the user and returns the new list. A change that the rules of the table reject is recorded
// as refused.
func (r *Registry) onChange(ctx context.Context, in actor.Msg[subjects.PrincipalChange],
	out actor.Out,
) (subjects.PrincipalList, error) {
	isMachine := in.Body.Principal.Kind == subjects.MachinePrincipal || // a rotation has the name only
		slices.ContainsFunc(r.principals(), func(p subjects.Principal) bool {
			return p.Name == in.Body.Principal.Name && p.Kind == subjects.MachinePrincipal
		})
	if in.Body.Action != subjects.PrincipalRevoke && isMachine {
		r.gate.Refuse(ctx, out, r.record(in.From, in.Body), subjects.StatusRefused, subjects.CodeMalformed)
		return subjects.PrincipalList{}, subjects.Faultf(subjects.CodeMalformed, "a machine is added with conclave "+
			"invite, and rotated with conclave machines rotate")
	}
	return r.Change(ctx, out, in.From, in.Body)
}

// record returns the audit record of a change by an account. A malformed name is not recorded.
func (r *Registry) record(by string, c subjects.PrincipalChange) subjects.AuditRecord {
	rec := subjects.AuditRecord{
		AgentID: by, Action: actions[c.Action],
		ParamsHash: r.hash.Hash([]byte(c.Action + "\n" + c.Principal.Name)),
	}
	if rec.Action == "" {
		rec.Action = subjects.ActionPrincipalAdd
	}
	if subjects.CheckToken(c.Principal.Name) == nil {
		rec.Tool = c.Principal.Name
	}
	return rec
}

// Change makes one change in the name of an account and returns the new list. The intent is in the audit log before
// anything changes. When the server does not accept the list, the earlier one is stored again. A revocation also
// cancels the open invitations of the name, and may be repeated when the server did not apply it: it is announced also
// then.
func (r *Registry) Change(ctx context.Context, out actor.Out, by string, c subjects.PrincipalChange) (
	subjects.PrincipalList, error,
) {
	r.changing.Lock()
	defer r.changing.Unlock()
	name, revokes := c.Principal.Name, c.Action == subjects.PrincipalRevoke
	before := r.principals()
	after, err := applyChange(before, c, out.Now())
	if err != nil && revokes && (r.unapplied || r.machines.isInvited(name, out.Now())) &&
		subjects.CheckToken(name) == nil {
		after, err = before, nil
	}
	if err != nil {
		r.gate.Refuse(ctx, out, r.record(by, c), subjects.StatusRefused, subjects.CodeMalformed)
		return subjects.PrincipalList{}, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	_, err = actor.Audited(ctx, out, r.gate, r.record(by, c), func(ctx context.Context, p *actor.Permit) (none struct{},
		err error,
	) {
		err = r.replaceList(context.WithoutCancel(ctx), p, revokes, before, after)
		if revokes && p.Check() == nil {
			err = errors.Join(err, r.machines.cancelInvitations(name, out.Now()))
		}
		return none, err
	})
	if err != nil && (!revokes || r.has(name)) {
		return subjects.PrincipalList{}, err
	}
	if err := actor.Emit(ctx, out, subjects.PrincipalChanged,
		subjects.PrincipalNotice{Name: name, Action: c.Action}); err != nil {
		out.LogError(fmt.Errorf("announcing the change of %s: %w", name, err))
	}
	return subjects.PrincipalList{Principals: r.principals()}, err
}

// has reports whether a principal of this name is in the list in force.
func (r *Registry) has(name string) bool {
	return slices.ContainsFunc(r.principals(), func(p subjects.Principal) bool { return p.Name == name })
}

// replaceList stores the list and applies it. It fails without a valid permit. When the server does not apply the list,
// the earlier one is stored and applied again, except for a revocation: a key that is stored as revoked stays revoked,
// and is rejected at the next start at the latest.
func (r *Registry) replaceList(ctx context.Context, p *actor.Permit, revokes bool, before,
	after []subjects.Principal,
) error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := r.store.WritePrincipals(after); err != nil {
		return subjects.Faultf(subjects.CodeUnavailable, "the list of principals could not be stored: %v", err)
	}
	err := r.server.Apply(ctx, after)
	r.unapplied = err != nil && revokes
	if err == nil || revokes {
		r.setList(after)
	}
	if err == nil {
		return nil
	}
	if revokes {
		return subjects.Faultf(subjects.CodeUnavailable, "the principal is revoked in the list, but the NATS server "+
			"did not apply it: %v. Revoke it again, or restart conclave, to close its connections", err)
	}
	back := errors.Join(r.store.WritePrincipals(before), r.server.Apply(ctx, before))
	if back != nil {
		err = fmt.Errorf("%w; the earlier list could not be restored: %w", err, back)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "the NATS server did not apply the change, and nothing was "+
		"changed: %v", err)
}

// applyChange returns the list after a change, or why it cannot be made.
func applyChange(list []subjects.Principal, c subjects.PrincipalChange, now time.Time) ([]subjects.Principal, error) {
	at := slices.IndexFunc(list, func(p subjects.Principal) bool { return p.Name == c.Principal.Name })
	list = slices.Clone(list)
	switch {
	case c.Action == subjects.PrincipalAdd:
		p := c.Principal
		p.Added = now.UTC()
		list = append(list, p)
	case actions[c.Action] == "":
		return nil, errors.New("unknown action; choose add, revoke, rotate or update")
	case subjects.CheckToken(c.Principal.Name) != nil:
		return nil, errors.New("the name of the principal is not valid")
	case at < 0:
		return nil, fmt.Errorf("no principal is named %s", c.Principal.Name)
	case c.Action == subjects.PrincipalRevoke:
		list = slices.Delete(list, at, at+1)
	case c.Action == subjects.PrincipalUpdate && list[at].Kind != subjects.ToolPrincipal:
		return nil, fmt.Errorf("%s is not a tool, so it has nothing to update", c.Principal.Name)
	case c.Action == subjects.PrincipalUpdate:
		list[at].Tools, list[at].Declared = c.Principal.Tools, c.Principal.Declared
	default:
		for _, k := range c.Principal.Keys {
			for _, old := range list[at].Keys {
				if k == old {
					return nil, errors.New("the new key is the old one; make a new one")
				}
			}
		}
		list[at].Keys, list[at].TokenHash = c.Principal.Keys, c.Principal.TokenHash
	}
	if err := checkDeclarations(list); err != nil {
		return nil, err
	}
	_, err := subjects.Table().With(list)
	return list, err
}

// checkDeclarations rejects what the policy could not read of the declarations about tools.
func checkDeclarations(list []subjects.Principal) error {
	for _, p := range list {
		for tool, d := range p.Declared {
			if _, err := policy.ParseDeclaration(tool, p.Name, d); err != nil {
				return fmt.Errorf("tool %s: %w", tool, err)
			}
		}
	}
	return nil
}
