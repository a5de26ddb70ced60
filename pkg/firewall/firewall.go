// Package firewall scans untrusted content, such as tool results, for injected instructions before a model reads it.
//
// It labels and never drops: findings become a note in the frame around the text. No filter of text finds every
// injection, so no permission may rest on it alone; the boundary is the broker's rule about information flow. It has no
// state, no clock and no files, and its time is linear in the length of the text.
package firewall

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// MaxScan is how many bytes of a text are scanned: of a longer one, the beginning and the end.
const MaxScan = 256 << 10

// tailBytes is the part of MaxScan that is kept for the end of a longer text.
const tailBytes = MaxScan / 4

const (
	threshold   = 10   // the score from which a text is flagged
	scoreSpan   = 2400 // bytes; signs farther apart are not added up
	maxFindings = 64   // how many findings a report carries
	maxHits     = 4096 // how many signs are weighed
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
	Score     int  // the weight of the signs that stand close together, each technique counted once
	Hidden    int  // characters that a user would not see
	Truncated bool // only MaxScan bytes were scanned: the beginning and the end
}

// Scan looks for signs of injected instructions in text. It never fails and never changes the text. Of a text over
// MaxScan bytes it scans the beginning and the end, each by itself. A report that is not flagged does not prove the
// text harmless.
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
		Score:     max(first.Score, last.Score),
		Hidden:    first.Hidden + last.Hidden,
		Truncated: true,
	}
	if len(r.Findings) > maxFindings {
		r.Findings = r.Findings[:maxFindings]
	}
	return r
}

// scanPart scans a part of at most MaxScan bytes that begins at offset base of the whole text. The order of its steps
// matters: some weigh the signs of those before.
func scanPart(text string, base int) Report {
	buf := bufferPool.Get().(*buffers)
	defer bufferPool.Put(buf)
	f := foldInto(text, buf.at[:0])
	s := &scanner{f: f, text: f.text, tokens: buf.tokens[:0], letters: buf.letters}
	s.tokenize()
	s.applyWordRules()
	s.matchIntents()
	s.matchOffTopicTasks()
	s.matchMarkers()
	s.matchHiddenHTML()
	s.matchUnspaced()
	s.matchInvisible()
	s.matchSqueezed()
	s.scanDecoded(text)
	buf.at, buf.tokens, buf.letters = f.at, s.tokens, s.letters
	return s.buildReport(base)
}

// buffers is memory that scans reuse one after the other. A report holds none of it.
type buffers struct {
	at      []int32
	tokens  []token
	letters []byte
}

var bufferPool = sync.Pool{New: func() any { return new(buffers) }}

// hit is a sign before it is weighed against the others.
type hit struct {
	tech   technique
	weight int
	pos    int // offset in the folded text
	orig   int // offset in the text itself, -1 when only in a decoded layer
	length int // bytes of the folded text that it covers
	quote  string
}

// buildReport weighs the hits and returns them as findings in the order of their places, deduped by technique and
// place, at most maxFindings. base is added to their offsets. The text is flagged from a score of threshold on.
func (s *scanner) buildReport(base int) Report {
	s.halveExamples()
	r := Report{Score: bestScore(s.hits), Hidden: s.f.hidden}
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
		r.Findings = append(r.Findings, Finding{Technique: h.tech.String(), At: at, Excerpt: excerptOf(h.quote)})
	}
	return r
}

// weighTechnique returns the greatest weight of a technique's signs, 3 more for several of at least threshold/2, 0 for
// none. count is how many signs there are of each weight. Requests, exfiltration and replies come in chains of verbs
// that are one request, so they get no more.
func weighTechnique(t technique, count *[maxWeight + 1]int) int {
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

// sortHits sorts hits by position.
func sortHits(hits []hit) {
	slices.SortStableFunc(hits, func(a, b hit) int { return a.pos - b.pos })
}

// bestScore sorts hits by position and returns the greatest sum of weights within one scoreSpan, where each technique
// counts once; 0 without hits. A long page collects weak signs; far apart they mean nothing.
func bestScore(hits []hit) int {
	sortHits(hits)
	most := 0
	from := 0
	var count [numTechniques][maxWeight + 1]int
	for _, h := range hits {
		count[h.tech][h.weight]++
		for hits[from].pos < h.pos-scoreSpan {
			count[hits[from].tech][hits[from].weight]--
			from++
		}
		sum := 0
		for t := range count {
			sum += weighTechnique(technique(t), &count[t])
		}
		most = max(most, sum)
	}
	return most
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
