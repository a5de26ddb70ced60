package gateway_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// description is openapi.yaml as far as the tests look at it.
type description struct {
	OpenAPI string                          `yaml:"openapi"`
	Paths   map[string]map[string]yaml.Node `yaml:"paths"`
	Parts   map[string]map[string]yaml.Node `yaml:"components"`
}

// schema is one of its schemas.
type schema struct {
	Ref        string            `yaml:"$ref"`
	OneOf      []schema          `yaml:"oneOf"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
}

type content map[string]struct {
	Schema schema `yaml:"schema"`
}

func describe(t *testing.T) description {
	t.Helper()
	var d description
	if err := yaml.Unmarshal(gateway.OpenAPI(), &d); err != nil || !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Fatalf("%q %v", d.OpenAPI, err)
	}
	return d
}

// schemas are what a body may look like.
func (d description) schemas(t *testing.T, s schema) []schema {
	t.Helper()
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		node, ok := d.Parts["schemas"][name]
		if !ok {
			t.Fatalf("there is no schema %s", name)
		}
		s = schema{}
		if err := node.Decode(&s); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.OneOf) == 0 {
		return []schema{s}
	}
	var all []schema
	for _, o := range s.OneOf {
		all = append(all, d.schemas(t, o)...)
	}
	return all
}

// response is the content that a route may answer a status with.
func (d description) response(t *testing.T, method, path string, status int) content {
	t.Helper()
	op := d.Paths[path][strings.ToLower(method)]
	var o struct {
		Responses map[string]struct {
			Ref     string  `yaml:"$ref"`
			Content content `yaml:"content"`
		} `yaml:"responses"`
	}
	if err := op.Decode(&o); err != nil {
		t.Fatal(err)
	}
	r, ok := o.Responses[fmt.Sprint(status)]
	if !ok {
		r = o.Responses["default"]
	}
	if name, ok := strings.CutPrefix(r.Ref, "#/components/responses/"); ok {
		node := d.Parts["responses"][name]
		if err := node.Decode(&r); err != nil {
			t.Fatal(err)
		}
	}
	return r.Content
}

// Every route is described, and nothing else is.
func TestOpenAPIRoutes(t *testing.T) {
	t.Parallel()
	var described []string
	ids := map[string]bool{}
	for path, item := range describe(t).Paths {
		for method, node := range item {
			if method == "parameters" {
				continue
			}
			described = append(described, strings.ToUpper(method)+" "+path)
			var op struct {
				ID      string `yaml:"operationId"`
				Summary string `yaml:"summary"`
			}
			if err := node.Decode(&op); err != nil || op.ID == "" || op.Summary == "" || ids[op.ID] {
				t.Errorf("%s %s: %+v %v", method, path, op, err)
			}
			ids[op.ID] = true
		}
	}
	routes := gateway.New(usual(gateway.Config{}), nil).Endpoints()
	slices.Sort(described)
	slices.Sort(routes)
	if !slices.Equal(described, routes) {
		t.Errorf("described %v\nserved    %v", described, routes)
	}
}

// What the routes really answer has exactly the fields that are described.
func TestOpenAPIAnswers(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	d, w := describe(t), startGateway(t, b, setup{Config: gateway.Config{QueryTimeout: patience}, change: func(g *gateway.Gateway) { g.SetOutcomeTimeout(patience) }})
	w.rewards()
	w.generator(func(q subjects.Query, out actor.Out) {
		switch q.Query {
		case "hi":
			emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
		case "no":
			emitStored(w, out, with(t, subjects.DeadLetterEvent, "generator"), subjects.DeadLetter{Subject: "turn.3.s", Code: "internal", Reason: "given up"})
		}
	})
	conv, err := json.Marshal(subjects.Conversation{SessionID: "s1", Turns: []subjects.Turn{{QueryID: "q", Query: "hi", Answer: "hello"}}, Updated: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.out("generator").Store("state_generator").Put(t.Context(), subjects.ConversationKey("s1"), conv, 0); err != nil {
		t.Fatal(err)
	}
	hasty := startGateway(t, b, setup{Config: gateway.Config{QueryTimeout: time.Millisecond}, change: func(g *gateway.Gateway) { g.SetOutcomeTimeout(time.Millisecond) }})
	for _, tt := range []struct {
		w                   *fixture
		method, route, path string
		body                string
		status              int
	}{
		{w, "GET", "/health", "/health", "", 200},
		{w, "GET", "/login", "/login", "", 401},
		{w, "POST", "/login/links", "/login/links", "", 200},
		{w, "POST", "/query", "/query", `{"query":"hi","session_id":"s","query_id":"q1"}`, 200},
		{w, "POST", "/query", "/query", `{"query":"no","session_id":"s","query_id":"q2"}`, 502},
		{w, "POST", "/query", "/query?wait=0", `{"query":"later","session_id":"s","query_id":"q3"}`, 202},
		{w, "POST", "/query", "/query", `{}`, 400},
		{hasty, "POST", "/query", "/query", `{"query":"later"}`, 504},
		{w, "GET", "/queries/{id}", "/queries/q1", "", 200},
		{w, "GET", "/queries/{id}", "/queries/q2", "", 502},
		{w, "GET", "/queries/{id}", "/queries/q3", "", 202},
		{w, "GET", "/queries/{id}", "/queries/q4", "", 404},
		{w, "DELETE", "/queries/{id}", "/queries/q3", "", 202},
		{w, "POST", "/feedback", "/feedback", `{"query_id":"q1","stars":5}`, 200},
		{w, "POST", "/feedback", "/feedback", `{"query_id":"gone","stars":5}`, 404},
		{hasty, "POST", "/feedback", "/feedback", `{"query_id":"silent","stars":5}`, 202},
		{w, "GET", "/sessions", "/sessions", "", 200},
		{w, "GET", "/sessions/{id}", "/sessions/s1", "", 200},
		{w, "GET", "/sessions/{id}", "/sessions/s2", "", 404},
		{w, "GET", "/events", "/events?after=x", "", 400},
	} {
		status, header, body := tt.w.do(tt.method, tt.path, tt.body)
		if status != tt.status || !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			t.Errorf("%s %s: %d %s %s", tt.method, tt.path, status, header.Get("Content-Type"), body)
			continue
		}
		got := slices.Sorted(maps.Keys(read[map[string]any](t, body)))
		want := d.schemas(t, d.response(t, tt.method, tt.route, status)["application/json"].Schema)
		if !slices.ContainsFunc(want, func(s schema) bool {
			return slices.Equal(got, slices.Sorted(maps.Keys(s.Properties))) && slices.Equal(got, slices.Sorted(slices.Values(s.Required)))
		}) {
			t.Errorf("%s %s answers %d with %v, described are %+v", tt.method, tt.path, status, got, want)
		}
	}
	// An event on the stream, and this file itself.
	emitStored(w, w.out("generator").WithIDs("s1", "q9"), subjects.AnswerDialog, subjects.Dialog{QueryID: "q9"})
	ev := read[map[string]any](t, w.follow("/events?after=0&query=q9").next().raw)
	want := d.schemas(t, d.response(t, "GET", "/events", 200)["text/event-stream"].Schema)[0]
	if got := slices.Sorted(maps.Keys(ev)); !slices.Equal(got, slices.Sorted(maps.Keys(want.Properties))) {
		t.Errorf("an event has %v", got)
	}
	if status, header, body := w.do(http.MethodGet, "/openapi.yaml", ""); status != 200 || body != string(gateway.OpenAPI()) || !strings.HasPrefix(header.Get("Content-Type"), "application/yaml") {
		t.Errorf("%d %s", status, header.Get("Content-Type"))
	}
}

// What is read is what is described.
func TestOpenAPIBodies(t *testing.T) {
	t.Parallel()
	d := describe(t)
	for name, v := range map[string]any{"Question": gateway.Question{}, "Feedback": gateway.FeedbackRequest{}} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fields := slices.Sorted(maps.Keys(read[map[string]any](t, string(data))))
		s := d.schemas(t, schema{Ref: "#/components/schemas/" + name})[0]
		if !slices.Equal(fields, slices.Sorted(maps.Keys(s.Properties))) {
			t.Errorf("%s: %v", name, fields)
		}
	}
}
