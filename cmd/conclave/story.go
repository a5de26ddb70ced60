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

	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/stories/harness"
)

// storyCommand runs acceptance stories.
func (a *app) storyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "story",
		Short: "Run acceptance stories",
		Long: `Stories are YAML files: questions, and what must come of them on the bus, in payloads and in answers. Each is played on
a Conclave of its own, with its own folder, keys and ports. Nothing that runs on this machine is touched.`,
		Example: `  conclave story run
  conclave story run stories/s3_web_search.yaml -v`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to do with stories: run: see %s --help", cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.storyRunCommand())
	return cmd
}

// stories is where stories are looked for when none are named.
const stories = "stories"

// storyRun is one run of several stories.
type storyRun struct {
	*app
	live    bool
	verbose bool
	junit   string
}

func (a *app) storyRunCommand() *cobra.Command {
	r := &storyRun{app: a}
	cmd := &cobra.Command{
		Use:   "run [file or folder...]",
		Short: "Play stories and compare",
		Long: `Plays the named stories, or all in the folder stories/ of the current folder, one after the other. A folder stands for
its files that end in .yaml or .yml.

A model server that follows the story's script answers. With --live the models of your own configuration answer instead:
then only what does not depend on the script is expected, and stories that are about the script are left out.

Prints a line for each story: ok, FAIL or skip, and the time. A failure says what was expected, with file and line, and
what came instead; -v shows what came of every story. --junit also writes the results into a file for build servers,
and --json prints one document at the end. Ends with exit code 1 if a story failed or could not be read.`,
		Example: `  conclave story run
  conclave story run stories/s1_capital.yaml stories/more -v
  conclave story run --live --json | jq '.stories[] | select(.ok | not)'
  conclave story run --junit results.xml`,
		RunE: func(cmd *cobra.Command, v []string) error {
			files, err := storyFiles(v)
			if err != nil {
				return err
			}
			return r.run(cmd.Context(), files)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.live, "live", false, "let the models of the configuration answer, not the script")
	f.StringVar(&r.junit, "junit", "", "write the results to this `file`, in the JUnit form")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "show what came of every story")
	return cmd
}

// storyFiles are the files of the named stories and folders, each once, in order.
func storyFiles(names []string) ([]string, error) {
	if len(names) == 0 {
		if info, err := os.Stat(stories); err != nil || !info.IsDir() {
			return nil, usage("there is no folder %s here: name the stories or their folder, or go to where it is", stories)
		}
		names = []string{stories}
	}
	var files []string
	for _, name := range names {
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, usage("there is no story %s: name a file or a folder", name)
		case err != nil:
			return nil, fmt.Errorf("looking for stories: %w", err)
		case !info.IsDir():
			files = append(files, filepath.Clean(name))
			continue
		}
		entries, err := os.ReadDir(name)
		if err != nil {
			return nil, fmt.Errorf("looking for stories: %w", err)
		}
		before := len(files)
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
				files = append(files, filepath.Join(name, e.Name()))
			}
		}
		if len(files) == before {
			return nil, usage("there are no stories in %s: they are files that end in .yaml", name)
		}
	}
	var once []string
	for _, f := range files {
		if !slices.Contains(once, f) {
			once = append(once, f)
		}
	}
	return once, nil
}

// storyReport is what --json prints.
type storyReport struct {
	OK      bool          `json:"ok"`
	Ran     int           `json:"ran"`
	Failed  int           `json:"failed"`
	Skipped int           `json:"skipped"`
	Millis  int64         `json:"ms"`
	Stories []storyResult `json:"stories"`
}

type storyResult struct {
	Story    string         `json:"story"`
	File     string         `json:"file"`
	Title    string         `json:"title"`
	OK       bool           `json:"ok"`
	Skipped  string         `json:"skipped,omitempty"`
	Millis   int64          `json:"ms"`
	Failures []storyFailure `json:"failures,omitempty"`
	Events   []string       `json:"events,omitempty"`
	Asked    []string       `json:"asked,omitempty"`
}

type storyFailure struct {
	Line int    `json:"line"`
	Text string `json:"text"`
}

func (r *storyRun) run(ctx context.Context, files []string) error {
	log := slog.New(slog.DiscardHandler)
	if r.level != "" {
		log = r.quiet()
	}
	var results []story.Result
	begun := time.Now()
	for _, file := range files {
		if ctx.Err() != nil {
			break
		}
		r.now("playing " + file)
		res := r.play(ctx, file, log)
		r.now("")
		if ctx.Err() != nil { // what is half played is no result
			break
		}
		results = append(results, res)
		if !r.json {
			if err := r.tell(res); err != nil {
				return err
			}
		}
	}
	report := r.report(results, time.Since(begun))
	if err := r.finish(report, results); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return fail(exitFailed, fmt.Sprintf("stopped after %d of %s", len(results), many(len(files))), "run it again")
	case report.Failed > 0:
		return fail(exitFailed, fmt.Sprintf("%d of %s failed", report.Failed, many(len(results))), "what was expected is above, with file and line")
	}
	return nil
}

