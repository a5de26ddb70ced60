package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"conclave/pkg/bus"
	"conclave/pkg/text"
)

// The rules for messages, for every command:
//
//   - stdout is data, stderr is talk. Whoever pipes stdout gets data and nothing else.
//   - An error is one line: "conclave: <what happened>: <what to do>".
//   - Colour only on a terminal, and not when NO_COLOR is set or the terminal is dumb.
//   - With --json a command that prints data prints one JSON document; the streams (tap, audit tail) and the readiness
//     of a process that stays (up, actor) are JSON lines. Nothing else is on stdout then.
//   - What others wrote is shown with its control characters taken out when it goes to a person.
//   - The exit code says how it ended; see the constants below.
const (
	exitDone   = 0 // done
	exitFailed = 1 // failed
	exitUsage  = 2 // called in a wrong way
	exitDenied = 3 // refused by policy
	exitAbsent = 4 // nothing to talk to: not running, unreachable, no such tool
	exitAudit  = 5 // the audit does not verify
)

// exitHelp is the same list for the root help.
const exitHelp = `Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  refused by policy (a denied call)
  4  nothing to talk to (not running, unreachable, tool unavailable)
  5  the audit does not verify`

// failure is an error that knows its exit code.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// fail says what happened and what to do, and how the program ends.
func fail(code int, what, fix string) error {
	return &failure{code, errors.New(what + ": " + fix)}
}

// usage is a wrong call.
func usage(format string, v ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, v...)}
}

// codeOf is the exit code that belongs to an error.
func codeOf(err error) int {
	var f *failure
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, bus.ErrNotRunning), errors.Is(err, bus.ErrUnreachable):
		return exitAbsent
	}
	return exitFailed
}

// end says what went wrong, if anything did, and returns the exit code.
func (a *app) end(err error) int {
	if err == nil {
		err = a.stdout.err
	}
	// The reader of our stdout has gone: nobody is left to tell, and nothing went wrong. Who wants that told wraps it.
	var f *failure
	if errors.Is(err, syscall.EPIPE) && !errors.As(err, &f) {
		return exitDone
	}
	if err != nil {
		fmt.Fprintln(a.stderr, a.paint(a.stderr, red, "conclave:"), oneLine(err.Error()))
	}
	return codeOf(err)
}

// oneLine makes one line of an error that has several, such as a list of wrong settings.
func oneLine(s string) string {
	var parts []string
	for p := range strings.Lines(s) {
		if p = strings.TrimSpace(p); p != "" {
			parts = append(parts, plain(p))
		}
	}
	return strings.Join(parts, "; ")
}

// plain takes out what could steer a terminal or hide text. It is for what others wrote.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if text.IsVisible(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// plainText is plain for text of several lines.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || text.IsVisible(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// short is the beginning of a long id.
func short(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}

// or is s, or what stands for nothing.
func or(s, nothing string) string {
	if s == "" {
		return nothing
	}
	return s
}

// sink is stdout. It remembers the first error, so that printing needs no check at every line.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

// say talks to the user.
func (a *app) say(format string, v ...any) { fmt.Fprintf(a.stderr, format+"\n", v...) }

// counting shows on a terminal how far long work is. The line is taken away at the end.
func (a *app) counting(what string, all int) func(done int) {
	if !isTerminal(a.stderr) {
		return func(int) {}
	}
	return func(done int) {
		switch {
		case done == all:
			fmt.Fprint(a.stderr, "\r\x1b[K")
		case done%10 == 0:
			fmt.Fprintf(a.stderr, "\r%d of %d %s", done, all, what)
		}
	}
}

// document prints one JSON document.
func (a *app) document(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	if isTerminal(a.stdout.w) {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// line prints one JSON line of a stream.
func (a *app) line(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Colours, by what they mean on this command line.
const (
	red     = "31"
	green   = "32"
	yellow  = "33"
	blue    = "34"
	magenta = "35"
	cyan    = "36"
	dim     = "2"
	bold    = "1"
)

// paint colours s where w can show it.
func (a *app) paint(w io.Writer, colour, s string) string {
	if colour == "" || !coloured(w) {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

func coloured(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// isTerminal reports whether w is a terminal. /dev/null is a device too, but no terminal.
func isTerminal(w io.Writer) bool {
	_, _, ok := terminal(w)
	return ok
}

// terminal is the size of the terminal behind w.
func terminal(w io.Writer) (columns, rows int, ok bool) {
	if s, is := w.(*sink); is {
		w = s.w
	}
	f, is := w.(*os.File)
	if !is {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(size.Col), int(size.Row), true
}
