package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// A query that the user cancelled has no use for further calls: its pending approvals are withdrawn, and its calls are
// denied. A broker learns of a cancellation from the live event, and looks it up in EVENTS before it requests an
// approval and before it accepts a decision, because no broker may have been running when the user cancelled.

// ruleWithdrawn is the rule of the approval layer that denies calls of a cancelled query.
const ruleWithdrawn = "withdrawn"

// maxCancelled bounds the cancelled queries that a broker keeps in memory.
const maxCancelled = 10_000

// cancelledQueries are the queries whose cancellation this broker has seen, the latest maxCancelled. The zero value is
// ready to use.
type cancelledQueries struct {
	mu    sync.Mutex
	ids   map[string]bool
	order []string
}

func (q *cancelledQueries) add(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ids[id] {
		return
	}
	if q.ids == nil {
		q.ids = map[string]bool{}
	}
	q.ids[id] = true
	if q.order = append(q.order, id); len(q.order) > maxCancelled {
		delete(q.ids, q.order[0])
		q.order = q.order[1:]
	}
}

func (q *cancelledQueries) has(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ids[id]
}

// onCancel withdraws the pending approvals of a query that the user cancelled, and makes the broker deny its later
// calls. Only the user's accounts may publish the event.
func (b *Broker) onCancel(ctx context.Context, in actor.Msg[subjects.Cancel], out actor.Out) error {
	if len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil {
		return nil
	}
	query := in.Tokens[0]
	b.cancelled.add(query)
	all, err := b.loadApprovals(ctx, out)
	if err != nil {
		return fmt.Errorf("withdrawing the approvals of a cancelled query: %w", err)
	}
	for _, a := range all {
		if a.QueryID == query && a.State == subjects.ApprovalPending {
			err = errors.Join(err, b.withdrawApproval(ctx, out, a.ID))
		}
	}
	return err
}

// withdrawApproval stores and publishes that a pending approval is withdrawn, and wakes the calls that wait for it. An
// approval with a terminal state keeps it. It fails after maxWriteAttempts write conflicts.
func (b *Broker) withdrawApproval(ctx context.Context, out actor.Out, id string) error {
	store := out.Store(stage.ApprovalBucket)
	for range maxWriteAttempts {
		q, err := stage.ReadApproval(ctx, store, id)
		if err != nil || q.State != subjects.ApprovalPending {
			return err
		}
		q.State, q.Decided = subjects.ApprovalWithdrawn, out.Now()
		if err = q.Put(ctx, store); errors.Is(err, actor.ErrChanged) {
			continue
		}
		if err != nil {
			return fmt.Errorf("withdrawing an approval: %w", err)
		}
		b.publishDecision(ctx, out, q, false)
		b.waiting.wake(id)
		return nil
	}
	return errWriteConflict
}

// isCancelled reports whether the user cancelled a query, also before this broker was started; false for "". On an
// error the caller must deny.
func (b *Broker) isCancelled(ctx context.Context, out actor.Out, query string) (bool, error) {
	if query == "" || b.cancelled.has(query) {
		return query != "", nil
	}
	cancelled, err := readCancellation(ctx, out, query)
	if cancelled {
		b.cancelled.add(query)
	}
	return cancelled, err
}

// readCancellation reads whether the user cancelled a query. On an error the caller must deny.
func readCancellation(ctx context.Context, out actor.Out, query string) (bool, error) {
	m, err := actor.ReadStored(ctx, out, subjects.QueryCancel.Stream,
		map[string]any{"last_by_subj": "from.*.query.cancel." + query})
	if err != nil {
		return false, fmt.Errorf("reading whether a query was cancelled: %w", err)
	}
	if m == nil {
		return false, nil
	}
	author, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, "from."), ".")
	return slices.Contains(subjects.UserAccounts, author), nil
}

// cancelledFault denies a call of a cancelled query.
func cancelledFault(tool string) *subjects.Fault {
	return approvalFault(subjects.CodeStopped, ruleWithdrawn, fmt.Sprintf("the user cancelled the question, so this "+
		"call of %s was not run", tool))
}
