// Package firewall looks at the text that a tool returned before a model reads it.
//
// It labels and never drops: what it finds becomes a note in the frame around the text. No filter of text sees every
// injected instruction, so nothing may rest on it alone; the boundary is the broker's rule about where information flows.
// It has no state, no clock and no files, and its time grows with the length of the text and no faster.
package firewall

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// MaxScan is how many bytes of a text are looked at. Of a longer one, the beginning and the end are.
const MaxScan = 256 << 10

// tail is the part of MaxScan that is kept for the end of a longer text.
const tail = MaxScan / 4

const (
	threshold   = 10   // the score from which a text is flagged
	span        = 2400 // signs this far apart have nothing to do with one another
	maxFindings = 64   // how many findings a report carries
	maxHits     = 4096 // how many signs are weighed at all
)

// Finding is one sign of an injected instruction.
type Finding struct {
	Technique string // one of Techniques
	At        int    // byte offset in the original text where it begins, -1 when it stands only in a decoded or normalized layer
	Excerpt   string // at most 80 bytes of normalized text, one line
}

// Report is what a text was found to hold. The zero value found nothing.
type Report struct {
	Findings  []Finding
	Flagged   bool
	Score     int  // the weight of the signs that stand close together, each technique counted once
	Hidden    int  // characters a person would not see
	Truncated bool // only MaxScan bytes were looked at: the beginning and the end
}

// Scan looks for injected instructions in text.
func Scan(text string) Report {
	if len(text) <= MaxScan {
		return scanPart(text, 0)
	}
	head := MaxScan - tail
	for head > 0 && !utf8.RuneStart(text[head]) && MaxScan-tail-head < utf8.UTFMax {
		head--
	}
	from := len(text) - tail
	for from < len(text) && !utf8.RuneStart(text[from]) && from-(len(text)-tail) < utf8.UTFMax {
		from++
	}
	first, last := scanPart(text[:head], 0), scanPart(text[from:], from)
	r := Report{
		Findings:  append(first.Findings, last.Findings...),
		Flagged:   first.Flagged || last.Flagged,
		Score:     max(first.Score, last.Score),
		Hidden:    first.Hidden + last.Hidden,
		Truncated: true,
	}
	if len(r.Findings) > maxFindings {
		r.Findings = r.Findings[:maxFindings]
	}
	return r
}

// scanPart looks at a text of at most MaxScan bytes that begins at base of the whole.
func scanPart(text string, base int) Report {
	room := rooms.Get().(*room)
	defer rooms.Put(room)
	f := foldInto(text, room.at[:0])
	s := &scanner{f: f, text: f.text, tokens: room.tokens[:0], letters: room.letters}
	s.tokenize()
	s.applyWordRules()
	s.matchMarkers()
	s.matchHiddenHTML()
	s.matchEastAsian()
	s.matchInvisible()
	s.matchSqueezed()
	s.scanDecoded(text)
	room.at, room.tokens, room.letters = f.at, s.tokens, s.letters
	return s.report(base)
}

// room is the memory that one scan needs and the next can use: nothing of it is in a report.
type room struct {
	at      []int32
	tokens  []token
	letters []byte
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// hit is a sign before it is weighed.
type hit struct {
	tech   technique
	weight int
	pos    int // where in the folded text
	orig   int // where in the text itself, -1 when only in a decoded layer
	length int // how much of the folded text it covers
	quote  string
}

// report weighs the hits.
func (s *scanner) report(base int) Report {
	s.examples()
	slices.SortStableFunc(s.hits, func(a, b hit) int { return a.pos - b.pos })
	r := Report{Score: best(s.hits), Hidden: s.f.hidden}
	r.Flagged = r.Score >= threshold
	seen := map[hit]bool{}
	for _, h := range s.hits {
		key := hit{tech: h.tech, pos: h.pos}
		if seen[key] {
			continue
		}
		seen[key] = true
		if len(r.Findings) == maxFindings {
			break
		}
		at := h.orig
		if at >= 0 {
			at += base
		}
		r.Findings = append(r.Findings, Finding{Technique: h.tech.name(), At: at, Excerpt: excerpt(h.quote)})
	}
	return r
}

// weigh is the greatest weight of a technique's signs, and a little more when there are several strong ones. Requests
// come in chains of verbs that are one request.
func weigh(t technique, count *[maxWeight + 1]int) int {
	most, strong := 0, 0
	for w := maxWeight; w > 0; w-- {
		if count[w] > 0 {
			most = max(most, w)
			if w >= threshold/2 {
				strong += count[w]
			}
		}
	}
	if strong > 1 && t != techRequest && t != techExfiltration && t != techReply {
		most += 3
	}
	return most
}

// best is the greatest sum of weights within one span, where each technique counts once. The
// hits are sorted by position. A long page collects weak signs; far apart they mean nothing.
func best(hits []hit) int {
	most := 0
	from := 0
	var count [numTechniques][maxWeight + 1]int
	for _, h := range hits {
		count[h.tech][h.weight]++
		for hits[from].pos < h.pos-span {
			count[hits[from].tech][hits[from].weight]--
			from++
		}
		sum := 0
		for t := range count {
			sum += weigh(technique(t), &count[t])
		}
		most = max(most, sum)
	}
	return most
}

// excerpt is the beginning of already folded text, on one line and at most 80 bytes.
func excerpt(s string) string {
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
