package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// elicitEnv has the test binary run as an MCP server of the SDK whose tool asks the user.
const elicitEnv = "CONCLAVE_TEST_ELICIT"

// serveElicitation is a server with one tool, which returns what the user answered.
func serveElicitation() {
	s := sdk.NewServer(&sdk.Implementation{Name: "booking", Version: "1"}, nil)
	sdk.AddTool(s, &sdk.Tool{Name: "act"}, func(_ context.Context, r *sdk.CallToolRequest,
		_ struct{},
	) (*sdk.CallToolResult, any, error) {
		a, ok := r.Params.InputResponses["seat"].(*sdk.ElicitResult)
		if !ok {
			form := map[string]any{"type": "object", "required": []string{"name"}, "properties": map[string]any{
				"name":  map[string]any{"type": "string", "title": "Name", "maxLength": 20},
				"seats": map[string]any{"type": "integer", "minimum": 1, "maximum": 4},
				"meal":  map[string]any{"type": "string", "enum": []string{"fish", "none"}},
			}}
			return &sdk.CallToolResult{
				InputRequests: sdk.InputRequestMap{"seat": &sdk.ElicitParams{
					Message:         "Who flies?\x1b[2J\u202e",
					RequestedSchema: form,
				}},
			}, nil, nil
		}
		content, _ := json.Marshal(a.Content)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: a.Action + " " + string(content)}}},
			nil, nil
	})
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

// elicitation is a system with MCP servers that ask the user.
type elicitation struct {
	t        *testing.T
	bus      *bus.Bus
	operator busCaller
	user     *client.Client
	output   chan subjects.ToolOutput
}

// newElicitation starts a system with a server of the SDK named booking, and the hostile servers of tricks. expires is
// when a question expires.
func newElicitation(t *testing.T, expires time.Duration, tricks ...string) *elicitation {
	t.Helper()
	return newElicitationWith(t, config.Wiring{}, newProgramHome(t), hubActors, expires, tricks...)
}

// newElicitationWith is newElicitation with a wiring, a home, and actors beside mcp and get_datetime.
func newElicitationWith(t *testing.T, w config.Wiring, home bus.Home, actors []string, expires time.Duration,
	tricks ...string,
) *elicitation {
	t.Helper()
	base, program := programFolder(t)
	w.Program = program
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(w)
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there
	c.Manifest.Approvals.Expires = expires
	c.MCP.Folder = filepath.Join(base, "servers")
	c.MCP.Servers = map[string]mcp.Server{"booking": {Command: program, Env: map[string]string{elicitEnv: "1"}}}
	tools := map[string][]string{"booking": {"act"}}
	for _, trick := range tricks {
		c.MCP.Servers[trick], tools[trick] = mcp.Server{Command: program, Env: map[string]string{hostileEnv: trick}},
			[]string{"act"}
	}
	addMCPPrincipals(t, home, tools, nil)
	r := up(t, c, home, append(slices.Clone(actors), "get_datetime", subjects.MCP)...)
	callUntilOK(t, r.Bus)
	e := &elicitation{
		t: t, bus: r.Bus, operator: dialOperator(t, r.Bus), user: dialClient(t, r.Bus, "user"),
		output: make(chan subjects.ToolOutput, 1000),
	}
	bustest.Subscribe(t, bustest.Dial(t, r.Bus, "user"), "tool.output.*", e.output)
	return e
}

// start calls the tool of a server as the user, and returns the id of the call and its result when it comes.
func (e *elicitation) start(ctx context.Context, server string) (call string, result <-chan subjects.ToolResult) {
	call = actor.NewID()
	out := make(chan subjects.ToolResult, 1)
	go func() {
		var r subjects.ToolResult
		for end := time.Now().Add(testTimeout); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			r = e.operator.callTool(ctx, mountedName(server, "act"), call, "{}")
			if r.Error == nil || r.Error.Code != subjects.CodeUnknownTool {
				break
			}
		}
		out <- r
	}()
	return call, out
}

// question returns the question of a call.
func (e *elicitation) question(call string) subjects.Approval {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), testTimeout)
	defer cancel()
	a, ok := e.user.AwaitCallApproval(ctx, call)
	if !ok || a.Form == nil {
		e.t.Fatalf("no question: %+v", a)
	}
	return a
}

// await returns the result of a call.
func (e *elicitation) await(result <-chan subjects.ToolResult) subjects.ToolResult {
	e.t.Helper()
	select {
	case r := <-result:
		return r
	case <-time.After(testTimeout):
		e.t.Fatal("no result")
	}
	return subjects.ToolResult{}
}

