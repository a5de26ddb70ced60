package gateway

import (
	"context"
	"net/http"
	"time"

	"conclave/pkg/text"
)

// settingTimeout is the timeout of a change: an actor finishes its work before it starts again with the new value.
const settingTimeout = time.Minute

// onSettings lists every setting, without the values of secrets.
func (g *Gateway) onSettings(ctx context.Context, _ *http.Request) (any, error) {
	l, err := g.client.Settings(ctx)
	return object{{"settings", l.Settings}, {"folder", l.Folder}, {"error", l.Error}}, err
}

// SettingChange is the body of PUT /settings/{name}.
type SettingChange struct {
	Value *string `json:"value"`
}

// onSettingChange changes one setting. What may be changed is decided by the registry, which records every attempt.
func (g *Gateway) onSettingChange(ctx context.Context, r *http.Request, in SettingChange) (any, error) {
	if in.Value == nil {
		return nil, malformedf(`value is required: the new value as text, as in {"value":"5m"}`)
	}
	done, err := g.client.ChangeSetting(ctx, text.Clip(r.PathValue("name"), 200), *in.Value)
	return object{{"setting", done.Setting}, {"restarted", append([]string{}, done.Restarted...)}}, err
}
