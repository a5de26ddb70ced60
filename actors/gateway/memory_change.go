package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Fact is the body of POST /memory.
type Fact struct {
	Text     string   `json:"text"`
	Tags     []string `json:"tags"`
	External bool     `json:"external"` // the user did not type the text: it becomes untrusted

	// The context of the text, as far as it is known; see [subjects.MemoryEntry].
	Conversation string `json:"conversation"`
	Position     int    `json:"position"` // 0 with a conversation = after its last entry
	Speaker      string `json:"speaker"`
	Happened     string `json:"happened"` // RFC 3339, or a date
}

// entry returns the fact as an entry. It rejects an invalid context; the error says what is valid.
func (f Fact) entry() (subjects.MemoryEntry, error) {
	e := subjects.MemoryEntry{
		Corpus: f.Text, Tags: f.Tags, Conversation: f.Conversation, Position: f.Position,
		Speaker: f.Speaker,
	}
	var err error
	if e.Happened, err = subjects.ParseHappened(f.Happened); err == nil {
		err = e.CheckContext()
	}
	if err != nil {
		return e, malformedf("%v", err)
	}
	return e, nil
}

// Forget is the body of POST /memory/forget. Dry is required: permanent deletion must not depend on a default.
type Forget struct {
	Query string `json:"query"`
	Dry   *bool  `json:"dry"`
}

// emptyBody is the body of a POST without parameters. It is required because its content type is checked: a form on
// another site's page can send a POST without a body.
type emptyBody struct{}

// onRemember stores a fact with the user as its source, or an external text, which becomes untrusted. It rejects an
// empty text, one longer than maxFact bytes and an invalid context. A fact that memory refuses is 409; otherwise the
// response says what memory did with it.
func (g *Gateway) onRemember(ctx context.Context, _ *http.Request, in Fact) (any, error) {
	in.Text = strings.TrimSpace(in.Text)
	switch {
	case in.Text == "":
		return nil, malformedf("text is required: the fact to remember")
	case len(in.Text) > maxFact:
		return nil, tooLargef("text too large; at most %d KB. Import documents with: conclave memory import",
			maxFact>>10)
	}
	fact, err := in.entry()
	if err != nil {
		return nil, err
	}
	one, _, err := g.client.AddMemory(ctx, fact, in.External)
	switch {
	case errors.Is(err, client.ErrNoResult):
		return nil, problemf(http.StatusBadGateway, subjects.CodeInternal, "no result in the reply of memory; check "+
			"with GET /memory/search")
	case err != nil:
		return nil, explainMemory(err)
	case one.Action == actionRefused:
		return nil, conflictf("memory refused the fact: %s", one.Why)
	}
	return object{{"id", one.ID}, {"action", one.Action}, {"other", one.Other}, {"why", one.Why}}, nil
}

// actionRefused is the action of an entry that memory did not store.
const actionRefused = "refused"

// onEdit changes name, description, text (corpus) or tags of a memory; fields that are not given stay. It rejects a
// body without a change and an empty name or text.
func (g *Gateway) onEdit(ctx context.Context, r *http.Request, in subjects.MemoryEdit) (any, error) {
	switch {
	case in == (subjects.MemoryEdit{}):
		return nil, malformedf("no change: set name, description, corpus or tags")
	case in.Name != nil && strings.TrimSpace(*in.Name) == "":
		return nil, malformedf("name must not be empty")
	case in.Corpus != nil && strings.TrimSpace(*in.Corpus) == "":
		return nil, malformedf("corpus must not be empty; use DELETE to forget the memory")
	}
	e, err := g.findEntry(ctx, r)
	if err != nil {
		return nil, err
	}
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: "edit", IDs: []string{e.ID}, Edit: &in})
	switch {
	case err != nil:
		return nil, err
	case len(got.Entries) != 1:
		return nil, errEntryGone(e.ID)
	}
	return object{{"entry", got.Entries[0]}}, nil
}

// errEntryGone returns the problem for a memory that was forgotten between its lookup and the change.
func errEntryGone(id string) error {
	return notFoundf("memory %s not found: it was forgotten", id)
}

// onForgetOne forgets the memory in the path for good. Errors are those of [Gateway.findEntry].
func (g *Gateway) onForgetOne(ctx context.Context, r *http.Request) (any, error) {
	e, err := g.findEntry(ctx, r)
	if err != nil {
		return nil, err
	}
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: "forget", IDs: []string{e.ID}})
	if err == nil && got.Changed == 0 {
		err = errEntryGone(e.ID)
	}
	return newForgotten(got), err
}

// onForget forgets the entries that a query finds for good; with dry it only lists them. It rejects an empty query,
// which does not select everything, and a body without dry.
func (g *Gateway) onForget(ctx context.Context, _ *http.Request, in Forget) (any, error) {
	switch {
	case strings.TrimSpace(in.Query) == "":
		return nil, malformedf("query is required; an empty query does not select everything")
	case in.Dry == nil:
		return nil, malformedf("dry is required: true lists the entries, false forgets them for good")
	}
	got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: "forget", Query: in.Query, Dry: *in.Dry})
	return newForgotten(got), err
}

// newForgotten returns the response of the forget operations: the entries that are forgotten, or selected in a dry run.
func newForgotten(got subjects.MemoryAdminReply) object {
	return object{{"entries", got.Entries}, {"forgotten", got.Changed}}
}

// onMark returns the handler of pin, unpin, accept or reject (op); state is the state in the response. Accept and
// reject return 409 for a memory that is not a candidate. A POST needs an empty JSON object as its body.
func (g *Gateway) onMark(op, state string) handler {
	mark := func(ctx context.Context, r *http.Request) (any, error) {
		e, err := g.findEntry(ctx, r)
		switch {
		case err != nil:
			return nil, err
		case (op == "accept" || op == "reject") && e.State != subjects.MemoryCandidate:
			return nil, conflictf("this memory is not a candidate: its state is %s", e.State)
		}
		got, err := g.adminMemory(ctx, subjects.MemoryAdminRequest{Op: op, IDs: []string{e.ID}})
		if err == nil && len(got.Missing) > 0 {
			err = errEntryGone(e.ID)
		}
		return object{{"id", e.ID}, {"state", state}, {"changed", got.Changed > 0}}, err
	}
	if op == "unpin" {
		return g.change(memoryTimeout, mark)
	}
	return changeBy(g, memoryTimeout, func(ctx context.Context, r *http.Request, _ emptyBody) (any, error) {
		return mark(ctx, r)
	})
}
