package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Known is a tool with its facts and the hash of the only definition that the broker accepts for it.
type Known struct {
	policy.Tool
	Pin string // [Pin] of that definition; "" matches none
	// Disabled is why the tool cannot run on this machine and what to do; "" = it can. Such a tool is not offered, and
	// calls are denied with the reason.
	Disabled string
	schema   subjects.ToolSchema // the announced definition
}

// toolTable holds the facts of the build's own tools and every tool that has announced itself. Only an announced tool
// can be called.
type toolTable struct {
	mu         sync.RWMutex
	build      map[string]Known
	live       map[string]map[string]Known   // announced tools by name and zone
	zones      map[string][]string           // tools by zone: those of the table and of run-time principals
	principals map[string]subjects.Principal // tool principals by zone
	accepted   map[zoneTool]definition       // accepted definitions of their tools, as last read
	reported   map[zoneTool]time.Time        // when a changed definition was last reported
	// changed definitions that wait for the user; of no use after a restart, when the tools are asked again
	proposed   map[zoneTool]subjects.ToolSchema
	rejected   map[zoneTool]string                   // why the last announcement of a tool principal was rejected
	declared   func(tool string) (policy.Tool, bool) // the manifest's facts about a tool outside the build
	discovered chan struct{}                         // closed when [Broker.Start] has asked every zone for its tools
	discoverAt time.Time                             // when missing tools are asked again, see listMissing
	pause      time.Duration                         // before discoverAt
}

// newTable returns a table of the build's tools. declared has the current manifest's facts about others.
func newTable(build []Known, declared func(tool string) (policy.Tool, bool)) *toolTable {
	t := &toolTable{
		declared: declared, build: map[string]Known{}, live: map[string]map[string]Known{},
		zones: subjects.Zones, accepted: map[zoneTool]definition{}, proposed: map[zoneTool]subjects.ToolSchema{},
		rejected: map[zoneTool]string{}, reported: map[zoneTool]time.Time{}, discovered: make(chan struct{}),
	}
	for _, k := range build {
		t.build[k.Name] = k
	}
	return t
}

// find returns a tool that can be called; false means that none is announced under that name. For a tool that is not
// announced it waits until discovery ends or ctx is done, because calls arrive before the broker knows the running
// tools.
func (t *toolTable) find(ctx context.Context, tool string) (Known, bool) {
	k, ok := t.get(tool)
	if ok {
		return k, true
	}
	select {
	case <-t.discovered:
	case <-ctx.Done():
	}
	return t.get(tool)
}

// get returns the tool of its first zone.
func (t *toolTable) get(tool string) (Known, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	announced, zone := t.live[tool], t.build[tool].Zone
	k, ok := announced[zone]
	if !ok {
		if len(announced) == 0 {
			return Known{}, false
		}
		k = announced[slices.Min(slices.Collect(maps.Keys(announced)))]
	}
	return t.withFacts(k), true
}

// inZones returns the tool as each zone announced it: the zone of the build first, then by name.
func (t *toolTable) inZones(tool string) (out []Known) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	home := t.build[tool].Zone
	for _, zone := range slices.Sorted(maps.Keys(t.live[tool])) {
		k := t.withFacts(t.live[tool][zone])
		if zone == home {
			out = slices.Insert(out, 0, k)
		} else {
			out = append(out, k)
		}
	}
	return out
}

// withFacts returns a tool outside the build with the manifest's facts about it. Without facts it keeps the zero ones,
// the most restricted. The caller must hold mu.
func (t *toolTable) withFacts(k Known) Known {
	if _, ours := t.build[k.Name]; ours {
		return k
	}
	if facts, ok := t.declared(k.Name); ok {
		facts.Name, facts.Zone = k.Name, k.Zone
		k.Tool = facts
	}
	return k
}

// errPinMismatch means that an announced definition differs from the accepted one.
var errPinMismatch = errors.New("its definition changed since it was accepted")

