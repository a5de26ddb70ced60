package gateway

import (
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
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of a request.
const (
	maxHeader          = 16 << 10
	maxBody            = 256 << 10
	defaultBodyTimeout = 10 * time.Second // for a body to come
)

// Codes that only HTTP needs; the others are those of the bus.
const (
	codeUnauthorized = "unauthorized"
	codeNotFound     = "not_found"
	codeMethod       = "wrong_method"
	codeConflict     = "conflict"
)

// handler handles one request. What it returns is told to the client: see [Gateway.fail].
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one line of the API.
type route struct {
	method, path string
	handle       handler
}

// routes are the table of contents of the API. openapi.yaml describes the same.
func (g *Gateway) routes() []route {
	return []route{
		{"GET", "/health", g.onHealth},
		{"POST", "/query", g.onQuery},
		{"GET", "/queries/{id}", g.onLookUp},
		{"DELETE", "/queries/{id}", g.onCancel},
		{"POST", "/feedback", g.onFeedback},
		{"GET", "/sessions", g.onSessions},
		{"GET", "/sessions/{id}", g.onSession},
		{"GET", "/approvals", g.onApprovals},
		{"POST", "/approvals/{id}", g.onDecision},
		{"GET", "/approvals/rules", g.onRules},
		{"DELETE", "/approvals/rules/{id}", g.onRevoke},
		{"GET", "/memory", g.onMemories},
		{"POST", "/memory", g.onRemember},
		{"GET", "/memory/search", g.onRecall},
		{"GET", "/memory/graph", g.onGraph},
		{"GET", "/memory/status", g.onMemoryStatus},
		{"GET", "/memory/export", g.onExport},
		{"POST", "/memory/import", g.onImport},
		{"POST", "/memory/forget", g.onForget},
		{"GET", "/memory/{id}", g.onMemory},
		{"PATCH", "/memory/{id}", g.onEdit},
		{"DELETE", "/memory/{id}", g.onForgetOne},
		{"POST", "/memory/{id}/pin", g.onMark("pin", "pinned")},
		{"DELETE", "/memory/{id}/pin", g.onMark("unpin", "unpinned")},
		{"POST", "/memory/{id}/accept", g.onMark("accept", "accepted")},
		{"POST", "/memory/{id}/reject", g.onMark("reject", "rejected")},
		{"GET", "/events", g.onEvents},
		{"GET", "/openapi.yaml", g.onOpenAPI},
	}
}

// handler is the whole API behind its guard.
func (g *Gateway) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range g.routes() {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { g.run(rt, w, r) })
	}
	return g.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			g.fail(w, r, g.unrouted(mux, w, r))
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// unrouted says why nothing answers here: no such place, or another method.
func (g *Gateway) unrouted(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		other := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := mux.Handler(other); pattern != "" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return problemf(http.StatusNotFound, codeNotFound, "there is nothing here; /openapi.yaml lists what there is")
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problemf(http.StatusMethodNotAllowed, codeMethod, "this is asked with %s", strings.Join(allowed, " or "))
}

// run calls a handler, and answers for it when it fails or panics.
func (g *Gateway) run(rt route, w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			g.out.LogError(fmt.Errorf("panic in %s %s: %v\n%s", rt.method, rt.path, p, debug.Stack()))
			panic(http.ErrAbortHandler) // something may have been sent: the client must see that it is not whole
		}
	}()
	if rt.method != http.MethodPost && rt.method != http.MethodPatch && r.ContentLength != 0 {
		g.fail(w, r, problemf(http.StatusBadRequest, subjects.CodeMalformed, "%s takes no body", rt.method))
		return
	}
	if err := rt.handle(w, r); err != nil {
		g.fail(w, r, err)
	}
}

// problem is an answer that says what went wrong.
type problem struct {
	status int
	Fault  *subjects.Fault `json:"error"`
	IDs    *ids            `json:"-"`
}

func (p *problem) Error() string { return p.Fault.Error() }

func problemf(status int, code, format string, a ...any) *problem {
	return &problem{status: status, Fault: subjects.Faultf(code, format, a...)}
}

// ids say which question an answer is about, and where to look for the rest later.
type ids struct {
	QueryID   string `json:"query_id"`
	SessionID string `json:"session_id"`
	State     string `json:"state,omitempty"`
	Later     *links `json:"later,omitempty"`
}

// links is where an answer will be found.
type links struct {
	Answer  string `json:"answer"`
	Events  string `json:"events"`
	Session string `json:"session"`
}

