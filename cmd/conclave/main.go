// Command conclave runs the society of actors on its bus, and is how a person looks at it: call a tool, watch the bus,
// read and check the audit. It is wiring and words; what it does is done by the packages below it.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program: arguments and streams in, exit code out.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, release := interruptible(context.Background(), stderr)
	defer release()
	a := newApp(stdin, stdout, stderr)
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // never nil, which would mean the process's own
	return a.end(root.ExecuteContext(ctx))
}
