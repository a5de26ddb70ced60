package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// events is the stream that can be replayed.
const events = "EVENTS"

// said is one message of the bus as a user sees it. From is the author's account where the event log has it. On live
// copies it stands in a header that the server adds: good to read, nothing to decide by.
type said struct {
	Time    time.Time       `json:"time"`
	Stream  string          `json:"stream,omitempty"`
	Seq     uint64          `json:"seq,omitempty"`
	Subject string          `json:"subject"`
	From    string          `json:"from,omitempty"`
	Session string          `json:"session,omitempty"`
	Query   string          `json:"query,omitempty"`
	Body    json.RawMessage `json:"body"`
}

// heard reads a live message. It is false for what is no message to a person: the machinery of requests, and one's own
// words on a subject that is kept, because their kept copy is heard as well.
func heard(m *nats.Msg) (said, bool) {
	first, _, _ := strings.Cut(m.Subject, ".")
	if first == "core" || strings.HasPrefix(first, "_") || strings.HasPrefix(first, "$") {
		return said{}, false
	}
	s := said{Subject: m.Subject, Time: time.Now().UTC()}
	if kept(m.Subject) {
		// The server appends its headers to those of the writer: the last of a name is the server's.
		if s.Stream = last(m.Header, jetstream.StreamHeader); s.Stream == "" {
			return said{}, false
		}
		s.Seq, _ = strconv.ParseUint(last(m.Header, jetstream.SequenceHeader), 10, 64)
		if t, err := time.Parse(time.RFC3339Nano, last(m.Header, jetstream.TimeStampHeaer)); err == nil {
			s.Time = t
		}
		_, s.From = split(last(m.Header, jetstream.SubjectHeader))
	}
	s.read(m.Header, m.Data)
	return s, true
}

// kept reports whether people see the subject as a copy of what a stream has stored.
func kept(subject string) bool {
	return slices.ContainsFunc(copies(), func(pattern string) bool {
		_, ok := subjects.Match(pattern, subject)
		return ok
	})
}

// copies are the subjects under which the user hears what streams have stored.
var copies = sync.OnceValue(func() (out []string) {
	for _, e := range subjects.Table().Edges {
		if e.Kind == subjects.StreamImport && e.Owner == subjects.Core && slices.Contains(e.Callers, "user") {
			_, local := e.Resolve("user")
			out = append(out, local)
		}
	}
	return out
})

