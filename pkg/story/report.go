package story

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Result is the outcome of a story.
type Result struct {
	Story         string
	File          string
	Title         string
	Skipped       string // why it was not run; "" = it was run
	Failures      []Failure
	Took          time.Duration
	Events        []Event  // of the story, in order
	ModelRequests []string // to the scripted model server
}

// Failure is one expectation that was not met.
type Failure struct {
	Line int // of the expectation in the story
	Text string
}

// Failed is the result of a story that could not be run.
func Failed(s *Story, err error) Result {
	r := Result{Story: s.ID, File: s.file, Title: s.Title}
	r.fail(s, "", "%v", err)
	return r
}

// Skipped is the result of a story that was not run.
func Skipped(s *Story, why string) Result {
	return Result{Story: s.ID, File: s.file, Title: s.Title, Skipped: why}
}

func (r *Result) fail(s *Story, path, format string, a ...any) {
	r.Failures = append(r.Failures, Failure{Line: s.Line(path), Text: fmt.Sprintf(format, a...)})
}

// OK reports whether nothing failed.
func (r Result) OK() bool { return len(r.Failures) == 0 }

// Report lists the failures with file and line, then the events and model requests.
func (r Result) Report() string {
	var b strings.Builder
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "%s:%d: %s\n", r.File, f.Line, f.Text)
	}
	list := func(title string, n int, line func(int) string) {
		if n == 0 {
			fmt.Fprintf(&b, "  %s: none\n", title)
			return
		}
		fmt.Fprintf(&b, "  %s:\n", title)
		for i := range n {
			fmt.Fprintf(&b, "    %s\n", line(i))
		}
	}
	list("events", len(r.Events), func(i int) string { return r.Events[i].String() })
	list("model requests", len(r.ModelRequests), func(i int) string { return r.ModelRequests[i] })
	return b.String()
}

// newID returns a random id that is a valid subject token.
func newID() string {
	var b [12]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
