// Package markdown renders Markdown from models for a terminal. The text is untrusted: whatever it contains, the output
// has no control characters but colours and weights of this package.
package markdown

import (
	"html"
	"regexp"
	"strings"

	"charm.land/glamour/v2"
	"charm.land/glamour/v2/ansi"
	xansi "github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/term"
)

// Format is how a text is rendered.
type Format struct {
	Columns int  // no line is wider; at least minColumns
	Colour  bool // colours and weights; without it the text is plain
}

const (
	minColumns = 20
	maxBlock   = 64 << 10 // bytes; a larger block is shown as it is
)

// Render renders a block of a [Stream] into lines. Each line is complete in itself: it leaves no colour behind, and it
// is never wider than the format allows. Links are shown with their address, images are never loaded.
func (f Format) Render(b Block) []string {
	f.Columns = max(f.Columns, minColumns)
	if b.Code {
		return f.renderCode(b.Text)
	}
	source := exposeHTML(neutralizeEntities(term.PlainText(b.Text)))
	if isList(source) {
		source = joinParagraphs(source)
	}
	if w := tableWidth(source); w > 0 {
		f.Columns = min(f.Columns, max(w, minColumns))
	}
	if len(source) <= maxBlock {
		if out, err := f.renderer().Render(source); err == nil {
			return f.splitLines(out)
		}
	}
	return f.splitLines(source)
}

// renderCode renders a line of code, or of a fence: indented and never reformatted.
func (f Format) renderCode(text string) []string {
	text = strings.ReplaceAll(term.PlainText(text), "\t", "    ")
	var lines []string
	for l := range strings.SplitSeq(xansi.Hardwrap(text, f.Columns-2, true), "\n") {
		if l = strings.TrimRight(l, " "); f.Colour && l != "" {
			l = "\x1b[33m" + l + "\x1b[m"
		}
		lines = append(lines, "  "+l)
	}
	return lines
}

// hyperlink is an OSC 8 sequence: the address is in the text already, and a link could hide another one.
var hyperlink = regexp.MustCompile("\x1b\\]8;[^\x07\x1b]*(\x07|\x1b\\\\)")

