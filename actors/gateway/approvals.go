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

// Decided is the response to a decision.
type Decided struct {
	ID       string `json:"id"`
	Accepted bool   `json:"accepted"`
	State    string `json:"state"`
	By       string `json:"by"`
	Remember string `json:"remember"` // what the broker stored, which may be less than requested; "": this call only
}

// onApprovals lists the calls that wait for the user's approval; with all=1 also those that are decided or expired. It
// rejects other values of all than 0, 1 and "".
func (g *Gateway) onApprovals(w http.ResponseWriter, r *http.Request) error {
	v := r.URL.Query()
	if all := v.Get("all"); !slices.Contains([]string{"", "0", "1"}, all) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "all must be 0 or 1")
	}
	l, err := g.listApprovals(r, v.Get("all") == "1")
	if err != nil {
		return err
	}
	shown := []Approval{}
	for _, a := range l.Approvals {
		shown = append(shown, Approval{a, text.VisibleJSON(a.Args, "")})
	}
	g.writeJSON(w, http.StatusOK, struct {
		Approvals []Approval `json:"approvals"`
	}{shown})
	return nil
}

// onRules lists the remembered decisions as rules, [] when there are none.
func (g *Gateway) onRules(w http.ResponseWriter, r *http.Request) error {
	l, err := g.listApprovals(r, false)
	if err != nil {
		return err
	}
	g.writeJSON(w, http.StatusOK, struct {
		Rules []subjects.ApprovalRule `json:"rules"`
	}{append([]subjects.ApprovalRule{}, l.Rules...)})
	return nil
}

// listApprovals requests the approvals and rules from the broker; all includes the approvals that are decided or
// expired. It fails after brokerTimeout, which is also how a missing broker shows, and with errClosing when the gateway
// stops.
func (g *Gateway) listApprovals(r *http.Request, all bool) (subjects.ApprovalList, error) {
	ctx, cancel := g.withTimeout(r.Context(), brokerTimeout)
	defer cancel()
	l, err := g.client.Approvals(ctx, all)
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), errClosing) {
		err = errClosing
	}
	return l, mapBrokerFault(err)
}

// onDecision decides an approval request as the user and responds with the decision. [Gateway.guardRequests] has
// authorized the client; the broker accepts the decision because of the gateway's account. It rejects a body without
// approve or with an unknown remember, and responds with 404 to an unknown request and 409 to one that is withdrawn,
// expired or decided. A decision is sent even when the client disconnects.
func (g *Gateway) onDecision(w http.ResponseWriter, r *http.Request) error {
	id, err := parseID(r, "the approval's id")
	if err != nil {
		return err
	}
	var in Decision
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case in.Approve == nil:
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "approve is required: true or false")
	case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, in.Remember):
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "remember must be session or always, or be "+
			"omitted")
	}
	// The decision is valid even when the client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), brokerTimeout)
	defer cancel()
	got, err := g.client.DecideApproval(ctx, id, subjects.ApprovalDecision{
		Approve: *in.Approve, Remember: in.Remember,
		Values: in.Values,
	})
	switch {
	case err != nil:
		return mapBrokerFault(err)
	case got.State == subjects.ApprovalUnknown:
		return problemf(http.StatusNotFound, codeNotFound, "approval request %s not found; GET /approvals lists the "+
			"pending ones", id)
	case got.State == subjects.ApprovalWithdrawn:
		return problemf(http.StatusConflict, codeConflict, "the approval request was withdrawn and nothing was run: "+
			"the question was cancelled, or the caller stopped waiting")
	case got.State == subjects.ApprovalExpired:
		return problemf(http.StatusConflict, codeConflict, "the approval request has expired without a decision, and "+
			"the call was denied")
	case !got.Accepted:
		return problemf(http.StatusConflict, codeConflict, "already decided: %s by %s; the first decision is final",
			got.State, got.By)
	}
	g.writeJSON(w, http.StatusOK, Decided{got.ID, got.Accepted, got.State, got.By, got.Remember})
	return nil
}

// onRevoke revokes the remembered decision (rule) whose id is in the path, also when the client disconnects meanwhile.
// An unknown rule is 404.
func (g *Gateway) onRevoke(w http.ResponseWriter, r *http.Request) error {
	id, err := parseID(r, "the rule's id")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), brokerTimeout)
	defer cancel()
	_, err = g.client.RevokeRule(ctx, id)
	switch {
	case err == nil:
	case !errors.Is(err, client.ErrNotFound):
		return mapBrokerFault(err)
	default:
		return problemf(http.StatusNotFound, codeNotFound, "rule %s not found; GET /approvals/rules lists the rules",
			id)
	}
	g.writeJSON(w, http.StatusOK, struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}{id, "revoked"})
	return nil
}

// mapBrokerFault returns 503 for a fault of the audit log, which would otherwise be reported as an internal error.
func mapBrokerFault(err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeNoAudit {
		return problemf(http.StatusServiceUnavailable, f.Code, "%s", f.Text)
	}
	return err
}
