package generator

import (
	"strings"
	"testing"
	"time"
)

func TestConfigBounds(t *testing.T) {
	t.Parallel()
	if err := shippedConfig().Validate(); err != nil {
		t.Error(err)
	}
	for path, change := range map[string]func(*Config){
		"steps": func(c *Config) {
			c.Steps = 0
		}, "tokens": func(c *Config) { c.Tokens = -1 }, "wall": func(c *Config) { c.Wall = 0 },
		"call_timeout": func(c *Config) {
			c.CallTimeout = 0
		}, "first_token_timeout": func(c *Config) {
			c.FirstToken = 0
		}, "tool_timeout": func(c *Config) { c.ToolTimeout = 48 * time.Hour },
		"nudges": func(c *Config) {
			c.Nudges = 11
		}, "repeats": func(c *Config) { c.Repeats = 1 },
		"predict": func(c *Config) {
			c.Predict = 0
		}, "answer": func(c *Config) { c.Answer = 1 }, "result": func(c *Config) { c.Result = 1 << 20 },
		"max_tools": func(c *Config) {
			c.MaxTools = 13
		}, "recall_first": func(c *Config) {
			c.RecallFirst = "sometimes"
		}, "hedge.search": func(c *Config) { c.Hedge.Search = "web search" },
		"turns": func(c *Config) { c.Turns = 0 }, "compact_at": func(c *Config) { c.CompactAt = 100 },
		"respondent_b.temperature": func(c *Config) {
			c.RespondentB.Temperature = 2.5
		},
		"respondent_b.model": func(c *Config) { c.RespondentB.Model = "a\nb" },
		"system_prompt":      func(c *Config) { c.System = strings.Repeat("x", maxSystem+1) },
	} {
		c := shippedConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if l := (Config{}).loopLimits(); l.Nudges != -1 || l.Retries != -1 {
		t.Errorf("none became the default: %+v", l)
	}
}
