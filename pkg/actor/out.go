package actor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/strict"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// Out publishes and requests on behalf of a handler. Every message carries the ids, deadline and trace of the message
// being handled. Handlers use the typed [Emit], [EmitAsync], [EmitOnce], [Ask] and [AskStream].
type Out interface {
	// Publish publishes body on a subject without wildcards. With wait it returns when the subject's stream has stored
	// it.
	Publish(ctx context.Context, spec subjects.Spec, body []byte, wait bool) error
	// PublishOnce publishes body under the caller's message id and returns when it is stored. Published again under the
	// same id within the stream's dedupe window, it is stored once.
	PublishOnce(ctx context.Context, spec subjects.Spec, body []byte, id string) error
	// Request returns the reply's body and content type. A fault in the reply is the error.
	Request(ctx context.Context, spec subjects.Spec, body []byte) (reply []byte, contentType string, err error)
	// Stream requests and yields the reply in pieces.
	Stream(ctx context.Context, spec subjects.Spec, body []byte) iter.Seq2[Piece, error]
	// Store opens a bucket that the actor owns. [Bucket] is its typed form.
	Store(bucket string) Store
	// WithIDs returns an Out whose messages carry other session and query ids.
	WithIDs(session, query string) Out
	// LogError logs an error that is not returned to anyone; the runtime adds actor and query.
	LogError(err error)
	Now() time.Time
	NewID() string
}

// Store is a bucket: keys are subject tokens joined by dots.
type Store interface {
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	// Put stores value if the key's revision is still the given one; 0 means that the key must not exist yet.
	Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
	// Keys lists the keys below a prefix of whole tokens, in no order.
	Keys(ctx context.Context, prefix string) ([]string, error)
}

var (
	// ErrNotFound means that a bucket has no such key.
	ErrNotFound = errors.New("no such key")
	// ErrChanged means that the key has another revision than the write is based on.
	ErrChanged = errors.New("the key was changed concurrently")
	// ErrIncomplete means that a subject still has wildcards: its With was not called.
	ErrIncomplete = errors.New("subject is not complete")
)

// Emit publishes an event and returns when its stream has stored it, or at once for a topic without a stream.
func Emit[T any](ctx context.Context, out Out, t subjects.Topic[T], body T) error {
	return publishBody(ctx, out, t, body, t.Stream != "")
}

// EmitAsync publishes an event without waiting until it is stored, for copies that must not delay the act they report.
// An event that is not stored is logged; a draining actor waits for pending ones.
func EmitAsync[T any](ctx context.Context, out Out, t subjects.Topic[T], body T) error {
	return publishBody(ctx, out, t, body, false)
}

// EmitView publishes an event that is a view of the work, on the topic with these tokens, without waiting: a failure is
// only logged.
func EmitView[T any](ctx context.Context, out Out, t subjects.Topic[T], body T, tokens ...string) {
	t, err := t.With(tokens...)
	if err == nil {
		err = EmitAsync(ctx, out, t, body)
	}
	if err != nil {
		out.LogError(err)
	}
}

// EmitOnce publishes an event under an id that the caller stored before, and returns when it is stored. Published again
// under that id after a crash, within the stream's dedupe window, it is stored once. The topic must have a stream, and
// the id must be unguessable: see [NewID]. It rejects what [Emit] rejects. [Bucket] does the storing.
func EmitOnce[T any](ctx context.Context, out Out, t subjects.Topic[T], id string, body T) error {
	data, err := encodeFor(t.Spec, body)
	if err != nil {
		return err
	}
	return out.PublishOnce(ctx, t.Spec, data, id)
}

// EmitRevision is [EmitOnce] for a topic with one message per subject: the event is stored only if the last one of its
// subject has the given sequence, 0 for none. Otherwise the error is [ErrChanged]. out must have a connection.
func EmitRevision[T any](ctx context.Context, out Out, t subjects.Topic[T], id string, revision uint64, body T) error {
	c, ok := out.(*connOut)
	if !ok {
		return fmt.Errorf("publishing %s: a revision needs a connection", t.Name)
	}
	data, err := encodeFor(t.Spec, body)
	if err != nil {
		return err
	}
	err = c.publishOnce(ctx, t.Spec, data, id, jetstream.WithExpectLastSequencePerSubject(revision))
	if isWrongRevision(err) {
		return fmt.Errorf("publishing %s: %w", t.Name, ErrChanged)
	}
	return publishFault(t.Spec, err)
}

