package markdown

import (
	"strings"

	extast "github.com/yuin/goldmark/extension/ast"

	"conclave/cmd/conclave/internal/term"
)

// table renders a table. One that fits only with broken words is shown cell by cell, each behind the name of its
// column.
func (r renderer) table(t *extast.Table) (lines []string) {
	var rows [][]string
	widths, least := make([]int, len(t.Alignments)), make([]int, len(t.Alignments))
	for row := range children(t) {
		var cells []string
		for c := range children(row) {
			cell, i := r.inline(c), len(cells)
			cells = append(cells, cell)
			widths[i] = max(widths[i], term.Width(cell))
			for word := range strings.SplitSeq(cell, " ") {
				least[i] = max(least[i], term.Width(word))
			}
		}
		rows = append(rows, cells)
	}
	if !shrink(widths, least, r.Columns-3*len(widths)+1) {
		for _, cells := range rows[min(1, len(rows)-1):] {
			for i, cell := range cells {
				lines = append(lines, r.wrap(rows[0][i]+": "+cell, true)...)
			}
			lines = append(lines, "")
		}
		return lines[:len(lines)-1]
	}
	for i, cells := range rows {
		lines = append(lines, r.row(cells, widths, t.Alignments)...)
		if i == 0 {
			var rule []string
			for _, w := range widths {
				rule = append(rule, strings.Repeat("─", w+2))
			}
			lines = append(lines, r.paint(strings.Join(rule, "┼")))
		}
	}
	return lines
}

// shrink makes the widest columns narrower, none below its least width, until they fit into room together. It reports
// whether they do.
func shrink(widths, least []int, room int) bool {
	if room < 0 {
		return false
	}
	for i := range widths {
		room -= widths[i]
	}
	for ; room < 0; room++ {
		widest := -1
		for i, w := range widths {
			if w > least[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	return true
}

// row renders a row of a table, whose cells are wrapped.
func (r renderer) row(cells []string, widths []int, alignments []extast.Alignment) (lines []string) {
	wrapped := make([][]string, len(cells))
	height := 0
	for i, cell := range cells {
		r.Columns = widths[i]
		wrapped[i] = r.wrap(cell, true)
		height = max(height, len(wrapped[i]))
	}
	for y := range height {
		parts := make([]string, len(cells))
		for i, column := range wrapped {
			if y < len(column) {
				parts[i] = column[y]
			}
			left, free := 0, widths[i]-term.Width(parts[i])
			switch alignments[i] {
			case extast.AlignRight:
				left = free
			case extast.AlignCenter:
				left = free / 2
			}
			parts[i] = strings.Repeat(" ", left+1) + parts[i] + strings.Repeat(" ", free-left+1)
		}
		lines = append(lines, strings.TrimRight(strings.Join(parts, r.paint("│")), " "))
	}
	return lines
}