// records returns status and reason of the answers on record.
func (e *elicitation) records() (out []string) {
	for _, s := range bustest.ReadAuditLog(e.t, e.bus) {
		for _, r := range decoded(e.t, s) {
			if r.Action == subjects.ActionToolAnswer {
				out = append(out, strings.TrimSpace(r.Tool+" "+r.Status+" "+r.Reason))
			}
		}
	}
	return out
}

// TestElicitation shows that a question of a server of either generation of the protocol reaches the user, that nothing
// but the user's answer reaches the server, and that each answer is on record.
func TestElicitation(t *testing.T) {
	t.Parallel()
	e := newElicitation(t, time.Minute, "asks")
	for _, server := range []string{"booking", "asks"} {
		tool := mountedName(server, "act")
		call, result := e.start(t.Context(), server)
		q := e.question(call)
		if q.Form.From != subjects.MCPPrincipal(server) || q.Form.Message != "Who flies?" || len(q.Form.Fields) != 3 ||
			q.Tool != tool || q.State != subjects.ApprovalPending {
			t.Fatalf("%+v", q)
		}
		for values, want := range map[string]string{
			``:                                      "required",
			`{"name":7}`:                            "type",
			`{"name":"Ada","seats":9}`:              "limits",
			`{"name":"Ada","seats":1.5}`:            "type",
			`{"name":"Ada","meal":"steak"}`:         "choices",
			`{"name":"Ada","iban":"x"}`:             "no field",
			`{"name":"AKIAABCDEFGHIJKLMNOP"}`:       "credential",
			`{"name":"a name of more than twenty"}`: "limits",
		} {
			if _, err := e.user.DecideApproval(t.Context(), q.ID,
				subjects.ApprovalDecision{Approve: true, Values: json.RawMessage(values)}); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", values, err, want)
			}
		}
		if _, err := e.user.DecideApproval(t.Context(), q.ID,
			subjects.ApprovalDecision{
				Approve: true, Remember: subjects.RememberAlways,
				Values: json.RawMessage(`{"name":"Ada"}`),
			}); err == nil {
			t.Error("an answer is remembered")
		}
		r, err := e.user.DecideApproval(t.Context(), q.ID,
			subjects.ApprovalDecision{Approve: true, Values: json.RawMessage(`{"name":"Ada","seats":2,"meal":"fish"}`)})
		if err != nil || !r.Accepted {
			t.Fatalf("%+v, %v", r, err)
		}
		if got := e.await(result); got.Error != nil || got.Result != `accept {"meal":"fish","name":"Ada","seats":2}` ||
			got.Form != nil {
			t.Errorf("%s: %+v", server, got)
		}

		call, result = e.start(t.Context(), server)
		if _, err := e.user.DecideApproval(t.Context(), e.question(call).ID, subjects.ApprovalDecision{}); err != nil {
			t.Fatal(err)
		}
		if got := e.await(result); got.Error != nil || got.Result != "decline null" {
			t.Errorf("%s: %+v", server, got)
		}

		ctx, cancel := context.WithCancel(t.Context())
		call, result = e.start(ctx, server)
		withdrawn := e.question(call).ID
		cancel()
		e.await(result)
		if ok, err := e.user.WithdrawCallApproval(t.Context(), call); err != nil || !ok {
			t.Errorf("withdrawing: %t, %v", ok, err)
		}
		if r, err := e.user.DecideApproval(t.Context(), withdrawn,
			subjects.ApprovalDecision{Approve: true, Values: json.RawMessage(`{"name":"Ada"}`)}); err != nil ||
			r.Accepted {
			t.Errorf("a withdrawn question was answered: %+v, %v", r, err)
		}
		for _, want := range []string{tool + " allowed", tool + " ok", tool + " denied tool: denied"} {
			if got := e.records(); !slices.Contains(got, want) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
		l, err := e.user.Approvals(t.Context(), true)
		if data, _ := json.Marshal(l); err != nil || strings.Contains(string(data), "Ada") {
			t.Errorf("the list of approvals holds an answer: %s, %v", data, err)
		}
	}
}

// TestElicitationExpires shows that an unanswered question is declined, and that the call goes on.
func TestElicitationExpires(t *testing.T) {
	t.Parallel()
	e := newElicitation(t, 200*time.Millisecond)
	_, result := e.start(t.Context(), "booking")
	if got := e.await(result); got.Error != nil || got.Result != "decline null" {
		t.Errorf("%+v", got)
	}
	if got, want := e.records(), mountedName("booking", "act")+" denied tool: expired"; !slices.Contains(got, want) {
		t.Errorf("%q is not in %q", want, got)
	}
}

