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
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/seal"
	"conclave/pkg/webclient"
	"conclave/subjects"
)

// Version of the built-in tools, as discovery shows it.
const Version = "0.1.0"

// Call is what a tool gets: the arguments, already checked by the broker, and the time.
type Call struct {
	Args    json.RawMessage
	Now     time.Time
	Mode    string                 // "" or [subjects.ModeStructured]
	Secrets map[string]seal.Secret // the credentials that the tool's facts name; wiped after the run
	Hosts   *subjects.HostRules    // where pages may be read from; nil = wherever pages may be read from at all
	Pages   bool                   // the caller may read pages
}

// within is what the policy says of an address, at each redirect.
func (c Call) within() func(address string) error {
	if c.Hosts == nil {
		return nil
	}
	rules := policy.HostRules{Allow: c.Hosts.Allow, Deny: c.Hosts.Deny}
	return func(address string) error { return rules.CheckURL(address, c.Hosts.Monitored...) }
}

// Output is what came of a run.
type Output struct {
	Text  string
	Links []string // addresses that Text lists, unchanged
}

// Tool is one tool: what a model reads of it, what the broker knows of it, and what it does.
type Tool struct {
	schema subjects.ToolSchema
	facts  policy.Tool
	run    func(ctx context.Context, c Call) (Output, error)

	once sync.Once
	key  *seal.Key // of this process, nil when the tool needs no credential
}

// ErrArgs means that the arguments are not what the tool takes. The text is for the model, which may try again.
var ErrArgs = errors.New("bad arguments")

// Failure is an error that is a result: the tool did its work, and this came of it. The text is for the model.
type Failure string

// Error implements error.
func (f Failure) Error() string { return string(f) }

// Config is what the tools of this machine need to know. Tools that the zero value does not turn on stay off.
type Config struct {
	WebSearch WebSearch
	WebFetch  WebFetch
	Own       []netip.AddrPort  // endpoints of this system, which no page is fetched from
	Web       *webclient.Client // who fetches pages; nil = one made from the above
}

// All are the tools of this build that need no configuration.
func All() []*Tool {
	return []*Tool{getDatetime()}
}

// Configured are the tools that run under c, which must be valid: those of [All], and those that c turns on.
func Configured(c Config) []*Tool {
	return configured(c, "")
}

// configured is Configured with the providers of searches at another address, "" = their own.
func configured(c Config, at string) []*Tool {
	all := All()
	web := c.Web
	if web == nil && c.WebFetch.Enabled {
		web = webclient.New(c.WebFetch.client(c.Own))
	}
	if p := c.WebSearch.provider(at); p != nil {
		all = append(all, webSearch(newSearcher(c.WebSearch, p, web)))
	}
	if c.WebFetch.Enabled {
		all = append(all, webFetch(web))
	}
	return all
}

// Name implements [actor.Actor].
func (t *Tool) Name() string { return t.schema.Name }

// Role is whose key the tool uses.
func (t *Tool) Role() string { return subjects.ToolRole(t.schema.Name) }

// Routes implements [actor.Actor].
func (t *Tool) Routes() []actor.Route {
	s, err := subjects.ToolEndpoint(t.schema.Name)
	if err != nil {
		return nil // no route: a tool whose name is no token is never reached
	}
	return []actor.Route{actor.Serve(s, t.onCall)}
}

// Start implements [actor.Starter]: the tool announces itself.
func (t *Tool) Start(ctx context.Context, out actor.Out) error {
	topic, err := subjects.ToolSchemaEvent.With(t.schema.Name)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, topic, t.announced())
}

// Describe implements [actor.Describer]: a broker that starts later reads the definition from discovery.
func (t *Tool) Describe() (version, text string, metadata map[string]string) {
	a := t.announced()
	definition, err := json.Marshal(a)
	if err != nil {
		definition = nil
	}
	metadata = map[string]string{"definition": string(definition)}
	if a.Key != "" {
		metadata["key"] = a.Key
	}
	return Version, "conclave tool", metadata
}

