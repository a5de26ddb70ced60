package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/story"
)

// StoryReport is the result of a run of stories.
type StoryReport struct {
	OK      bool          `json:"ok"`
	Ran     int           `json:"ran"`
	Failed  int           `json:"failed"`
	Skipped int           `json:"skipped"`
	Millis  int64         `json:"ms"`
	Stories []storyResult `json:"stories"`
}

type storyResult struct {
	Story    string          `json:"story"`
	File     string          `json:"file"`
	Title    string          `json:"title"`
	OK       bool            `json:"ok"`
	Skipped  string          `json:"skipped,omitempty"`
	Millis   int64           `json:"ms"`
	Failures []story.Failure `json:"failures,omitempty"`
	Events   []string        `json:"events,omitempty"`
	Asked    []string        `json:"asked,omitempty"`
}

// NewStoryReport counts results. A failed story counts as run, a skipped one does not. Events and model requests are
// included for failed stories, and for all with verbose.
func NewStoryReport(results []story.Result, took time.Duration, verbose bool) StoryReport {
	out := StoryReport{Millis: took.Milliseconds(), Stories: []storyResult{}}
	for _, res := range results {
		s := storyResult{
			Story: res.Story, File: res.File, Title: res.Title, OK: res.OK(), Skipped: res.Skipped,
			Millis: res.Took.Milliseconds(), Failures: res.Failures,
		}
		if verbose || !res.OK() {
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

// Print prints the counts on one line.
func (r StoryReport) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d ok, %d failed, %d skipped  (%s)\n", term.Count(len(r.Stories), "story", "stories"),
		r.Ran-r.Failed, r.Failed, r.Skipped, seconds(time.Duration(r.Millis)*time.Millisecond))
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// Story prints the result of a story: ok, FAIL or skip on a line, the failed expectations with the events when it
// failed, and with verbose the events also when it did not.
func Story(w io.Writer, res story.Result, verbose bool) error {
	word, colour, note := "ok", term.Green, seconds(res.Took)
	switch {
	case !res.OK():
		word, colour = "FAIL", term.Red
	case res.Skipped != "":
		word, colour, note = "skip", term.Yellow, term.Plain(res.Skipped)
	}
	_, err := fmt.Fprintf(w, "%s%s  %s  (%s)\n", term.Paint(w, colour, word), strings.Repeat(" ", 4-len(word)),
		term.Plain(strings.TrimSpace(res.Story+" "+res.Title)), note)
	text := res.Report()
	switch {
	case !res.OK() && res.Took == 0: // it never started, so there are no events
		text, _, _ = strings.Cut(text, "\n  events: none\n")
		text = strings.TrimSuffix(text, "\n") + "\n"
	case res.OK() && verbose:
		text = ""
		for _, e := range res.Events {
			text += fmt.Sprintln(e)
		}
		for _, a := range res.ModelRequests {
			text += "model " + a + "\n"
		}
	}
	for l := range strings.Lines(term.PlainText(text)) {
		fmt.Fprint(w, "      "+l)
	}
	return err
}
