package witness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/audit"
)

const (
	streamName    = "WITNESS"
	subjectPrefix = "copy."
	headerSubject = "Witness-Subject" // of the message on the hub
)

// Store keeps the copies in a stream of the machine, one subject each: copy.<log>.<stream>.<sequence>. The stream is in
// an account that the hub does not reach.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

// OpenStore opens the stream of copies over a connection whose account has JetStream, and creates it when it is
// missing, with at most size bytes. A full one rejects new copies.
func OpenStore(ctx context.Context, nc *nats.Conn, size int64) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	cfg := jetstream.StreamConfig{
		Name: streamName, Description: "copies of the hub's audit log", Subjects: []string{subjectPrefix + ">"},
		Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardNew, DenyDelete: true, DenyPurge: true, MaxBytes: size,
	}
	st, err := js.CreateStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		st, err = js.Stream(ctx, streamName)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the copy of the audit log: %w", err)
	}
	return &Store{js, st}, nil
}

// Append stores a message of a log, and returns when it is acknowledged. A message that is there already is an error.
func (s *Store) Append(ctx context.Context, log string, m audit.Stored) error {
	stream := cmp.Or(m.Stream, audit.MainStream)
	msg := &nats.Msg{
		Subject: subjectPrefix + log + "." + stream + "." + strconv.FormatUint(m.Seq, 10), Data: m.Data,
		Header: nats.Header{headerSubject: {m.Subject}},
	}
	_, err := s.js.PublishMsg(ctx, msg, jetstream.WithExpectStream(streamName),
		jetstream.WithExpectLastSequencePerSubject(0))
	return err
}

// Each calls f for every copy, in the order of Append.
func (s *Store) Each(ctx context.Context, f func(log string, m audit.Stored)) error {
	info, err := s.stream.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	c, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{InactiveThreshold: time.Minute})
	if err != nil {
		return err
	}
	it, err := c.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for left := info.State.Msgs; left > 0; left-- {
		msg, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		log, m, err := parseCopy(msg.Subject(), msg.Headers().Get(headerSubject), msg.Data())
		if err != nil {
			return err
		}
		f(log, m)
	}
	return nil
}

// parseCopy is the inverse of the form in which Append stores a message.
func parseCopy(subject, original string, data []byte) (log string, m audit.Stored, err error) {
	tokens := strings.Split(strings.TrimPrefix(subject, subjectPrefix), ".")
	if len(tokens) != 3 {
		return "", m, fmt.Errorf("the copy of the audit log has a foreign message %s", subject)
	}
	m = audit.Stored{Stream: tokens[1], Subject: original, Data: data}
	if m.Stream == audit.MainStream {
		m.Stream = ""
	}
	if m.Seq, err = strconv.ParseUint(tokens[2], 10, 63); err != nil {
		return "", m, fmt.Errorf("the copy of the audit log has a foreign message %s", subject)
	}
	return tokens[0], m, nil
}