func last(h nats.Header, name string) string {
	v := h[name]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// split takes from.<account>.<subject> apart. Other subjects have no author.
func split(stored string) (subject, from string) {
	parts := strings.SplitN(stored, ".", 3)
	if len(parts) < 3 || parts[0] != "from" {
		return stored, ""
	}
	return parts[2], parts[1]
}

// read fills in the body and the ids, from the headers or from where the payload repeats them.
func (s *said) read(h nats.Header, data []byte) {
	s.Body = decoded(h.Get(subjects.HeaderType), data)
	var ids struct {
		Session string `json:"session_id"`
		Query   string `json:"query_id"`
	}
	_ = json.Unmarshal(s.Body, &ids) // a body without them is fine
	s.Session, s.Query = or(h.Get(subjects.HeaderSession), ids.Session), or(h.Get(subjects.HeaderQuery), ids.Query)
}

// decoded is the body as JSON: as it is, from msgpack, or a text as a string.
func decoded(contentType string, data []byte) json.RawMessage {
	if base, _, _ := strings.Cut(contentType, ";"); strings.EqualFold(strings.TrimSpace(base), subjects.TypeMsgpack) {
		data = []byte(actor.FormatJSON(subjects.Spec{Codec: subjects.Msgpack}, data))
	}
	if len(data) == 0 {
		return json.RawMessage("null")
	}
	var b bytes.Buffer
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && strings.ContainsRune("{[", rune(trimmed[0])) && json.Compact(&b, data) == nil {
		return b.Bytes()
	}
	text, err := json.Marshal(strings.ToValidUTF8(string(data), "\uFFFD"))
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// text is the body for a line of text.
func (s said) text() string {
	var str string
	if json.Unmarshal(s.Body, &str) == nil {
		return str
	}
	return string(s.Body)
}

// about reports whether the message belongs to the session and the query; an empty one asks for nothing. The beginning
// of an id is enough, as the lines show only that much.
func (s said) about(session, query string) bool {
	is := func(id, want string) bool {
		return want == "" || id == want || len(want) >= 8 && strings.HasPrefix(id, want)
	}
	named := s.Subject[strings.LastIndexByte(s.Subject, '.')+1:] // query.cancel.<query> and the like
	return is(s.Session, session) && (is(s.Query, query) || query != "" && named == query)
}

// window is how many events are asked for at once.
const window = 64

// replay shows the kept events from t.since on and returns the sequence up to which it did.
func (t *tap) replay(ctx context.Context, nc *nats.Conn) (uint64, error) {
	if t.since == 0 {
		return 0, nil
	}
	info, err := stream(ctx, nc, bus.CoreAPI, events)
	if err != nil {
		return 0, err
	}
	type found struct {
		said
		ok  bool
		err error
	}
	for from := max(t.since, info.State.First); from <= info.State.Last; from += window {
		n := min(window, info.State.Last-from+1)
		got := make([]chan found, n)
		for i := range got {
			got[i] = make(chan found, 1)
			go func() {
				s, ok, err := event(ctx, nc, from+uint64(i))
				got[i] <- found{s, ok, err}
			}()
		}
		for _, c := range got {
			f := <-c
			if f.err != nil {
				return 0, f.err
			}
			if _, match := subjects.Match(t.pattern, f.Subject); !f.ok || !match || !kept(f.Subject) {
				continue
			}
			if err := t.show(f.said); err != nil {
				return 0, err
			}
		}
	}
	return info.State.Last, nil
}

// event reads one event by its sequence. It is false where there is none any more.
func event(ctx context.Context, nc *nats.Conn, seq uint64) (said, bool, error) {
	return stored(ctx, nc, map[string]any{"seq": seq})
}

// eventFrom reads the first event at a sequence or after it whose stored subject matches. It is false where there is none.
func eventFrom(ctx context.Context, nc *nats.Conn, seq uint64, subject string) (said, bool, error) {
	return stored(ctx, nc, map[string]any{"seq": seq, "next_by_subj": subject})
}

// stored asks the event log for one event. Who said it stands in its subject, which the server wrote.
func stored(ctx context.Context, nc *nats.Conn, which map[string]any) (said, bool, error) {
	var got struct {
		Message *struct {
			Seq     uint64    `json:"seq"`
			Subject string    `json:"subject"`
			Headers []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	err := api(ctx, nc, bus.CoreAPI+".STREAM.MSG.GET."+events, which, &got)
	switch {
	case err != nil:
		return said{}, false, err
	case got.Error != nil && got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return said{}, false, nil
	case got.Error != nil:
		return said{}, false, fmt.Errorf("reading event %v: %w", which["seq"], got.Error)
	case got.Message == nil:
		return said{}, false, errors.New("reading an event: empty answer")
	}
	s := said{Stream: events, Seq: got.Message.Seq, Time: got.Message.Time}
	s.Subject, s.From = split(got.Message.Subject)
	h := nats.Header{}
	if len(got.Message.Headers) > 0 {
		if parsed, err := nats.DecodeHeadersMsg(got.Message.Headers); err == nil {
			h = parsed
		}
	}
	s.read(h, got.Message.Data)
	return s, true, nil
}

// stride is how many places of the event log are looked through at once on the way back.
const stride = 2048

// back walks through the events of a stored subject from the newest to the oldest, until each says that it is enough, or for
// as many of them as most. It begins before the sequence before, 0 = at the end.
func back(ctx context.Context, nc *nats.Conn, subject string, before uint64, most int, each func(said) (goOn bool)) error {
	info, err := stream(ctx, nc, bus.CoreAPI, events)
	if err != nil {
		return err
	}
	end := info.State.Last + 1
	if before > 0 {
		end = min(end, before)
	}
	for end > info.State.First && most > 0 {
		begin := max(info.State.First, end-min(stride, end))
		var found []said
		for at := begin; at < end; {
			s, ok, err := eventFrom(ctx, nc, at, subject)
			if err != nil {
				return err
			}
			if !ok || s.Seq >= end {
				break
			}
			found, at = append(found, s), s.Seq+1
		}
		for _, s := range slices.Backward(found) {
			if most--; !each(s) || most == 0 {
				return nil
			}
		}
		end = begin
	}
	return nil
}

// forth walks through the events of a stored subject from a sequence on, in the same way.
func forth(ctx context.Context, nc *nats.Conn, subject string, from uint64, most int, each func(said) (goOn bool)) error {
	for range most {
		s, ok, err := eventFrom(ctx, nc, from, subject)
		if err != nil || !ok || !each(s) {
			return err
		}
		from = s.Seq + 1
	}
	return nil
}
