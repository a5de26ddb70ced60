package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/stories/harness"
)

// storyCommand is the parent of the command that runs acceptance stories.
func storyCommand(a *cli.App) *cobra.Command {
	return cli.Group("story", "Run acceptance stories",
		`A story is a YAML file: questions, and what is expected of the events, payloads and answers. Each runs on a system of its own,
with its own folder, keys and ports. Nothing else on this machine is touched.`,
		`  conclave story run
  conclave story run stories/s3_web_search.yaml -v`, storyRunCommand(a))
}

// storiesFolder is where stories are looked for when none are named.
const storiesFolder = "stories"

// storyFlags are the flags of conclave story run.
type storyFlags struct {
	live    bool   // models of the configuration in place of the script
	verbose bool   // events of every story
	junit   string // file to write; "" = none
}

// storyRunCommand runs acceptance stories, each on a system of its own: the named ones, or all in [storiesFolder]. A
// story that fails or cannot be read is exit code 1.
func storyRunCommand(a *cli.App) *cobra.Command {
	o := &storyFlags{}
	cmd := &cobra.Command{
		Use:   "run [file or folder...]",
		Short: "Run stories and compare",
		Long: `Runs the named stories, or all in the folder stories/, one after the other. A folder means its files that end in .yaml or .yml.

A scripted model server gives the answers that the story defines. With --live the models of your configuration answer instead;
expectations that depend on the script are then not checked, and stories that need the script are skipped.

Prints a line for each story: ok, FAIL or skip, and the time. A failure shows the expectation with file and line, and the
events that were received; -v shows the events of every story. --junit also writes a JUnit file for build servers,
and --json prints one document at the end. The exit code is 1 if a story failed or could not be read.`,
		Example: `  conclave story run
  conclave story run stories/s1_capital.yaml stories/more -v
  conclave story run --live --json | jq '.stories[] | select(.ok | not)'
  conclave story run --junit results.xml`,
		RunE: func(cmd *cobra.Command, v []string) error {
			files, err := findStories(v)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), a, files)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.live, "live", false, "use the models of the configuration, not the script")
	f.StringVar(&o.junit, "junit", "", "write the results to this `file` in JUnit format")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show the events of every story")
	return cmd
}

// findStories returns the files of the named stories and folders, each once, in order; no names mean [storiesFolder]. A
// name that does not exist, and a folder without stories, are usage errors.
func findStories(names []string) ([]string, error) {
	if len(names) == 0 {
		if info, err := os.Stat(storiesFolder); err != nil || !info.IsDir() {
			return nil, cli.Usage("there is no folder %s here: name the stories or their folder", storiesFolder)
		}
		names = []string{storiesFolder}
	}
	var files []string
	for _, name := range names {
		found, err := storiesIn(name)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files, nil
}

// storiesIn returns a file itself, whatever its name, or the .yaml and .yml files directly in a folder, sorted. A
// folder without any is a usage error.
func storiesIn(name string) (files []string, err error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cli.Usage("there is no story %s: name a file or a folder", name)
	case err != nil:
		return nil, fmt.Errorf("finding stories: %w", err)
	case !info.IsDir():
		return []string{filepath.Clean(name)}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fmt.Errorf("finding stories: %w", err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, cli.Usage("there are no stories in %s: they end in .yaml", name)
	}
	return files, nil
}

// run runs the stories one after the other and prints each result and the summary. A failed story does not stop the
// others and is an error at the end. An interrupt ends the run and is an error too; the interrupted story has no
// result.
func (o *storyFlags) run(ctx context.Context, a *cli.App, files []string) error {
	log := slog.New(slog.DiscardHandler)
	if a.Level != "" {
		log = a.QuietLogger()
	}
	var results []story.Result
	begun := time.Now()
	line := term.NewProgress(a.Err)
	for _, file := range files {
		if ctx.Err() != nil {
			break
		}
		line.Draw("%s", term.Paint(a.Err, term.Dim, "running "+term.Plain(file)))
		res := o.play(ctx, a, file, log)
		line.Clear()
		if ctx.Err() != nil { // an interrupted story has no result
			break
		}
		results = append(results, res)
		if !a.JSON {
			if err := view.Story(a.Out, res, o.verbose); err != nil {
				return err
			}
		}
	}
	report := view.NewStoryReport(results, time.Since(begun), o.verbose)
	if err := o.finish(a, report, results); err != nil {
		return err
	}
	stories := func(n int) string { return term.Count(n, "story", "stories") }
	switch {
	case ctx.Err() != nil:
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("stopped after %d of %s", len(results), stories(len(files))),
			"run it again")
	case report.Failed > 0:
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("%d of %s failed", report.Failed, stories(len(results))),
			"the failed expectations are above, with file and line")
	}
	return nil
}

// play runs the story in a file. A file that cannot be read is the result of a failed story, at the line of the mistake
// or at 1.
func (o *storyFlags) play(ctx context.Context, a *cli.App, file string, log *slog.Logger) story.Result {
	s, err := story.Load(file)
	if err != nil {
		res := story.Result{Story: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), File: file}
		f := story.Failure{Line: 1, Text: err.Error()}
		var wrong *strict.Error
		if errors.As(err, &wrong) && wrong.Line > 0 {
			f = story.Failure{
				Line: wrong.Line,
				Text: strings.TrimPrefix(err.Error(), fmt.Sprintf("%s:%d: ", file, wrong.Line)),
			}
		}
		res.Failures = []story.Failure{f}
		return res
	}
	return harness.RunStory(ctx, s, harness.Options{Live: o.live, Config: a.Home.Config, Log: log}, story.Options{})
}

// finish writes the JUnit file, if one was named, replacing an existing one, and prints the summary.
func (o *storyFlags) finish(a *cli.App, report view.StoryReport, results []story.Result) error {
	if o.junit != "" {
		f, err := os.Create(o.junit)
		if err != nil {
			return fmt.Errorf("writing the results: %w", err)
		}
		if err := errors.Join(story.JUnit(f, results), f.Close()); err != nil {
			return fmt.Errorf("writing the results to %s: %w", o.junit, err)
		}
	}
	if a.JSON {
		return a.PrintJSON(report)
	}
	return report.Print(a.Out)
}
