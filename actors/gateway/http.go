package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/pkg/telemetry"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Limits of a request, in bytes and time.
const (
	maxHeader          = 16 << 10
	maxBody            = 256 << 10
	defaultBodyTimeout = 10 * time.Second // to receive a body
)

// Error codes that exist only in HTTP; all others are the codes of the bus.
const (
	codeUnauthorized = "unauthorized"
	codeNotFound     = "not_found"
	codeMethod       = "wrong_method"
	codeConflict     = "conflict"
)

// handler handles one request. A returned error is sent to the client by [Gateway.writeProblem], so nothing may have
// been written before it.
type handler func(w http.ResponseWriter, r *http.Request) error

// responder returns the body of the response to a request. One of the type accepted has the status 202, any other 200.
type responder func(ctx context.Context, r *http.Request) (body any, err error)

// accepted is the body of a response about what is done later.
type accepted struct{ body any }

// object is a JSON object in a response: names and values of its fields, in their order.
type object []struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	out := []byte("{")
	for i, f := range o {
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(fmt.Appendf(out, "%q:", f.name), value...)
	}
	return append(out, '}'), nil
}

// respond returns the handler of a request that f answers within timeout. Its errors are those of [Gateway.explainEnd].
func (g *Gateway) respond(timeout time.Duration, f responder) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := g.withTimeout(r.Context(), timeout)
		defer cancel()
		body, err := f(ctx, r)
		if err != nil {
			return g.explainEnd(ctx, err)
		}
		status := http.StatusOK
		if later, ok := body.(accepted); ok {
			status, body = http.StatusAccepted, later.body
		}
		g.writeJSON(w, status, body)
		return nil
	}
}

// read is [Gateway.respond] within lookupTimeout.
func (g *Gateway) read(f responder) handler { return g.respond(lookupTimeout, f) }

// change is [Gateway.respond] for a change without a body, which is completed when the client disconnects.
func (g *Gateway) change(timeout time.Duration, f responder) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.ContentLength != 0 {
			return malformedf("%s takes no body", r.URL.Path)
		}
		return g.respond(timeout, f)(w, r.WithContext(context.WithoutCancel(r.Context())))
	}
}

// changeBy is [Gateway.change] for a request with a body, which [Gateway.readBody] decodes.
func changeBy[T any](g *Gateway, timeout time.Duration,
	f func(ctx context.Context, r *http.Request, in T) (any, error),
) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var in T
		if err := g.readBody(w, r, &in); err != nil {
			return err
		}
		return g.respond(timeout, func(ctx context.Context, r *http.Request) (any, error) {
			return f(ctx, r, in)
		})(w, r.WithContext(context.WithoutCancel(r.Context())))
	}
}

// route is one operation of the API.
type route struct {
	method, path string
	// names in the query string, separated by blanks; any other is rejected. "" = none, anyParams = not checked
	params string
	handle handler
}

const anyParams = "*"

// pattern is the route for [http.ServeMux], in which "/" alone would match every path.
func (rt route) pattern() string {
	if rt.path == "/" {
		return rt.method + " /{$}"
	}
	return rt.method + " " + rt.path
}

