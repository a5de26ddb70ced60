package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"conclave/subjects"
)

// onContext returns what the model gets with the next question of a session: the messages with their tokens, the
// window, and what was summarized, dropped or left out.
func (g *Gateway) onContext(ctx context.Context, r *http.Request) (any, error) {
	c, err := g.client.SessionContext(ctx, r.PathValue("id"))
	c.Messages = append([]subjects.ContextMessage{}, c.Messages...)
	return c, err
}

// doctorTimeout is the timeout of all checks of the installation.
const doctorTimeout = time.Minute

// onDoctor runs the checks of conclave doctor. Where the process of the registry cannot, as in containers, it is 503.
func (g *Gateway) onDoctor(ctx context.Context, _ *http.Request) (any, error) {
	checks, err := g.client.RunDoctor(ctx)
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeUnavailable {
		return nil, unavailablef("the checks cannot run here; run conclave doctor in a terminal")
	}
	return object{{"checks", append([]subjects.DoctorCheck{}, checks...)}}, err
}
