package actor

import (
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

	"conclave/subjects"
)

// Out is how a handler speaks. The runtime puts the ids, the deadline and the trace of the message at hand on
// everything said through it. Handlers use the typed [Emit], [EmitAsync] and [Ask].
type Out interface {
	// Publish says body on a completed subject. With wait it returns when the stream that keeps the subject has stored it.
	Publish(ctx context.Context, spec subjects.Spec, body []byte, wait bool) error
	// PublishOnce says body under the speaker's own id and returns when it is stored. Said again within the stream's window,
	// it is stored once.
	PublishOnce(ctx context.Context, spec subjects.Spec, body []byte, id string) error
	// Request asks and returns the reply's body and content type. A fault in the reply is the error.
	Request(ctx context.Context, spec subjects.Spec, body []byte) (reply []byte, contentType string, err error)
	// Stream asks and yields the reply in pieces.
	Stream(ctx context.Context, spec subjects.Spec, body []byte) iter.Seq2[Piece, error]
	// Store is a bucket of the actor's own.
	Store(bucket string) Store
	// WithIDs gives what is said through the result other ids.
	WithIDs(session, query string) Out
	// LogError puts an error into the log that is nobody's answer: the runtime adds who, where and which query.
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
	// ErrChanged means that somebody else wrote the key in between.
	ErrChanged = errors.New("the key was changed in between")
	// ErrIncomplete means that a subject still has wildcards: its With was forgotten.
	ErrIncomplete = errors.New("subject is not complete")
)

// Emit says an event and returns when it is stored, or at once where nothing keeps it.
func Emit[T any](ctx context.Context, out Out, t subjects.Topic[T], body T) error {
	return send(ctx, out, t, body, t.Stream != "")
}

// EmitAsync says an event and does not wait until it is stored: for copies that must not hold up the act they tell of. What
// could not be stored is logged, and a draining actor waits for what it has posted.
func EmitAsync[T any](ctx context.Context, out Out, t subjects.Topic[T], body T) error {
	return send(ctx, out, t, body, false)
}

// EmitOnce says an event under an id that the speaker has written down before, and returns when it is stored. After a
// crash it is said again with the same id, and stored once. The id must not be guessable: see [NewID].
func EmitOnce[T any](ctx context.Context, out Out, t subjects.Topic[T], id string, body T) error {
	data, err := encode(codec(t.Codec), body)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", t.Name, err)
	}
	if err := sayable(t.Spec, data); err != nil {
		return err
	}
	return out.PublishOnce(ctx, t.Spec, data, id)
}

func send[T any](ctx context.Context, out Out, t subjects.Topic[T], body T, wait bool) error {
	data, err := encode(codec(t.Codec), body)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", t.Name, err)
	}
	if err := sayable(t.Spec, data); err != nil {
		return err
	}
	return out.Publish(ctx, t.Spec, data, wait)
}

// Ask asks a service and returns its answer. ctx must have a deadline, or the message at hand. What went wrong on the
// way is a [*subjects.Fault].
func Ask[Q, A any](ctx context.Context, out Out, s subjects.Service[Q, A], body Q) (A, error) {
	var a A
	data, err := encode(codec(s.Codec), body)
	if err != nil {
		return a, fmt.Errorf("encoding %s: %w", s.Name, err)
	}
	if err := sayable(s.Spec, data); err != nil {
		return a, err
	}
	reply, contentType, err := out.Request(ctx, s.Spec, data)
	if err != nil {
		return a, err
	}
	c, fault := codecOf(contentType, s.Spec, reply)
	if fault != nil {
		return a, subjects.Faultf(subjects.CodeMalformed, "the reply to %s could not be read: its content type is unknown", s.Name)
	}
	var answer A // apart from a, so that half a reply is none
	if err := decode(c, reply, &answer); err != nil {
		return a, subjects.Faultf(subjects.CodeMalformed, "the reply to %s could not be read: %v", s.Name, err)
	}
	return answer, nil
}

// sayable reports whether a body may be said on a subject.
func sayable(spec subjects.Spec, body []byte) error {
	if strings.ContainsAny(spec.Name, "*>") {
		return fmt.Errorf("%w: %s", ErrIncomplete, spec.Name)
	}
	if len(body) > spec.Limit() {
		return subjects.Faultf(subjects.CodeTooLarge, "%d bytes for %s, at most %d", len(body), spec.Name, spec.Limit())
	}
	return nil
}

// carry is what travels from message to message.
type carry struct {
	query, session, trace string
	deadline              time.Time
}

// carried is what a message hands on.
func (in *inbound) carried() carry { return carry{in.query, in.session, in.trace, in.deadline} }