// seesDecline reports whether live output of the trick's tool says within ten seconds that a question was declined.
func (e *elicitation) seesDecline(trick string) bool {
	for end := time.After(10 * time.Second); ; {
		select {
		case o := <-e.output:
			if o.Tool == mountedName(trick, "act") && strings.Contains(o.Text, "declined") {
				return true
			}
		case <-end:
			return false
		}
	}
}

// TestElicitationHostile shows that the user is not asked the questions that a server must not ask.
func TestElicitationHostile(t *testing.T) {
	t.Parallel()
	tricks := []string{"phishing", "phishing-words", "form-huge", "form-nested", "form-url", "asks-early", "asks-much"}
	e := newElicitation(t, 5*time.Minute, tricks...) // no question expires meanwhile
	call, _ := e.start(t.Context(), "booking")       // a question of another server waits meanwhile
	waiting := e.question(call)
	for _, trick := range tricks {
		_, result := e.start(t.Context(), trick)
		if trick == "asks-much" { // three are shown, the rest are declined
			for range 3 {
				var next subjects.Approval
				for next.ID == "" {
					l, err := e.user.Approvals(t.Context(), false)
					if err != nil {
						t.Fatal(err)
					}
					for _, a := range l.Approvals {
						if a.Form.From == subjects.MCPPrincipal(trick) {
							next = a
						}
					}
				}
				if _, err := e.user.DecideApproval(t.Context(), next.ID,
					subjects.ApprovalDecision{Approve: true, Values: json.RawMessage(`{"name":"Ada"}`)}); err != nil {
					t.Fatal(err)
				}
			}
			if got := e.await(result); got.Error != nil || got.Result != "3 accepted, 17 declined" {
				t.Errorf("%s: %+v", trick, got)
			}
			continue
		}
		got := e.await(result)
		if got.Error != nil || !strings.Contains(got.Result, `"action":"decline"`) {
			t.Errorf("%s: %+v", trick, got)
		}
		if trick == "asks-early" { // no call runs that could show it
			continue
		}
		seen := e.seesDecline(trick)
		for range 2 { // live output is lossy by design: a busy machine may drop it
			if !seen {
				_, result := e.start(t.Context(), trick)
				e.await(result)
				seen = e.seesDecline(trick)
			}
		}
		if !seen {
			t.Errorf("%s: the user does not see that a question was declined", trick)
		}
	}
	l, err := e.user.Approvals(t.Context(), false)
	if err != nil || len(l.Approvals) != 1 || l.Approvals[0].ID != waiting.ID {
		t.Errorf("%s", fmt.Sprint(l.Approvals, err))
	}
}

// TestPageQuestion answers the question of an MCP server in the page: its text is marked as untrusted, the browser
// rejects an answer without a required field, the typed values reach the server, and another question is declined.
func TestPageQuestion(t *testing.T) {
	browser := findBrowser(t)
	address, home := make(chan string, 1), newProgramHome(t)
	e := newElicitationWith(t, config.Wiring{OnListen: func(addr string) {
		address <- addr
	}}, home, append(slices.Clone(hubActors), "gateway", "model"), time.Minute)
	s := &pageSystem{t: t, url: "http://" + <-address, token: readToken(t, home)}
	p := startBrowser(t, browser, s.url, s.loginLink(t.Context()))
	p.open("/approvals")
	const form = `document.querySelector(".approval.question form")`
	const send = form + `?.querySelector("[type=submit]:enabled")`
	call, result := e.start(t.Context(), "booking")
	e.question(call)
	p.waitFor(send)
	if text := p.text(".approval.question .untrusted"); !strings.Contains(text, "Who flies?") ||
		!strings.Contains(text, "untrusted") {
		t.Errorf("the text of the server: %q", text)
	}
	p.checkAccess("/approvals")
	p.waitFor(send)
	if eval[bool](p, form+`.checkValidity()`) {
		t.Error("an answer without the required field is valid")
	}
	eval[bool](p, `(() => { const f = `+form+
		`.elements; f["field name"].value = "Ada"; f["field seats"].value = "2"; f["field meal"].value = "fish"; `+send+
		`.click(); return true; })()`)
	if got := e.await(result); got.Error != nil || got.Result != `accept {"meal":"fish","name":"Ada","seats":2}` {
		t.Errorf("the answer at the server: %+v", got)
	}
	p.waitFor(`!document.querySelector(".approval.question")`)
	call, result = e.start(t.Context(), "booking")
	e.question(call)
	p.waitFor(send)
	p.click(".approval.question .primary")
	if got := e.await(result); got.Error != nil || got.Result != `decline null` {
		t.Errorf("declined: %+v", got)
	}
	p.checkQuiet()
}