// routes lists the operations of the API. openapi.yaml describes the same set; a test compares them.
func (g *Gateway) routes() []route {
	return []route{
		{"GET", "/", "", g.onRoot},
		{"GET", loginPath, "code", g.onLogin},
		{"POST", "/login/links", "", g.change(lookupTimeout, g.onNewLink)},
		{"POST", "/login/token", "", g.change(lookupTimeout, g.onNewToken)},
		{"GET", "/logins", "", g.read(g.onLogins)},
		{"DELETE", "/logins/{id}", "", g.change(lookupTimeout, g.onLogout)},
		{"GET", "/health", "", g.onHealth},
		{"POST", "/query", "wait grade_wait", g.onQuery},
		{"GET", "/queries/{id}", "", g.onQueryStatus},
		{"DELETE", "/queries/{id}", "", g.change(lookupTimeout, g.onCancel)},
		{"POST", "/feedback", "", changeBy(g, feedbackTimeout, g.onFeedback)},
		{"GET", "/tasks", "", g.read(g.onTasks)},
		{"GET", "/tasks/{id}", "", g.read(g.onTask)},
		{"POST", "/tasks/{id}/cancel", "", g.onTaskChange(subjects.ChangeCancel)},
		{"POST", "/tasks/{id}/pause", "", g.onTaskChange(subjects.ChangePause)},
		{"POST", "/tasks/{id}/resume", "", g.onTaskChange(subjects.ChangeResume)},
		{"GET", "/sessions", "", g.read(g.onSessions)},
		{"GET", "/search", "q", g.read(g.onSearch)},
		{"GET", "/sessions/{id}", "", g.read(g.onSession)},
		{"GET", "/sessions/{id}/turns", "before limit", g.read(g.onArchivedTurns)},
		{"PATCH", "/sessions/{id}", "", changeBy(g, lookupTimeout, g.onSessionPatch)},
		{"DELETE", "/sessions/{id}", "", g.onSessionChange(subjects.SessionDelete)},
		{"GET", "/sessions/{id}/export", "format", g.onSessionExport},
		{"POST", "/sessions/{id}/branch", "", changeBy(g, lookupTimeout, g.onSessionBranch)},
		{"POST", "/sessions/{id}/compact", "", g.onSessionChange(subjects.SessionCompact)},
		{"GET", "/approvals", "all", g.respond(brokerTimeout, g.onApprovals)},
		{"POST", "/approvals/{id}", "", changeBy(g, brokerTimeout, g.onDecision)},
		{"GET", "/approvals/rules", "", g.respond(brokerTimeout, g.onRules)},
		{"DELETE", "/approvals/rules/{id}", "", g.change(brokerTimeout, g.onRevoke)},
		{"GET", "/changes", "id query session limit", g.respond(undoTimeout, g.onChanges)},
		{"POST", "/changes/undo", "", changeBy(g, undoTimeout, g.onUndo)},
		{
			"GET", "/memory", "kind state trust tag from text limit after whole",
			g.respond(memoryTimeout, g.onMemories),
		},
		{"POST", "/memory", "", changeBy(g, noTimeout, g.onRemember)},
		{"GET", "/memory/search", "q max kind whole fresh all", g.respond(memoryTimeout, g.onRecall)},
		{"GET", "/memory/graph", "q limit", g.respond(memoryTimeout, g.onGraph)},
		{"GET", "/memory/status", "", g.respond(memoryTimeout, g.onMemoryStatus)},
		{"GET", "/memory/export", "", g.onExport},
		{"POST", "/memory/import", "trusted", g.onImport},
		{"POST", "/memory/forget", "", changeBy(g, memoryTimeout, g.onForget)},
		{"GET", "/memory/{id}", "", g.respond(memoryTimeout, g.onMemory)},
		{"PATCH", "/memory/{id}", "", changeBy(g, memoryTimeout, g.onEdit)},
		{"DELETE", "/memory/{id}", "", g.change(memoryTimeout, g.onForgetOne)},
		{"POST", "/memory/{id}/pin", "", g.onMark("pin", "pinned")},
		{"DELETE", "/memory/{id}/pin", "", g.onMark("unpin", "unpinned")},
		{"POST", "/memory/{id}/accept", "", g.onMark("accept", "accepted")},
		{"POST", "/memory/{id}/reject", "", g.onMark("reject", "rejected")},
		{"GET", "/sessions/{id}/context", "", g.read(g.onContext)},
		{"GET", "/agents", "", g.read(g.onAgents)},
		{"GET", "/models", "", g.read(g.onModels)},
		{"POST", "/models/{name}/pull", "", g.change(lookupTimeout, g.onPull)},
		{"DELETE", "/models/{name}/pull", "", g.change(lookupTimeout, g.onPullStop)},
		{"GET", "/machines", "", g.read(g.onMachines)},
		{"GET", "/doctor", "", g.respond(doctorTimeout, g.onDoctor)},
		{"GET", "/audit", "", g.read(g.onAuditStatus)},
		{"GET", "/metrics", "", g.onMetrics},
		{"GET", "/settings", "", g.read(g.onSettings)},
		{"PUT", "/settings/{name}", "", changeBy(g, settingTimeout, g.onSettingChange)},
		{"GET", "/events", "query session subject after deltas respondent_b", g.onEvents},
		{"POST", "/mcp", "", g.onMCP},
		{"GET", "/v1/models", anyParams, g.onModelNames},
		{"GET", "/v1/models/{id}", anyParams, g.onModelName},
		{"POST", "/v1/chat/completions", "", g.onCompletion},
		{"POST", "/v1/responses", "", g.onResponse},
		{"POST", "/v1/embeddings", "", g.onEmbeddings},
		{"GET", "/events/history", "query limit", g.read(g.onHistory)},
		{"GET", "/openapi.yaml", "", g.onOpenAPI},
	}
}