// AfterReply calls f in the goroutine of the handler when its reply is sent, also when the handler fails; a draining
// actor waits for it. It is for copies that must not delay the reply that they report. Without a reply to wait for, as
// in a test without a bus, f is called at once.
func AfterReply(out Out, f func()) {
	if c, ok := out.(*connOut); ok && c.after != nil {
		*c.after = append(*c.after, f)
		return
	}
	f()
}

// publishBody encodes and publishes an event; with wait it returns when the event is stored. It rejects a topic with
// wildcards ([ErrIncomplete]) and a body over the topic's limit.
func publishBody[T any](ctx context.Context, out Out, t subjects.Topic[T], body T, wait bool) error {
	data, err := encodeFor(t.Spec, body)
	if err != nil {
		return err
	}
	return out.Publish(ctx, t.Spec, data, wait)
}

// Ask sends a request to a service and waits for its reply. ctx or the message being handled must have a deadline, else
// the request is rejected. Missing deadline, timeout, no responder, a body over the limit and a malformed reply are
// [*subjects.Fault] errors; see [IsReplyFault] for faults of the service itself. With an error the reply is zero.
func Ask[Q, A any](ctx context.Context, out Out, s subjects.Service[Q, A], body Q) (A, error) {
	var a A
	data, err := encodeFor(s.Spec, body)
	if err != nil {
		return a, err
	}
	reply, contentType, err := out.Request(ctx, s.Spec, data)
	if err != nil {
		return a, err
	}
	c, fault := detectCodec(contentType, s.Spec, reply)
	if fault != nil {
		return a, subjects.Faultf(subjects.CodeMalformed, "the reply to %s could not be read: its content type is "+
			"unknown", s.Name)
	}
	var answer A // apart from a: a partly decoded reply is not returned
	if err := decode(c, reply, &answer); err != nil {
		return a, subjects.Faultf(subjects.CodeMalformed, "the reply to %s could not be read: %v", s.Name, err)
	}
	return answer, nil
}

// encodeFor encodes the body of a message for a subject. It fails as [checkPublishable] does.
func encodeFor(spec subjects.Spec, body any) ([]byte, error) {
	data, err := encode(spec.Codec, body)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", spec.Name, err)
	}
	return data, checkPublishable(spec, data)
}

// checkPublishable rejects a subject with wildcards, with [ErrIncomplete], and a body over the subject's limit, with a
// [subjects.CodeTooLarge] fault.
func checkPublishable(spec subjects.Spec, body []byte) error {
	if strings.ContainsAny(spec.Name, "*>") {
		return fmt.Errorf("%w: %s", ErrIncomplete, spec.Name)
	}
	if len(body) > spec.Limit() {
		return subjects.Faultf(subjects.CodeTooLarge, "%d bytes for %s, at most %d", len(body), spec.Name, spec.Limit())
	}
	return nil
}

// messageIDs are the ids, trace and deadline that are propagated from message to message.
type messageIDs struct {
	query, session, trace string
	deadline              time.Time
}

// ids are propagated to the messages of its handler.
func (in *inbound) ids() messageIDs { return messageIDs{in.query, in.session, in.trace, in.deadline} }

