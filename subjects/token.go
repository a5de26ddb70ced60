package subjects

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrToken means that a string may not stand in a subject.
var ErrToken = errors.New("not a valid subject token")

// CheckToken reports whether s may stand as one token of a subject: letters, digits, '_' and '-', at most [MaxToken].
// Everything NATS gives a meaning to (".", "*", ">", "$", spaces, "{{") is outside that set on purpose.
func CheckToken(s string) error {
	if s == "" {
		return fmt.Errorf("%w: empty", ErrToken)
	}
	if len(s) > MaxToken {
		return fmt.Errorf("%w: %d characters, at most %d", ErrToken, len(s), MaxToken)
	}
	for i := range len(s) {
		c := s[i]
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return fmt.Errorf("%w: %q", ErrToken, clip(s))
		}
	}
	return nil
}

// clip keeps an error about a hostile string short.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) { // a whole character, and no long search in what is no text
		end--
	}
	return s[:end] + "..."
}

// Match reports whether subject matches pattern, and the tokens that stood for each "*", then those for ">".
// The subject's tokens are not validated: whoever uses them calls [CheckToken].
func Match(pattern, subject string) (tokens []string, ok bool) {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		if p == ">" {
			return append(tokens, strings.Split(subject, ".")...), subject != ""
		}
		s, srest, smore := strings.Cut(subject, ".")
		switch {
		case p == "*":
			if s == "" {
				return nil, false
			}
			tokens = append(tokens, s)
		case p != s:
			return nil, false
		}
		if pmore != smore {
			return nil, false
		}
		if !pmore {
			return tokens, true
		}
		pattern, subject = prest, srest
	}
}

// Overlap reports whether some subject matches both patterns. The rules of the table are built on it.
func Overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(x) && i == len(y):
			return true
		case i == len(x) || i == len(y):
			return false
		case x[i] == ">" || y[i] == ">":
			return true
		case x[i] == y[i] || x[i] == "*" || y[i] == "*":
		default:
			return false
		}
	}
}

// Caller is who asks: the account that the server wrote into the subject and the path of spawned agents below it.
type Caller struct {
	Account string
	Path    []string // "coder-2", "researcher-5": claimed by the root, checked against the spawn registry
}

// ID names the caller in the audit and in events.
func (c Caller) ID() string {
	return strings.Join(append([]string{c.Account}, c.Path...), ".")
}

// MaxDepth is how deep agents may be spawned; the server refuses longer paths.
const MaxDepth = 4

// ParseToolRequest reads agent.<account>.tool.request.<tool>[.<path>], the whole shape of it. It refuses what the
// server lets through as text: odd tokens, empty ones, paths that are too deep.
func ParseToolRequest(subject string) (c Caller, tool string, err error) {
	t, ok := Match("agent.*.tool.request.>", subject)
	if !ok || len(subject) > MaxSubject {
		return c, "", fmt.Errorf("%w: not a tool request", ErrToken)
	}
	for _, tok := range t {
		if err := CheckToken(tok); err != nil {
			return c, "", err
		}
	}
	if len(t)-2 > MaxDepth {
		return c, "", fmt.Errorf("%w: path deeper than %d", ErrToken, MaxDepth)
	}
	return Caller{Account: t[0], Path: t[2:]}, t[1], nil
}

// ParseAgentSubject reads agent.<account>.<action>[.<path>], where action may hold dots: who asks, and below whom.
func ParseAgentSubject(action, subject string) (c Caller, err error) {
	t, ok := Match("agent.*.>", subject)
	if !ok || len(subject) > MaxSubject {
		return c, fmt.Errorf("%w: not of an agent", ErrToken)
	}
	words := strings.Split(action, ".")
	if len(t) < 1+len(words) || strings.Join(t[1:1+len(words)], ".") != action {
		return c, fmt.Errorf("%w: not %s", ErrToken, action)
	}
	path := t[1+len(words):]
	for _, tok := range append([]string{t[0]}, path...) {
		if err := CheckToken(tok); err != nil {
			return c, err
		}
	}
	if len(path) > MaxDepth {
		return c, fmt.Errorf("%w: path deeper than %d", ErrToken, MaxDepth)
	}
	return Caller{Account: t[0], Path: path}, nil
}
