package config

import (
	"context"
	"log/slog"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// capacityInterval is how often the size of the audit log is read.
const capacityInterval = 2 * time.Second

// watchAuditCapacity warns, in the log and with an event, when 80 % of a writer's part of the audit log are used, once
// per writer, until ctx ends. It connects with the auditor's key. Sizes that cannot be read are read again at the next
// interval. log may be nil.
func watchAuditCapacity(ctx context.Context, b *bus.Bus, log *slog.Logger) {
	nc, err := b.Dial("auditor")
	if err != nil {
		return // the server is stopping; conclave doctor reports any other reason
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		return
	}
	out, err := actor.NewOut(nc)
	if err != nil {
		return
	}
	warned := map[string]bool{}
	tick := time.NewTicker(capacityInterval)
	defer tick.Stop()
	for {
		parts, err := c.AuditStatus(ctx)
		for w, s := range parts {
			if err != nil || warned[w] || !s.IsNearlyFull() {
				continue
			}
			if log != nil {
				log.Warn("a part of the audit log is nearly full: stop conclave and run conclave audit rotate", "actor",
					w, "bytes", s.Bytes, "max", s.Max)
			}
			warned[w] = actor.Emit(ctx, out, subjects.AuditCapacityEvent,
				subjects.AuditCapacity{Writer: w, Bytes: s.Bytes, Max: s.Max}) == nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
