package firewall

import (
	"sort"
	"strings"
)

// attackTopics are the words of people who write about attacks on models.
var attackTopics = []string{
	"injection", "jailbreak", "red team", "red-team", "redteam", "adversarial", "attack", "malicious", "guardrail",
	"vulnerab", "exploit",
	"poisoning", "hijack", "untrusted",
}

// halveExamples halves the weight of signs that are shown as examples: in a fenced block or a quotation, in a text with
// at least two of attackTopics. Signs of a decoded layer keep their weight. An attacker can dress up like that, and
// then only the weight is less: the findings stay in the report, and strong signs together still flag the text.
func (s *scanner) halveExamples() {
	if len(s.hits) == 0 {
		return
	}
	said := 0
	for _, t := range attackTopics {
		if strings.Contains(s.text, t) {
			said++
		}
	}
	if said < 2 {
		return
	}
	fences := findFences(s.text)
	for i := range s.hits {
		h := &s.hits[i]
		if h.orig >= 0 && (fences.holds(h.pos) || s.isQuotedAt(h.pos)) {
			h.weight = (h.weight + 1) / 2
		}
	}
}

// codeFences is where code blocks begin and end, by turns.
type codeFences []int

// findFences returns the offsets of the ``` that open and close code blocks, beginning with an opening one; 0 when the
// text begins inside of a block. A block that is not closed goes on to the end. A fence with the name of a language
// never closes one.
func findFences(text string) codeFences {
	var at codeFences
	inside := false
	for from := 0; ; {
		i := strings.Index(text[from:], "```")
		if i < 0 {
			return at
		}
		i += from
		from = i + 3
		// A fence with the name of a language opens a block. When the first is bare and the next has one, the text was
		// cut out of a longer one and begins inside of a block.
		named := from < len(text) && isWordByte[text[from]]
		if len(at) == 0 && !named && !inside {
			if next := strings.Index(text[from:], "```"); next >= 0 && from+next+3 < len(text) &&
				isWordByte[text[from+next+3]] {
				at = append(at, 0)
				inside = true
			}
		}
		if inside && named {
			continue
		}
		inside = !inside
		at = append(at, i)
	}
}

// holds reports whether pos is inside of a block.
func (f codeFences) holds(pos int) bool {
	n := sort.SearchInts(f, pos+1)
	return n%2 == 1
}

// isQuotedAt reports whether the line of pos begins with ">", or a quotation mark or backtick is open in the 60 bytes
// of the line before it.
func (s *scanner) isQuotedAt(pos int) bool {
	line := strings.LastIndexByte(s.text[:pos], '\n') + 1
	if strings.HasPrefix(strings.TrimLeft(s.text[line:min(len(s.text), line+8)], " "), ">") {
		return true
	}
	before := s.text[max(line, pos-60):pos]
	return strings.Count(before, "\"")%2 == 1 || strings.Count(before, "`")%2 == 1
}
