// Package subjects defines the bus: every subject with its payload, codec and stream, and the table of edges that says
// which account may publish or subscribe. Exports, imports, permissions, nats.conf and docs/bus.md are generated from
// that table, so they cannot differ.
//
// No other code formats a subject. A [Topic] or [Service] is completed with [Topic.With], which validates each token.
//
//go:generate go run ./generate
package subjects

import (
	"fmt"
	"strings"
)

// Codec is the encoding of a payload. Every actor decodes JSON and msgpack; a topic says which one its publishers use.
type Codec uint8

const (
	// JSON is for subjects that a user may watch with the nats command line.
	JSON Codec = iota
	// Msgpack is for traffic between actors.
	Msgpack
	// Text is decoded, never encoded: a bare question on query.*.
	Text
	// Raw is for bytes that are neither encoded nor decoded. A raw service speaks a protocol that others defined: its
	// error codes are those of [Spec.ErrorCode].
	Raw
)

// Values of the Content-Type header.
const (
	TypeJSON    = "application/json"
	TypeMsgpack = "application/msgpack"
	TypeText    = "text/plain"
	TypeRaw     = "application/octet-stream"
)

// String returns the codec's content type, that of JSON for an unknown codec.
func (c Codec) String() string {
	switch c {
	case Msgpack:
		return TypeMsgpack
	case Text:
		return TypeText
	case Raw:
		return TypeRaw
	}
	return TypeJSON
}

// Headers, propagated by the runtime. None of them identifies the sender: the server writes its account into the
// subject.
const (
	HeaderQuery    = "Conclave-Query"
	HeaderSession  = "Conclave-Session"
	HeaderDeadline = "Conclave-Deadline" // unix milliseconds
	// the caller reads the reply in pieces; its id of the reply, for the stop message
	HeaderStream  = "Conclave-Stream"
	HeaderPiece   = "Conclave-Piece" // index of a piece of a streamed reply, from 0: detects a lost piece
	HeaderTrace   = "traceparent"
	HeaderType    = "Content-Type"
	HeaderErrCode = "Nats-Service-Error-Code" // as the micro protocol names it
	HeaderErrText = "Nats-Service-Error"
)

// Spec is a subject without its payload type, for the runtime, the documentation and tests.
type Spec struct {
	Name          string // as published and watched; "*" and ">" are filled in by With
	Received      string // as the owner receives it, where the server maps it; "" = Name
	Codec         Codec
	Lossy         bool   // may be lost: live tokens. Any other message arrives, or its publisher gets an error
	Stream        string // the stream or bucket that stores it, "" = none
	NeedsDeadline bool   // a request must carry a deadline
	// a request that an actor repeats at intervals, or sends when its work is done: no trace begins with it
	Background bool
	PlainText  bool   // plain text is a valid payload
	Stop       string // subject of the stop message for a streamed reply; "" = none
	MaxPayload int    // largest payload in bytes; 0 = MaxBody
	// no actor of this build serves it, and its sender gets an error ([UnservedSpecs]): what to do instead. "" = served
	Unserved string
	Doc      string // one line for docs/bus.md
}

// Limits on what is read from the bus.
const (
	MaxBody    = 768 << 10 // below the server's 1 MB, to leave room for headers and an error text
	MaxToken   = 64        // characters in one token
	MaxSubject = 255
)

// Server returns the account that serves a request; "" when the table has none.
func (s Spec) Server() string {
	asked := strings.NewReplacer("*", "x", ">", "x").Replace(s.Subscription())
	for _, e := range Table().Edges {
		if e.Kind != ServiceImport || e.Owner == Core {
			continue
		}
		if _, ok := Match(strings.ReplaceAll(e.Remote, "<who>", "x"), asked); ok {
			return e.Owner
		}
	}
	return ""
}

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

// Topic binds a subject to the type of its payload: the wrong payload does not compile.
type Topic[T any] struct{ Spec }

// Service binds a request subject to the types of its request and reply.
type Service[Q, A any] struct{ Spec }

// With fills the wildcards of the topic's name with tokens. A token that [CheckToken] rejects, and too few or too many,
// are errors.
func (t Topic[T]) With(tokens ...string) (Topic[T], error) {
	var err error
	t.Name, err = fillWildcards(t.Name, tokens)
	return t, err
}

// With fills the wildcards of the service's name with tokens, as [Topic.With] does.
func (s Service[Q, A]) With(tokens ...string) (Service[Q, A], error) {
	var err error
	s.Name, err = fillWildcards(s.Name, tokens)
	return s, err
}

// fillWildcards returns pattern with each "*" replaced by one token and a final ">" by the remaining ones, at least
// one. It rejects tokens that [CheckToken] rejects, too few, too many, and a result of more than MaxSubject characters,
// with an error that wraps [ErrToken].
func fillWildcards(pattern string, tokens []string) (string, error) {
	for _, t := range tokens {
		if err := CheckToken(t); err != nil {
			return "", fmt.Errorf("subject %s: %w", pattern, err)
		}
	}
	s := make([]byte, 0, MaxSubject)
	for p := range strings.SplitSeq(pattern, ".") {
		n := 0 // tokens that p stands for
		switch {
		case p == "*":
			n = 1
		case p == ">":
			n = max(len(tokens), 1)
		default:
			s = append(append(s, p...), '.')
		}
		if len(tokens) < n {
			return "", fmt.Errorf("subject %s: %w: too few tokens", pattern, ErrToken)
		}
		for _, t := range tokens[:n] {
			s = append(append(s, t...), '.')
		}
		tokens = tokens[n:]
	}
	if len(tokens) > 0 {
		return "", fmt.Errorf("subject %s: %w: %d tokens too many", pattern, ErrToken, len(tokens))
	}
	s = s[:len(s)-1] // the last dot
	if len(s) > MaxSubject {
		return "", fmt.Errorf("subject %s: %w: longer than %d characters", pattern, ErrToken, MaxSubject)
	}
	return string(s), nil
}
