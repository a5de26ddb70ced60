package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"conclave/subjects"
)

// Bounds of a search in the conversations.
const (
	searchTimeout  = 8 * time.Second
	maxSearchWords = 200 // bytes
	maxSearchFound = 30
)

// SessionFound is a session in which a search found its words.
type SessionFound struct {
	Session
	Found   int    `json:"found"` // turns that have all words
	Query   string `json:"query_id"`
	Excerpt string `json:"excerpt"`
	Trust   string `json:"trust"` // of the turn that the excerpt is from
}

// onSearch finds sessions whose questions and answers, archived ones too, have all words of q, last used first. After
// searchTimeout it returns what it has found, with the number of sessions that it has not searched.
func (g *Gateway) onSearch(ctx context.Context, r *http.Request) (any, error) {
	words := r.URL.Query().Get("q")
	if strings.TrimSpace(words) == "" || len(words) > maxSearchWords {
		return nil, malformedf("q: 1 to %d bytes with the words to find", maxSearchWords)
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	found, left, err := g.client.SearchSessions(ctx, words, maxSearchFound)
	notes := g.readNotes(ctx)
	list := []SessionFound{}
	for _, m := range found[:min(len(found), maxSearchFound)] {
		one := SessionFound{
			Session: describeSession(m.SessionSummary), Found: m.Found, Query: m.Latest.QueryID, Excerpt: m.Excerpt,
			Trust: subjects.Untrusted,
		}
		if m.Latest.Labels != nil {
			one.Trust = m.Latest.Labels.Trust
		}
		notes[m.ID].describe(&one.Session)
		list = append(list, one)
	}
	return object{{"sessions", list}, {"left", left + max(0, len(found)-maxSearchFound)}}, err
}
