package termtest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// Screen is a terminal that obeys the sequences that our programs may write. It wraps its lines when it becomes
// narrower, as most terminals do. Every sequence that it does not know, and every one that reaches beyond the screen
// (title, clipboard, links), is recorded in Foreign.
type Screen struct {
	mu            sync.Mutex
	columns, rows int
	lines         []line // with everything that has scrolled away
	top           int    // first line of the screen
	x, y          int    // cursor; y counts from the first line of all
	parser        *ansi.Parser
	hidden        bool // the cursor
	syncs         int  // open synchronized updates
	changed       chan struct{}

	// Reply, if set, types what the terminal replies: the state of bracketed paste. Without it the terminal does not
	// know that mode. It is set before the first write.
	Reply func(sequence string)

	foreign []string
}

// line is a row of cells; the second cell of a wide character is empty.
type line struct {
	cells   []string
	wrapped bool // it continues on the next one
}

// NewScreen returns an empty screen.
func NewScreen(columns, rows int) *Screen {
	s := &Screen{columns: columns, rows: rows, lines: []line{{}}, changed: make(chan struct{})}
	s.parser = ansi.NewParser()
	s.parser.SetHandler(ansi.Handler{
		Print: s.print, Execute: s.execute, HandleCsi: s.csi,
		HandleEsc: func(c ansi.Cmd) { s.note("ESC %c", c.Final()) },
		HandleOsc: func(_ int, data []byte) { s.note("OSC %s", data) },
		HandleDcs: func(c ansi.Cmd, _ ansi.Params, data []byte) { s.note("DCS %c %s", c.Final(), data) },
		HandleApc: func(data []byte) { s.note("APC %s", data) },
		HandlePm:  func(data []byte) { s.note("PM %s", data) },
		HandleSos: func(data []byte) { s.note("SOS %s", data) },
	})
	return s
}

func (s *Screen) note(format string, v ...any) {
	s.foreign = append(s.foreign, fmt.Sprintf(format, v...))
}

// Write obeys what a program writes.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range p {
		s.parser.Advance(b)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return len(p), nil
}

// Changed is closed when more was written.
func (s *Screen) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Foreign is what it did not obey.
func (s *Screen) Foreign() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.foreign...)
}

// Settled reports whether no frame is half drawn.
func (s *Screen) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.syncs == 0
}

// String is everything from the first line on, with what has scrolled away, without trailing blanks. A ▌ stands for the
// cursor where it is shown.
func (s *Screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for i, l := range s.lines {
		text := strings.Join(l.cells, "")
		if i == s.y && !s.hidden {
			cells := append([]string{}, l.cells...)
			for len(cells) < s.x {
				cells = append(cells, " ")
			}
			text = strings.Join(cells[:s.x], "") + "▌" + strings.Join(cells[s.x:], "")
		}
		out = append(out, strings.TrimRight(text, " "))
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n") + "\n"
}

// Resize changes the size and wraps the lines anew. The cursor stays at its character.
func (s *Screen) Resize(columns, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []line
	x, y := 0, 0
	for i := 0; i < len(s.lines); i++ {
		var cells []string
		at := -1 // of the cursor among the cells
		for ; ; i++ {
			if i == s.y {
				at = len(cells) + s.x
			}
			cells = append(cells, s.lines[i].cells...)
			if !s.lines[i].wrapped || i == len(s.lines)-1 {
				break
			}
		}
		for len(cells) > 0 && cells[len(cells)-1] == " " {
			cells = cells[:len(cells)-1]
		}
		for {
			n := min(columns, len(cells))
			if at >= 0 && (at < columns || n == len(cells)) {
				x, y, at = min(at, columns-1), len(lines), -1
			} else if at >= 0 {
				at -= columns
			}
			lines = append(lines, line{cells: append([]string{}, cells[:n]...), wrapped: n < len(cells)})
			if cells = cells[n:]; len(cells) == 0 {
				break
			}
		}
	}
	s.columns, s.rows, s.lines = columns, rows, lines
	s.x, s.y = x, y
	s.top = max(0, len(lines)-rows)
}

func (s *Screen) print(r rune) {
	w := ansi.StringWidth(string(r))
	l := &s.lines[s.y]
	if w == 0 { // combines with the cell before
		if s.x > 0 && s.x <= len(l.cells) {
			l.cells[s.x-1] += string(r)
		}
		return
	}
	if s.x+w > s.columns {
		l.wrapped = true
		s.x = 0
		s.lineFeed()
		l = &s.lines[s.y]
	}
	for len(l.cells) < s.x+w {
		l.cells = append(l.cells, " ")
	}
	l.cells[s.x] = string(r)
	if w == 2 {
		l.cells[s.x+1] = ""
	}
	s.x += w
}

func (s *Screen) lineFeed() {
	if s.y++; s.y == len(s.lines) {
		s.lines = append(s.lines, line{})
	}
	s.top = max(s.top, s.y-s.rows+1)
}

func (s *Screen) execute(b byte) {
	switch b {
	case '\r':
		s.x = 0
	case '\n':
		s.lineFeed()
	case '\b':
		s.x = max(0, s.x-1)
	default:
		s.note("control %#x", b)
	}
}

// modes are the private modes that a program may set: cursor, bracketed paste, synchronized update.
var modes = map[int]bool{25: true, 2004: true, 2026: true}

func (s *Screen) csi(c ansi.Cmd, params ansi.Params) {
	n, _, _ := params.Param(0, 1)
	erase, _, _ := params.Param(0, 0)
	n = max(n, 1)
	switch final := c.Final(); {
	case c.Prefix() == '?' && (final == 'h' || final == 'l') && modes[erase]:
		s.setMode(erase, final == 'h')
	case c.Prefix() == '?' && c.Intermediate() == '$' && final == 'p' && erase == 2004:
		if s.Reply != nil {
			s.Reply("\x1b[?2004;1$y")
		}
	case c.Prefix() != 0 || c.Intermediate() != 0:
		s.note("CSI %c%d%c", c.Prefix(), erase, final)
	case final == 'm':
	case final == 'A':
		s.y = max(s.top, s.y-n)
	case final == 'C':
		s.x = min(s.columns-1, s.x+n)
	case final == 'K' && erase == 0:
		s.cut()
	case final == 'J' && erase == 0:
		s.cut()
		s.lines = s.lines[:s.y+1]
	default:
		s.note("CSI %d%c", erase, final)
	}
}

// cut erases from the cursor to the end of its line.
func (s *Screen) cut() {
	l := &s.lines[s.y]
	l.cells, l.wrapped = l.cells[:min(s.x, len(l.cells))], false
}

func (s *Screen) setMode(mode int, on bool) {
	switch {
	case mode == 25:
		s.hidden = !on
	case mode == 2026 && on:
		s.syncs++
	case mode == 2026:
		s.syncs--
	}
}