// handler returns the API, and the profiles when they are on, behind [Gateway.guardRequests]. Requests without a route
// get 404 or 405 as JSON.
func (g *Gateway) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range slices.Concat(g.routes(), g.profileRoutes()) {
		mux.HandleFunc(rt.pattern(), func(w http.ResponseWriter, r *http.Request) { g.serveRoute(rt, w, r) })
	}
	mux.HandleFunc("GET /page/{file...}", func(w http.ResponseWriter, r *http.Request) {
		g.serveRoute(route{"GET", "/page/", anyParams, g.onPageFile}, w, r)
	})
	return g.guardRequests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if client := clientOf(r); client != nil {
			if pattern != "" && !client.mayUseRoute(pattern) {
				g.writeProblem(w, r, errClientRoute)
				return
			}
			leave, err := g.admitRequest(client, r)
			if err != nil {
				w.Header().Set("Connection", "close") // the body is not read
				g.writeProblem(w, r, err)
				return
			}
			defer leave()
		}
		if (pattern != "" || clientOf(r) == nil) && g.isPageRequest(r) {
			g.writePageFile(w, r, "index.html") // its script shows the view of the address
			return
		}
		if pattern == "" {
			g.writeProblem(w, r, g.explainUnrouted(mux, w, r))
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// explainUnrouted returns the problem for a request without a route: 404, or 405 when the path has other methods, which
// it writes to the header Allow. A client that may use none of these methods gets errClientRoute.
func (g *Gateway) explainUnrouted(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	denied := false
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		other := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		_, pattern := mux.Handler(other)
		switch client := clientOf(r); {
		case pattern == "":
		case client != nil && !client.mayUseRoute(pattern):
			denied = true
		default:
			allowed = append(allowed, m)
		}
	}
	switch {
	case len(allowed) == 0 && denied:
		return errClientRoute
	case len(allowed) == 0:
		return notFoundf("not found; /openapi.yaml lists the routes")
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problemf(http.StatusMethodNotAllowed, codeMethod, "method not allowed; use %s",
		strings.Join(allowed, " or "))
}

// serveRoute calls the handler of rt and writes the problem it returns. It rejects parameters that rt does not have,
// and a body with any method but POST, PUT and PATCH. A panic is logged, and the connection is aborted.
func (g *Gateway) serveRoute(rt route, w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			g.out.LogError(fmt.Errorf("panic in %s %s: %v\n%s", rt.method, rt.path, p, debug.Stack()))
			panic(http.ErrAbortHandler) // part of the response may be sent: the client must see that it is incomplete
		}
	}()
	if rt.method != http.MethodPost && rt.method != http.MethodPut && rt.method != http.MethodPatch &&
		r.ContentLength != 0 {
		g.writeProblem(w, r, malformedf("%s takes no body", rt.method))
		return
	}
	r, span := g.startSpan(rt, r)
	err := cmp.Or(rt.checkID(r), rt.checkParams(r))
	if err == nil {
		err = rt.handle(w, r)
	}
	span.End(problemFault(err))
	if err != nil {
		g.writeProblem(w, r, err)
	}
}

// startSpan starts the span of a request that may change something, such as a question. It continues the trace that the
// client names. Requests that read have none: the page sends many.
func (g *Gateway) startSpan(rt route, r *http.Request) (*http.Request, *telemetry.Span) {
	ctx := telemetry.WithScope(r.Context(), g.scope)
	if rt.method == http.MethodGet {
		return r.WithContext(ctx), nil
	}
	parent := r.Header.Get(subjects.HeaderTrace)
	if !actor.ValidTrace(parent) {
		parent = ""
	}
	ctx, span := telemetry.StartRemote(ctx, parent, rt.method+" "+rt.path, telemetry.KindServer,
		telemetry.String(telemetry.HTTPMethod, rt.method), telemetry.String(telemetry.HTTPRoute, rt.path))
	return r.WithContext(ctx), span
}

// problemFault returns the fault of a problem, and any other error as it is.
func problemFault(err error) error {
	if p := (*problem)(nil); errors.As(err, &p) {
		return p.Fault
	}
	return err
}

// problem is an error response.
type problem struct {
	status int
	*ids
	Fault *subjects.Fault `json:"error"`
}

func (p *problem) Error() string { return p.Fault.Error() }

// errInternal is the problem of an error whose text may contain details of the system.
var errInternal = problemf(http.StatusInternalServerError, subjects.CodeInternal, "internal error; see the log of "+
	"the gateway")

