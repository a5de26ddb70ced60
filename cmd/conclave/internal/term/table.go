package term

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

const (
	columnGap = 2  // blanks between two columns
	leastClip = 12 // a last column is not clipped to less
)

// Layout says how a table is made narrower when the terminal is.
type Layout struct {
	Drop  []string // headers of the columns that are left out, the least important first
	Whole bool     // cells are never clipped, so that lines may wrap: for text on which the user decides
}

// Table prints rows in columns, without trailing blanks. On a terminal it fits the width: columns in l.Drop are left
// out, then the last column is clipped, then the lines are. Elsewhere it is complete. The first row is the header where
// l.Drop is used. Cells must be sanitized.
func Table(w io.Writer, rows [][]string, l Layout) {
	columns, _, _ := Size(w)
	for _, line := range tableLines(rows, l, columns) {
		fmt.Fprintln(w, line)
	}
}

// tableLines lays a table out for a terminal of so many columns; 0 is no limit.
func tableLines(rows [][]string, l Layout, columns int) []string {
	if columns > 0 && len(rows) > 0 {
		rows = dropColumns(rows, l.Drop, columns)
		if !l.Whole {
			rows = clipLast(rows, columns)
		}
	}
	widths := columnWidths(rows)
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			b.WriteString(cell)
			if j < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[j]-Width(cell)+columnGap))
			}
		}
		lines[i] = strings.TrimRight(b.String(), " ")
		if columns > 0 && !l.Whole {
			lines[i] = cutWidth(lines[i], columns)
		}
	}
	return lines
}

// dropColumns leaves out columns by their header until the table fits with a last column of [leastClip] characters.
func dropColumns(rows [][]string, drop []string, columns int) [][]string {
	for _, name := range drop {
		widths := columnWidths(rows)
		last := len(widths) - 1
		if last < 0 || tableWidth(widths[:last])+min(widths[last], leastClip) <= columns {
			return rows
		}
		at := slices.Index(rows[0], name)
		if at < 0 {
			continue
		}
		narrow := make([][]string, len(rows))
		for i, row := range rows {
			narrow[i] = row
			if at < len(row) {
				narrow[i] = slices.Delete(slices.Clone(row), at, at+1)
			}
		}
		rows = narrow
	}
	return rows
}

// clipLast clips the cells of the last column to the width that is left, at least [leastClip].
func clipLast(rows [][]string, columns int) [][]string {
	widths := columnWidths(rows)
	last := len(widths) - 1
	if last < 0 {
		return rows
	}
	room := max(leastClip, columns-tableWidth(widths[:last]))
	clipped := make([][]string, len(rows))
	for i, row := range rows {
		clipped[i] = slices.Clone(row)
		if len(row) > last && Width(row[last]) > room {
			clipped[i][last] = cutWidth(row[last], room-3) + "..."
		}
	}
	return clipped
}

// columnWidths returns the width of the widest cell of each column.
func columnWidths(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Width(cell))
		}
	}
	return widths
}

// tableWidth is the width of columns with their gaps.
func tableWidth(widths []int) (n int) {
	for _, w := range widths {
		n += w + columnGap
	}
	return n
}

// Width is the number of terminal columns that s takes: two for wide characters, none for combining marks, joiners and
// colours. Terminals differ in emoji that are joined from several; they count as one.
func Width(s string) int { return ansi.StringWidth(s) }

// cutWidth is the beginning of s that takes at most columns. The end of a colour is kept.
func cutWidth(s string, columns int) string { return ansi.Truncate(s, columns, "") }

// Widths returns the position and the width of each character of s. Colours have no width.
func Widths(s string) iter.Seq2[int, int] {
	return func(yield func(at, w int) bool) {
		var state byte
		for at := 0; at < len(s); {
			_, w, n, next := ansi.DecodeSequence(s[at:], state, nil)
			if !yield(at, w) {
				return
			}
			at, state = at+n, next
		}
	}
}
