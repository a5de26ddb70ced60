// Package markdown renders Markdown from models for a terminal. The text is untrusted: whatever it contains, the output
// has no control characters but colours and weights of this package.
package markdown

import (
	"fmt"
	"html"
	"iter"
	"strings"
	"sync"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	source "github.com/yuin/goldmark/text"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/text"
)

// Format is how a text is rendered.
type Format struct {
	Columns int  // no line is wider; at least minColumns
	Colour  bool // colours and weights; without it the text is plain
}

const (
	minColumns = 20
	minIndent  = 8        // columns that are left behind an indent; deeper blocks are not indented
	maxBlock   = 64 << 10 // bytes; a larger block is shown as it is
)

// Styles use the sixteen colours of the terminal, so that they fit light and dark ones. They are joined.
const (
	bold, faint, italic, underline, crossed = ";1", ";2", ";3", ";4", ";9"
	yellow, cyan                            = ";33", ";36"
	endStyle                                = "\x1b[m"
)

// markdownParser knows no definitions of link references: they would be hidden, and a block does not see those of
// another one.
var markdownParser = sync.OnceValue(func() parser.Parser {
	p := parser.NewParser(parser.WithBlockParsers(parser.DefaultBlockParsers()...),
		parser.WithInlineParsers(parser.DefaultInlineParsers()...))
	goldmark.New(goldmark.WithParser(p),
		goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.TaskList))
	return p
})

// Render renders a block of a [Stream] into lines. Each line is complete in itself: it leaves no colour behind, and it
// is never wider than the format allows. Links are shown with their address, images are never loaded, HTML is text.
func (f Format) Render(b Block) []string {
	f.Columns = max(f.Columns, minColumns)
	r := renderer{f, []byte(term.PlainText(b.Text)), ""}
	switch {
	case b.Code:
		return r.code(b.Text)
	case len(r.source) > maxBlock:
		return r.wrap(r.paint(b.Text), true)
	}
	return r.blocks(markdownParser().Parse(source.NewReader(r.source)))
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

// renderer renders the nodes of a block.
type renderer struct {
	Format
	source []byte
	style  string // around the node
}

// with returns a renderer for text in a further style.
func (r renderer) with(style string) renderer {
	r.style += style
	return r
}

// children returns the nodes right below n.
func children(n ast.Node) iter.Seq[ast.Node] {
	return func(yield func(ast.Node) bool) {
		for c := n.FirstChild(); c != nil && yield(c); c = c.NextSibling() {
		}
	}
}

// blocks renders the blocks below n, with blank lines where the source has them.
func (r renderer) blocks(n ast.Node) (lines []string) {
	for c := range children(n) {
		if len(lines) > 0 && c.HasBlankPreviousLines() {
			lines = append(lines, "")
		}
		lines = append(lines, r.block(c)...)
	}
	return lines
}

// block renders a block.
func (r renderer) block(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.Heading:
		r.style += bold + cyan
		if n.Level == 1 {
			r.style += underline
		}
	case *ast.ThematicBreak:
		return []string{r.paint("────────")}
	case *ast.CodeBlock, *ast.FencedCodeBlock:
		return r.code(string(n.Lines().Value(r.source)))
	case *ast.HTMLBlock:
		if n.HasClosure() {
			n.Lines().Append(n.ClosureLine)
		}
		return r.wrap(r.paint(strings.TrimRight(string(n.Lines().Value(r.source)), "\n")), true)
	case *ast.Blockquote:
		return r.with(faint).indent(n, "│ ", "│ ")
	case *ast.List:
		return r.blocks(n)
	case *ast.ListItem:
		marker := "• "
		if list := n.Parent().(*ast.List); list.IsOrdered() {
			marker = fmt.Sprintf("%d%c ", list.Start, list.Marker)
			list.Start++ // the number of the next item
		}
		return r.indent(n, marker, strings.Repeat(" ", term.Width(marker)))
	case *extast.Table:
		return r.table(n)
	}
	return r.wrap(r.inline(n), true)
}

