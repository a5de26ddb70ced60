package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// ArgumentsLayer denies arguments that are not valid for the tool's pinned schema. It fails closed: a schema that is
// missing, does not compile or takes too long to check denies the call. The zero value works; a layer of
// [newArgumentsLayer] caches compiled schemas.
type ArgumentsLayer struct {
	schemas *jsonschema.Cache[*jsonschema.Schema]
}

// newArgumentsLayer returns a layer that compiles each schema once.
func newArgumentsLayer() ArgumentsLayer {
	return ArgumentsLayer{&jsonschema.Cache[*jsonschema.Schema]{}}
}

// Name implements [Layer].
func (ArgumentsLayer) Name() string { return "arguments" }

// Rules of the arguments layer.
const (
	ruleNoSchema     = "no_schema"   // the tool publishes no schema
	ruleBadSchema    = "bad_schema"  // the schema does not compile, so no arguments are valid
	ruleTooLarge     = "too_large"   // more bytes than the tool accepts
	ruleMalformed    = "unreadable"  // not JSON, or JSON that parsers interpret differently
	ruleMismatch     = "mismatch"    // not valid for the schema
	ruleTooComplex   = "too_complex" // validation exceeds its step limit
	ruleNulInPath    = "nul"         // a NUL byte in a path, where C programs end the path and Go does not
	ruleArgumentCase = "misspelling" // an argument name that differs from a declared one only in case
)

// maxArgumentBytes is the upper limit of the arguments of any tool, in bytes. Tool.MaxArgs can only lower it.
const maxArgumentBytes = 4 << 20

// Judge denies arguments over maxArgumentBytes or the tool's MaxArgs, arguments that [parseArgs] rejects or that are
// not valid for the pinned schema, and paths with a NUL byte. It also denies every call of a tool whose schema is
// missing or does not compile, and a check over its step limit. It never asks.
func (l ArgumentsLayer) Judge(_ context.Context, c Call) Verdict {
	maxBytes := maxArgumentBytes
	if c.Tool.MaxArgs > 0 {
		maxBytes = min(maxBytes, c.Tool.MaxArgs)
	}
	if len(c.Args) > maxBytes {
		return Deny(ruleTooLarge, fmt.Sprintf("%d bytes of arguments for %s; send less", len(c.Args), c.Tool.Name),
			fmt.Sprintf("at most %d bytes", maxBytes))
	}
	if s := bytes.TrimSpace(c.Schema); len(s) == 0 || string(s) == "null" {
		return Deny(ruleNoSchema, c.Tool.Name+" publishes no schema for its arguments, so they cannot be checked; "+
			"add a schema to the tool")
	}
	s, err := l.schemas.Get(c.Schema, jsonschema.Compile)
	if err != nil {
		return Deny(ruleBadSchema, fmt.Sprintf("the schema of %s is not supported: %v; correct the schema of the tool",
			c.Tool.Name, err))
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
			return Deny(ruleNulInPath, fmt.Sprintf("%q contains a NUL byte; remove it from the path", name))
		}
	}
	var invalid *jsonschema.Error
	switch err := s.Validate(args); {
	case errors.As(err, &invalid):
		return Deny(ruleMismatch, invalid.Error(), invalid.Allowed...)
	case err != nil:
		return Deny(ruleTooComplex, fmt.Sprintf("checking the arguments of %s takes too many steps; send fewer or "+
			"simpler ones", c.Tool.Name))
	}
	return Pass()
}

// parseArgs parses the arguments of a call into an object; nil means that the verdict denies the call. It rejects
// everything but one JSON object, and JSON that [strict.Parse] rejects. Every layer that reads an argument by name
// must parse with parseArgs, because it denies names that differ from a declared one only in case: a tool that ignores
// case would use an argument that no layer has checked.
func parseArgs(c Call) (*strict.Value, Verdict) {
	args, err := strict.Parse(c.Args)
	switch {
	case err != nil:
		return nil, Deny(ruleMalformed, fmt.Sprintf("the arguments of %s are rejected: %v", c.Tool.Name, err),
			"one JSON object")
	case args.Type != strict.Object:
		return nil, Deny(ruleMalformed, fmt.Sprintf("the arguments of %s must be an object, got %s", c.Tool.Name,
			args.Type), "one JSON object")
	}
	for _, m := range args.Members {
		if name := c.Tool.misspelled(m.Name); name != "" {
			return nil, Deny(ruleArgumentCase, fmt.Sprintf("the argument %q must be written %q",
				text.OneLine(m.Name, 40), name), name)
		}
	}
	return &args, Verdict{}
}

// misspelled returns the declared argument that differs from arg only in case, the first of several; "" for none.
func (t Tool) misspelled(arg string) (first string) {
	differs := func(name string) bool { return name != arg && strings.EqualFold(name, arg) }
	if i := slices.IndexFunc(t.Paths, differs); i >= 0 {
		return t.Paths[i]
	}
	for name := range t.Args {
		if differs(name) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}
