package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
)

// ArgumentsLayer denies arguments that are not valid for the tool's pinned schema. It fails closed: a schema that is
// missing, does not compile or takes too long to check denies the call. The zero value works; a layer of
// [NewArgumentsLayer] caches compiled schemas.
type ArgumentsLayer struct{ schemas *jsonschema.Cache }

// NewArgumentsLayer returns a layer that compiles each schema once.
func NewArgumentsLayer() ArgumentsLayer { return ArgumentsLayer{&jsonschema.Cache{}} }

// Name implements [Layer].
func (ArgumentsLayer) Name() string { return "arguments" }

// Rules of the arguments layer.
const (
	RuleNoSchema    = "no_schema"   // the tool published no schema
	RuleBadSchema   = "bad_schema"  // the tool's schema cannot be understood, so nothing fits it
	RuleTooLarge    = "too_large"   // more bytes than the tool takes
	RuleUnreadable  = "unreadable"  // not JSON, or JSON that readers take in different ways
	RuleMismatch    = "mismatch"    // it does not fit the schema
	RuleTooComplex  = "too_complex" // it takes more work to check than a call is worth
	RuleNulInPath   = "nul"         // a NUL byte in a path: readers end it there, or do not
	RuleMisspelling = "misspelling" // an argument whose name is written in other letters than the tool's
)

// maxArgs is the most bytes of arguments of any tool.
const maxArgs = 4 << 20

// Judge implements [Layer].
func (l ArgumentsLayer) Judge(_ context.Context, c Call) Verdict {
	most := maxArgs
	if c.Tool.MaxArgs > 0 {
		most = min(most, c.Tool.MaxArgs)
	}
	if len(c.Args) > most {
		return Deny(RuleTooLarge, fmt.Sprintf("%d bytes of arguments for %s; send less", len(c.Args), c.Tool.Name), fmt.Sprintf("at most %d bytes", most))
	}
	if s := bytes.TrimSpace(c.Schema); len(s) == 0 || string(s) == "null" {
		return Deny(RuleNoSchema, c.Tool.Name+" publishes no schema for its arguments, so they cannot be checked; add a schema to the tool")
	}
	s, err := l.schemas.Compile(c.Schema)
	if err != nil {
		return Deny(RuleBadSchema, fmt.Sprintf("the schema of %s is not supported: %v; correct the schema of the tool", c.Tool.Name, err))
	}
	args, v := parseArgs(c)
	if args == nil {
		return v
	}
	for _, name := range c.Tool.Paths {
		a := args.Member(name)
		if a == nil {
			continue
		}
		paths, _ := a.Strings()
		if slices.ContainsFunc(paths, func(p string) bool { return strings.ContainsRune(p, 0) }) {
			return Deny(RuleNulInPath, fmt.Sprintf("%q holds a NUL byte; write the path without it", name))
		}
	}
	var invalid *jsonschema.Error
	switch err := s.Validate(args); {
	case errors.As(err, &invalid):
		return Deny(RuleMismatch, invalid.Error(), invalid.Allowed...)
	case err != nil:
		return Deny(RuleTooComplex, fmt.Sprintf("checking the arguments of %s takes too many steps; send fewer or simpler ones", c.Tool.Name))
	}
	return Pass()
}

// parseArgs parses the arguments of a call into an object; nil means that the verdict denies the call. Every layer that
// reads an argument by name parses here, because it denies names that differ from a declared one only in case: a tool
// that ignores case would use an argument that no layer has checked.
func parseArgs(c Call) (*jsonschema.Value, Verdict) {
	args, err := jsonschema.Parse(c.Args)
	switch {
	case err != nil:
		return nil, Deny(RuleUnreadable, fmt.Sprintf("the arguments of %s are rejected: %v", c.Tool.Name, err), "one JSON object")
	case args.Type != jsonschema.Object:
		return nil, Deny(RuleUnreadable, fmt.Sprintf("the arguments of %s must be an object, got %s", c.Tool.Name, args.Type), "one JSON object")
	}
	for _, m := range args.Members {
		for _, names := range [][]string{c.Tool.Paths, {c.Tool.URL, c.Tool.Query}, c.Tool.Sinks, c.Tool.Content} {
			for _, name := range names {
				if name != m.Name && strings.EqualFold(name, m.Name) {
					return nil, Deny(RuleMisspelling, fmt.Sprintf("the argument %q must be written %q", text.OneLine(m.Name, 40), name), name)
				}
			}
		}
	}
	return &args, Verdict{}
}
