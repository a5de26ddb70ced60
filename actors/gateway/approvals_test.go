package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// brokerStub serves the approval requests of the broker under its grants. The reply to a decision depends on its id.
type brokerStub struct{ requestLog }

func (*brokerStub) Name() string { return "broker" }

func (c *brokerStub) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.ApprovalListService, c.list),
		actor.Serve(subjects.ApprovalDecisionService, c.answer), actor.Serve(subjects.ApprovalRevoke, c.revoke),
		actor.Serve(subjects.ChangeListService, c.listChanges), actor.Serve(subjects.ChangeUndoService, c.undo),
	}
}

func (c *brokerStub) listChanges(_ context.Context, in actor.Msg[subjects.ChangeQuery], _ actor.Out) (
	subjects.ChangeList, error,
) {
	c.record(fmt.Sprintf("%s lists %q of %q and %q, %d", in.From, in.Body.ID, in.Body.Query, in.Body.Session,
		in.Body.Limit))
	return subjects.ChangeList{More: true, Changes: []subjects.Change{{
		ID: "c1", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Tool: "fs_write", Agent: "generator",
		Type: "assistant", Call: "call1", Session: "s1", Query: "q1", Sources: []string{"https://a.example"},
		Undoes: []string{"c0"},
		Files:  []subjects.ChangeFile{{Path: "/a", Kind: "changed", Bytes: 1, Undone: "c2", Diff: "+a"}},
	}}}, nil
}

func (c *brokerStub) undo(_ context.Context, in actor.Msg[subjects.UndoRequest], _ actor.Out) (subjects.UndoReply,
	error,
) {
	c.record(in.From + " " + in.Body.Action + " " + in.Body.ID + in.Body.Plan)
	if in.Body.Action == "other" {
		return subjects.UndoReply{}, subjects.Faultf(subjects.CodeMalformed, "unknown action")
	}
	return subjects.UndoReply{
		Done: true, ID: "u1", Plan: "p1", Changes: []string{"c1"}, Purged: 1,
		Files:    []subjects.UndoFile{{Path: "/a", Diff: "-a", Merged: true, Same: true}},
		Refusals: []subjects.UndoRefusal{{Path: "/b", Reason: "changed_since", Text: "b was changed"}},
	}, nil
}

func (c *brokerStub) list(_ context.Context, in actor.Msg[subjects.ApprovalQuery], _ actor.Out) (subjects.ApprovalList,
	error,
) {
	asked := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := subjects.Approval{State: "pending", ApprovalRequest: subjects.ApprovalRequest{
		ID: "q1", CallID: "c1", SessionID: "s1", QueryID: "x", Caller: "generator", Type: "assistant",
		Tool: "web_fetch", Args: json.RawMessage("{\"url\":\"\u009b2J\",\"n\":9007199254740993}"), Layer: "flow",
		Rule:   "egress",
		Reason: "because", Sinks: []string{"a"}, Preview: "+a", Taint: []subjects.Taint{{Tool: "web_search"}},
		Hosts: []subjects.LookAlikeHost{{}}, Grants: []subjects.Grant{{}}, Form: &subjects.UserForm{Message: "who?"},
		Asked: asked, Expires: asked.Add(time.Minute),
	}}
	over := a
	over.ID, over.State, over.By, over.Decided = "q0", "denied", "user", asked
	l := subjects.ApprovalList{
		Approvals: []subjects.Approval{a},
		Rules: []subjects.ApprovalRule{{
			ID: "r1", Session: "s1", Type: "assistant", Tool: "web_fetch",
			Rule: "flow: egress", Sinks: []string{"a"}, By: "user", Made: asked,
		}},
	}
	if in.Body.All {
		l.Approvals = append(l.Approvals, over)
	}
	return l, nil
}

func (c *brokerStub) answer(_ context.Context, in actor.Msg[subjects.ApprovalDecision],
	_ actor.Out,
) (subjects.ApprovalReply, error) {
	b, _ := json.Marshal(in.Body)
	c.record(in.From + " " + in.Tokens[1] + " " + string(b))
	r := subjects.ApprovalReply{ID: in.Tokens[1], State: in.Tokens[1], By: "user"}
	switch r.ID {
	case "noaudit":
		return r, subjects.Faultf(subjects.CodeNoAudit, "the audit did not take it")
	case "q1", "act":
		r.Accepted, r.State, r.By, r.Remember = true, "denied", in.From, in.Body.Remember
		if in.Body.Approve {
			r.State = "approved"
		}
		if r.ID == "act" {
			r.Remember = ""
		}
	}
	return r, nil
}

