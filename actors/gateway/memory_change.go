package gateway

import (
	"context"
	"net/http"
	"strings"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Fact is what POST /memory reads.
type Fact struct {
	Text string   `json:"text"`
	Tags []string `json:"tags"`
}

// Forget is what POST /memory/forget reads. Dry must be there: whether something goes for good is not a default.
type Forget struct {
	Query string `json:"query"`
	Dry   *bool  `json:"dry"`
}

// emptyBody is the body of what needs none. It is asked for all the same: a form on any page could send an empty one.
type emptyBody struct{}

// writeMemory hands something to memory. It ends with the gateway, not with the client.
func (g *Gateway) writeMemory(r *http.Request, in subjects.MemoryWriteRequest) (subjects.MemoryWriteReply, error) {
	ctx, cancel := g.withTimeout(context.WithoutCancel(r.Context()), memoryWriteTimeout)
	defer cancel()
	got, err := actor.Ask(ctx, g.out, subjects.MemoryWriteService, in)
	return got, mapMemoryFault(ctx, err)
}

// onRemember keeps a fact that the user states.
func (g *Gateway) onRemember(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	var in Fact
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	in.Text = strings.TrimSpace(in.Text)
	switch {
	case in.Text == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "text says what to remember")
	case len(in.Text) > maxFact:
		return problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "text has at most %d KB; conclave memory import takes documents", maxFact>>10)
	}
	got, err := g.writeMemory(r, subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Kind: subjects.KindFact, Corpus: in.Text, Tags: in.Tags}}})
	switch {
	case err != nil:
		return err
	case len(got.Results) != 1:
		return problemf(http.StatusBadGateway, subjects.CodeInternal, "memory does not say what became of it; look with GET /memory/search")
	case got.Results[0].Action == refused:
		return problemf(http.StatusConflict, codeConflict, "it is not remembered: %s", got.Results[0].Why)
	}
	one := got.Results[0]
	g.writeJSON(w, http.StatusOK, struct {
		ID     string `json:"id"`
		Action string `json:"action"`
		Other  string `json:"other"`
		Why    string `json:"why"`
	}{one.ID, one.Action, one.Other, one.Why})
	return nil
}

// refused is what became of an entry that memory does not keep.
const refused = "refused"

// onEdit changes what a memory says.
func (g *Gateway) onEdit(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	var in subjects.MemoryEdit
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case in == (subjects.MemoryEdit{}):
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "say what to change: name, description, corpus or tags")
	case in.Name != nil && strings.TrimSpace(*in.Name) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "a memory needs a name")
	case in.Corpus != nil && strings.TrimSpace(*in.Corpus) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "a memory needs a text; DELETE takes it away")
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

// errEntryGone says that a memory was forgotten between two questions.
func errEntryGone(id string) error {
	return problemf(http.StatusNotFound, codeNotFound, "there is no memory %s any more", id)
}

// onForgetOne forgets one memory.
func (g *Gateway) onForgetOne(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
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

// onForget forgets what words find, or only tells which.
func (g *Gateway) onForget(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	var in Forget
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(in.Query) == "":
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "query says what to look for; nothing stands for everything here")
	case in.Dry == nil:
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "dry must be said: true tells which would go, false forgets them for good")
	}
	got, err := g.adminMemory(r, subjects.MemoryAdminRequest{Op: "forget", Query: in.Query, Dry: *in.Dry})
	if err != nil {
		return err
	}
	g.writeForgotten(w, got)
	return nil
}

func (g *Gateway) writeForgotten(w http.ResponseWriter, got subjects.MemoryAdminReply) {
	g.writeJSON(w, http.StatusOK, struct {
		Entries   []subjects.MemoryEntry `json:"entries"` // what is gone, or would be
		Forgotten int                    `json:"forgotten"`
	}{got.Entries, got.Changed})
}

// onMark is the handler of pin, unpin, accept and reject. Whoever waits for no decision is not decided upon.
func (g *Gateway) onMark(op, done string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := parseParams(r); err != nil {
			return err
		}
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
			return problemf(http.StatusConflict, codeConflict, "this memory waits for no decision: it is %s", e.State)
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
			Changed bool   `json:"changed"` // false = it was so before
		}{e.ID, done, got.Changed > 0})
		return nil
	}
}
