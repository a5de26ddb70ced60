package client

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Event is one message of the bus as a user sees it. From is the author's account: authoritative on an event read from
// the event log, where the server wrote it into the subject; on a live copy it comes from a header and decides nothing.
type Event struct {
	Time    time.Time       `json:"time"`
	Stream  string          `json:"stream,omitempty"`
	Seq     uint64          `json:"seq,omitempty"` // in the stream; 0 = not stored
	Subject string          `json:"subject"`       // without the author
	From    string          `json:"from,omitempty"`
	Session string          `json:"session,omitempty"`
	Query   string          `json:"query,omitempty"`
	Body    json.RawMessage `json:"body"` // JSON in any case; plain text is a JSON string
}

// Decode decodes the body into v, also one that an earlier build stored under former field names. It reports false when
// the body does not fit v.
func (e Event) Decode(v any) bool { return strict.DecodeStored(e.Body, v) == nil }

// DecodeAs decodes an event of a topic. words are the tokens of the topic's wildcards in the subject. It reports false
// for an event of another topic, and for a body that does not fit.
func DecodeAs[T any](e Event, t subjects.Topic[T]) (body T, words []string, ok bool) {
	if words, ok = subjects.Match(t.LiveSubject(), e.Subject); ok {
		ok = e.Decode(&body)
	}
	return body, words, ok
}

// Text is the body as text: the string itself when it is a JSON string, which may have line breaks, and the JSON
// otherwise.
func (e Event) Text() string {
	var text string
	if json.Unmarshal(e.Body, &text) == nil {
		return text
	}
	return string(e.Body)
}

// About reports whether the event belongs to a session and a query. An empty id fits every event; a prefix of at least
// [IDPrefix] characters is enough. A complete query id also fits as the last token of the subject.
func (e Event) About(session, query string) bool {
	fits := func(id, want string) bool {
		return want == "" || id == want || len(want) >= IDPrefix && strings.HasPrefix(id, want)
	}
	lastToken := e.Subject[strings.LastIndexByte(e.Subject, '.')+1:] // response.delta.<query> and the like
	return fits(e.Session, session) && (fits(e.Query, query) || query != "" && lastToken == query)
}

// decodeLive reads a message from a subscription. It reports false for the traffic of requests and of the server, and
// for a message on a stored subject that no stream has stored: its stored copy is received too. Stream, sequence,
// author and time are read from headers and decide nothing; a message that is not stored has the present time and no
// author.
func decodeLive(m *nats.Msg) (Event, bool) {
	first, _, _ := strings.Cut(m.Subject, ".")
	if first == "core" || strings.HasPrefix(first, "_") || strings.HasPrefix(first, "$") {
		return Event{}, false
	}
	e := Event{Subject: m.Subject, Time: time.Now().UTC()}
	if isStored(m.Subject) {
		// The server appends its headers to those of the publisher: the last value of a name is the server's.
		if e.Stream = lastValue(m.Header, jetstream.StreamHeader); e.Stream == "" {
			return Event{}, false
		}
		e.Seq, _ = strconv.ParseUint(lastValue(m.Header, jetstream.SequenceHeader), 10, 64)
		if t, err := time.Parse(time.RFC3339Nano, lastValue(m.Header, jetstream.TimeStampHeaer)); err == nil {
			e.Time = t
		}
		_, e.From = splitStored(lastValue(m.Header, jetstream.SubjectHeader))
	}
	e.fill(m.Header, m.Data)
	return e, true
}

// isStored reports whether the user receives the subject, given without its author, as a copy of a stored event.
func isStored(subject string) bool {
	return slices.ContainsFunc(storedSubjects(), func(pattern string) bool {
		_, ok := subjects.Match(pattern, subject)
		return ok
	})
}

// storedSubjects are the subjects under which the user receives copies of stored events.
var storedSubjects = sync.OnceValue(func() (out []string) {
	for _, e := range subjects.Table().Edges {
		if e.Kind == subjects.StreamImport && e.Owner == subjects.Core && slices.Contains(e.Callers, "user") {
			_, local := e.Resolve("user")
			out = append(out, local)
		}
	}
	return out
})

// lastValue is the last value of a header, "" when it is missing. The server appends its own value last, after any that
// the publisher wrote.
func lastValue(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// splitStored splits from.<account>.<subject>. Other stored subjects have no author.
func splitStored(stored string) (subject, from string) {
	parts := strings.SplitN(stored, ".", 3)
	if len(parts) < 3 || parts[0] != "from" {
		return stored, ""
	}
	return parts[2], parts[1]
}

// fill sets the body, and the ids of session and query: from the headers, else from the payload; the query of a
// cancellation else from the subject. Ids say what an event is about, never who published it; one that is no valid
// token is dropped and leaves "".
func (e *Event) fill(h nats.Header, data []byte) {
	e.Body = bodyJSON(h.Get(subjects.HeaderType), data)
	var ids struct {
		Session string `json:"session_id"`
		Query   string `json:"query_id"`
	}
	if json.Unmarshal(e.Body, &ids) != nil {
		ids.Session, ids.Query = "", ""
	}
	if t, ok := subjects.Match(subjects.QueryCancel.Name, e.Subject); ok && len(t) == 1 {
		ids.Query = t[0]
	}
	e.Session = FirstToken(h.Get(subjects.HeaderSession), ids.Session)
	e.Query = FirstToken(h.Get(subjects.HeaderQuery), ids.Query)
}

// FirstToken is the first id that is a valid subject token, "" when none is.
func FirstToken(ids ...string) string {
	for _, id := range ids {
		if subjects.CheckToken(id) == nil {
			return id
		}
	}
	return ""
}

// bodyJSON returns a payload as JSON: an object or array compacted, msgpack converted, and everything else, also a bare
// number, as a JSON string with invalid UTF-8 replaced. An empty payload is null.
func bodyJSON(contentType string, data []byte) json.RawMessage {
	if base, _, _ := strings.Cut(contentType, ";"); strings.EqualFold(strings.TrimSpace(base), subjects.TypeMsgpack) {
		data = []byte(actor.FormatJSON(subjects.Spec{Codec: subjects.Msgpack}, data))
	}
	if len(data) == 0 {
		return json.RawMessage("null")
	}
	var b bytes.Buffer
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && strings.ContainsRune("{[", rune(trimmed[0])) &&
		json.Compact(&b, data) == nil {
		return b.Bytes()
	}
	text, err := json.Marshal(strings.ToValidUTF8(string(data), "\uFFFD"))
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}
