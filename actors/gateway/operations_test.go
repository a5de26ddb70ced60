package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// namedActor serves routes under the name of an actor.
type namedActor struct {
	name   string
	routes []actor.Route
}

func (a *namedActor) Name() string          { return a.name }
func (a *namedActor) Routes() []actor.Route { return a.routes }

// answering serves a request with a function of its body.
func answering[Q, R any](s subjects.Service[Q, R], reply func(Q) (R, error)) actor.Route {
	return actor.Serve(s, func(_ context.Context, in actor.Msg[Q], _ actor.Out) (R, error) { return reply(in.Body) })
}

// TestOperations is the routes for looking after the system, in front of actors that answer as the real ones do.
func TestOperations(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	joined := time.Now().Add(-time.Hour)
	steps := subjects.Setting{
		Name: "generator.steps", Actor: "generator", Value: "5", Default: "5", Origin: "shipped",
		Type: "number", Editable: true, Live: true,
	}
	phone, token := newClient("phone", time.Unix(1, 0))
	startActor(t, b, &namedActor{subjects.Registry, []actor.Route{
		answering(subjects.SettingListService, func(subjects.Empty) (subjects.SettingList, error) {
			return subjects.SettingList{Settings: []subjects.Setting{steps}, Folder: "/home/me"}, nil
		}),
		answering(subjects.SettingChangeService, func(q subjects.SettingChange) (subjects.SettingChanged, error) {
			switch {
			case q.Name != "generator.steps":
				return subjects.SettingChanged{}, subjects.Faultf(subjects.CodeDenied, "%s cannot be changed here",
					q.Name)
			case q.Value == "many":
				return subjects.SettingChanged{}, subjects.Faultf(subjects.CodeMalformed, "not a whole number")
			}
			return subjects.SettingChanged{Setting: steps, Restarted: []string{"generator"}}, nil
		}),
		answering(subjects.DoctorService, func(subjects.Empty) (subjects.DoctorReport, error) {
			return subjects.DoctorReport{Checks: []subjects.DoctorCheck{{Name: "disk", Level: "ok", Text: "enough"}}},
				nil
		}),
		answering(subjects.PrincipalListService, func(subjects.Empty) (subjects.PrincipalList, error) {
			return subjects.PrincipalList{Principals: []subjects.Principal{phone}}, nil
		}),
		answering(subjects.MachineListService, func(subjects.Empty) (subjects.MachineList, error) {
			return subjects.MachineList{Machines: []subjects.MachineStatus{
				{Name: "gpu-box", Actors: []string{"model"}, Added: joined, Connected: joined},
				{Name: "attic", Actors: []string{"web_search"}, Added: joined},
				{Name: "guest", Actors: []string{"model"}, InvitedUntil: time.Now().Add(time.Hour)},
			}}, nil
		}),
	}})
	release := make(chan struct{})
	startActor(t, b, &namedActor{"model", []actor.Route{
		answering(subjects.ModelListService, func(subjects.Empty) (subjects.ModelList, error) {
			return subjects.ModelList{
				Models: []subjects.ModelInfo{
					{Name: "big:latest", Backend: "ollama", Size: 1 << 60},
					{Name: "small", Backend: "ollama", Size: 1, Loaded: true},
					{Name: "far", Backend: "ollama", Machine: "gpu-box", Size: 1},
				},
				Roles: []subjects.RoleModel{{
					Role: "assistant", Model: "gpu-box/big",
					Notice: "huge is on attic, which is not connected, so big is used",
				}, {Role: "critic", Model: "big"}},
				Machines: []subjects.ModelMachine{{Name: "gpu-box", Connected: true, Queue: 2, Slots: 1}},
			}, nil
		}),
		actor.ServeStream(subjects.ModelPull, func(ctx context.Context, in actor.Msg[subjects.PullRequest],
			send func(subjects.PullProgress) error, _ actor.Out,
		) error {
			if in.Body.Model == "nobody/knows" {
				return subjects.Faultf(subjects.CodeModelMissing, "there is no such model")
			}
			if err := send(subjects.PullProgress{Status: "pulling", Completed: 5, Total: 10}); err != nil {
				return err
			}
			select {
			case <-release:
				return send(subjects.PullProgress{Status: "success"})
			case <-ctx.Done():
				return ctx.Err()
			}
		}),
	}})
	startActor(t, b, &namedActor{"mcp", nil})
	startActor(t, b, &namedActor{subjects.Generator, []actor.Route{
		answering(subjects.SessionContextService, func(q subjects.SessionContextRequest) (subjects.SessionContext,
			error,
		) {
			return subjects.SessionContext{
				SessionID: q.SessionID, Window: 100, Tokens: 7,
				Messages: []subjects.ContextMessage{{Role: "system", Content: "Be brief.", Tokens: 7}},
			}, nil
		}),
	}})
	d, w := describe(t), startGateway(t, b, setup{})
	w.checkRoutes(d, func() string { return "" }, []routeTest{
		{"settings", "GET", "/settings", "/settings", "", 200, `"name":"generator.steps"`, ""},
		{
			"change", "PUT", "/settings/{name}", "/settings/generator.steps", `{"value":"7"}`, 200,
			`"restarted":["generator"]`, "",
		},
		{
			"change of a protected setting", "PUT", "/settings/{name}", "/settings/system.listen",
			`{"value":"0.0.0.0:1"}`,
			403, "cannot be changed here", "",
		},
		{
			"an invalid value", "PUT", "/settings/{name}", "/settings/generator.steps", `{"value":"many"}`, 400,
			"whole number", "",
		},
		{"no value", "PUT", "/settings/{name}", "/settings/generator.steps", `{}`, 400, "value is required", ""},
		{
			"more than a value", "PUT", "/settings/{name}", "/settings/generator.steps", `{"value":"7","force":true}`,
			400,
			"unknown", "",
		},
		{
			"a setting by POST", "POST", "/settings/{name}", "/settings/generator.steps", `{"value":"7"}`, 405,
			"use PUT",
			"",
		},
		{"agents", "GET", "/agents", "/agents", "", 200, `"kind":"agent"`, ""},
		{
			"an actor without routes", "GET", "/agents", "/agents", "", 200,
			`"actor":"mcp","instances":1,"requests":0,"errors":0,"subjects":[],"state":"ready"`, "",
		},
		{"models", "GET", "/models", "/models", "", 200, `"fits":"no"`, ""},
		{"a model that is loaded", "GET", "/models", "/models", "", 200, `"fits":"loaded"`, ""},
		{"the role of a model", "GET", "/models", "/models", "", 200, `"used_by":["critic"]`, ""},
		{"machines", "GET", "/machines", "/machines", "", 200, `"queue":2`, ""},
		{"doctor", "GET", "/doctor", "/doctor", "", 200, `"level":"ok"`, ""},
		{
			"the audit log before its first head", "GET", "/audit", "/audit", "", 200,
			`{"head":"","note":"no head of the audit log was published yet`, "",
		},
		{"the audit log with a parameter", "GET", "/audit", "/audit?show=records", "", 400, "show", ""},
		{"context", "GET", "/sessions/{id}/context", "/sessions/s1/context", "", 200, `"content":"Be brief."`, ""},
		{"context of no session", "GET", "/sessions/{id}/context", "/sessions/a.b/context", "", 400, "letters", ""},
		{"pull", "POST", "/models/{name}/pull", "/models/big%2Fmodel:1b/pull", "", 202, `"model":"big/model:1b"`, ""},
		{"pull again", "POST", "/models/{name}/pull", "/models/big%2Fmodel:1b/pull", "", 409, "already", ""},
		{"pull with a body", "POST", "/models/{name}/pull", "/models/x/pull", `{"a":1}`, 400, "takes no body", ""},
		{"pull of no name", "POST", "/models/{name}/pull", "/models/a%20b/pull", "", 400, "without blanks", ""},
		{
			"stop what is not fetched", "DELETE", "/models/{name}/pull", "/models/x/pull", "", 404, "not being fetched",
			"",
		},
	})
	pulls := func() []gateway.Pull {
		_, _, body := w.do("GET", "/models", "")
		return read[gateway.Models](t, body).Pulls
	}
	await(t, func() bool { p := pulls(); return len(p) == 1 && p[0].Completed == 5 && p[0].Total == 10 })
	close(release)
	await(t, func() bool { p := pulls(); return len(p) == 1 && p[0].Status == "done" && !p[0].Ended.IsZero() })
	w.do("POST", "/models/nobody%2Fknows/pull", "")
	await(t, func() bool { p := pulls(); return len(p) == 2 && p[1].Error == "there is no such model" })
	_, _, body := w.do("GET", "/health", "")
	if links := strings.Join(read[gateway.Health](t, body).Degraded, "\n"); !strings.Contains(links,
		"the link to attic is down") || strings.Contains(links, "gpu-box") || strings.Contains(links, "guest") {
		t.Errorf("health: %s", body)
	}
	var client string
	await(t, func() bool {
		status, _, body := w.do("GET", "/health", "", "Authorization", "Bearer "+token)
		client = body
		return status == 200
	})
	if strings.Contains(client, "attic") || strings.Contains(client, "gpu-box") ||
		!strings.Contains(client, "a machine is not connected") ||
		!strings.Contains(client, "another model than the configured one") {
		t.Errorf("health for a client: %s", client)
	}
}

// await polls until a condition holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !holds(); {
		if time.Now().After(end) {
			t.Fatal("timeout")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
