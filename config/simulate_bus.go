package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// simWait bounds everything that a simulated broker waits for. Nothing in a simulation takes that long.
const simWait = 30 * time.Second

// sim is the world around a broker for one case: no bus, no disk, and a user who answers at once.
type sim struct {
	broker      *broker.Broker
	ask, answer actor.Route
	instruction string
	agrees      bool // what the user answers

	mu      sync.Mutex
	stores  map[string]*simStore
	result  string // what the tool answers that is called next
	ran     bool   // the tool was called
	asked   string // rule that the user was asked about
	calls   int
	records int
	ids     int
}

const (
	simSession = "session"
	simQuery   = "question"
)

// call makes one call as the agent would. It reports whether the tool ran without anybody being asked, and which rule
// stood in the way otherwise.
func (s *sim) call(ctx context.Context, c SimCall, result string) (ran bool, rule string, err error) {
	s.mu.Lock()
	s.calls++
	id := "call-" + strconv.Itoa(s.calls)
	s.result, s.ran, s.asked = result, false, ""
	s.mu.Unlock()
	header := map[string]string{
		subjects.HeaderSession: simSession, subjects.HeaderQuery: simQuery,
		subjects.HeaderDeadline: strconv.FormatInt(s.now().Add(simWait).UnixMilli(), 10),
	}
	args := c.Args
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	subject := "agent." + simAccount + ".tool.request." + c.Tool
	reply, err := actor.Deliver(ctx, s.ask, subject, header, subjects.ToolRequest{CallID: id, QueryID: simQuery, Args: args}, simOut{s})
	if err != nil {
		return false, "", err
	}
	var res subjects.ToolResult
	if err := json.Unmarshal([]byte(reply), &res); err != nil {
		return false, "", fmt.Errorf("the broker's answer cannot be read: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.asked != "":
		return false, s.asked, nil
	case res.Error != nil && res.Error.Denial != nil:
		return false, res.Error.Denial.Layer + "." + res.Error.Denial.Rule, nil
	case res.Error != nil:
		return false, "", fmt.Errorf("the call failed: %w", res.Error)
	case !s.ran:
		return false, "", errors.New("the broker answered and no tool ran")
	}
	return true, "", nil
}

func (s *sim) now() time.Time { return time.Now() }

// Append implements [broker.Audit].
func (s *sim) Append(context.Context, subjects.AuditRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records++
	return nil
}

// Close implements [broker.Audit].
func (s *sim) Close(context.Context) error { return nil }

// decide answers a question to the user.
func (s *sim) decide(body []byte) {
	var q subjects.ApprovalRequest
	if json.Unmarshal(body, &q) != nil {
		return
	}
	s.mu.Lock()
	s.asked = q.Layer + "." + q.Rule
	agrees := s.agrees
	s.mu.Unlock()
	header := map[string]string{subjects.HeaderDeadline: strconv.FormatInt(s.now().Add(simWait).UnixMilli(), 10)}
	// Another goroutine, because the broker has not begun to wait yet. An answer that fails is a question that nobody
	// answered: it ends by its deadline, as no.
	go actor.Deliver(context.Background(), s.answer, "ctl.user.approval.decision."+q.ID, header, subjects.ApprovalDecision{Approve: agrees}, simOut{s})
}

// simHash stands for the keyed hash: nothing of a simulation is kept.
type simHash struct{}

// Hash implements [broker.Hasher].
func (simHash) Hash(params []byte) string {
	sum := sha256.Sum256(params)
	return hex.EncodeToString(sum[:])
}

// simOut is how the broker speaks to its simulated world.
type simOut struct{ s *sim }

func (o simOut) Now() time.Time                  { return o.s.now() }
func (o simOut) Note(error)                      {}
func (o simOut) About(_, _ string) actor.Out     { return o }
func (o simOut) Store(bucket string) actor.Store { return o.s.store(bucket) }

func (o simOut) NewID() string {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.ids++
	return fmt.Sprintf("%032x", o.s.ids)
}

func (o simOut) Send(_ context.Context, spec subjects.Spec, body []byte, _ bool) error {
	if strings.HasPrefix(spec.Name, strings.TrimSuffix(subjects.ApprovalAsked.Name, "*")) {
		o.s.decide(body)
	}
	return nil
}

func (o simOut) SendOnce(ctx context.Context, spec subjects.Spec, body []byte, _ string) error {
	return o.Send(ctx, spec, body, true)
}

// Request answers for the tools and for the stream of questions; nobody else is there.
func (o simOut) Request(_ context.Context, spec subjects.Spec, _ []byte) ([]byte, string, error) {
	switch {
	case strings.HasSuffix(spec.Name, ".STREAM.MSG.GET.TURNS"):
		question, err := json.Marshal(subjects.Query{SessionID: simSession, QueryID: simQuery, Query: o.s.instruction})
		if err != nil {
			return nil, "", err
		}
		reply, err := json.Marshal(map[string]any{"message": map[string]any{"subject": "turn.0." + simSession, "seq": 1, "data": question}})
		return reply, subjects.TypeJSON, err
	case strings.HasPrefix(spec.Name, "tool.call."):
		o.s.mu.Lock()
		defer o.s.mu.Unlock()
		o.s.ran = true
		reply, err := json.Marshal(subjects.ToolResult{Result: o.s.result})
		return reply, subjects.TypeJSON, err
	}
	return nil, "", subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", spec.Name)
}

func (o simOut) Stream(context.Context, subjects.Spec, []byte) iter.Seq2[actor.Piece, error] {
	return func(yield func(actor.Piece, error) bool) {
		yield(actor.Piece{}, subjects.Faultf(subjects.CodeUnavailable, "no model is there"))
	}
}

// simStore is a bucket in memory.
type simStore struct {
	mu     sync.Mutex
	values map[string]simValue
	last   uint64
}

type simValue struct {
	data []byte
	rev  uint64
}

func (s *sim) store(bucket string) *simStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[bucket] == nil {
		s.stores[bucket] = &simStore{values: map[string]simValue{}}
	}
	return s.stores[bucket]
}

// Get implements [actor.Store].
func (b *simStore) Get(_ context.Context, key string) ([]byte, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.values[key]
	if !ok {
		return nil, 0, actor.ErrNotFound
	}
	return v.data, v.rev, nil
}

// Put implements [actor.Store].
func (b *simStore) Put(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.values[key].rev != revision {
		return 0, actor.ErrChanged
	}
	b.last++
	b.values[key] = simValue{value, b.last}
	return b.last, nil
}

// Keys implements [actor.Store].
func (b *simStore) Keys(_ context.Context, prefix string) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []string
	for k := range b.values {
		if prefix == "" || strings.HasPrefix(k, prefix+".") {
			keys = append(keys, k)
		}
	}
	return keys, nil
}
