package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// waitLimit is every timeout of the simulated broker. No simulated step takes that long.
const waitLimit = 30 * time.Second

// session is a broker and its environment for one case: no bus, no disk, and a user who decides approvals at once.
type session struct {
	broker      *broker.Broker
	ask, answer actor.Route
	questions   []string // of the case, in order
	tools       Tools
	approves    bool // the user's decision on every approval request

	mu      sync.Mutex
	stores  map[string]*store
	result  string           // of the next tool call
	links   []string         // of the next tool call
	fails   bool             // the next result is an error
	current int              // index of the question of the next call
	labels  *subjects.Labels // of the next result
	own     bool             // the runtime makes the next call, see [subjects.ToolRequest]
	ran     bool             // the tool was called
	asked   string           // rule of the approval request
	reason  string           // of the approval request or denial
	calls   int
	records int
	ids     int
}

const sessionID = "session"

// queryID is the query id of the i-th question of a case.
func queryID(i int) string { return "question-" + strconv.Itoa(i) }

// callTool sends one tool request as the agent would; the tool returns result. ran reports whether the tool ran without
// an approval request; otherwise rule, as layer.rule, is the one that denied the call or required approval, also when
// the user approved and the tool ran. A failure without a denial is an error. Calls must not overlap.
func (s *session) callTool(ctx context.Context, c Call, result string) (ran bool, rule string, err error) {
	s.mu.Lock()
	s.calls++
	id := "call-" + strconv.Itoa(s.calls)
	s.result, s.links, s.fails, s.current = result, c.Links, c.Fails, c.Question
	s.ran, s.asked, s.reason = false, "", ""
	if s.links == nil && s.tools[c.Tool].Args.With(policy.RoleQuery) != "" {
		s.links = linkPattern.FindAllString(result, -1)
	}
	s.mu.Unlock()
	query := queryID(c.Question)
	header := map[string]string{
		subjects.HeaderSession: sessionID, subjects.HeaderQuery: query,
		subjects.HeaderDeadline: strconv.FormatInt(time.Now().Add(waitLimit).UnixMilli(), 10),
	}
	subject := "agent." + account + ".tool.request." + c.Tool
	reply, err := actor.Deliver(ctx, s.ask, subject, header, subjects.ToolRequest{
		CallID: id, QueryID: query,
		Args: c.Args.object(), Own: s.own,
	}, out{s})
	if err != nil {
		return false, "", err
	}
	var res subjects.ToolResult
	if err := json.Unmarshal([]byte(reply), &res); err != nil {
		return false, "", fmt.Errorf("decoding the broker's reply: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.asked != "":
		return false, s.asked, nil
	case res.Error != nil && res.Error.Denial != nil:
		s.reason = res.Error.Denial.Reason
		return false, res.Error.Denial.Layer + "." + res.Error.Denial.Rule, nil
	case res.Error != nil && !(c.Fails && s.ran):
		return false, "", fmt.Errorf("calling the tool: %w", res.Error)
	case !s.ran:
		return false, "", errors.New("the broker replied without calling the tool")
	}
	return true, "", nil
}

// linkPattern matches the URLs in the result of a search.
var linkPattern = regexp.MustCompile(`https?://[^\s"'<>\\]+`)

// Append implements [broker.Audit].
func (s *session) Append(context.Context, subjects.AuditRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records++
	return nil
}

// Close implements [broker.Audit].
func (s *session) Close(context.Context) error { return nil }

// decideApproval notes the rule of an approval request and sends the user's decision on it, without waiting. A body
// that is no approval request is ignored.
func (s *session) decideApproval(body []byte) {
	var q subjects.ApprovalRequest
	if json.Unmarshal(body, &q) != nil {
		return
	}
	s.mu.Lock()
	s.asked, s.reason = q.Layer+"."+q.Rule, q.Reason
	approve := s.approves
	s.mu.Unlock()
	header := map[string]string{subjects.HeaderDeadline: strconv.FormatInt(time.Now().Add(waitLimit).UnixMilli(), 10)}
	// In a goroutine, because the broker does not wait yet. A decision that fails leaves the request to its deadline,
	// which denies.
	go actor.Deliver(context.Background(), s.answer, "ctl.user.approval.decision."+q.ID, header,
		subjects.ApprovalDecision{Approve: approve}, out{s})
}

// paramsHash replaces the keyed hash of parameters: no audit record of a simulation is stored.
type paramsHash struct{}

// Hash implements [broker.Hasher].
func (paramsHash) Hash(params []byte) string {
	sum := sha256.Sum256(params)
	return hex.EncodeToString(sum[:])
}

// out implements [actor.Out] on a session.
type out struct{ s *session }

func (o out) Now() time.Time                  { return time.Now() }
func (o out) LogError(error)                  {}
func (o out) WithIDs(_, _ string) actor.Out   { return o }
func (o out) Store(bucket string) actor.Store { return o.s.bucket(bucket) }

func (o out) NewID() string {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.ids++
	return fmt.Sprintf("%032x", o.s.ids)
}

func (o out) Publish(_ context.Context, spec subjects.Spec, body []byte, _ bool) error {
	if strings.HasPrefix(spec.Name, strings.TrimSuffix(subjects.ApprovalRequestEvent.Name, "*")) {
		o.s.decideApproval(body)
	}
	return nil
}

func (o out) PublishOnce(ctx context.Context, spec subjects.Spec, body []byte, _ string) error {
	return o.Publish(ctx, spec, body, true)
}

// readTurn replies for the streams of questions and turns: the question at the requested sequence, which counts from 1,
// or the current one. Later questions are not stored yet.
func (s *session) readTurn(stream string, request []byte) ([]byte, error) {
	var selector struct {
		Seq int `json:"seq"`
	}
	if err := json.Unmarshal(request, &selector); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.current
	if selector.Seq > 0 {
		at = selector.Seq - 1
	}
	if at > s.current {
		return json.Marshal(map[string]any{"error": map[string]any{"code": 404}})
	}
	q := subjects.Query{SessionID: sessionID, QueryID: queryID(at), Query: s.questions[at]}
	subject := "turn.0." + sessionID
	if stream == subjects.QueryReceived.Stream {
		subject = subjects.QueryReceived.Name
	} else {
		q.Source = uint64(at) + 1
	}
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"message": map[string]any{"subject": subject, "seq": at + 1, "data": data}})
}

