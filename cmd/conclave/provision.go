package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// provisionCommand makes the streams of a stand-alone server.
func (a *app) provisionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "provision --server URL",
		Short: "Make the streams on a stand-alone NATS server, once",
		Long: `Makes the streams, buckets and consumers on a NATS server that was started with the files of conclave keys, and opens
the audit. Then it deletes the seeds of the two provisioners: from then on nobody can live where streams live, because
nobody has the keys.

Running it again when the streams are there and the seeds are gone changes nothing and ends well. To let a new version
change the streams, run conclave keys, restart the server with the new environment file, and provision again.`,
		Example: "  conclave provision --server nats://127.0.0.1:4222",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.server == "" {
				return usage("which server? Name it with --server URL; the embedded server of conclave up needs no provisioning")
			}
			return a.provision(cmd.Context())
		},
	}
}

// provisioned is what a provisioning came to.
type provisioned struct {
	URL     string   `json:"url"`
	Done    bool     `json:"done"`    // false: it had been done before
	Deleted []string `json:"deleted"` // seeds
}

func (a *app) provision(ctx context.Context) error {
	cfg, err := a.load(nil)
	if err != nil {
		return err
	}
	if err := a.home.Make(); err != nil {
		return err
	}
	unlock, err := a.home.Lock() // the anchors of the audit are ours alone meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	b := &bus.Bus{URL: a.server, Keys: a.home.Keys(), Log: a.quiet()}
	err = auditlog.Provision(ctx, a.home, b, func(ctx context.Context, genesis []byte) error {
		return patiently(ctx, func() error { return bus.ProvisionWith(ctx, b, cfg.ServerConfig(a.home), genesis) })
	})
	out := provisioned{URL: a.server, Done: true, Deleted: []string{}}
	again := "run conclave keys" + a.again() + " and restart nats-server with the new environment file"
	switch {
	case errors.Is(err, bus.ErrMissingKey):
		if !streamsThere(ctx, b) {
			return fail(exitFailed, "the provisioners' keys are gone and the streams are not all there", again+", then provision again")
		}
		out.Done = false
	case errors.Is(err, bus.ErrKey):
		return fail(exitFailed, err.Error(), again)
	case err != nil:
		return err
	}
	_, boot := subjects.Table().Roles()
	for _, r := range boot {
		switch err := os.Remove(b.Keys.Path(r)); {
		case err == nil:
			out.Deleted = append(out.Deleted, b.Keys.Path(r))
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("the streams are made, but a provisioner's seed is still there: %w: delete it", err)
		}
	}
	if _, err := bus.WriteContexts(b.Keys, b.URL); err != nil {
		a.say("the nats contexts could not be written: %v", err)
	}
	switch {
	case a.json:
		return a.document(out)
	case out.Done:
		a.say("The streams are made. The provisioners' seeds are deleted, so nobody can act where streams live; to provision again, %s.", again)
	default:
		a.say("The streams are there already and the provisioners' keys are gone, as they should be: nothing to do. To provision again, %s.", again)
	}
	return nil
}

// patiently tries again while nobody answers: the server was often started in the line before.
func patiently(ctx context.Context, step func() error) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := step()
		if !errors.Is(err, bus.ErrUnreachable) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// streamsThere looks for one stream of each place, with the keys that may look.
func streamsThere(ctx context.Context, b *bus.Bus) bool {
	for _, look := range []struct{ role, prefix, name string }{{"user", bus.CoreAPI, "EVENTS"}, {"auditor", bus.AuditAPI, "AUDIT"}} {
		nc, err := b.Dial(look.role)
		if err != nil {
			return false
		}
		_, err = stream(ctx, nc, look.prefix, look.name)
		nc.Close()
		if err != nil {
			return false
		}
	}
	return true
}
