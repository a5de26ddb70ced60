package model_test

import (
	"strings"
	"testing"

	"conclave/actors/model"
	"conclave/pkg/strict"
)

func TestConfigProblems(t *testing.T) {
	t.Parallel()
	hot := strict.Decimal(9)
	for _, tt := range []struct {
		name   string
		change func(*model.Config)
		want   string // path of the one problem, "" = none
	}{
		{"as it is", func(*model.Config) {}, ""},
		{"no assistant", func(c *model.Config) { delete(c.Roles, "assistant"); c.Keep = nil }, "roles"},
		{"no embedding model", func(c *model.Config) { delete(c.Roles, "embeddings"); c.Keep = nil }, "roles"},
		{"a role that is no word", func(c *model.Config) { c.Roles["a b"] = "x" }, `roles."a b"`},
		{"a model that is no name", func(c *model.Config) { c.Roles["critic"] = "a b" }, "roles.critic"},
		{"a service that is off", func(c *model.Config) { c.Roles["critic"] = "anthropic/claude" }, "roles.critic"},
		{"one that is on", func(c *model.Config) {
			c.Roles["critic"], c.Anthropic = "anthropic/claude", &model.Server{Key: "anthropic"}
		}, ""},
		{"a name of Ollama with a slash", func(c *model.Config) { c.Roles["critic"] = "hf.co/someone/model:Q4" }, ""},
		{"a hint that is none", func(c *model.Config) { c.Hints["quick"] = "x" }, "hints.quick"},
		{"a role to keep that is none", func(c *model.Config) { c.Keep = append(c.Keep, "x") }, "keep[2]"},
		{"a small window", func(c *model.Config) { c.Defaults.Window = 100 }, "defaults.window"},
		{"no bound", func(c *model.Config) { c.Defaults.Predict = 0 }, "defaults.predict"},
		{"a model's window", func(c *model.Config) {
			c.Models = map[string]model.Options{"x": {Window: -1}}
		}, "models.x.window"},
		{"a model that leaves all open", func(c *model.Config) { c.Models = map[string]model.Options{"x": {}} }, ""},
		{"how long", func(c *model.Config) { c.Defaults.KeepAlive = "-2" }, "defaults.keep_alive"},
		{"a model's time", func(c *model.Config) {
			c.Models = map[string]model.Options{"x": {KeepAlive: "long"}}
		}, "models.x.keep_alive"},
		{"too hot", func(c *model.Config) { c.Defaults.Temperature = &hot }, "defaults.temperature"},
		{"what may leave is no name", func(c *model.Config) { c.Remote = []string{"*"} }, "allow_remote[0]"},
		{"another server on this machine by its word", func(c *model.Config) {
			c.OpenAI = &model.Server{URL: "http://host.docker.internal:8080", Local: true}
		}, "openai.this_machine"},
		{"Ollama on the host of a container", func(c *model.Config) {
			c.Ollama.URL, c.Ollama.Local = "http://host.docker.internal:11434", true
		}, ""},
		{"stand in when", func(c *model.Config) { c.DemoModel = "maybe" }, "demo_model"},
		{"the key itself", func(c *model.Config) {
			c.OpenAI = &model.Server{URL: "http://127.0.0.1:1", Key: "sk-" + "live1234567890abcdef1234"}
		}, "openai.key"},
		{"a long key", func(c *model.Config) {
			c.OpenAI = &model.Server{URL: "http://127.0.0.1:1", Key: strings.Repeat("k", 41)}
		}, "openai.key"},
		{"no address", func(c *model.Config) { c.Ollama.URL = "" }, "ollama.url"},
		{"an address without a scheme", func(c *model.Config) { c.Ollama.URL = "127.0.0.1:11434" }, "ollama.url"},
		{"a password", func(c *model.Config) { c.Ollama.URL = "http://me:secret@127.0.0.1" }, "ollama.url"},
		{"Ollama has no key", func(c *model.Config) { c.Ollama.Key = "x" }, "ollama.key"},
		{"a service without a key", func(c *model.Config) { c.Google = &model.Server{} }, "google.key"},
		{"a key that is the key", func(c *model.Config) { c.Google = &model.Server{Key: "AIza.x"} }, "google.key"},
		{"a compatible server without an address", func(c *model.Config) { c.OpenAI = &model.Server{} }, "openai.url"},
		{"slots", func(c *model.Config) { c.Ollama.Slots = -1 }, "ollama.slots"},
		{"ahead", func(c *model.Config) { c.Ollama.Ahead = 5000 }, "ollama.ahead"},
		{"queue", func(c *model.Config) { c.Ollama.Queue = 1 << 30 }, "ollama.queue"},
		{"batch", func(c *model.Config) { c.Ollama.Batch = -1 }, "ollama.batch"},
		{"audit", func(c *model.Config) { c.AuditTimeout = -1 }, "audit_timeout"},
	} {
		cfg := defaultConfig("http://127.0.0.1:11434")
		tt.change(&cfg)
		var got []string
		for _, p := range cfg.Problems() {
			got = append(got, p.Path)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v", tt.name, cfg.Validate())
		}
		if strings.Contains(strings.Join(append(got, errText(cfg.Validate())), " "), "secret@") {
			t.Errorf("%s: the password is told: %v", tt.name, cfg.Validate())
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRemoteHost(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"http://127.0.0.1:11434":          "",
		"http://127.8.8.8":                "",
		"http://localhost:1":              "",
		"http://[::1]:11434/v1":           "",
		"http://[::ffff:127.0.0.1]":       "",
		"http://10.0.0.2:11434":           "10.0.0.2",
		"http://0.0.0.0:11434":            "0.0.0.0",
		"http://localhost.evil.org":       "localhost.evil.org",
		"http://127.0.0.1.nip.io":         "127.0.0.1.nip.io",
		"http://me.localhost":             "me.localhost",
		"http://127.0.0.1@evil.org/":      "evil.org",
		"https://api.openai.com/v1":       "api.openai.com",
		"http://2130706433:11434":         "2130706433",
		"http://[fe80::1%25eth0]:11434/v": "fe80::1%eth0",
	} {
		if got := (model.Server{URL: url}).RemoteHost(); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
	if got := (model.Server{URL: "http://host.docker.internal:11434", Local: true}).RemoteHost(); got != "" {
		t.Errorf("a server that the user declares to be on this machine: %q", got)
	}
}

func TestOptionsFor(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig("http://127.0.0.1:11434")
	no := false
	cfg.Models = map[string]model.Options{"judge": {Window: 4096, Stream: &no}, "nomic-embed-text": {KeepAlive: "1h"}}
	if o := cfg.OptionsFor("judge:latest"); o.Window != 4096 || *o.Stream || o.Predict != 4096 || o.KeepAlive != "5m" {
		t.Errorf("%+v", o)
	}
	if o := cfg.OptionsFor("big"); o.KeepAlive != "-1" || o.Window != 32768 || !*o.Stream {
		t.Errorf("the assistant's model: %+v", o)
	}
	if o := cfg.OptionsFor("nomic-embed-text"); o.KeepAlive != "1h" {
		t.Errorf("what is written beats what goes for its role: %+v", o)
	}
	if o := cfg.OptionsFor("unheard-of"); o.KeepAlive != "5m" || o.Window != 32768 {
		t.Errorf("%+v", o)
	}
}
