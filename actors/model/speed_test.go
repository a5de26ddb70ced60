package model

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/pkg/model"
	"conclave/subjects"
)

func promptOf(system, user string) model.Request {
	return model.Request{Stream: true, Messages: []model.Message{
		{Role: model.System, Content: system},
		{Role: model.User, Content: user},
	}}
}

// The figures are those of a 1.5B model on two cores: Ollama counts the whole prompt, and times only what it had to
// read.
func TestSpeedIsMeasuredFromRepliesAndKept(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "speeds.json")
	m := newMeter(file)
	system := strings.Repeat("You answer. ", 400) // 4800 bytes
	c, reading := m.begin("small", promptOf(system, "hi"))
	if reading.Expected != 0 || reading.Tokens < 1200 {
		t.Errorf("before the first reply: %+v", reading)
	}
	c.finish(model.Final{
		PromptTokens: 1400, PromptTime: 50 * time.Second, OutputTokens: 110,
		OutputTime: 10 * time.Second,
	})
	if s := m.of("small"); s.Prompt != 28 || s.Output != 11 {
		t.Errorf("speed %+v", s)
	}
	// The same prefix is in the server's cache.
	c, reading = m.begin("small", promptOf(system, "and now?"))
	if reading.Tokens > 5 || reading.Expected > time.Second {
		t.Errorf("a cached prefix is read again: %+v", reading)
	}
	c.finish(model.Final{
		PromptTokens: 1402, PromptTime: 80 * time.Millisecond, OutputTokens: 2,
		OutputTime: time.Second,
	})
	if s := m.of("small"); s.Prompt != 28 || s.Output != 11 {
		t.Errorf("a cached prompt changed the speed to %+v", s)
	}
	// The server lost its cache and read everything again: few new tokens over a long time say nothing.
	c, _ = m.begin("small", promptOf(system, "and now?"+strings.Repeat(" really", 10)))
	c.finish(model.Final{PromptTokens: 1412, PromptTime: 50 * time.Second, OutputTokens: 2, OutputTime: time.Second})
	if s := m.of("small"); s.Prompt != 28 {
		t.Errorf("a few tokens of a prompt changed the speed to %+v", s)
	}
	if _, reading = m.begin("small", promptOf("Grade. "+system, "hi")); reading.Expected < 45*time.Second ||
		reading.Expected > 55*time.Second {
		t.Errorf("another prompt: %+v", reading)
	}
	if err := m.write(time.Now(), true); err != nil {
		t.Fatal(err)
	}
	if s := newMeter(file).of("small"); s.Prompt != 28 || s.Output != 11 {
		t.Errorf("after a restart %+v", s)
	}
	for name, content := range map[string]string{
		"not JSON": "{", "trick: not a speed": `{"small": {"prompt": -1}}`,
		"trick: not a test": `{"small": {"calls": {"passed": 9, "total": 4}}}`,
		"trick: a path":     `{"../x y": {"prompt": 1}}`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if m := newMeter(file); len(m.models) != 0 {
			t.Errorf("%s: %v", name, m.models)
		}
	}
}

func TestRequestCanOnlyLowerItsPriority(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		account    string
		background bool
		want       int
	}{
		{"generator", false, foreground},
		{"generator", true, lowest},
		{"critic", false, lowest},
		{"critic", true, lowest},
		{subjects.RespondentB, true, lowest},
	} {
		if r := newRequester(tt.account, "s", tt.background); r.priority != tt.want {
			t.Errorf("%+v has priority %d", tt, r.priority)
		}
	}
}
