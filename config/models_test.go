package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	llm "conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scripted"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/subjects"
)

func shippedModels(t testing.TB) model.Config {
	t.Helper()
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	return c.Models
}

func TestModelsShipped(t *testing.T) {
	t.Parallel()
	c := shippedModels(t)
	for role, want := range map[string]string{
		// the assistant's
		"assistant": "gemma4:12b", "orchestrator": "", "tools": "", "coder": "", "researcher": "", "summaries": "",
		"critic": "prometheus:7b", "embeddings": "nomic-embed-text",
	} {
		if got := c.Roles[role]; got != want {
			t.Errorf("%s has %s, want %s", role, got, want)
		}
		if o := c.OptionsFor(want); o.Window < 32000 {
			t.Errorf("%s: a window of %d", want, o.Window)
		}
	}
	for name, want := range map[string]string{"gemma4:12b": "-1", "nomic-embed-text": "-1", "prometheus:7b": "5m"} {
		if got := c.OptionsFor(name).KeepAlive; got != want {
			t.Errorf("%s stays for %s, want %s", name, got, want)
		}
	}
	if c.Ollama.URL != "http://127.0.0.1:11434" || c.Ollama.Slots != 1 || !c.Ollama.Exclusive ||
		c.Ollama.Queue != 512 || c.Ollama.RemoteHost() != "" {
		t.Errorf("%+v", c.Ollama)
	}
	if len(c.Remote) != 0 || c.OpenAI != nil || c.Anthropic != nil || c.Google != nil || c.DemoModel != model.DemoAuto {
		t.Errorf("something leaves the machine: %+v", c)
	}
}

// What is commented out in the shipped file is right: somebody will take the marks away.
func TestModelsCommentedOut(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var on []string
	for line := range strings.SplitSeq(string(data), "\n") {
		for _, block := range []string{
			"# openai:", "# anthropic:", "# google:", "#   url:", "#   key:", "#   slots:",
			"  # prometheus:7b:", "  # critic:", "  # tools:", "  # summaries:", "  # coder:", "  # researcher:",
			"  # orchestrator:",
		} {
			if strings.HasPrefix(line, block) {
				line = strings.Replace(line, "# ", "", 1)
			}
		}
		on = append(on, line)
	}
	var c model.Config
	_, err = overlayModels(&c, []byte(strings.Join(on, "\n")), "models.yaml")
	if err := errors.Join(err, c.Validate()); err != nil {
		t.Fatal(err)
	}
	if c.OpenAI == nil || c.OpenAI.Key != "openai" || c.Anthropic == nil || c.Google == nil ||
		*c.OptionsFor("prometheus:7b").Temperature != 0.2 || len(c.Roles) != len(model.Roles) {
		t.Errorf("%+v", c)
	}
}

func TestModelsLaid(t *testing.T) {
	t.Parallel()
	base := shippedModels(t)
	c := base
	lines, err := overlayModels(&c, []byte(`
roles:
  assistant: qwen3:8b
  jester: tiny
models:
  nomic-embed-text: {window: 4096}
  tiny: {small: true, temperature: 1.5}
ollama:
  slots: 4
allow_remote: [deep:cloud]
`), "mine/models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Roles["assistant"] != "qwen3:8b" || c.Roles["jester"] != "tiny" ||
		c.Roles["embeddings"] != "nomic-embed-text" {
		t.Errorf("roles %v", c.Roles)
	}
	if o := c.OptionsFor("qwen3:8b"); o.KeepAlive != "-1" || o.Window != 32768 {
		t.Errorf("the new assistant: %+v", o)
	}
	if o := c.OptionsFor("nomic-embed-text"); o.Window != 4096 || !*o.Small {
		t.Errorf("one field of a model: %+v", o)
	}
	if o := c.OptionsFor("tiny"); !*o.Small || *o.Temperature != 1.5 {
		t.Errorf("a model of one's own: %+v", o)
	}
	if c.Ollama.Slots != 4 || c.Ollama.URL != base.Ollama.URL || !c.Ollama.Exclusive ||
		!slices.Equal(c.Remote, []string{"deep:cloud"}) {
		t.Errorf("%+v", c)
	}
	if lines["roles.assistant"] != 3 {
		t.Errorf("lines %v", lines)
	}
	if base.Roles["assistant"] != "gemma4:12b" || base.Roles["jester"] != "" || base.Models["tiny"].Small != nil {
		t.Error("what is shipped was changed")
	}
}

func TestModelsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"an unknown field", "rolls: {}", "models.yaml:1: rolls: unknown field"},
		{"an option that is none", "defaults: {num_gpu: 3}", "models.yaml:1: defaults.num_gpu: unknown field"},
		{"a number for ever", "defaults:\n  keep_alive: -1", "models.yaml:2: defaults.keep_alive: -1 is not text"},
		{"a text for a number", "defaults: {temperature: warm}", "defaults.temperature: warm is not a number"},
		{"no number", "defaults: {temperature: .nan}", "defaults.temperature: .nan is not a number"},
		{
			"a hint that is none", "hints:\n  fast: x",
			"models.yaml:2: hints.fast: is not one of simple, reasoning, code",
		},
		{"a service that is off", "roles:\n  critic: google/gemini", "models.yaml:2: roles.critic: google/gemini is " +
			"a model of google"},
		{"a key", "anthropic:\n  key: sk-ant/123", "models.yaml:2: anthropic.key: this is the name of a key"},
		{"an address without a port to be", "ollama: {url: nowhere}", "models.yaml:1: ollama.url: this is not an " +
			"address"},
		{"no slots", "ollama: {slots: 0}", "models.yaml:1: ollama.slots: 0 is not between 1 and 1024"},
		{"all of it may leave", "allow_remote: ['*']", "models.yaml:1: allow_remote[0]"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "models.yaml"), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "sk-ant") {
			t.Errorf("%s: the key is told: %v", tt.name, err)
		}
	}
}

