package actor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// StreamHandler handles one request with a streamed reply: each call of send sends one piece. Its error is treated like
// that of a [RequestHandler]. Its context ends when the caller stops reading.
type StreamHandler[Q, A any] func(ctx context.Context, in Msg[Q], send func(A) error, out Out) error

// PlainTexter is a piece with a plain text form, for a request in plain text.
type PlainTexter interface{ PlainText() string }

// ServeStream handles the requests of a service with streamed replies: h sends each piece, and an empty message without
// headers ends the reply. Sending fails once the deadline has passed or the caller has stopped reading. h is not called
// for a malformed body, which is rejected.
func ServeStream[Q, A any](s subjects.Service[Q, A], h StreamHandler[Q, A], opts ...Option) Route {
	r := Route{spec: s.Spec, kind: serve, stream: true}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := rawMessage[Q](in)
		if err != nil {
			return nil, err
		}
		return nil, h(ctx, m, func(a A) error {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			data, err := encodePiece(in.codec, a)
			if err != nil {
				return fmt.Errorf("encoding a piece for %s: %w", s.Name, err)
			}
			return in.piece(data)
		}, out)
	}
	return r.apply(opts)
}

func encodePiece(c subjects.Codec, v any) ([]byte, error) {
	if p, ok := v.(PlainTexter); ok && c == subjects.Text {
		return []byte(p.PlainText()), nil
	}
	return encode(replyCodec(c), v)
}

// AskStream sends a request when it is iterated, and yields the pieces of the reply; an error is the last element. ctx
// or the message being handled must have a deadline, else the request is rejected. Ending the iteration early
// unsubscribes, and cancels the handler where the service has a stop subject. It fails as [Ask] does.
func AskStream[Q, A any](ctx context.Context, out Out, s subjects.Service[Q, A], body Q) iter.Seq2[A, error] {
	return func(yield func(A, error) bool) {
		var none A
		data, err := encodeFor(s.Spec, body)
		if err != nil {
			yield(none, err)
			return
		}
		for piece, err := range out.Stream(ctx, s.Spec, data) {
			if err != nil {
				yield(none, err)
				return
			}
			var a A
			c, fault := detectCodec(piece.Type, s.Spec, piece.Data)
			if fault == nil {
				err = decode(c, piece.Data, &a)
			}
			if fault != nil || err != nil {
				yield(none, subjects.Faultf(subjects.CodeMalformed, "a piece of the reply to %s is malformed", s.Name))
				return
			}
			if !yield(a, nil) {
				return
			}
		}
	}
}

// Piece is one piece of a streamed reply.
type Piece struct {
	Data []byte
	Type string // content type
}

// Stream implements [Out]. It sends nothing until it is iterated; each iteration is a request of its own. An iteration
// that ends before the service does sends a stop message, where spec has a stop subject. A reader that is too slow for
// the connection loses pieces, which ends the reply with a fault.
func (s *connOut) Stream(ctx context.Context, spec subjects.Spec, body []byte) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		m, err := s.newMessage(ctx, spec, body)
		if err != nil {
			yield(Piece{}, err)
			return
		}
		ctx, cancel, fault := s.withDeadline(ctx, spec)
		if fault != nil {
			yield(Piece{}, fault)
			return
		}
		defer cancel()
		deadline, _ := ctx.Deadline()
		m.Header[subjects.HeaderDeadline] = []string{strconv.FormatInt(deadline.UnixMilli(), 10)}
		m.Reply = s.nc.NewInbox()
		// Not SubscribeSync: its channel has room for 65536 messages, half a megabyte for each request.
		pieces, gone := make(chan *nats.Msg, 16), make(chan struct{})
		defer close(gone)
		sub, err := s.nc.Subscribe(m.Reply, func(m *nats.Msg) {
			select {
			case pieces <- m:
			case <-gone:
			}
		})
		if err != nil {
			yield(Piece{}, requestFault(spec, err))
			return
		}
		ended := false
		id := s.newID()
		m.Header[subjects.HeaderStream] = []string{id}
		defer func() {
			sub.Unsubscribe()
			if !ended && spec.Stop != "" {
				s.sendStop(spec, id)
			}
		}()
		if err := s.nc.PublishMsg(m); err != nil {
			ended = true // no service received it
			yield(Piece{}, requestFault(spec, err))
			return
		}
		repeat := func() bool { return waitNoResponders(ctx) && s.nc.PublishMsg(m) == nil }
		probe := s.newStreamProbe(spec, id)
		defer probe.stop()
		ended = yieldPieces(ctx, spec, pieces, probe, repeat, yield)
	}
}

