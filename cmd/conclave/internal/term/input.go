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

// IsPiped reports whether r is a pipe, a file or a reader that is no file. A terminal, /dev/null and nil are none of
// them.
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

// DiscardWaiting discards input of a terminal that was not read yet: it was typed or pasted before the prompt that
// follows. A line that a reader has taken already is caught by [TooFast]. Other readers are left alone.
func DiscardWaiting(r io.Reader) {
	if f, ok := Keyboard(r); ok {
		flushInput(f)
	}
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

// A line that is read from a terminal may have been pasted, unless the terminal marks pastes. Where a yes has
// consequences it begins with a word that the prompt shows and that a text written before cannot contain, so that no
// paste answers the prompt.

// CutWord returns what follows the word of a prompt in a typed line. ok is false when the line does not begin with the
// word. An empty word is no word: the line is returned as it is.
func CutWord(line, word string) (rest string, ok bool) {
	if word == "" {
		return line, true
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	return strings.TrimSpace(rest), strings.EqualFold(first, word)
}

// NeedsWord is printed for a yes without the word of the prompt.
func NeedsWord(word string) string {
	return "this could be pasted text: to approve, type " + word
}

// Confirm asks a yes-or-no question as [Streams.ReadAnswer] does. Everything but a clear yes is no, also Enter alone
// and Ctrl-D.
func (s *Streams) Confirm(ctx context.Context, keyboard *os.File, question string) (bool, error) {
	line, err := s.ReadAnswer(ctx, keyboard, question+" [y/N] ", func(string) string { return "" })
	return IsYes(line), err
}

// ReadAnswer prints a prompt on stderr and waits for a line from keyboard, which must be a terminal; Ctrl-D is an empty
// one. A line for which complain returns a text is none: the text is printed and the prompt repeated. Input that waits
// when the prompt appears is discarded. So is a line typed within [TooFast], and the prompt repeated. The end of ctx is
// [ErrStopped]. A line is read for each prompt and none ahead, so that what is typed afterwards is for the next reader.
func (s *Streams) ReadAnswer(ctx context.Context, keyboard *os.File, prompt string, complain func(line string) string) (
	string, error,
) {
	typed := bufio.NewScanner(keyboard)
	for {
		DiscardWaiting(keyboard)
		fmt.Fprint(s.Err, prompt)
		asked := time.Now()
		more := make(chan bool, 1)
		go func() { more <- typed.Scan() }() // after the end of ctx it ends with the process
		select {
		case <-ctx.Done():
			return "", ErrStopped
		case more := <-more:
			if more && time.Since(asked) < TooFast {
				s.Say("%s", TypedAhead)
				continue
			}
			if text := complain(typed.Text()); text != "" {
				s.Say("%s", text)
				continue
			}
			return typed.Text(), nil
		}
	}
}

// ReadAll reads stdin to its end, at most limit+1 bytes: a longer result tells the caller that the input is too large.
// A nil stdin is "". Invalid UTF-8 is replaced. When ctx ends first it is [ErrStopped]. On a terminal, prompt is
// printed unless it is ""; otherwise a hint is printed after two seconds when stderr is a terminal.
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

// Reader reads stdin until ctx ends, which is [ErrStopped] for the reads after it and the one that waits.
func (s *Streams) Reader(ctx context.Context) io.Reader {
	if s.In == nil {
		return strings.NewReader("")
	}
	return stoppableReader{ctx, s.In}
}

// stoppableReader reads from in until ctx ends.
type stoppableReader struct {
	ctx context.Context
	in  io.Reader
}

func (r stoppableReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, ErrStopped
	}
	done := readInBackground(func() ([]byte, error) {
		b := make([]byte, len(p))
		n, err := r.in.Read(b)
		return b[:n], err
	})
	select {
	case got := <-done:
		return copy(p, got.data), got.err
	case <-r.ctx.Done():
		return 0, ErrStopped
	}
}

type readResult struct {
	data []byte
	err  error
}

// readInBackground runs read in a goroutine and delivers its result once. A read that never ends is left behind with
// the process.
func readInBackground(read func() ([]byte, error)) <-chan readResult {
	done := make(chan readResult, 1)
	go func() {
		data, err := read()
		done <- readResult{data, err}
	}()
	return done
}

// ReadHidden reads a value from stdin: on a terminal one line, after a prompt and without echo, otherwise everything up
// to a little more than limit bytes, without the line break at the end. The caller rejects a result longer than limit;
// an empty one is no error. The terminal is restored also when ctx ends, which is [ErrStopped].
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
