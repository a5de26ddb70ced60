package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/client"
	"conclave/subjects"
)

// newMCPHandler serves /mcp: questions, memory and states as tools of the Model Context Protocol. It keeps no session,
// so that it serves both generations of the protocol alike. A client gets only the tools that its principal may use.
func (g *Gateway) newMCPHandler() http.Handler {
	return mcp.NewStreamableHTTPHandler(g.newMCPServer, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxBody,
		DisableLocalhostProtection: true, // guardRequests has checked Host and origin
	})
}

// onMCP passes a request to the handler of the protocol. It rejects a batch, in which one request would be many calls.
func (g *Gateway) onMCP(w http.ResponseWriter, r *http.Request) error {
	data, err := g.readLimited(w, r, maxBody, subjects.TypeJSON)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		return unsupportedf("batches are not accepted: send one message in a request")
	}
	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	g.mcp.ServeHTTP(w, r)
	return nil
}

// mcpAsk and the types below are the arguments of the tools; their schemas are generated from them.
type mcpAsk struct {
	Question string `json:"question" jsonschema:"the question, in the user's language"`
	Session  string `json:"session_id,omitempty" jsonschema:"session to continue, of an earlier result; or a new one"`
	Mode     string `json:"mode,omitempty" jsonschema:"who answers: assistant (default), committee or task"`
}

type mcpAnswer struct {
	Answer    string   `json:"answer"`
	SessionID string   `json:"session_id"`
	QueryID   string   `json:"query_id"`
	Tools     []string `json:"tools,omitempty" jsonschema:"tools that were called"`
	Error     string   `json:"error,omitempty" jsonschema:"why the answer is incomplete"`
}

type mcpSearch struct {
	Query string `json:"query" jsonschema:"what to look for"`
	Max   int    `json:"max,omitempty" jsonschema:"most results, at most 20"`
}

type mcpMemory struct {
	ID         string  `json:"id"`
	Text       string  `json:"text"`
	Trust      string  `json:"trust,omitempty"`
	Similarity float64 `json:"similarity"`
}

type mcpMemories struct {
	Memories []mcpMemory `json:"memories"`
}

type mcpFact struct {
	Text string `json:"text" jsonschema:"the fact to remember"`
}

type mcpStored struct {
	ID     string `json:"id"`
	Action string `json:"action" jsonschema:"what memory did: added, merged, ..."`
}

type mcpSessions struct {
	Sessions []Session `json:"sessions"`
}

type mcpApprovals struct {
	Waiting []mcpApproval `json:"waiting"`
}

type mcpApproval struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

// newMCPServer returns a server with the tools that the principal of r may use. Decisions about calls are not among
// them: an approval is the user's own act.
func (g *Gateway) newMCPServer(r *http.Request) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "conclave", Version: g.Version}, &mcp.ServerOptions{
		Instructions: "Ask a local assistant with tools, memory and an audit log. A call that needs the user's " +
			"approval waits for it.",
	})
	caller := programOf(r)
	readOnly := &mcp.ToolAnnotations{ReadOnlyHint: true}
	addTool(g, s, r, &mcp.Tool{Name: "ask", Description: "Ask Conclave a question and wait for the answer."},
		g.cfg.QueryTimeout, func(ctx context.Context, call *mcp.CallToolRequest, in mcpAsk) (mcpAnswer, error) {
			release, err := g.acquireWaiting(r)
			if err != nil {
				return mcpAnswer{}, err
			}
			defer release()
			keys := r.Header.Values(headerKey)
			if v, ok := call.Params.Meta[headerKey]; ok {
				key, _ := v.(string)
				keys = append(keys, key)
			}
			return g.askForClient(ctx, caller, keys, in)
		})
	if caller.mayUse("search_memory") {
		addTool(g, s, r, &mcp.Tool{
			Name: "search_memory", Description: "Search the user's memory.",
			Annotations: readOnly,
		}, memoryTimeout, func(ctx context.Context, _ *mcp.CallToolRequest, in mcpSearch) (mcpMemories, error) {
			return g.searchForClient(ctx, caller, in)
		})
	}
	if caller.mayUse("add_memory") {
		addTool(g, s, r, &mcp.Tool{Name: "add_memory", Description: "Remember a fact. What a program adds counts as " +
			"untrusted content."}, memoryTimeout,
			func(ctx context.Context, _ *mcp.CallToolRequest, in mcpFact) (mcpStored, error) {
				return g.rememberForClient(ctx, caller, in)
			})
	}
	addTool(g, s, r, &mcp.Tool{Name: "list_sessions", Description: "List sessions, the latest first; a client sees " +
		"its own.", Annotations: readOnly}, lookupTimeout,
		func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (mcpSessions, error) {
			list, err := g.listSessions(ctx, caller)
			return mcpSessions{list}, err
		})
	if caller.mayUse("audit_status") { // the published head: no account but the auditor's reads the audit log
		addTool(g, s, r, &mcp.Tool{Name: "audit_status", Description: "The length and the head of the audit log, as " +
			"the auditor published them last; no contents.", Annotations: readOnly}, lookupTimeout,
			func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (AuditStatus, error) {
				return g.auditStatus(ctx)
			})
	}
	if caller.isUser {
		addTool(g, s, r, &mcp.Tool{Name: "approvals_status", Description: "List the calls that wait for the user's " +
			"decision, who decides in the page or with conclave approve.", Annotations: readOnly}, lookupTimeout,
			func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (mcpApprovals, error) {
				out := mcpApprovals{Waiting: []mcpApproval{}}
				list, err := g.client.Approvals(ctx, false)
				for _, a := range list.Approvals {
					out.Waiting = append(out.Waiting, mcpApproval{a.ID, a.Tool, a.Reason})
				}
				return out, err
			})
	}
	return s
}

