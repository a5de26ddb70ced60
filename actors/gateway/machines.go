package gateway

import (
	"context"
	"fmt"
	"net/http"
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
func (g *Gateway) onMachines(ctx context.Context, _ *http.Request) (any, error) {
	all, err := g.client.Machines(ctx)
	if err != nil {
		return nil, err
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
	return object{{"machines", list}}, nil
}

// describeLinks returns a line for each machine that joined and whose link is down, cached for modelCacheTime. Without
// a registry, as with some actors alone, there are none.
func (g *Gateway) describeLinks(ctx context.Context) []string {
	lines, _ := g.links.get(g.out.Now, func() ([]string, time.Duration, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.modelTimeout)
		defer cancel()
		all, err := g.client.Machines(ctx)
		return client.DescribeLinks(all), g.modelCacheTime, err
	})
	return lines
}
