package subjects

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrToken means that a string is no valid token of a subject.
var ErrToken = errors.New("not a valid subject token")

// CheckToken rejects s unless it is one valid token: ASCII letters, digits, '_' and '-', 1 to [MaxToken] characters.
// Every character with a meaning in NATS (".", "*", ">", "$", space, "{{") is rejected. The error wraps [ErrToken] and
// quotes s, shortened.
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
			return fmt.Errorf("%w: %q", ErrToken, clipForError(s))
		}
	}
	return nil
}

// clipForError shortens an untrusted string to about 40 bytes for an error, at a character boundary, with "..." after a
// cut. It does not escape: quote the result.
func clipForError(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) { // bounded, in case it is no UTF-8
		end--
	}
	return s[:end] + "..."
}

// Match reports whether subject matches pattern, and returns the tokens at each "*", then those at ">". ">" needs at
// least one token. Tokens are not validated, and those at ">" may be empty: the caller must use [CheckToken] before it
// trusts one.
func Match(pattern, subject string) (tokens []string, ok bool) {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		if p == ">" {
			for token := range strings.SplitSeq(subject, ".") {
				tokens = append(tokens, token)
			}
			return tokens, subject != ""
		}
		s, srest, smore := strings.Cut(subject, ".")
		switch {
		case p == "*":
			if s == "" {
				return nil, false
			}
			if tokens == nil {
				tokens = make([]string, 0, 4)
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

// Overlap reports whether some subject matches both patterns, either of which may be a plain subject. ">" is a wildcard
// at the end only.
func Overlap(a, b string) bool {
	if a != "" && b != "" && a[0] != b[0] && !isWildcard(a[0]) && !isWildcard(b[0]) {
		return false // most pairs: the rules of a layout compare every subject with many
	}
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		switch {
		case x == ">" || y == ">":
			return true
		case x != y && x != "*" && y != "*":
			return false
		case !moreA || !moreB:
			return moreA == moreB
		}
		a, b = restA, restB
	}
}

// isWildcard reports whether a token that begins with c may be a wildcard.
func isWildcard(c byte) bool { return c == '*' || c == '>' }

// Caller is the sender of a request: the account that the server wrote into the subject, and the spawn chain below it.
type Caller struct {
	Account string
	Path    []string // "coder-2", "researcher-5": claimed by the account, to be checked against the spawn registry
}

// ID is the caller in the audit log and in events: account and spawn chain, joined by dots.
func (c Caller) ID() string {
	if len(c.Path) == 0 {
		return c.Account
	}
	return strings.Join(c.Lineage(), ".")
}

// Lineage returns the account and the spawn chain below it, root first.
func (c Caller) Lineage() []string { return append([]string{c.Account}, c.Path...) }

// MaxDepth bounds a spawn chain; the server's permissions deny longer ones.
const MaxDepth = 4

// ParseToolRequest parses agent.<account>.tool.request.<tool>[.<path>], where path is the spawn chain; an empty path is
// the account's own agent. It rejects invalid or empty tokens, chains deeper than [MaxDepth], which the server's
// wildcards may let through, and more than MaxSubject characters. Whether account and tool exist is not checked.
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

// ParseAgentSubject parses agent.<account>.<action>[.<path>], where action may hold dots. It rejects another action,
// and what [ParseToolRequest] rejects.
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
