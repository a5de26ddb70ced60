// Command conclave starts the system and is the user's command line for it. Each command reads its flags, calls the
// client of the bus and hands the result to a view.
package main

import (
	"context"
	"io"
	"os"

	"conclave/actors/mcp"
	"conclave/cmd/conclave/internal/cli"
)

// main exits with the code of [run]. In the sandbox of an MCP server it forwards connections and does nothing else.
func main() {
	if len(os.Args) > 1 && os.Args[1] == mcp.ForwardArg {
		os.Exit(mcp.Forward(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command line, without the name of the program, and returns the exit code. Errors are printed on
// stderr.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, release := cli.Interruptible(context.Background(), stderr)
	defer release()
	a := cli.New(stdin, stdout, stderr)
	root := rootCommand(a)
	root.SetArgs(append([]string{}, args...)) // nil would mean the arguments of the process
	return a.Finish(root.ExecuteContext(ctx))
}