// header returns the headers of a message of a content type: the ids, and the deadline in unix milliseconds. Empty ones
// are left out.
func (c messageIDs) header(contentType string) nats.Header {
	h := make(nats.Header, maxHeaders)
	values := make([]string, 0, maxHeaders) // one array for all
	set := func(k, v string) {
		if v != "" {
			values = append(values, v)
			h[k] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	set(subjects.HeaderType, contentType)
	set(subjects.HeaderQuery, c.query)
	set(subjects.HeaderSession, c.session)
	set(subjects.HeaderTrace, c.trace)
	if !c.deadline.IsZero() {
		set(subjects.HeaderDeadline, strconv.FormatInt(c.deadline.UnixMilli(), 10))
	}
	return h
}

// maxHeaders is the number of headers that the runtime writes itself.
const maxHeaders = 5

// connOut implements [Out] on a connection.
type connOut struct {
	nc      *nats.Conn
	account string // of the connection
	js      jetstream.JetStream
	log     *slog.Logger
	now     func() time.Time
	newID   func() string
	// buckets are the opened ones, shared by all copies.
	buckets *sync.Map
	// clustered is set when the connection knows several servers: the stream of an event may have no leader for a
	// moment.
	clustered bool
	// ownStats returns the actor's own reply to STATS; nil for a client.
	ownStats func() any
	// after has the functions of [AfterReply]; nil where there is no reply.
	after *[]func()
	messageIDs
}

// NewOut is an [Out] for a client that is no actor, such as a command or a test. LogError does nothing there.
func NewOut(nc *nats.Conn) (Out, error) {
	return newConnOut(nc, nil, time.Now, NewID)
}

// newConnOut returns an [Out] that publishes over nc, without ids. The name of nc is that of its account, as
// [conclave/pkg/bus.Bus.Dial] sets it: a publisher expects the acknowledgement of its account's own stream. At most
// 1024 asynchronous events wait for their acknowledgement, 10 s each; one that is not stored is logged, unless log is
// nil.
func newConnOut(nc *nats.Conn, log *slog.Logger, now func() time.Time, newID func() string) (*connOut, error) {
	s := &connOut{
		nc: nc, account: nc.Opts.Name, log: log, now: now, newID: newID, buckets: &sync.Map{},
		clustered: len(nc.Servers()) > 1,
	}
	var err error
	s.js, err = jetstream.NewWithAPIPrefix(nc, "core.API",
		jetstream.WithPublishAsyncMaxPending(1024),
		jetstream.WithPublishAsyncTimeout(10*time.Second),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			if s.log != nil {
				s.log.Error("event not stored", "subject", m.Subject, "query", m.Header.Get(subjects.HeaderQuery),
					"err", err)
			}
		}))
	if err != nil {
		return nil, fmt.Errorf("preparing to publish: %w", err)
	}
	return s, nil
}

// NewID makes an unguessable id that is a valid token. With a guessable message id another publisher could use it
// first, and the stream would drop this message as a duplicate.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	var text [2 * len(b)]byte
	return string(hex.AppendEncode(text[:0], b[:]))
}

func (s *connOut) Now() time.Time { return s.now() }

func (s *connOut) NewID() string { return s.newID() }

// LogError implements [Out].
func (s *connOut) LogError(err error) {
	if s.log != nil {
		s.log.Error("error", "query", s.query, "err", err)
	}
}

func (s *connOut) WithIDs(session, query string) Out {
	c := *s
	c.session, c.query = session, query
	return &c
}

func (s *connOut) withMessageIDs(c messageIDs) *connOut {
	n := *s
	n.messageIDs = c
	return &n
}

// newMessage builds a message with the propagated ids, deadline and trace: that of the span in ctx, or of the message
// being handled; a missing trace is made. It fails as [checkPublishable] does.
func (s *connOut) newMessage(ctx context.Context, spec subjects.Spec, body []byte) (*nats.Msg, error) {
	return newMessage(ctx, s.messageIDs, spec, body)
}

// newMessage is [connOut.newMessage] with the given ids.
func newMessage(ctx context.Context, c messageIDs, spec subjects.Spec, body []byte) (*nats.Msg, error) {
	if err := checkPublishable(spec, body); err != nil {
		return nil, err
	}
	if span := telemetry.SpanOf(ctx); span != nil {
		c.trace = span.Traceparent()
	}
	if c.trace == "" {
		c.trace = newTrace()
	}
	return &nats.Msg{Subject: spec.Name, Header: c.header(spec.Codec.String()), Data: body}, nil
}

// newTrace begins a trace that is not marked as sampled: nobody records the span that it names.
func newTrace() string {
	var b [24]byte
	rand.Read(b[:])
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-00"
}

// publishStallWait is how long EmitAsync blocks when too many messages are unacknowledged: a slow stream slows
// publishers down before messages are lost.
const publishStallWait = 5 * time.Second