// many is a number of stories.
func many(n int) string {
	if n == 1 {
		return "1 story"
	}
	return fmt.Sprintf("%d stories", n)
}

// now says on a terminal what is being done, until it is done.
func (r *storyRun) now(text string) {
	if columns, _, ok := terminal(r.stderr); ok {
		fmt.Fprint(r.stderr, "\r\x1b[K"+r.paint(r.stderr, dim, clip(plain(text), max(columns-1, 20))))
	}
}

// play plays the story in a file. One that cannot be read has failed.
func (r *storyRun) play(ctx context.Context, file string, log *slog.Logger) story.Result {
	s, err := story.Load(file)
	if err != nil {
		res := story.Result{Story: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), File: file}
		f := story.Failure{Line: 1, Text: err.Error()}
		var wrong *strict.Error
		if errors.As(err, &wrong) && wrong.Line > 0 {
			f = story.Failure{Line: wrong.Line, Text: strings.TrimPrefix(err.Error(), fmt.Sprintf("%s:%d: ", file, wrong.Line))}
		}
		res.Failures = []story.Failure{f}
		return res
	}
	return harness.RunStory(ctx, s, harness.Options{Live: r.live, Config: r.home.Config, Log: log}, story.Options{})
}

// tell prints what came of a story.
func (r *storyRun) tell(res story.Result) error {
	word, colour := "ok", green
	switch {
	case !res.OK():
		word, colour = "FAIL", red
	case res.Skipped != "":
		word, colour = "skip", yellow
	}
	line := fmt.Sprintf("%s%s  %s", r.paint(r.stdout, colour, word), strings.Repeat(" ", 4-len(word)), plain(strings.TrimSpace(res.Story+" "+res.Title)))
	switch {
	case res.Skipped != "":
		line += "  (" + plain(res.Skipped) + ")"
	default:
		line += fmt.Sprintf("  (%s)", seconds(res.Took))
	}
	fmt.Fprintln(r.stdout, line)
	text := res.Report()
	switch {
	case !res.OK() && res.Took == 0: // it never began, so nothing can have come of it
		text, _, _ = strings.Cut(text, "\n  events: none\n")
		text = strings.TrimSuffix(text, "\n") + "\n"
	case res.OK() && r.verbose:
		text = came(res)
	}
	for l := range strings.Lines(plainText(text)) {
		fmt.Fprint(r.stdout, "      "+l)
	}
	return r.stdout.err
}

// came is what came of a story that did not fail.
func came(res story.Result) string {
	var b strings.Builder
	for _, e := range res.Events {
		fmt.Fprintln(&b, e)
	}
	for _, a := range res.ModelRequests {
		fmt.Fprintln(&b, "model "+a)
	}
	return b.String()
}

// seconds is how long something took, for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func (r *storyRun) report(results []story.Result, took time.Duration) storyReport {
	out := storyReport{Millis: took.Milliseconds(), Stories: []storyResult{}}
	for _, res := range results {
		s := storyResult{Story: res.Story, File: res.File, Title: res.Title, OK: res.OK(), Skipped: res.Skipped, Millis: res.Took.Milliseconds()}
		for _, f := range res.Failures {
			s.Failures = append(s.Failures, storyFailure(f))
		}
		if r.verbose || !res.OK() {
			for _, e := range res.Events {
				s.Events = append(s.Events, e.String())
			}
			s.Asked = res.ModelRequests
		}
		switch {
		case !res.OK():
			out.Failed++
			out.Ran++
		case res.Skipped != "":
			out.Skipped++
		default:
			out.Ran++
		}
		out.Stories = append(out.Stories, s)
	}
	out.OK = out.Failed == 0
	return out
}

// finish prints the end of the run and writes the file for the build server.
func (r *storyRun) finish(report storyReport, results []story.Result) error {
	if r.junit != "" {
		if err := writeJUnit(r.junit, results); err != nil {
			return err
		}
	}
	if r.json {
		return r.document(report)
	}
	_, err := fmt.Fprintf(r.stdout, "%s: %d ok, %d failed, %d skipped  (%s)\n", many(len(results)),
		report.Ran-report.Failed, report.Failed, report.Skipped, seconds(time.Duration(report.Millis)*time.Millisecond))
	return err
}

func writeJUnit(file string, results []story.Result) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	if err := errors.Join(story.JUnit(f, results), f.Close()); err != nil {
		return fmt.Errorf("writing the results to %s: %w", file, err)
	}
	return nil
}