// put writes it into headers.
func (c carry) put(h nats.Header) {
	set := func(k, v string) {
		if v != "" {
			h[k] = []string{v}
		}
	}
	set(subjects.HeaderQuery, c.query)
	set(subjects.HeaderSession, c.session)
	set(subjects.HeaderTrace, c.trace)
	if !c.deadline.IsZero() {
		set(subjects.HeaderDeadline, strconv.FormatInt(c.deadline.UnixMilli(), 10))
	}
}

// speaker is Out on a connection.
type speaker struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	log   *slog.Logger
	now   func() time.Time
	newID func() string
	// buckets are shared by all copies.
	buckets *sync.Map
	carry
}

// NewOut is Out for something that is no actor: a command, a test.
func NewOut(nc *nats.Conn) (Out, error) {
	return newSpeaker(nc, nil, time.Now, NewID)
}

func newSpeaker(nc *nats.Conn, log *slog.Logger, now func() time.Time, newID func() string) (*speaker, error) {
	s := &speaker{nc: nc, log: log, now: now, newID: newID, buckets: &sync.Map{}}
	var err error
	s.js, err = jetstream.NewWithAPIPrefix(nc, "core.API",
		jetstream.WithPublishAsyncMaxPending(1024),
		jetstream.WithPublishAsyncTimeout(10*time.Second),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			if s.log != nil {
				s.log.Error("event not stored", "subject", m.Subject, "query", m.Header.Get(subjects.HeaderQuery), "err", err)
			}
		}))
	if err != nil {
		return nil, fmt.Errorf("preparing to speak: %w", err)
	}
	return s, nil
}

// NewID makes an unguessable id that is a valid token. A guessable message id could be used up by somebody else, and
// the stream would drop ours as a duplicate.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func (s *speaker) Now() time.Time { return s.now() }

func (s *speaker) NewID() string { return s.newID() }

// LogError implements [Out].
func (s *speaker) LogError(err error) {
	if s.log != nil {
		s.log.Error("noted", "query", s.query, "err", err)
	}
}

func (s *speaker) WithIDs(session, query string) Out {
	c := *s
	c.session, c.query = session, query
	return &c
}

func (s *speaker) with(c carry) *speaker {
	n := *s
	n.carry = c
	return &n
}

// message builds a message with everything that travels along.
func (s *speaker) message(spec subjects.Spec, body []byte) (*nats.Msg, error) {
	if err := sayable(spec, body); err != nil {
		return nil, err
	}
	h := make(nats.Header, 6)
	h[subjects.HeaderType] = []string{spec.Codec.String()}
	c := s.carry
	if c.trace == "" {
		c.trace = newTrace()
	}
	c.put(h)
	return &nats.Msg{Subject: spec.Name, Header: h, Data: body}, nil
}

// newTrace begins a trace. It is not marked as sampled: nobody collects spans yet, and the server rewrites the headers
// of sampled messages at every hop.
func newTrace() string {
	var b [24]byte
	rand.Read(b[:])
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-00"
}

// stall is how long a post waits when too many are not acknowledged yet: a store that is behind slows its speakers down
// before it loses what they say.
const stall = 5 * time.Second

// Publish implements [Out].
func (s *speaker) Publish(ctx context.Context, spec subjects.Spec, body []byte, wait bool) error {
	m, err := s.message(spec, body)
	if err != nil {
		return err
	}
	kept := spec.Stream != "" && !strings.HasPrefix(spec.Stream, "KV_")
	id := ""
	if kept {
		id = s.newID()
	}
	switch {
	case !kept:
		err = s.nc.PublishMsg(m)
	case wait:
		var ack *jetstream.PubAck
		ack, err = s.js.PublishMsg(ctx, m, jetstream.WithExpectStream(spec.Stream), jetstream.WithMsgID(id))
		if err == nil && ack.Duplicate {
			err = errors.New("its id was already used by somebody")
		}
	default:
		_, err = s.js.PublishMsgAsync(m, jetstream.WithExpectStream(spec.Stream), jetstream.WithMsgID(id), jetstream.WithStallWait(stall))
	}
	if err != nil {
		return fmt.Errorf("saying %s: %w", spec.Name, err)
	}
	return nil
}

// PublishOnce implements [Out].
func (s *speaker) PublishOnce(ctx context.Context, spec subjects.Spec, body []byte, id string) error {
	m, err := s.message(spec, body)
	if err != nil {
		return err
	}
	if spec.Stream == "" || id == "" {
		return fmt.Errorf("saying %s once: nothing keeps it, or it has no id", spec.Name)
	}
	if _, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectStream(spec.Stream), jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("saying %s: %w", spec.Name, err)
	}
	return nil
}

