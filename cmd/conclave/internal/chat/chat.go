// Package chat is the interactive conversation of the terminal: inline, without the alternate screen. What is finished
// is printed for good; below it a small region shows the growing end of the answer, the phase and the input.
//
// Bubble Tea reads the keys and runs the loop. The region is drawn by [term.Inline] and not by its renderer, which
// prints lines above the region in commands of their own, in no certain order, and loses lines when there are more than
// the screen has.
package chat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textarea"
	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	xterm "golang.org/x/term"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Options configure a conversation.
type Options struct {
	App     *cli.App
	Client  *client.Client
	Session string // "" = a new one
	Model   string // "" = the assistant's
	Resume  bool   // show the last turn of the session first
	// Link reports that the connection of Client is lost, false, and is back; nil never does.
	Link <-chan bool
}

const (
	frameTime   = time.Second / 30       // between two frames of a growing answer
	spinnerTime = 100 * time.Millisecond // between two frames of the spinner
	gradeWait   = 20 * time.Second       // for the grade, beside the next question
	maxInput    = 8                      // rows of the input
	pasteTail   = 50 * time.Millisecond  // keys so soon after a paste are a part of it
	modeWait    = 3 * time.Second        // for the terminal's report that it marks pastes
	maxDecision = 1000                   // bytes of a typed answer to the question about a call
)

// Run runs the conversation until the user ends it. stdin and stdout must be a terminal. The end of ctx ends it too.
func Run(ctx context.Context, o Options) error {
	keyboard, ok := term.Keyboard(o.App.In)
	if !ok || !term.IsTerminal(o.App.Out) {
		return cli.Usage("chat needs a terminal: in a pipe use conclave ask")
	}
	state, err := xterm.MakeRaw(int(keyboard.Fd()))
	if err != nil {
		return fmt.Errorf("switching the terminal to single keys: %w", err)
	}
	defer func() { _ = xterm.Restore(int(keyboard.Fd()), state) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(ctx, o)
	fmt.Fprint(o.App.Out, ansi.SetModeBracketedPaste+ansi.RequestModeBracketedPaste)
	defer fmt.Fprint(o.App.Out, ansi.ResetModeBracketedPaste)
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(keyboard), tea.WithoutRenderer(),
		tea.WithoutSignalHandler(), tea.WithColorProfile(colorprofile.ANSI))
	m.send = p.Send
	go m.watchSize(ctx)
	go m.watchLink(ctx)
	_, err = p.Run()
	cancel()
	closed := m.screen.Close(m.takeLines(), m.columns)
	if errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrProgramPanic) { // the end of ctx
		err = nil
	}
	return errors.Join(err, closed)
}

// model is the state of the conversation. Only the loop of Bubble Tea changes it.
type model struct {
	Options
	ctx  context.Context
	send func(tea.Msg)

	screen        *term.Inline
	columns, rows int
	lines         []string // to be printed for good with the next frame
	drawn         time.Time
	scheduled     bool // a frame
	spinner       int

	input   textarea.Model
	history history
	hint    string // below the input
	// undoPlan has the undo that the user saw, by what was to be undone; "" is the last change.
	undoPlan map[string]string
	names    names
	pasted   time.Time // the last paste, or a key that belongs to it

	marksPastes bool      // the terminal has confirmed it
	reportUntil time.Time // a report of the terminal counts until then, and until the first key

	next    client.Question // attachments of the next question
	turn    *turn           // the running question
	queue   []string        // questions that wait for it
	waiting []subjects.ApprovalRequest
	batch   *batch // waiting calls that the user is asked about; nil while more are gathered
	arrived int    // calls that waited when none was asked about
	last    *subjects.Response
	offline bool // the connection is lost; what runs and waits goes on when it is back
	quit    bool

	modelNotes map[string]bool // texts of notes about the model that were shown
}

// newModel returns a conversation without a turn.
func newModel(ctx context.Context, o Options) *model {
	input := textarea.New()
	input.ShowLineNumbers, input.CharLimit, input.DynamicHeight = false, 0, true
	input.MinHeight, input.MaxHeight, input.MaxContentHeight = 1, maxInput, 10_000
	input.SetPromptFunc(2, func(p textarea.PromptInfo) string {
		if p.LineNumber == 0 {
			return "> "
		}
		return "  "
	})
	input.SetVirtualCursor(false)
	input.SetStyles(textarea.Styles{})
	input.KeyMap.InsertNewline = key.NewBinding(key.WithKeys("alt+enter", "ctrl+j", "shift+enter"))
	input.KeyMap.Paste, input.KeyMap.CopySelection = key.NewBinding(), key.NewBinding()
	input.Focus()
	m := &model{
		Options: o, ctx: ctx, screen: term.NewInline(o.App.Out), input: input, history: openHistory(o.App),
		reportUntil: time.Now().Add(modeWait), modelNotes: map[string]bool{},
	}
	m.measure()
	return m
}

