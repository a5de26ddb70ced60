package broker

import (
	"context"
	"errors"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// credentials are those that the tool's facts name, each sealed to this run of the tool: the broker passes on what it
// cannot read.
func (b *Broker) credentials(ctx context.Context, out actor.Out, c call, k Known) (map[string]subjects.SecretValue, *subjects.Fault) {
	if len(k.Secrets) == 0 {
		return nil, nil
	}
	if k.schema.Key == "" {
		return nil, subjects.Faultf(subjects.CodeUnavailable, "%s needs a credential and has no key to seal it to, so it was not run; restart its actor", c.tool)
	}
	sealed := map[string]subjects.SecretValue{}
	for _, name := range k.Secrets {
		v, fault := secret(ctx, out, name, k.schema.Key)
		if fault != nil {
			return nil, fault
		}
		sealed[name] = v
	}
	return sealed, nil
}

// secret asks for one credential, sealed to a key.
func secret(ctx context.Context, out actor.Out, name, key string) (subjects.SecretValue, *subjects.Fault) {
	v, err := actor.Ask(ctx, out, subjects.SecretGetService, subjects.SecretGet{Name: name, For: key})
	var fault *subjects.Fault
	switch {
	case err == nil && len(v.Sealed) > 0:
		return v, nil
	case actor.IsReplyFault(err) && errors.As(err, &fault) && fault.Code == subjects.CodeNoSecret:
		return v, subjects.Faultf(subjects.CodeNoSecret, "%s", text.OneLine(fault.Text, 300))
	case errors.As(err, &fault):
		return v, subjects.Faultf(subjects.CodeUnavailable, "the credential %s could not be had (%s), so nothing was run; see conclave secret check", name, fault.Code)
	}
	return v, subjects.Faultf(subjects.CodeUnavailable, "the credential %s could not be had, so nothing was run; see conclave secret check", name)
}

// onSecretUse gives the model actor the key of a remote server, if the settings name it for that.
func (b *Broker) onSecretUse(ctx context.Context, in actor.Msg[subjects.SecretUse], out actor.Out) (subjects.SecretValue, error) {
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: "secret.use", ParamsHash: b.hash.Hash([]byte(in.Body.Name))}
	named := subjects.CheckToken(in.Body.Name) == nil
	if named {
		rec.Tool = in.Body.Name
	}
	if in.From != "model" || !named || !slices.Contains(b.cfg.ModelKeys, in.Body.Name) {
		if err := b.store(ctx, rec, subjects.AuditBefore, subjects.StatusDenied, "secrets: not_named"); err != nil {
			return subjects.SecretValue{}, noAudit(err)
		}
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeDenied, "no setting gives this credential to %s", text.Clip(in.From, 40))
	}
	if err := b.store(ctx, rec, subjects.AuditBefore, subjects.StatusAllowed, ""); err != nil {
		return subjects.SecretValue{}, noAudit(err)
	}
	v, fault := secret(ctx, out, in.Body.Name, in.Body.For)
	status, reason := subjects.StatusOK, ""
	if fault != nil {
		status, reason = subjects.StatusFailed, fault.Code
	}
	if err := b.store(ctx, rec, subjects.AuditAfter, status, reason); err != nil {
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeUnrecorded, "the audit did not take the outcome, so the credential is withheld")
	}
	if fault != nil {
		return subjects.SecretValue{}, fault
	}
	return v, nil
}
