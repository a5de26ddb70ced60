package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// sessionStub is the generator as far as it changes conversations.
type sessionStub struct{ requestLog }

func (*sessionStub) Name() string { return "generator" }

func (c *sessionStub) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.SessionChangeService, c.change)}
}

func (c *sessionStub) change(_ context.Context, in actor.Msg[subjects.SessionChange],
	_ actor.Out,
) (subjects.SessionChanged, error) {
	c.record(in.From + " " + in.Body.Change + " " + in.Body.SessionID)
	if in.Body.SessionID == "busy" {
		return subjects.SessionChanged{}, subjects.Faultf(subjects.CodeBusy, "a question of this session is being "+
			"answered")
	}
	return subjects.SessionChanged{SessionID: in.Body.SessionID, Change: in.Body.Change, Turns: 2}, nil
}

// The conversations are read before the gateway serves, so that the first list of sessions reads only what changed
// since.
func TestSessionsAreReadAtStart(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const sessions = 300
	conversations := make([]subjects.Conversation, sessions)
	for i := range conversations {
		conversations[i] = subjects.Conversation{
			SessionID: fmt.Sprintf("s%d", i),
			Turns:     []subjects.Turn{{QueryID: "q", Query: "?", Answer: "yes"}},
		}
	}
	(&fixture{Bus: b, t: t}).storeConversations(conversations...)
	w := startGateway(t, b, setup{change: func(g *gateway.Gateway) { g.SetSessionsTimeout(testTimeout) }})
	before := w.nc.Stats().OutMsgs
	status, _, body := w.do("GET", "/sessions", "")
	if n := w.nc.Stats().OutMsgs - before; status != http.StatusOK || strings.Count(body, `"session_id"`) != sessions ||
		n > sessions/4 {
		t.Errorf("%d, %d sessions, %d messages of the gateway for the first list", status,
			strings.Count(body, `"session_id"`), n)
	}
}

// A conversation is named, pinned, deleted and summarized over HTTP, by its complete id only.
func TestSessionsAreChanged(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c := &sessionStub{}
	startActor(t, b, c)
	d, w := describe(t), startGateway(t, b, setup{})
	turns := []subjects.Turn{{QueryID: "q", Query: "?", Answer: "yes"}}
	w.storeConversations(subjects.Conversation{SessionID: "notes", Turns: turns},
		subjects.Conversation{SessionID: "busy", Turns: turns})
	w.checkRoutes(d, func() string { return c.take("") }, []routeTest{
		{
			"delete", "DELETE", "/sessions/{id}", "/sessions/notes", "", 200, `"change":"delete","turns":2`,
			"gateway delete notes",
		},
		{
			"compact", "POST", "/sessions/{id}/compact", "/sessions/notes/compact", "", 200,
			`"change":"compact","turns":2`, "gateway compact notes",
		},
		{"busy", "DELETE", "/sessions/{id}", "/sessions/busy", "", 409, "is being answered", "gateway delete busy"},
		{"unknown", "DELETE", "/sessions/{id}", "/sessions/other", "", 404, "session other not found", ""},
		{
			"unknown to compact", "POST", "/sessions/{id}/compact", "/sessions/other/compact", "", 404,
			"session other not found", "",
		},
		{"list before changes", "GET", "/sessions", "/sessions", "", 200, `"title":"?"`, ""},
		{
			"title", "PATCH", "/sessions/{id}", "/sessions/notes", `{"title":"My notes"}`, 200,
			`"title":"My notes","pinned":false`, "",
		},
		{
			"pin keeps the title", "PATCH", "/sessions/{id}", "/sessions/notes", `{"pinned":true}`, 200,
			`"title":"My notes","pinned":true`, "",
		},
		{
			"list", "GET", "/sessions", "/sessions", "", 200,
			`"title":"My notes","turns":1,"updated":"0001-01-01T00:00:00Z","client":"","pinned":true`, "",
		},
		{
			"unpin", "PATCH", "/sessions/{id}", "/sessions/notes", `{"pinned":false,"title":""}`, 200,
			`"title":"","pinned":false`, "",
		},
		{
			"list without notes", "GET", "/sessions", "/sessions", "", 200,
			`"title":"?","turns":1,"updated":"0001-01-01T00:00:00Z","client":""}`, "",
		},
		{
			"title again", "PATCH", "/sessions/{id}", "/sessions/notes", `{"title":"Named again"}`, 200,
			`"title":"Named again","pinned":false`, "",
		},
		{"list with the second title", "GET", "/sessions", "/sessions", "", 200, `"title":"Named again"`, ""},
		{"neither title nor pin", "PATCH", "/sessions/{id}", "/sessions/notes", `{}`, 400, "title or pinned is " +
			"required", ""},
		{
			"unknown to pin", "PATCH", "/sessions/{id}", "/sessions/other", `{"pinned":true}`, 404,
			"session other not found", "",
		},
		{
			"trick: another field", "PATCH", "/sessions/{id}", "/sessions/notes", `{"pinned":true,"turns":9}`, 400,
			"unknown", "",
		},
		{"trick: a prefix", "DELETE", "/sessions/{id}", "/sessions/note", "", 404, "not found", ""},
		{"trick: a wildcard", "DELETE", "/sessions/{id}", "/sessions/%2A", "", 400, "letters, digits", ""},
		{
			"trick: another session in the body", "POST", "/sessions/{id}/compact", "/sessions/notes/compact",
			`{"session_id":"busy"}`, 400, "takes no body", "",
		},
		{
			"trick: another change in the query string", "POST", "/sessions/{id}/compact",
			"/sessions/notes/compact?change=delete", "", 400, "unknown parameter", "",
		},
	})
}
