// Package tools holds the tools of this machine, one pair of files each: the code, and the reviewed text that a model
// reads. Every tool is an actor of its own with its own key.
//
// A tool listens on tool.request.<tool>, which only the broker reaches, and speaks on tool.schema.<tool>.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/pkg/seal"
	"conclave/pkg/text"
	"conclave/pkg/webclient"
	"conclave/subjects"
)

// Version is the version of the built-in tools in discovery.
const Version = "0.1.0"

// Call is the input of a tool: the arguments, which the broker has checked, and the time.
type Call struct {
	Args    json.RawMessage
	Now     time.Time
	Mode    string                 // "", [subjects.ModeStructured] or [subjects.ModePreview]
	Secrets map[string]seal.Secret // the credentials that the tool's facts name; wiped after the run
	// hosts that pages may be read from; nil = no restriction beyond the web client's own
	Hosts   *subjects.HostRules
	Pages   bool                  // the caller may read pages
	Folders *subjects.FolderRules // folders that files may be accessed in; nil = none
	// Change is the change as which the call takes effect; nil = the state before is not kept.
	Change  *changeOrder
	changes *changeStore
	// Emit publishes live output of a long run. It may be lost; the broker forwards it to the user while the call runs.
	Emit func(text string)
}

// hostCheck returns the policy check of an address, to be applied at each redirect; nil = no restriction.
func (c Call) hostCheck() func(address string) error {
	if c.Hosts == nil {
		return nil
	}
	rules := policy.HostRules{Allow: c.Hosts.Allow, Deny: c.Hosts.Deny}
	return func(address string) error { return rules.CheckURL(address, c.Hosts.Monitored...) }
}

// Output is the result of a run.
type Output struct {
	Text  string
	Links []string // addresses that Text lists, unchanged
	// Artifacts are the absolute paths of the files that the run wrote. The broker drops those outside of
	// [Call].Folders.
	Artifacts []string
	Change    *subjects.ChangeRef // that the call made, or whose state before it kept
}

// Tool is one tool: its schema for the model, its facts for the broker, and its code.
type Tool struct {
	schema subjects.ToolSchema
	facts  policy.Tool
	run    runFunc
	// disabled is why the tool cannot run on this machine and what to do; "" = it can. It is served, and every call
	// fails.
	disabled string
	// probe asks the tool's backend and returns why it cannot be used now and what to do; "" = it can. Only a tool
	// whose facts say [policy.Tool].Backend has one.
	probe func(ctx context.Context) string

	changes *changeStore // of a tool whose facts say [policy.Tool].Keeps

	probeMu  sync.Mutex // held while the backend is probed
	probedAt time.Time
	problem  string // what the last probe returned

	once sync.Once
	key  *seal.Key // of this process, nil when the tool needs no credential
}

// runFunc runs one call of a tool.
type runFunc = func(ctx context.Context, c Call) (Output, error)

// newTool completes what all tools of this machine share. properties are the JSON members of the schema of the
// arguments, and required are the quoted names of those that a call must have; "" = none.
func newTool(name, description, required, properties string, facts policy.Tool, run runFunc) *Tool {
	facts.Name, facts.Zone, facts.Known = name, "tools", true
	if required != "" {
		required = `, "required": [` + required + `]`
	}
	return &Tool{
		schema: subjects.ToolSchema{
			Name: name, Version: Version, Description: strings.TrimSpace(description),
			Parameters: jsonschema.Literal(`{"type": "object", "properties": {` + properties + `}` + required +
				`, "additionalProperties": false}`),
		},
		facts: facts, run: run,
	}
}

// withArgs returns the run of a tool with its arguments decoded by [actor.DecodeArguments], into a struct with their
// names as JSON tags.
func withArgs[A any](run func(ctx context.Context, c Call, args A) (Output, error)) runFunc {
	return func(ctx context.Context, c Call) (Output, error) {
		var args A
		if err := actor.DecodeArguments(c.Args, &args); err != nil {
			return Output{}, err
		}
		return run(ctx, c, args)
	}
}

// Failure is an error that is a result of the tool, not a failure of the actor. The text is for the model.
type Failure string

// Error implements error.
func (f Failure) Error() string { return string(f) }

// All returns the tools of this build that need no configuration.
func All() []*Tool {
	return []*Tool{
		getDatetime(), fsRead(), fsWrite(), fsList(), fsSearch(), calendarRead(), calendarAdd(), notesRead(),
		notesAdd(),
	}
}

// Configured returns the tools that run under c, which must be valid: those of [All], and those that c enables.
func Configured(c Config) []*Tool { return newTools(c, "") }

// Known returns the tools that the broker knows under c: those of [Configured], and the web tools that c leaves out,
// because a machine that joined may serve them.
func Known(c Config) []*Tool {
	if c.WebSearch.Provider == noProvider {
		c.WebSearch.Provider = "mock"
	}
	if p := c.WebSearch.Academic.Provider; p == "" || p == noProvider {
		c.WebSearch.Academic.Provider = "mock"
	}
	c.WebFetch.Enabled = true
	return Configured(c)
}

