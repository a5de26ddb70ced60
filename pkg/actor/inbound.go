package actor

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// inbound is a message whose envelope is parsed and whose body is not decoded yet.
type inbound struct {
	subject  string
	tokens   []string
	from     string
	query    string
	session  string
	trace    string
	deadline time.Time
	time     time.Time
	codec    subjects.Codec
	data     []byte
	seq      uint64
	storedAt time.Time
	attempt  int
	streams  bool               // the caller reads a reply in pieces
	piece    func([]byte) error // sends one piece of a streamed reply
	pieces   int                // sent so far
	after    []func()           // of [AfterReply]
}

// ValidTrace reports whether v is a W3C traceparent of version 00, in lower case, with nonzero ids. Any other value is
// replaced, never propagated.
func ValidTrace(v string) bool {
	if len(v) != 55 || v[:3] != "00-" || v[35] != '-' || v[52] != '-' || v[3:35] == strings.Repeat("0", 32) ||
		v[36:52] == strings.Repeat("0", 16) {
		return false
	}
	for i, c := range []byte(v) {
		dash := i == 2 || i == 35 || i == 52
		if !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// readMessage parses and checks the envelope of a message for a route, see [parseEnvelope]; the body is not decoded.
// Only requests expire: for other routes a passed deadline is dropped and no fault, and live events and those of EVENTS
// carry none.
func (r Route) readMessage(subject string, h nats.Header, data []byte, now time.Time) (*inbound, *subjects.Fault) {
	in, fault := parseEnvelope(r.spec, subject, h, data, now)
	if r.kind == serve {
		return in, fault
	}
	expired := fault != nil && fault.Code == subjects.CodeExpired
	if expired {
		in.codec, fault = detectCodec(h.Get(subjects.HeaderType), r.spec, data)
	}
	if expired || r.kind == subscribe || r.spec.Stream == "EVENTS" {
		in.deadline = time.Time{}
	}
	return in, fault
}

// parseEnvelope parses subject and headers. It rejects a subject that does not match spec, ids that are no valid token,
// a body over spec.Limit, a malformed or passed deadline, a missing one where spec needs it, and an unknown content
// type; an invalid trace is replaced. With a fault it returns what it parsed so far, never nil.
func parseEnvelope(spec subjects.Spec, subject string, h nats.Header, data []byte, now time.Time) (*inbound,
	*subjects.Fault,
) {
	in := &inbound{subject: subject, time: now, data: data}
	tokens, ok := subjects.Match(spec.Subscription(), subject)
	if !ok {
		return in, subjects.Faultf(subjects.CodeSubject, "not a subject of this service")
	}
	in.tokens = tokens
	if isAttested(spec) && len(tokens) > 0 {
		in.from = tokens[0]
	}
	for _, id := range []struct {
		header string
		to     *string
	}{{subjects.HeaderQuery, &in.query}, {subjects.HeaderSession, &in.session}} {
		v := h.Get(id.header)
		if v == "" {
			continue
		}
		// Ids become subject tokens and bucket keys later.
		if err := subjects.CheckToken(v); err != nil {
			return in, subjects.Faultf(subjects.CodeMalformed, "header %s: %v", id.header, err)
		}
		*id.to = v
	}
	if v := h.Get(subjects.HeaderTrace); ValidTrace(v) {
		in.trace = v
	} else {
		in.trace = newTrace()
	}
	if len(data) > spec.Limit() {
		return in, subjects.Faultf(subjects.CodeTooLarge, "%d bytes, at most %d", len(data), spec.Limit())
	}
	if fault := in.readDeadline(spec, h.Get(subjects.HeaderDeadline)); fault != nil {
		return in, fault
	}
	c, fault := detectCodec(h.Get(subjects.HeaderType), spec, data)
	in.codec = c
	return in, fault
}

// readDeadline sets the deadline from the header value v, in unix milliseconds. "" means no deadline, which is rejected
// where spec needs one. A malformed value and a deadline not after in.time are rejected; the latter is set
// nevertheless.
func (in *inbound) readDeadline(spec subjects.Spec, v string) *subjects.Fault {
	if v == "" {
		if spec.NeedsDeadline {
			return subjects.Faultf(subjects.CodeNoDeadline, "header %s is missing: set the deadline in unix "+
				"milliseconds", subjects.HeaderDeadline)
		}
		return nil
	}
	ms, err := strconv.ParseInt(v, 10, 64)
	if err != nil || ms <= 0 {
		return subjects.Faultf(subjects.CodeMalformed, "header %s is not in unix milliseconds", subjects.HeaderDeadline)
	}
	in.deadline = time.UnixMilli(ms)
	if !in.deadline.After(in.time) {
		return subjects.Faultf(subjects.CodeExpired, "the deadline passed before the message was handled")
	}
	return nil
}

// isAttested reports whether the server writes the sender's account into the first wildcard of the received subject.
func isAttested(spec subjects.Spec) bool {
	for _, p := range []string{"agent.*.", "ctl.*.", "client.*.", "from.*."} {
		if len(spec.Received) > len(p) && spec.Received[:len(p)] == p {
			return true
		}
	}
	return false
}

func hashBody(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