func (c *brokerStub) revoke(_ context.Context, in actor.Msg[subjects.Empty], _ actor.Out) (subjects.Done, error) {
	c.record(in.From + " revokes " + in.Tokens[1])
	return subjects.Done{OK: in.Tokens[1] == "r1"}, nil
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c := &brokerStub{}
	startActor(t, b, c)
	d, w := describe(t), startGateway(t, b, setup{})
	w.checkRoutes(d, func() string { return c.take("") }, []routeTest{
		{"pending", "GET", "/approvals", "/approvals", "", 200, `"id":"q1"`, ""},
		{
			"exact arguments", "GET", "/approvals", "/approvals", "", 200,
			`"args_text":"{\n  \"url\": \"\\u009b2J\",\n  \"n\": 9007199254740993\n}"`, "",
		},
		{"all", "GET", "/approvals", "/approvals?all=1", "", 200, `"id":"q0"`, ""},
		{"rules", "GET", "/approvals/rules", "/approvals/rules", "", 200, `"id":"r1"`, ""},
		{
			"approve", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":true}`, 200,
			`"state":"approved","by":"gateway","remember":""`, `gateway q1 {"approve":true}`,
		},
		{
			"deny", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":false}`, 200, `"state":"denied"`,
			`gateway q1 {"approve":false}`,
		},
		{
			"approve for the session", "POST", "/approvals/{id}", "/approvals/q1",
			`{"approve":true,"remember":"session"}`,
			200, `"remember":"session"`, `gateway q1 {"approve":true,"remember":"session"}`,
		},
		{
			"answer to a form", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":true,"values":{"name":"Ada"}}`,
			200, `"state":"approved"`, `gateway q1 {"approve":true,"values":{"name":"Ada"}}`,
		},
		{
			"always is not possible", "POST", "/approvals/{id}", "/approvals/act",
			`{"approve":true,"remember":"always"}`,
			200, `"remember":""`, `gateway act {"approve":true,"remember":"always"}`,
		},
		{
			"already decided", "POST", "/approvals/{id}", "/approvals/denied", `{"approve":true}`, 409,
			"already decided: denied by user", `gateway denied {"approve":true}`,
		},
		{
			"expired", "POST", "/approvals/{id}", "/approvals/expired", `{"approve":true}`, 409,
			"expired without a decision", `gateway expired {"approve":true}`,
		},
		{
			"withdrawn", "POST", "/approvals/{id}", "/approvals/withdrawn", `{"approve":true}`, 409,
			"withdrawn and nothing was run", `gateway withdrawn {"approve":true}`,
		},
		{
			"trick: a client withdraws", "POST", "/approvals/{id}", "/approvals/q1",
			`{"approve":false,"withdraw":true}`,
			400, "", "",
		},
		{
			"unknown", "POST", "/approvals/{id}", "/approvals/unknown", `{"approve":true}`, 404,
			"approval request unknown not found", `gateway unknown {"approve":true}`,
		},
		{
			"the audit is down", "POST", "/approvals/{id}", "/approvals/noaudit", `{"approve":true}`, 503,
			subjects.CodeNoAudit, `gateway noaudit {"approve":true}`,
		},
		{
			"revoked", "DELETE", "/approvals/rules/{id}", "/approvals/rules/r1", "", 200, `"state":"revoked"`,
			"gateway revokes r1",
		},
		{
			"no such rule", "DELETE", "/approvals/rules/{id}", "/approvals/rules/r2", "", 404, "rule r2 not found",
			"gateway revokes r2",
		},
		{
			"changes", "GET", "/changes", "/changes?id=c1&query=q1&session=s1&limit=7", "", 200, `"kind":"changed"`,
			`gateway lists "c1" of "q1" and "s1", 7`,
		},
		{"trick: no number", "GET", "/changes", "/changes?limit=-1", "", 400, "limit must be", ""},
		{
			"undo", "POST", "/changes/undo", "/changes/undo", `{"action":"apply","id":"c1","plan":"p1"}`, 200,
			`"reason":"changed_since"`, "gateway apply c1p1",
		},
		{
			"unknown action", "POST", "/changes/undo", "/changes/undo", `{"action":"other"}`, 400, "unknown action",
			"gateway other ",
		},
		{
			"trick: claimed identity", "POST", "/changes/undo", "/changes/undo", `{"action":"apply","by":"user"}`, 400,
			"", "",
		},
		{"invalid all", "GET", "/approvals", "/approvals?all=yes", "", 400, "all must be 0 or 1", ""},
		{"trick: no decision", "POST", "/approvals/{id}", "/approvals/q1", `{}`, 400, "approve is required", ""},
		{"trick: decision is null", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":null}`, 400, "", ""},
		{"trick: decision as a string", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":"true"}`, 400, "", ""},
		{
			"trick: duplicate approve", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":false,"approve":true}`,
			400, "", "",
		},
		{
			"trick: claimed identity", "POST", "/approvals/{id}", "/approvals/q1", `{"approve":true,"by":"user"}`, 400,
			"",
			"",
		},
		{
			"trick: unknown remember", "POST", "/approvals/{id}", "/approvals/q1",
			`{"approve":true,"remember":"forever"}`,
			400, "remember must be", "",
		},
		{
			"trick: wildcard id", "POST", "/approvals/{id}", "/approvals/%2A", `{"approve":true}`, 400,
			"letters, digits",
			"",
		},
		{
			"trick: wildcard rule", "DELETE", "/approvals/rules/{id}", "/approvals/rules/%3E", "", 400,
			"letters, digits",
			"",
		},
		{
			"trick: decision in the query string", "POST", "/approvals/{id}", "/approvals/q1?approve=true",
			`{"approve":true}`, 400, "unknown parameter", "",
		},
	})
	if status, _, body := w.do("GET", "/approvals/q1", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("trick: a decision by a link: %d %s", status, body)
	}
	// Values in responses, and request bodies, have the described fields.
	_, _, list := w.do("GET", "/approvals?all=1", "")
	_, _, rules := w.do("GET", "/approvals/rules", "")
	d.checkSchemas(t, map[string]map[string]any{
		"Approval": read[struct{ Approvals []map[string]any }](t, list).Approvals[1],
		"Rule":     read[struct{ Rules []map[string]any }](t, rules).Rules[0],
		"Decision": fields(t, gateway.Decision{}),
	})
}

// A forged request changes no approval.
func TestApprovalsGuarded(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c := &brokerStub{}
	startActor(t, b, c)
	w := startGateway(t, b, setup{})
	for _, tt := range append(slices.Clone(forgedHeaders), struct {
		name   string
		header []string
		status int
	}{"trick: a form", []string{"Content-Type", "text/plain"}, 415}) {
		t.Run(tt.name, func(t *testing.T) {
			c.take("")
			if status, _, body := w.do("POST", "/approvals/q1", `{"approve":true}`, tt.header...); status != tt.status {
				t.Errorf("%d %s", status, body)
			}
			if got := c.take(""); (got != "") != (tt.status == 200) {
				t.Errorf("requests to the broker: %q", got)
			}
			if tt.status == 415 {
				return // there is no body to a DELETE
			}
			if status, _, body := w.do("DELETE", "/approvals/rules/r1", "", tt.header...); status != tt.status {
				t.Errorf("%d %s", status, body)
			}
			if status, _, body := w.do("GET", "/approvals", "", tt.header...); status != tt.status {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// Without a broker the response says so at once.
func TestApprovalsWithoutBroker(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	for _, r := range [][3]string{
		{"GET", "/approvals", ""},
		{"GET", "/approvals/rules", ""},
		{"DELETE", "/approvals/rules/r1", ""},
	} {
		if status, header, body := w.do(r[0], r[1], r[2]); status != http.StatusServiceUnavailable ||
			header.Get("Retry-After") == "" || !strings.Contains(body, subjects.CodeUnavailable) {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
}
