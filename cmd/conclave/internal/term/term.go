// Package term writes to the user's terminal and reads from it: streams, colours, sanitized text, tables, progress and
// prompts. It knows nothing about the bus.
//
// The rules for messages, for every command:
//
//   - stdout is data, stderr is talk. A pipe on stdout gets data and nothing else.
//   - An error is one line: "conclave: <what happened>: <what to do>".
//   - Colour only on a terminal, and not when NO_COLOR is set or the terminal is dumb.
//   - With --json a command prints one JSON document; streams (tap, audit tail) and the readiness of a process that
//     stays
//     (up, actor) are JSON lines. Nothing else is on stdout then.
//   - Text from others is shown without its control characters.
package term

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"conclave/pkg/text"
)

// Streams are the standard streams of a command.
type Streams struct {
	In  io.Reader
	Out *Sink
	Err io.Writer
}

// NewStreams returns streams whose output remembers its first error.
func NewStreams(in io.Reader, out, err io.Writer) *Streams {
	return &Streams{In: in, Out: &Sink{w: out}, Err: err}
}

// Sink is stdout. It remembers the first error, so that printing needs no check at every line.
type Sink struct {
	w   io.Writer
	Err error
}

// ErrReaderGone means that the reader of stdout has closed it, as head does. Only [Sink] returns it: EPIPE alone can
// also come from the connection to a server.
var ErrReaderGone = errors.New("nobody reads the output any more")

// Write writes to stdout. After the first error it writes nothing more and returns that error, which is [ErrReaderGone]
// for EPIPE.
func (s *Sink) Write(p []byte) (int, error) {
	if s.Err != nil {
		return 0, s.Err
	}
	n, err := s.w.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = ErrReaderGone
	}
	s.Err = err
	return n, err
}

// Say prints a line for the user on stderr.
func (s *Streams) Say(format string, v ...any) { fmt.Fprintf(s.Err, format+"\n", v...) }

// PrintJSON prints one JSON document, indented on a terminal.
func (s *Streams) PrintJSON(v any) error { return s.encodeJSON(v, IsTerminal(s.Out)) }

// PrintLine prints one line of a stream of JSON: v, or an object with the fields of v and more.
func (s *Streams) PrintLine(v any, more ...any) error { return s.encodeJSON(v, false, more...) }

// encodeJSON writes v, with the fields of more if v is an object, to stdout as one JSON document with a line break at
// its end, on one line unless indent is set. Characters that control a terminal or hide text are escaped, which does
// not change the value; <, > and & are not. It returns the error of encoding or of the first failed write to stdout.
func (s *Streams) encodeJSON(v any, indent bool, more ...any) error {
	all := ""
	for _, part := range append([]any{v}, more...) {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if indent {
			enc.SetIndent("", "  ")
		}
		if err := enc.Encode(part); err != nil {
			return err
		}
		if all == "" {
			all = b.String()
		} else {
			all = strings.TrimSuffix(all, "}\n") + "," + strings.TrimPrefix(b.String(), "{")
		}
	}
	_, err := io.WriteString(s.Out, text.EscapeJSON(all))
	return err
}

// Colours.
const (
	Red     = "31"
	Green   = "32"
	Yellow  = "33"
	Blue    = "34"
	Magenta = "35"
	Cyan    = "36"
	Dim     = "2"
	Bold    = "1"
)

// Paint colours text if w shows colours. An empty colour leaves it as it is.
func Paint(w io.Writer, colour, text string) string {
	if colour == "" || !HasColour(w) {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// HasColour reports whether w is a terminal that shows colours.
func HasColour(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// IsTerminal reports whether a stream is a terminal. /dev/null is a device, but no terminal.
func IsTerminal(stream any) bool {
	_, _, ok := Size(stream)
	return ok
}

// sized is a writer that passes for a terminal of so many columns.
type sized struct {
	io.Writer
	columns int
}

// Sized returns a writer for which [Table] fits its output to so many columns.
func Sized(w io.Writer, columns int) io.Writer { return sized{w, columns} }

// Size is the size in characters of the terminal behind a stream, which may be a [*Sink]. ok is false when there is
// none.
func Size(stream any) (columns, rows int, ok bool) {
	if s, is := stream.(sized); is {
		return s.columns, 0, true
	}
	if s, is := stream.(*Sink); is {
		stream = s.w
	}
	f, is := stream.(*os.File)
	if !is {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return cmp.Or(int(size.Col), 80), cmp.Or(int(size.Row), 24), true // a terminal that does not know its size says 0
}

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
