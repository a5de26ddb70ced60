package strict

import (
	"errors"
	"fmt"
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

// Err joins the problems into one error, nil when there are none.
func (p Problems) Err() error {
	errs := make([]error, len(p))
	for i := range p {
		errs[i] = p[i]
	}
	return errors.Join(errs...)
}
