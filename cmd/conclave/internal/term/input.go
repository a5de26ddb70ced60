package term

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	xterm "golang.org/x/term"
)

// ErrStopped means that the user interrupted the reading.
var ErrStopped = errors.New("stopped")

// A line that is typed so soon after a prompt was shown cannot be an answer to it.
const (
	TooFast = 250 * time.Millisecond
	// TooFastAfterSwitch holds when the prompt replaced another one, which the line was meant for.
	TooFastAfterSwitch = time.Second
)

// TypedAhead is printed for a line that came too fast.
const TypedAhead = "this was typed before the question could be read: read it, then answer"

// IsPiped reports whether r is a pipe, a file or a reader that is no file. A terminal, /dev/null and nil are none of them.
func IsPiped(r io.Reader) bool {
	f, is := r.(*os.File)
	if !is {
		return r != nil
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice == 0
}

// Keyboard returns r as a file, and true only if it is a terminal, on which a user can be asked.
func Keyboard(r io.Reader) (*os.File, bool) {
	f, is := r.(*os.File)
	return f, is && IsTerminal(f)
}

// ReadLines delivers the lines typed on a terminal until Ctrl-D; the channel is not closed then. It is nil when r is no
// terminal: nobody can be asked there. Reading cannot be interrupted and ends with the process.
func ReadLines(r io.Reader) <-chan string {
	f, ok := Keyboard(r)
	if !ok {
		return nil
	}
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(f); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// IsYes reports whether a typed line is a clear yes.
func IsYes(line string) bool {
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line)))
}

// Confirm asks a yes-or-no question on stderr and waits for a line from keyboard, which must be a terminal. Everything but a
// clear yes is no, also Ctrl-D. A line typed within [TooFast] is discarded and the question repeated. The end of ctx is
// [ErrStopped].
func (s *Streams) Confirm(ctx context.Context, keyboard *os.File, question string) (bool, error) {
	lines := make(chan string)
	go func() { // reading cannot be interrupted: it ends with the process
		defer close(lines)
		for sc := bufio.NewScanner(keyboard); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	for {
		fmt.Fprint(s.Err, question)
		asked := time.Now()
		select {
		case <-ctx.Done():
			return false, ErrStopped
		case l, more := <-lines:
			if more && time.Since(asked) < TooFast {
				s.Say("%s", TypedAhead)
				continue
			}
			return IsYes(l), nil
		}
	}
}

// ReadAll reads stdin to its end, at most limit+1 bytes: a longer result tells the caller that the input is too large. A nil
// stdin is "". Invalid UTF-8 is replaced. When ctx ends first it is [ErrStopped]. On a terminal, prompt is printed unless it is
// ""; otherwise a hint is printed after two seconds when stderr is a terminal.
func (s *Streams) ReadAll(ctx context.Context, limit int, prompt string) (string, error) {
	if s.In == nil {
		return "", nil
	}
	done := readInBackground(func() ([]byte, error) { return io.ReadAll(io.LimitReader(s.In, int64(limit)+1)) })
	var hint <-chan time.Time
	if _, ok := Keyboard(s.In); ok && prompt != "" {
		s.Say("%s", prompt)
	} else if IsTerminal(s.Err) {
		hint = time.After(2 * time.Second)
	}
	for {
		select {
		case r := <-done:
			if r.err != nil {
				return "", fmt.Errorf("reading stdin: %w", r.err)
			}
			return strings.ToValidUTF8(string(r.data), "\uFFFD"), nil
		case <-hint:
			s.Say("waiting for the end of stdin; use < /dev/null if there is nothing to read")
		case <-ctx.Done():
			return "", ErrStopped
		}
	}
}

type readResult struct {
	data []byte
	err  error
}

// readInBackground runs read in a goroutine and delivers its result once. A read that never ends is left behind with the
// process.
func readInBackground(read func() ([]byte, error)) <-chan readResult {
	done := make(chan readResult, 1)
	go func() {
		data, err := read()
		done <- readResult{data, err}
	}()
	return done
}

// ReadHidden reads a value from stdin: on a terminal one line, after a prompt and without echo, otherwise everything up to a
// little more than limit bytes, without the line break at the end. The caller rejects a result longer than limit; an empty one
// is no error. The terminal is restored also when ctx ends, which is [ErrStopped].
func (s *Streams) ReadHidden(ctx context.Context, limit int, prompt string) ([]byte, error) {
	read := func() ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(s.In, int64(limit)+3)) // room for a line break and one byte too many
		return []byte(strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")), err
	}
	if f, ok := Keyboard(s.In); ok {
		state, err := xterm.GetState(int(f.Fd()))
		if err != nil {
			return nil, fmt.Errorf("reading without echo: %w", err)
		}
		defer func() {
			_ = xterm.Restore(int(f.Fd()), state)
			fmt.Fprintln(s.Err)
		}()
		fmt.Fprint(s.Err, prompt)
		read = func() ([]byte, error) { return xterm.ReadPassword(int(f.Fd())) }
	}
	select {
	case <-ctx.Done():
		return nil, ErrStopped
	case r := <-readInBackground(read):
		if errors.Is(r.err, io.EOF) {
			r.err = nil
		}
		return r.data, r.err
	}
}
