package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// principalTimeout is the timeout of a request for the run-time principals.
const principalTimeout = 2 * time.Second

// refreshZones reads the run-time principals, and replaces the zones and what is declared about their tools. Tools of a
// zone that is gone can no longer be called. Without the registry everything stays as it is. It returns the zones that
// are new or have new tools.
func (b *Broker) refreshZones(ctx context.Context, out actor.Out) (added []string) {
	ctx, cancel := context.WithTimeout(ctx, principalTimeout)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.PrincipalListService, subjects.Empty{})
	if err != nil {
		return nil
	}
	zones, principals := maps.Clone(subjects.Zones), map[string]subjects.Principal{}
	var tools []policy.AddedTool
	for _, p := range list.Principals {
		zone, names, ok := p.Zone()
		if !ok || zones[zone] != nil {
			continue
		}
		zones[zone] = names
		if p.Kind != subjects.ToolPrincipal {
			continue
		}
		principals[zone] = p
		declared, err := policy.ParseTools(p)
		if err != nil { // the registry checks it
			out.LogError(err)
		}
		tools = append(tools, declared...)
	}
	b.rules.ReplaceTools(tools)
	return b.table.replaceZones(zones, principals)
}

// replaceZones replaces the zones and forgets the tools of those that are gone, and of a principal that was revoked and
// added again. It returns the zones that are new or have new tools.
func (t *toolTable) replaceZones(zones map[string][]string, principals map[string]subjects.Principal) (added []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	isGone := func(at zoneTool) bool {
		return !slices.Contains(zones[at.zone], at.tool) ||
			!t.principals[at.zone].Added.Equal(principals[at.zone].Added)
	}
	for name, in := range t.live {
		maps.DeleteFunc(in, func(zone string, _ Known) bool { return isGone(zoneTool{zone, name}) })
		if len(in) == 0 {
			delete(t.live, name)
		}
	}
	maps.DeleteFunc(t.accepted, func(at zoneTool, _ definition) bool { return isGone(at) })
	maps.DeleteFunc(t.proposed, func(at zoneTool, _ subjects.ToolSchema) bool { return isGone(at) })
	maps.DeleteFunc(t.rejected, func(at zoneTool, _ string) bool { return isGone(at) })
	maps.DeleteFunc(t.reported, func(at zoneTool, _ time.Time) bool { return isGone(at) })
	for zone, tools := range zones {
		if slices.ContainsFunc(tools, func(tool string) bool {
			return !slices.Contains(t.zones[zone], tool) || isGone(zoneTool{zone, tool})
		}) {
			added = append(added, zone)
		}
	}
	t.zones, t.principals = zones, principals
	slices.Sort(added)
	return added
}

// zoneNames returns the names of the zones, sorted.
func (t *toolTable) zoneNames() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.zones))
}

// serves reports whether a zone has a tool. For an unknown zone or tool, which the server vouches for, it refreshes the
// zones once: the message about a change may be late or lost.
func (t *toolTable) serves(ctx context.Context, zone, tool string, refresh func(context.Context)) bool {
	t.mu.RLock()
	tools := t.zones[zone]
	t.mu.RUnlock()
	if !slices.Contains(tools, tool) && subjects.Zones[zone] == nil && subjects.CheckToken(zone) == nil {
		refresh(ctx)
		t.mu.RLock()
		tools = t.zones[zone]
		t.mu.RUnlock()
	}
	return slices.Contains(tools, tool)
}

// onPrincipalChanged reads the run-time principals again, and discovers the tools of new ones.
func (b *Broker) onPrincipalChanged(ctx context.Context, _ actor.Msg[subjects.PrincipalNotice], out actor.Out) error {
	return b.discoverZones(ctx, out, b.refreshZones(ctx, out))
}

// callZones calls the tool k, and when it has no responder, the same tool of the next zone. It returns the result and
// the tool that it is of. A responder can forge "no responder" and have acted, so only repeatable tools are called in
// another zone; and only in one where the tool has no effect beyond those of k, by which the call was allowed.
func (b *Broker) callZones(ctx context.Context, out actor.Out, run stage.Running, k Known,
	announce func(),
) (subjects.ToolResult, Known) {
	res, unsent := b.callTool(ctx, out, run, k, announce)
	if !unsent || !isRepeatable(k.Tool) {
		return res, k
	}
	for _, other := range b.table.inZones(k.Name) {
		if other.Zone == k.Zone || !k.Effects.Includes(other.Effects) {
			continue
		}
		if res, unsent = b.callTool(ctx, out, run, other, announce); !unsent {
			return res, other
		}
	}
	return res, k
}

// discoverZones requests the definitions of the tools of zones, see [Broker.discoverTools].
func (b *Broker) discoverZones(ctx context.Context, out actor.Out, zones []string) error {
	b.table.mu.RLock()
	var tools []zoneTool
	for _, zone := range zones {
		for _, tool := range b.table.zones[zone] {
			tools = append(tools, zoneTool{zone, tool})
		}
	}
	b.table.mu.RUnlock()
	_, err := b.discoverTools(ctx, out, tools)
	return err
}

// zoneTool is a tool of a zone.
type zoneTool struct{ zone, tool string }

// discoverTools requests the definitions of tools, all at once, and returns those that replied. An unavailable tool is
// no error.
func (b *Broker) discoverTools(ctx context.Context, out actor.Out, tools []zoneTool) (map[zoneTool]bool, error) {
	var mu sync.Mutex
	var errs []error
	replied := map[zoneTool]bool{}
	var requests sync.WaitGroup
	for _, t := range tools {
		requests.Go(func() {
			ok, err := b.discoverTool(ctx, out, t.zone, t.tool)
			mu.Lock()
			defer mu.Unlock()
			replied[t] = ok
			if err != nil {
				errs = append(errs, fmt.Errorf("discovering %s: %w", t.tool, err))
			}
		})
	}
	requests.Wait()
	return replied, errors.Join(errs...)
}

// Pauses between the requests for the definitions of tools that are not announced: the first one, then doubling to the
// longest.
const (
	minDiscoveryPause = time.Second
	maxDiscoveryPause = 30 * time.Second
)

// discoverMissing requests the definitions of the tools that have not announced themselves, at most once per pause: a
// tool that was silent when the broker asked may run by now, and announces itself only when it starts. Concurrent
// callers do not wait for the one that asks. A failure is logged.
func (b *Broker) discoverMissing(ctx context.Context, out actor.Out) {
	if _, err := b.discoverTools(ctx, out, b.table.listMissing(out.Now())); err != nil {
		out.LogError(err)
	}
}

// listMissing returns the tools of all zones that are not announced. It returns none before [Broker.Start] asked them
// all, nor before the pause since then or since the last list is over.
func (t *toolTable) listMissing(now time.Time) (out []zoneTool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.discoverAt.IsZero() || now.Before(t.discoverAt) {
		return nil
	}
	for zone, tools := range t.zones {
		for _, tool := range tools {
			if _, announced := t.live[tool][zone]; !announced {
				out = append(out, zoneTool{zone, tool})
			}
		}
	}
	t.pause = min(2*t.pause, maxDiscoveryPause)
	t.discoverAt = now.Add(t.pause)
	return out
}

// beginPause begins the first pause before missing tools are asked again.
func (t *toolTable) beginPause(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause = minDiscoveryPause
	t.discoverAt = now.Add(t.pause)
}