// yieldPieces yields the pieces of a streamed reply in order, until its end, an error, the end of ctx, or yield returns
// false. A gap in the piece numbers is an unavailable fault, and so is silence when no instance holds the request, as
// probe says (nil = none asks). A request without a responder is repeated with repeat, which reports false when it
// cannot be. It reports whether the service ended the reply: otherwise a stop message is
// due.
func yieldPieces(ctx context.Context, spec subjects.Spec, pieces <-chan *nats.Msg, probe *streamProbe,
	repeat func() bool, yield func(Piece, error) bool,
) (ended bool) {
	repeats, silent := 0, false
	var ask <-chan time.Time
	if probe != nil {
		ticker := time.NewTicker(probeInterval)
		defer ticker.Stop()
		ask = ticker.C
	}
	for n := 0; ; n++ {
		var r *nats.Msg
		select {
		case r = <-pieces:
			silent = false
		case <-ask:
			if silent && probe.isLost() {
				yield(Piece{}, subjects.Faultf(subjects.CodeUnavailable, "the reply to %s was lost: the instance that "+
					"held the request is gone", spec.Name))
				return false
			}
			silent = true
			n--
			continue
		case <-ctx.Done():
			yield(Piece{}, requestFault(spec, ctx.Err()))
			return false
		}
		switch {
		case len(r.Data) == 0 && r.Header.Get("Status") == "503" && n == 0 && repeats < noResponderRetries && repeat():
			repeats, n = repeats+1, -1
			continue
		case len(r.Data) == 0 && r.Header.Get("Status") == "503":
			yield(Piece{}, requestFault(spec, nats.ErrNoResponders))
			return true
		case len(r.Data) == 0 && len(r.Header) == 0:
			return true
		}
		if fault := replyError(r); fault != nil {
			yield(Piece{}, fault)
			return true
		}
		if r.Header.Get(subjects.HeaderPiece) != strconv.Itoa(n) { // the link was down in between
			yield(Piece{}, subjects.Faultf(subjects.CodeUnavailable, "a piece of the reply to %s was lost", spec.Name))
			return false
		}
		if !yield(Piece{r.Data, r.Header.Get(subjects.HeaderType)}, nil) {
			return false
		}
	}
}

// sendStop tells the service that the caller stopped reading the stream id. spec must have a stop subject. Errors are
// ignored and the message may be lost: the deadline ends the request anyway.
func (s *connOut) sendStop(spec subjects.Spec, id string) {
	t, err := subjects.Topic[subjects.Empty]{Spec: subjects.Spec{Name: spec.Stop}}.With(id)
	if err != nil {
		return
	}
	if m, err := s.newMessage(context.Background(), t.Spec, []byte("{}")); err == nil {
		_ = s.nc.PublishMsg(m)
	}
}

// errStopped is the cause of the context of a request whose caller stopped reading.
var errStopped = errors.New("the caller stopped reading")

// openStreams are the streamed replies in progress, so that their callers can end them.
type openStreams struct {
	mu            sync.Mutex
	open          map[string]context.CancelCauseFunc // by account and the caller's id
	canceledEarly []string                           // ended while their requests are still queued
}