// add registers an announced tool, in place of an earlier announcement. zone is from the subject, which the server
// enforces. A tool outside the build has the manifest's facts, or else the zero ones, and must match the hash in
// pinned, which a tool of the build ignores. A tool of the build in another zone than its own runs on another machine:
// it reads untrusted content, so that none of its results is trusted and none is without effects. A tool that the zone
// does not have is denied; one whose definition does not match is denied and can no longer be called in that zone.
func (t *toolTable) add(zone string, s subjects.ToolSchema, pinned string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ours := t.build[s.Name]
	if !ours {
		k = Known{Tool: policy.Tool{Name: s.Name, Zone: zone, Foreign: true}, Pin: pinned}
	}
	if !slices.Contains(t.zones[zone], s.Name) {
		return fmt.Errorf("zone %s has no tool %s", zone, s.Name)
	}
	if ours && zone != k.Zone {
		k.Effects = k.Effects.With(policy.ReadsUntrusted) // another machine returns whatever it likes
	}
	k.Zone = zone
	if k.Pin == "" || k.Pin != Pin(s) {
		// Only the tool's own key can announce its name: the running tool is not the accepted one.
		delete(t.live[s.Name], zone)
		return errPinMismatch
	}
	k.schema = s
	if t.live[s.Name] == nil {
		t.live[s.Name] = map[string]Known{}
	}
	t.live[s.Name][zone] = k
	delete(t.proposed, zoneTool{zone, s.Name})
	return nil
}

// AddTools registers tools that run in the broker's process and announce nothing, for the simulation. Each must be
// among the build's tools and match its hash. It must be called once, before the broker serves, and instead of
// [Broker.Start].
func (b *Broker) AddTools(schemas ...subjects.ToolSchema) error {
	for _, s := range schemas {
		k, ok := b.table.build[s.Name]
		if !ok {
			return fmt.Errorf("unknown tool %s", s.Name)
		}
		if zones := b.table.zones; !slices.Contains(zones[k.Zone], s.Name) { // a tool of the simulation only
			b.table.zones = maps.Clone(zones)
			b.table.zones[k.Zone] = append(slices.Clip(zones[k.Zone]), s.Name)
		}
		if err := b.table.add(k.Zone, s, k.Pin); err != nil {
			return fmt.Errorf("adding %s: %w", s.Name, err)
		}
	}
	close(b.table.discovered)
	return nil
}

// all returns the tools that can be called, ordered by name.
func (t *toolTable) all() []Known {
	t.mu.RLock()
	names := slices.Sorted(maps.Keys(t.live))
	t.mu.RUnlock()
	out := make([]Known, 0, len(names))
	for _, name := range names {
		if k, ok := t.get(name); ok {
			out = append(out, k)
		}
	}
	return out
}

// Pin is the hash of a definition without its key, which changes with each run. A tool whose description changes has
// another hash. "" means that s cannot be encoded because its parameters are no JSON; announcements are checked for
// that before.
func Pin(s subjects.ToolSchema) string {
	s.Key = ""
	b, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// maxAnnouncements bounds the announcements of a zone per second, and ten times as many at once: more than a principal
// has tools.
const maxAnnouncements = 20

// onSchema registers a tool that announces itself.
func (b *Broker) onSchema(ctx context.Context, in actor.Msg[subjects.ToolSchema], out actor.Out) error {
	if len(in.Tokens) != 2 {
		return subjects.Faultf(subjects.CodeSubject, "invalid announcement subject: %s", in.Subject)
	}
	err := b.acceptSchema(ctx, out, in.Tokens[0], in.Tokens[1], in.Body)
	b.noteAnnouncement(zoneTool{in.Tokens[0], in.Tokens[1]}, err)
	return err
}

// onSchemaRejected keeps why an announcement could not be decoded, or that a zone announces too often.
func (b *Broker) onSchemaRejected(ctx context.Context, rej actor.Rejection, out actor.Out) {
	if len(rej.Tokens) == 2 && b.table.serves(ctx, rej.Tokens[0], rej.Tokens[1], func(ctx context.Context) {
		b.refreshZones(ctx, out)
	}) {
		b.noteAnnouncement(zoneTool{rej.Tokens[0], rej.Tokens[1]}, rej.Fault)
	}
}

// noteAnnouncement keeps the fault of an announcement of a tool principal for the user, or forgets the last one. A
// definition that waits for the user, and an error that is not the tool's, are no faults of the announcement.
func (b *Broker) noteAnnouncement(at zoneTool, err error) {
	t := b.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.principals[at.zone].Tools, at.tool) {
		return
	}
	var fault *subjects.Fault
	if errors.As(err, &fault) && fault.Code != subjects.CodeDenied {
		t.rejected[at] = text.OneLine(fault.Text, maxFaultBytes)
		return
	}
	delete(t.rejected, at)
}

