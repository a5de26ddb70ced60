package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCommand runs the command on the files of command.txtar: what it prints, and what it rejects.
func TestCommand(t *testing.T) {
	archive, err := os.ReadFile(filepath.Join("testdata", "command.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, part := range strings.Split("\n"+string(archive), "\n-- ")[1:] {
		name, text, _ := strings.Cut(part, " --\n")
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cases, err := os.ReadFile("cases.jsonl")
	if err == nil {
		err = os.WriteFile("bare/cases.jsonl", cases, 0o600)
	}
	if err == nil {
		err = syscall.Mkfifo("pipe", 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args   string
		prints []string // with single spaces
		not    string
		fails  string
	}{
		"report": {
			args: "-declarations declarations.yaml cases.jsonl",
			prints: []string{
				"cases 4\n", "attacks 4\n", "attacks executed 0\n", "tasks 3\n", "tasks interrupted 1 (33.3 %)\n",
				"interrupted: \"own-send-2\"\n", "all 4 0 (0.0 %, 0.0 to 49.0) 3 1 (33.3 %, 6.1 to 79.2)\n",
				"without declarations 4 0 ", " 2 (66.7 %", "adaptive attacker ",
			},
			not: "\nexecuted: ",
		},
		"made-up names change nothing": {
			args:   "-declarations declarations.yaml -rename-verbs -rename-args cases.jsonl",
			prints: []string{"tasks interrupted 1 (33.3 %)\n"},
		},
		"JSON": {
			args: "-declarations declarations.yaml -json cases.jsonl",
			prints: []string{
				`"cases":4,"attacks_executed":0,"benign":3,"benign_interrupted":1,"attacks_executed_ids":[],` +
					`"benign_interrupted_ids":["own-send-2"]`,
			},
		},
		"a case without an attack": {args: "cases.jsonl peaceful.jsonl", prints: []string{"cases 5\n", "attacks 4\n"}},
		"an attack that runs": {
			args: "-effects trusting/tool-effects.json cases.jsonl", not: "\x1b",
			prints: []string{"executed: \"own-mail-1-injection-1\\x1b[2J\"\n"},
		},
		"tools without labels": {
			args:   "-effects empty/tool-effects.json -json cases.jsonl",
			prints: []string{`"attacks_executed":0,"benign":3,"benign_interrupted":2,`},
		},
		"effects beside the first cases": {
			args: "-json cases.jsonl bare/cases.jsonl", prints: []string{`"cases":8,`},
		},
		"unknown act":      {args: "-declarations odd.yaml cases.jsonl", fails: `unknown act "teleport"`},
		"no effects":       {args: "-effects nowhere.json cases.jsonl", fails: "nowhere.json"},
		"unknown effect":   {args: "-effects odd.json cases.jsonl", fails: `unknown effect "telepathy"`},
		"no file":          {args: "nowhere.jsonl", fails: "reading cases: "},
		"no arguments":     {fails: "name at least one file"},
		"no case":          {args: "broken.jsonl", fails: "broken.jsonl:1: not a case: "},
		"an empty case":    {args: "hollow.jsonl", fails: "hollow.jsonl:1: a case needs id, user_instruction and"},
		"a blank file":     {args: "blank.jsonl", fails: "blank.jsonl holds no case"},
		"a pipe":           {args: "pipe", fails: "pipe is not a regular file"},
		"effects a pipe":   {args: "-effects pipe cases.jsonl", fails: "pipe is not a regular file"},
		"a device as acts": {args: "-declarations /dev/zero cases.jsonl", fails: "zero is not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			err := run(t.Context(), strings.Fields(tt.args), &b)
			if (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%v, want %q", err, tt.fails)
			}
			lines := strings.Split(b.String(), "\n")
			for i, l := range lines {
				lines[i] = strings.Join(strings.Fields(l), " ")
			}
			printed := strings.Join(lines, "\n")
			for _, want := range tt.prints {
				if !strings.Contains(printed, want) {
					t.Errorf("no %q in\n%s", want, b.String())
				}
			}
			if tt.not != "" && strings.Contains(printed, tt.not) {
				t.Errorf("%q in\n%s", tt.not, b.String())
			}
		})
	}
}

// Without effects beside any of the cases nothing is guessed.
func TestEffectsAreNotGuessed(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := findEffects("", []string{"cases.jsonl"})
	if err == nil || !strings.Contains(err.Error(), "put tool-effects.json beside the cases") {
		t.Error(err)
	}
}
