package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A question to the user outlives everybody who waits for its answer: it is written down before the user is told,
// under a name made of the call and its arguments. Whoever asks again for the same call finds the same question, and
// its answer. The first to write an end wins: an answer, another answer, or the clock. Nothing written means no.

// Layer and rules of refusals for want of a yes.
const (
	layerApproval  = "approval"
	ruleNoQuestion = "nothing_asked" // no layer has a question, so no answer can be a yes
	ruleDenied     = "denied"
	ruleExpired    = "expired"
	rulePending    = "pending"
	ruleUnreadable = "unreadable"
)

// Buckets.
const (
	bucketApprovals = "approvals"
	bucketRules     = "rules"
)

const (
	// approvalTTL is how long a yes serves the same call when it is asked for again. It ends well before the ledger forgets
	// that the call ran.
	approvalTTL = 24 * time.Hour
	// pollInterval is how often a waiting call looks for an answer that came through another broker.
	pollInterval = time.Second
	// maxReadFailures is how often in a row it may fail to look before it gives up.
	maxReadFailures = 5
	// maxWaiting is how many calls may wait for the user at once, and maxWaitingOf how many of one account: a waiting
	// call takes the place of one that works.
	maxWaiting, maxWaitingPerAccount = 32, 16
	// maxReason bounds what one layer says to the user.
	maxReason = 600
)

// storedApproval is what the bucket keeps of one. Its asks are all that the user was shown, and so all that a yes covers.
type storedApproval struct {
	subjects.Approval
	Call     string        `json:"call"`   // key in the ledger
	Params   string        `json:"params"` // keyed hash of the arguments
	Asks     []approvalAsk `json:"asks"`
	Event    string        `json:"event"` // id under which the user is told, once
	Told     bool          `json:"told,omitempty"`
	Remember string        `json:"remember,omitempty"`
}

// approvalAsk is a layer's question without its words.
type approvalAsk struct {
	Rule  string   `json:"rule"` // layer and rule
	Sinks []string `json:"sinks,omitempty"`
}

// ruleName is how a layer's rule is called in what is remembered, and in the audit.
func ruleName(layer, rule string) string { return layer + ": " + rule }

func newApprovalAsk(q policy.Question) approvalAsk {
	return approvalAsk{Rule: ruleName(q.Layer, q.Rule), Sinks: slices.Clone(q.Sinks)}
}

// equals reports whether two questions ask for the same, whatever the words.
func (a approvalAsk) equals(o approvalAsk) bool {
	return a.Rule == o.Rule && slices.Equal(a.Sinks, o.Sinks)
}

// covers reports whether everything in open was shown to the user with this question.
func (q storedApproval) covers(open []policy.Question) bool {
	for _, o := range open {
		if !slices.ContainsFunc(q.Asks, newApprovalAsk(o).equals) {
			return false
		}
	}
	return len(open) > 0
}

// isRememberable reports whether a yes may hold for later calls: every question must say where something goes. One that
// does not is about the act itself, and each act is asked about.
func (q storedApproval) isRememberable() bool {
	return len(q.Asks) > 0 && !slices.ContainsFunc(q.Asks, func(a approvalAsk) bool { return len(a.Sinks) == 0 })
}

// requestApproval asks the user about a call, unless answers that are remembered cover it. It returns nil when the user has
// agreed, now or earlier, to everything that the layers asked, and otherwise why the call may not go on. With nothing to
// ask it refuses: a call that no layer has a question about does not come here.
func (b *Broker) requestApproval(ctx context.Context, out actor.Out, c call, asks []policy.Question, taint []subjects.Taint) *subjects.Fault {
	if len(asks) == 0 {
		return approvalFault(subjects.CodeDenied, ruleNoQuestion, "the call needs the user's agreement, and no layer says to what")
	}
	open, err := b.findUncovered(ctx, out, c, asks)
	if err != nil {
		out.LogError(fmt.Errorf("reading the answers that are remembered: %w", err))
		return approvalsUnavailable()
	}
	if len(open) == 0 {
		return nil
	}
	id, err := b.approvalID(ctx, out, c, open)
	if err != nil {
		out.LogError(fmt.Errorf("looking for a question about %s: %w", c.tool, err))
		return approvalsUnavailable()
	}
	account, _, _ := strings.Cut(c.record.AgentID, ".")
	woken, leave, ok := b.waiting.join(id, account)
	if !ok {
		return subjects.Faultf(subjects.CodeBusy, "too many calls wait for the user's answer already, so this one was not asked about; answer some with conclave approve, then try again")
	}
	defer leave()
	if fault := b.storeApproval(ctx, out, c, id, open, taint); fault != nil {
		return fault
	}
	return b.awaitAnswer(ctx, out, id, c.tool, woken)
}

