// Package firewall labels untrusted content, such as tool results, that holds signs of injected instructions.
//
// It labels and never drops, withholds or taints: findings become a note in the frame around the text and flags of its
// labels. No filter of text finds every injection, so no permission may rest on it; the boundary is the broker's rule
// about information flow. It has no state, no clock and no files, and its time is linear in the length of the text.
//
// What it knows is a short list of stock phrases in English, the marks of chat templates and tool calls, and how to
// read text that is folded, hidden or encoded. On data that was held back from development, 200 injections in new
// words and 108 in 18 languages, the 4,700 lines of language rules that it had before found 18 % and 1; they flagged 10
// of 22 security articles. Of what is left, see docs/policy.md for the development texts; on the held half of
// bench/simulate/everyday it flags none of 102 injections in the words of ordinary mails and pages, and none of the
// results of 36 harmless tasks. It stays because it only labels, and because copied attacks do use these words.
package firewall

import (
	"slices"
	"unicode/utf8"
)

// MaxScan is how many bytes of a text are scanned: of a longer one, the beginning and the end.
const MaxScan = 256 << 10

// tailBytes is the part of MaxScan that is kept for the end of a longer text.
const tailBytes = MaxScan / 4

// markSpan is in bytes: marks farther apart are not counted together.
const markSpan = 600

// Report is the result of a scan. The zero value means that nothing was found.
type Report struct {
	Findings []string // the techniques, each once, in the order of their first sign
	Flagged  bool
}

// Scan looks for signs of injected instructions in text. It never fails and never changes the text. Of a text over
// MaxScan bytes it scans the beginning and the end, each by itself. A text is flagged for one strong sign, or for two
// different weak ones close together. A report that is not flagged does not prove the text harmless.
func Scan(text string) Report {
	if len(text) <= MaxScan {
		return scanPart(text)
	}
	head := MaxScan - tailBytes
	for head > 0 && !utf8.RuneStart(text[head]) && MaxScan-tailBytes-head < utf8.UTFMax {
		head--
	}
	from := len(text) - tailBytes
	for from < len(text) && !utf8.RuneStart(text[from]) && from-(len(text)-tailBytes) < utf8.UTFMax {
		from++
	}
	first, last := scanPart(text[:head]), scanPart(text[from:])
	for _, name := range last.Findings {
		first.add(name)
	}
	first.Flagged = first.Flagged || last.Flagged
	return first
}

// add adds a technique that the report does not have.
func (r *Report) add(name string) {
	if !slices.Contains(r.Findings, name) {
		r.Findings = append(r.Findings, name)
	}
}

// scanPart scans at most MaxScan bytes.
func scanPart(text string) Report {
	f := fold(text)
	signs := findSigns(f)
	signs = append(signs, findDecoded(text, f, signs)...)
	slices.SortStableFunc(signs, func(a, b sign) int { return a.pos - b.pos })
	r := Report{Flagged: isFlagged(signs)}
	for _, s := range signs {
		r.add(string(s.tech))
	}
	return r
}

// sign is a sign of an injected instruction in folded text.
type sign struct {
	tech   technique
	strong bool
	pos    int // offset in the folded text; of a decoded layer, that of its code in the text
	quote  string
}

// newSign returns the sign that covers the bytes from from to to of f.
func newSign(f *folded, tech technique, strong bool, from, to int) sign {
	return sign{tech: tech, strong: strong, pos: from, quote: f.text[from:to]}
}

// maxSigns bounds the signs of one kind that are collected.
const maxSigns = 256

// findSigns returns the signs in folded text.
func findSigns(f *folded) []sign {
	signs := findPhrases(f)
	signs = append(signs, findMarks(f)...)
	return append(signs, findInvisible(f)...)
}

// isFlagged reports whether signs, sorted by position, have a strong one, or two different ones within markSpan bytes.
func isFlagged(signs []sign) bool {
	for i, s := range signs {
		if s.strong {
			return true
		}
		for j := i - 1; j >= 0 && j >= i-8 && s.pos-signs[j].pos <= markSpan; j-- {
			if s.quote != signs[j].quote {
				return true
			}
		}
	}
	return false
}

// findInvisible returns a strong sign for four or more tag characters, and a weak one for twelve or more zero-width
// characters or, with fewer of them, a direction override. A few are normal, as in emoji, soft hyphens or right-to-left
// names.
func findInvisible(f *folded) (out []sign) {
	add := func(strong bool, quote string) {
		out = append(out, sign{tech: techHidden, strong: strong, pos: f.firstHidden, quote: quote})
	}
	if f.tags >= 4 {
		add(true, fold(f.tagText).text)
	}
	switch {
	case f.zeroWidth >= 12:
		add(false, "zero-width characters")
	case f.bidiOverrides > 0:
		add(false, "direction override")
	}
	return out
}