// acceptSchema checks an announcement and registers the tool. name and zone are from the subject, which the server
// enforces: it rejects a body with another name, a tool that the zone does not have, parameters that are not one JSON
// object, and a definition that differs from the accepted one, which waits for the user when the tool is not of the
// build. A rejection is a fault; another error means that the hash could not be stored or read.
func (b *Broker) acceptSchema(ctx context.Context, out actor.Out, zone, name string, s subjects.ToolSchema) error {
	switch {
	case subjects.CheckToken(name) != nil || s.Name != name:
		return subjects.Faultf(subjects.CodeMalformed, "a tool announced itself as %q under the name %q",
			text.Clip(s.Name, 40), text.Clip(name, 40))
	case !b.table.serves(ctx, zone, name, func(ctx context.Context) { b.refreshZones(ctx, out) }):
		return subjects.Faultf(subjects.CodeDenied, "zone %s has no tool %s", text.Clip(zone, 40), name)
	}
	if err := strict.CheckObject(s.Parameters); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "the schema of %s is not a JSON object: %v", name, err)
	}
	if _, ours := b.table.build[name]; !ours {
		return b.acceptAnnounced(ctx, out, zone, s)
	}
	if err := b.table.add(zone, s, ""); err != nil {
		return subjects.Faultf(subjects.CodeDenied, "tool %s was not registered: %v", name, err)
	}
	return nil
}

// discoverTool requests the definition of one tool through the micro protocol, within a second, and registers it. Only
// the tool's own account may serve that subject, so the reply is the tool's own. An unavailable tool, or a definition
// that is denied or malformed, is no error: the tool stays unknown until it announces itself. It reports whether the
// tool replied with a definition.
func (b *Broker) discoverTool(ctx context.Context, out actor.Out, zone, tool string) (replied bool, err error) {
	speaker, field := tool, "definition" // each tool of a machine is an actor of its own
	if zone != "tools" && !strings.HasPrefix(zone, "tools_") {
		speaker, field = zone, "definition."+tool // one actor serves all tools of its zone
	}
	info, err := askInfo(ctx, out, zone, speaker)
	if info == nil {
		return false, err
	}
	var s subjects.ToolSchema
	announced, ok := info[field]
	// the actor replies while its server starts or is not connected
	if !ok && strings.HasPrefix(zone, subjects.MCPPrincipal("")) {
		return false, nil
	}
	if err := strict.DecodeJSON([]byte(announced), &s); err != nil {
		b.noteAnnouncement(zoneTool{zone, tool}, subjects.Faultf(subjects.CodeMalformed, "metadata %s of its INFO "+
			"reply: %v", field, err))
		return false, nil
	}
	s.Key = info["key"]
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = b.acceptSchema(ctx, out, zone, tool, s)
	b.noteAnnouncement(zoneTool{zone, tool}, err)
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return true, nil
	}
	return true, err
}

// askInfo requests the metadata of an actor of a zone through the micro protocol, within a second. nil = no reply.
func askInfo(ctx context.Context, out actor.Out, zone, speaker string) (metadata map[string]string, err error) {
	service, err := subjects.ToolInfo.With(zone, speaker)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var info struct {
		Metadata map[string]string `json:"metadata"`
	}
	answer, _, err := out.Request(ctx, service.Spec, nil)
	if err != nil || json.Unmarshal(answer, &info) != nil {
		return nil, nil
	}
	return info.Metadata, nil
}
