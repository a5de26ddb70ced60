package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// brokerTimeout is how long the broker may take over what the user says. An answer without a broker is noticed only then:
// the gateway watches the subject on which it answers, so somebody always listens there.
const brokerTimeout = 10 * time.Second

// Decision is what POST /approvals/{id} reads. Approve must be there: an empty body is no answer.
type Decision struct {
	Approve  *bool  `json:"approve"`
	Remember string `json:"remember"`
}

// Decided is what it answers.
type Decided struct {
	ID       string `json:"id"`
	Accepted bool   `json:"accepted"`
	State    string `json:"state"`
	By       string `json:"by"`
	Remember string `json:"remember"` // what holds: "" is this once, whatever was wanted
}

// onApprovals lists the calls that wait for the user's answer.
func (g *Gateway) onApprovals(w http.ResponseWriter, r *http.Request) error {
	v, err := parseParams(r, "all")
	if err != nil {
		return err
	}
	if all := v.Get("all"); !slices.Contains([]string{"", "0", "1"}, all) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "all is 0 or 1")
	}
	l, err := g.listApprovals(r, v.Get("all") == "1")
	if err != nil {
		return err
	}
	g.writeJSON(w, http.StatusOK, struct {
		Approvals []subjects.Approval `json:"approvals"`
	}{append([]subjects.Approval{}, l.Approvals...)})
	return nil
}

// onRules lists the answers that hold for later calls.
func (g *Gateway) onRules(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	l, err := g.listApprovals(r, false)
	if err != nil {
		return err
	}
	g.writeJSON(w, http.StatusOK, struct {
		Rules []subjects.ApprovalRule `json:"rules"`
	}{append([]subjects.ApprovalRule{}, l.Rules...)})
	return nil
}

func (g *Gateway) listApprovals(r *http.Request, all bool) (subjects.ApprovalList, error) {
	ctx, cancel := g.withTimeout(r.Context(), brokerTimeout)
	defer cancel()
	l, err := g.client.Approvals(ctx, all)
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), errClosing) {
		err = errClosing
	}
	return l, mapBrokerFault(err)
}

// onDecision answers a question. It is the user's own word: the guard stands before it, and the broker knows it as the
// gateway's.
func (g *Gateway) onDecision(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the approval's id", id); err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	var in Decision
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	switch {
	case in.Approve == nil:
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "approve is true or false, and must be said")
	case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, in.Remember):
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "remember is session, always or left out")
	}
	// A client that goes away has answered all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), brokerTimeout)
	defer cancel()
	got, err := g.client.DecideApproval(ctx, id, subjects.ApprovalDecision{Approve: *in.Approve, Remember: in.Remember})
	switch {
	case err != nil:
		return mapBrokerFault(err)
	case got.State == subjects.ApprovalUnknown:
		return problemf(http.StatusNotFound, codeNotFound, "there is no question %s; GET /approvals lists those that wait", id)
	case got.State == subjects.ApprovalExpired:
		return problemf(http.StatusConflict, codeConflict, "the question has expired, so the call was refused; nobody had answered")
	case !got.Accepted:
		return problemf(http.StatusConflict, codeConflict, "the question was answered before: it was %s by %s, and the first answer holds", got.State, got.By)
	}
	g.writeJSON(w, http.StatusOK, Decided{got.ID, got.Accepted, got.State, got.By, got.Remember})
	return nil
}

// onRevoke ends an answer that holds for later calls.
func (g *Gateway) onRevoke(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the rule's id", id); err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), brokerTimeout)
	defer cancel()
	_, err := g.client.RevokeRule(ctx, id)
	switch {
	case err == nil:
	case !errors.Is(err, client.ErrNotFound):
		return mapBrokerFault(err)
	default:
		return problemf(http.StatusNotFound, codeNotFound, "there is no rule %s; GET /approvals/rules lists those there are", id)
	}
	g.writeJSON(w, http.StatusOK, struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}{id, "revoked"})
	return nil
}

// mapBrokerFault tells of an audit that is down as such; it is not the gateway that failed.
func mapBrokerFault(err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeNoAudit {
		return problemf(http.StatusServiceUnavailable, f.Code, "%s", f.Text)
	}
	return err
}