// Publish implements [Out]. A subject without a stream, or of a bucket, is published without acknowledgement, whatever
// wait is. Without wait an event that is not stored is only logged; Publish waits up to publishStallWait when too many
// are pending. With wait it fails when the message id was already used, and with a fault when the stream is full.
func (s *connOut) Publish(ctx context.Context, spec subjects.Spec, body []byte, wait bool) error {
	m, err := s.newMessage(ctx, spec, body)
	if err != nil {
		return err
	}
	stored := spec.Stream != "" && !strings.HasPrefix(spec.Stream, "KV_")
	id := ""
	if stored {
		id = s.newID()
	}
	switch {
	case !stored:
		err = s.nc.PublishMsg(m)
	case wait:
		var ack *jetstream.PubAck
		attempts := 0
		err = retryInCluster(ctx, s.clustered, true, func(ctx context.Context) (err error) {
			attempts++
			ack, err = s.js.PublishMsg(ctx, m, jetstream.WithExpectStream(spec.StoredIn(s.account)),
				jetstream.WithMsgID(id))
			return err
		})
		if err == nil && ack.Duplicate && attempts == 1 {
			err = errors.New("its message id was already used")
		}
	default:
		opts := []jetstream.PublishOpt{
			jetstream.WithExpectStream(spec.StoredIn(s.account)), jetstream.WithMsgID(id),
			jetstream.WithStallWait(publishStallWait),
		}
		if s.clustered {
			opts = append(opts, jetstream.WithRetryWait(leaderPause),
				jetstream.WithRetryAttempts(int(leaderWait/leaderPause)))
		}
		_, err = s.js.PublishMsgAsync(m, opts...)
	}
	return publishFault(spec, err)
}

// publishFault maps the error of a stream that did not store a message to a fault that says why, as far as the sender
// can do something about it: full, or too many messages at once. It wraps any other error, and returns nil for nil.
func publishFault(spec subjects.Spec, err error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	switch {
	case !errors.As(err, &api):
	case api.ErrorCode == errCodeStoreFailed && spec.Stream == "EVENTS":
		return fmt.Errorf("publishing %s: %w", spec.Name, subjects.Faultf(subjects.CodeFull, "the day's quota of "+
			"events of this account is used up; its earlier ones must be a day old first"))
	case api.ErrorCode == errCodeStoreFailed:
		return fmt.Errorf("publishing %s: %w", spec.Name, subjects.Faultf(subjects.CodeFull, "%s is full: %s. "+
			"Nothing was stored; see conclave doctor", spec.Stream, api.Description))
	case api.Code == 429:
		return fmt.Errorf("publishing %s: %w", spec.Name, subjects.Faultf(subjects.CodeBusy, "%s has too many "+
			"messages to store; nothing was stored: retry after a second", spec.Stream))
	}
	return fmt.Errorf("publishing %s: %w", spec.Name, err)
}

// errCodeStoreFailed is the server's code for a message that a stream did not store because a limit is reached.
const errCodeStoreFailed jetstream.ErrorCode = 10077

// PublishOnce implements [Out]. It rejects a subject without a stream and an empty id. A message that the stream
// already has under this id is a success.
func (s *connOut) PublishOnce(ctx context.Context, spec subjects.Spec, body []byte, id string) error {
	return publishFault(spec, s.publishOnce(ctx, spec, body, id))
}

// publishOnce is [Out.PublishOnce] with options; the error is that of the stream.
func (s *connOut) publishOnce(ctx context.Context, spec subjects.Spec, body []byte, id string,
	opts ...jetstream.PublishOpt,
) error {
	m, err := s.newMessage(ctx, spec, body)
	if err != nil {
		return err
	}
	if spec.Stream == "" || id == "" {
		return fmt.Errorf("publishing %s once: no stream, or no id", spec.Name)
	}
	var ack *jetstream.PubAck
	err = retryInCluster(ctx, s.clustered, true, func(ctx context.Context) (err error) {
		ack, err = s.js.PublishMsg(ctx, m, append(opts, jetstream.WithExpectStream(spec.StoredIn(s.account)),
			jetstream.WithMsgID(id))...)
		return err
	})
	if err == nil && !ack.Duplicate {
		measureEvent(ctx, spec, body)
	}
	return err
}

