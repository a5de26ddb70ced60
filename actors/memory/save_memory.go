package memory

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"conclave/actors/memory/digest"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed save_memory.md
var saveMemoryText string

var saveMemorySchema = subjects.ToolSchema{
	Name: "save_memory", Description: saveMemoryText,
	Parameters: jsonschema.Literal(`{
		"type": "object",
		"properties": {
			"content": {"type": "string", "minLength": 1, "maxLength": 20000,
				"description": "what to remember, in full sentences"},
			"name": {"type": "string", "maxLength": 120, "description": "what it is about, in a few words"},
			"tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 64},
				"maxItems": 10},
			"candidate": {"type": "string", "minLength": 6, "maxLength": 64,
				"description": "id of a proposal of a subagent that content decides upon: content is keep or drop"}
		},
		"required": ["content"],
		"additionalProperties": false
	}`),
}

// operatorAccount is the account of the user's own tool calls.
const operatorAccount = "operator"

// saveArguments are the arguments of save_memory.
type saveArguments struct {
	Content   string   `json:"content"`
	Name      string   `json:"name"`
	Tags      []string `json:"tags"`
	Candidate string   `json:"candidate"`
}

// runSaveMemory stores a fact under the labels of the session, or decides on a candidate when the arguments name one.
// It rejects blank content. A fact of an untrusted session stays untrusted for good. A spawned agent only proposes
// candidates. With [subjects.ModeUndo] it lists changes of entries, or takes them back.
func (m *Memory) runSaveMemory(ctx context.Context, in actor.Msg[subjects.ToolOrder],
	out actor.Out,
) (subjects.ToolResult, error) {
	if in.Body.Mode == subjects.ModeUndo {
		return m.serveChanges(ctx, in, out)
	}
	var a saveArguments
	if err := actor.DecodeArguments(in.Body.Args, &a); err != nil {
		return subjects.ToolResult{}, err
	}
	if a.Content = strings.TrimSpace(a.Content); a.Content == "" {
		return subjects.ToolResult{}, fmt.Errorf("%w: content is empty", actor.ErrArguments)
	}
	intent := toolAct(in, subjects.ActionMemoryWrite, saveMemorySchema.Name, in.Body.Args)
	return audited(ctx, m, out, intent, func(ctx context.Context, db *access) (subjects.ToolResult, error) {
		return asChange(ctx, in.Body.Change, func(ctx context.Context) (subjects.ToolResult, error) {
			if a.Candidate != "" {
				return m.decideCandidate(ctx, out, db, in, a)
			}
			return m.saveFact(ctx, out, db, in, a)
		})
	})
}

