package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	llm "conclave/pkg/model"
	"conclave/pkg/model/anthropic"
	"conclave/pkg/model/genai"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/openai"
	"conclave/pkg/model/scripted"
	"conclave/pkg/seal"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// overlayModels overlays c with a models.yaml: field by field, and roles, hints and models one by one. It returns the
// line of each value. On an error, such as an unknown field, c is unchanged. The result is not validated.
func overlayModels(c *model.Config, data []byte, file string) (strict.Lines, error) {
	all := *c
	all.Roles, all.Hints, all.Models = nil, nil, nil
	lines, err := strict.Decode(data, file, &all)
	if err != nil {
		return lines, err
	}
	all.Roles, all.Hints = mergeMaps(c.Roles, all.Roles), mergeMaps(c.Hints, all.Hints)
	for name, o := range all.Models {
		all.Models[name] = o.WithDefaults(c.Models[name])
	}
	all.Models = mergeMaps(c.Models, all.Models)
	*c = all
	return lines, nil
}

// mergeMaps returns base overlaid with over. Neither is changed.
func mergeMaps[V any](base, over map[string]V) map[string]V {
	all := make(map[string]V, len(base)+len(over))
	maps.Copy(all, base)
	maps.Copy(all, over)
	return all
}

// keyLookup returns the credential of a name.
type keyLookup func(ctx context.Context, name string) (string, error)

// newBrokeredKeyring returns a [keyLookup] that requests credentials from the broker, sealed to this run of the actor
// with this connection, for 30 seconds at most. The connection answers for its key. Credentials are not cached. Every
// failure of a lookup is [llm.ErrUnauthorized].
func newBrokeredKeyring(nc *nats.Conn) (keyLookup, error) {
	out, err := actor.NewOut(nc)
	if err != nil {
		return nil, err
	}
	own, err := seal.NewKey()
	if err != nil {
		return nil, err
	}
	key, err := subjects.SealKeyEndpoint(own.Public())
	if err != nil {
		return nil, err
	}
	if _, err := nc.Subscribe(key.Received, func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil {
		return nil, err
	}
	return func(ctx context.Context, name string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		v, err := actor.Ask(ctx, out, subjects.SecretUseService, subjects.SecretUse{Name: name, For: own.Public()})
		if err != nil {
			return "", fmt.Errorf("%w: reading the key %s: %w", llm.ErrUnauthorized, name, err)
		}
		key, err := seal.Open(own, v)
		if err != nil {
			return "", fmt.Errorf("%w: reading the key %s: %w", llm.ErrUnauthorized, name, err)
		}
		defer key.Wipe()
		return string(key.Reveal()), nil
	}, nil
}

// modelCredentials returns the names of the credentials that the model actor may use: those in its settings.
func modelCredentials(c model.Config) (out []string) {
	for _, s := range c.Servers() {
		if s.Key != "" {
			out = append(out, s.Key)
		}
	}
	return out
}

// newBackends returns a client for each configured server, by its name. It sends no request. It fails when one has an
// invalid setting.
func newBackends(c model.Config, keys keyLookup) (map[string]llm.Backend, error) {
	out := map[string]llm.Backend{}
	for name, s := range c.Servers() {
		b, err := newBackend(c, name, s, keys)
		if err != nil {
			return nil, fmt.Errorf("models.yaml: %s: %w", name, err)
		}
		out[name] = b
	}
	return out, nil
}

// newBackend returns the client of the server name. keys is called for each request of a server with a key; without
// s.Key requests have none. It rejects unknown servers and invalid addresses.
func newBackend(c model.Config, name string, s model.Server, keys keyLookup) (llm.Backend, error) {
	var key func(context.Context) (string, error)
	if s.Key != "" {
		key = func(ctx context.Context) (string, error) { return keys(ctx, s.Key) }
	}
	switch name {
	case model.Ollama:
		// Chat requests carry their own options; embedding requests use these.
		embedder := c.OptionsFor(c.Roles[subjects.RoleEmbeddings])
		return ollama.New(ollama.Config{
			URL: s.URL, Window: c.Defaults.Window, Predict: c.Defaults.Predict,
			KeepAlive: embedder.KeepAlive,
		})
	case model.OpenAI:
		u, err := url.Parse(s.URL)
		if err != nil {
			return nil, errors.New("invalid url")
		}
		return openai.New(openai.Config{URL: s.URL, Key: key, Official: u.Hostname() == "api.openai.com"})
	case model.Anthropic:
		return anthropic.New(anthropic.Config{URL: s.URL, Key: key})
	case model.Google:
		return genai.New(genai.Config{URL: s.URL, Key: key})
	}
	return nil, fmt.Errorf("unknown server")
}

// newModel returns the model actor with its servers, the built-in demo model and its audit writer. It rejects an
// invalid c, and fails without the hash key of home or an audit log that can be opened. It sends no request to a model
// server.
func newModel(ctx context.Context, c model.Config, home bus.Home, nc *nats.Conn, auditTimeout time.Duration,
	keys keyLookup,
) (actor.Actor, error) {
	c.AuditTimeout, c.MeasuredFile = auditTimeout, home.ModelSpeeds()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	backends, err := newBackends(c, keys)
	if err != nil {
		return nil, err
	}
	w, h, err := openAudit(ctx, home, "model", nc, auditTimeout)
	if err != nil {
		return nil, err
	}
	return model.New(c, backends, scripted.Backend{}, w, h), nil
}
