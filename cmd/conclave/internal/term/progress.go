package term

import (
	"fmt"
	"io"
	"strings"
)

// Progress is a status line on a terminal that is drawn over. Elsewhere nothing is drawn.
type Progress struct {
	w     io.Writer
	drawn bool
}

// NewProgress returns a status line on w, which is usually stderr.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w} }

// Draw replaces the line. Text that does not fit is cut, and only its first line is drawn. Where w is no terminal it
// draws nothing. The caller sanitizes.
func (p *Progress) Draw(format string, v ...any) {
	columns, _, ok := Size(p.w)
	if !ok {
		return
	}
	fmt.Fprint(p.w, "\r\x1b[K"+Fit(fmt.Sprintf(format, v...), columns-1, 0)[0])
	p.drawn = true
}

// Clear removes the line.
func (p *Progress) Clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// Bar is a bar of 20 characters. all must be positive, and done from 0 to all.
func Bar(done, all int64) string {
	const width = 20
	full := int(width * done / all)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
}
