package tools

import (
	"context"
	_ "embed"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/policy"
	"conclave/subjects"
)

//go:embed run_shell.md
var runShellText string

// runShell returns the tool run_shell. A command that matches a blocked pattern is not run.
func runShell(w Workspace, disabled string) *Tool {
	return &Tool{
		disabled: disabled,
		schema: subjects.ToolSchema{
			Name: "run_shell", Version: Version, Description: strings.TrimSpace(runShellText),
			Parameters: jsonschema.Literal(`{
				"type": "object",
				"properties": {
					"command": {"type": "string", "minLength": 1, "maxLength": 65536,
						"description": "the command, as in a shell"}
				},
				"required": ["command"],
				"additionalProperties": false
			}`),
		},
		facts: policy.Tool{
			Name: "run_shell", Zone: "tools", Known: true, Keeps: true, Sandboxed: true,
			Act:     policy.ActExecute,
			Args:    policy.Args{"command": {Role: policy.RoleContent}},
			About:   []string{"shell", "command", "terminal"},
			Effects: policy.Declare(policy.Exec, policy.Mutate, policy.ReadsPrivate, policy.ReadsUntrusted),
			Timeout: programTimeout(w), MaxArgs: maxCode, MaxResult: maxOutput + 16<<10,
		},
		run: withArgs(func(ctx context.Context, c Call, a struct {
			Command string `json:"command"`
		},
		) (Output, error) {
			if name := w.findBlocked(a.Command); name != "" {
				return Output{}, blockedFailure(name)
			}
			source := newScratchFile("command.sh", a.Command) // other users of the machine see arguments of processes
			defer removeScratch(c, source)
			return c.runProgram(ctx, w, program{
				args: []string{findInterpreter("shell"), source.Path}, files: []codeFile{source},
			})
		}),
	}
}
