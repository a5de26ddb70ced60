package memory

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed save_memory.md
var saveMemoryText string

// saveMemory keeps what a model finds important, under the labels of the session that it came from: what a stranger could
// have written stays marked for ever. A spawned agent only proposes.
var saveMemory = tool{
	schema: subjects.ToolSchema{
		Name: "save_memory", Version: version, Description: strings.TrimSpace(saveMemoryText),
		Parameters: json.RawMessage(`{"type":"object","properties":{` +
			`"content":{"type":"string","minLength":1,"maxLength":20000,"description":"what to remember, in full sentences"},` +
			`"name":{"type":"string","maxLength":120,"description":"what it is about, in a few words"},` +
			`"tags":{"type":"array","items":{"type":"string","minLength":1,"maxLength":64},"maxItems":10},` +
			`"candidate":{"type":"string","minLength":6,"maxLength":64,"description":"id of a proposal of a subagent that content decides upon: content is keep or drop"}` +
			`},"required":["content"],"additionalProperties":false}`),
	},
	facts: policy.Tool{
		Name: "save_memory", Zone: name, Known: true, Effects: policy.Declare(policy.Remember), Timeout: time.Minute, Graded: true, MaxArgs: 64 << 10,
	},
	run: runSaveMemory,
}

func runSaveMemory(m *Memory, ctx context.Context, out actor.Out, c call) (saved answer, err error) {
	var a struct {
		Content   string   `json:"content"`
		Name      string   `json:"name"`
		Tags      []string `json:"tags"`
		Candidate string   `json:"candidate"`
	}
	if err := arguments(c.args, &a); err != nil {
		return answer{}, err
	}
	if a.Content = strings.TrimSpace(a.Content); a.Content == "" {
		return answer{}, fmt.Errorf("%w: there is nothing to remember in it", errArgs)
	}
	does := act{who: c.by, action: actWrite, tool: "save_memory", params: c.args, session: c.session, query: c.query}
	err = m.recorded(ctx, out, does, func() error {
		if a.Candidate != "" {
			saved, err = m.decideCandidate(ctx, out, c, a.Candidate, a.Content)
			return err
		}
		saved, err = m.saveFact(ctx, out, c, a.Name, a.Content, a.Tags)
		return err
	})
	return saved, err
}

