package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/local"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Models is the response of GET /models.
type Models struct {
	Models     []Model              `json:"models"`
	Roles      []subjects.RoleModel `json:"roles"`
	FreeMemory int64                `json:"free_memory"` // of the gateway's machine in bytes; 0 = unknown
	Pulls      []Pull               `json:"pulls"`
}

// Model is one available model.
type Model struct {
	subjects.ModelInfo
	UsedBy []string `json:"used_by"` // roles that it has now
	Fits   string   `json:"fits"`    // loaded, yes, no; "" = not known: on another machine, or of unknown size
}

// fitShare is the part of the free memory that the file of a model may take: its context needs the rest.
const fitShare = 0.8

// fitOf estimates whether a model fits into the free memory of this machine.
func fitOf(m subjects.ModelInfo, free int64) string {
	switch {
	case m.Loaded:
		return "loaded"
	case m.Machine != "" || m.Remote != "" || m.Size <= 0 || free <= 0:
		return ""
	case float64(m.Size) <= fitShare*float64(free):
		return "yes"
	}
	return "no"
}

// onModels lists the models, the model of each role, and the downloads.
func (g *Gateway) onModels(ctx context.Context, _ *http.Request) (any, error) {
	list, err := g.client.Models(ctx)
	out := Models{
		Models: []Model{}, Roles: list.Roles, FreeMemory: local.AvailableMemory(), Pulls: g.pulls.list(),
	}
	latest := func(name string) string { return strings.TrimSuffix(name, ":latest") }
	for _, m := range list.Models {
		one := Model{ModelInfo: m, UsedBy: []string{}, Fits: fitOf(m, out.FreeMemory)}
		for _, role := range list.Roles {
			if latest(role.Model) == latest(m.Name) {
				one.UsedBy = append(one.UsedBy, role.Role)
			}
		}
		out.Models = append(out.Models, one)
	}
	return out, err
}

// Pull is the download of a model.
type Pull struct {
	Model     string    `json:"model"`
	Status    string    `json:"status"`
	Completed int64     `json:"completed"` // bytes of the layer that is fetched now
	Total     int64     `json:"total"`
	Began     time.Time `json:"began"`
	Ended     time.Time `json:"ended,omitzero"`
	Error     string    `json:"error,omitempty"`

	cancel context.CancelFunc
}

// pullTimeout is the longest time of a download.
const pullTimeout = 12 * time.Hour

// maxPulls bounds the downloads that are listed; finished ones are dropped first.
const maxPulls = 8

// pullLog is the downloads that this gateway started. A download goes on when the client disconnects, and ends with the
// gateway; what was fetched is kept by the model server.
type pullLog struct {
	mu    sync.Mutex
	pulls []*Pull
}

func (l *pullLog) list() []Pull {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []Pull{}
	for _, p := range l.pulls {
		out = append(out, *p)
	}
	return out
}

// add adds a download, unless one of this model runs or too many run.
func (l *pullLog) add(p *Pull) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	isOver := func(o *Pull) bool { return !o.Ended.IsZero() }
	i := slices.IndexFunc(l.pulls, func(o *Pull) bool { return o.Model == p.Model })
	switch {
	case i >= 0 && !isOver(l.pulls[i]):
		return conflictf("%s is being fetched already; GET /models shows the progress", p.Model)
	case i < 0 && len(l.pulls) >= maxPulls:
		if i = slices.IndexFunc(l.pulls, isOver); i < 0 {
			return problemf(http.StatusTooManyRequests, subjects.CodeBusy, "busy: %d models are being fetched; wait "+
				"for one", maxPulls)
		}
	}
	if i >= 0 {
		l.pulls = slices.Delete(l.pulls, i, i+1)
	}
	l.pulls = append(l.pulls, p)
	return nil
}

// change changes a download under the lock.
func (l *pullLog) change(p *Pull, change func(*Pull)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(p)
}

// cancel stops the download of a model, and reports whether one ran.
func (l *pullLog) cancel(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pulls {
		if p.Model == name && p.Ended.IsZero() {
			p.cancel()
			return true
		}
	}
	return false
}

// maxModelName bounds the name of a model, in bytes.
const maxModelName = 200

// modelName returns the name of a model in the path.
func modelName(r *http.Request) (string, error) {
	name := r.PathValue("name")
	if name == "" || len(name) > maxModelName || strings.ContainsFunc(name, func(c rune) bool {
		return c <= ' ' || c > '~'
	}) {
		return "", malformedf("the name of a model: 1 to %d printable characters without blanks", maxModelName)
	}
	return name, nil
}

// onPull starts the download of a model by the model actor, which records it in the audit log. GET /models shows the
// progress. With a cookie only, it denies names with a registry or a namespace: anybody can publish a model there.
func (g *Gateway) onPull(_ context.Context, r *http.Request) (any, error) {
	name, err := modelName(r)
	if err != nil {
		return nil, err
	}
	if strings.Contains(name, "/") && g.requireDirect(r) != nil {
		return nil, deniedf("a browser fetches models of Ollama's library only, without a slash in the name; for this "+
			"one use conclave model pull %s", name)
	}
	ctx, cancel := context.WithTimeout(g.life, pullTimeout)
	p := &Pull{Model: name, Status: "starting", Began: g.out.Now(), cancel: cancel}
	if err := g.pulls.add(p); err != nil {
		cancel()
		return nil, err
	}
	shown := *p
	g.serving.Go(func() {
		defer cancel()
		g.runPull(ctx, p)
	})
	return accepted{shown}, nil
}

// runPull fetches a model and keeps the progress in p.
func (g *Gateway) runPull(ctx context.Context, p *Pull) {
	for step, err := range g.client.PullModel(ctx, p.Model) {
		if err != nil {
			why := err.Error()
			var f *subjects.Fault
			switch {
			case ctx.Err() != nil:
				why = "stopped; what was fetched is kept, fetch it again to continue"
			case errors.As(err, &f):
				why = f.Text
			}
			g.pulls.change(p, func(p *Pull) { p.Status, p.Error, p.Ended = "failed", text.Clip(why, 500), g.out.Now() })
			return
		}
		g.pulls.change(p, func(p *Pull) {
			p.Status, p.Completed, p.Total = cmp.Or(step.Status, p.Status), step.Completed, step.Total
		})
	}
	g.pulls.change(p, func(p *Pull) { p.Status, p.Ended = "done", g.out.Now() })
}

// onPullStop stops the download of a model. What was fetched is kept.
func (g *Gateway) onPullStop(_ context.Context, r *http.Request) (any, error) {
	name, err := modelName(r)
	if err != nil {
		return nil, err
	}
	if !g.pulls.cancel(name) {
		return nil, notFoundf("%s is not being fetched", name)
	}
	return accepted{object{{"model", name}, {"status", "stopping"}}}, nil
}