// Request implements [Out].
func (s *speaker) Request(ctx context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	m, err := s.message(spec, body)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel, fault := s.bounded(ctx, spec)
	if fault != nil {
		return nil, "", fault
	}
	defer cancel()
	deadline, _ := ctx.Deadline()
	m.Header[subjects.HeaderDeadline] = []string{strconv.FormatInt(deadline.UnixMilli(), 10)}
	r, err := s.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return nil, "", unasked(spec, err)
	}
	if err := faultOf(r); err != nil {
		return nil, "", err
	}
	return r.Data, r.Header.Get(subjects.HeaderType), nil
}

// bounded gives a request its deadline. Nobody waits longer for the answer than the one it is for, whatever context the
// handler used.
func (s *speaker) bounded(ctx context.Context, spec subjects.Spec) (context.Context, context.CancelFunc, error) {
	deadline, ok := ctx.Deadline()
	if !s.deadline.IsZero() && (!ok || s.deadline.Before(deadline)) {
		ctx, cancel := context.WithDeadline(ctx, s.deadline)
		return ctx, cancel, nil
	}
	if !ok {
		return ctx, nil, subjects.Faultf(subjects.CodeNoDeadline, "%s was asked without a deadline", spec.Name)
	}
	return ctx, func() {}, nil
}

// unasked says why a request brought no answer.
func unasked(spec subjects.Spec, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", spec.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return subjects.Faultf(subjects.CodeTimeout, "no answer from %s in time", spec.Name)
	case errors.Is(err, nats.ErrMaxPayload):
		return subjects.Faultf(subjects.CodeTooLarge, "%s: larger than the server takes", spec.Name)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrReconnectBufExceeded):
		return subjects.Faultf(subjects.CodeUnavailable, "%s cannot be asked: the link is down", spec.Name)
	}
	return fmt.Errorf("asking %s: %w", spec.Name, err)
}

// faultOf is the fault that a reply tells of, nil when it is an answer.
func faultOf(r *nats.Msg) error {
	code := r.Header.Get(subjects.HeaderErrCode)
	if code == "" {
		return nil
	}
	f := &subjects.Fault{}
	if decodeJSON(r.Data, f) != nil || f.Code != code {
		f = &subjects.Fault{Code: code, Text: r.Header.Get(subjects.HeaderErrText)}
	}
	return ReplyFault(f)
}

// replied marks a fault that came in a reply.
type replied struct{ *subjects.Fault }

func (r replied) Unwrap() error { return r.Fault }

// ReplyFault marks a fault as the words of whoever was asked.
func ReplyFault(f *subjects.Fault) error { return replied{f} }

// IsReplyFault reports whether err is what the one who was asked said of himself. Such a fault proves nothing: he may say
// "unavailable" and have acted. Faults that are not replied are our own: nobody there, no answer in time.
func IsReplyFault(err error) bool {
	var r replied
	return errors.As(err, &r)
}

// Store implements [Out].
func (s *speaker) Store(bucket string) Store {
	return &store{js: s.js, buckets: s.buckets, bucket: bucket}
}

type store struct {
	js      jetstream.JetStream
	buckets *sync.Map // name -> jetstream.KeyValue: opening one asks the server, and every use would
	bucket  string
}

func (k *store) open(ctx context.Context) (jetstream.KeyValue, error) {
	if kv, ok := k.buckets.Load(k.bucket); ok {
		return kv.(jetstream.KeyValue), nil
	}
	kv, err := k.js.KeyValue(ctx, k.bucket)
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", k.bucket, err)
	}
	k.buckets.Store(k.bucket, kv)
	return kv, nil
}

func (k *store) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	kv, err := k.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	e, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, fmt.Errorf("%w: %s in %s", ErrNotFound, key, k.bucket)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s in %s: %w", key, k.bucket, err)
	}
	return e.Value(), e.Revision(), nil
}

func (k *store) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	kv, err := k.open(ctx)
	if err != nil {
		return 0, err
	}
	var rev uint64
	if revision == 0 {
		rev, err = kv.Create(ctx, key, value)
	} else {
		rev, err = kv.Update(ctx, key, value, revision)
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, fmt.Errorf("%w: %s in %s", ErrChanged, key, k.bucket)
	}
	if err != nil {
		return 0, fmt.Errorf("writing %s in %s: %w", key, k.bucket, err)
	}
	return rev, nil
}

// Keys implements [Store]. It asks what the stream holds: a consumer, which kv.Keys would make, is not ours to have.
func (k *store) Keys(ctx context.Context, prefix string) ([]string, error) {
	whole := "$KV." + k.bucket + "."
	filter := whole + ">"
	if prefix != "" {
		filter = whole + prefix + ".>"
	}
	st, err := k.js.Stream(ctx, "KV_"+k.bucket)
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", k.bucket, err)
	}
	info, err := st.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", k.bucket, err)
	}
	keys := make([]string, 0, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, whole))
	}
	return keys, nil
}
