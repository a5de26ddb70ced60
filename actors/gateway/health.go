package gateway

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Health is what GET /health answers.
type Health struct {
	Status   string       `json:"status"` // ok or degraded
	Version  string       `json:"version"`
	NATS     NATSHealth   `json:"nats"`
	Model    *ModelHealth `json:"model"`    // nil = not known
	Degraded []string     `json:"degraded"` // what is missing, and what to do about it
}

// NATSHealth is the state of the link to the bus.
type NATSHealth struct {
	Connected bool `json:"connected"`
}

// ModelHealth is the model that answers.
type ModelHealth struct {
	Role      string `json:"role"`
	Model     string `json:"model"`
	DemoModel bool   `json:"demo_model"`
	Notice    string `json:"notice"`
}

// How long what is known of the models stays good, and how long they may take to tell.
const (
	modelCacheTime = 5 * time.Second
	modelTimeout   = 2 * time.Second
)

// modelCache remembers for a moment what the model actor said: /health may be asked often.
type modelCache struct {
	mu    sync.Mutex
	until time.Time
	model *ModelHealth
	err   error
}

// get asks the model actor, unless it has just answered.
func (m *modelCache) get(ctx context.Context, out actor.Out) (*ModelHealth, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := out.Now(); now.Before(m.until) {
		return m.model, m.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), modelTimeout) // others wait for the same answer
	defer cancel()
	m.model, m.err = nil, nil
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		m.err = fmt.Errorf("model: %w", err)
	} else {
		for _, r := range list.Roles {
			if r.Role == subjects.RoleAssistant {
				m.model = &ModelHealth{Role: r.Role, Model: r.Model, DemoModel: r.DemoModel, Notice: r.Notice}
			}
		}
		if m.model == nil {
			m.err = errors.New("model: no model has the role assistant; name one in models.yaml")
		}
	}
	m.until = out.Now().Add(modelCacheTime)
	return m.model, m.err
}

// onHealth says how things are. It answers 200 also when something is missing: the gateway itself is there.
func (g *Gateway) onHealth(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	h := Health{Status: "ok", Version: g.Version, Degraded: []string{}}
	if h.NATS.Connected = g.link.IsConnected(); !h.NATS.Connected {
		h.Degraded = append(h.Degraded, "nats: not connected to the bus; reconnecting. Is the server running?")
	} else if err := g.events.lastError(); err != nil {
		h.Degraded = append(h.Degraded, "events: they cannot be read at the moment; answers come when they can")
	}
	var f *subjects.Fault
	model, err := g.models.get(r.Context(), g.out)
	switch {
	case errors.As(err, &f) && f.Code == subjects.CodeUnavailable:
		h.Degraded = append(h.Degraded, "model: no model actor answers; start it with: conclave actor model")
	case errors.As(err, &f):
		h.Degraded = append(h.Degraded, "model: "+f.Text)
	case err != nil:
		h.Degraded = append(h.Degraded, err.Error())
	}
	if h.Model = model; model != nil && (model.DemoModel || model.Notice != "") {
		why := model.Notice
		if why == "" {
			why = "the built-in demo model answers, not a model; start Ollama"
		}
		h.Degraded = append(h.Degraded, "model: "+why)
	}
	if len(h.Degraded) > 0 {
		h.Status = "degraded"
	}
	g.writeJSON(w, http.StatusOK, h)
	return nil
}

// openAPI describes the API for programs. A test holds it together with the routes.
//
//go:embed openapi.yaml
var openAPI []byte

// onOpenAPI shows it.
func (g *Gateway) onOpenAPI(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(openAPI)
	return nil
}