// saveFact keeps a text as a fact.
func (m *Memory) saveFact(ctx context.Context, out actor.Out, c call, name, content string, tags []string) (answer, error) {
	if _, hidden := firewall.Redact(strings.Join(append([]string{content, name}, tags...), "\n")); hidden > 0 {
		return answer{}, subjects.Faultf(subjects.CodeTool, "it holds something that looks like a password or a key, and those are not remembered; conclave secret set keeps them")
	}
	external := !c.trusted()
	d, err := m.newDigester(out).Note(ctx, content, external)
	if errors.Is(err, digest.ErrNothing) || err == nil && strings.TrimSpace(d.Corpus) == "" {
		return answer{}, subjects.Faultf(subjects.CodeTool, "nothing is left to remember: all of it tells somebody what to do")
	}
	if err != nil {
		return answer{}, fmt.Errorf("reading what is to be remembered: %w", err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		// Asked again after a crash, the same call has the same id.
		ID: deriveID("save", c.session, c.query, c.id, content), Kind: subjects.KindFact, State: subjects.MemoryActive, Tags: cleanTags(tags), Created: now, Updated: now,
		Provenance: subjects.Provenance{Source: subjects.SourceAgent, Trust: subjects.Trusted, Agent: c.by, SessionID: c.session, QueryID: c.query},
	}
	switch {
	case external:
		e.Provenance.Source, e.Provenance.Trust = subjects.SourceExternal, subjects.Untrusted
		e.Provenance.Flags = d.Flags
		if c.labels != nil {
			e.Provenance.Flags = mergeFlags(c.labels.Flags, d.Flags)
		}
	case c.by == operatorAccount:
		e.Provenance.Source = subjects.SourceUser
	}
	if !external { // a name that came with it may be an order too
		e.Name = text.OneLine(name, maxName)
	} else {
		e.Tags = slices.DeleteFunc(e.Tags, func(t string) bool { return !digest.IsHarmless(t) })
	}
	if c.spawned {
		e.State = subjects.MemoryCandidate
	}
	w, err := m.storeEntry(ctx, out, c.by, fillFromDigest(e, d), d.Relations, "save_memory")
	if err != nil {
		return answer{}, err
	}
	said := map[string]string{
		"stored": "Remembered as %s.", "merged": "It was known: %[1]s says the same as %[2]s.", "superseded": "Remembered as %s; it takes the place of %s.",
		"candidate": "Proposed as %s; it counts when it is accepted.", "unchanged": "It was remembered before, as %s.",
	}[w.Action]
	words := []any{w.ID, w.Other}
	return answer{text: fmt.Sprintf(said, words[:strings.Count(said, "%")]...), trusted: true, ids: []string{w.ID}}, nil
}

// operatorAccount is the account of the user's own tool calls.
const operatorAccount = "operator"

// decideCandidate accepts or drops what a subagent of the same session has proposed. A subagent cannot.
func (m *Memory) decideCandidate(ctx context.Context, out actor.Out, c call, id, word string) (answer, error) {
	if c.spawned {
		return answer{}, subjects.Faultf(subjects.CodeTool, "a spawned agent proposes and does not decide")
	}
	keep := strings.EqualFold(strings.Trim(word, " ."), "keep")
	if !keep && !strings.EqualFold(strings.Trim(word, " ."), "drop") {
		return answer{}, fmt.Errorf("%w: with candidate, content is keep or drop", errArgs)
	}
	m.decisionMu.Lock()
	defer m.decisionMu.Unlock()
	entries, err := m.unaudited.Get(ctx, id)
	if err != nil {
		return answer{}, fmt.Errorf("reading the proposal: %w", err)
	}
	if len(entries) == 0 || entries[0].State != subjects.MemoryCandidate || c.by != operatorAccount && (c.session == "" || entries[0].Provenance.SessionID != c.session) {
		return answer{}, subjects.Faultf(subjects.CodeTool, "there is no such proposal in this session")
	}
	if err := m.settleCandidates(ctx, out, c.by, keep, entries...); err != nil {
		return answer{}, err
	}
	if !keep {
		return answer{text: "Dropped.", trusted: true}, nil
	}
	now := deriveID("accepted", id)
	return answer{text: "Kept as " + now + ".", trusted: true, ids: []string{now}}, nil
}

// settleCandidates makes candidates count, or forgets them.
//
// What is accepted is kept like anything new: it is compared with what is there, and what it says of people and places goes
// into the graph. It has another id then; the proposal goes once it is kept.
func (m *Memory) settleCandidates(ctx context.Context, out actor.Out, by string, keep bool, proposals ...subjects.MemoryEntry) error {
	for _, e := range proposals {
		ev := subjects.MemoryEvent{IDs: []string{e.ID}, Action: "rejected", Why: "a proposal was rejected", By: by}
		if keep {
			d, err := m.newDigester(out).Note(ctx, e.Corpus, e.Provenance.Trust != subjects.Trusted)
			if err != nil {
				return fmt.Errorf("reading the proposal: %w", err)
			}
			proposal := e.ID
			e.ID, e.State, e.Updated = deriveID("accepted", proposal), subjects.MemoryActive, out.Now().UTC()
			w, err := m.storeEntry(ctx, out, by, e, d.Relations, "a proposal was accepted")
			if err != nil {
				return err
			}
			ev = subjects.MemoryEvent{IDs: []string{w.ID, proposal}, Action: "accepted", Why: "a proposal was accepted: " + w.Action, By: by}
			e.ID = proposal
		}
		if err := m.deleteEntries(ctx, e.ID); err != nil {
			return err
		}
		if err := m.emitStored(ctx, out, ev); err != nil {
			return err
		}
	}
	return nil
}

// deleteEntries forgets entries, everywhere.
func (m *Memory) deleteEntries(ctx context.Context, ids ...string) error {
	ctx, end := detach(ctx)
	defer end()
	all, err := m.unaudited.Forget(ctx, ids...)
	if err != nil {
		return fmt.Errorf("forgetting: %w", err)
	}
	m.removeFromIndex(all)
	return nil
}
