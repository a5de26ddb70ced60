package strict

import (
	"errors"
	"fmt"
	"time"
)

// Problem is one setting with a well-formed but invalid value. The loader of the configuration prefixes its source.
type Problem struct {
	Path string // the field, as in [Lines]
	Text string // what is wrong, and what to write instead
}

// Error implements error.
func (p Problem) Error() string { return p.Path + ": " + p.Text }

// Problems are everything wrong with one section of a configuration.
type Problems []Problem

// Add appends a problem.
func (p *Problems) Add(path, format string, a ...any) {
	*p = append(*p, Problem{Path: path, Text: fmt.Sprintf(format, a...)})
}

// CheckInt adds a problem when n is not between least and most, both included.
func (p *Problems) CheckInt(path string, n, least, most int) {
	if n < least || n > most {
		p.Add(path, "%d is not between %d and %d", n, least, most)
	}
}

// CheckDuration adds a problem when d is not between least and most, both included.
func (p *Problems) CheckDuration(path string, d, least, most time.Duration) {
	if d < least || d > most {
		p.Add(path, "%s is not between %s and %s", FormatDuration(d), FormatDuration(least), FormatDuration(most))
	}
}

// Err joins the problems into one error, nil when there are none.
func (p Problems) Err() error {
	errs := make([]error, len(p))
	for i := range p {
		errs[i] = p[i]
	}
	return errors.Join(errs...)
}
