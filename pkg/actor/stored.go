package actor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

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

// ReadStored reads one message of a stream within 5 seconds. selector is the body of the request. Subject is
// authoritative: the server writes it. nil, without an error, means that there is no such message.
func ReadStored(ctx context.Context, out Out, stream string, selector map[string]any) (*StoredMessage, error) {
	body, err := json.Marshal(selector)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, _, err := out.Request(ctx, subjects.Spec{Name: StoredSubject(stream)}, body)
	if err != nil {
		return nil, err
	}
	var got struct {
		Error *struct {
			Code int    `json:"code"`
			Text string `json:"description"`
		} `json:"error"`
		Message *StoredMessage `json:"message"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return nil, err
	}
	switch {
	case got.Error != nil && got.Error.Code == 404:
		return nil, nil
	case got.Error != nil:
		return nil, errors.New(got.Error.Text)
	case got.Message == nil:
		return nil, errors.New("no message")
	}
	return got.Message, nil
}

// ReadChanges calls each with the values of a bucket that were written at a sequence or later, oldest first, of the
// keys that match filter, and returns the sequence with which to go on. A bucket keeps the last value of a key only, so
// that a key is reported once, however often it was written. With an error, the values before it were reported, and
// next stands after them.
func ReadChanges(ctx context.Context, out Out, bucket, filter string, seq uint64,
	each func(key string, m StoredMessage),
) (next uint64, err error) {
	whole := "$KV." + bucket + "."
	for next = seq; ; {
		m, err := ReadStored(ctx, out, "KV_"+bucket, map[string]any{"seq": next, "next_by_subj": whole + filter})
		if err != nil || m == nil {
			return next, err
		}
		next = m.Seq + 1
		each(strings.TrimPrefix(m.Subject, whole), *m)
	}
}
