package document

import (
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// blockKind is the kind of a block.
type blockKind int

const (
	paragraph   blockKind = iota
	heading               // of Markdown
	fence                 // code between fences
	rows                  // of a table, or lines of code: none of them is broken
	frontMatter           // settings before a Markdown text
)

// block is a run of lines that belong together.
type block struct {
	kind  blockKind
	text  string // its lines, without blank ones around
	level int    // of a heading
	title string // of a heading
}

// plainBlocks splits a text into paragraphs of this kind at blank lines, nil when all are blank. Trailing space is
// removed.
func plainBlocks(s string, kind blockKind) (out []block) {
	var lines []string
	end := func() {
		if len(lines) > 0 {
			out = append(out, block{kind: kind, text: strings.Join(lines, "\n")})
			lines = nil
		}
	}
	for l := range strings.SplitSeq(s, "\n") {
		if l = trimEnd(l); l == "" {
			end()
			continue
		}
		lines = append(lines, l)
	}
	end()
	return out
}

// markdownBlocks splits a Markdown text into front matter, headings, fences, tables and paragraphs, as far as pieces
// need them. Blank lines outside of fences are dropped; no other line is.
func markdownBlocks(s string) []block {
	m := &blockBuilder{}
	lines := strings.Split(s, "\n")
	for i := m.takeFrontMatter(lines); i < len(lines); i++ {
		m.addLine(trimEnd(lines[i]))
	}
	m.closeOpen()
	return m.out
}

// blockBuilder collects lines into blocks.
type blockBuilder struct {
	out   []block
	lines []string
	fence string // what closes the open fence, "" = none is open
}

// takeFrontMatter adds the front matter as a block and returns the index of the first line after it. It returns 0 when
// there is none: no "---" in the first line, or no end within 200 lines. lines must not be empty.
func (m *blockBuilder) takeFrontMatter(lines []string) int {
	const most = 200 // lines; without an end in sight it is a line across the page
	if trimEnd(lines[0]) != "---" {
		return 0
	}
	for i := 1; i < min(len(lines), most); i++ {
		switch trimEnd(lines[i]) {
		case "---", "...":
			for _, l := range lines[:i+1] {
				m.lines = append(m.lines, trimEnd(l))
			}
			m.closeBlock(frontMatter)
			return i + 1
		}
	}
	return 0
}

// addLine adds a line, without trailing space, to the open block, or ends that block: at a blank line, a heading or a
// fence. In a fence every line belongs to it until one that closes it.
func (m *blockBuilder) addLine(l string) {
	if m.fence != "" {
		m.lines = append(m.lines, l)
		if t := strings.TrimSpace(l); len(t) >= len(m.fence) && strings.Trim(t, m.fence[:1]) == "" {
			m.fence = ""
			m.closeBlock(fence)
		}
		return
	}
	if l == "" {
		m.closeOpen()
		return
	}
	if f := fenceEnd(l); f != "" {
		m.closeOpen()
		m.fence, m.lines = f, []string{l}
		return
	}
	if level, title, ok := parseHeading(l); ok {
		m.closeOpen()
		m.out = append(m.out, block{kind: heading, text: l, level: level, title: title})
		return
	}
	// A line below that is underlined.
	if level := underlineLevel(l); level > 0 && len(m.lines) == 1 && canBeUnderlined(m.lines[0]) {
		m.out = append(m.out, block{
			kind: heading, text: m.lines[0] + "\n" + l, level: level,
			title: headingTitle(m.lines[0]),
		})
		m.lines = nil
		return
	}
	m.lines = append(m.lines, l)
}

// closeOpen ends the open block: a fence that is open at the end of the text, a table, or else a paragraph. It does
// nothing without open lines.
func (m *blockBuilder) closeOpen() {
	switch {
	case m.fence != "":
		m.fence = ""
		m.closeBlock(fence)
	case isTable(m.lines):
		m.closeBlock(rows)
	default:
		m.closeBlock(paragraph)
	}
}

func (m *blockBuilder) closeBlock(kind blockKind) {
	if s := strings.Join(m.lines, "\n"); strings.TrimSpace(s) != "" {
		m.out = append(m.out, block{kind: kind, text: strings.Trim(s, "\n")})
	}
	m.lines = nil
}

// fenceEnd returns the shortest line that closes the fence that l opens, "" when l opens none: at least three ` or ~.
func fenceEnd(l string) string {
	t := strings.TrimLeft(l, " \t")
	for _, c := range []string{"`", "~"} {
		if n := len(t) - len(strings.TrimLeft(t, c)); n >= 3 && (c == "~" || !strings.Contains(t[n:], c)) {
			return strings.Repeat(c, n)
		}
	}
	return ""
}

// parseHeading reads a heading of one to six # with at most three blanks before them; ok is false for any other line. A
// closing row of # is not part of the title, which may be "".
func parseHeading(l string) (level int, title string, ok bool) {
	t := strings.TrimLeft(l, " ")
	if len(l)-len(t) > 3 {
		return 0, "", false
	}
	rest := strings.TrimLeft(t, "#")
	level = len(t) - len(rest)
	if level < 1 || level > 6 || rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return 0, "", false
	}
	if bare := strings.TrimRight(rest, "#"); bare == "" || strings.HasSuffix(bare, " ") { // a closing row of #
		rest = bare
	}
	return level, headingTitle(rest), true
}

// underlineLevel returns the level of the heading that l underlines: 1 for a row of =, 2 for one of -, of at least two
// characters; 0 when it underlines none.
func underlineLevel(l string) int {
	switch t := strings.TrimLeft(l, " "); {
	case len(l)-len(t) > 3 || len(t) < 2:
		return 0
	case strings.Trim(t, "=") == "":
		return 1
	case strings.Trim(t, "-") == "":
		return 2
	}
	return 0
}

// canBeUnderlined reports whether a line may be an underlined heading: no list, quotation or table.
func canBeUnderlined(l string) bool {
	t := strings.TrimLeft(l, " ")
	return len(l)-len(t) <= 3 && t != "" && !strings.ContainsAny(t[:1], "-*+>|") && !strings.HasPrefix(t, "1.")
}

// isTable reports whether lines are a table: a row of dashes below a first line with bars, or a bar at the beginning of
// each line. A single line is none.
func isTable(lines []string) bool {
	if len(lines) < 2 || !strings.Contains(lines[0], "|") {
		return false
	}
	if dashes := strings.TrimSpace(lines[1]); strings.Contains(dashes, "-") && strings.Trim(dashes, "|:- \t") == "" {
		return true
	}
	for _, l := range lines {
		if !strings.HasPrefix(strings.TrimLeft(l, " "), "|") {
			return false
		}
	}
	return true
}

// maxHeading is the limit of one heading in a path of headings, in bytes.
const maxHeading = 120

func headingTitle(s string) string { return text.OneLine(s, maxHeading) }

func trimEnd(l string) string { return strings.TrimRightFunc(l, unicode.IsSpace) }
