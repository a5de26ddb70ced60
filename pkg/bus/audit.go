package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/audit"
	"conclave/subjects"
)

// NewAuditLog returns a log that appends to the audit stream of a writer over its connection, whose name must be that
// of the writer's account, as [Bus.Dial] sets it.
func NewAuditLog(nc *nats.Conn) audit.Log {
	return auditLog{nc, subjects.AuditStream(nc.Opts.Name)}
}

type auditLog struct {
	nc     *nats.Conn
	stream string
}

// Append implements [audit.Log]. A full stream is [audit.ErrFull]; an invalid chain and any other error of the stream
// are [audit.ErrRefused]. No reply, a malformed one, one from another stream and one about an earlier attempt that a
// replicated stream still stores wrap neither: the message may be stored. It waits until ctx ends and does not retry.
func (l auditLog) Append(ctx context.Context, chain, id string, data []byte) (bool, error) {
	topic, err := subjects.AuditRecordEvent.With(chain)
	if err != nil {
		return false, fmt.Errorf("%w: %w", audit.ErrRefused, err)
	}
	m := &nats.Msg{Subject: topic.Name, Data: data, Header: nats.Header{
		jetstream.MsgIDHeader:          {id},
		jetstream.ExpectedStreamHeader: {l.stream}, // a stream of another name must not acknowledge
	}}
	r, err := l.nc.RequestMsgWithContext(ctx, m)
	if err != nil { // the message may be stored; the writer retries
		return false, fmt.Errorf("no acknowledgement from the audit stream: %w", err)
	}
	var ack struct {
		Stream    string              `json:"stream"`
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(r.Data, &ack); {
	case err != nil:
		return false, fmt.Errorf("malformed acknowledgement from the audit stream: %w", err)
	case ack.Error != nil && ack.Error.ErrorCode == errCodeIDInProcess:
		// an earlier attempt is not replicated yet: the writer retries
		return false, fmt.Errorf("the audit stream still stores the message: %w", ack.Error)
	case ack.Error != nil && ack.Error.ErrorCode == errCodeStoreFailed &&
		strings.Contains(ack.Error.Description, "maximum bytes"):
		return false, fmt.Errorf("%w: %w", audit.ErrFull, ack.Error)
	case ack.Error != nil:
		return false, fmt.Errorf("%w: %w", audit.ErrRefused, ack.Error)
	case ack.Stream != l.stream || ack.Seq == 0:
		return false, fmt.Errorf("acknowledgement from stream %q instead of the audit stream", ack.Stream)
	}
	return ack.Duplicate, nil
}

// errCodeStoreFailed is the server's code for a message that a stream did not store, because it is full or for other
// reasons.
const errCodeStoreFailed jetstream.ErrorCode = 10077

// errCodeIDInProcess is the code of a replicated stream that has received a message with the same id and not stored it
// yet.
const errCodeIDInProcess jetstream.ErrorCode = 10158

// AuditReader reads one audit stream: over the auditor's connection, or of a stopped server ([AuditFiles]).
type AuditReader interface {
	// Owner names the stream in the audit log: see [audit.Stored].
	Owner() string
	// ReadAfter returns the messages after the stream sequence seq, up to the one that is last now; 0 means all. The
	// error wraps [ErrNoAudit] when there is no stream.
	ReadAfter(ctx context.Context, seq uint64) (audit.Source, error)
}

// ErrNoAudit means that there is no audit stream: it was never created, or it is lost.
var ErrNoAudit = errors.New("there is no audit stream")

// AuditReaders reads the audit log: one reader per stream, that of the broker, which has the genesis record, first.
type AuditReaders []AuditReader

// NewAuditReader reads over the auditor's connection. It gets messages by sequence: the subject then comes from the
// server, while that of a direct get comes from a header that the writer sets.
func NewAuditReader(nc *nats.Conn) (out AuditReaders) {
	for _, stream := range auditStreams() {
		out = append(out, auditConn{nc, stream})
	}
	return out
}

// auditStreams lists the names of the audit streams, that of the broker first.
func auditStreams() (out []string) {
	for _, st := range subjects.Table().Streams {
		if st.Account == subjects.Audit {
			out = append(out, st.Name)
		}
	}
	return out
}

// ReadAll returns the whole log: the streams after each other. The error wraps [ErrNoAudit] when there is no first
// stream; any other may be missing, because builds with one stream had none, and anchors and kept heads show a loss.
func (l AuditReaders) ReadAll(ctx context.Context) (audit.Source, error) {
	var all audit.Source
	var parts []audit.Source
	for i, r := range l {
		part, err := r.ReadAfter(ctx, 0)
		if i > 0 && errors.Is(err, ErrNoAudit) {
			continue
		}
		if err != nil {
			return audit.Source{}, err
		}
		if i == 0 {
			all.StreamRange = part.StreamRange
		} else {
			all.Others = append(all.Others, part.StreamRange)
		}
		all.Damage = append(all.Damage, part.Damage...)
		parts = append(parts, part)
	}
	all.Messages = func(yield func(audit.Stored, error) bool) {
		for _, part := range parts {
			for st, err := range part.Messages {
				if !yield(st, err) || err != nil {
					return
				}
			}
		}
	}
	return all, nil
}

// streamOwner returns the name of a stream in the audit log: the account that it belongs to, "" for [audit.MainStream].
func streamOwner(stream string) string {
	_, account, _ := strings.Cut(stream, "_") // the inverse of subjects.AuditStream
	return account
}

type auditConn struct {
	nc     *nats.Conn
	stream string
}

// Owner implements [AuditReader].
func (r auditConn) Owner() string { return streamOwner(r.stream) }

// ReadAfter implements [AuditReader].
func (r auditConn) ReadAfter(ctx context.Context, seq uint64) (audit.Source, error) {
	var info struct {
		jetstream.StreamInfo
		Error *jetstream.APIError `json:"error"`
	}
	if err := requestAuditAPI(ctx, r.nc, "STREAM.INFO."+r.stream, nil, &info); err != nil {
		return audit.Source{}, err
	}
	switch {
	case info.Error != nil && info.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		return audit.Source{}, fmt.Errorf("reading the audit log: %w: %w", ErrNoAudit, info.Error)
	case info.Error != nil:
		return audit.Source{}, fmt.Errorf("reading the audit log: %w", info.Error)
	}
	first := info.State.FirstSeq
	if seq > 0 {
		first = max(seq+1, first)
	}
	return audit.Source{
		StreamRange: audit.StreamRange{Stream: r.Owner(), First: first, Last: info.State.LastSeq},
		Messages: func(yield func(audit.Stored, error) bool) {
			r.readMessages(ctx, first, info.State.LastSeq, yield)
		},
	}, nil
}

// ReadFirstAuditMessage reads the first message of the audit log, its genesis. It fails when the log does not begin at
// sequence 1.
func ReadFirstAuditMessage(ctx context.Context, l AuditReaders) (audit.Stored, error) {
	src, err := l.ReadAll(ctx)
	if err != nil {
		return audit.Stored{}, err
	}
	for m, err := range src.Messages {
		if err != nil || m.Seq == 1 {
			return m, err
		}
		break
	}
	return audit.Stored{}, fmt.Errorf("reading audit message 1: %w", errNoMessage)
}

// readWindow is the number of concurrent requests; one at a time would wait a round trip for each message.
const readWindow = 128

// readMessages yields the messages from first to last in order, requested readWindow at a time, and stops at the first
// error. A missing message is skipped: the verifier detects the gap in the sequence.
func (r auditConn) readMessages(ctx context.Context, first, last uint64, yield func(audit.Stored, error) bool) {
	type result struct {
		audit.Stored
		err error
	}
	for from := first; from <= last && from > 0; from += readWindow {
		n := min(readWindow, last-from+1)
		results := make([]chan result, n)
		for i := range results {
			results[i] = make(chan result, 1)
			go func() {
				st, err := r.readMessage(ctx, from+uint64(i))
				results[i] <- result{st, err}
			}()
		}
		for _, c := range results {
			res := <-c
			if errors.Is(res.err, errNoMessage) {
				continue
			}
			if !yield(res.Stored, res.err) || res.err != nil {
				return
			}
		}
	}
}

var errNoMessage = errors.New("no message at this sequence")

// readMessage reads one message; errNoMessage means that the stream has none at seq. The returned sequence and subject
// are those that the server reports.
func (r auditConn) readMessage(ctx context.Context, seq uint64) (audit.Stored, error) {
	var got struct {
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := requestAuditAPI(ctx, r.nc, "STREAM.MSG.GET."+r.stream, map[string]uint64{"seq": seq}, &got); err != nil {
		return audit.Stored{}, err
	}
	switch {
	case got.Error != nil && got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return audit.Stored{}, errNoMessage
	case got.Error != nil:
		return audit.Stored{}, fmt.Errorf("reading audit message %s: %w", audit.MessageName(r.Owner(), seq), got.Error)
	case got.Message == nil:
		return audit.Stored{}, fmt.Errorf("reading audit message %s: empty reply", audit.MessageName(r.Owner(), seq))
	}
	return audit.Stored{
		Stream: r.Owner(), Seq: got.Message.Seq, Subject: got.Message.Subject, Data: got.Message.Data,
		Time: got.Message.Time,
	}, nil
}

// requestAuditAPI sends a read request to the JetStream API of the audit account and decodes the reply into into; an
// error in the reply is for the caller to find. verb is the API subject without prefix; a nil body sends none. It makes
// up to three attempts of 5 s each, because the server may be busy writing.
func requestAuditAPI(ctx context.Context, nc *nats.Conn, verb string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return fmt.Errorf("reading the audit log: %w", err)
		}
	}
	var err error
	for range 3 {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		var m *nats.Msg
		m, err = nc.RequestWithContext(try, AuditAPI+"."+verb, data)
		cancel()
		if err == nil {
			if err := json.Unmarshal(m.Data, into); err != nil {
				return fmt.Errorf("reading the audit log: %w", err)
			}
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("reading the audit log: %w", err)
}
