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
		return e, problemf(http.StatusBadRequest, subjects.CodeMalformed, "%v", err)
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
func (g *Gateway) onRemember(w http.ResponseWriter, r *http.Request) error {
	var in Fact
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	in.Text = strings.TrimSpace(in.Text)
	switch {
	case in.Text == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "text is required: the fact to remember")
	case len(in.Text) > maxFact:
		return problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "text too large; at most %d KB. "+
			"Import documents with: conclave memory import", maxFact>>10)
	}
	fact, err := in.entry()
	if err != nil {
		return err
	}
	// stored even when the client disconnects
	ctx, cancel := g.withTimeout(context.WithoutCancel(r.Context()), noTimeout)
	defer cancel()
	one, _, err := g.client.AddMemory(ctx, fact, in.External)
	switch {
	case errors.Is(err, client.ErrNoResult):
		return problemf(http.StatusBadGateway, subjects.CodeInternal, "no result in the reply of memory; check with "+
			"GET /memory/search")
	case err != nil:
		return mapMemoryFault(ctx, err)
	case one.Action == actionRefused:
		return problemf(http.StatusConflict, codeConflict, "memory refused the fact: %s", one.Why)
	}
	g.writeJSON(w, http.StatusOK, struct {
		ID     string `json:"id"`
		Action string `json:"action"`
		Other  string `json:"other"`
		Why    string `json:"why"`
	}{one.ID, one.Action, one.Other, one.Why})
	return nil
}

// actionRefused is the action of an entry that memory did not store.
const actionRefused = "refused"

// onEdit changes name, description, text (corpus) or tags of a memory; fields that are not given stay. It rejects a
// body without a change and an empty name or text.
func (g *Gateway) onEdit(w http.ResponseWriter, r *http.Request) error {
	var in subjects.MemoryEdit
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case in == (subjects.MemoryEdit{}):
		return problemf(http.StatusBadRequest, subjects.CodeMalformed,
			"no change: set name, description, corpus or tags")
	case in.Name != nil && strings.TrimSpace(*in.Name) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "name must not be empty")
	case in.Corpus != nil && strings.TrimSpace(*in.Corpus) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "corpus must not be empty; use DELETE to "+
			"forget the memory")
	}
	e, err := g.findEntry(r)
	if err != nil {
		return err
	}
	got, err := g.adminMemory(r, subjects.MemoryAdminRequest{Op: "edit", IDs: []string{e.ID}, Edit: &in})
	switch {
	case err != nil:
		return err
	case len(got.Entries) != 1:
		return errEntryGone(e.ID)
	}
	g.writeJSON(w, http.StatusOK, struct {
		Entry subjects.MemoryEntry `json:"entry"`
	}{got.Entries[0]})
	return nil
}

// errEntryGone returns the problem for a memory that was forgotten between its lookup and the change.
func errEntryGone(id string) error {
	return problemf(http.StatusNotFound, codeNotFound, "memory %s not found: it was forgotten", id)
}

// onForgetOne forgets the memory in the path for good. Errors are those of [Gateway.findEntry].
func (g *Gateway) onForgetOne(w http.ResponseWriter, r *http.Request) error {
	e, err := g.findEntry(r)
	if err != nil {
		return err
	}
	got, err := g.adminMemory(r, subjects.MemoryAdminRequest{Op: "forget", IDs: []string{e.ID}})
	switch {
	case err != nil:
		return err
	case got.Changed == 0:
		return errEntryGone(e.ID)
	}
	g.writeForgotten(w, got)
	return nil
}

// onForget forgets the entries that a query finds for good; with dry it only lists them. It rejects an empty query,
// which does not select everything, and a body without dry.
func (g *Gateway) onForget(w http.ResponseWriter, r *http.Request) error {
	var in Forget
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(in.Query) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "query is required; an empty query does not "+
			"select everything")
	case in.Dry == nil:
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "dry is required: true lists the entries, "+
			"false forgets them for good")
	}
	got, err := g.adminMemory(r, subjects.MemoryAdminRequest{Op: "forget", Query: in.Query, Dry: *in.Dry})
	if err != nil {
		return err
	}
	g.writeForgotten(w, got)
	return nil
}

// writeForgotten writes the response of the forget operations.
func (g *Gateway) writeForgotten(w http.ResponseWriter, got subjects.MemoryAdminReply) {
	g.writeJSON(w, http.StatusOK, struct {
		Entries   []subjects.MemoryEntry `json:"entries"` // forgotten, or selected in a dry run
		Forgotten int                    `json:"forgotten"`
	}{got.Entries, got.Changed})
}

// onMark returns the handler of pin, unpin, accept or reject (op); state is the state in the response. Accept and
// reject return 409 for a memory that is not a candidate. A POST needs an empty JSON object as its body.
func (g *Gateway) onMark(op, state string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method == http.MethodPost {
			if err := g.readBody(w, r, &emptyBody{}); err != nil {
				return err
			}
		}
		e, err := g.findEntry(r)
		switch {
		case err != nil:
			return err
		case (op == "accept" || op == "reject") && e.State != subjects.MemoryCandidate:
			return problemf(http.StatusConflict, codeConflict, "this memory is not a candidate: its state is %s",
				e.State)
		}
		got, err := g.adminMemory(r, subjects.MemoryAdminRequest{Op: op, IDs: []string{e.ID}})
		switch {
		case err != nil:
			return err
		case len(got.Missing) > 0:
			return errEntryGone(e.ID)
		}
		g.writeJSON(w, http.StatusOK, struct {
			ID      string `json:"id"`
			State   string `json:"state"`
			Changed bool   `json:"changed"` // false: it was in this state before
		}{e.ID, state, got.Changed > 0})
		return nil
	}
}