// Init implements [tea.Model].
func (m *model) Init() tea.Cmd {
	return tea.Batch(m.greet(), m.loadNames())
}

// View implements [tea.Model]. The region is drawn by draw.
func (m *model) View() tea.View { return tea.View{} }

// sizeMsg means that the terminal may have another size.
type sizeMsg struct{}

// watchSize reports changes of the terminal's size.
func (m *model) watchSize(ctx context.Context) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	for {
		select {
		case <-resized:
			m.send(sizeMsg{})
		case <-ctx.Done():
			return
		}
	}
}

// linkMsg means that the connection is back, or lost.
type linkMsg bool

// watchLink reports changes of the connection.
func (m *model) watchLink(ctx context.Context) {
	for {
		select {
		case up := <-m.Link:
			m.send(linkMsg(up))
		case <-ctx.Done():
			return
		}
	}
}

// measure reads the size of the terminal.
func (m *model) measure() {
	m.columns, m.rows = 80, 24
	if c, r, ok := term.Size(m.App.Out); ok && c > 0 && r > 0 {
		m.columns, m.rows = c, r
	}
	m.input.SetWidth(max(m.columns-1, 10))
}

// width is how wide a line may be. The last column stays free, so that no line wraps.
func (m *model) width() int { return max(m.columns-1, 10) }

// print prints lines for good with the next frame. They must be sanitized; what is too wide is wrapped.
func (m *model) print(lines ...string) {
	for _, l := range lines {
		for part := range strings.SplitSeq(ansi.Hardwrap(strings.ReplaceAll(l, "\t", "    "), m.width(), true), "\n") {
			if strings.Contains(part, "\x1b") {
				part += "\x1b[m"
			}
			m.lines = append(m.lines, part)
		}
	}
}

// note prints a dim line about the answer, clipped to the width. It may contain text of others.
func (m *model) note(format string, v ...any) {
	m.print(m.paint(term.Dim, term.Clip(term.Plain(fmt.Sprintf(format, v...)), m.width())))
}

// fail prints an error.
func (m *model) fail(err error) {
	m.print(m.paint(term.Red, "conclave:") + " " + term.OneLine(err.Error()))
}

func (m *model) paint(colour, text string) string { return term.Paint(m.App.Out, colour, text) }

// takeLines returns the lines that were not printed yet.
func (m *model) takeLines() []string {
	lines := m.lines
	m.lines = nil
	return lines
}

// format is how Markdown is rendered.
func (m *model) format() markdown.Format {
	return markdown.Format{Columns: m.width(), Colour: term.HasColour(m.App.Out)}
}

// frameMsg draws a frame that was put off; spinMsg moves the spinner.
type (
	frameMsg struct{}
	spinMsg  struct{ turn *turn }
)

// frame draws now or, when the last frame is too young, a little later.
func (m *model) frame() tea.Cmd {
	wait := frameTime - time.Since(m.drawn)
	switch {
	case m.scheduled:
		return nil
	case wait <= 0:
		m.draw()
		return nil
	}
	m.scheduled = true
	return tea.Tick(wait, func(time.Time) tea.Msg { return frameMsg{} })
}

// draw draws the region below the new lines: the growing end of the answer, the phase, the prompt or the input, and a
// hint.
func (m *model) draw() {
	m.drawn = time.Now()
	var below []string
	row, column := 0, 0
	switch {
	case m.batch != nil:
		prompt := m.prompt()
		below = strings.Split(ansi.Hardwrap(prompt, m.width(), true), "\n")
		row, column = len(below)-1, term.Width(below[len(below)-1])
	default:
		for l := range strings.SplitSeq(m.input.View(), "\n") {
			below = append(below, strings.TrimRight(ansi.Strip(l), " "))
		}
		if c := m.input.Cursor(); c != nil {
			row, column = c.Y, c.X
		}
	}
	below = append(below, m.paint(term.Dim, term.Clip(m.hintText(), m.width())))
	var region []string
	if m.turn != nil {
		region = m.turn.tail(m.format(), max(1, m.rows-len(below)-4))
	}
	region = append(region, "")
	if m.turn != nil {
		if m.batch == nil {
			region = append(region, m.paint(term.Dim, term.Clip(m.turn.status(m.spinner, m.offline), m.width())))
		}
	}
	row += len(region)
	if err := m.screen.Draw(m.takeLines(), append(region, below...), row, min(column, m.width()),
		m.columns); err != nil {
		m.quit = true // the terminal is gone
	}
}
