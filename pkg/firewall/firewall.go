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

const (
	maxFindings = 64  // how many findings a report carries
	markSpan    = 600 // bytes; marks farther apart are not counted together
)

// Finding is one sign of an injected instruction.
type Finding struct {
	Technique string // one of Techniques
	// byte offset in the original text where it begins, -1 when it stands only in a decoded or normalized layer
	At      int
	Excerpt string // at most 80 bytes of normalized text, one line
}

// Report is the result of a scan. The zero value means that nothing was found.
type Report struct {
	Findings  []Finding
	Flagged   bool
	Hidden    int  // characters that a user would not see
	Truncated bool // only MaxScan bytes were scanned: the beginning and the end
}

// Scan looks for signs of injected instructions in text. It never fails and never changes the text. Of a text over
// MaxScan bytes it scans the beginning and the end, each by itself. A text is flagged for one strong sign, or for two
// different weak ones close together. A report that is not flagged does not prove the text harmless.
func Scan(text string) Report {
	if len(text) <= MaxScan {
		return scanPart(text, 0)
	}
	head := MaxScan - tailBytes
	for head > 0 && !utf8.RuneStart(text[head]) && MaxScan-tailBytes-head < utf8.UTFMax {
		head--
	}
	from := len(text) - tailBytes
	for from < len(text) && !utf8.RuneStart(text[from]) && from-(len(text)-tailBytes) < utf8.UTFMax {
		from++
	}
	first, last := scanPart(text[:head], 0), scanPart(text[from:], from)
	r := Report{
		Findings:  append(first.Findings, last.Findings...),
		Flagged:   first.Flagged || last.Flagged,
		Hidden:    first.Hidden + last.Hidden,
		Truncated: true,
	}
	if len(r.Findings) > maxFindings {
		r.Findings = r.Findings[:maxFindings]
	}
	return r
}

// scanPart scans a part of at most MaxScan bytes that begins at offset base of the whole text.
func scanPart(text string, base int) Report {
	f := foldInto(text, nil)
	signs := findSigns(f)
	signs = append(signs, findDecoded(text, f, signs)...)
	slices.SortStableFunc(signs, func(a, b sign) int { return a.pos - b.pos })
	r := Report{Hidden: f.hidden, Flagged: isFlagged(signs)}
	seen := map[sign]bool{}
	for _, s := range signs {
		if len(r.Findings) == maxFindings {
			break
		}
		place := sign{tech: s.tech, pos: s.pos}
		if seen[place] {
			continue
		}
		seen[place] = true
		at := s.orig
		if at >= 0 {
			at += base
		}
		r.Findings = append(r.Findings, Finding{Technique: s.tech.String(), At: at, Excerpt: excerptOf(s.quote)})
	}
	return r
}

// sign is a sign of an injected instruction in folded text.
type sign struct {
	tech   technique
	strong bool
	pos    int // offset in the folded text
	orig   int // offset in the text itself, -1 when only in a decoded layer
	quote  string
}

// newSign returns the sign that covers the bytes from from to to of f.
func newSign(f *folded, tech technique, strong bool, from, to int) sign {
	return sign{tech: tech, strong: strong, pos: from, orig: f.origin(from), quote: f.text[from:min(to, from+160)]}
}

// maxSigns bounds the signs of one kind that are collected.
const maxSigns = 256

// findSigns returns the signs in folded text.
func findSigns(f *folded) []sign {
	signs := findPhrases(f)
	signs = append(signs, findMarks(f)...)
	signs = append(signs, findInvisible(f)...)
	if !slices.ContainsFunc(signs, func(s sign) bool { return s.tech == techOverride }) {
		signs = append(signs, findSqueezed(f)...)
	}
	return signs
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
	at, _ := slices.BinarySearch(f.at, int32(max(0, f.firstHidden)))
	at = min(at, max(0, len(f.text)-1))
	add := func(strong bool, quote string) {
		out = append(out, sign{tech: techHidden, strong: strong, pos: at, orig: f.firstHidden, quote: quote})
	}
	if f.tags >= 4 {
		add(true, foldText(f.tagText))
	}
	switch {
	case f.zeroWidth >= 12:
		add(false, "zero-width characters")
	case f.bidiOverrides > 0:
		add(false, "direction override")
	}
	return out
}

// excerptOf returns the beginning of folded text on one line, at most 80 bytes, with control characters and runs of
// blanks as one blank.
func excerptOf(s string) string {
	out := make([]byte, 0, 80)
	for _, r := range s {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			r = ' '
		}
		if r == ' ' && (len(out) == 0 || out[len(out)-1] == ' ') {
			continue
		}
		if len(out)+utf8.RuneLen(r) > 80 {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}