// Request implements [Out]. It sends the deadline with the request and waits until then; a request without any deadline
// is rejected. A request without a responder is repeated ([retryNoResponders]). See requestFault for its errors without
// a reply.
func (s *connOut) Request(ctx context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	ctx, cancel, fault := s.withDeadline(ctx, spec)
	if fault != nil {
		return nil, "", fault
	}
	defer cancel()
	ids := s.messageIDs
	ids.deadline, _ = ctx.Deadline()
	m, err := newMessage(ctx, ids, spec, body)
	if err != nil {
		return nil, "", err
	}
	r, err := retryNoResponders(ctx, func() (*nats.Msg, error) { return s.nc.RequestMsgWithContext(ctx, m) })
	if err != nil {
		return nil, "", requestFault(spec, err)
	}
	if err := replyError(r); err != nil {
		return nil, "", err
	}
	return r.Data, r.Header.Get(subjects.HeaderType), nil
}

// withDeadline returns ctx with the deadline of the request: the earlier one of ctx and of the message being handled.
// Without either it returns a [subjects.CodeNoDeadline] fault and a nil cancel. The caller must call cancel.
func (s *connOut) withDeadline(ctx context.Context, spec subjects.Spec) (context.Context, context.CancelFunc, error) {
	deadline, ok := ctx.Deadline()
	if !s.deadline.IsZero() && (!ok || s.deadline.Before(deadline)) {
		ctx, cancel := context.WithDeadline(ctx, s.deadline)
		return ctx, cancel, nil
	}
	if !ok {
		return ctx, nil, subjects.Faultf(subjects.CodeNoDeadline, "request to %s has no deadline", spec.Name)
	}
	return ctx, func() {}, nil
}

// requestFault maps the error of a request without a reply to a fault: unavailable (no responder, connection down),
// timeout, or too large. Any other error, a canceled context included, is wrapped and no fault.
func requestFault(spec subjects.Spec, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return NoResponder(serverOf(spec))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return subjects.Faultf(subjects.CodeTimeout, "timeout: no reply from %s before the deadline",
			serverOf(spec))
	case errors.Is(err, nats.ErrMaxPayload):
		return subjects.Faultf(subjects.CodeTooLarge, "%s: larger than the server's payload limit", spec.Name)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrReconnectBufExceeded):
		return subjects.Faultf(subjects.CodeUnavailable, "the connection to the server is down")
	}
	return fmt.Errorf("requesting %s: %w", spec.Name, err)
}

// replyError returns the fault in a reply, marked as one of the service ([ReplyFault]), and nil for a reply without an
// error code header. The header's code and text count when the body is not the same fault.
func replyError(r *nats.Msg) error {
	code := r.Header.Get(subjects.HeaderErrCode)
	if code == "" {
		return nil
	}
	f := &subjects.Fault{}
	if strict.DecodeJSON(r.Data, f) != nil || f.Code != code {
		f = &subjects.Fault{Code: code, Text: r.Header.Get(subjects.HeaderErrText)}
	}
	return ReplyFault(f)
}

// noResponder marks the fault of a request that no service received.
type noResponder struct{ *subjects.Fault }

func (n noResponder) Unwrap() error { return n.Fault }

// NoResponder returns the fault of a request that no service received; server is the actor that serves such requests.
func NoResponder(server string) error {
	return noResponder{subjects.Faultf(subjects.CodeUnavailable, "%s is not running", server)}
}

// serverOf names the actor that serves a request, for the user, who does not know subjects.
func serverOf(spec subjects.Spec) string { return cmp.Or(spec.Server(), spec.Name) }

// IsNoResponder reports whether err is that of a request without a responder. The server says so, or the responder
// itself, whose empty reply with the status 503 looks the same: it is no proof that nothing ran.
func IsNoResponder(err error) bool {
	return err != nil && errors.As(err, new(noResponder))
}

// replyFault marks a fault that came in a reply.
type replyFault struct{ *subjects.Fault }

func (r replyFault) Unwrap() error { return r.Fault }

// ReplyFault marks a fault as one that the responder sent.
func ReplyFault(f *subjects.Fault) error { return replyFault{f} }

// IsReplyFault reports whether err is a fault that the responder sent. Such a fault proves nothing: the responder may
// claim "unavailable" and have acted. Other faults are made by the runtime: no responder, timeout.
func IsReplyFault(err error) bool {
	return errors.As(err, new(replyFault))
}
