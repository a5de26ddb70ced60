package config

import (
	"context"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/policy"
)

// Reload applies the file at once: the caller knows that it is complete. The error is that of the current file.
func (r *Reloader) Reload() error { return r.check(false) }

// NewMCP is what the supervisor calls at each start of the actor mcp.
func (c Config) NewMCP(home bus.Home, nc *nats.Conn) (actor.Actor, error) { return c.newMCP(home, nc) }

// MakeBackup makes a scheduled backup now.
func (r *Instance) MakeBackup(ctx context.Context, c Config, home bus.Home) (string, error) {
	return r.makeBackup(ctx, c, home)
}

// PolicyEnv returns the facts about this machine that the layers use.
func (c Config) PolicyEnv(home bus.Home) policy.Env { return c.policyEnv(home) }

// BuildTools returns the facts of every tool of this build.
func (c Config) BuildTools() []broker.Known { return c.buildTools() }