// saveFact stores content as a fact, or as a candidate for a spawned agent. It rejects content, a name or tags with a
// credential in it, and content without a visible word. Without trusted labels of the broker the fact is untrusted, and
// its name is dropped. The same call repeated stores nothing new.
func (m *Memory) saveFact(ctx context.Context, out actor.Out, db *access, in actor.Msg[subjects.ToolOrder],
	a saveArguments,
) (none subjects.ToolResult, err error) {
	if _, hidden := firewall.Redact(strings.Join(append([]string{a.Content, a.Name}, a.Tags...), "\n")); hidden > 0 {
		return none, subjects.Faultf(subjects.CodeTool, "not stored: it contains something that looks like a "+
			"password or a key; store those with conclave secret set")
	}
	order := in.Body
	external := order.Labels == nil || order.Labels.Trust != subjects.Trusted
	d, err := plainDigester().Note(ctx, "", a.Content, external)
	if errors.Is(err, digest.ErrNothing) || err == nil && strings.TrimSpace(d.Corpus) == "" {
		return none, subjects.Faultf(subjects.CodeTool, "not stored: it contains no visible words")
	}
	if err != nil {
		return none, fmt.Errorf("digesting the content: %w", err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		// The same call has the same id when it is repeated after a crash.
		ID: deriveID("save", in.Session, order.QueryID, order.CallID, a.Content), Kind: subjects.KindFact,
		State: subjects.MemoryActive, Tags: cleanTags(a.Tags), Created: now, Updated: now,
		Provenance: subjects.Provenance{
			Source: subjects.SourceAgent, Trust: subjects.Trusted, Agent: order.Caller,
			SessionID: in.Session, QueryID: order.QueryID,
		},
	}
	if external {
		e.Provenance.Source, e.Provenance.Trust, e.Provenance.Flags = subjects.SourceExternal, subjects.Untrusted,
			mergeFlags(order.Labels, d.Flags)
	} else {
		if e.Name = text.OneLine(a.Name, maxName); e.Name != "" {
			e.Provenance.Digest = subjects.DigestGiven
		}
		if order.Caller == operatorAccount {
			e.Provenance.Source = subjects.SourceUser
		}
	}
	e = attributeText(e, a.Content, now)
	if order.Spawned {
		e.State = subjects.MemoryCandidate
	}
	w, err := m.storeEntry(ctx, out, db, order.Caller, fillFromDigest(e, d), "save_memory")
	if err != nil {
		return none, err
	}
	return newToolResult(formatSaved(w), true, w.ID), nil
}

// formatSaved says for a model what became of a fact, by w.Action; an unknown action reads as stored.
func formatSaved(w subjects.MemoryWriteResult) string {
	switch w.Action {
	case "merged":
		return fmt.Sprintf("It was known: %s says the same as %s.", w.ID, w.Other)
	case "candidate":
		return fmt.Sprintf("Proposed as %s; it counts when it is accepted.", w.ID)
	case "unchanged":
		return fmt.Sprintf("It was remembered before, as %s.", w.ID)
	}
	return fmt.Sprintf("Remembered as %s.", w.ID)
}

// decideCandidate accepts ("keep") or deletes ("drop") the candidate with the full id a.Candidate. It denies spawned
// agents, and candidates of another session unless the caller is the operator; an unknown id gets the same reply as
// those. It rejects content other than keep and drop.
func (m *Memory) decideCandidate(ctx context.Context, out actor.Out, db *access, in actor.Msg[subjects.ToolOrder],
	a saveArguments,
) (none subjects.ToolResult, err error) {
	if in.Body.Spawned {
		return none, subjects.Faultf(subjects.CodeTool, "denied: a spawned agent may propose entries, not accept them")
	}
	word := strings.ToLower(strings.Trim(a.Content, " ."))
	if word != "keep" && word != "drop" {
		return none, fmt.Errorf("%w: with candidate, content is keep or drop", actor.ErrArguments)
	}
	m.decisionMu.Lock()
	defer m.decisionMu.Unlock()
	entries, err := db.Get(ctx, a.Candidate)
	if err != nil {
		return none, fmt.Errorf("reading the candidate: %w", err)
	}
	own := in.Body.Caller == operatorAccount || in.Session != "" && len(entries) == 1 &&
		entries[0].Provenance.SessionID == in.Session
	if len(entries) == 0 || entries[0].State != subjects.MemoryCandidate || !own {
		return none, subjects.Faultf(subjects.CodeTool, "there is no such proposal in this session")
	}
	if err := m.settleCandidates(ctx, out, db, in.Body.Caller, word == "keep", entries...); err != nil {
		return none, err
	}
	if word == "drop" {
		return newToolResult("Dropped.", true), nil
	}
	id := acceptedID(a.Candidate)
	return newToolResult("Kept as "+id+".", true, id), nil
}

// acceptedID is the id of the entry that an accepted candidate becomes.
func acceptedID(candidate string) string { return deriveID("accepted", candidate) }

// settleCandidates accepts candidates or forgets them, one after the other, and publishes each; an error leaves the
// rest undecided. An accepted candidate is stored like any new entry, under another id: it is compared with similar
// entries, and described by a model later. The candidate is deleted afterwards. The caller holds decisionMu and has
// checked the states.
func (m *Memory) settleCandidates(ctx context.Context, out actor.Out, db *access, by string, accept bool,
	candidates ...subjects.MemoryEntry,
) error {
	for _, c := range candidates {
		ev := subjects.MemoryEvent{IDs: []string{c.ID}, Action: "rejected", Why: "a proposal was rejected", By: by}
		if accept {
			e := c
			e.ID, e.State, e.Updated = acceptedID(c.ID), subjects.MemoryActive, out.Now().UTC()
			w, err := m.storeEntry(ctx, out, db, by, e, "a proposal was accepted")
			if err != nil {
				return err
			}
			ev = subjects.MemoryEvent{IDs: []string{w.ID, c.ID}, Action: "accepted", Why: "a proposal was accepted: " +
				w.Action, By: by}
		}
		if err := m.deleteEntries(ctx, db, c.ID); err != nil {
			return err
		}
		if err := m.emitStored(ctx, out, ev); err != nil {
			return err
		}
	}
	return nil
}