func problemf(status int, code, format string, a ...any) *problem {
	return &problem{status: status, Fault: subjects.Faultf(code, format, a...)}
}

// The functions below are [problemf] for a status and its usual code.

func malformedf(format string, a ...any) *problem {
	return problemf(http.StatusBadRequest, subjects.CodeMalformed, format, a...)
}

func unsupportedf(format string, a ...any) *problem {
	return problemf(http.StatusBadRequest, subjects.CodeUnsupported, format, a...)
}

func tooLargef(format string, a ...any) *problem {
	return problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, format, a...)
}

func unavailablef(format string, a ...any) *problem {
	return problemf(http.StatusServiceUnavailable, subjects.CodeUnavailable, format, a...)
}

func notFoundf(format string, a ...any) *problem {
	return problemf(http.StatusNotFound, codeNotFound, format, a...)
}

func conflictf(format string, a ...any) *problem {
	return problemf(http.StatusConflict, codeConflict, format, a...)
}

func deniedf(format string, a ...any) *problem {
	return problemf(http.StatusForbidden, subjects.CodeDenied, format, a...)
}

// ids identify the question of a response, with links to its answer.
type ids struct {
	QueryID   string `json:"query_id"`
	SessionID string `json:"session_id"`
	State     string `json:"state,omitempty"`
	Later     *links `json:"later,omitempty"`
}

// links are the paths under which an answer appears.
type links struct {
	Answer  string `json:"answer"`
	Events  string `json:"events"`
	Session string `json:"session"`
	Task    string `json:"task,omitempty"` // only of a question for the orchestrator
}

// statusOf maps codes of bus faults to HTTP statuses. A code that is missing here is an internal error.
var statusOf = map[string]int{
	subjects.CodeMalformed: http.StatusBadRequest, subjects.CodeTooLarge: http.StatusRequestEntityTooLarge,
	subjects.CodeCodec: http.StatusUnsupportedMediaType, subjects.CodeBusy: http.StatusTooManyRequests,
	subjects.CodeTimeout: http.StatusGatewayTimeout, subjects.CodeUnavailable: http.StatusServiceUnavailable,
	subjects.CodeDenied: http.StatusForbidden, subjects.CodeFull: http.StatusServiceUnavailable,
	subjects.CodeNoAudit: http.StatusServiceUnavailable, subjects.CodeUnrecorded: http.StatusServiceUnavailable,
	subjects.CodeExpired: http.StatusGatewayTimeout,
}

// toProblem returns the problem of an error, nil for one whose text may contain details of the system.
func toProblem(err error) *problem {
	var p *problem
	var f *subjects.Fault
	switch {
	case errors.As(err, &p):
	case errors.Is(err, errRevoked):
		p = errUnauthorized
	case errors.Is(err, errClosing):
		p = unavailablef("the gateway is stopping; retry in a moment")
	case errors.As(err, &f) && f != nil && statusOf[f.Code] != 0:
		p = &problem{status: statusOf[f.Code], Fault: &subjects.Fault{Code: f.Code, Text: f.Text}}
	}
	return p
}

// hideError logs an error and returns the problem that stands for it.
func (g *Gateway) hideError(err error) *problem {
	g.out.LogError(err)
	return errInternal
}

