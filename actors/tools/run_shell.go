package tools

import (
	"context"
	_ "embed"

	"conclave/pkg/policy"
)

//go:embed run_shell.md
var runShellText string

// runShell returns the tool run_shell. A command that matches a blocked pattern is not run.
func runShell(w Workspace, disabled string) *Tool {
	facts := programFacts(w)
	facts.Args = policy.Args{"command": {Role: policy.RoleContent}}
	facts.About = []string{"shell", "command", "terminal"}
	t := newTool("run_shell", runShellText, `"command"`, `
		"command": {"type": "string", "minLength": 1, "maxLength": 65536,
			"description": "the command, as in a shell"}`, facts, withArgs(func(ctx context.Context, c Call, a struct {
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
	}))
	t.disabled = disabled
	return t
}
