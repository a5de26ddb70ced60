package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// Approvals returns the calls that wait for the user's decision, newest first, and the remembered decisions. With all,
// decided and expired calls are included.
func (c *Client) Approvals(ctx context.Context, all bool) (subjects.ApprovalList, error) {
	return request(ctx, c, brokerTimeout, subjects.ApprovalListService, subjects.ApprovalQuery{All: all})
}

// FindApproval returns the complete id of the approval with this id or prefix, of any length; decided and expired ones
// are searched too. Several matches are an [*AmbiguousError]. A complete id that the broker does not list is returned
// unchecked; a shorter one is [ErrNotFound].
func (c *Client) FindApproval(ctx context.Context, id string) (string, error) {
	l, err := c.Approvals(ctx, true)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, a := range l.Approvals {
		ids = append(ids, a.ID)
	}
	return MatchID(id, ids)
}

// DecideApproval approves or denies the waiting call with this complete id. The first decision holds: a reply without
// Accepted is no error, and its State says why it was not accepted (decided before, expired or unknown).
func (c *Client) DecideApproval(ctx context.Context, id string, d subjects.ApprovalDecision) (subjects.ApprovalReply,
	error,
) {
	s, err := subjects.ApprovalDecisionService.With(id)
	if err != nil {
		return subjects.ApprovalReply{}, err
	}
	return request(ctx, c, brokerTimeout, s, d)
}

// AwaitCallApproval returns the request for approval of the call with this id as soon as the broker has one, false when
// ctx ends first. A failed request to the broker is tried again.
func (c *Client) AwaitCallApproval(ctx context.Context, callID string) (subjects.Approval, bool) {
	for l, err := range c.WatchApprovals(ctx) {
		if err != nil {
			continue
		}
		for _, a := range l.Approvals {
			if a.CallID == callID {
				return a, true
			}
		}
	}
	return subjects.Approval{}, false
}

// WithdrawCallApproval closes the waiting request for approval of the call with this id, because its caller no longer
// waits. It reports whether there was one.
func (c *Client) WithdrawCallApproval(ctx context.Context, callID string) (bool, error) {
	l, err := c.Approvals(ctx, true)
	if err != nil {
		return false, err
	}
	for _, a := range l.Approvals {
		switch {
		case a.CallID != callID:
		case a.State == subjects.ApprovalWithdrawn: // by the broker, whose deadline is the same
			return true, nil
		case a.State == subjects.ApprovalPending:
			r, err := c.DecideApproval(ctx, a.ID, subjects.ApprovalDecision{Withdraw: true})
			return r.Accepted || r.State == subjects.ApprovalWithdrawn, err
		}
	}
	return false, nil
}

// FindRule returns the complete id of the remembered decision with this id or prefix, with the errors of
// [Client.FindApproval].
func (c *Client) FindRule(ctx context.Context, id string) (string, error) {
	l, err := c.Approvals(ctx, false)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, r := range l.Rules {
		ids = append(ids, r.ID)
	}
	return MatchID(id, ids)
}

// RevokeRule ends a remembered decision: later calls need an approval again. id must be complete; [ErrNotFound] means
// that there is no rule with it.
func (c *Client) RevokeRule(ctx context.Context, id string) (subjects.Done, error) {
	s, err := subjects.ApprovalRevoke.With(id)
	if err != nil {
		return subjects.Done{}, err
	}
	done, err := request(ctx, c, brokerTimeout, s, subjects.Empty{})
	if err == nil && !done.OK {
		err = fmt.Errorf("rule %s: %w", id, ErrNotFound)
	}
	return done, err
}

// WatchApprovals yields the waiting calls as the broker lists them: at once, whenever an approval is requested or
// decided, after a reconnect, and every [lookInterval]. The list may be unchanged. A failed request is yielded as an
// error and tried again; the end of ctx ends the iteration without one. When the subscription fails, that error is the
// only thing yielded.
func (c *Client) WatchApprovals(ctx context.Context) iter.Seq2[subjects.ApprovalList, error] {
	return func(yield func(subjects.ApprovalList, error) bool) {
		hints := make(chan *nats.Msg, 256)
		unsubscribe, err := c.subscribe(ctx, hints, subjects.ApprovalRequestEvent.LiveSubject(),
			subjects.ApprovalDecisionEvent.LiveSubject())
		if err != nil {
			yield(subjects.ApprovalList{}, err)
			return
		}
		defer unsubscribe()
		status := c.nc.StatusChanged(nats.CONNECTED)
		defer c.nc.RemoveStatusListener(status)
		poll := time.NewTicker(lookInterval)
		defer poll.Stop()
		for ctx.Err() == nil {
			l, err := c.Approvals(ctx, false)
			if ctx.Err() != nil || !yield(l, err) {
				return
			}
			select {
			case <-ctx.Done():
			case <-hints:
			case <-status:
			case <-poll.C:
			}
		}
	}
}

// ReadApproval decodes a stored request for approval, or its decision: at most one result is not nil. Both are nil for
// any other event, one that another account than the broker's published, and one whose body has another id than its
// subject. e must come from the event log, since From of a live copy can be forged.
func ReadApproval(e Event) (*subjects.ApprovalRequest, *subjects.ApprovalReply) {
	if e.From != accountBroker {
		return nil, nil
	}
	if r, words, ok := DecodeAs(e, subjects.ApprovalRequestEvent); ok && r.ID == words[0] {
		return &r, nil
	}
	if r, words, ok := DecodeAs(e, subjects.ApprovalDecisionEvent); ok && r.ID == words[0] {
		return nil, &r
	}
	return nil, nil
}
