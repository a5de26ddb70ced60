package registry

import (
	"context"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Settings are the settings of the running system.
type Settings interface {
	// ListSettings lists every setting, without the values of secrets.
	ListSettings() (subjects.SettingList, error)
	// PrepareSetting validates a change as the loader of the files does, and returns the function that makes it. It
	// changes nothing. The error is a [subjects.Fault]: denied for a setting that cannot be changed here.
	PrepareSetting(name, value string) (change func(ctx context.Context) (subjects.SettingChanged, error), err error)
}

// maxSetting bounds the value of a setting.
const maxSetting = 4 << 10

// ServeSettings lets the user read and change settings. It must be called before the actor starts.
func (r *Registry) ServeSettings(s Settings) { r.settings = s }

// settingRoutes returns the requests about settings, none without [Registry.ServeSettings].
func (r *Registry) settingRoutes() []actor.Route {
	if r.settings == nil {
		return nil
	}
	return []actor.Route{
		actor.Serve(subjects.SettingListService, r.onSettings),
		actor.Serve(subjects.SettingChangeService, r.onSettingChange, actor.Workers(1),
			r.gate.OnReject(subjects.ActionSettingChange, nil)),
	}
}

func (r *Registry) onSettings(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.SettingList, error) {
	return r.settings.ListSettings()
}

// onSettingChange changes a setting of the user. The intent is in the audit log before the file is written; a change
// that is not made is recorded as refused. The record has the name of the setting and a keyed hash of the value.
func (r *Registry) onSettingChange(ctx context.Context, in actor.Msg[subjects.SettingChange],
	out actor.Out,
) (subjects.SettingChanged, error) {
	q := in.Body
	rec := subjects.AuditRecord{
		AgentID: in.From, Action: subjects.ActionSettingChange,
		ParamsHash: r.hash.Hash([]byte(q.Name + "\n" + q.Value)),
	}
	refuse := func(f error, code string) (subjects.SettingChanged, error) {
		r.gate.Refuse(ctx, out, rec, subjects.StatusRefused, code)
		return subjects.SettingChanged{}, f
	}
	if len(q.Value) > maxSetting {
		return refuse(subjects.Faultf(subjects.CodeMalformed, "the value is longer than %d bytes", maxSetting),
			subjects.CodeMalformed)
	}
	change, err := r.settings.PrepareSetting(q.Name, q.Value)
	if err != nil {
		return refuse(err, subjects.CodeMalformed)
	}
	rec.Tool = q.Name // the name of a setting, now that it is known to be one
	return actor.Audited(ctx, out, r.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SettingChanged,
		error,
	) {
		if err := p.Check(); err != nil {
			return subjects.SettingChanged{}, err
		}
		return change(context.WithoutCancel(ctx))
	})
}
