package firewall

import (
	"regexp"
	"strings"
)

// stockPhrase is a wording that published attacks use: one of its starts, any number of the characters of run, and then
// rest.
type stockPhrase struct {
	tech   technique
	starts []string
	run    string
	rest   func() *regexp.Regexp // anchored at its beginning
}

// maxPhrase is how many bytes after its start a phrase may go on.
const maxPhrase = 200

// stockPhrases match folded text. They are those of published attacks, and stay few: an attacker words an order anew.
var stockPhrases = []stockPhrase{
	{
		techOverride,
		[]string{"ignore", "disregard", "forget", "override"},
		"",
		pattern(`^\s+(?:(?:all|any|every|of|the|my|your|these|those)\s+){0,4}` +
			`(?:previous|prior|above|earlier|preceding|original|former)(?:\s+\w+)?\s+` +
			`(?:instructions?|prompts?|rules|guidelines|directions|directives|commands|orders|tasks?|context)\b`),
	},
	{
		techOverride,
		[]string{"ignore", "disregard", "forget"},
		"",
		pattern(`^\s+(?:(?:all|any|of|the)\s+){0,3}(?:your\s+(?:system\s+)?` +
			`(?:instructions?|prompt|rules|guidelines)|(?:everything|anything|all)\s+(?:above|before|` +
			`(?:that\s+)?(?:i|you)\s+(?:said|were\s+told|was\s+told|have\s+been\s+told)))\b`),
	},
	{
		techOverride,
		[]string{"do not", "don't", "never"},
		"",
		pattern(`^\s+(?:follow|obey)\s+(?:(?:any|the|your|all)\s+){0,2}` +
			`(?:previous|prior|above|earlier|original)\s+(?:instructions?|rules|orders)\b`),
	},
	{
		techLeak,
		[]string{"reveal", "print", "show", "repeat", "output", "display", "disclose"},
		"",
		pattern(`^\s+(?:me\s+)?(?:your|the)\s+(?:full\s+|entire\s+|whole\s+)?` +
			`(?:system\s+prompt|(?:initial|hidden|secret|original)\s+(?:prompt|instructions))\b`),
	},
	{
		techSecrecy,
		[]string{"do not", "don't", "never"},
		"",
		pattern(`^\s+(?:tell|inform|notify|alert|warn|ask|mention\s+(?:this|it|that)\s+to)\s+the\s+user\b`),
	},
	{
		techAddress,
		[]string{"instruction", "note", "message", "attention", "notice"},
		"",
		pattern(`^s?(?:\s+(?:to|for)|:)\s+(?:(?:any|all|the|every)\s+){0,2}(?:ai|llm|language\s+model)s?\b`),
	},
	{
		techAddress,
		[]string{"if you are a"},
		"",
		pattern(`^n?\s+(?:ai|llm|(?:large\s+)?language\s+model)\b`),
	},
	{techAuthority, []string{"this is an important message from"}, "", pattern(`^\s+(?:me|the user)\b`)},
	{techAuthority, []string{"before you can"}, "", pattern(`^\s+\w+\s+the\s+task\s+that\s+i\s+gave\s+you\b`)},
	{techDelimiter, []string{"new instructions", "new system instructions"}, "", pattern(`^\s*:`)},
	{
		techDelimiter,
		[]string{"====", "----", "####", "<<<", "[["},
		"-=#<[",
		pattern(`^\s*(?:end|beginning|start)\s+of\s+(?:the\s+)?` +
			`(?:system\s+prompt|prompt|document|context|instructions|data|session|conversation)\b`),
	},
}

// negation matches the end of a text that negates the verb behind it.
var negation = regexp.MustCompile(`(?:\bnot|n't|\bnever)\s+$`)

// findPhrases returns a sign for each stock phrase, a weak one where prose quotes it.
func findPhrases(f *folded) (out []sign) {
	for _, p := range stockPhrases {
		for _, start := range p.starts {
			var m []int // what rest matches behind the run that ends at runEnd
			for from, runEnd := 0, -1; len(out) < maxSigns; {
				i := strings.Index(f.text[from:], start)
				if i < 0 {
					break
				}
				i += from
				from = i + len(start)
				if i > 0 && isLetter(start[0]) && isLetter(f.text[i-1]) ||
					p.tech == techOverride && negation.MatchString(f.text[max(0, i-8):i]) {
					continue // in another word; do not ignore the previous instructions
				}
				if from > runEnd { // not in the run that was read before: a long one is read once
					runEnd = len(f.text) - len(strings.TrimLeft(f.text[from:], p.run))
					m = p.rest().FindStringIndex(f.text[runEnd:min(len(f.text), runEnd+maxPhrase)])
				}
				if m != nil && runEnd+m[1] <= from+maxPhrase {
					out = append(out, newSign(f, p.tech, !isQuoted(f.text, i), i, runEnd+m[1]))
				}
			}
		}
	}
	return out
}

// isQuoted reports whether the text at pos is a quotation in prose: a mark stands directly before it, and a word and a
// blank, or a bracket, before that. A value of a record is none: a colon or a comma stands there.
func isQuoted(text string, pos int) bool {
	if pos < 3 || strings.IndexByte("\"'`*", text[pos-1]) < 0 {
		return false
	}
	before := strings.TrimRight(text[:pos-1], "\"'`*")
	n := len(before)
	return n > 1 && (before[n-1] == '(' || before[n-1] == ' ' && isLetter(before[n-2]))
}

// isLetter reports whether c is part of a word of folded text.
func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 0x80 }

// containsAny reports whether s contains one of the texts in list; false for an empty list.
func containsAny(s string, list []string) bool {
	for _, w := range list {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
