package document

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Piece is a part of a document that can be understood by itself.
type Piece struct {
	Heading string // the way of headings to it, or the columns of a table
	Text    string
}

// Sizes of pieces, in bytes.
const (
	// MaxPiece is the most that a piece has.
	MaxPiece = 4000
	full     = 2000 // a piece of this size takes nothing more
	small    = 600  // a piece below takes along what comes next, a new section too
	maxWay   = 300  // of a way of headings
)

// Pieces splits a document: Markdown and HTML by headings, everything else by paragraphs. Most pieces have 1,200 to
// 2,000 bytes, none has more than [MaxPiece]. Every line that is not blank is in one of them, in order. Words are not
// broken unless they are longer than a piece; code between fences and tables stay together where they fit. The heading
// of a piece of a table is its first line. A blank text has no pieces.
func Pieces(d Doc) []Piece {
	s := strings.ToValidUTF8(d.Text, "\uFFFD")
	var blocks []block
	switch d.Kind {
	case Markdown, HTML:
		blocks = markdownBlocks(s)
	case Code, Table:
		blocks = plainBlocks(s, rows)
	default:
		blocks = plainBlocks(s, paragraph)
	}
	p := packer{}
	for _, a := range buildAtoms(blocks) {
		p.add(a)
	}
	pieces := p.done()
	if d.Kind == Table && len(blocks) > 0 {
		columns, _, _ := strings.Cut(blocks[0].text, "\n")
		columns = text.OneLine(text.Clip(columns, 4*maxWay), maxWay) // once: a line may be as long as the file
		for i := range pieces {
			pieces[i].Heading = columns
		}
	}
	return pieces
}

// atom is a part that is not split further.
type atom struct {
	text   string
	glue   string   // between it and what stands before it in the same piece
	way    []string // of headings
	begins bool     // a section
}

// buildAtoms splits blocks and joins headings to the text that follows them: no piece ends with a heading, unless
// nothing follows. The way of an atom is the titles of the headings above it.
func buildAtoms(blocks []block) (out []atom) {
	var way []string
	var levels []int
	var over []string // headings that wait for something to stand over
	put := func(a atom) {
		a.way = way
		if len(over) > 0 {
			heads := strings.Join(over, "\n\n")
			a.begins = true
			if len(heads)+2+len(a.text) <= MaxPiece {
				a.text = heads + "\n\n" + a.text
			} else {
				for i, h := range splitBlock(block{text: heads}) {
					h.way, h.begins = way, i == 0
					out = append(out, h)
				}
				a.begins = false
			}
			over = nil
		}
		out = append(out, a)
	}
	for _, b := range blocks {
		if b.kind != heading {
			for _, a := range splitBlock(b) {
				put(a)
			}
			continue
		}
		n := 0
		for n < len(levels) && levels[n] < b.level {
			n++
		}
		way, levels = append(way[:n:n], b.title), append(levels[:n:n], b.level)
		over = append(over, b.text)
	}
	if len(over) > 0 { // headings over nothing
		for i, h := range splitBlock(block{text: strings.Join(over, "\n\n")}) {
			h.way, h.begins = way, i == 0
			out = append(out, h)
		}
	}
	return out
}

// splitBlock returns the block as one atom when it fits, else runs of its lines of at most full bytes; a line that does
// not fit either is cut by [cutLine]. Blank atoms are left out. Fences and front matter may be as long as a piece.
func splitBlock(b block) (out []atom) {
	whole, line := full, full
	switch b.kind {
	case fence, frontMatter:
		whole, line = MaxPiece, MaxPiece
	case rows:
		line = MaxPiece
	}
	if len(b.text) <= whole {
		return []atom{{text: b.text, glue: "\n\n"}}
	}
	glue := "\n\n"
	var run strings.Builder
	end := func() {
		if run.Len() > 0 {
			out = append(out, atom{text: run.String(), glue: glue})
			run.Reset()
			glue = "\n"
		}
	}
	for l := range strings.SplitSeq(b.text, "\n") {
		if run.Len() > 0 && run.Len()+1+len(l) > full {
			end()
		}
		if len(l) <= line {
			if run.Len() > 0 {
				run.WriteByte('\n')
			}
			run.WriteString(l)
			continue
		}
		for l != "" {
			var head, next string
			head, l, next = cutLine(l, full)
			if head != "" {
				out = append(out, atom{text: head, glue: glue})
				glue = next
			}
		}
		glue = "\n"
	}
	end()
	return slices.DeleteFunc(out, func(a atom) bool { return strings.TrimSpace(a.text) == "" })
}

