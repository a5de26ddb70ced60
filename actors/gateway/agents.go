package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Participant is an actor of the running system with its figures.
type Participant struct {
	client.ActorFigures
	Kind     string   `json:"kind"`     // agent, service or tool
	Personas []string `json:"personas"` // of the committee
}

// kindOf returns the kind of an actor.
func kindOf(name string) string {
	switch {
	case slices.Contains(subjects.Respondents, name) || name == "critic":
		return "agent"
	case slices.Contains(subjects.Tools, name):
		return "tool"
	}
	return "service"
}

// onAgents lists the actors that answer, with the figures of conclave top. The gateway itself is not among them: it
// would measure this request.
func (g *Gateway) onAgents(ctx context.Context, _ *http.Request) (any, error) {
	stats, err := g.client.Stats(ctx)
	personas := []string{}
	for _, s := range stats {
		if names := s.Metadata["personas"]; s.Name == subjects.Committee && names != "" {
			personas = strings.Split(names, ", ")
		}
	}
	list := []Participant{}
	for _, f := range client.ListFigures(stats) {
		p := Participant{ActorFigures: f, Kind: kindOf(f.Actor), Personas: []string{}}
		if f.Actor == subjects.Committee {
			p.Personas = personas
		}
		list = append(list, p)
	}
	return object{{"agents", list}}, err
}