// statusOf is the status for a fault of the bus.
var statusOf = map[string]int{
	subjects.CodeMalformed: http.StatusBadRequest, subjects.CodeTooLarge: http.StatusRequestEntityTooLarge,
	subjects.CodeCodec: http.StatusUnsupportedMediaType, subjects.CodeBusy: http.StatusTooManyRequests,
	subjects.CodeTimeout: http.StatusGatewayTimeout, subjects.CodeUnavailable: http.StatusServiceUnavailable,
	subjects.CodeDenied: http.StatusForbidden,
}

// fail answers with what went wrong. An error that is nobody's business but ours is logged, and the client is told only
// that there was one.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	var p *problem
	var f *subjects.Fault
	switch {
	case errors.As(err, &p):
	case errors.Is(err, errClosing):
		p = problemf(http.StatusServiceUnavailable, subjects.CodeUnavailable, "the gateway is stopping; ask again in a moment")
	case errors.As(err, &f) && f != nil && statusOf[f.Code] != 0:
		p = &problem{status: statusOf[f.Code], Fault: &subjects.Fault{Code: f.Code, Text: f.Text}}
	default:
		if r.Context().Err() != nil {
			return // nobody is there
		}
		g.out.LogError(fmt.Errorf("answering %s %s: %w", r.Method, r.URL.Path, err))
		p = problemf(http.StatusInternalServerError, subjects.CodeInternal, "the gateway failed; its log says why")
	}
	if p.status == http.StatusTooManyRequests || p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	body := struct {
		ids
		Fault *subjects.Fault `json:"error"`
	}{Fault: p.Fault}
	if p.IDs == nil {
		g.writeJSON(w, p.status, p)
		return
	}
	body.ids = *p.IDs
	g.writeJSON(w, p.status, body)
}

// writeJSON answers with JSON.
func (g *Gateway) writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		g.out.LogError(fmt.Errorf("encoding an answer: %w", err))
		status, data = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","text":"the gateway failed; its log says why"}}`)
	}
	// Longer than for an event: an answer may be large, and there is one of it.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(3 * g.cfg.WriteTimeout))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// readBody reads one JSON object strictly. The content type is asked for: without it a form on any page could send one.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, into any) error {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || !isJSON(types[0]) || r.Header.Get("Content-Encoding") != "" {
		return problemf(http.StatusUnsupportedMediaType, subjects.CodeCodec, "send the header Content-Type: application/json, and the body as it is")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil { // from now on only its end is waited for
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return problemf(http.StatusRequestEntityTooLarge, subjects.CodeTooLarge, "at most %d KB", maxBody>>10)
	case err != nil:
		w.Header().Set("Connection", "close")
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "the body did not come whole, or not in %s", g.bodyTimeout)
	}
	if err := actor.DecodeStrict(data, into); err != nil {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "%v", err)
	}
	return nil
}

func isJSON(contentType string) bool {
	base, params, err := mime.ParseMediaType(contentType)
	if err != nil || base != subjects.TypeJSON {
		return false
	}
	for k, v := range params {
		if k != "charset" || !strings.EqualFold(v, "utf-8") {
			return false
		}
	}
	return true
}

// parseParams reads the query string strictly: an unknown or doubled name is an error, and so is a token, which has no
// business there.
func parseParams(r *http.Request, names ...string) (url.Values, error) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "the part after ? could not be read")
	}
	for name, values := range v {
		if !slices.Contains(names, name) {
			if len(names) == 0 {
				return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "unknown parameter %q; there are none here", text.Clip(name, 60))
			}
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "unknown parameter %q; known are %s", text.Clip(name, 60), strings.Join(names, ", "))
		}
		if len(values) != 1 {
			return nil, problemf(http.StatusBadRequest, subjects.CodeMalformed, "%s stands there twice", name)
		}
	}
	return v, nil
}

// checkID reports what is wrong with an id that somebody chose: it will stand in subjects and keys.
func checkID(name, id string) error {
	if subjects.CheckToken(id) != nil {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "%s: letters, digits, - and _ only, 1 to %d of them", name, subjects.MaxToken)
	}
	return nil
}

// withTimeout is a context for a wait: it ends with the client, after a time, and when the gateway is about to close.
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

// errTimeout is why a wait ended that took too long.
var errTimeout = errors.New("it took too long")

// acquireSlot takes one of a bounded number of places, or says that there is none.
func acquireSlot(room chan struct{}, what string) (leave func(), err error) {
	select {
	case room <- struct{}{}:
		return func() { <-room }, nil
	default:
		return nil, problemf(http.StatusTooManyRequests, subjects.CodeBusy, "%d %s already; try again in a moment", cap(room), what)
	}
}
