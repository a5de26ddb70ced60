package story

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
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
	Line int    `json:"line"`
	Text string `json:"text"`
	Path string `json:"path"` // of the expectation in the story; "" = the run itself
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
	r.Failures = append(r.Failures, Failure{Line: s.Line(path), Path: path, Text: fmt.Sprintf(format, a...)})
}

// OK reports whether nothing failed.
func (r Result) OK() bool { return len(r.Failures) == 0 }

// Report lists the failures with file and line, then the events and model requests. It is "" without a failure.
func (r Result) Report() string {
	if r.OK() {
		return ""
	}
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

// JUnit writes results to w as one test suite in the JUnit XML format. A failure has the report as its text.
func JUnit(w io.Writer, results []Result) error {
	type note struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string `xml:"name,attr"`
		Class   string `xml:"classname,attr"`
		File    string `xml:"file,attr"`
		Time    string `xml:"time,attr"`
		Failure *note  `xml:"failure"`
		Skipped *note  `xml:"skipped"`
	}
	type suite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"time,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
	s := suite{Name: "stories", Tests: len(results)}
	var took time.Duration
	for _, r := range results {
		took += r.Took
		c := testcase{Name: r.Story + " " + r.Title, Class: "stories", File: r.File, Time: seconds(r.Took)}
		switch {
		case !r.OK():
			s.Failures++
			c.Failure = &note{Message: r.Failures[0].Text, Text: r.Report()}
		case r.Skipped != "":
			s.Skipped++
			c.Skipped = &note{Message: r.Skipped}
		}
		s.Cases = append(s.Cases, c)
	}
	s.Time = seconds(took)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(s); err != nil {
		return fmt.Errorf("writing JUnit results: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// newID returns a random id that is a valid subject token.
func newID() string {
	var b [12]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