// maxCanceledEarly bounds canceledEarly. A request dropped from it is handled until its deadline.
const maxCanceledEarly = 256

// register registers the stream id of the account who, and returns a context that [openStreams.cancel] ends with
// errStopped. A stop that arrived before ends it at once. An empty or invalid id, or one that the account has in use,
// cannot be stopped. end must be called when the stream is over.
func (s *openStreams) register(ctx context.Context, who, id string) (_ context.Context, end func()) {
	ctx, stop := context.WithCancelCause(ctx)
	end = func() { stop(nil) }
	if id == "" || subjects.CheckToken(id) != nil {
		return ctx, end
	}
	key := who + "." + id
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.canceledEarly, key); i >= 0 {
		s.canceledEarly = slices.Delete(s.canceledEarly, i, i+1)
		stop(errStopped)
		return ctx, end
	}
	if s.open[key] != nil { // an id used twice by the same account: the first stream keeps it
		return ctx, end
	}
	if s.open == nil {
		s.open = map[string]context.CancelCauseFunc{}
	}
	s.open[key] = stop
	return ctx, func() {
		stop(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, key)
	}
}

// cancel ends the stream of who with this id. who must be the account that the server wrote into the subject, so that
// no account can end another's. The stop of an unknown stream is kept for one that registers later; the last 256 are.
func (s *openStreams) cancel(who, id string) {
	key := who + "." + id
	s.mu.Lock()
	defer s.mu.Unlock()
	if stop := s.open[key]; stop != nil {
		stop(errStopped)
		return
	}
	if len(s.canceledEarly) >= maxCanceledEarly {
		s.canceledEarly = slices.Delete(s.canceledEarly, 0, 1)
	}
	s.canceledEarly = append(s.canceledEarly, key)
}

// has reports whether the stream id of who is registered.
func (s *openStreams) has(who, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[who+"."+id] != nil
}

// subscribeStops subscribes to the stop messages of a streaming route, if it has a stop subject, without a queue group:
// any instance may handle the request.
func (r *running) subscribeStops(l *routeRun) error {
	if !l.stream || l.spec.Stop == "" {
		return nil
	}
	sub, err := r.nc.Subscribe("agent.*."+l.spec.Stop, func(m *nats.Msg) {
		if tokens, ok := subjects.Match("agent.*."+l.spec.Stop, m.Subject); ok && len(tokens) == 2 {
			r.handleStop(l, m, tokens[0], tokens[1])
		}
	})
	if err != nil {
		return fmt.Errorf("subscribing to %s: %w", l.spec.Stop, err)
	}
	r.subs = append(r.subs, sub)
	return nil
}

// sendPiece sends one piece of the reply to m, without waiting: numbered, and without headers on a raw subject. An
// empty piece is skipped: it would end the reply. A piece over the server's payload limit is a [subjects.CodeTooLarge]
// fault.
func (r *running) sendPiece(m *nats.Msg, in *inbound, data []byte) error {
	if len(data) == 0 {
		return nil // would end the reply
	}
	var h nats.Header
	if in.codec != subjects.Raw { // the headers are ours, the protocol of a raw subject is not
		h = nats.Header{
			subjects.HeaderType:  []string{in.codec.String()},
			subjects.HeaderPiece: []string{strconv.Itoa(in.pieces)},
		}
	}
	in.pieces++
	err := r.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Data: data, Header: h})
	if errors.Is(err, nats.ErrMaxPayload) {
		return subjects.Faultf(subjects.CodeTooLarge, "a piece of the reply is larger than the server's payload limit")
	}
	return err
}

// endStream sends the empty message that ends a streamed reply, also after a fault.
func (r *running) endStream(m *nats.Msg, in *inbound) {
	if err := r.nc.PublishMsg(&nats.Msg{Subject: m.Reply}); err != nil {
		r.cfg.Log.Error("end of reply not sent", "actor", r.actor.Name(), "subject", in.subject, "query", in.query,
			"err", err)
	}
}
