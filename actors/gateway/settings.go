package gateway

import (
	"context"
	"net/http"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Settings is the response of GET /settings.
type Settings struct {
	Settings []subjects.Setting `json:"settings"`
	Folder   string             `json:"folder"`
	Error    string             `json:"error"` // of the user's files; "" = they can be loaded
}

// settingTimeout is the timeout of a change: an actor finishes its work before it starts again with the new value.
const settingTimeout = time.Minute

// onSettings lists every setting, without the values of secrets.
func (g *Gateway) onSettings(ctx context.Context, _ *http.Request) (any, error) {
	l, err := g.client.Settings(ctx)
	if err != nil {
		return nil, err
	}
	return Settings{Settings: l.Settings, Folder: l.Folder, Error: l.Error}, nil
}

// SettingChange is the body of PUT /settings/{name}.
type SettingChange struct {
	Value *string `json:"value"`
}

// SettingChanged is the response of PUT /settings/{name}.
type SettingChanged struct {
	Setting   subjects.Setting `json:"setting"`
	Restarted []string         `json:"restarted"`
}

// onSettingChange changes one setting. What may be changed is decided by the registry, which records every attempt.
func (g *Gateway) onSettingChange(ctx context.Context, r *http.Request, in SettingChange) (any, error) {
	if in.Value == nil {
		return nil, malformedf(`value is required: the new value as text, as in {"value":"5m"}`)
	}
	done, err := g.client.ChangeSetting(ctx, text.Clip(r.PathValue("name"), 200), *in.Value)
	if err != nil {
		return nil, err
	}
	return SettingChanged{Setting: done.Setting, Restarted: append([]string{}, done.Restarted...)}, nil
}
