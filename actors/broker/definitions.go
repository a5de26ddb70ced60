package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// definition is the accepted definition of a tool outside the build. The bucket schemas has it under <zone>.<tool>.
type definition struct {
	Pin string `json:"pin"` // [Pin] of the definition
	// Schema is nil when an earlier build stored the hash alone, and when the tool first announced another definition
	// than the user saw.
	Schema *subjects.ToolSchema `json:"schema,omitempty"`
	// Added is when the principal was added. A definition of an earlier principal of the same name is void; one without
	// a time, of an earlier build, is not.
	Added time.Time `json:"added,omitzero"`

	revision uint64
	read     time.Time // when it was read or written
}

// definitionPause is the shortest time between two reads of the stored definition of a tool that announces itself, so
// that a flood of announcements does not reach the store.
const definitionPause = time.Second

// reportPause is the shortest time between two faults about changed definitions of a tool, so that a flood of them does
// not fill the log.
const reportPause = time.Minute

// newDefinition returns s as the accepted definition of a principal that was added at this time.
func newDefinition(s subjects.ToolSchema, added time.Time) definition {
	s.Key = ""
	return definition{Pin: Pin(s), Schema: &s, Added: added}
}

// isVoid reports whether the definition is none of the principal that was added at this time.
func (d definition) isVoid(added time.Time) bool {
	return d.Pin == "" || !d.Added.IsZero() && !d.Added.Equal(added)
}

// acceptAnnounced registers a tool outside the build. Its first definition is stored as the accepted one, unless the
// user saw another one when the tool was added. Another definition than the accepted one waits for the user: the tool
// is no longer offered, and the first announcement of that definition is a fault, once in [reportPause] for each tool.
func (b *Broker) acceptAnnounced(ctx context.Context, out actor.Out, zone string, s subjects.ToolSchema) error {
	at := zoneTool{zone, s.Name}
	known, ok := b.table.definition(at)
	if !ok || out.Now().Sub(known.read) >= definitionPause {
		var err error
		if known, err = storeFirst(ctx, out, at, b.table.firstDefinition(zone, s)); err != nil {
			return fmt.Errorf("pinning %s: %w", s.Name, err)
		}
		b.table.setDefinition(at, known)
	}
	if err := b.table.add(zone, s, known.Pin); errors.Is(err, errPinMismatch) {
		if !b.table.propose(at, s) || !b.table.mayReport(at, out.Now()) {
			return nil
		}
		return subjects.Faultf(subjects.CodeDenied, "tool %s was not registered: %v: see conclave tool accept %s",
			s.Name, err, s.Name)
	} else if err != nil {
		return subjects.Faultf(subjects.CodeDenied, "tool %s was not registered: %v", s.Name, err)
	}
	return nil
}

// firstDefinition returns the definition to accept of a tool that has none and announces s: s, or the hash of the
// definition that the user saw when the tool was added, if s is another one. A program could show the user one text and
// announce another.
func (t *toolTable) firstDefinition(zone string, s subjects.ToolSchema) definition {
	t.mu.RLock()
	p := t.principals[zone]
	t.mu.RUnlock()
	first := newDefinition(s, p.Added)
	if shown := p.Declared[s.Name].Pin; shown != "" && shown != first.Pin {
		return definition{Pin: shown, Added: p.Added}
	}
	return first
}

// storeFirst returns the accepted definition of a tool, which may differ from first. Without one, first is stored as
// the accepted one.
func storeFirst(ctx context.Context, out actor.Out, at zoneTool, first definition) (definition, error) {
	for range 3 { // another broker may store one meanwhile
		d, err := readDefinition(ctx, out, at)
		if err != nil && !errors.Is(err, actor.ErrNotFound) {
			return definition{}, err
		}
		if err == nil && !d.isVoid(first.Added) {
			return d, nil
		}
		first.revision = d.revision
		err = first.store(ctx, out, at)
		if !errors.Is(err, actor.ErrChanged) {
			return first, err
		}
	}
	return definition{}, actor.ErrChanged
}