// newTools is [Configured] with another address of the search providers, for tests; "" = their own. A tool that is not
// configured is left out.
func newTools(c Config, providerURL string) []*Tool {
	all := All()
	web := c.Web
	if web == nil && c.WebFetch.Enabled {
		web = webclient.New(c.WebFetch.clientConfig(c.Own))
	}
	if p := c.WebSearch.newProvider(providerURL); p != nil {
		s := newSearcher(c.WebSearch, c.WebSearch.Provider, p, web)
		all = append(all, searchTool("web_search", webSearchText, s))
	}
	if p := c.WebSearch.newAcademicProvider(providerURL); p != nil {
		s := newSearcher(c.WebSearch, c.WebSearch.Academic.Provider, p, web)
		all = append(all, searchTool("academic_search", academicSearchText, s))
	}
	if c.WebFetch.Enabled {
		all = append(all, webFetch(c.WebFetch, web))
	}
	why := c.sandboxState()
	all = append(all, getLocation(c.Workspace), runCode(c.Workspace, why), runShell(c.Workspace, why),
		packageInstall(c.Workspace, why))
	store := newChangeStore(c.UndoFolder, c.Workspace.Undo)
	for _, t := range all {
		if t.facts.Keeps {
			t.changes = store
		}
	}
	return all
}

// sandboxState returns why programs cannot be run on this machine, "" when they can. The self-test runs once per
// process.
func (c Config) sandboxState() string {
	if c.Workspace.Folder == "" {
		return "programs are not configured"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := sandbox.SelfTest(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// Name implements [actor.Actor].
func (t *Tool) Name() string { return t.schema.Name }

// Role is the account of the tool.
func (t *Tool) Role() string { return subjects.ToolRole(t.schema.Name) }

// Facts returns what the broker knows of the tool: it is part of the build, and never read from an announcement.
func (t *Tool) Facts() policy.Tool { return t.facts }

// Disabled returns why the tool cannot run on this machine and what to do, "" when it can.
func (t *Tool) Disabled() string { return t.disabled }

// Schema returns the definition of the tool, the same in every process.
func (t *Tool) Schema() subjects.ToolSchema { return t.schema }

// Routes implements [actor.Actor]: the tool, and for the secrets actor the key of this process.
func (t *Tool) Routes() []actor.Route {
	routes := t.toolset().Routes()
	if k := t.sealKey(); k != nil {
		routes = append(routes, actor.ConfirmKey(k.Public())...)
	}
	return routes
}

// Start implements [actor.Starter].
func (t *Tool) Start(ctx context.Context, out actor.Out) error { return t.toolset().Announce(ctx, out) }

// toolset returns the tool as the runtime serves it, with the key of this process in its schema.
func (t *Tool) toolset() actor.Toolset {
	return actor.Toolset{{Schema: t.announcedSchema(), Facts: t.facts, Run: t.runOrder}}
}

// Describe implements [actor.Describer]: a broker that starts later reads the definition, and the key for credentials,
// from the metadata in discovery, and at any time why the backend of the tool cannot be used.
func (t *Tool) Describe() (metadata map[string]string) {
	a := t.announcedSchema()
	definition, err := json.Marshal(a)
	if err != nil {
		definition = nil
	}
	metadata = map[string]string{"definition": string(definition)}
	if a.Key != "" {
		metadata["key"] = a.Key
	}
	if t.probe != nil {
		if why := t.probeBackend(); why != "" {
			metadata["unavailable"] = why
		}
	}
	return metadata
}

const (
	// probeTimeout bounds a probe of a backend. The broker waits a second for a reply.
	probeTimeout = 700 * time.Millisecond
	// probeInterval is how long the result of a probe holds: anybody may ask for the metadata, as often as he likes.
	probeInterval = 10 * time.Second
)

// probeBackend returns what the probe says, of the last probeInterval.
func (t *Tool) probeBackend() string {
	t.probeMu.Lock()
	defer t.probeMu.Unlock()
	if t.probedAt.IsZero() || time.Since(t.probedAt) > probeInterval {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		t.problem, t.probedAt = t.probe(ctx), time.Now()
	}
	return t.problem
}

// announcedSchema returns the definition with the key of this process.
func (t *Tool) announcedSchema() subjects.ToolSchema {
	s := t.schema
	if k := t.sealKey(); k != nil {
		s.Key = k.Public()
	}
	return s
}

// sealKey returns the key that credentials for this process are sealed to, nil for a tool without credentials. It is
// made once and never stored; if that fails, calls that need a credential are refused.
func (t *Tool) sealKey() *seal.Key {
	t.once.Do(func() {
		if len(t.facts.Secrets) > 0 {
			if k, err := seal.NewKey(); err == nil {
				t.key = k
			}
		}
	})
	return t.key
}

// runOrder runs one call. Credentials are removed from its text and every error, and links that contain one are left
// out. A missing credential is a fault no_secret; rejected arguments and a [Failure] are faults that the model sees,
// other errors are not.
func (t *Tool) runOrder(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult,
	error,
) {
	if t.disabled != "" {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeUnavailable, "%s is disabled: %s", t.schema.Name,
			t.disabled)
	}
	secrets, err := t.openSecrets(in.Body.Sealed)
	defer func() {
		for _, s := range secrets {
			s.Wipe()
		}
	}()
	if err != nil {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeNoSecret, "%v", err)
	}
	var values [][]byte
	for _, s := range secrets {
		values = append(values, s.Reveal())
	}
	redact := seal.NewRedactor(values...)
	if in.Body.Mode == subjects.ModePreview && !t.facts.Preview {
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTool, "%s has no preview", t.schema.Name)
	}
	switch mode := in.Body.Mode; {
	case (mode == subjects.ModeCapture || mode == subjects.ModeUndo) && !t.facts.Keeps:
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTool, "%s keeps no changes", t.schema.Name)
	case mode == subjects.ModeUndo:
		return t.serveChanges(in.Body, out.Now())
	}
	var change *changeOrder
	if in.Body.Change != nil {
		change = &changeOrder{*in.Body.Change}
	}
	got, err := t.runRecovering(ctx, Call{
		Args: in.Body.Args, Now: out.Now(), Mode: in.Body.Mode, Secrets: secrets, Hosts: in.Body.Hosts,
		Pages: in.Body.Pages, Folders: in.Body.Folders, Change: change, changes: t.changes,
		Emit: t.newEmitter(ctx, in.Body.CallID, out, redact),
	})
	switch {
	case errors.Is(err, actor.ErrArguments), errors.As(err, new(Failure)):
		return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTool, "%s", redact(err.Error()))
	case err != nil && len(secrets) > 0:
		// a wrapped error could hold what its text does not show
		return subjects.ToolResult{}, errors.New(redact(err.Error()))
	case err != nil:
		return subjects.ToolResult{}, err
	}
	res := subjects.ToolResult{Result: redact(got.Text), Change: got.Change}
	for _, l := range got.Links {
		if redact(l) == l {
			res.Links = append(res.Links, l)
		}
	}
	for _, p := range got.Artifacts {
		if redact(p) == p {
			res.Artifacts = append(res.Artifacts, p)
		}
	}
	return res, nil
}

