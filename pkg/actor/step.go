package actor

import "context"

type stepKey struct{}

// Step marks a point between two durable steps at which a crash must lose nothing and repeat nothing. It calls the
// observer of [WithSteps] and does nothing without one: in production there is none.
func Step(ctx context.Context, name string) {
	if observe, ok := ctx.Value(stepKey{}).(func(string)); ok {
		observe(name)
	}
}

// WithSteps has observe called at each [Step] below ctx, in the goroutine of the step. Crash tests panic or kill the
// process there. The runtime installs [Config.Steps] for all handlers of an actor.
func WithSteps(ctx context.Context, observe func(name string)) context.Context {
	if observe == nil {
		return ctx
	}
	return context.WithValue(ctx, stepKey{}, observe)
}