// sentenceEnds end a sentence.
var sentenceEnds = []string{". ", "! ", "? ", "; ", "。", "！", "？"}

// cutLine splits a beginning of at most most bytes off a line, at the end of a sentence or of a word. glue is " " when
// there was space between head and rest, else "". A longer word stays whole where a piece can hold it. rest is "" when
// the line fits.
func cutLine(line string, most int) (head, rest, glue string) {
	line = strings.TrimFunc(line, unicode.IsSpace)
	if len(line) <= most {
		return line, "", ""
	}
	window := line[:boundary(line, most)]
	at := 0
	for _, e := range sentenceEnds {
		if i := strings.LastIndex(window, e); i >= 0 {
			at = max(at, i+len(strings.TrimSuffix(e, " ")))
		}
	}
	if at < len(window)/2 {
		if at = strings.LastIndexFunc(window, unicode.IsSpace); at < 0 {
			at = strings.IndexFunc(line[:boundary(line, min(len(line), MaxPiece))], unicode.IsSpace)
		}
	}
	if at <= 0 {
		at = len(window)
	}
	head, rest = trimEnd(line[:at]), line[at:]
	after := strings.TrimLeftFunc(rest, unicode.IsSpace)
	if after != rest {
		glue = " "
	}
	return head, after, glue
}

// boundary returns the last offset at or before n where a character begins, together with its combining marks, at most
// 16 of them. n beyond the end is the end.
func boundary(s string, n int) int {
	if n >= len(s) {
		return len(s)
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	at := n
	for range 16 { // letters with more marks than that are no letters
		r, _ := utf8.DecodeRuneInString(s[at:])
		before, size := utf8.DecodeLastRuneInString(s[:at])
		if at == 0 || !unicode.In(r, unicode.M) && r != '\u200d' && before != '\u200d' {
			break
		}
		at -= size
	}
	if at == 0 {
		return n
	}
	return at
}

// packer packs atoms into pieces.
type packer struct {
	out   []Piece
	first []atom // of each piece
	text  strings.Builder
	begin atom     // of the piece that grows
	way   []string // what the ways of its atoms have in common
}

// add appends an atom to the growing piece. It starts a new one instead when the piece would exceed [MaxPiece], or when
// the piece is not small and would exceed its usual size or a section begins.
func (p *packer) add(a atom) {
	size := p.text.Len()
	together := size + len(a.glue) + len(a.text)
	if size > 0 && (size >= small && (a.begins || together > full) || together > MaxPiece) {
		p.flush()
		size = 0
	}
	if size == 0 {
		p.text.WriteString(a.text)
		p.begin, p.way = a, a.way
		return
	}
	p.text.WriteString(a.glue + a.text)
	p.way = commonPrefix(p.way, a.way)
}

func (p *packer) flush() {
	if p.text.Len() > 0 {
		p.out = append(p.out, Piece{text.Clip(strings.Join(p.way, " > "), maxWay), p.text.String()})
		p.first = append(p.first, p.begin)
		p.text.Reset()
	}
}

// done ends the last piece and returns all. A small rest is merged into the piece before it when it is of the same
// section.
func (p *packer) done() []Piece {
	p.flush()
	if n := len(p.out); n > 1 {
		last, before := p.out[n-1], p.out[n-2]
		if len(last.Text) < small/2 && len(before.Text)+2+len(last.Text) <= full+small && !p.first[n-1].begins &&
			last.Heading == before.Heading {
			p.out[n-2].Text += p.first[n-1].glue + last.Text
			p.out = p.out[:n-1]
		}
	}
	return p.out
}

// commonPrefix returns what two paths of headings begin with.
func commonPrefix(a, b []string) []string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}