// readDefinition reads the accepted definition of a tool. One that cannot be decoded is void.
func readDefinition(ctx context.Context, out actor.Out, at zoneTool) (d definition, err error) {
	data, revision, err := out.Store(bucketSchemas).Get(ctx, at.key())
	if err != nil {
		return d, err
	}
	if len(data) > 0 && data[0] != '{' {
		d.Pin = string(data) // of an earlier build
	} else if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("definition of %s: %w: %w", at.tool, stage.ErrCorrupt, err)
	}
	d.revision, d.read = revision, out.Now()
	return d, nil
}

// store writes the definition over the revision that was read, 0 for none, and sets the new one.
func (d *definition) store(ctx context.Context, out actor.Out, at zoneTool) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	d.revision, err = out.Store(bucketSchemas).Put(ctx, at.key(), data, d.revision)
	d.read = out.Now()
	return err
}

// bucketSchemas is the bucket of accepted definitions.
const bucketSchemas = "schemas"

func (t zoneTool) key() string { return t.zone + "." + t.tool }

// definition returns the accepted definition as it was last read.
func (t *toolTable) definition(at zoneTool) (definition, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.accepted[at]
	return d, ok
}

func (t *toolTable) setDefinition(at zoneTool, d definition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.accepted[at] = d
}

// propose keeps a definition that waits for the user, in place of an earlier one, and reports whether it differs from
// that.
func (t *toolTable) propose(at zoneTool, s subjects.ToolSchema) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, ok := t.proposed[at]
	t.proposed[at] = s
	return !ok || Pin(old) != Pin(s)
}

// isChanged reports whether a changed definition of a tool waits for the user.
func (t *toolTable) isChanged(tool string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for at := range t.proposed {
		if at.tool == tool {
			return true
		}
	}
	return false
}

// mayReport reports whether a fault about a changed definition of a tool is due, and notes the time.
func (t *toolTable) mayReport(at zoneTool, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.reported[at]; ok && now.Sub(last) < reportPause {
		return false
	}
	t.reported[at] = now
	return true
}

// addedAt returns when the tool principal of a zone was added, the zero time for any other zone.
func (t *toolTable) addedAt(zone string) time.Time {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.principals[zone].Added
}

// isPrincipal reports whether a zone is that of a tool principal.
func (t *toolTable) isPrincipal(zone string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.principals[zone]
	return ok
}

// listAdded returns the tools of tool principals by name, all or the one with this name.
func (t *toolTable) listAdded(tool string) (out []zoneTool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for zone, p := range t.principals {
		for _, name := range p.Tools {
			if tool == "" || tool == name {
				out = append(out, zoneTool{zone, name})
			}
		}
	}
	slices.SortFunc(out, func(x, y zoneTool) int { return cmp.Compare(x.tool, y.tool) })
	return out
}

// onToolList lists the tools of run-time principals. It asks each for its definition first, so that the states are
// current.
func (b *Broker) onToolList(ctx context.Context, in actor.Msg[subjects.ToolQuery], out actor.Out) (subjects.ToolList,
	error,
) {
	b.refreshZones(ctx, out)
	all := b.table.listAdded(in.Body.Tool)
	running, err := b.discoverTools(ctx, out, all)
	if err != nil {
		return subjects.ToolList{}, subjects.Faultf(subjects.CodeUnavailable, "the definitions of tools cannot be "+
			"read; see conclave doctor")
	}
	list := subjects.ToolList{Tools: []subjects.ToolStatus{}}
	for _, at := range all {
		s, err := b.toolStatus(ctx, out, at)
		if err != nil {
			return subjects.ToolList{}, err
		}
		s.Running = running[at]
		if in.Body.Tool == "" { // definitions of all tools do not fit into one message
			s.Accepted, s.New = nil, nil
		}
		list.Tools = append(list.Tools, s)
	}
	return list, nil
}