// writeProblem writes err as an error response. An error that is neither a problem nor a fault with a known code is
// logged, and the client gets only the code internal: its text may contain details of the system. Such an error of a
// client that has disconnected is ignored. Nothing of the response may have been written before.
func (g *Gateway) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := toProblem(err)
	switch {
	case errors.Is(context.Cause(r.Context()), errRevoked):
		p = errUnauthorized
	case p != nil:
	case r.Context().Err() != nil:
		return // the client disconnected
	default:
		p = g.hideError(fmt.Errorf("handling %s %s: %w", r.Method, r.URL.Path, err))
	}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="conclave"`)
		if g.isBrowser(r) {
			g.writeLoginPage(w)
			return
		}
	}
	if p.status == http.StatusTooManyRequests || p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	if isOpenAIPath(r) {
		g.writeJSON(w, p.status, p.toOpenAI())
		return
	}
	g.writeJSON(w, p.status, p)
}

// writeJSON writes v as the JSON body of a response with status. A value that cannot be encoded is logged and becomes
// 500; a failed write is ignored, because the client is gone. The write timeout is three times the configured one.
func (g *Gateway) writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		g.out.LogError(fmt.Errorf("encoding a response: %w", err))
		status, data = http.StatusInternalServerError,
			[]byte(`{"error":{"code":"internal","text":"internal error; see the log of the gateway"}}`)
	}
	// Longer than for an event: a response may be large.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(3 * g.cfg.WriteTimeout))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// readLimited returns a body of at most limit bytes, whose media type is one of accepted.
func (g *Gateway) readLimited(w http.ResponseWriter, r *http.Request, limit int64, accepted ...string) ([]byte, error) {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || !isText(types[0], accepted) || r.Header.Get("Content-Encoding") != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, subjects.CodeCodec, "unsupported content type; send "+
			"Content-Type: %s without Content-Encoding", accepted[0])
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLargef("body too large; at most %d KB", limit>>10)
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, malformedf("incomplete body, or timeout")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it is for the body only
	return data, nil
}

// readBody decodes one JSON object strictly into a pointer. It rejects a body longer than maxBody, one that is
// incomplete after bodyTimeout, unknown fields, an encoded body, and any content type but JSON: a form on another
// site's page can send the others without a preflight request.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, into any) error {
	data, err := g.readLimited(w, r, maxBody, subjects.TypeJSON)
	if err != nil {
		return err
	}
	if err := strict.DecodeJSON(data, into); err != nil {
		return malformedf("%v", err)
	}
	return nil
}

// isText reports whether contentType is one of the media types accepted, in UTF-8 when it names a charset. Other
// parameters make it false.
func isText(contentType string, accepted []string) bool {
	base, params, err := mime.ParseMediaType(contentType)
	if err != nil || !slices.Contains(accepted, base) {
		return false
	}
	charset, named := params["charset"]
	return len(params) == 0 || len(params) == 1 && named && strings.EqualFold(charset, "utf-8")
}

// checkParams checks the query string strictly: it rejects names that are not among rt.params, and repeated ones, so a
// bearer token in the query string is rejected.
func (rt route) checkParams(r *http.Request) error {
	if rt.params == anyParams {
		return nil
	}
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return malformedf("malformed query string")
	}
	names := strings.Fields(rt.params)
	for name, values := range v {
		if !slices.Contains(names, name) {
			if len(names) == 0 {
				return malformedf("unknown parameter %q; there are no parameters", text.Clip(name, 60))
			}
			return malformedf("unknown parameter %q; the parameters are %s", text.Clip(name, 60), strings.Join(names,
				", "))
		}
		if len(values) != 1 {
			return malformedf("parameter %s is given more than once", name)
		}
	}
	return nil
}

// checkID rejects an id that is not a subject token: ids become parts of subjects and keys. name is used in the error.
func checkID(name, id string) error {
	if subjects.CheckToken(id) != nil {
		return malformedf("%s: letters, digits, - and _ only, 1 to %d of them", name, subjects.MaxToken)
	}
	return nil
}

// checkID rejects a request whose path has an invalid id.
func (rt route) checkID(r *http.Request) error {
	if !strings.Contains(rt.path, "{id}") || rt.params == anyParams {
		return nil
	}
	return checkID("the id in the path", r.PathValue("id"))
}

// withTimeout returns a context that ends with ctx, after d with the cause errTimeout, and when the gateway stops with
// the cause errClosing. The caller must call the returned function.
func (g *Gateway) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.life, func() { end(errClosing) })
	ctx, cancel := context.WithTimeoutCause(ctx, d, errTimeout)
	return ctx, func() {
		stop()
		cancel()
		end(nil)
	}
}

// explainEnd returns the error of a request with the context ctx as a problem where ctx or the connection to the bus is
// the reason: 504 after the timeout, 503 while not connected, and the cause of ctx when it has ended otherwise. A
// problem and any other error are returned as they are.
func (g *Gateway) explainEnd(ctx context.Context, err error) error {
	p, end := (*problem)(nil), context.Cause(ctx)
	switch {
	case err == nil || errors.As(err, &p):
	case errors.Is(end, errTimeout):
		return problemf(http.StatusGatewayTimeout, subjects.CodeTimeout, "timeout: no complete reply in time")
	case end != nil:
		return end
	case !g.link.IsConnected():
		return unavailablef("not connected to the bus; reconnecting")
	}
	return err
}

// errTimeout is the cause of a context whose time is up.
var errTimeout = errors.New("timeout")

// acquireSlot takes a slot and returns its release function. It does not wait: when all slots are taken it returns a
// busy problem, in which what names the holders.
func acquireSlot(slots chan struct{}, what string) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, problemf(http.StatusTooManyRequests, subjects.CodeBusy, "busy: %d %s already; retry in a moment",
			cap(slots), what)
	}
}
