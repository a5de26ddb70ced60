// Package secrets hands out credentials, one at a time and sealed to the public key of the process that will use them.
//
// It serves secret.get, which the server's grants open to the broker only, and requests
// receiver.<account>.seal.key.<key>. A request names a credential, the account that needs it and the public key of a
// process of that account. The actor does not believe the broker: which account may have which credential is in its own
// configuration, and it asks the account whether the key is one of its own. The server's grants let only that account
// answer, so that the broker forwards a value which it cannot read. Each read of the keyring is in the audit log before
// it happens. There is no way to write: conclave secret set writes to the keyring itself.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

const (
	caller = "broker" // the only account with a grant for secret.get; the subject does not name it
	action = subjects.ActionSecretGet
)

// Secrets is the actor. It keeps no credential between messages.
type Secrets struct {
	cfg   Config
	ring  keyring.Ring
	audit actor.Audit
	gate  *actor.Gate
	hash  actor.Hasher
}

// New returns an actor that reads from ring. cfg must be valid.
func New(cfg Config, ring keyring.Ring, a actor.Audit, h actor.Hasher) *Secrets {
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
// the keyring is read, and recorded as refused; a malformed name is not recorded itself. A credential that is not the
// receiver's, and a key that no process of the receiver has, are denied before the keyring is read. Without an
// acknowledged audit record nothing is read. Every other failure is a fault without the keyring's own text.
func (s *Secrets) onGet(ctx context.Context, in actor.Msg[subjects.SecretGet], out actor.Out) (subjects.SecretValue,
	error,
) {
	rec := subjects.AuditRecord{
		AgentID: caller, Action: action, Tool: in.Body.Name, Session: in.Session, Query: in.Query,
		ParamsHash: s.hash.Hash([]byte(in.Body.Name + "\n" + in.Body.Receiver + "\n" + in.Body.For)),
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
	if fault := s.checkReceiver(ctx, out, in.Body); fault != nil {
		if err := s.gate.Record(ctx, out, rec, subjects.StatusDenied, fault.Code); err != nil {
			return subjects.SecretValue{}, err
		}
		return subjects.SecretValue{}, fault
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

// checkReceiver returns a fault unless the configuration gives the credential to the receiver and a process of that
// account confirms within confirmTimeout that the key is its own.
func (s *Secrets) checkReceiver(ctx context.Context, out actor.Out, q subjects.SecretGet) *subjects.Fault {
	denied := subjects.Faultf(subjects.CodeDenied, "the credential %s is not configured for this receiver", q.Name)
	switch zone, isMachine := strings.CutPrefix(q.Receiver, "tools_"); {
	case q.Receiver == "model" && slices.Contains(s.cfg.ModelKeys, q.Name):
	case q.Receiver == subjects.MCP && subjects.MCPSecretServer(q.Name) != "":
	case !slices.Contains(s.cfg.ToolKeys, q.Name):
		return denied
	case isMachine && subjects.CheckToken(zone) == nil: // that joined, and serves tools
	case !slices.ContainsFunc(subjects.CredentialTools, func(t string) bool {
		return subjects.ToolRole(t) == q.Receiver
	}):
		return denied
	}
	key, err := subjects.SealKeyService.With(q.Receiver, q.For)
	if err != nil {
		return denied
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if _, err := actor.Ask(ctx, out, key, subjects.Empty{}); err != nil {
		return subjects.Faultf(subjects.CodeDenied, "no running process of the receiver has the key to which %s is to "+
			"be sealed; try again", q.Name)
	}
	return nil
}

// confirmTimeout is how long a receiver may take to confirm its key.
const confirmTimeout = 5 * time.Second

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
