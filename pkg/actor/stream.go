package actor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// StreamHandler handles one request whose reply comes in pieces. Each say sends one; what it returns at the end is treated as
// an [RequestHandler]'s error. Its context ends when the caller says that it no longer listens.
type StreamHandler[Q, A any] func(ctx context.Context, in Msg[Q], say func(A) error, out Out) error

// PlainTexter is a piece that has a form in plain text, for a caller who wrote in plain text.
type PlainTexter interface{ PlainText() string }

// ServeStream answers the requests of a service in pieces. An empty message without headers ends the reply.
func ServeStream[Q, A any](s subjects.Service[Q, A], h StreamHandler[Q, A], opts ...Option) Route {
	r := Route{spec: s.Spec, kind: serve, stream: true}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := message[Q](in)
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
	return r.with(opts)
}

func encodePiece(c codec, v any) ([]byte, error) {
	if p, ok := v.(PlainTexter); ok && subjects.Codec(c) == subjects.Text {
		return []byte(p.PlainText()), nil
	}
	return encode(c.reply(), v)
}

// AskStream asks a service that answers in pieces. ctx must have a deadline, or the message at hand. Whoever stops
// reading early is no longer answered, and where the service can be told so it stops working.
func AskStream[Q, A any](ctx context.Context, out Out, s subjects.Service[Q, A], body Q) iter.Seq2[A, error] {
	return func(yield func(A, error) bool) {
		var none A
		data, err := encode(codec(s.Codec), body)
		if err != nil {
			yield(none, fmt.Errorf("encoding %s: %w", s.Name, err))
			return
		}
		if err := sayable(s.Spec, data); err != nil {
			yield(none, err)
			return
		}
		for piece, err := range out.Stream(ctx, s.Spec, data) {
			if err != nil {
				yield(none, err)
				return
			}
			var a A
			c, fault := codecOf(piece.Type, s.Spec, piece.Data)
			if fault == nil {
				err = decode(c, piece.Data, &a)
			}
			if fault != nil || err != nil {
				yield(none, subjects.Faultf(subjects.CodeMalformed, "a piece of the reply to %s could not be read", s.Name))
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

// Stream implements [Out].
func (s *speaker) Stream(ctx context.Context, spec subjects.Spec, body []byte) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		m, err := s.message(spec, body)
		if err != nil {
			yield(Piece{}, err)
			return
		}
		ctx, cancel, fault := s.bounded(ctx, spec)
		if fault != nil {
			yield(Piece{}, fault)
			return
		}
		defer cancel()
		deadline, _ := ctx.Deadline()
		m.Header[subjects.HeaderDeadline] = []string{strconv.FormatInt(deadline.UnixMilli(), 10)}
		m.Reply = s.nc.NewInbox()
		// Not SubscribeSync: its channel has room for 65536 messages, half a megabyte for each question.
		pieces, gone := make(chan *nats.Msg, 16), make(chan struct{})
		defer close(gone)
		sub, err := s.nc.Subscribe(m.Reply, func(m *nats.Msg) {
			select {
			case pieces <- m:
			case <-gone:
			}
		})
		if err != nil {
			yield(Piece{}, unasked(spec, err))
			return
		}
		ended, n := false, 0
		id := s.newID()
		if spec.Stop != "" {
			m.Header[subjects.HeaderStream] = []string{id}
		}
		defer func() {
			sub.Unsubscribe()
			if !ended && spec.Stop != "" {
				s.stop(spec, id)
			}
		}()
		if err := s.nc.PublishMsg(m); err != nil {
			ended = true // nobody heard it
			yield(Piece{}, unasked(spec, err))
			return
		}
		for {
			var r *nats.Msg
			select {
			case r = <-pieces:
			case <-ctx.Done():
				yield(Piece{}, unasked(spec, ctx.Err()))
				return
			}
			switch {
			case len(r.Data) == 0 && r.Header.Get("Status") == "503":
				ended = true
				yield(Piece{}, unasked(spec, nats.ErrNoResponders))
				return
			case len(r.Data) == 0 && len(r.Header) == 0:
				ended = true
				return
			}
			if fault := faultOf(r); fault != nil {
				ended = true
				yield(Piece{}, fault)
				return
			}
			if r.Header.Get(subjects.HeaderPiece) != strconv.Itoa(n) { // the link was down in between
				yield(Piece{}, subjects.Faultf(subjects.CodeUnavailable, "a piece of the reply to %s was lost", spec.Name))
				return
			}
			n++
			if !yield(Piece{r.Data, r.Header.Get(subjects.HeaderType)}, nil) {
				return
			}
		}
	}
}

// stop tells the answerer that nobody listens any more. It may be lost: the request's deadline holds anyway.
func (s *speaker) stop(spec subjects.Spec, id string) {
	t, err := subjects.Topic[subjects.Empty]{Spec: subjects.Spec{Name: spec.Stop}}.With(id)
	if err != nil {
		return
	}
	if m, err := s.message(t.Spec, []byte("{}")); err == nil {
		_ = s.nc.PublishMsg(m)
	}
}

// errStopped is the cause of a context whose caller went away.
var errStopped = errors.New("the caller no longer listens")

// streams are the streamed replies that are under way, so that their callers can end them.
type streams struct {
	mu   sync.Mutex
	open map[string]context.CancelCauseFunc // by account and the caller's id
	gone []string                           // ended before they began: their requests still wait in the mailbox
}

// maxGone bounds what is kept of them. Whoever falls out of it is answered for nobody, until its deadline.
const maxGone = 256

// begin notes a stream from when its request came in, and returns the context that its caller can end when he has given it
// an id. Whoever has begun it calls end.
func (s *streams) begin(ctx context.Context, who, id string) (_ context.Context, end func()) {
	ctx, stop := context.WithCancelCause(ctx)
	end = func() { stop(nil) }
	if id == "" || subjects.CheckToken(id) != nil {
		return ctx, end
	}
	key := who + "." + id
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.gone, key); i >= 0 {
		s.gone = slices.Delete(s.gone, i, i+1)
		stop(errStopped)
		return ctx, end
	}
	if s.open[key] != nil { // an id used twice by the same account: the first one keeps it
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

// cancel ends the stream of a caller. Only the account that asked has this key: the server wrote it.
func (s *streams) cancel(who, id string) {
	key := who + "." + id
	s.mu.Lock()
	defer s.mu.Unlock()
	if stop := s.open[key]; stop != nil {
		stop(errStopped)
		return
	}
	if len(s.gone) >= maxGone {
		s.gone = slices.Delete(s.gone, 0, 1)
	}
	s.gone = append(s.gone, key)
}

// hearStops listens for callers who break off. Every instance hears it: the one at work may be any.
func (r *running) hearStops(l *lane) error {
	if !l.stream || l.spec.Stop == "" {
		return nil
	}
	sub, err := r.nc.Subscribe("agent.*."+l.spec.Stop, func(m *nats.Msg) {
		if tokens, ok := subjects.Match("agent.*."+l.spec.Stop, m.Subject); ok && len(tokens) == 2 {
			l.streams.cancel(tokens[0], tokens[1])
		}
	})
	if err != nil {
		return fmt.Errorf("listening to %s: %w", l.spec.Stop, err)
	}
	r.subs = append(r.subs, sub)
	return nil
}

// send says one piece of a reply.
func (r *running) send(m *nats.Msg, in *inbound, data []byte) error {
	if len(data) == 0 {
		return nil // would look like the end
	}
	h := nats.Header{subjects.HeaderType: []string{in.pieceType()}, subjects.HeaderPiece: []string{strconv.Itoa(in.pieces)}}
	in.pieces++
	err := r.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Data: data, Header: h})
	if errors.Is(err, nats.ErrMaxPayload) {
		return subjects.Faultf(subjects.CodeTooLarge, "a piece of the answer is larger than the server takes")
	}
	return err
}

// endStream says the empty message that ends a streamed reply, after a fault too.
func (r *running) endStream(m *nats.Msg, in *inbound) {
	if err := r.nc.PublishMsg(&nats.Msg{Subject: m.Reply}); err != nil {
		r.cfg.Log.Error("end of answer not sent", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "err", err)
	}
}

// pieceType is how pieces are written: as the request was.
func (in *inbound) pieceType() string {
	return subjects.Codec(in.codec).String()
}
