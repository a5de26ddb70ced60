package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"conclave/pkg/client"
	"conclave/pkg/text"
	"conclave/subjects"
)

// brokerTimeout is the timeout of a request to the broker. A missing broker is detected only by it: the gateway itself
// subscribes to the subject, so the server never reports that there are no responders.
const brokerTimeout = 10 * time.Second

// Approval is an approval request as the user sees it.
type Approval struct {
	subjects.Approval
	// the exact arguments, hidden characters escaped: a browser would round numbers of args
	ArgsText string `json:"args_text"`
}

// Decision is the body of POST /approvals/{id}. Approve is required: an empty body is not a decision.
type Decision struct {
	Approve  *bool           `json:"approve"`
	Remember string          `json:"remember"`
	Values   json.RawMessage `json:"values"` // answers to the form of the request
}

// onApprovals lists the calls that wait for the user's approval; with all=1 also those that are decided or expired. It
// rejects other values of all than 0, 1 and "".
func (g *Gateway) onApprovals(ctx context.Context, r *http.Request) (any, error) {
	all := r.URL.Query().Get("all")
	if err := checkFlag("all", all); err != nil {
		return nil, err
	}
	l, err := g.client.Approvals(ctx, all == "1")
	shown := []Approval{}
	for _, a := range l.Approvals {
		shown = append(shown, Approval{a, text.VisibleJSON(a.Args, "")})
	}
	return object{{"approvals", shown}}, err
}

// onRules lists the remembered decisions as rules, [] when there are none.
func (g *Gateway) onRules(ctx context.Context, _ *http.Request) (any, error) {
	l, err := g.client.Approvals(ctx, false)
	return object{{"rules", append([]subjects.ApprovalRule{}, l.Rules...)}}, err
}

// onDecision decides an approval request as the user and responds with the decision. [Gateway.guardRequests] has
// authorized the client; the broker accepts the decision because of the gateway's account. It rejects a body without
// approve or with an unknown remember, and responds with 404 to an unknown request and 409 to one that is withdrawn,
// expired or decided.
func (g *Gateway) onDecision(ctx context.Context, r *http.Request, in Decision) (any, error) {
	id := r.PathValue("id")
	switch {
	case in.Approve == nil:
		return nil, malformedf("approve is required: true or false")
	case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, in.Remember):
		return nil, malformedf("remember must be session or always, or be omitted")
	}
	ctx, cancel := untilDecided(ctx)
	defer cancel()
	got, err := g.client.DecideApproval(ctx, id, subjects.ApprovalDecision{
		Approve: *in.Approve, Remember: in.Remember,
		Values: in.Values,
	})
	switch {
	case err != nil:
		return nil, err
	case got.State == subjects.ApprovalUnknown:
		return nil, notFoundf("approval request %s not found; GET /approvals lists the pending ones", id)
	case got.State == subjects.ApprovalWithdrawn:
		return nil, conflictf("the approval request was withdrawn and nothing was run: the question was cancelled, " +
			"or the caller stopped waiting")
	case got.State == subjects.ApprovalExpired:
		return nil, conflictf("the approval request has expired without a decision, and the call was denied")
	case !got.Accepted:
		return nil, conflictf("already decided: %s by %s; the first decision is final", got.State, got.By)
	}
	// remember is what the broker stored, which may be less than requested; "": this call only
	return object{
		{"id", got.ID}, {"accepted", got.Accepted}, {"state", got.State}, {"by", got.By}, {"remember", got.Remember},
	}, nil
}

// untilDecided returns a context that only brokerTimeout ends: while the gateway stops, a decision that the broker has
// accepted is still reported.
func untilDecided(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), brokerTimeout)
}

// onRevoke revokes the remembered decision (rule) whose id is in the path. An unknown rule is 404.
func (g *Gateway) onRevoke(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	ctx, cancel := untilDecided(ctx)
	defer cancel()
	_, err := g.client.RevokeRule(ctx, id)
	if errors.Is(err, client.ErrNotFound) {
		return nil, notFoundf("rule %s not found; GET /approvals/rules lists the rules", id)
	}
	return object{{"id", id}, {"state", "revoked"}}, err
}
