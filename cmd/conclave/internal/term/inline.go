package term

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Inline draws a live region at the end of a terminal's output: below what was printed for good, without the alternate
// screen. Each frame is one write between the marks of a synchronized update, and only lines that changed are written,
// so nothing flickers. Lines must be sanitized and narrower than the terminal.
type Inline struct {
	w       io.Writer
	lines   []string // of the region
	row     int      // of the cursor in it
	column  int
	columns int  // of the terminal when the region was drawn
	wraps   bool // a terminal that becomes narrower wraps its lines; xterm, screen and the console of Linux cut them
}

// NewInline returns an empty region on a terminal.
func NewInline(w io.Writer) *Inline {
	kind := os.Getenv("TERM")
	return &Inline{w: w, wraps: os.Getenv("XTERM_VERSION") == "" && kind != "linux" &&
		!strings.HasPrefix(kind, "screen")}
}

const (
	syncBegin  = "\x1b[?2026h"
	syncEnd    = "\x1b[?2026l"
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
)

// Draw prints lines for good above the region, and replaces the region. The cursor is left at a row and column of the
// region, or hidden with a row below 0. columns is the present width of the terminal: when it shrank, the terminal has
// wrapped the old lines.
func (d *Inline) Draw(above, region []string, row, column, columns int) error {
	var b strings.Builder
	b.WriteString(syncBegin + hideCursor)
	d.moveToTop(&b, columns)
	resized := d.columns != columns
	d.columns = columns
	if len(above) > 0 || resized {
		b.WriteString("\x1b[J")
		d.lines = nil
	}
	for _, l := range above {
		b.WriteString(l + "\r\n")
	}
	for i, l := range region {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if i >= len(d.lines) || d.lines[i] != l {
			b.WriteString(l + "\x1b[K")
		}
	}
	if len(region) < len(d.lines) {
		if last := len(region) - 1; last >= 0 && d.lines[last] == region[last] && Width(region[last]) > 0 {
			fmt.Fprintf(&b, "\x1b[%dC", Width(region[last])) // behind a line that was not written again
		}
		b.WriteString("\x1b[J")
	}
	d.lines, d.row, d.column = append([]string{}, region...), max(0, len(region)-1), 0
	if len(region) > 0 {
		d.column = Width(region[d.row])
	}
	if row >= 0 && row < len(region) {
		if up := d.row - row; up > 0 {
			fmt.Fprintf(&b, "\x1b[%dA", up)
		}
		b.WriteString("\r")
		if column > 0 {
			fmt.Fprintf(&b, "\x1b[%dC", column)
		}
		b.WriteString(showCursor)
		d.row, d.column = row, column
	}
	b.WriteString(syncEnd)
	_, err := io.WriteString(d.w, b.String())
	return err
}

// Close prints lines for good in place of the region and leaves the cursor on the line below them.
func (d *Inline) Close(above []string, columns int) error {
	err := d.Draw(above, nil, -1, 0, columns)
	_, werr := io.WriteString(d.w, "\r"+showCursor)
	return errors.Join(err, werr)
}

// moveToTop moves the cursor to the beginning of the region. A terminal that became narrower has wrapped its lines, so
// that the region has more rows than it was drawn with.
func (d *Inline) moveToTop(b *strings.Builder, columns int) {
	rows := d.row
	if d.wraps && columns < d.columns && columns > 0 {
		rows = d.column / columns
		for _, l := range d.lines[:min(d.row, len(d.lines))] {
			rows += 1 + max(0, Width(l)-1)/columns
		}
	}
	b.WriteString("\r")
	if rows > 0 {
		fmt.Fprintf(b, "\x1b[%dA", rows)
	}
}
