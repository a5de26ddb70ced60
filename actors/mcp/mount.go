package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Pauses before a server that ended is started again: the first one, then doubling to the longest.
const (
	minPause = time.Second
	maxPause = 2 * time.Minute
)

// listPause is the shortest time between two lists of tools, whatever the server says about changes.
const listPause = time.Second

// pingTimeout is how long a server may take to answer a ping.
const pingTimeout = 5 * time.Second

// reportPause is the shortest time between two reports of tools that are not served: a server can change its list all
// the time.
const reportPause = 10 * time.Minute

// maxResult bounds the text of a result, in bytes.
const maxResult = 256 << 10

// maxCalls bounds the calls of a server at a time.
const maxCalls = 8

// Mount is an actor that serves the tools of one MCP server to the broker, with the key of the server's own principal:
// the NATS server lets it answer for these tools and no others. It starts the server, and starts it again when it ends.
//
// It listens on tool.request.<tool>, which only the broker reaches, and speaks on tool.schema.<tool> and
// tool.output.<tool>.<call>.
type Mount struct {
	options Options
	tools   []string // that the user added, by mounted name
	slots   chan struct{}
	changed chan struct{} // the server says that its tools changed

	stop       context.CancelFunc
	background sync.WaitGroup // calls, checks and the connection

	mu       sync.Mutex
	session  *Session // nil = not connected
	defs     map[string]Definition
	failure  string        // why it is not connected
	reported time.Time     // when tools that are not served were logged last
	ready    chan struct{} // closed when it is connected, or failed to connect
	running  map[*runningCall]bool
	waiting  map[string]waitingCall // for the answer of the user, by form
}

// NewMount returns the actor of a server. tools are those of its principal: no others are served, whatever the server
// lists.
func NewMount(o Options, tools []string) *Mount {
	return &Mount{
		options: o, tools: tools, slots: make(chan struct{}, maxCalls), changed: make(chan struct{}, 1),
		ready:   make(chan struct{}),
		running: map[*runningCall]bool{}, waiting: map[string]waitingCall{},
	}
}

// Name implements [actor.Actor].
func (m *Mount) Name() string { return subjects.MCPPrincipal(m.options.Name) }

// Routes implements [actor.Actor].
func (m *Mount) Routes() []actor.Route {
	set := make(actor.Toolset, 0, len(m.tools))
	for _, name := range m.tools {
		set = append(set, actor.Tool{
			Schema: subjects.ToolSchema{Name: name},
			Run: func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult,
				error,
			) {
				return m.call(ctx, name, in, out)
			},
		})
	}
	return set.Routes()
}

// Describe implements [actor.Describer]: a broker that starts later reads the definitions.
func (m *Mount) Describe() map[string]string { return m.toolset().Definitions() }

// toolset returns the tools with their current definitions, none while the server is not connected.
func (m *Mount) toolset() (set actor.Toolset) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return nil
	}
	for _, name := range m.tools {
		if d, ok := m.defs[name]; ok {
			set = append(set, actor.Tool{Schema: d.Schema})
		}
	}
	return set
}

// Start implements [actor.Starter]. It does not wait for the server, which may take long or never start.
func (m *Mount) Start(ctx context.Context, out actor.Out) error {
	ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.background.Go(func() { m.keepConnected(ctx, out) })
	return nil
}

// Close implements [actor.Closer]: it cancels the calls, ends the connection and waits for every goroutine of m.
func (m *Mount) Close(context.Context) error {
	if m.stop == nil {
		return nil
	}
	m.stop()
	m.mu.Lock()
	for _, w := range m.waiting {
		w.expiry.Stop()
	}
	for rc := range m.running {
		rc.cancel()
	}
	m.mu.Unlock()
	m.background.Wait()
	return nil
}

