package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"conclave/pkg/bus"
	"conclave/pkg/story"
	"conclave/stories/harness"
)

// runCommand executes a command line, without the name of the program, and returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := player{out: stdout}
	flags := pflag.NewFlagSet("stories", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	live := flags.Bool("live", false, "use the models of the configuration, not the script")
	flags.BoolVarP(&p.verbose, "verbose", "v", false, "show the events of every story")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: stories run [flags] [file or folder...]\n%s", flags.FlagUsages())
	}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err == nil && flags.Arg(0) != "run":
		flags.Usage()
		return 2
	}
	var files []string
	if err == nil {
		files, err = findStories(flags.Args()[1:])
	}
	if err == nil && *live {
		var home bus.Home
		home, err = bus.DefaultHome()
		p.options = harness.Options{Live: true, Config: home.Config}
	}
	if err != nil {
		fmt.Fprintln(stderr, "stories:", err)
		return 2
	}
	if !p.play(ctx, files) {
		return 1
	}
	return 0
}

// findStories returns the named files, whatever their names, and the .yaml files in the named folders; without names
// those in the folder stories. A name that does not exist and a folder without stories are errors.
func findStories(names []string) (files []string, err error) {
	if len(names) == 0 {
		names = []string{"stories"}
	}
	for _, name := range names {
		found := []string{name}
		info, err := os.Stat(name)
		if err == nil && info.IsDir() {
			found, err = filepath.Glob(filepath.Join(name, "*.yaml"))
		}
		switch {
		case err != nil:
			return nil, err
		case len(found) == 0:
			return nil, fmt.Errorf("there are no stories in %s: they end in .yaml", name)
		}
		files = append(files, found...)
	}
	return files, nil
}

// player runs stories and prints their results.
type player struct {
	out     io.Writer
	options harness.Options
	verbose bool // events of every story

	passed, failed, skipped int
}

// play runs the stories one after the other and reports whether all were run and none failed. An interrupt ends it;
// the interrupted story has no result.
func (p *player) play(ctx context.Context, files []string) bool {
	begun := time.Now()
	for _, file := range files {
		s, err := story.Load(file)
		if err != nil {
			p.failed++
			fmt.Fprintf(p.out, "FAIL  %s\n      %v\n", file, err)
			continue
		}
		result := harness.RunStory(ctx, s, p.options, story.Options{})
		if ctx.Err() != nil {
			break
		}
		p.print(result)
	}
	count := p.passed + p.failed + p.skipped
	fmt.Fprintf(p.out, "%d of %d stories: %d ok, %d failed, %d skipped  (%.1f s)\n", count, len(files), p.passed,
		p.failed, p.skipped, time.Since(begun).Seconds())
	return p.failed == 0 && count == len(files)
}

// print counts a result and prints it: a line, then the failed expectations and the events.
func (p *player) print(r story.Result) {
	word, note := "ok", fmt.Sprintf("%.1f s", r.Took.Seconds())
	switch {
	case !r.OK():
		word = "FAIL"
		p.failed++
	case r.Skipped != "":
		word, note = "skip", r.Skipped
		p.skipped++
	default:
		p.passed++
	}
	fmt.Fprintf(p.out, "%-4s  %s %s  (%s)\n", word, r.Story, r.Title, note)
	if p.verbose || !r.OK() {
		for line := range strings.Lines(r.Report()) {
			fmt.Fprint(p.out, "      "+line)
		}
	}
}