// Request replies for the tools with the session's next result, and for the stream of turns with the questions. Every
// other request is unavailable.
func (o out) Request(_ context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	switch {
	case spec.Name == actor.StoredSubject(subjects.QuerySession.Stream),
		spec.Name == actor.StoredSubject(subjects.QueryReceived.Stream):
		reply, err := o.s.readTurn(spec.Name[strings.LastIndexByte(spec.Name, '.')+1:], body)
		return reply, subjects.TypeJSON, err
	case strings.Contains(spec.Name, ".STREAM.MSG.GET."): // no question is cancelled
		return []byte(`{"error":{"code":404}}`), subjects.TypeJSON, nil
	case strings.HasPrefix(spec.Name, "tool.call."):
		var order subjects.ToolOrder
		if err := strict.DecodeMsgpack(body, &order); err != nil {
			return nil, "", err
		}
		if order.Mode == subjects.ModeCapture {
			reply, err := json.Marshal(capture(order))
			return reply, subjects.TypeJSON, err
		}
		o.s.mu.Lock()
		defer o.s.mu.Unlock()
		o.s.ran = true
		if o.s.fails {
			return nil, "", actor.ReplyFault(subjects.Faultf(subjects.CodeTool, "%s", o.s.result))
		}
		reply, err := json.Marshal(subjects.ToolResult{Result: o.s.result, Links: o.s.links, Labels: o.s.labels})
		return reply, subjects.TypeJSON, err
	}
	return nil, "", subjects.Faultf(subjects.CodeUnavailable, "no responder for %s", spec.Name)
}

// capture confirms that the state before a call is kept, as the tools of the build do: of the file that the call names,
// of the working folder when it is the only folder, otherwise of a file in its first folder.
func capture(order subjects.ToolOrder) subjects.ToolResult {
	var args struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(order.Args, &args) != nil || order.Change == nil || order.Folders == nil ||
		len(order.Folders.Allowed) == 0 {
		return subjects.ToolResult{Error: subjects.Faultf(subjects.CodeTool, "nothing is kept")}
	}
	file := cmp.Or(args.Path, path.Join(order.Folders.Allowed[0], "notes.md"))
	if slices.Equal(order.Folders.Allowed, []string{order.Folders.Work}) {
		file = order.Folders.Work
	}
	return subjects.ToolResult{Change: &subjects.ChangeRef{ID: order.Change.ID, Files: []string{file}}}
}

func (o out) Stream(context.Context, subjects.Spec, []byte) iter.Seq2[actor.Piece, error] {
	return func(yield func(actor.Piece, error) bool) {
		yield(actor.Piece{}, subjects.Faultf(subjects.CodeUnavailable, "no model"))
	}
}

// store is a key-value bucket in memory.
type store struct {
	mu     sync.Mutex
	values map[string]storedValue
	last   uint64
}

type storedValue struct {
	data []byte
	rev  uint64
}

// bucket returns the store of this name and creates it on first use.
func (s *session) bucket(name string) *store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[name] == nil {
		s.stores[name] = &store{values: map[string]storedValue{}}
	}
	return s.stores[name]
}

// Get implements [actor.Store].
func (b *store) Get(_ context.Context, key string) ([]byte, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.values[key]
	if !ok {
		return nil, 0, actor.ErrNotFound
	}
	return v.data, v.rev, nil
}

// Put implements [actor.Store]: revision 0 creates the key, and any other than the stored one is [actor.ErrChanged].
func (b *store) Put(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.values[key].rev != revision {
		return 0, actor.ErrChanged
	}
	b.last++
	b.values[key] = storedValue{value, b.last}
	return b.last, nil
}

// Keys implements [actor.Store]: the keys below the tokens of prefix, all for "", in no order.
func (b *store) Keys(_ context.Context, prefix string) ([]string, error) {
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