// maxOutputChunk bounds one message of live output, in bytes.
const maxOutputChunk = 16 << 10

// newEmitter returns the function that publishes live output of a call, numbered, in chunks of at most maxOutputChunk
// bytes. It may be called from several goroutines. Output that cannot be published is lost.
func (t *Tool) newEmitter(ctx context.Context, callID string, out actor.Out, redact func(string) string) func(string) {
	topic, err := subjects.ToolRunOutput.With(t.schema.Name, callID)
	if err != nil {
		return func(string) {}
	}
	var mu sync.Mutex
	n := 0
	return func(s string) {
		mu.Lock()
		defer mu.Unlock()
		for s = redact(strings.ToValidUTF8(s, "\uFFFD")); s != ""; n++ {
			chunk := text.Cut(s, maxOutputChunk)
			s = s[len(chunk):]
			_ = actor.Emit(ctx, out, topic, subjects.ToolOutput{CallID: callID, N: n, Text: chunk}) // lossy by contract
		}
	}
}

// runRecovering runs the tool. A panic's text goes to the log and may quote a credential: with credentials it becomes
// an error, which is redacted like any other.
func (t *Tool) runRecovering(ctx context.Context, c Call) (out Output, err error) {
	if len(c.Secrets) > 0 {
		defer func() {
			if p := recover(); p != nil {
				out, err = Output{}, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
	}
	return t.run(ctx, c)
}

// openSecrets opens the sealed credentials that the tool's facts name, and no others. It fails when one is missing or
// was sealed to another process. The caller wipes the result, also after an error.
func (t *Tool) openSecrets(sealed map[string]subjects.SecretValue) (map[string]seal.Secret, error) {
	secrets := map[string]seal.Secret{}
	for _, name := range t.facts.Secrets {
		v, ok := sealed[name]
		if !ok {
			return secrets, fmt.Errorf("the credential %s did not come with the call; store it with: conclave secret "+
				"set %s", name, name)
		}
		k := t.sealKey()
		if k == nil {
			return secrets, fmt.Errorf("%s has no key to open the credential %s with; restart it", t.schema.Name, name)
		}
		s, err := seal.Open(k, v)
		if err != nil {
			return secrets, fmt.Errorf("the credential %s was not sealed to this run of %s; try again", name,
				t.schema.Name)
		}
		secrets[name] = s
	}
	return secrets, nil
}