// indent renders the blocks below n behind a prefix, which the first line has of its own.
func (r renderer) indent(n ast.Node, first, rest string) []string {
	inner := r
	if inner.Columns -= term.Width(first); inner.Columns < minIndent {
		return r.blocks(n)
	}
	lines := inner.blocks(n)
	if len(lines) == 0 {
		lines = []string{""}
	}
	for i, l := range lines {
		if l == "" {
			first = strings.TrimRight(first, " ")
		}
		lines[i] = r.paint(first) + l
		first = rest
	}
	return lines
}

// code renders lines of code: indented and never reformatted.
func (r renderer) code(text string) []string {
	r.Columns -= 2
	lines := r.wrap(r.with(yellow).paint(strings.TrimRight(text, "\n")), false)
	for i, l := range lines {
		lines[i] = strings.TrimRight("  "+l, " ")
	}
	return lines
}

// inline renders the text below n, which is not wrapped.
func (r renderer) inline(n ast.Node) string {
	var b strings.Builder
	for c := range children(n) {
		switch c := c.(type) {
		case *ast.Text:
			value := string(c.Value(r.source))
			if !c.IsRaw() {
				value = unescape(value)
			}
			b.WriteString(r.paint(strings.ReplaceAll(value, "\n", " ")))
			if c.HardLineBreak() {
				b.WriteByte('\n')
			} else if c.SoftLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.CodeSpan:
			b.WriteString(r.with(yellow).inline(c))
		case *ast.Emphasis:
			b.WriteString(r.with([]string{italic, bold}[c.Level-1]).inline(c))
		case *extast.Strikethrough:
			b.WriteString(r.with(crossed).inline(c))
		case *extast.TaskCheckBox:
			mark := "[ ] "
			if c.IsChecked {
				mark = "[x] "
			}
			b.WriteString(r.paint(mark))
		case *ast.RawHTML:
			b.WriteString(r.paint(string(c.Segments.Value(r.source))))
		case *ast.AutoLink:
			b.WriteString(r.with(underline).paint(string(c.Label(r.source))))
		case *ast.Link:
			b.WriteString(r.link(r.inline(c), c.Destination))
		case *ast.Image:
			b.WriteString(r.link(r.paint("[image: ")+r.inline(c)+r.paint("]"), c.Destination))
		}
	}
	return b.String()
}

// link renders a link with its address.
func (r renderer) link(label string, address []byte) string {
	return strings.TrimSpace(label + " " + r.with(underline).paint(unescape(string(address))))
}

// escaped is an escaped character, or a character reference of HTML.
var escaped = text.Pattern("\\\\[!-/:-@\\[-`{-~]|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]*);")

// unescape returns s with the characters that its escapes stand for.
func unescape(s string) string {
	return escaped().ReplaceAllStringFunc(s, func(e string) string {
		if e[0] == '\\' {
			return e[1:]
		}
		return html.UnescapeString(e)
	})
}

// paint returns s, sanitized, in the style of the renderer.
func (r renderer) paint(s string) string {
	s = strings.ReplaceAll(term.PlainText(s), "\t", "    ")
	if !r.Colour || r.style == "" || s == "" {
		return s
	}
	return "\x1b[" + r.style[1:] + "m" + s + endStyle
}

// wrap breaks painted text at its line breaks and into lines that fit: at blanks where it can, or with words unset
// anywhere.
func (r renderer) wrap(s string, words bool) (lines []string) {
	start, width := 0, 0  // of the line
	blank, before := 0, 0 // the last blank of the line, and the width up to it
	style := ""
	addLine := func(end int) {
		l := style + strings.TrimRight(s[start:end], " ")
		if at := strings.LastIndexByte(l, '\x1b'); at >= 0 {
			if style = l[at : at+strings.IndexByte(l[at:], 'm')+1]; style == endStyle {
				style = ""
			}
		}
		if style != "" {
			l += endStyle
		}
		lines = append(lines, l)
	}
	for at, w := range term.Widths(s) {
		isBlank := words && s[at] == ' '
		switch {
		case s[at] == '\n' || isBlank && width+w > r.Columns:
			addLine(at)
			start, width, before = at+1, 0, 0
			continue
		case width+w <= r.Columns:
			width += w
			if isBlank {
				blank, before = at, width
			}
			continue
		case before > 1:
			addLine(blank)
			start, width = blank+1, width-before+w
		default:
			addLine(at)
			start, width = at, w
		}
		before = 0
	}
	addLine(len(s))
	return lines
}
