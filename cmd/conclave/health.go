package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/actor"
)

// healthTimeout bounds a health check.
const healthTimeout = 5 * time.Second

// healthReport is the answer to a health check: the states of the actors of one process.
type healthReport struct {
	Ready  bool          `json:"ready"` // every actor is ready
	Actors []actorHealth `json:"actors"`
}

// actorHealth is the state of one actor.
type actorHealth struct {
	Name     string      `json:"name"`
	State    actor.State `json:"state"`
	Restarts int         `json:"restarts"`
}

// healthCommand reports whether the actors of a process are ready. It needs no key, so that a container can be checked
// that has only the keys of its own actors.
func healthCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "health SOCKET",
		Short: "Check that the actors of one process are ready",
		Long: `Asks the process of conclave up --health SOCKET or conclave actor --health SOCKET for the states of
its actors. It uses no key and no network, so it can check a container that has only the keys of its
own actors.

The exit code is 0 if every actor is ready, 1 if one is not, and 4 if no process answers.`,
		Example: `  conclave actor broker --server nats://bus:4222 --health /tmp/health.sock
  conclave health /tmp/health.sock
  conclave health /tmp/health.sock --json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error { return checkHealth(cmd.Context(), a, v[0]) },
	}
}

// checkHealth prints the states of the actors of the process that serves the socket. It fails unless all are ready.
func checkHealth(ctx context.Context, a *cli.App, socket string) error {
	conn, err := gateway.DialSocket(ctx, socket)
	if err != nil {
		return cli.Fail(cli.ExitAbsent, "no process answers at "+socket, "start conclave up or conclave actor with "+
			"--health "+socket)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(healthTimeout))
	var r healthReport
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return cli.Fail(cli.ExitAbsent, "no complete answer from "+socket, "see the log of the process")
	}
	err = a.Print(r, nil, func() {
		for _, s := range r.Actors {
			fmt.Fprintf(a.Out, "%-14s %-10s %d restarts\n", s.Name, s.State, s.Restarts)
		}
	})
	if err == nil && !r.Ready {
		err = cli.Fail(cli.ExitFailed, "not every actor is ready", "see the log of the process")
	}
	return err
}

// serveHealth answers every connection to a Unix socket, mode 0600, with the states of the actors of c, until ctx ends.
// It returns at once, and replaces the socket of a process that has ended. socket "" serves nothing.
func serveHealth(ctx context.Context, socket string, c *config.Instance) error {
	if socket == "" {
		return nil
	}
	ln, err := gateway.ListenSocket(ctx, socket)
	if err != nil {
		return fmt.Errorf("serving health checks: %w: choose another --health", err)
	}
	context.AfterFunc(ctx, func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_ = conn.SetDeadline(time.Now().Add(healthTimeout))
				r := healthReport{Ready: true, Actors: []actorHealth{}}
				for _, s := range c.System.Actors() {
					state, restarts, _ := s.Health.Snapshot()
					r.Actors = append(r.Actors, actorHealth{s.Spec.Name, state, restarts})
					r.Ready = r.Ready && state == actor.Ready
				}
				_ = json.NewEncoder(conn).Encode(r)
				conn.Close()
			}
		}
	}()
	return nil
}
