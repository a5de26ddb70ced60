package view

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/pkg/client"
	"conclave/subjects"
)

const (
	spinnerDelay = 300 * time.Millisecond // without other output, before the spinner is drawn
	spinnerFrame = 100 * time.Millisecond // between two frames
	maxPreview   = 60                     // characters of a growing block
)

// ModelState is the model that answers, and whether its server has loaded it.
type ModelState struct {
	Name   string
	Loaded bool
}

// spinner is a line on stderr that shows the phase of a question while nothing else is printed: queued, loading a
// model, thinking, calling tools. It is drawn from [spinnerDelay] after the last output on, and removed before the
// next.
type spinner struct {
	line   *term.Progress
	ticker *time.Ticker
	quiet  time.Time // since when nothing was printed
	frame  int
	phase  Phase
	tail   string // the end of the text that is not printed yet
}

// Phase is what a question waits for: a place in the queue, the model, a tool. The zero value is a question that was
// just asked.
type Phase struct {
	name    string
	since   time.Time // when it began
	started bool      // a generator works on the question
	model   *ModelState
	spoken  bool                    // the model has sent something in this step
	answers bool                    // it sends the answer
	calls   []string                // tools that run
	reading *subjects.PromptReading // the model reads a prompt; nil = it does not, or the time is not known
}

// newSpinner returns a spinner on stderr, which draws nothing when that is no terminal or cannot draw over a line.
func newSpinner(s *term.Streams) *spinner {
	w := s.Err
	if os.Getenv("TERM") == "dumb" {
		w = io.Discard
	}
	now := time.Now()
	return &spinner{
		line: term.NewProgress(w), ticker: time.NewTicker(spinnerFrame), quiet: now, phase: Phase{since: now},
	}
}

// stop removes the line for good.
func (p *spinner) stop() {
	p.line.Clear()
	p.ticker.Stop()
}

// clear removes the line before other output.
func (p *spinner) clear() {
	p.line.Clear()
	p.quiet = time.Now()
}

// SetModel tells which model answers, and whether it is loaded.
func (p *Phase) SetModel(m ModelState) { p.model = &m }

// Follow takes the phase from an update.
func (p *Phase) Follow(u client.Update) {
	switch u := u.(type) {
	case client.State:
		p.started = true
		// A transition, not a note or interim text. That to the generation may be read after its first deltas.
		if u.Event != "" && u.Event != "START_GENERATION" {
			p.spoken, p.answers = false, false
		}
		if u.Event != "" || u.Reading != nil {
			p.reading = u.Reading
		}
	case client.Delta:
		p.started, p.spoken, p.answers, p.reading = true, true, !u.Thinking, nil
	case client.ToolCall:
		p.started = true
		p.calls = append(p.calls, u.Tool)
	case client.ToolResult:
		if i := slices.Index(p.calls, u.Tool); i >= 0 {
			p.calls = slices.Delete(p.calls, i, i+1)
		}
		p.spoken = true // the model that requested the call is loaded
	}
}

// Text names what the question waits for, with the seconds of the phase from the first on. now must not decrease.
func (p *Phase) Text(now time.Time) string {
	if name := p.current(); name != p.name {
		p.name, p.since = name, now
	}
	text := term.Plain(p.name)
	if seconds := int(now.Sub(p.since).Seconds()); seconds > 0 {
		text += fmt.Sprintf(" %d s", seconds)
		if p.reading != nil && strings.HasSuffix(p.name, ",") {
			text += " so far"
		}
	}
	return strings.TrimSuffix(text, ",")
}

// current names what the question waits for now.
func (p *Phase) current() string {
	switch {
	case !p.started:
		return "queued"
	case len(p.calls) > 0:
		return "calling " + strings.Join(slices.Compact(slices.Sorted(slices.Values(p.calls))), ", ")
	case !p.spoken && p.model != nil && !p.model.Loaded:
		return "loading " + p.model.Name
	case p.reading != nil && p.reading.Whole:
		return "waiting for the whole answer of the model,"
	case p.reading != nil:
		return fmt.Sprintf("reading %s tokens, about %d s,", groupDigits(p.reading.Tokens),
			max(1, (p.reading.Millis+500)/1000))
	}
	if p.answers {
		return "answering"
	}
	return "thinking"
}

// groupDigits writes a number with a comma before each group of three digits. n must not be negative.
func groupDigits(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", groupDigits(n/1000), n%1000)
}

// preview shows the end of a block that grows behind the phase; false for none.
func (p *spinner) preview(b markdown.Block, ok bool) {
	p.tail = ""
	if ok {
		r := []rune(strings.Join(strings.Fields(term.Plain(b.Text)), " "))
		p.tail = string(r[max(0, len(r)-maxPreview):])
	}
}

// SpinnerFrame is a frame of the animation.
func SpinnerFrame(n int) string { return string(`|/-\`[n%4]) }

// tick draws the next frame when nothing was printed for [spinnerDelay].
func (p *spinner) tick() {
	now := time.Now()
	text := p.phase.Text(now)
	if now.Sub(p.quiet) < spinnerDelay {
		return
	}
	if p.tail != "" {
		text += " ... " + p.tail
	}
	p.frame++
	p.line.Draw("%s %s", SpinnerFrame(p.frame), text)
}