// announced is the definition with the key of this process.
func (t *Tool) announced() subjects.ToolSchema {
	s := t.schema
	if k := t.curve(); k != nil {
		s.Key = k.Public()
	}
	return s
}

// curve is the key that credentials for this process are sealed to. It is made at the first need and never kept; without
// one nothing can be sealed to the tool, and its calls are refused.
func (t *Tool) curve() *seal.Key {
	t.once.Do(func() {
		if len(t.facts.Secrets) > 0 {
			if k, err := seal.NewKey(); err == nil {
				t.key = k
			}
		}
	})
	return t.key
}

// Facts is what the broker needs to know of the tool and takes from the build, never from an announcement.
func (t *Tool) Facts() policy.Tool { return t.facts }

// Schema is the tool's definition, the same in every process.
func (t *Tool) Schema() subjects.ToolSchema { return t.schema }

func (t *Tool) onCall(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
	res := subjects.ToolResult{CallID: in.Body.CallID, QueryID: in.Body.QueryID, Tool: t.schema.Name}
	secrets, err := t.open(in.Body.Sealed)
	defer func() {
		for _, s := range secrets {
			s.Wipe()
		}
	}()
	if err != nil {
		res.Error = subjects.Faultf(subjects.CodeNoSecret, "%v", err)
		return res, nil
	}
	hide := redactor(secrets)
	got, err := t.guarded(ctx, Call{Args: in.Body.Args, Now: out.Now(), Mode: in.Body.Mode, Secrets: secrets, Hosts: in.Body.Hosts, Pages: in.Body.Pages})
	switch {
	case errors.Is(err, ErrArgs), errors.As(err, new(Failure)):
		res.Error = subjects.Faultf(subjects.CodeTool, "%s", hide(err.Error()))
	case err != nil && len(secrets) > 0:
		// The chain of a foreign error could hold what its text does not show.
		return res, fmt.Errorf("running %s: %s", t.schema.Name, hide(err.Error()))
	case err != nil:
		return res, fmt.Errorf("running %s: %w", t.schema.Name, err)
	default:
		res.Result = hide(got.Text)
		for _, l := range got.Links {
			if hide(l) == l {
				res.Links = append(res.Links, l)
			}
		}
	}
	return res, nil
}

// guarded runs the tool. What a panic says goes to the log, and may quote a credential that the tool had in its hands: with
// one it becomes an error, which is redacted like any other.
func (t *Tool) guarded(ctx context.Context, c Call) (out Output, err error) {
	if len(c.Secrets) > 0 {
		defer func() {
			if p := recover(); p != nil {
				out, err = Output{}, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
	}
	return t.run(ctx, c)
}

// open opens the credentials that the tool's facts name, and no others.
func (t *Tool) open(sealed map[string]subjects.SecretValue) (map[string]seal.Secret, error) {
	secrets := map[string]seal.Secret{}
	for _, name := range t.facts.Secrets {
		v, ok := sealed[name]
		if !ok {
			return secrets, fmt.Errorf("the credential %s did not come with the call; store it with: conclave secret set %s", name, name)
		}
		k := t.curve()
		if k == nil {
			return secrets, fmt.Errorf("%s has no key to open the credential %s with; restart it", t.schema.Name, name)
		}
		s, err := seal.Open(k, v)
		if err != nil {
			return secrets, fmt.Errorf("the credential %s was not sealed to this run of %s; try again", name, t.schema.Name)
		}
		secrets[name] = s
	}
	return secrets, nil
}

// args reads a tool's arguments as strictly as its schema says: encoding/json alone would take TIMEZONE for timezone.
func args(raw json.RawMessage, v any) error {
	if err := actor.DecodeStrict(raw, v); err != nil {
		return fmt.Errorf("%w: %w", ErrArgs, err)
	}
	return nil
}
