package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onResponse stores an answer as an engram, and retries while it fails. The respondent is the account that the server
// wrote into the subject. Failed, incomplete and empty answers, answers of the built-in demo model, answers that hold
// only for a moment, answers without a valid query id, and answers that the user had memory forget are ignored. An
// answer that is stored already is indexed and published again.
func (m *Memory) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	r := in.Body
	query := cmp.Or(r.QueryID, in.Query)
	if r.Error != nil || r.Partial || strings.TrimSpace(r.Answer) == "" || subjects.CheckToken(query) != nil ||
		r.DemoModel || isEphemeral(r) {
		return nil
	}
	if subjects.CheckToken(r.SessionID) != nil {
		r.SessionID = in.Session
	}
	id, state, err := m.unaudited.FindAnswer(ctx, query, in.From)
	if err != nil {
		return fmt.Errorf("looking for the answer to %s: %w", query, err)
	}
	switch state {
	case store.Forgotten:
		return nil
	case store.Stored: // delivered again after a crash; the stream keeps an event with the same id once
		if err := m.refreshIndex(ctx, id); err != nil {
			return err
		}
		return m.emitStoredOnce(ctx, out, id, subjects.MemoryEvent{
			SessionID: r.SessionID, QueryID: query,
			Action: "stored", IDs: []string{id}, Why: "an answer", By: in.From,
		})
	}
	a := act{
		caller: in.From, action: subjects.ActionMemoryWrite, target: subjects.KindEngram,
		params: []byte(query + "\n" + in.From), session: r.SessionID, query: query,
	}
	return m.retryEvent(ctx, out, func() error {
		_, err := audited(ctx, m, out, a, func(ctx context.Context, db *access) (none struct{}, err error) {
			emitState(out, r.SessionID, query, agent.StateStoring)
			return none, m.storeAnswer(ctx, out, db, in.From, query, r, questionTime(in))
		})
		return err
	})
}

// questionTime returns when the question of an answer was asked: the time of the answer less the time that it took.
func questionTime(in actor.Msg[subjects.Response]) time.Time {
	at := in.Time
	if !in.StoredAt.IsZero() {
		at = in.StoredAt
	}
	return at.Add(-time.Duration(in.Body.Usage.Millis) * time.Millisecond).UTC()
}

// isEphemeral reports whether an answer rests only on results that hold at the time of the call, such as the current
// time: tools were called, and every result is declared so by the facts of its tool. Calls that failed do not count,
// nor does the search of memory before the first model call.
func isEphemeral(r subjects.Response) bool {
	found := false
	for _, c := range r.ToolCalls {
		if c.Error != nil || c.Layer == subjects.LayerRecall {
			continue
		}
		if !c.Ephemeral {
			return false
		}
		found = true
	}
	return found
}

// storeAnswer stores the answer of the respondent from to a query, asked at the time asked, without credentials. Its
// conversation is the session, its position that of the other answers to the query, or after the last one. An answer
// without trusted labels, or in a session of a client, is stored as untrusted external content, with the flags of the
// session and of the digest. An answer of which the digest leaves nothing is not stored; that is no error.
func (m *Memory) storeAnswer(ctx context.Context, out actor.Out, db *access, from, query string, r subjects.Response,
	asked time.Time,
) error {
	external := r.Labels == nil || r.Labels.Trust != subjects.Trusted || subjects.ClientOf(r.SessionID) != ""
	question, _ := firewall.Redact(subjects.UserText(r.Query))
	answer, _ := firewall.Redact(r.Answer)
	d, err := plainDigester().Answer(ctx, question, answer, external)
	if errors.Is(err, digest.ErrNothing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("digesting the answer to %s: %w", query, err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		ID: deriveID(subjects.KindEngram, query, from), Kind: subjects.KindEngram, State: subjects.MemoryActive,
		Respondent: from, Created: now, Updated: now,
		Conversation: r.SessionID, Happened: asked,
		Provenance: subjects.Provenance{
			Source: subjects.SourceConversation, Trust: subjects.Trusted, Agent: from, SessionID: r.SessionID,
			QueryID: query, Model: text.Clip(r.Model, 200),
			From: subjects.ClientOrigin(subjects.ClientOf(r.SessionID)),
		},
	}
	if external {
		e.Provenance.Source, e.Provenance.Trust, e.Provenance.Flags = subjects.SourceExternal, subjects.Untrusted,
			mergeFlags(r.Labels, d.Flags)
	}
	if e.Correlating, err = correlateRecalls(ctx, db, r.Recalls); err != nil {
		return err
	}
	_, err = m.storeEntry(ctx, out, db, from, fillFromDigest(e, d), "an answer")
	return err
}

// correlateRecalls returns the recalled entries that an answer goes with, at most maxTags. Ids that are no tokens are
// dropped, and pinned facts: they are in the prompt of every question, so that nothing follows from it. An entry that
// was forgotten meanwhile stays.
func correlateRecalls(ctx context.Context, db *access, ids []string) (out []string, err error) {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return subjects.CheckToken(id) != nil })
	if len(ids) == 0 {
		return nil, nil
	}
	entries, err := db.Get(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("reading recalled entries: %w", err)
	}
	for _, id := range ids {
		pinned := slices.ContainsFunc(entries, func(e subjects.MemoryEntry) bool {
			return e.ID == id && e.Pinned && e.Kind == subjects.KindFact
		})
		if !pinned && len(out) < maxTags {
			out = append(out, id)
		}
	}
	return out, nil
}
