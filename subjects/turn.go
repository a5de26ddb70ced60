package subjects

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// StoredQuestion is a question in QUERIES, which only the user's accounts can write.
type StoredQuestion struct {
	Query
	Subject       string
	Seq           uint64
	StoredAt      time.Time
	QueryHeader   string // id of the query in the header, "" = none
	SessionHeader string // id of the session in the header, "" = none
}

// Turn returns the question as the router stores it in TURNS. It depends on s alone, so that a redelivered question
// becomes the same turn, and the broker can compare a turn with its question. A missing id is made, that of the body
// wins over the header's, and an id that is no valid subject token is replaced by one derived from it, with a note for
// the user.
func (s StoredQuestion) Turn() Query {
	q, key := s.Query, s.Key()
	var notes []string
	q.QueryID, notes = chooseID(bodyOrHeader(q.QueryID, s.QueryHeader), "q", key, "query", notes)
	q.SessionID, notes = chooseID(bodyOrHeader(q.SessionID, s.SessionHeader), "s", key, "session", notes)
	q.Note = strings.Join(notes, " ")
	q.Schedule, q.Fixed = "", nil // of a schedule only
	q.Source = s.Seq
	return q
}

// Key identifies a question by its position and time in the stream: the same at every redelivery, and another one after
// the stream was created anew.
func (s StoredQuestion) Key() string {
	return hashParts(s.Subject, fmt.Sprint(s.Seq), fmt.Sprint(s.StoredAt.UnixNano()))
}

// Respondent returns the account that answers the question, "" for a subject that is none of a question.
func (s StoredQuestion) Respondent() string {
	return map[string]string{
		QueryReceived.Name: Generator, QueryCommittee.Name: Committee, QueryTask.Name: Orchestrator,
	}[s.Subject]
}

// bodyOrHeader returns the id of the body, or the header's when the body has none.
func bodyOrHeader(body, header string) string {
	if id := strings.TrimSpace(body); id != "" {
		return id
	}
	return header
}

// chooseID returns id when it is a valid token, a token derived from id when it is not, and prefix with key when id is
// empty. Only the second appends a note for the user to notes; kind names the id in it.
func chooseID(id, prefix, key, kind string, notes []string) (string, []string) {
	switch {
	case id == "":
		return prefix + "-" + key, notes
	case CheckToken(id) == nil:
		return id, notes
	}
	token := readablePrefix(id) + hashParts(id)
	return token, append(notes, fmt.Sprintf("The %s id %q is invalid and was replaced by %s. Use letters, digits, - "+
		"and _ only, at most %d characters.", kind, clipForError(id), token, MaxToken))
}

// readablePrefix returns the part of an id that a user recognizes in its token: up to 20 letters, digits, "-" and "_",
// with "-" for any run of other characters and at the end; "" when nothing is left. The caller appends a hash, which
// distinguishes ids with the same prefix.
func readablePrefix(id string) string {
	var b strings.Builder
	for _, r := range id {
		if b.Len() == 20 {
			break
		}
		switch {
		case r == '_', r == '-', r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if s := strings.Trim(b.String(), "-"); s != "" {
		return s + "-"
	}
	return ""
}

// hashParts returns a short hash of its parts, a valid token.
func hashParts(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
