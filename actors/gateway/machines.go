package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Machine is another machine that joined or is invited.
type Machine struct {
	subjects.MachineStatus
	Up     bool                   `json:"up"`     // its link is up
	Models *subjects.ModelMachine `json:"models"` // its model server: queue, slots; nil = it has none
	Names  []string               `json:"names"`  // its models
}

// onMachines lists the machines with their links and models.
func (g *Gateway) onMachines(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := g.withTimeout(r.Context(), lookupTimeout)
	defer cancel()
	all, err := g.client.Machines(ctx)
	if err != nil {
		return g.mapReadError(ctx, err)
	}
	models, modelErr := g.client.Models(ctx)
	if modelErr != nil {
		// the links are worth showing without
		g.out.LogError(fmt.Errorf("listing the models of machines: %w", modelErr))
	}
	list := []Machine{}
	for _, m := range all {
		one := Machine{MachineStatus: m, Up: !m.Connected.IsZero(), Names: []string{}}
		for _, s := range models.Machines {
			if s.Name == m.Name {
				one.Models = &s
			}
		}
		for _, x := range models.Models {
			if x.Machine == m.Name {
				one.Names = append(one.Names, x.Name)
			}
		}
		list = append(list, one)
	}
	g.writeJSON(w, http.StatusOK, struct {
		Machines []Machine `json:"machines"`
	}{list})
	return nil
}

// linkCache caches the links that are down, because /health may be polled often.
type linkCache struct {
	mu    sync.Mutex
	until time.Time
	lines []string
}

// get returns a line for each machine that joined and whose link is down, cached for modelCacheTime. Without a
// registry, as with some actors alone, there are none.
func (l *linkCache) get(ctx context.Context, g *Gateway) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.out.Now().Before(l.until) {
		return l.lines
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), modelTimeout) // other callers wait for this reply
	defer cancel()
	all, err := g.client.Machines(ctx)
	l.lines = nil
	if err == nil {
		l.lines = client.DescribeLinks(all)
	}
	l.until = g.out.Now().Add(modelCacheTime)
	return l.lines
}

// splitList splits a list that is joined by commas; "" is an empty one.
func splitList(s string) []string {
	out := []string{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
