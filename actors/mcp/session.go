package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/seal"
	"conclave/pkg/text"
)

// connectTimeout is how long a server may take to start and to list its tools.
const connectTimeout = time.Minute

// Options is how [Connect] reaches a server.
type Options struct {
	Name    string
	Server  Server
	Folder  string       // [Config].Folder
	Closed  []string     // folders that no program may see
	Secret  SecretLookup // of credentials in the settings
	Version string       // of this build, for the server
	Self    string       // file of this program, which forwards connections in the sandbox; "" = that of the process
	// Changed is called when the server says that its tools changed; nil = not at all. It must not block.
	Changed func()
	// Refused is called with each kind of request of the server that was refused; nil = not at all. It must not block.
	Refused func(what string)
	// Elicit has the user asked a question of the server; nil = each is declined. It may block.
	Elicit func(ctx context.Context, p *sdk.ElicitParams) *sdk.ElicitResult
}

// Session is a connection to a server. Everything that comes from it is untrusted.
type Session struct {
	name    string
	program bool // runs in the sandbox
	client  *sdk.ClientSession
	redact  func(string) string // replaces credentials
	hideURL func(string) string // replaces the URL of the server by its host
	kill    func()              // ends the process, or the requests over HTTP
	ended   chan struct{}       // closed when the connection is gone
	outcome func() error        // why it is gone, after ended; nil = not known
	once    sync.Once
}

// Connect starts a server, or reaches the one at its URL, and returns when it is initialized. The error names no
// credential's value.
func Connect(ctx context.Context, o Options) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, errors.New("the server did not answer in time"))
	defer cancel()
	s := &Session{name: o.Name, ended: make(chan struct{}), outcome: func() error {
		return nil
	}, hideURL: func(t string) string { return t }}
	t, err := s.newTransport(ctx, o)
	if err != nil {
		return nil, err
	}
	options := &sdk.ClientOptions{
		Capabilities:           &sdk.ClientCapabilities{}, // no roots, no sampling
		MultiRoundTrip:         &sdk.MultiRoundTripOptions{Disabled: o.Elicit == nil},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {},
	}
	if o.Elicit != nil {
		options.Capabilities.Elicitation = &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}}
		options.ElicitationHandler = func(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return o.Elicit(ctx, r.Params), nil
		}
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "conclave", Version: o.Version}, options)
	client.AddReceivingMiddleware(filterRequests(o))
	type connected struct {
		cs  *sdk.ClientSession
		err error
	}
	done := make(chan connected, 1) // a server that does not read blocks a write, which no context ends
	go func() {
		cs, err := client.Connect(ctx, t, nil)
		done <- connected{cs, err}
	}()
	select {
	case c := <-done:
		if c.err != nil {
			s.kill()
			return nil, s.explain(ctx, c.err)
		}
		s.client = c.cs
	case <-ctx.Done():
		s.kill()
		<-done
		return nil, s.explain(ctx, context.Cause(ctx))
	}
	go func() {
		_ = s.client.Wait()
		close(s.ended)
	}()
	return s, nil
}

// newTransport returns the transport of the server, with the credentials of its settings.
func (s *Session) newTransport(ctx context.Context, o Options) (sdk.Transport, error) {
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	s.kill = kill
	var endpoint *url.URL
	values := o.Server.Env
	if o.Server.URL != "" {
		var err error
		if endpoint, err = parseEndpoint(o.Server.URL); err != nil {
			return nil, err
		}
		values = o.Server.Headers
	}
	got, err := resolveSecrets(ctx, o.Name, values, o.Secret)
	if err != nil {
		return nil, err
	}
	s.redact = seal.NewRedactor(got.secrets...)
	if endpoint != nil {
		s.hideURL = newURLHider(endpoint)
		return newHTTP(life, endpoint, got.values), nil
	}
	p := &program{
		server: o.Server, folder: filepath.Join(o.Folder, o.Name), closed: o.Closed, env: got.values,
		files: got.files, self: o.Self, redact: s.redact,
	}
	for _, secret := range got.secrets {
		p.longest = max(p.longest, len(secret))
	}
	s.outcome, s.program = p.outcome, true
	s.kill = func() { kill(); p.kill() }
	return p, nil
}

// explain returns an error for the user: why the program ended, when it did, without credentials and control
// characters.
func (s *Session) explain(ctx context.Context, err error) error {
	cause, ended := context.Cause(ctx), s.outcome()
	switch {
	case cause != nil && ended != nil: // it was stopped because of the timeout; what it wrote may say why
		err = fmt.Errorf("%w; %w", cause, ended)
	case cause != nil:
		err = cause
	case ended != nil:
		err = ended
	}
	return fmt.Errorf("connecting to the MCP server %s: %s", s.name, s.clean(err.Error(), 600))
}

