// Package secrets hands out credentials, one at a time and sealed to the public key of the process that will use them.
//
// It serves secret.get, which the server's grants open to the broker only. A request names a credential and the public
// key of its receiver; only that receiver can open the reply, so the broker forwards a value it cannot read. Each read
// of the keyring is in the audit log before it happens. There is no way to write: conclave secret set writes to the
// keyring itself.
package secrets

import (
	"context"
	"errors"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// Audit is the audit log of the actor.
type Audit interface {
	actor.AuditLog
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a request.
type Hasher interface{ Hash(params []byte) string }

const (
	caller = "broker" // the only account with a grant for secret.get; the subject does not name it
	action = subjects.ActionSecretGet
)

// Secrets is the actor. It keeps no credential between messages.
type Secrets struct {
	cfg   Config
	ring  keyring.Ring
	audit Audit
	gate  *actor.Gate
	hash  Hasher
}

// New returns an actor that reads from ring. cfg must be valid.
func New(cfg Config, ring keyring.Ring, a Audit, h Hasher) *Secrets {
	gate := &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, TypeOf: func(string) string {
		return "actor"
	}, NotDone: "no credential was read", Done: "the credential was read"}
	return &Secrets{cfg: cfg, ring: ring, audit: a, gate: gate, hash: h}
}

// Name implements [actor.Actor].
func (s *Secrets) Name() string { return "secrets" }

// Routes implements [actor.Actor].
func (s *Secrets) Routes() []actor.Route {
	rejected := s.gate.OnReject(action, func(actor.Rejection) string { return caller })
	return []actor.Route{actor.Serve(subjects.SecretGetService, s.onGet, rejected)}
}

// Close implements [actor.Closer].
func (s *Secrets) Close(ctx context.Context) error {
	return errors.Join(s.gate.Close(ctx), s.audit.Close(ctx))
}

// onGet reads a credential and returns it sealed to the key in the request. A malformed name or key is rejected before
// the keyring is read, and recorded as refused; a malformed name is not recorded itself. Without an acknowledged audit
// record nothing is read. Every other failure is a fault without the keyring's own text.
func (s *Secrets) onGet(ctx context.Context, in actor.Msg[subjects.SecretGet], out actor.Out) (subjects.SecretValue,
	error,
) {
	rec := subjects.AuditRecord{
		AgentID: caller, Action: action, Tool: in.Body.Name, Session: in.Session, Query: in.Query,
		ParamsHash: s.hash.Hash([]byte(in.Body.Name + "\n" + in.Body.For)),
	}
	err := keyring.CheckName(in.Body.Name)
	if err != nil {
		rec.Tool = "" // it may hold anything, so none of it is recorded
	} else if err = seal.CheckKey(in.Body.For); err != nil {
		err = fmt.Errorf("the receiver's key is %w", err)
	}
	if err != nil {
		s.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.CodeMalformed)
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	return actor.Audited(ctx, out, s.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SecretValue,
		error,
	) {
		sealed, err := s.readSealed(ctx, p, in.Body)
		if err != nil {
			logFailure(out, in.Body.Name, err)
			return subjects.SecretValue{}, faultFor(in.Body.Name, err)
		}
		return sealed, nil
	})
}

// readSealed reads a credential within the configured timeout and seals it to the key of q. It fails without a valid
// permit. The value is wiped before it returns. Errors may be the keyring's and must not reach the caller.
func (s *Secrets) readSealed(ctx context.Context, p *actor.Permit, q subjects.SecretGet) (subjects.SecretValue, error) {
	if err := p.Check(); err != nil {
		return subjects.SecretValue{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	value, err := s.ring.Get(ctx, q.Name)
	if err != nil {
		return subjects.SecretValue{}, err
	}
	defer value.Wipe()
	return seal.Seal(value, q.For)
}

// logFailure logs a failed read for the operator; a credential that does not exist is not logged. An error that is not
// the keyring's own may quote a value: only its type is logged.
func logFailure(out actor.Out, name string, err error) {
	switch {
	case errors.Is(err, keyring.ErrNotFound): // the keyring works
	case errors.Is(err, keyring.ErrLocked), errors.Is(err, keyring.ErrUnavailable), errors.Is(err, keyring.ErrDamaged):
		out.LogError(fmt.Errorf("reading the credential %s: %w", name, err))
	default:
		out.LogError(fmt.Errorf("reading the credential %s: unexpected error of type %T", name, err))
	}
}

// faultFor returns the fault for the caller: no-secret for a credential that does not exist, unavailable for any other
// error, with the command that helps. The keyring's error text is left out: it is for the operator, not for an agent.
// name must be valid.
func faultFor(name string, err error) *subjects.Fault {
	switch {
	case errors.Is(err, keyring.ErrNotFound):
		return subjects.Faultf(subjects.CodeNoSecret, "there is no credential named %s; set it with: conclave secret "+
			"set %s", name, name)
	case errors.Is(err, keyring.ErrLocked):
		return subjects.Faultf(subjects.CodeUnavailable, "the keyring that has %s is locked; unlock it, and see: "+
			"conclave secret check %s", name, name)
	case errors.Is(err, keyring.ErrDamaged):
		return subjects.Faultf(subjects.CodeUnavailable, "the credential %s cannot be read; set it anew with: "+
			"conclave secret set %s", name, name)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "the keyring that has %s does not answer; see: conclave secret "+
		"check %s", name, name)
}
