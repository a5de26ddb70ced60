package firewall

import (
	"slices"
	"strings"
)

// matchInvisible adds a sign for four or more tag characters, and one for twelve or more zero-width characters or, with
// fewer of them, a direction override. A few are normal, as in emoji, soft hyphens or right-to-left names.
func (s *scanner) matchInvisible() {
	f := s.f
	at := 0
	for at < len(f.at) && int(f.at[at]) < f.firstHidden {
		at++
	}
	at = min(at, max(0, len(s.text)-1))
	record := func(weight int, quote string) {
		s.hits = append(s.hits, hit{tech: techHidden, weight: weight, pos: at, orig: f.firstHidden, quote: quote})
	}
	if f.tags >= 4 {
		record(8, foldText(f.tagText))
	}
	switch {
	case f.zeroWidth >= 12:
		record(4, "zero-width characters")
	case f.bidiOverrides > 0:
		record(3, "direction override")
	}
}

// hidingStyles are CSS declarations that make text invisible to a user.
var hidingStyles = []string{
	"display:none", "display: none", "visibility:hidden", "visibility: hidden", "font-size:0", "font-size: 0",
	"font-size:1px", "font-size: 1px",
	"opacity:0;", "opacity: 0;", "opacity:0\"", "opacity: 0\"", "color:#fff", "color: #fff", "color:white",
	"color: white", "color:transparent",
	"color: transparent", "left:-9999", "left: -9999", "text-indent:-9", "text-indent: -9",
}

// maxStyle is how many bytes after "style=" a tag may go on.
const maxStyle = 4096

// matchHiddenHTML weighs the parts of a page that are not shown, see [scanner.weighConcealed]: comments and elements
// with one of hidingStyles, up to 4000 bytes each. They are common and harmless without orders inside. The word rules
// and markers must run before it.
func (s *scanner) matchHiddenHTML() {
	text := s.text
	sortHits(s.hits)
	known := slices.Clip(s.hits)
	for from := 0; ; {
		at := strings.Index(text[from:], "<!--")
		if at < 0 {
			break
		}
		at += from
		end := strings.Index(text[at:], "-->")
		if end < 0 {
			end = len(text) - at
		}
		s.weighConcealed(known, at, at+min(end, 4000))
		from = at + end
		if from >= len(text) {
			break
		}
	}
	// A style stands inside of a tag, and what it hides goes on until the element is closed.
	for from := 0; ; {
		at := strings.Index(text[from:], "style=")
		if at < 0 {
			break
		}
		at += from
		from = at + len("style=")
		tag := strings.IndexByte(text[at:min(len(text), at+maxStyle)], '>')
		if tag < 0 || !containsAny(text[at:at+tag+1], hidingStyles) {
			continue
		}
		body := at + tag + 1
		end := strings.Index(text[body:min(len(text), body+4000)], "</")
		if end < 0 {
			end = min(len(text)-body, 4000)
		}
		s.weighConcealed(known, body, body+end)
	}
}

// weighConcealed adds a sign for text that is hidden from a user, weighed by the strongest other sign in it, or weakly
// when it addresses a reader; without either it is harmless and adds none. from and to are offsets in the folded text,
// and known the other signs, sorted.
func (s *scanner) weighConcealed(known []hit, from, to int) {
	weight := 0
	first, _ := slices.BinarySearchFunc(known, from, func(h hit, pos int) int { return h.pos - pos })
	for _, h := range known[first:] {
		if h.pos >= to {
			break
		}
		weight = max(weight, min(5, h.weight))
	}
	if weight == 0 && s.hasOrderWithin(from, to) {
		weight = 2
	}
	if weight > 0 {
		s.addHit(techHidden, weight+2, from, to-from)
	}
}

// hasOrderWithin reports whether words between two offsets of the folded text address a reader: please, you, your, or a
// word for an assistant.
func (s *scanner) hasOrderWithin(from, to int) bool {
	for i := s.tokenAt(from); i < len(s.tokens) && int(s.tokens[i].from) < to; i++ {
		if s.has(i, cPlease) || s.any(i, "you", "your") || s.has(i, cAI) {
			return true
		}
	}
	return false
}

// tokenAt returns the index of the first token at or after offset pos of the folded text, len(s.tokens) when there is
// none.
func (s *scanner) tokenAt(pos int) int {
	lo, hi := 0, len(s.tokens)
	for lo < hi {
		mid := (lo + hi) / 2
		if int(s.tokens[mid].from) < pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}
