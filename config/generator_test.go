package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/generator"
	"conclave/config"
)

// section is generator.yaml as shipped, with a file of the user on top.
func section(t *testing.T, over string) (config.Generator, error) {
	t.Helper()
	c, err := config.Load(folder(t, map[string]string{"generator.yaml": over}))
	return c.Generator, err
}

func TestGeneratorShipped(t *testing.T) {
	t.Parallel()
	g, err := section(t, "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.Actor()
	if err != nil {
		t.Fatal(err)
	}
	want := generator.Config{
		Steps: 5, Wall: 10 * time.Minute, CallTimeout: 2 * time.Minute, FirstToken: 5 * time.Minute,
		ToolTimeout: 6 * time.Minute, Nudges: 2, Retries: 2, Repeats: 3,
		Predict: 2048, Answer: 4096, Result: 16 << 10, MaxTools: 12, RecallFirst: "auto",
		Hedge: generator.Hedge{Search: "web_search", Reask: true}, Stream: true, Thinking: true,
		HotSessions: 50, Concurrency: 16, Turns: 50, CompactAt: 60, Grades: generator.Grades{Retry: true},
		RespondentB: generator.RespondentB{Temperature: 1, MaxAge: 5 * time.Minute},
	}
	if got != want {
		t.Errorf("shipped\n%+v\nwant\n%+v", got, want)
	}
}

func TestGeneratorSection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct{ name, over, wrong string }{
		{"one field", "steps: 3\n", ""},
		{"part of a section", "hedge:\n  search: \"\"\n", ""},
		{"unknown field", "step: 3\n", "generator.yaml:1: step: unknown field"},
		{"out of range", "steps: 0\n", "steps: 0 is not between 1 and 50"},
		{"time", "tool_timeout: 60\n", "tool_timeout"},
		{"no tool", "hedge:\n  search: a b\n", "hedge.search: \"a b\" is not the name of a tool"},
		{"the second answer", "respondent_b:\n  enabled: true\n  model: tiny:1b\n  temperature: 0.7\n", ""},
		{"too warm", "respondent_b:\n  temperature: 2.1\n", "respondent_b.temperature: 2.1 is not between 0 and 2"},
		{"no temperature", "respondent_b:\n  temperature: warm\n", "respondent_b.temperature: warm is not a number"},
		{"age", "respondent_b:\n  max_age: 300\n", "respondent_b.max_age"},
		{"grades", "grades:\n  prompt: 1\n", "grades.prompt"},
		{"relative prompt", "system_prompt: prompt.md\n", "system_prompt: \"prompt.md\" is not an absolute path"},
	} {
		_, err := section(t, tt.over)
		if tt.wrong == "" && err != nil || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, tt := range []struct{ path, want, wrong string }{
		{write("prompt.md", "\nBe a pirate.\n"), "Be a pirate.", ""},
		{write("empty.md", " \n"), "", "is empty"},
		{write("large.md", strings.Repeat("x", 65<<10)), "", "system_prompt"},
		{filepath.Join(dir, "none.md"), "", "does not exist"},
	} {
		g, err := section(t, "system_prompt: "+tt.path+"\n")
		if err != nil {
			t.Fatal(err)
		}
		c, err := g.Actor()
		if tt.wrong == "" && (err != nil || c.System != tt.want) || tt.wrong != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: %v", filepath.Base(tt.path), err)
		}
	}
}

// What flags set is read as strictly as a file.
func TestGeneratorFlags(t *testing.T) {
	t.Parallel()
	c, err := config.Load(folder(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	err = c.Apply(map[string]string{
		"generator.respondent_b.enabled": "true", "generator.respondent_b.model": "tiny:1b",
		"generator.respondent_b.temperature": "0.4", "generator.grades.prompt": "true",
	})
	if b := c.Generator.RespondentB; err != nil ||
		b != (generator.RespondentB{Enabled: true, Model: "tiny:1b", Temperature: 0.4, MaxAge: 5 * time.Minute}) ||
		!c.Generator.Grades.Prompt {
		t.Errorf("%+v, %v", b, err)
	}
	for path, value := range map[string]string{
		"temperature": "hot", "enabled": "maybe", "max_age": "5",
		"tempreature": "1",
	} {
		if err := c.Apply(map[string]string{"generator.respondent_b." + path: value}); err == nil ||
			!strings.Contains(err.Error(), "respondent_b."+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := c.Apply(map[string]string{"generator.respondent_b.temperature": "NaN"}); err == nil {
		t.Error("a temperature that is no number")
	}
}