func TestModelFields(t *testing.T) {
	t.Parallel()
	c := shippedModels(t)
	c.Google = &model.Server{Key: "google"}
	got := map[string]string{}
	for _, f := range strict.Fields(c) {
		got[f.Path] = f.Value
	}
	for path, want := range map[string]string{
		"roles.assistant": "gemma4:12b", "keep": "assistant, embeddings", "defaults.window": "32768",
		"models.nomic-embed-text.small": "true", "allow_remote": "", "demo_model": "auto", "ollama.slots": "1",
		"google.key": "google",
	} {
		if v, ok := got[path]; !ok || v != want {
			t.Errorf("%s is %q, want %q", path, v, want)
		}
	}
}

// emptyRing is a keyring without keys.
func emptyRing(_ context.Context, name string) (string, error) {
	return "", fmt.Errorf("%w: there is no key %s", llm.ErrUnauthorized, name)
}

func TestModelBackends(t *testing.T) {
	t.Parallel()
	c := shippedModels(t)
	b, err := newBackends(c, emptyRing)
	if err != nil || len(b) != 1 || b[model.Ollama] == nil {
		t.Fatalf("%v, %v", b, err)
	}
	srv := modeltest.New(t, scriptserver.Script{})
	c.OpenAI = &model.Server{URL: srv.URL, Key: "openai"}
	c.Anthropic = &model.Server{URL: srv.URL, Key: "anthropic"}
	c.Google = &model.Server{URL: srv.URL, Key: "google"}
	var asked []string
	b, err = newBackends(c, func(ctx context.Context, name string) (string, error) {
		asked = append(asked, name)
		return emptyRing(ctx, name)
	})
	if err != nil || len(b) != 4 {
		t.Fatalf("%v, %v", b, err)
	}
	if len(asked) > 0 {
		t.Errorf("keys were read before anybody needed them: %v", asked)
	}
	for _, name := range []string{model.OpenAI, model.Anthropic, model.Google} {
		if _, err := b[name].List(t.Context()); !errors.Is(err, llm.ErrUnauthorized) {
			t.Errorf("%s: %v", name, err)
		}
	}
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"anthropic", "google", "openai"}) {
		t.Errorf("keys %v", asked)
	}
}

// The actor as the system builds it, on the bus: first the script, since no Ollama is there.
func TestMakeModel(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c := shippedModels(t)
	srv := modeltest.New(t, scriptserver.Script{})
	c.Ollama.URL = srv.URL
	srv.Close() // nothing listens there now
	home := bus.Home{Data: filepath.Join(b.Dir, "home"), Config: filepath.Join(b.Dir, "config")}
	if err := home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	b.Run(actor.Spec{Name: "model", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		return newModel(ctx, c, home, nc, 5*time.Second, emptyRing)
	}}, actor.Config{})
	out := b.Out("generator")
	var last subjects.ChatChunk
	client := wire.Client{Out: out, Role: "assistant", Timeout: 20 * time.Second, OnDone: func(p subjects.ChatChunk) {
		last = p
	}}
	msg, _,
		err := llm.Collect(
		client.Chat(t.Context(), llm.Request{
			Messages: []llm.Message{{Role: llm.User, Content: "hello"}},
			Stream:   true,
		}))
	if err != nil || msg.Content == "" || !last.DemoModel || last.Model != scripted.Name {
		t.Errorf("%v, %+v, %+v", err, msg, last)
	}
	if _, err := newModel(t.Context(), model.Config{}, home, nil, time.Second, emptyRing); err == nil {
		t.Error("a configuration that is none was taken")
	}
}
