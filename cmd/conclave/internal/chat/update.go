package chat

import (
	"errors"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Update implements [tea.Model]. Every message may change the region, which is drawn at most [frameTime] later.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.handle(msg)
	if m.quit {
		m.hint = ""
		return m, tea.Quit
	}
	if _, drawn := msg.(frameMsg); drawn { // it changes nothing: another frame would follow it for ever
		return m, cmd
	}
	return m, tea.Batch(cmd, m.frame())
}

// handle changes the state by a message.
func (m *model) handle(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case sizeMsg:
		m.measure()
		m.draw()
	case frameMsg:
		m.scheduled = false
		m.draw()
	case spinMsg:
		if msg.turn == m.turn {
			m.spinner++
			return tickSpinner(m.turn)
		}
	case linkMsg:
		m.offline = !bool(msg)
	case storedMsg:
		return m.onStored(msg)
	case updateMsg:
		if msg.turn == m.turn {
			return m.onUpdate(msg.update)
		}
	case modelMsg:
		if msg.turn == m.turn {
			m.turn.phase.SetModel(msg.state)
		}
	case gradeMsg:
		m.onGrade(msg.grade)
	case gatheredMsg:
		m.onGathered(msg)
	case decidedMsg:
		m.onDecision(msg)
	case printMsg:
		return m.onPrint(msg)
	case namesMsg:
		m.names = names(msg)
	case tea.ModeReportMsg:
		m.onModeReport(msg)
	case tea.PasteMsg:
		m.onPaste(msg.Content)
	case tea.KeyPressMsg:
		return m.onKey(msg)
	}
	return nil
}

// onModeReport learns from the first report of the terminal whether it marks pastes. A report after that, or after a
// key, counts for nothing: pasted text can contain one.
func (m *model) onModeReport(r tea.ModeReportMsg) {
	if r.Mode == ansi.ModeBracketedPaste && time.Now().Before(m.reportUntil) {
		m.marksPastes, m.reportUntil = r.Value.IsSet(), time.Time{}
	}
}

// onKey handles a key. A key right after a paste is a part of it: pasted text can contain the mark of its own end.
func (m *model) onKey(k tea.KeyPressMsg) tea.Cmd {
	m.reportUntil = time.Time{}
	if time.Since(m.pasted) < pasteTail {
		m.pasted = time.Now()
		return nil
	}
	name := k.String()
	switch {
	case name == "ctrl+c", name == "esc" && m.turn != nil:
		return m.interrupt(name == "ctrl+c")
	case name == "ctrl+d" && m.input.Value() == "" && m.turn == nil:
		m.quit = true
		return nil
	case m.batch != nil:
		return m.onApprovalKey(k)
	case name == "enter":
		return m.submit()
	case name == "tab":
		m.complete()
		return nil
	case name == "up" && m.input.Line() == 0:
		m.recall(-1)
		return nil
	case name == "down" && m.input.Line() == m.input.LineCount()-1:
		m.recall(1)
		return nil
	}
	var cmd tea.Cmd
	m.input, cmd = m.input.Update(k)
	m.hint = m.suggest()
	return cmd
}

// interrupt stops the running question; while it stops, or without one, it clears the input, and then quits.
func (m *model) interrupt(mayQuit bool) tea.Cmd {
	switch {
	case m.turn != nil && !m.turn.stopping:
		m.stop()
	case !mayQuit:
	case m.turn == nil && (m.input.Value() != "" || len(m.next.Attachments) > 0):
		m.input.Reset()
		m.next = client.Question{}
		m.hint = ""
	default:
		m.quit = true
	}
	return nil
}

// submit sends the input: as a command when it begins with a slash, else as a question. A backslash at its end
// continues on a new line.
func (m *model) submit() tea.Cmd {
	text := m.input.Value()
	if before, ok := strings.CutSuffix(text, "\\"); ok && m.input.Line() == m.input.LineCount()-1 {
		m.input.SetValue(before + "\n")
		return nil
	}
	if text = strings.TrimSpace(text); text == "" && len(m.next.Attachments) == 0 {
		return nil
	}
	if len(text) > subjects.QueryReceived.Limit() {
		m.fail(cli.Usage("the question is larger than %s: attach the text with /attach, or shorten it",
			term.Bytes(int64(subjects.QueryReceived.Limit()))))
		return nil
	}
	m.input.Reset()
	m.hint = ""
	m.history.add(text)
	if strings.HasPrefix(text, "/") {
		m.echo(text)
		return m.command(text)
	}
	if m.turn == nil {
		m.echo(text)
	}
	return m.ask(text)
}

// echo prints what the user typed, and its attachments, as a part of the conversation.
func (m *model) echo(text string) {
	m.print("")
	prompt := "> "
	for l := range strings.SplitSeq(term.PlainText(text), "\n") {
		m.print(m.paint(term.Cyan, prompt+l))
		prompt = "  "
	}
}

// onPaste inserts a short paste into the input. A long one is untrusted content that the next question is about.
func (m *model) onPaste(text string) {
	m.pasted = time.Now()
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	switch {
	case m.batch != nil: // a decision is typed
	case term.IsLongPaste(text):
		err := m.attach(subjects.Attachment{Source: subjects.AttachmentPaste, Text: strings.Trim(text, "\n")})
		if err != nil {
			m.fail(err)
		}
	default:
		m.input.InsertString(term.PlainText(text))
	}
}

// attach adds untrusted content to the next question.
func (m *model) attach(a subjects.Attachment) error {
	all := append(append([]subjects.Attachment{}, m.next.Attachments...), a)
	if err := subjects.CheckAttachments(all); err != nil {
		return errors.Join(err, errors.New("ask about a part of the text, or store it with conclave memory import"))
	}
	m.next.Attachments = all
	m.note("attached to the next question as UNTRUSTED content: %s", a.Describe())
	return nil
}

// recall replaces the input by an earlier one of the history.
func (m *model) recall(step int) {
	if text, ok := m.history.move(step, m.input.Value()); ok {
		m.input.SetValue(text)
		m.input.MoveToEnd()
	}
}