// keepConnected connects to the server until ctx ends, with a pause after each failure.
func (m *Mount) keepConnected(ctx context.Context, out actor.Out) {
	o := m.options
	o.Changed = func() {
		select {
		case m.changed <- struct{}{}:
		default: // a change is pending
		}
	}
	o.Refused, o.Elicit = m.reportRefusal, m.elicit
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		s, err := Connect(ctx, o)
		if err == nil {
			err = m.serve(ctx, out, s)
			s.Close()
		}
		if ctx.Err() != nil {
			return
		}
		m.setFailure(err.Error())
		out.LogError(fmt.Errorf("the MCP server %s is not available, and is started again after a pause: %w", o.Name,
			err))
		if time.Since(began) > maxPause {
			pause = minPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// serve announces the tools of a connected server, at the start and after each change, until the connection or ctx
// ends.
func (m *Mount) serve(ctx context.Context, out actor.Out, s *Session) error {
	for {
		if err := m.announce(ctx, out, s); err != nil {
			return err
		}
		pause := time.NewTimer(listPause)
		select {
		case <-pause.C:
		case <-s.Ended():
		case <-ctx.Done():
		}
		pause.Stop()
		select {
		case <-m.changed:
		case <-s.Ended():
			m.drop(s)
			return errors.New(s.Why())
		case <-ctx.Done():
			m.drop(s)
			return ctx.Err()
		}
	}
}

// announce lists the tools of the server and publishes their definitions. The broker accepts a definition that it has
// accepted before, and has the user decide about any other.
func (m *Mount) announce(ctx context.Context, out actor.Out, s *Session) error {
	listing, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	listed, err := s.Tools(listing)
	if err != nil {
		m.drop(s)
		return fmt.Errorf("listing the tools of the MCP server %s: %w", m.options.Name, err)
	}
	defs, rejected := Define(m.options.Name, listed)
	var faults []error
	for _, r := range rejected[:min(len(rejected), 10)] {
		faults = append(faults, fmt.Errorf("the MCP server %s has a tool %q that is not mounted: %s", m.options.Name,
			r.Tool, r.Reason))
	}
	byName := map[string]Definition{}
	var added []string
	for _, d := range defs {
		byName[d.Schema.Name] = d
		if !slices.Contains(m.tools, d.Schema.Name) {
			added = append(added, d.Tool)
		}
	}
	if len(added) > 0 {
		faults = append(faults, fmt.Errorf("the MCP server %s has tools that were not added, so they are not served: "+
			"%s; see conclave mcp add", m.options.Name, text.OneLine(strings.Join(added, ", "), 300)))
	}
	m.mu.Lock()
	if len(faults) > 0 && time.Since(m.reported) > reportPause {
		m.reported = time.Now()
		for _, f := range faults {
			out.LogError(f)
		}
	}
	if m.session != s {
		m.session = s
		closeOnce(m.ready)
	}
	m.defs, m.failure = byName, ""
	m.mu.Unlock()
	return m.toolset().Announce(ctx, out)
}

// closeOnce closes c unless it is closed. The caller must hold the lock of c.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// setFailure records why the server is not connected; calls that wait for it fail.
func (m *Mount) setFailure(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.failure = nil, why
	closeOnce(m.ready)
}

// drop forgets a connection. Calls wait until the failure is recorded, see setFailure, and fail then.
func (m *Mount) drop(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == s {
		m.session, m.ready = nil, make(chan struct{})
	}
}

// connected returns the connection and the definition of a tool. It waits for the first attempt to connect.
func (m *Mount) connected(ctx context.Context, name string) (*Session, Definition, error) {
	m.mu.Lock()
	ready := m.ready
	m.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.defs[name]
	switch {
	case m.session == nil && m.failure != "":
		return nil, d, subjects.Faultf(subjects.CodeUnavailable, "the MCP server %s is not available; see conclave "+
			"mcp test %[1]s", m.options.Name)
	case m.session == nil:
		return nil, d, subjects.Faultf(subjects.CodeUnavailable, "the MCP server %s did not start in time",
			m.options.Name)
	case !ok:
		return nil, d, subjects.Faultf(subjects.CodeUnavailable, "the MCP server %s no longer has this tool; see "+
			"conclave mcp test %[1]s", m.options.Name)
	}
	return m.session, d, nil
}

// call runs one call at the server.
func (m *Mount) call(ctx context.Context, name string, in actor.Msg[subjects.ToolOrder],
	out actor.Out,
) (subjects.ToolResult, error) {
	if in.Body.Mode == subjects.ModePreview {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTool, "%s has no preview", name)
	}
	if m.options.Server.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.options.Server.Timeout)
		defer cancel()
	}
	if in.Body.Mode == subjects.ModeAnswer {
		return m.answer(ctx, name, in)
	}
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeBusy, "the MCP server %s has %d calls running",
			m.options.Name, maxCalls)
	}
	free := func() { <-m.slots }
	s, d, err := m.connected(ctx, name)
	if err != nil {
		free()
		return subjects.ToolResult{}, err
	}
	return m.awaitCall(ctx, s, m.startCall(ctx, s, d, in, out, free))
}

// callFault returns the fault of a failed call. A text of the server itself has the code of a tool's error, which the
// broker treats as untrusted.
func (m *Mount) callFault(ctx context.Context, s *Session, err error) *subjects.Fault {
	var rpc *jsonrpc.Error
	switch {
	case ctx.Err() != nil:
		return subjects.Faultf(subjects.CodeTimeout, "the MCP server %s did not answer in time", m.options.Name)
	case errors.Is(err, context.Canceled):
		return subjects.Faultf(subjects.CodeStopped, "the call at the MCP server %s was cancelled", m.options.Name)
	case errors.Is(err, sdk.ErrConnectionClosed), errors.Is(err, errFlood), !errors.As(err, &rpc):
		return subjects.Faultf(subjects.CodeUnavailable, "the connection to the MCP server %s ended during the call, "+
			"which may have run", m.options.Name)
	}
	return subjects.Faultf(subjects.CodeTool, "the MCP server %s reported: %s", m.options.Name,
		s.explainDenied(s.clean(err.Error(), 2000)))
}

