// Command stories runs acceptance stories: YAML files with questions, and what is expected of the events, payloads and
// answers. Each runs on a system of its own, with its own folder, keys and ports.
//
//	go run ./cmd/stories run                                  all in the folder stories
//	go run ./cmd/stories run -v stories/s3_web_search.yaml    one, with its events
//	go run ./cmd/stories run --live stories                   on real models
//
// A scripted model server gives the answers that a story defines. With --live the models of the user's configuration
// answer instead; expectations that depend on the script are then not checked, and stories that need it are skipped.
//
// It prints a line for each story: ok, FAIL or skip, and the time. A failure shows the expectation with file and line,
// and the events that were received. The exit code is 1 when a story failed or could not be read, and 2 after wrong
// usage.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
