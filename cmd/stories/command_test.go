package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// good is a story that holds.
const good = `story: GOOD
title: an agent is told the time
why: without it nobody knows the time
turns:
  - request: {as: operator, tool: get_datetime, args: {timezone: UTC}}
    answer: {contains: [UTC]}
events:
  in_order: [tool.request.get_datetime, tool.result.get_datetime]
  absent: [response.generation]
`

// writeStories makes a folder with stories: one that holds, one that does not, one that needs its script and one that
// cannot be read. It is the working folder of the test, and the user's folders are in it.
func writeStories(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("HOME", "home")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "config"))
	for name, text := range map[string]string{
		"stories/a_broken.yaml": "nonsense: true\n",
		"stories/b_good.yaml":   good,
		"stories/c_wrong.yaml": strings.NewReplacer("GOOD", "WRONG", "[UTC]}\n", "[the time of the Mayas]}\n").
			Replace(good),
		"more/scripted.yaml": "scripted_only: true\n" + good,
		"empty/readme.md":    "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCommand(t *testing.T) {
	writeStories(t)
	if err := syscall.Mkfifo("pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		want []string // patterns of what is printed
	}{
		{"run", 1, []string{
			`(?m)^FAIL  stories/a_broken\.yaml\n      stories/a_broken\.yaml:1: .*nonsense`,
			`(?m)^ok    GOOD an agent is told the time  \([0-9.]+ s\)$`,
			`(?m)^FAIL  WRONG an agent is told the time  \([0-9.]+ s\)\n      stories/c_wrong\.yaml:6: `,
			`(?m)^        events:\n`,
			`(?m)^3 of 3 stories: 1 ok, 2 failed, 0 skipped  \([0-9.]+ s\)$`,
		}},
		{"run stories/b_good.yaml -v", 0, []string{
			`(?m)^ {10} *[0-9]+ broker +tool.result.get_datetime +\{`, `1 of 1 stories: 1 ok, 0 failed, 0 skipped`,
		}},
		{"run --live more", 0, []string{`(?m)^skip  GOOD .*script`, `1 of 1 stories: 0 ok, 0 failed, 1 skipped`}},
		{"run pipe", 1, []string{"pipe is not a regular file"}},
		{"run nowhere.yaml", 2, []string{"^stories: .*nowhere.yaml"}},
		{"run empty", 2, []string{"there are no stories in empty"}},
		{"run --nothing", 2, []string{"unknown flag"}},
		{"", 2, []string{"^usage: stories run"}},
		{"play", 2, []string{"^usage: stories run"}},
		{"--help", 0, []string{"^usage: stories run", "--live"}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var out bytes.Buffer
			if code := runCommand(t.Context(), strings.Fields(tt.args), &out, &out); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !regexp.MustCompile(want).MatchString(out.String()) {
					t.Errorf("want %s\n%s", want, &out)
				}
			}
		})
	}
}

// TestCommandInterrupted ends a run before its first story has a result: it has failed, and no story has.
func TestCommandInterrupted(t *testing.T) {
	writeStories(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if code := runCommand(ctx, []string{"run", "stories/b_good.yaml"}, &out, &out); code != 1 ||
		!strings.HasPrefix(out.String(), "0 of 1 stories: 0 ok, 0 failed, 0 skipped") {
		t.Errorf("exit code %d\n%s", code, &out)
	}
}
