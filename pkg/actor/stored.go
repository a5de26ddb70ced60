package actor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/subjects"
)

// StoredMessage is a message of a stream.
type StoredMessage struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"` // when it was stored
	Headers []byte    `json:"hdrs"` // as on the wire
}

// DecodeQueued decodes a stored message as its consumer gets it. It rejects what the consumer's actor would reject.
func DecodeQueued[T any](t subjects.Topic[T], m StoredMessage) (Msg[T], error) {
	h := nats.Header{}
	if len(m.Headers) > 0 {
		var err error
		if h, err = nats.DecodeHeadersMsg(m.Headers); err != nil {
			return Msg[T]{}, fmt.Errorf("decoding %s: %w", m.Subject, err)
		}
	}
	in, fault := Route{kind: durable, spec: t.Spec}.readMessage(m.Subject, h, m.Data, m.Time)
	if fault != nil {
		return Msg[T]{}, fault
	}
	in.seq, in.storedAt = m.Seq, m.Time
	return rawMessage[T](in)
}

// StoredSubject returns the subject of the JetStream API by which messages of a stream are read; the table of edges has
// the grants.
func StoredSubject(stream string) string { return "core.API.STREAM.MSG.GET." + stream }

// ReadStored reads one message of a stream, as [RequestAPI] does. selector is the body of the request. Subject is
// authoritative: the server writes it. nil, without an error, means that there is no such message.
func ReadStored(ctx context.Context, out Out, stream string, selector map[string]any) (*StoredMessage, error) {
	var got storedReply
	if err := RequestAPI(ctx, out, StoredSubject(stream), selector, &got); err != nil {
		return nil, err
	}
	return got.message(stream)
}

// storedReply is the reply of the JetStream API to a request for a message.
type storedReply struct {
	Error   *jetstream.APIError `json:"error"`
	Message *StoredMessage      `json:"message"`
}

// message returns the message of the reply of a stream, nil when there is none.
func (got storedReply) message(stream string) (*StoredMessage, error) {
	switch {
	case got.Error != nil && got.Error.Code == 404 && got.Error.ErrorCode != jetstream.JSErrCodeStreamNotFound:
		return nil, nil
	case got.Error != nil:
		return nil, fmt.Errorf("reading stream %s: %w", stream, got.Error)
	case got.Message == nil:
		return nil, fmt.Errorf("reading stream %s: empty reply", stream)
	}
	return got.Message, nil
}

// RequestAPI sends a read request to the JetStream API and decodes the reply into reply. It makes up to three attempts
// of five seconds each, because the reply is lost when the server that routes it stops. An error of the API is in the
// decoded reply, not in the returned error: the caller checks it.
func RequestAPI(ctx context.Context, out Out, subject string, body, reply any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		got, _, err := out.Request(try, subjects.Spec{Name: subject}, data)
		lost := try.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			return json.Unmarshal(got, reply)
		case !lost || attempt == 3:
			return fmt.Errorf("requesting %s: %w", subject, err)
		}
	}
}

// ReadChanges calls each with the values of a bucket that were written at the sequence seq or later and before end,
// oldest first, of the keys that match filter, and returns the sequence with which to go on. A bucket keeps the last
// value of a key only, so that a key is reported once, however often it was written. With an error, the values before
// it were reported, and next stands after them.
func ReadChanges(ctx context.Context, out Out, bucket, filter string, seq, end uint64,
	each func(key string, m StoredMessage),
) (next uint64, err error) {
	whole := "$KV." + bucket + "."
	for next = seq; ; {
		m, err := ReadStored(ctx, out, "KV_"+bucket, map[string]any{"seq": next, "next_by_subj": whole + filter})
		if err != nil || m == nil || m.Seq >= end {
			return next, err
		}
		next = m.Seq + 1
		each(strings.TrimPrefix(m.Subject, whole), *m)
	}
}