// approvalID is the name of the question about a call. The same call with the same arguments has the same one. When a
// question of that name was about less than what is asked now, its answer does not serve, and this is another.
func (b *Broker) approvalID(ctx context.Context, out actor.Out, c call, open []policy.Question) (string, error) {
	id := hashParts(c.key(), c.session, c.tool, c.record.ParamsHash)
	q, _, err := readApproval(ctx, out.Store(bucketApprovals), id)
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return id, nil
	case err != nil:
		return "", err
	case q.covers(open):
		return id, nil
	}
	parts := []string{c.key(), c.session, c.tool, c.record.ParamsHash}
	for _, o := range open {
		parts = append(parts, ruleName(o.Layer, o.Rule))
		parts = append(parts, o.Sinks...)
		parts = append(parts, "")
	}
	return hashParts(parts...), nil
}

// hashParts makes a token of parts. Each is preceded by its length, so that none can run into the next.
func hashParts(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// storeApproval writes the question down, then tells the user. One that is there already is not told again.
func (b *Broker) storeApproval(ctx context.Context, out actor.Out, c call, id string, open []policy.Question, taint []subjects.Taint) *subjects.Fault {
	store := out.Store(bucketApprovals)
	q := b.newApproval(out, c, id, open, taint)
	if data, err := json.Marshal(q); err != nil || len(data) > subjects.ApprovalRequestEvent.Limit() {
		return subjects.Faultf(subjects.CodeTooLarge, "the call of %s is too large to be shown to the user, so it is refused; ask for less at once", c.tool)
	}
	rev, err := putApproval(ctx, store, q, 0)
	for errors.Is(err, actor.ErrChanged) {
		var old storedApproval
		old, rev, err = readApproval(ctx, store, id)
		switch {
		case err != nil:
		case old.Call != q.Call || old.SessionID != q.SessionID || old.Tool != q.Tool || old.Params != q.Params:
			return approvalFault(subjects.CodeDenied, ruleUnreadable, "another question has this call's name, so nobody can answer it; ask again under another call_id")
		case old.State == subjects.ApprovalApproved && out.Now().Sub(old.Decided) > approvalTTL:
			rev, err = putApproval(ctx, store, q, rev) // an old yes is none: it is asked anew
		default:
			q = old
		}
	}
	if err == nil && q.State == subjects.ApprovalPending && !q.Told {
		err = b.publishRequest(ctx, out, q, rev)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return pendingFault(id, c.tool)
	}
	out.LogError(fmt.Errorf("asking the user about %s: %w", c.tool, err))
	return approvalsUnavailable()
}

func (b *Broker) newApproval(out actor.Out, c call, id string, open []policy.Question, taint []subjects.Taint) storedApproval {
	wait := cmp.Or(b.cfg.ApprovalWait, b.rules.Load().Manifest.Approvals.Expires, defaultApprovalWait)
	now := out.Now()
	q := storedApproval{Call: c.key(), Params: c.record.ParamsHash, Event: out.NewID()}
	q.State = subjects.ApprovalPending
	q.ApprovalRequest = subjects.ApprovalRequest{
		ID: id, SessionID: c.session, QueryID: c.query, Caller: c.record.AgentID, Type: c.typ, Tool: c.tool, Args: c.args,
		Layer: open[0].Layer, Rule: open[0].Rule, Reason: joinReasons(open), Taint: taint, Asked: now, Expires: now.Add(wait),
	}
	for _, o := range open {
		q.Asks = append(q.Asks, newApprovalAsk(o))
	}
	if q.isRememberable() { // what is not shown here is not remembered either
		for _, a := range q.Asks {
			for _, s := range a.Sinks {
				if !slices.Contains(q.Sinks, s) {
					q.Sinks = append(q.Sinks, s)
				}
			}
		}
	}
	return q
}

// joinReasons is all that the layers ask, on one line.
func joinReasons(open []policy.Question) string {
	if len(open) == 1 {
		return text.OneLine(open[0].Reason, maxReason)
	}
	var parts []string
	for i, o := range open {
		parts = append(parts, fmt.Sprintf("(%d) %s: %s", i+1, ruleName(o.Layer, o.Rule), text.OneLine(o.Reason, maxReason)))
	}
	return strings.Join(parts, " ")
}

// publishRequest says that there is a question. A crash before it is noted makes the next caller say it again under the same
// id, and it is stored once.
func (b *Broker) publishRequest(ctx context.Context, out actor.Out, q storedApproval, rev uint64) error {
	topic, err := subjects.ApprovalRequestEvent.With(q.ID)
	if err != nil {
		return err
	}
	if err := actor.EmitOnce(ctx, out.WithIDs(q.SessionID, q.QueryID), topic, q.Event, q.ApprovalRequest); err != nil {
		return err
	}
	q.Told = true
	_, err = putApproval(ctx, out.Store(bucketApprovals), q, rev)
	if errors.Is(err, actor.ErrChanged) {
		return nil // it was answered in the meantime, or another caller has told of it too
	}
	return err
}

// awaitAnswer waits until the question has an end, or the caller's time is over.
func (b *Broker) awaitAnswer(ctx context.Context, out actor.Out, id, tool string, woken <-chan struct{}) *subjects.Fault {
	store := out.Store(bucketApprovals)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	expiry := time.NewTimer(time.Hour)
	expiry.Stop()
	defer expiry.Stop()
	var armed, due bool
	for failures := 0; ; {
		q, rev, err := readApproval(ctx, store, id)
		left := q.Expires.Sub(out.Now())
		switch {
		case ctx.Err() != nil:
			return pendingFault(id, tool)
		case err != nil:
			if failures++; failures >= maxReadFailures {
				out.LogError(fmt.Errorf("waiting for the user's answer about %s: %w", tool, err))
				return approvalsUnavailable()
			}
		case q.State != subjects.ApprovalPending:
			return q.fault()
		case due || left <= 0:
			err := b.storeExpiry(ctx, store, q, rev)
			if errors.Is(err, actor.ErrChanged) {
				continue // somebody was first
			}
			if err != nil {
				out.LogError(fmt.Errorf("writing down that a question expired: %w", err))
			}
			q.State = subjects.ApprovalExpired
			b.publishDecision(ctx, out, q, false)
			return q.fault()
		default:
			failures = 0
			if !armed {
				armed = true
				expiry.Reset(left)
			}
		}
		select {
		case <-woken:
		case <-poll.C:
		case <-expiry.C:
			due = true
		case <-ctx.Done():
		}
	}
}

// storeExpiry writes down that nobody answered, unless somebody was first. The caller's patience does not cut it short.
func (b *Broker) storeExpiry(ctx context.Context, store actor.Store, q storedApproval, rev uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	q.State, q.Decided = subjects.ApprovalExpired, q.Expires
	_, err := putApproval(ctx, store, q, rev)
	return err
}

// publishDecision tells everybody who watches that a question has an end.
func (b *Broker) publishDecision(ctx context.Context, out actor.Out, q storedApproval, accepted bool) subjects.ApprovalReply {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	reply := q.reply(q.State, accepted)
	topic, err := subjects.ApprovalDecisionEvent.With(q.ID)
	if err == nil {
		err = actor.Emit(ctx, out.WithIDs(q.SessionID, q.QueryID), topic, reply)
	}
	if err != nil {
		out.LogError(fmt.Errorf("telling of the end of a question: %w", err))
	}
	return reply
}

// fault is what the end of a question means for its call.
func (q storedApproval) fault() *subjects.Fault {
	switch q.State {
	case subjects.ApprovalApproved:
		return nil
	case subjects.ApprovalDenied:
		return approvalFault(subjects.CodeNotApproved, ruleDenied, fmt.Sprintf("the user was asked about this call of %s and said no", q.Tool))
	case subjects.ApprovalExpired:
		return approvalFault(subjects.CodeUnanswered, ruleExpired, fmt.Sprintf("the user was asked about this call of %s and nobody answered in time, so it was not run; nobody said no. "+
			"Ask again, and answer with conclave approve or on the page; conclave approve --watch shows each question as it comes", q.Tool))
	}
	return approvalFault(subjects.CodeDenied, ruleUnreadable, "the answer cannot be read, and that is a no")
}

// pendingFault tells a caller whose own time is over that the question stands.
func pendingFault(id, tool string) *subjects.Fault {
	return approvalFault(subjects.CodeUnanswered, rulePending, fmt.Sprintf("the user was asked about this call of %s and has not answered yet; the question is still open: "+
		"answer with conclave approve %s, then ask again under the same call_id", tool, id))
}

// approvalsUnavailable refuses a call because its question cannot be kept.
func approvalsUnavailable() *subjects.Fault {
	return subjects.Faultf(subjects.CodeUnavailable, "the user cannot be asked: the questions cannot be stored or read; nothing was run. See conclave doctor")
}

func approvalFault(code, rule, reason string) *subjects.Fault {
	return &subjects.Fault{Code: code, Text: reason, Denial: &subjects.Denial{Layer: layerApproval, Rule: rule, Reason: reason}}
}

func putApproval(ctx context.Context, s actor.Store, q storedApproval, rev uint64) (uint64, error) {
	data, err := json.Marshal(q)
	if err != nil {
		return 0, err
	}
	return s.Put(ctx, q.ID, data, rev)
}

// readApproval reads one. The key is the authority on its name, and a state that nobody knows is no yes.
func readApproval(ctx context.Context, s actor.Store, id string) (q storedApproval, rev uint64, err error) {
	data, rev, err := s.Get(ctx, id)
	if err != nil {
		return q, 0, err
	}
	if err := json.Unmarshal(data, &q); err != nil {
		return storedApproval{}, 0, fmt.Errorf("question %s: %w: %w", id, errCorrupt, err)
	}
	q.ID = id
	return q, rev, nil
}

// waitingCalls are the calls that wait for the user in this broker. The zero value is ready.
type waitingCalls struct {
	mu         sync.Mutex
	byApproval map[string]map[chan struct{}]bool // by question
	byAccount  map[string]int                    // by account
	total      int
}

// join waits for a question's end. ok is false when too many wait already.
func (w *waitingCalls) join(id, account string) (woken <-chan struct{}, leave func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.total >= maxWaiting || w.byAccount[account] >= maxWaitingPerAccount {
		return nil, nil, false
	}
	if w.byApproval == nil {
		w.byApproval, w.byAccount = map[string]map[chan struct{}]bool{}, map[string]int{}
	}
	if w.byApproval[id] == nil {
		w.byApproval[id] = map[chan struct{}]bool{}
	}
	c := make(chan struct{}, 1)
	w.byApproval[id][c] = true
	w.total++
	w.byAccount[account]++
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.byApproval[id], c); len(w.byApproval[id]) == 0 {
			delete(w.byApproval, id)
		}
		w.total--
		if w.byAccount[account]--; w.byAccount[account] == 0 {
			delete(w.byAccount, account)
		}
	}, true
}

// wake tells those who wait for a question to look.
func (w *waitingCalls) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.byApproval[id] {
		select {
		case c <- struct{}{}:
		default: // it will look anyway
		}
	}
}