// addTool adds a tool that runs with the context of the request r and a timeout. The context of the SDK ends neither
// with the credential nor, in older protocols, with the request.
func addTool[In, Out any](g *Gateway, s *mcp.Server, r *http.Request, t *mcp.Tool, timeout time.Duration,
	run func(context.Context, *mcp.CallToolRequest, In) (Out, error),
) {
	mcp.AddTool(s, t, func(_ context.Context, call *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		ctx, cancel := g.withTimeout(r.Context(), timeout)
		defer cancel()
		out, err := run(ctx, call, in)
		return nil, out, g.explainToClient(g.explainEnd(ctx, err))
	})
}

// explainToClient returns an error whose text a client may see, and logs every other one.
func (g *Gateway) explainToClient(err error) error {
	var f *subjects.Fault
	switch p := toProblem(err); {
	case err == nil:
		return nil
	case p != nil:
		return errors.New(p.Fault.Text)
	case errors.As(err, &f):
		return errors.New(f.Text)
	case errors.Is(err, context.Canceled):
		return errors.New("the request ended before there was a result")
	}
	return errors.New(g.hideError(err).Fault.Text)
}

// askForClient stores a question and waits for its answer. When ctx ends the question is cancelled, unless it has a
// key. keys are the values of headerKey.
func (g *Gateway) askForClient(ctx context.Context, caller *clientAccess, keys []string, in mcpAsk) (out mcpAnswer,
	err error,
) {
	q := Question{Query: in.Question, SessionID: in.Session, Mode: in.Mode}
	if err := q.setKeyedIDs(keys, caller, in); err != nil {
		return out, err
	}
	asked, err := g.askOnce(ctx, caller, &q, nil)
	if err != nil {
		return out, err
	}
	defer asked.leave()
	end, err := asked.wait(ctx, sink{})
	switch {
	case err != nil && q.key != "":
		return out, err
	case err != nil:
		reason := "the client disconnected"
		if errors.Is(err, errTimeout) {
			reason = "timeout"
		}
		g.cancelQuestion(ctx, asked.question, reason)
		return out, err
	case end.Dead != nil:
		return out, explainDeadLetter(end.Dead)
	}
	r := end.Response
	out = mcpAnswer{Answer: r.Answer, SessionID: q.SessionID, QueryID: q.QueryID}
	for _, c := range r.ToolCalls {
		if !slices.Contains(out.Tools, c.Tool) {
			out.Tools = append(out.Tools, c.Tool)
		}
	}
	if r.Error != nil {
		out.Error = r.Error.Text
		if strings.TrimSpace(r.Answer) == "" {
			return out, r.Error
		}
	}
	return out, nil
}

// searchForClient searches the user's memory.
func (g *Gateway) searchForClient(ctx context.Context, caller *clientAccess, in mcpSearch) (out mcpMemories,
	err error,
) {
	p, err := g.admit(g.out, caller, countCost(len(in.Query), 0), 0)
	if err != nil {
		return out, err
	}
	defer p.leave()
	out.Memories = []mcpMemory{}
	// the session names the client in the record of the read
	asked := client.Wrap(g.out.WithIDs(caller.scope+"memory", ""))
	found, err := asked.SearchMemory(ctx, subjects.MemoryQuery{Query: in.Query, Max: min(max(in.Max, 1), maxHits)})
	for _, h := range found.Hits {
		out.Memories = append(out.Memories, mcpMemory{
			h.Entry.ID, cmp.Or(h.Entry.Corpus, h.Segment),
			h.Entry.Provenance.Trust, h.Similarity,
		})
	}
	return out, explainMemory(err)
}

// rememberForClient stores a fact as untrusted content of the client.
func (g *Gateway) rememberForClient(ctx context.Context, caller *clientAccess, in mcpFact) (out mcpStored, err error) {
	p, err := g.admit(g.out, caller, factCost*countCost(len(in.Text), 0), 0)
	if err != nil {
		return out, err
	}
	defer p.leave()
	in.Text = strings.TrimSpace(in.Text)
	if in.Text == "" || len(in.Text) > maxFact {
		return out, malformedf("text: the fact to remember, at most %d KB", maxFact>>10)
	}
	fact, err := Fact{Text: in.Text}.entry()
	if err != nil {
		return out, err
	}
	// the session names the client
	one, _, err := client.Wrap(g.out.WithIDs(caller.scope+"memory", "")).AddMemory(ctx, fact, true)
	if err == nil && one.Action == actionRefused {
		err = conflictf("memory refused the fact: %s", one.Why)
	}
	return mcpStored{one.ID, one.Action}, explainMemory(err)
}

// listSessions lists the latest sessions, of a client only its own.
func (g *Gateway) listSessions(ctx context.Context, caller *clientAccess) ([]Session, error) {
	isOwn := func(s client.SessionSummary) bool {
		return s.Err == nil && (caller.isUser || strings.HasPrefix(s.ID, caller.scope))
	}
	found, _, err := g.client.Sessions(ctx, maxSessions, isOwn)
	list := []Session{}
	for _, s := range found {
		if isOwn(s) && len(list) < maxSessions {
			list = append(list, describeSession(s))
		}
	}
	return list, err
}
