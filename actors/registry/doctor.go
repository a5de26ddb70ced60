package registry

import (
	"context"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// ServeDoctor lets the user check the installation with run, which must change nothing. It must be called before the
// actor starts.
func (r *Registry) ServeDoctor(run func(ctx context.Context) []subjects.DoctorCheck) { r.doctor = run }

// doctorRoutes returns the request of the checks, none without [Registry.ServeDoctor].
func (r *Registry) doctorRoutes() []actor.Route {
	if r.doctor == nil {
		return nil
	}
	return []actor.Route{actor.Serve(subjects.DoctorService, r.onDoctor, actor.Workers(1))}
}

// onDoctor runs the checks, one caller at a time.
func (r *Registry) onDoctor(ctx context.Context, _ actor.Msg[subjects.Empty], _ actor.Out) (subjects.DoctorReport,
	error,
) {
	return subjects.DoctorReport{Checks: r.doctor(ctx)}, nil
}
