package text

import (
	"regexp"
	"sync"
)

// Pattern returns a function that compiles an expression at its first call and returns it. It is for the large
// expressions in variables of packages: every command would compile them at its start, and few commands use them. The
// function panics on an invalid expression.
func Pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
