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

// schemas are the alternatives of a schema, with references resolved.
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

// response is the described content of a response.
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

// checkResponse fails unless the body has exactly the fields of a schema that the route describes for the status, all
// required.
func (d description) checkResponse(t *testing.T, method, route string, status int, body string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(read[map[string]any](t, body)))
	want := d.schemas(t, d.response(t, method, route, status)["application/json"].Schema)
	if !slices.ContainsFunc(want, func(s schema) bool {
		return slices.Equal(got, slices.Sorted(maps.Keys(s.Properties))) &&
			slices.Equal(got, slices.Sorted(slices.Values(s.Required)))
	}) {
		t.Errorf("%s %s: the response %d has %v, described are %+v", method, route, status, got, want)
	}
}

// routeTest is a request, the response that it must get, and the requests that it must cause on the bus.
type routeTest struct {
	name                string
	method, route, path string
	body                string
	status              int
	holds               string // part of the response
	requests            string // to the actor behind the route; "" = none
}

// checkRoutes runs tests; take returns the requests to the actor behind the routes since its last call. A response must
// be described and must not contain the text of internal errors.
func (w *fixture) checkRoutes(d description, take func() string, tests []routeTest) {
	for _, tt := range tests {
		w.t.(*testing.T).Run(tt.name, func(t *testing.T) {
			status, header, body := w.do(tt.method, tt.path, tt.body)
			if status != tt.status || !strings.Contains(body, tt.holds) ||
				!strings.HasPrefix(header.Get("Content-Type"), "application/json") ||
				strings.Contains(body, "insides") {
				t.Fatalf("%d %s", status, body)
			}
			if got := take(); got != tt.requests {
				t.Errorf("requests on the bus: %s", got)
			}
			if status != http.StatusMethodNotAllowed {
				d.checkResponse(t, tt.method, tt.route, status, body)
			}
		})
	}
}

// checkSchemas fails unless each value has exactly the fields of the schema of its name.
func (d description) checkSchemas(t *testing.T, values map[string]map[string]any) {
	t.Helper()
	for name, v := range values {
		s := d.schemas(t, schema{Ref: "#/components/schemas/" + name})[0]
		if got := slices.Sorted(maps.Keys(v)); !slices.Equal(got, slices.Sorted(maps.Keys(s.Properties))) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// fields are the JSON fields of v.
func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return read[map[string]any](t, string(data))
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
	routes := gateway.New(defaultConfig(gateway.Config{}), nil).Endpoints()
	slices.Sort(described)
	slices.Sort(routes)
	if !slices.Equal(described, routes) {
		t.Errorf("described %v\nserved    %v", described, routes)
	}
}

// Responses have exactly the described fields.
func TestOpenAPIAnswers(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	d, w := describe(t), startGateway(t, b, setup{
		Config: gateway.Config{QueryTimeout: testTimeout},
		change: func(g *gateway.Gateway) { g.SetOutcomeTimeout(testTimeout) },
	})
	w.serveRewards()
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		switch q.Query {
		case "hi":
			emitStored(w, out, subjects.ResponseGeneration, reply(q, "hello"))
		case "no":
			emitStored(w, out, withTokens(t, subjects.DeadLetterEvent, "generator"),
				subjects.DeadLetter{Subject: "turn.3.s", Code: "internal", Reason: "given up"})
		}
	})
	w.storeConversations(subjects.Conversation{
		SessionID: "s1",
		Turns:     []subjects.Turn{{QueryID: "q", Query: "hi", Answer: "hello"}}, Updated: time.Now(),
	})
	hasty := startGateway(t, b, setup{
		Config: gateway.Config{QueryTimeout: time.Millisecond},
		change: func(g *gateway.Gateway) { g.SetOutcomeTimeout(time.Millisecond) },
	})
	for _, tt := range []struct {
		w                   *fixture
		method, route, path string
		body                string
		status              int
	}{
		{w, "GET", "/health", "/health", "", 200},
		{w, "GET", "/login", "/login", "", 401},
		{w, "POST", "/login/links", "/login/links", "", 200},
		{w, "GET", "/logins", "/logins", "", 200},
		{w, "DELETE", "/logins/{id}", "/logins/nothing", "", 404},
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
		{w, "GET", "/sessions/{id}/export", "/sessions/s1/export?format=json", "", 200},
		{w, "GET", "/sessions/{id}/export", "/sessions/s1/export?format=html", "", 400},
		{w, "GET", "/search", "/search?q=hello", "", 200},
		{w, "GET", "/search", "/search?q=%20", "", 400},
		{w, "GET", "/search", "/search?q=" + strings.Repeat("x", 201), "", 400},
		{w, "GET", "/sessions/{id}/turns", "/sessions/s1/turns", "", 200},
		{w, "GET", "/sessions/{id}/turns", "/sessions/s1/turns?before=9-9", "", 404},
		{w, "GET", "/events", "/events?after=x", "", 400},
	} {
		status, header, body := tt.w.do(tt.method, tt.path, tt.body)
		if status != tt.status || !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			t.Errorf("%s %s: %d %s %s", tt.method, tt.path, status, header.Get("Content-Type"), body)
			continue
		}
		d.checkResponse(t, tt.method, tt.route, status, body)
	}
	// An event on the stream, and this file itself.
	emitStored(w, w.out("generator").WithIDs("s1", "q9"), subjects.AnswerDialog, subjects.Dialog{QueryID: "q9"})
	ev := read[map[string]any](t, w.follow("/events?after=0&query=q9").next().raw)
	want := d.schemas(t, d.response(t, "GET", "/events", 200)["text/event-stream"].Schema)[0]
	if got := slices.Sorted(maps.Keys(ev)); !slices.Equal(got, slices.Sorted(maps.Keys(want.Properties))) {
		t.Errorf("an event has %v", got)
	}
	if status, header, body := w.do(http.MethodGet, "/openapi.yaml", ""); status != 200 ||
		body != string(gateway.OpenAPI()) || !strings.HasPrefix(header.Get("Content-Type"), "application/yaml") {
		t.Errorf("%d %s", status, header.Get("Content-Type"))
	}
}

// Request bodies have exactly the described fields.
func TestOpenAPIBodies(t *testing.T) {
	t.Parallel()
	d := describe(t)
	d.checkSchemas(t, map[string]map[string]any{
		"Question":     fields(t, gateway.Question{}),
		"Feedback":     fields(t, gateway.FeedbackRequest{}),
		"BrowserLogin": fields(t, gateway.BrowserLogin{}),
	})
}
