// Package router puts questions into the order of their sessions, so that several generators can share the work and
// each session still hears its answers in order.
//
// It listens on query.received, kept in QUERIES, and on the server's word that a message was handed out too often; it
// may read a turn again then. It speaks on query.session.<session>, kept in TURNS, and on dead.router.
package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// getTurnSubject is the subject of the JetStream API through which the router reads a turn again. It stands in the table of
// edges.
var getTurnSubject = subjects.Spec{Name: "core.API.STREAM.MSG.GET.TURNS"}

// readTimeout is how long a turn may take to be read again.
const readTimeout = 5 * time.Second

// Router is the actor. It keeps nothing between messages: what it makes of a question depends on the question and its
// place in the stream alone, so a question that comes again is made into the same.
type Router struct{}

// New returns a router.
func New() *Router { return &Router{} }

// Name implements [actor.Actor].
func (r *Router) Name() string { return subjects.Router }

// Routes implements [actor.Actor].
func (r *Router) Routes() []actor.Route {
	return []actor.Route{
		actor.On(subjects.QueryReceived, r.onQuery, actor.Workers(1)), // one at a time: their order is what it is for
		actor.Subscribe(subjects.MaxDeliveriesAdvisory, r.onExhausted),
	}
}

// onQuery passes one question on. An id that is missing is made; one that cannot stand in a subject is replaced by a
// token made from it, and the caller is told with the answer.
func (r *Router) onQuery(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	place := messageKey(in)
	q := in.Body
	var notes []string
	q.QueryID, notes = chooseID(bodyOrHeader(q.QueryID, in.Query), "q", place, "query", notes)
	q.SessionID, notes = chooseID(bodyOrHeader(q.SessionID, in.Session), "s", place, "session", notes)
	q.Note = strings.Join(notes, " ")
	out = out.WithIDs(q.SessionID, q.QueryID)
	if strings.TrimSpace(q.Query) == "" {
		return writeDeadLetter(ctx, out, "dead-"+place, in.Subject, subjects.CodeMalformed, "the question is empty")
	}
	topic, err := subjects.QuerySession.With(q.SessionID)
	if err != nil {
		return err
	}
	// Only the router may speak here, so an id that could be guessed cannot be used up by somebody else.
	err = actor.EmitOnce(ctx, out, topic, "turn-"+place, q)
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeTooLarge {
		return writeDeadLetter(ctx, out, "dead-"+place, in.Subject, f.Code, "the question is too long to be passed on")
	}
	return err
}

// onExhausted tells of a message that was handed out as often as it may be and never finished: whoever worked at it died
// each time, or could not be reached. It is every instance's to hear and to tell. When it was a turn of the one who
// answers, it is told to the caller too, by the ids on the dead letter; a turn that cannot be read is told of without.
func (r *Router) onExhausted(ctx context.Context, in actor.Msg[subjects.Advisory], out actor.Out) error {
	a := in.Body
	who, _, _ := strings.Cut(a.Consumer, "-")
	// Not an id that follows from the advisory: whoever uses it first would silence the letter. Of several routers each
	// writes one, and one is enough.
	id := out.NewID()
	reason := fmt.Sprintf("%s was given message %d of %s %d times and did not finish it; it will not be tried again. Ask once more, and look into the log of %s",
		who, a.StreamSeq, a.Stream, a.Deliveries, who)
	if subjects.IsGeneratorTurn(a.Stream, a.Consumer) {
		session, query, err := readTurnIDs(ctx, out, a.StreamSeq)
		if err != nil {
			out.LogError(err)
		} else {
			out = out.WithIDs(session, query)
		}
	}
	return writeDeadLetter(ctx, out, id, in.Subject, subjects.CodeUnavailable, reason)
}

// readTurnIDs reads whose turn stands at a place in TURNS. Only the router writes there, so the ids are its own.
func readTurnIDs(ctx context.Context, out actor.Out, seq uint64) (session, query string, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	reply, _, err := out.Request(ctx, getTurnSubject, fmt.Appendf(nil, `{"seq":%d}`, seq))
	if err != nil {
		return "", "", fmt.Errorf("reading turn %d: %w", seq, err)
	}
	var got struct {
		Message *struct {
			Data []byte `json:"data"`
		} `json:"message"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply, &got); err != nil {
		return "", "", fmt.Errorf("reading turn %d: %w", seq, err)
	}
	switch {
	case got.Error != nil:
		return "", "", fmt.Errorf("reading turn %d: %s", seq, got.Error.Description)
	case got.Message == nil:
		return "", "", fmt.Errorf("reading turn %d: the answer holds none", seq)
	}
	var q subjects.Query
	if err := json.Unmarshal(got.Message.Data, &q); err != nil {
		return "", "", fmt.Errorf("reading turn %d: %w", seq, err)
	}
	return q.SessionID, q.QueryID, nil
}

// writeDeadLetter writes a dead letter about something that no retry would help.
func writeDeadLetter(ctx context.Context, out actor.Out, id, subject, code, reason string) error {
	topic, err := subjects.DeadLetterEvent.With(subjects.Router)
	if err != nil {
		return err
	}
	return actor.EmitOnce(ctx, out, topic, id, subjects.DeadLetter{Actor: subjects.Router, Subject: subject, Code: code, Reason: reason, Time: out.Now().UTC()})
}

// messageKey names a question by where and when the stream stored it: the same however often it comes, and another one when
// the stream was made anew.
func messageKey(in actor.Msg[subjects.Query]) string {
	return hashParts(in.Subject, fmt.Sprint(in.Seq), fmt.Sprint(in.StoredAt.UnixNano()))
}

// bodyOrHeader is the id that the body gives, or else the header's.
func bodyOrHeader(body, header string) string {
	if id := strings.TrimSpace(body); id != "" {
		return id
	}
	return header
}

// chooseID is the id to go by: the given one when it can stand in a subject, one made from it when it cannot, and one made
// from the question's place when there is none.
func chooseID(id, prefix, place, what string, notes []string) (string, []string) {
	switch {
	case id == "":
		return prefix + "-" + place, notes
	case subjects.CheckToken(id) == nil:
		return id, notes
	}
	token := readablePrefix(id) + hashParts(id)
	return token, append(notes, fmt.Sprintf("The %s id %q cannot be used as it is: letters, digits, - and _ only, at most %d. It goes by %s.", what, text.Clip(id, 40), subjects.MaxToken, token))
}

// readablePrefix is what a user can recognize of an id in its token. The digest behind it keeps different ids apart.
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

// hashParts is a short hash of its parts, a valid token.
func hashParts(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