// splitLines makes lines of rendered text, without the padding of the renderer.
func (f Format) splitLines(out string) []string {
	out = hyperlink.ReplaceAllString(out, "")
	if !f.Colour {
		out = xansi.Strip(out)
	}
	var lines []string
	for l := range strings.SplitSeq(xansi.Hardwrap(strings.ReplaceAll(out, "\t", "    "), f.Columns, true), "\n") {
		if l = trimPadding(l); strings.Contains(l, "\x1b") {
			l += "\x1b[m"
		}
		lines = append(lines, l)
	}
	for len(lines) > 0 && xansi.Strip(lines[0]) == "" {
		lines = lines[1:]
	}
	for len(lines) > 0 && xansi.Strip(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// trailingPadding is blanks and colours at the end of a line.
var trailingPadding = regexp.MustCompile("(\x1b\\[[0-9;]*m| )*$")

// trimPadding removes what is not visible at the end of a line; a line with colours is closed by the caller.
func trimPadding(l string) string { return trailingPadding.ReplaceAllString(l, "") }

// entity is a character reference of HTML, which the renderer decodes after the text was sanitized.
var entity = regexp.MustCompile(`&#?[0-9A-Za-z]+;?`)

// neutralizeEntities replaces character references that stand for control or hidden characters.
func neutralizeEntities(s string) string {
	return entity.ReplaceAllStringFunc(s, func(ref string) string {
		plain := html.UnescapeString(ref)
		if plain == ref || term.Plain(plain) == plain {
			return ref
		}
		return "\uFFFD"
	})
}

// exposeHTML makes HTML tags visible, which the renderer would drop with their content: nothing of an answer may be
// hidden. Code is left as it is.
func exposeHTML(s string) string {
	if !strings.Contains(s, "<") {
		return s
	}
	var b strings.Builder
	code := "" // the backticks of the open code span, or the fence of the open code block
	for i := 0; i < len(s); {
		switch run := s[i : i+len(s[i:])-len(strings.TrimLeft(s[i:], "`"))]; {
		case run != "":
			if code == "" && strings.Contains(s[i+len(run):], run) {
				code = run
			} else if code == run {
				code = ""
			}
			b.WriteString(run)
			i += len(run)
			continue
		case s[i] == '<' && code == "":
			b.WriteString("&lt;")
		default:
			b.WriteByte(s[i])
		}
		i++
	}
	return b.String()
}

// joinParagraphs turns blank lines inside of a list into line breaks: the renderer joins the paragraphs of an item
// without a blank.
func joinParagraphs(list string) string {
	var b strings.Builder
	lines := strings.Split(list, "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) == "" {
			continue
		}
		b.WriteString(l)
		if i+2 < len(lines) && strings.TrimSpace(lines[i+1]) == "" {
			if next := strings.TrimSpace(lines[i+2]); next != "" && !isList(next) && fenceOf(next) == "" {
				b.WriteString("\\")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// delimiterRow is the second line of a table.
var delimiterRow = regexp.MustCompile(`^ *\|?( *:?-+:? *\|)+( *:?-+:? *)?$`)

// tableWidth is how wide a table is when no cell wraps, 0 for another block. The renderer would fill the terminal.
func tableWidth(source string) int {
	lines := strings.Split(source, "\n")
	if len(lines) < 2 || !delimiterRow.MatchString(lines[1]) {
		return 0
	}
	var widths []int
	for _, l := range lines {
		for i, cell := range strings.Split(strings.Trim(strings.TrimSpace(l), "|"), "|") {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if l != lines[1] {
				widths[i] = max(widths[i], term.Width(strings.TrimSpace(cell)))
			}
		}
	}
	all := 0
	for _, w := range widths {
		all += w + 3
	}
	return all
}

// renderer returns the Markdown renderer of the format.
func (f Format) renderer() *glamour.TermRenderer {
	r, err := glamour.NewTermRenderer(glamour.WithStyles(style), glamour.WithWordWrap(f.Columns))
	if err != nil {
		panic(err) // the style is a constant
	}
	return r
}

func set[T any](v T) *T { return &v }

// style uses the sixteen colours of the terminal, so that it fits light and dark ones.
var style = ansi.StyleConfig{
	BlockQuote: ansi.StyleBlock{
		StylePrimitive: ansi.StylePrimitive{Faint: set(true)}, Indent: set(uint(1)),
		IndentToken: set("│ "),
	},
	List:           ansi.StyleList{LevelIndent: 2},
	Heading:        ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Bold: set(true), Color: set("6")}},
	H1:             ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Underline: set(true)}},
	Emph:           ansi.StylePrimitive{Italic: set(true)},
	Strong:         ansi.StylePrimitive{Bold: set(true)},
	Strikethrough:  ansi.StylePrimitive{CrossedOut: set(true)},
	HorizontalRule: ansi.StylePrimitive{Format: "────────"},
	Item:           ansi.StylePrimitive{BlockPrefix: "• "},
	Enumeration:    ansi.StylePrimitive{BlockPrefix: ". "},
	Task:           ansi.StyleTask{Ticked: "[x] ", Unticked: "[ ] "},
	Link:           ansi.StylePrimitive{Underline: set(true)},
	Image:          ansi.StylePrimitive{Underline: set(true)},
	ImageText:      ansi.StylePrimitive{Format: "[image: {{.text}}]"},
	Code:           ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Color: set("3")}},
	CodeBlock: ansi.StyleCodeBlock{
		StyleBlock: ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Color: set("3")}, Margin: set(uint(2))},
	},
	Table: ansi.StyleTable{CenterSeparator: set("┼"), ColumnSeparator: set("│"), RowSeparator: set("─")},
}

// RenderText renders a complete text, with a blank line between its blocks.
func (f Format) RenderText(text string) (lines []string) {
	var s Stream
	for _, b := range append(s.Write(term.PlainText(text)), s.End()...) {
		if b.First && len(lines) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, f.Render(b)...)
	}
	return lines
}
