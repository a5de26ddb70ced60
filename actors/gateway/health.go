package gateway

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/damage"
	"conclave/subjects"
)

// Health is the response of GET /health.
type Health struct {
	Status   string       `json:"status"` // ok or degraded
	Version  string       `json:"version"`
	NATS     NATSHealth   `json:"nats"`
	Model    *ModelHealth `json:"model"`    // nil: unknown
	Degraded []string     `json:"degraded"` // each problem, with what to do about it
}

// NATSHealth is the state of the connection to the bus.
type NATSHealth struct {
	Connected bool `json:"connected"`
}

// ModelHealth is the assistant's model.
type ModelHealth struct {
	Role      string `json:"role"`
	Model     string `json:"model"`
	DemoModel bool   `json:"demo_model"`
	Notice    string `json:"notice"`
	onMachine bool   // the name begins with that of another machine
}

// Lifetime of the cached model state, and timeout of the request that reads it.
const (
	modelCacheTime = 5 * time.Second
	modelTimeout   = 2 * time.Second
)

// cached is a value that callers share for some time, because it may be asked for often.
type cached[T any] struct {
	mu    sync.Mutex
	until time.Time
	value T
	err   error
}

// get returns what read returned last, for as long as that said; then it calls read. Concurrent callers wait for that
// call.
func (c *cached[T]) get(now func() time.Time, read func() (T, time.Duration, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !now().Before(c.until) {
		var keep time.Duration
		c.value, keep, c.err = read()
		c.until = now().Add(keep)
	}
	return c.value, c.err
}

// assistantModel returns the assistant's model, or the error of the request, both cached for modelCacheTime. Otherwise
// it asks the model actor, for modelTimeout at most, even beyond the end of ctx: other callers wait for the reply. No
// model for the role assistant is an error.
func (g *Gateway) assistantModel(ctx context.Context) (*ModelHealth, error) {
	return g.models.get(g.out.Now, func() (*ModelHealth, time.Duration, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.modelTimeout)
		defer cancel()
		list, err := actor.Ask(ctx, g.out, subjects.ModelListService, subjects.Empty{})
		if err != nil {
			return nil, g.modelCacheTime, fmt.Errorf("model: %w", err)
		}
		for _, r := range list.Roles {
			if r.Role == subjects.RoleAssistant {
				m := &ModelHealth{Role: r.Role, Model: r.Model, DemoModel: r.DemoModel, Notice: r.Notice}
				host, _, qualified := strings.Cut(r.Model, "/")
				m.onMachine = qualified && slices.ContainsFunc(list.Machines,
					func(o subjects.ModelMachine) bool { return o.Name == host })
				return m, g.modelCacheTime, nil
			}
		}
		return nil, g.modelCacheTime, errors.New("model: no model has the role assistant; set one in models.yaml")
	})
}

// maxDamage bounds the reports of damage in /health.
const maxDamage = 5

// describeDamage returns the damage that was found in the data folder, and in those of other processes, for a client
// without details.
func (g *Gateway) describeDamage(ctx context.Context, client bool) (out []string) {
	var found []string
	if g.Data != "" {
		reports, err := damage.Read(g.Data)
		for _, r := range reports {
			found = append(found, r.String())
		}
		if err != nil {
			found = append(found, "the list of damage cannot be read")
		}
	}
	for _, text := range g.describeOtherDamage(ctx) {
		if !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	if len(found) > 0 && client {
		return []string{"data: stored data is damaged"}
	}
	for _, text := range found[:min(len(found), maxDamage)] {
		out = append(out, "data: "+text+"; "+damage.Remedy)
	}
	return out
}

// describeOtherDamage returns the damage that memory and the registry found in data folders of their own, cached for
// modelCacheTime. Each is asked by its name, under which the server lets no other actor reply.
func (g *Gateway) describeOtherDamage(ctx context.Context) []string {
	if !g.OtherData || !g.link.IsConnected() {
		return nil
	}
	lines, _ := g.otherDamage.get(g.out.Now, func() (lines []string, _ time.Duration, err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.modelTimeout)
		defer cancel()
		for _, name := range []string{memoryAccount, subjects.Registry} {
			pings, failed := g.client.Ping(ctx, name)
			err = errors.Join(err, failed)
			for _, p := range pings {
				if notice := p.Metadata[damage.NoticeKey]; notice != "" {
					lines = append(lines, strings.Split(notice, "\n")...)
				}
			}
		}
		return lines, g.modelCacheTime, err
	})
	return lines
}

// onHealth reports the state of the bus, the event log, the stored data, the assistant's model and the links to other
// machines. The status code is 200 even when the state is degraded, with a reason each: the gateway itself runs. The
// built-in demo model counts as degraded.
func (g *Gateway) onHealth(w http.ResponseWriter, r *http.Request) error {
	h := Health{Status: "ok", Version: g.Version, Degraded: []string{}}
	if h.NATS.Connected = g.link.IsConnected(); !h.NATS.Connected {
		h.Degraded = append(h.Degraded, "nats: not connected to the bus; reconnecting. Is the server running?")
	} else if err := g.events.LastError(); err != nil {
		h.Degraded = append(h.Degraded, "events: the event log cannot be read; answers are delayed until it can")
	}
	h.Degraded = append(h.Degraded, g.describeDamage(r.Context(), clientOf(r) != nil)...)
	model, why := g.describeModel(r.Context(), clientOf(r) != nil)
	h.Model, h.Degraded = model, append(h.Degraded, why...)
	links := g.describeLinks(r.Context())
	if len(links) > 0 && clientOf(r) != nil { // the names of machines are for the user
		links = []string{"machines: a machine is not connected"}
	}
	h.Degraded = append(h.Degraded, links...)
	if len(h.Degraded) > 0 {
		h.Status = "degraded"
	}
	g.writeJSON(w, http.StatusOK, h)
	return nil
}

// describeModel returns the assistant's model and what is wrong with it, for a client without the names of machines and
// servers, which faults and notices of the model actor hold.
func (g *Gateway) describeModel(ctx context.Context, client bool) (m *ModelHealth, degraded []string) {
	var f *subjects.Fault
	m, err := g.assistantModel(ctx)
	switch {
	case err != nil && client:
		return nil, []string{"model: no model answers"}
	case errors.As(err, &f) && f.Code == subjects.CodeUnavailable:
		return nil, []string{"model: the model actor is not running; start it with: conclave actor model"}
	case errors.As(err, &f):
		return nil, []string{"model: " + f.Text}
	case err != nil:
		return nil, []string{err.Error()}
	}
	why := m.Notice
	if client {
		shown := *m // m is shared
		m = &shown
		if m.onMachine {
			_, m.Model, _ = strings.Cut(m.Model, "/")
		}
		if m.Notice != "" {
			m.Notice, why = "", "another model than the configured one answers"
		}
	}
	switch {
	case why != "":
		degraded = []string{"model: " + why}
	case m.DemoModel:
		degraded = []string{"model: the built-in demo model answers; start Ollama"}
	}
	return m, degraded
}

// openAPI is the OpenAPI description. A test compares it with the routes.
//
//go:embed openapi.yaml
var openAPI []byte

// onOpenAPI returns the OpenAPI description.
func (g *Gateway) onOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(openAPI)
	return nil
}
