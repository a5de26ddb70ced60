package actor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/subjects"
)

// Store implements [Out].
func (s *connOut) Store(bucket string) Store {
	return &store{s.js, s.account, s.clustered, s.buckets, bucket}
}

type store struct {
	js        jetstream.JetStream
	account   string
	clustered bool
	buckets   *sync.Map // name -> *openBucket: opening one is a request to the server
	bucket    string
}

// openBucket is a bucket as the server described it when it was opened.
type openBucket struct {
	jetstream.KeyValue
	// readLeader is set for a replicated bucket that the account owns: values are read from the leader of the stream.
	// Any replica answers a direct get, also one that lacks the last writes, and what the owner decides by must not be
	// outdated.
	readLeader bool
}

// open returns the handle of the bucket, cached for the connection. It fails when the bucket does not exist or the
// actor has no permission.
func (k *store) open(ctx context.Context) (*openBucket, error) {
	if kv, ok := k.buckets.Load(k.bucket); ok {
		return kv.(*openBucket), nil
	}
	b := &openBucket{}
	err := retryInCluster(ctx, k.clustered, true, func(ctx context.Context) (err error) {
		b.KeyValue, err = retryNoResponders(ctx, func() (jetstream.KeyValue, error) {
			return k.js.KeyValue(ctx, k.bucket)
		})
		return err
	})
	if err == nil && isOwner(k.account, k.bucket) {
		var st jetstream.KeyValueStatus
		if st, err = b.Status(ctx); err == nil {
			s, ok := st.(*jetstream.KeyValueBucketStatus)
			b.readLeader = !ok || s.StreamInfo().Config.Replicas > 1
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", k.bucket, err)
	}
	k.buckets.Store(k.bucket, b)
	return b, nil
}

// isOwner reports whether account owns the bucket. Other accounts may have direct gets only, which name the key.
func isOwner(account, bucket string) bool {
	return slices.ContainsFunc(subjects.Table().Streams, func(s subjects.Stream) bool {
		return s.Bucket == bucket && s.Owner == account
	})
}

// Get implements [Store]. The error wraps [ErrNotFound] when the key does not exist or was deleted.
func (k *store) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	kv, err := k.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	err = retryInCluster(ctx, k.clustered, true, func(ctx context.Context) error {
		if kv.readLeader {
			value, revision, err = k.readFromLeader(ctx, key)
			return err
		}
		e, err := retryNoResponders(ctx, func() (jetstream.KeyValueEntry, error) { return kv.Get(ctx, key) })
		if err == nil {
			value, revision = e.Value(), e.Revision()
		}
		return err
	})
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, fmt.Errorf("%w: %s in %s", ErrNotFound, key, k.bucket)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s in %s: %w", key, k.bucket, err)
	}
	return value, revision, nil
}

// readFromLeader reads the value of a key from the leader of the stream. A key that does not exist or was deleted is
// [jetstream.ErrKeyNotFound].
func (k *store) readFromLeader(ctx context.Context, key string) ([]byte, uint64, error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": "$KV." + k.bucket + "." + key})
	if err != nil {
		return nil, 0, err
	}
	m, err := retryNoResponders(ctx, func() (*nats.Msg, error) {
		return k.js.Conn().RequestWithContext(ctx, StoredSubject("KV_"+k.bucket), body)
	})
	if err != nil {
		return nil, 0, err
	}
	var got storedReply
	if err := json.Unmarshal(m.Data, &got); err != nil {
		return nil, 0, err
	}
	stored, err := got.message("KV_" + k.bucket)
	switch {
	case err != nil:
		return nil, 0, err
	case stored == nil:
		return nil, 0, jetstream.ErrKeyNotFound
	case len(stored.Headers) > 0:
		h, err := nats.DecodeHeadersMsg(stored.Headers)
		if err != nil {
			return nil, 0, err
		}
		if h.Get("KV-Operation") != "" { // deleted or purged
			return nil, 0, jetstream.ErrKeyNotFound
		}
	}
	return stored.Data, stored.Seq, nil
}

// Put implements [Store] and returns the new revision. The error wraps [ErrChanged] when the key has another revision,
// or exists although revision is 0.
func (k *store) Put(ctx context.Context, key string, value []byte, revision uint64) (rev uint64, err error) {
	kv, err := k.open(ctx)
	if err != nil {
		return 0, err
	}
	err = retryInCluster(ctx, k.clustered, false, func(ctx context.Context) (err error) {
		if revision == 0 {
			rev, err = kv.Create(ctx, key, value)
		} else {
			rev, err = kv.Update(ctx, key, value, revision)
		}
		return err
	})
	if errors.Is(err, jetstream.ErrKeyExists) || isWrongRevision(err) {
		return 0, fmt.Errorf("%w: %s in %s", ErrChanged, key, k.bucket)
	}
	if err != nil {
		return 0, fmt.Errorf("writing %s in %s: %w", key, k.bucket, err)
	}
	return rev, nil
}

const (
	// leaderWait is how long an operation on a stream of a cluster is repeated: longer than an election after a server
	// was killed, which takes up to 9 s.
	leaderWait = 15 * time.Second
	// leaderAttempt is the timeout of one attempt of an operation that can be repeated: a reply is lost when the server
	// that routes it stops.
	leaderAttempt = 3 * time.Second
	leaderPause   = 100 * time.Millisecond
)

// retryInCluster calls f again, if clustered, while nothing was stored because the stream has no leader for a moment or
// the connection moves to another server, as both do when a server stops. An f that can be repeated, a read or a
// message with an id, is also called again when its reply did not come within leaderAttempt. It ends after leaderWait,
// or with ctx.
func retryInCluster(ctx context.Context, clustered, repeatable bool, f func(context.Context) error) error {
	if !clustered {
		return f(ctx)
	}
	for end := time.Now().Add(leaderWait); ; {
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if repeatable {
			attempt, cancel = context.WithTimeout(ctx, leaderAttempt)
		}
		err := f(attempt)
		unanswered := repeatable && attempt.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !unanswered && !isUnsent(err) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(leaderPause):
		}
	}
}

// isUnsent reports whether err means that nothing was stored, or that an earlier attempt under the same id is being
// stored.
func isUnsent(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode == errCodeNoMetaLeader || api.ErrorCode == errCodeIDInProcess
	}
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrConnectionReconnecting) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrDisconnected)
}

// Codes of a cluster: JetStream elects a leader, and a message with the same id is not replicated yet.
const (
	errCodeNoMetaLeader jetstream.ErrorCode = 10008
	errCodeIDInProcess  jetstream.ErrorCode = 10158
)

// Keys implements [Store]; "" lists all keys, and the key that equals prefix is not listed. It reads the stream's
// subjects: kv.Keys would create a consumer, which no actor may.
func (k *store) Keys(ctx context.Context, prefix string) ([]string, error) {
	whole := "$KV." + k.bucket + "."
	filter := whole + ">"
	if prefix != "" {
		filter = whole + prefix + ".>"
	}
	st, err := retryNoResponders(ctx, func() (jetstream.Stream, error) { return k.js.Stream(ctx, "KV_"+k.bucket) })
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", k.bucket, err)
	}
	info, err := retryNoResponders(ctx, func() (*jetstream.StreamInfo, error) {
		return st.Info(ctx, jetstream.WithSubjectFilter(filter))
	})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", k.bucket, err)
	}
	keys := make([]string, 0, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, whole))
	}
	return keys, nil
}

// isWrongRevision reports whether a stream rejected a message because the last one has another sequence than expected.
// Streams with replicas have a code of their own for it.
func isWrongRevision(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