// toolStatus returns the state of a tool of a run-time principal.
func (b *Broker) toolStatus(ctx context.Context, out actor.Out, at zoneTool) (subjects.ToolStatus, error) {
	d, ok := b.table.definition(at)
	if !ok { // not announced since the broker started
		var err error
		if d, err = readDefinition(ctx, out, at); err != nil && !errors.Is(err, actor.ErrNotFound) {
			out.LogError(err)
			return subjects.ToolStatus{}, subjects.Faultf(subjects.CodeUnavailable, "the definition of %s cannot be "+
				"read; see conclave doctor", at.tool)
		}
		if d.isVoid(b.table.addedAt(at.zone)) {
			d = definition{}
		}
	}
	m := b.rules.Load().Manifest
	b.table.mu.RLock()
	defer b.table.mu.RUnlock()
	s := subjects.ToolStatus{
		Principal: at.zone, Tool: at.tool, State: subjects.ToolSilent, Agents: []string{}, Pin: d.Pin,
		Accepted: d.Schema,
		Declared: b.table.principals[at.zone].Declared[at.tool],
		Effects:  b.table.withFacts(Known{Tool: policy.Tool{Name: at.tool}}).Effects.String(),
	}
	s.Rejected = b.table.rejected[at]
	for typ := range m.Types {
		if m.HasTool(typ, at.tool) {
			s.Agents = append(s.Agents, typ)
		}
	}
	slices.Sort(s.Agents)
	if _, live := b.table.live[at.tool][at.zone]; live {
		s.State = subjects.ToolReady
	} else if next, ok := b.table.proposed[at]; ok {
		next.Key = ""
		s.State, s.NewPin, s.New = subjects.ToolChanged, Pin(next), &next
	}
	return s, nil
}

// onToolAccept makes the changed definition of a tool the accepted one, on the record. It must be the one that the
// request names, which the user has seen, and that the tool announced last.
func (b *Broker) onToolAccept(ctx context.Context, in actor.Msg[subjects.ToolAccept],
	out actor.Out,
) (subjects.ToolStatus, error) {
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: in.From, Action: subjects.ActionToolAccept,
		ParamsHash: b.hash.Hash([]byte(in.Body.Tool + "\n" + in.Body.Pin)),
	}
	refuse := func(f *subjects.Fault) (subjects.ToolStatus, error) {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, f.Code)
		return subjects.ToolStatus{}, f
	}
	if in.From != "user" {
		return refuse(subjects.Faultf(subjects.CodeDenied, "only the user may accept the definition of a tool"))
	}
	found := b.table.listAdded(in.Body.Tool)
	if in.Body.Tool == "" || len(found) != 1 {
		return refuse(subjects.Faultf(subjects.CodeUnknownTool,
			"no tool of that name was added; see conclave tool list"))
	}
	at := found[0]
	rec.Tool = at.tool
	b.table.mu.RLock()
	next, waits := b.table.proposed[at]
	b.table.mu.RUnlock()
	switch {
	case !waits:
		return refuse(subjects.Faultf(subjects.CodeMalformed, "no changed definition of %s waits; see conclave tool "+
			"show %s", at.tool, at.tool))
	case Pin(next) != in.Body.Pin:
		return refuse(subjects.Faultf(subjects.CodeMalformed, "the definition of %s changed again since you saw it; "+
			"see conclave tool accept %s", at.tool, at.tool))
	}
	_, err := actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (none struct{},
		err error,
	) {
		if err := p.Check(); err != nil {
			return none, err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		return none, b.replaceDefinition(ctx, out, at, next)
	})
	if err != nil {
		return subjects.ToolStatus{}, err
	}
	return b.toolStatus(ctx, out, at)
}

// replaceDefinition stores s as the accepted definition of a tool, and registers the tool.
func (b *Broker) replaceDefinition(ctx context.Context, out actor.Out, at zoneTool, s subjects.ToolSchema) error {
	unavailable := func(err error) error {
		out.LogError(fmt.Errorf("accepting a definition of %s: %w", at.tool, err))
		return subjects.Faultf(subjects.CodeUnavailable, "the definition of %s could not be stored; see conclave "+
			"doctor, then try again", at.tool)
	}
	old, err := readDefinition(ctx, out, at)
	if err != nil && !errors.Is(err, actor.ErrNotFound) {
		return unavailable(err)
	}
	next := newDefinition(s, b.table.addedAt(at.zone))
	next.revision = old.revision
	if err := next.store(ctx, out, at); err != nil {
		return unavailable(err)
	}
	b.table.setDefinition(at, next)
	if err := b.table.add(at.zone, s, next.Pin); err != nil {
		return subjects.Faultf(subjects.CodeDenied, "tool %s was not registered: %v", at.tool, err)
	}
	return nil
}
