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
	"conclave/pkg/text"
	"conclave/subjects"
)

// Known is what the broker knows of a tool: its facts, and the hash of the only definition it accepts.
type Known struct {
	policy.Tool
	Pin    string              // the hash of that definition; an empty one matches nothing
	schema subjects.ToolSchema // the definition, once the tool is here
}

// toolTable is every tool that has announced itself. The facts of the build's own tools are there from the start, but a
// tool can be called only once it is here.
type toolTable struct {
	mu         sync.RWMutex
	build      map[string]Known
	live       map[string]Known
	discovered chan struct{} // closed when those that were there before the broker have been looked for
}

func newTable(build []Known) *toolTable {
	t := &toolTable{build: map[string]Known{}, live: map[string]Known{}, discovered: make(chan struct{})}
	for _, k := range build {
		t.build[k.Name] = k
	}
	return t
}

// find returns a tool that can be called. Calls come in before the broker has looked around: a tool that it does not
// know yet is not unknown, so the call waits for the search to end.
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

func (t *toolTable) get(tool string) (Known, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	k, ok := t.live[tool]
	return k, ok
}

// errPinMismatch means that a tool's definition is not the one that was accepted before.
var errPinMismatch = errors.New("its definition has changed since it was accepted")

// add takes a tool in. zone is what the server says about where it lives.
func (t *toolTable) add(zone string, s subjects.ToolSchema, pinned string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ours := t.build[s.Name]
	if !ours {
		// Nobody has said what it does: the zero facts are the worst ones.
		k = Known{Tool: policy.Tool{Name: s.Name, Zone: zone}, Pin: pinned}
	}
	if k.Zone != zone {
		return fmt.Errorf("it belongs to %s and was announced from %s", k.Zone, zone)
	}
	if k.Pin != Pin(s) {
		// Only the tool itself can announce its name: what stands behind it is no longer what was accepted.
		delete(t.live, s.Name)
		return errPinMismatch
	}
	k.schema = s
	t.live[s.Name] = k
	return nil
}

// AddTools takes in tools that live in the same process and announce themselves to nobody: those of a simulation. What the
// broker knows of each is what it was made with; it is called before the broker serves.
func (b *Broker) AddTools(schemas ...subjects.ToolSchema) error {
	for _, s := range schemas {
		k, ok := b.table.build[s.Name]
		if !ok {
			return fmt.Errorf("nothing is known of the tool %s", s.Name)
		}
		if err := b.table.add(k.Zone, s, k.Pin); err != nil {
			return fmt.Errorf("seating %s: %w", s.Name, err)
		}
	}
	close(b.table.discovered)
	return nil
}

// all returns the tools that can be called, by name.
func (t *toolTable) all() []Known {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.live), func(a, b Known) int { return strings.Compare(a.Name, b.Name) })
}

// Pin is the hash of a definition: a tool whose words to the model change is another tool. The key of the run at hand is
// no part of it.
func Pin(s subjects.ToolSchema) string {
	s.Key = ""
	b, err := json.Marshal(s)
	if err != nil {
		return "" // not even JSON: matches no pin
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// onSchema takes in a tool that announces itself.
func (b *Broker) onSchema(ctx context.Context, in actor.Msg[subjects.ToolSchema], out actor.Out) error {
	if len(in.Tokens) != 2 {
		return subjects.Faultf(subjects.CodeSubject, "not an announcement: %s", in.Subject)
	}
	return b.acceptSchema(ctx, out, in.Tokens[0], in.Tokens[1], in.Body)
}

// acceptSchema checks an announcement and pins a definition that is seen for the first time. name is what the server let the
// tool say; what the body says must agree with it.
func (b *Broker) acceptSchema(ctx context.Context, out actor.Out, zone, name string, s subjects.ToolSchema) error {
	switch {
	case subjects.CheckToken(name) != nil || s.Name != name:
		return subjects.Faultf(subjects.CodeMalformed, "a tool announced itself as %q under the name %q", text.Clip(s.Name, 40), text.Clip(name, 40))
	case !slices.Contains(subjects.Zones[zone], name):
		return subjects.Faultf(subjects.CodeDenied, "zone %s has no tool %s", text.Clip(zone, 40), name)
	}
	if err := actor.CheckJSONObject(s.Parameters); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "the schema of %s is not a JSON object: %v", name, err)
	}
	pin := ""
	if _, ours := b.table.build[name]; !ours {
		var err error
		if pin, err = pinSchema(ctx, out, zone, s); err != nil {
			return fmt.Errorf("pinning %s: %w", name, err)
		}
	}
	if err := b.table.add(zone, s, pin); err != nil {
		return subjects.Faultf(subjects.CodeDenied, "the tool %s was not taken in: %v", name, err)
	}
	return nil
}

// pinSchema returns the hash accepted for a tool of somebody else's: the first one ever seen.
func pinSchema(ctx context.Context, out actor.Out, zone string, s subjects.ToolSchema) (string, error) {
	store, key, mine := out.Store("schemas"), zone+"."+s.Name, Pin(s)
	_, err := store.Put(ctx, key, []byte(mine), 0)
	if err == nil {
		return mine, nil
	}
	if !errors.Is(err, actor.ErrChanged) {
		return "", err
	}
	v, _, err := store.Get(ctx, key)
	return string(v), err
}

// discoverTool asks one tool for its definition, by the micro protocol. Only the tool itself may listen to its name there, so
// the answer is its own. A tool that is not there is no error: it will announce itself.
func (b *Broker) discoverTool(ctx context.Context, out actor.Out, zone, tool string) error {
	speaker, field := tool, "definition" // a tool of this machine speaks for itself
	if zone != "tools" {
		speaker, field = zone, "definition."+tool // the actor for all that it serves
	}
	service, err := subjects.ToolInfo.With(zone, speaker)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, _, err := out.Request(ctx, service.Spec, nil)
	if err != nil {
		return nil
	}
	var info struct {
		Metadata map[string]string `json:"metadata"`
	}
	var s subjects.ToolSchema
	if json.Unmarshal(answer, &info) != nil || actor.DecodeStrict([]byte(info.Metadata[field]), &s) != nil {
		return nil
	}
	s.Key = info.Metadata["key"]
	err = b.acceptSchema(ctx, out, zone, tool, s)
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return nil // refused: it stays unknown until it announces what was accepted
	}
	return err
}
