package broker

import (
	"context"
	"errors"
	"slices"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// getCredentials returns the credentials that the facts of the tool name, each sealed to the key of the tool's actor:
// the broker cannot read them. It returns nil for a tool that needs none. It fails when the tool announced no key, and
// when one credential is unavailable: there is no partial result.
func getCredentials(ctx context.Context, out actor.Out, run stage.Running, k Known) (map[string]subjects.SecretValue,
	*subjects.Fault,
) {
	if len(k.Secrets) == 0 {
		return nil, nil
	}
	if k.schema.Key == "" {
		return nil, subjects.Faultf(subjects.CodeUnavailable, "%s needs a credential but announced no key to seal it "+
			"to, so it was not run; restart its actor", k.Name)
	}
	sealed := map[string]subjects.SecretValue{}
	for _, name := range k.Secrets {
		v, fault := run.Credential(ctx, out, subjects.SecretGet{
			Name: name, Receiver: subjects.ZoneAccount(k.Zone, k.Name), For: k.schema.Key,
		})
		if fault != nil {
			return nil, fault
		}
		sealed[name] = v
	}
	return sealed, nil
}

// onSecretUse gives the model actor a credential listed in [Config].ModelKeys, and the actor of MCP servers one that
// belongs to an added server by [subjects.MCPSecretServer], sealed to the key in the request. It denies every other
// account and name. Denials and uses are recorded, with the principal of the server in the lineage; without the
// outcome's record the credential is withheld.
func (b *Broker) onSecretUse(ctx context.Context, in actor.Msg[subjects.SecretUse],
	out actor.Out,
) (subjects.SecretValue, error) {
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: in.From, Action: subjects.ActionSecretUse,
		ParamsHash: b.hash.Hash([]byte(in.Body.Name)),
	}
	named := subjects.CheckToken(in.Body.Name) == nil
	if named {
		rec.Tool = in.Body.Name
	}
	assigned := in.From == "model" && slices.Contains(b.cfg.ModelKeys, in.Body.Name)
	if server := subjects.MCPSecretServer(in.Body.Name); in.From == subjects.MCP && server != "" {
		principal := subjects.MCPPrincipal(server)
		rec.Lineage = []string{in.From, principal}
		if assigned = b.table.isPrincipal(principal); !assigned { // the message about a new principal may be late
			b.refreshZones(ctx, out)
			assigned = b.table.isPrincipal(principal)
		}
	}
	if !named || !assigned {
		if err := b.gate.Record(ctx, out, rec, subjects.StatusDenied, "secrets: not_named"); err != nil {
			return subjects.SecretValue{}, err
		}
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeDenied, "%s is not configured to use this "+
			"credential", text.Clip(in.From, 40))
	}
	v, err := stage.UseCredential(ctx, out, b.gate, rec, subjects.SecretGet{
		Name: in.Body.Name, Receiver: in.From, For: in.Body.For,
	})
	if errors.Is(err, actor.ErrUnrecorded) {
		return subjects.SecretValue{}, subjects.Faultf(subjects.CodeUnrecorded, "the outcome could not be recorded "+
			"in the audit log, so the credential is withheld")
	}
	return v, err
}
