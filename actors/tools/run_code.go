package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
)

//go:embed run_code.md
var runCodeText string

// Languages are the languages of run_code.
var Languages = []string{"python", "go", "shell"}

// interpreters are where the sandbox finds the program of a language. A program in the user's home is not visible
// there.
var interpreters = map[string][]string{
	"python": {"/usr/bin/python3", "/usr/local/bin/python3"},
	"go":     {"/usr/local/go/bin/go", "/usr/lib/go/bin/go", "/usr/bin/go"},
	"shell":  {"/bin/bash", "/bin/sh"},
}

// sourceEndings are the endings of source files by language.
var sourceEndings = map[string]string{"python": ".py", "go": ".go", "shell": ".sh"}

// maxCode bounds the arguments of a call, in bytes.
const maxCode = 256 << 10

// findInterpreter returns the program of a language, "" when it is not installed.
func findInterpreter(language string) string {
	for _, path := range interpreters[language] {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// runCode returns the tool run_code. Its schema offers the configured languages that are installed.
func runCode(w Workspace, disabled string) *Tool {
	var offered []string
	for _, l := range w.Languages {
		if findInterpreter(l) != "" {
			offered = append(offered, l)
		}
	}
	if disabled == "" && len(offered) == 0 {
		disabled = "none of its languages is installed (" + strings.Join(w.Languages, ", ") +
			"); install one, or list another under languages in tools.yaml, and restart"
	}
	names, err := json.Marshal(offered)
	if err != nil || len(offered) == 0 { // an enum needs a value; the tool is disabled then
		names = []byte(`["shell"]`)
	}
	facts := programFacts(w)
	facts.Args = policy.Args{
		"language": {Role: policy.RoleOption, Values: slices.Clone(Languages)},
		"code":     {Role: policy.RoleContent}, "stdin": {Role: policy.RoleContent},
		"args": {Role: policy.RoleContent}, "files.path": {Role: policy.RoleContent},
		"files.content": {Role: policy.RoleContent},
	}
	facts.About = []string{"code", "program", "script", "python", "shell"}
	t := newTool("run_code", runCodeText, `"language", "code"`, `
		"language": {"type": "string", "enum": `+string(names)+`,
			"description": "the language of the program"},
		"code": {"type": "string", "minLength": 1, "description": "the whole program"},
		"stdin": {"type": "string", "description": "its standard input"},
		"args": {"type": "array", "items": {"type": "string"}, "maxItems": 64,
			"description": "its arguments"},
		"files": {
			"type": "array",
			"maxItems": 32,
			"description": "files to write before the run",
			"items": {
				"type": "object",
				"properties": {
					"path": {"type": "string", "minLength": 1, "maxLength": 512,
						"description": "relative to the working folder"},
					"content": {"type": "string"}
				},
				"required": ["path", "content"],
				"additionalProperties": false
			}
		}`, facts, withArgs(func(ctx context.Context, c Call, a struct {
		Language string     `json:"language"`
		Code     string     `json:"code"`
		Stdin    string     `json:"stdin"`
		Args     []string   `json:"args"`
		Files    []codeFile `json:"files"`
	},
	) (Output, error) {
		if !slices.Contains(offered, a.Language) {
			return Output{}, fmt.Errorf("%w: language must be one of %s", actor.ErrArguments,
				strings.Join(offered, ", "))
		}
		if a.Language == "shell" {
			if name := w.findBlocked(a.Code); name != "" {
				return Output{}, blockedFailure(name)
			}
		}
		source := newScratchFile("main"+sourceEndings[a.Language], a.Code)
		args := []string{findInterpreter(a.Language)}
		if a.Language == "go" {
			args = append(args, "run")
		}
		defer removeScratch(c, source)
		return c.runProgram(ctx, w, program{
			args: append(append(args, source.Path), a.Args...), stdin: a.Stdin, files: append(a.Files, source),
		})
	}))
	t.disabled = disabled
	return t
}

// removeScratch removes the folder of a scratch file.
func removeScratch(c Call, f codeFile) {
	if c.Folders == nil || c.Folders.Work == "" {
		return
	}
	if work, err := os.OpenRoot(c.Folders.Work); err == nil {
		_ = work.RemoveAll(filepath.Dir(f.Path)) // what stays is hidden, and counts for the disk limit
		work.Close()
	}
}

// blockedFailure is the failure of a shell command that matches a pattern.
func blockedFailure(name string) error {
	return Failure(fmt.Sprintf("blocked command: %s. The command was not run. Do it another way, or tell the user to "+
		"do it", name))
}
