// Package secrets gives out credentials, one at a time and sealed to whoever will use it.
//
// It listens on secret.get, and the server lets the broker ask there and nobody else. A request names a credential and
// the public key of its receiver; the answer can be opened by that receiver alone, so the broker passes on what it cannot
// read. Each use is in the audit before the keyring is asked. There is no way to write: conclave secret set goes to the
// keyring itself.
package secrets

import (
	"context"
	"errors"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// Audit stores a record. It returns nil only when the record is acknowledged.
type Audit interface {
	Append(ctx context.Context, rec subjects.AuditRecord) error
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a request.
type Hasher interface{ Hash(params []byte) string }

// caller is who asks. Nothing in the subject says so: only the broker has the edge to it.
const asker = "broker"

// action is what the audit calls it.
const action = "secret.get"

// Secrets is the actor. It keeps no credential between messages.
type Secrets struct {
	cfg   Config
	ring  keyring.Ring
	audit Audit
	hash  Hasher
}

// New returns an actor that reads from ring. cfg must be valid.
func New(cfg Config, ring keyring.Ring, a Audit, h Hasher) *Secrets {
	return &Secrets{cfg: cfg, ring: ring, audit: a, hash: h}
}

// Name implements [actor.Actor].
func (s *Secrets) Name() string { return "secrets" }

// Routes implements [actor.Actor].
func (s *Secrets) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.SecretOf, s.onGet, actor.OnReject(s.onUnreadable))}
}

// Close implements [actor.Closer].
func (s *Secrets) Close(ctx context.Context) error { return s.audit.Close(ctx) }

// onGet stores that it is about to read, reads, seals, stores what came of it and answers, in this order.
func (s *Secrets) onGet(ctx context.Context, in actor.Msg[subjects.SecretGet], out actor.Out) (subjects.SecretValue, error) {
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: asker, Action: action, Tool: in.Body.Name, Session: in.Session, Query: in.Query,
		ParamsHash: s.hash.Hash([]byte(in.Body.Name + "\n" + in.Body.For)),
	}
	if err := keyring.CheckName(in.Body.Name); err != nil {
		rec.Tool = "" // not a word of it: it may be anything
		return subjects.SecretValue{}, s.refuse(ctx, out, rec, err)
	}
	if err := seal.CheckKey(in.Body.For); err != nil {
		return subjects.SecretValue{}, s.refuse(ctx, out, rec, fmt.Errorf("the receiver's key is %w", err))
	}
	if err := s.store(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return subjects.SecretValue{}, noAudit(err)
	}
	sealed, fault := s.fetch(ctx, out, in.Body)
	status, reason := subjects.StatusOK, ""
	if fault != nil {
		status, reason = subjects.StatusFailed, fault.Code
	}
	if err := s.store(ctx, rec, subjects.AuditAfter, status, reason); err != nil && fault == nil {
		fault = subjects.Faultf(subjects.CodeUnrecorded, "the credential %s was read, but the audit did not take the outcome, so it is withheld", in.Body.Name)
	}
	if fault != nil {
		return subjects.SecretValue{}, fault
	}
	return sealed, nil
}

// fetch reads a credential and seals it. Nothing of its value is left here.
func (s *Secrets) fetch(ctx context.Context, out actor.Out, q subjects.SecretGet) (subjects.SecretValue, *subjects.Fault) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	value, err := s.ring.Get(ctx, q.Name)
	if err == nil {
		defer value.Wipe()
		var sealed subjects.SecretValue
		if sealed, err = seal.Seal(value, q.For); err == nil {
			return sealed, nil
		}
	}
	switch {
	case errors.Is(err, keyring.ErrNotFound): // nothing is wrong here
	case errors.Is(err, keyring.ErrLocked), errors.Is(err, keyring.ErrUnavailable), errors.Is(err, keyring.ErrDamaged):
		// The keyring's words are for whoever keeps this machine, not for an agent.
		out.Note(fmt.Errorf("reading the credential %s: %w", q.Name, err))
	default: // words that the keyring did not weigh may quote a value
		out.Note(fmt.Errorf("reading the credential %s failed in an unknown way (%T)", q.Name, err))
	}
	return subjects.SecretValue{}, fault(q.Name, err)
}

// fault is a failure as the caller is told.
func fault(name string, err error) *subjects.Fault {
	switch {
	case errors.Is(err, keyring.ErrNotFound):
		return subjects.Faultf(subjects.CodeNoSecret, "there is no credential named %s; set it with: conclave secret set %s", name, name)
	case errors.Is(err, keyring.ErrLocked):
		return subjects.Faultf(subjects.CodeUnavailable, "the keyring that has %s is locked; unlock it, and see: conclave secret check %s", name, name)
	case errors.Is(err, keyring.ErrDamaged):
		return subjects.Faultf(subjects.CodeUnavailable, "the credential %s cannot be read; set it anew with: conclave secret set %s", name, name)
	}
	return subjects.Faultf(subjects.CodeUnavailable, "the keyring that has %s does not answer; see: conclave secret check %s", name, name)
}

// refuse stores that a request made no sense, and returns what the caller is told.
func (s *Secrets) refuse(ctx context.Context, out actor.Out, rec subjects.AuditRecord, err error) error {
	if err := s.store(ctx, rec, subjects.AuditBefore, subjects.StatusRefused, subjects.CodeMalformed); err != nil { // nothing was given either way
		out.Note(fmt.Errorf("recording a refused request: %w", err))
	}
	return subjects.Faultf(subjects.CodeMalformed, "%v", err)
}

// onUnreadable records a request that could not even be read.
func (s *Secrets) onUnreadable(ctx context.Context, rej actor.Reject, out actor.Out) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: asker, Action: action, Session: rej.Session, Query: rej.Query}
	if err := s.store(ctx, rec, subjects.AuditBefore, subjects.StatusRefused, rej.Fault.Code); err != nil {
		out.Note(fmt.Errorf("recording a refused request: %w", err))
	}
}

// store appends one record. The caller's own deadline does not cut it short: what began is recorded to its end.
func (s *Secrets) store(ctx context.Context, rec subjects.AuditRecord, phase, status, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AuditTimeout)
	defer cancel()
	rec.Phase, rec.Status, rec.Reason = phase, status, reason
	return s.audit.Append(ctx, rec)
}

// noAudit says what to do about an audit that does not answer.
func noAudit(err error) *subjects.Fault {
	text := "the audit did not acknowledge the record, so no credential was read; see conclave doctor"
	if errors.Is(err, audit.ErrFull) {
		text = "the audit is full, so no credential was read; stop conclave and run conclave audit rotate"
	}
	return subjects.Faultf(subjects.CodeNoAudit, "%s", text)
}
