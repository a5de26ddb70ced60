package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
)

// ArgumentsLayer refuses arguments that do not fit the tool's schema as it was pinned. It checks with a checker of our
// own: one that numbers do not round, that no schema can send into the depths, and that refuses what it does not
// understand. The zero value works; one made by [NewArgumentsLayer] remembers the schemas it has read.
type ArgumentsLayer struct{ schemas *schemas }

// NewArgumentsLayer returns a layer that reads each schema once.
func NewArgumentsLayer() ArgumentsLayer { return ArgumentsLayer{&schemas{}} }

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
	if s := strings.TrimSpace(string(c.Schema)); s == "" || s == "null" {
		return Deny(RuleNoSchema, c.Tool.Name+" published no schema of its arguments, so none can be checked; give the tool one")
	}
	s, err := l.schemas.read(c.Schema)
	if err != nil {
		return Deny(RuleBadSchema, fmt.Sprintf("the schema of %s cannot be used: %v; the tool has to be mended", c.Tool.Name, err))
	}
	args, v := readArgs(c)
	if args == nil {
		return v
	}
	for _, name := range c.Tool.Paths {
		a := args.at(name)
		if a == nil {
			continue
		}
		paths, _ := a.stringsOf()
		if slices.ContainsFunc(paths, func(p string) bool { return strings.ContainsRune(p, 0) }) {
			return Deny(RuleNulInPath, fmt.Sprintf("%q holds a NUL byte; write the path without it", name))
		}
	}
	ch := checker{work: maxWork}
	if ok := ch.check(s, args, nil, 0); ch.spent {
		return Deny(RuleTooComplex, fmt.Sprintf("checking the arguments of %s takes too much work; send fewer or simpler ones", c.Tool.Name))
	} else if !ok {
		return Deny(RuleMismatch, or(ch.wrong, "the arguments do not fit the schema of "+c.Tool.Name), ch.allowed...)
	}
	return Pass()
}

// readArgs reads the arguments of a call, or refuses. Every layer that looks at one by its name reads them here: an
// argument that is there twice, or under its name in other letters, must not be seen by the tool alone.
func readArgs(c Call) (*value, Verdict) {
	args, err := readJSON(c.Args)
	switch {
	case err != nil:
		return nil, Deny(RuleUnreadable, fmt.Sprintf("the arguments of %s cannot be read: %v", c.Tool.Name, err), "one JSON object")
	case args.kind != jsonObject:
		return nil, Deny(RuleUnreadable, fmt.Sprintf("the arguments of %s are not an object but of type %s", c.Tool.Name, args.kind), "one JSON object")
	}
	for _, m := range args.members {
		for _, names := range [][]string{c.Tool.Paths, {c.Tool.URL, c.Tool.Query}, c.Tool.Sinks, c.Tool.Content} {
			for _, name := range names {
				if name != m.key && strings.EqualFold(name, m.key) {
					return nil, Deny(RuleMisspelling, fmt.Sprintf("the argument %q must be written %q", text.OneLine(m.key, 40), name), name)
				}
			}
		}
	}
	return &args, Verdict{}
}

// schemas keeps what was read, what could not be read too. Tools are few; when there are more than it has room for, or
// somebody sends ever new ones, it starts again. Nil keeps nothing.
type schemas struct {
	mu    sync.RWMutex
	kept  map[string]compiled // by the text itself: no hash can be forged
	bytes int
}

type compiled struct {
	schema *schema
	err    error
}

// Room of a schemas.
const (
	maxKept      = 512
	maxKeptBytes = 4 << 20
)

func (s *schemas) read(raw []byte) (*schema, error) {
	if s == nil || len(raw) > maxSchemaBytes {
		return compileSchema(raw)
	}
	s.mu.RLock()
	c, ok := s.kept[string(raw)]
	s.mu.RUnlock()
	if ok {
		return c.schema, c.err
	}
	c.schema, c.err = compileSchema(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil || len(s.kept) >= maxKept || s.bytes+len(raw) > maxKeptBytes {
		s.kept, s.bytes = map[string]compiled{}, 0
	}
	if _, twice := s.kept[string(raw)]; !twice {
		s.kept[string(raw)] = c
		s.bytes += len(raw)
	}
	return c.schema, c.err
}