// filterRequests refuses every request of a server but a ping and a question to the user, and drops every notification
// but that its tools changed. A server gets no model and no folder by asking: what it may use is in its settings.
func filterRequests(o Options) sdk.Middleware {
	refused := func(what string) {
		if o.Refused != nil {
			o.Refused(what)
		}
	}
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			switch {
			case method == "ping":
				return next(ctx, method, req)
			case method == "notifications/tools/list_changed":
				if o.Changed != nil {
					o.Changed()
				}
				return nil, nil
			case strings.HasPrefix(method, "notifications/"):
				return nil, nil
			case method == "elicitation/create" && o.Elicit != nil:
				p, _ := req.GetParams().(*sdk.ElicitParams)
				return o.Elicit(ctx, p), nil
			case method == "elicitation/create":
				refused("it asked you a question, which was declined: an MCP server gets no input from you")
				return &sdk.ElicitResult{Action: "decline"}, nil
			case method == "sampling/createMessage":
				refused("it asked for an answer of the model, which was refused")
				return nil, errors.New("conclave does not run its model for servers; return your data as the result " +
					"of the tool")
			case method == "roots/list":
				refused("it asked for your folders, which was refused")
				return nil, errors.New("conclave has no roots; the user allows paths in the settings of the server")
			}
			refused("it sent a request that was refused: " + text.OneLine(method, 60))
			return nil, errors.New("conclave refuses this request")
		}
	}
}

// Ended is closed when the connection is gone.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Why returns why the connection is gone.
func (s *Session) Why() string {
	err := s.outcome()
	if err == nil {
		err = errors.New("the connection ended")
	}
	return s.clean(err.Error(), 600)
}

// Close ends the connection and the program.
func (s *Session) Close() {
	s.once.Do(func() {
		closed := make(chan struct{})
		go func() { // waits for calls that a server may never answer
			defer close(closed)
			_ = s.client.Close()
		}()
		awaitStop(closed)
		s.kill()
		<-s.ended
	})
}

// Tools lists the tools of the server.
func (s *Session) Tools(ctx context.Context) (out []*sdk.Tool, err error) {
	for t, err := range s.client.Tools(ctx, nil) {
		if err != nil {
			return nil, errors.New(s.clean(err.Error(), 300))
		}
		if out = append(out, t); len(out) >= maxListed {
			break
		}
	}
	return out, nil
}

// Item is a resource or a prompt of a server.
type Item struct {
	Name        string `json:"name"`
	URI         string `json:"uri,omitempty"`
	Description string `json:"description,omitempty"`
}

// maxItems bounds the resources and prompts that are listed.
const maxItems = 200

// Resources lists the resources of the server; none when it has no resources.
func (s *Session) Resources(ctx context.Context) (out []Item) {
	for r, err := range s.client.Resources(ctx, nil) {
		if err != nil || len(out) >= maxItems {
			break
		}
		out = append(out, s.item(r.Name, r.URI, r.Description))
	}
	for r, err := range s.client.ResourceTemplates(ctx, nil) {
		if err != nil || len(out) >= maxItems {
			break
		}
		out = append(out, s.item(r.Name, r.URITemplate, r.Description))
	}
	return out
}

// Prompts lists the prompts of the server; none when it has no prompts.
func (s *Session) Prompts(ctx context.Context) (out []Item) {
	for p, err := range s.client.Prompts(ctx, nil) {
		if err != nil || len(out) >= maxItems {
			break
		}
		out = append(out, s.item(p.Name, "", p.Description))
	}
	return out
}

func (s *Session) item(name, uri, description string) Item {
	return Item{s.clean(name, 80), s.clean(uri, 200), s.clean(description, 200)}
}

// newURLHider returns a function that replaces a URL in errors of HTTP by its scheme and host. Its path or query may
// hold a key.
func newURLHider(u *url.URL) func(string) string {
	host := u.Scheme + "://" + u.Host + "/..."
	return strings.NewReplacer(u.String(), host, strings.Trim(strconv.Quote(u.String()), `"`), host).Replace
}

// clean returns a text of the server for the user: one line of at most maxBytes, without credentials and control
// characters.
func (s *Session) clean(t string, maxBytes int) string {
	return text.OneLine(s.redact(s.hideURL(cleanText(t))), maxBytes)
}

// Info returns name, version and protocol of the server, on one line.
func (s *Session) Info() string {
	r := s.client.InitializeResult()
	if r == nil {
		return ""
	}
	name := "unnamed"
	if r.ServerInfo != nil {
		name = r.ServerInfo.Name + " " + r.ServerInfo.Version
	}
	return text.OneLine(cleanText(name), 100) + ", protocol " + text.OneLine(r.ProtocolVersion, 20)
}
