// Package subjects holds what can be said on the bus: every subject, its payload, its codec, where it is kept, and the
// table of edges that says who may speak or listen. Exports, imports, permissions, nats.conf and docs/bus.md are
// generated from that table, so none of them can forget one another.
//
// Nobody formats a subject by hand. A [Topic] or [Service] is completed with [Topic.With], which validates each token.
//
//go:generate go run ./generate
package subjects

import (
	"fmt"
	"strings"
)

// Codec is how a payload is written. Every actor reads both; a topic says which one its speakers write.
type Codec uint8

const (
	// JSON is for what a user may watch with the plain nats tool.
	JSON Codec = iota
	// Msgpack is for traffic between actors.
	Msgpack
	// Text is read, never written: a bare question on query.*.
	Text
)

// Content types, as they stand in the Content-Type header.
const (
	TypeJSON    = "application/json"
	TypeMsgpack = "application/msgpack"
	TypeText    = "text/plain"
)

// String is the codec's content type.
func (c Codec) String() string {
	switch c {
	case Msgpack:
		return TypeMsgpack
	case Text:
		return TypeText
	}
	return TypeJSON
}

// Headers that travel with every message. The runtime copies them; none of them says who speaks: that is in the subject,
// written by the server.
const (
	HeaderQuery    = "Conclave-Query"
	HeaderSession  = "Conclave-Session"
	HeaderDeadline = "Conclave-Deadline" // unix milliseconds
	HeaderStream   = "Conclave-Stream"   // the caller's id of a streamed reply, to end it with
	HeaderPiece    = "Conclave-Piece"    // counts the pieces of a streamed reply from 0, so that a lost one is noticed
	HeaderTrace    = "traceparent"
	HeaderType     = "Content-Type"
	HeaderErrCode  = "Nats-Service-Error-Code" // as the micro protocol names it
	HeaderErrText  = "Nats-Service-Error"
)

// Spec is what is true of a subject whatever its payload type: the runtime, the docs and the tests read it.
type Spec struct {
	Name          string // as the speaker says it and the watcher sees it; "*" and ">" stand for tokens to fill in
	Received      string // as the owner hears it, when the server rewrites it; "" = Name
	Codec         Codec
	Lossy         bool   // may be lost: live tokens. Everything else must arrive or its speaker be told
	Stream        string // the stream or bucket that keeps it, "" = none
	NeedsDeadline bool   // a request must carry a deadline
	PlainText     bool   // plain text is a valid payload
	Stop          string // where a caller says that it no longer reads a streamed reply; "" = nowhere
	MaxPayload    int    // largest payload in bytes; 0 = MaxBody
	Doc           string // one line for docs/bus.md
}

// Limits on what is read from the bus.
const (
	MaxBody    = 768 << 10 // below the server's 1 MB, so that headers and an error text still fit
	MaxToken   = 64        // characters in one token that we build
	MaxSubject = 255
)

// Subscription is the subject the owner subscribes to.
func (s Spec) Subscription() string {
	if s.Received != "" {
		return s.Received
	}
	return s.Name
}

// Limit is the largest payload in bytes.
func (s Spec) Limit() int {
	if s.MaxPayload > 0 {
		return s.MaxPayload
	}
	return MaxBody
}

// Topic ties a subject to the type of its payload: the wrong payload does not compile.
type Topic[T any] struct{ Spec }

// Service ties a request subject to the types of its request and its reply.
type Service[Q, A any] struct{ Spec }

// With fills the wildcards of the topic's name with tokens, each validated.
func (t Topic[T]) With(tokens ...string) (Topic[T], error) {
	var err error
	t.Name, err = fill(t.Name, tokens)
	return t, err
}

// With fills the wildcards of the service's name with tokens, each validated.
func (s Service[Q, A]) With(tokens ...string) (Service[Q, A], error) {
	var err error
	s.Name, err = fill(s.Name, tokens)
	return s, err
}

// fill replaces each "*" by one token and a final ">" by the rest.
func fill(pattern string, tokens []string) (string, error) {
	for _, t := range tokens {
		if err := CheckToken(t); err != nil {
			return "", fmt.Errorf("subject %s: %w", pattern, err)
		}
	}
	parts := strings.Split(pattern, ".")
	out := make([]string, 0, len(parts)+len(tokens))
	for _, p := range parts {
		switch p {
		case "*":
			if len(tokens) == 0 {
				return "", fmt.Errorf("subject %s: %w: too few tokens", pattern, ErrToken)
			}
			out, tokens = append(out, tokens[0]), tokens[1:]
		case ">":
			if len(tokens) == 0 {
				return "", fmt.Errorf("subject %s: %w: too few tokens", pattern, ErrToken)
			}
			out, tokens = append(out, tokens...), nil
		default:
			out = append(out, p)
		}
	}
	if len(tokens) > 0 {
		return "", fmt.Errorf("subject %s: %w: %d tokens too many", pattern, ErrToken, len(tokens))
	}
	s := strings.Join(out, ".")
	if len(s) > MaxSubject {
		return "", fmt.Errorf("subject %s: %w: longer than %d characters", pattern, ErrToken, MaxSubject)
	}
	return s, nil
}