// deniedFile matches the texts by which Node, Python, Go and Rust say that a file cannot be written or read.
var deniedFile = regexp.MustCompile(`\b(?:EROFS|EACCES|Errno 13|os error 13)\b|(?i:read-only file system)`)

// explainDenied adds to the error of a program in the sandbox that it may not write to a file which folders it may
// write to.
func (s *Session) explainDenied(t string) string {
	if s.program && deniedFile.MatchString(t) {
		t += fmt.Sprintf("; it can write to its working folder, which conclave mcp add %s prints, and to the folders "+
			"of --write: name a file in one of them with --env, or allow a folder with conclave mcp add %[1]s "+
			"--write FOLDER", s.name)
	}
	return t
}

// checkAlive ends a connection whose server does not answer a ping after a call timed out.
func (m *Mount) checkAlive(s *Session) {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	end := func() { m.drop(s); s.Close() }
	// a server that does not read blocks the write of the ping, which no context ends
	stop := context.AfterFunc(ctx, end)
	err := s.client.Ping(ctx, nil)
	if stop() && (err == nil || errors.As(err, new(*jsonrpc.Error))) { // newer protocols have no ping, and say so
		return
	}
	end()
}

// newRefusalOutput returns a function that shows a refused request of the server in the live output of a call.
func (m *Mount) newRefusalOutput(ctx context.Context, tool, call string, out actor.Out) func(what string) {
	topic, err := subjects.ToolRunOutput.With(tool, call)
	if err != nil {
		return func(string) {}
	}
	n := 0
	var mu sync.Mutex
	return func(what string) {
		mu.Lock()
		defer mu.Unlock()
		if n < 10 {
			// lossy by contract
			_ = actor.Emit(ctx, out, topic, subjects.ToolOutput{CallID: call, N: n, Text: "MCP server " +
				m.options.Name + ": " + what + "\n"})
			n++
		}
	}
}

// reportRefusal shows a refused request in every running call: the protocol does not say which one it belongs to.
func (m *Mount) reportRefusal(what string) {
	m.mu.Lock()
	running := slices.Collect(maps.Keys(m.running))
	m.mu.Unlock()
	for _, rc := range running {
		rc.showRefusal(what)
	}
}

// call calls a tool of the server. A result that reports an error is a [jsonrpc.Error]. A server that does not read
// blocks it until the connection ends.
func (s *Session) call(ctx context.Context, tool string, args json.RawMessage) (*sdk.CallToolResult, error) {
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	r, err := s.client.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
	switch {
	case err == nil && r == nil:
		return nil, sdk.ErrConnectionClosed
	case err == nil && r.IsError:
		return nil, &jsonrpc.Error{Message: resultText(r, s.redact)}
	}
	return r, err
}

// Call calls a tool of the server as it is, and returns the text of the result. The end of ctx ends the connection.
func (s *Session) Call(ctx context.Context, tool string, args json.RawMessage) (string, error) {
	defer context.AfterFunc(ctx, s.kill)()
	r, err := s.call(ctx, tool, args)
	if err != nil {
		return "", errors.New(s.explainDenied(s.clean(err.Error(), 500)))
	}
	return resultText(r, s.redact), nil
}

// resultText returns a result as text for the model, without what it must not read: control characters, data that is
// not text, and credentials, which redact replaces before the text is cut. What a result claims about itself, its
// author or its audience is text like any other.
func resultText(r *sdk.CallToolResult, redact func(string) string) string {
	var b strings.Builder
	if r.NeedsInput() {
		b.WriteString("The tool asked for more input, which an MCP server does not get.\n")
	}
	for _, c := range r.Content {
		if b.Len() > maxResult {
			break
		}
		switch c := c.(type) {
		case *sdk.TextContent:
			b.WriteString(c.Text)
		case *sdk.ImageContent:
			fmt.Fprintf(&b, "[an image of %d bytes, not shown]", len(c.Data))
		case *sdk.AudioContent:
			fmt.Fprintf(&b, "[sound of %d bytes, not shown]", len(c.Data))
		case *sdk.ResourceLink:
			fmt.Fprintf(&b, "[resource %s]", text.OneLine(c.URI, 300))
		case *sdk.EmbeddedResource:
			if c.Resource != nil && c.Resource.Text != "" {
				b.WriteString(c.Resource.Text)
			} else {
				b.WriteString("[a resource that is not text, not shown]")
			}
		}
		b.WriteString("\n")
	}
	if len(r.Content) == 0 && r.StructuredContent != nil {
		if data, err := json.Marshal(r.StructuredContent); err == nil {
			b.Write(data)
		}
	}
	s := strings.TrimRight(redact(cleanText(text.Cut(b.String(), 2*maxResult))), "\n")
	if len(s) > maxResult {
		s = text.Cut(s, maxResult) +
			fmt.Sprintf("\n[the rest is left out: a result of an MCP server has at most %d KB]", maxResult>>10)
	}
	if s == "" {
		s = "The tool returned nothing."
	}
	return s
}
