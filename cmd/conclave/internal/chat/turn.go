package chat

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// turn is a question on its way to the answer.
type turn struct {
	query    *client.Query // nil until the question is stored
	cancel   context.CancelFunc
	stopping bool

	phase view.Phase
	view.Transcript
}

// tail is the growing end of the answer, at most so many lines of it, behind a blank line.
func (t *turn) tail(f markdown.Format, most int) []string {
	b, ok := t.Tail()
	if !ok {
		return nil
	}
	lines := f.Render(b)
	if b.First {
		lines = append([]string{""}, lines...)
	}
	return lines[max(0, len(lines)-most):]
}

// status is the line of the spinner. Without a connection it is not known what the question waits for.
func (t *turn) status(frame int, offline bool) string {
	text := view.SpinnerFrame(frame) + " " + t.phase.Text(time.Now())
	if offline {
		text = view.SpinnerFrame(frame) + " waiting for the connection"
	}
	if t.stopping {
		return text + " (stopping; Ctrl-C again quits)"
	}
	return text + " (Ctrl-C stops)"
}

// Messages of a turn. A message of an earlier turn is dropped.
type (
	storedMsg struct {
		turn  *turn
		query *client.Query
		err   error
	}
	updateMsg struct {
		turn   *turn
		update client.Update
	}
	modelMsg struct {
		turn  *turn
		state view.ModelState
	}
	gradeMsg struct{ grade *subjects.Critique }
)

// ask asks a question with the attachments that were given for it, or queues it behind the running one.
func (m *model) ask(text string) tea.Cmd {
	if m.turn != nil {
		m.queue = append(m.queue, text)
		m.note("queued: %s", text)
		return nil
	}
	if m.Session == "" {
		m.Session = actor.NewID()
	}
	q := m.next
	m.next = client.Question{}
	q.Session, q.Model, q.Text, q.Graded = m.Session, m.Model, cmp.Or(text, subjects.PipedQuestion), true
	ctx, cancel := context.WithCancel(m.ctx)
	t := &turn{cancel: cancel, Transcript: view.NewTranscript(m, m.modelNotes)}
	m.turn = t
	store := func() tea.Msg {
		query, err := m.Client.Ask(ctx, q)
		return storedMsg{t, query, err}
	}
	go PollModel(ctx, m.Client, q.Model, func(s view.ModelState) { m.send(modelMsg{t, s}) })
	return tea.Batch(store, tickSpinner(t))
}

// modelPoll is the time between two looks at whether the model is loaded.
const modelPoll = time.Second

// PollModel reports whether the model is loaded, "" for the assistant's, until it is or ctx ends; see [StateOf] for
// what counts as loaded.
func PollModel(ctx context.Context, c *client.Client, name string, report func(view.ModelState)) {
	for ctx.Err() == nil {
		list, err := c.Models(ctx)
		if err != nil {
			return
		}
		m := StateOf(list, name)
		if report(m); m.Loaded {
			return
		}
		select {
		case <-time.After(modelPoll):
		case <-ctx.Done():
		}
	}
}

// StateOf finds the model, "" for the assistant's, in a list; ":latest" does not matter. Only an Ollama model on
// this machine can be not loaded: the demo model, whose name stays "", remote ones, those of other servers and ones
// that are not listed count as loaded, as there is nothing to wait for.
func StateOf(list subjects.ModelList, name string) view.ModelState {
	for _, r := range list.Roles {
		if name == "" && r.Role == subjects.RoleAssistant && !r.DemoModel {
			name = r.Model
		}
	}
	for _, m := range list.Models {
		if strings.TrimSuffix(m.Name, ":latest") == strings.TrimSuffix(name, ":latest") {
			return view.ModelState{Name: name, Loaded: m.Loaded || m.Remote != "" || m.Backend != "ollama"}
		}
	}
	return view.ModelState{Name: name, Loaded: true}
}

func tickSpinner(t *turn) tea.Cmd {
	return tea.Tick(spinnerTime, func(time.Time) tea.Msg { return spinMsg{t} })
}

// onStored follows a question that was stored.
func (m *model) onStored(msg storedMsg) tea.Cmd {
	t := msg.turn
	if msg.err != nil {
		m.fail(m.App.AskError(m.ctx, m.Session, msg.err))
		return m.endTurn()
	}
	t.query = msg.query
	_ = m.App.SaveLastQuestion(msg.query.Session, msg.query.ID) // only for --continue and rate
	go func() {
		for u := range msg.query.Updates() {
			m.send(updateMsg{t, u})
		}
	}()
	return nil
}

// onUpdate shows what happened to the running question.
func (m *model) onUpdate(u client.Update) tea.Cmd {
	t := m.turn
	t.phase.Follow(u)
	switch u := u.(type) {
	case client.ApprovalAsked:
		return m.onApproval(u.ApprovalRequest)
	case client.ApprovalDecided:
		m.onDecided(u.ApprovalReply)
	case client.Waiting:
		m.Talk(view.WaitingText(u))
	case client.Answer:
		return m.onAnswer(u.Response)
	case client.Failure:
		t.Flush()
		m.fail(m.App.UnansweredError(m.Session, u.Fault))
		return m.endTurn()
	default:
		t.Show(u)
	}
	return nil
}

// Talk implements [view.Printer].
func (m *model) Talk(line string) {
	m.turn.Interrupt()
	m.note("%s", line)
}

// Note implements [view.Printer]. A note is not clipped.
func (m *model) Note(line string) {
	m.turn.Interrupt()
	for l := range strings.SplitSeq(ansi.Wrap(term.Plain(line), m.width(), ""), "\n") {
		m.print(m.paint(term.Dim, l))
	}
}

// PrintBlock implements [view.Printer]: a blank line precedes each block.
func (m *model) PrintBlock(b markdown.Block, _ bool) {
	if b.First {
		m.print("")
	}
	m.print(m.format().Render(b)...)
}

// onAnswer prints what of the answer was not shown, its notes and a summary, and waits for the grade beside the next
// question.
func (m *model) onAnswer(r subjects.Response) tea.Cmd {
	t := m.turn
	t.PrintAnswer(r)
	m.print("")
	t.PrintAnswerNotes(r)
	if r.DemoModel && !strings.Contains(r.Answer, "built-in demo model") {
		m.print(m.paint(term.Yellow, view.DemoNotice))
	}
	m.last = &r
	var grade tea.Cmd
	if r.Error != nil {
		m.fail(m.App.UnansweredError(m.Session, r.Error))
	} else {
		m.note("%s", t.Summarize(r))
		query := t.query
		t.query = nil
		grade = func() tea.Msg {
			defer query.Close()
			return gradeMsg{query.Grade(m.ctx, gradeWait)}
		}
	}
	return tea.Batch(grade, m.endTurn())
}

// onGrade prints the grade of an answer; nil means that there is none.
func (m *model) onGrade(c *subjects.Critique) {
	if c == nil {
		return
	}
	if m.note("%s", view.GradeLine(*c)); c.Retry {
		m.note("ask again with /retry")
	}
}

// endTurn ends the running question and asks the next one of the queue.
func (m *model) endTurn() tea.Cmd {
	t := m.turn
	m.turn, m.waiting, m.batch = nil, nil, nil
	t.cancel()
	if t.query != nil {
		t.query.Close()
	}
	if len(m.queue) == 0 || m.quit {
		return nil
	}
	text := m.queue[0]
	m.queue = m.queue[1:]
	m.echo(text)
	return m.ask(text)
}

// stop cancels the running question; its partial answer still comes. A question that waits in the queue is dropped.
func (m *model) stop() {
	m.turn.stopping = true
	m.queue = nil
	m.turn.cancel()
}

// batch is the waiting calls that the user is asked about.
type batch struct {
	view.Batch
	typed string
	early time.Time // keys before this time were not meant for it
	sent  bool
}

// prompt is the question about the calls, with what was typed.
func (m *model) prompt() string {
	b := m.batch
	if b.sent {
		return "allow " + term.Visible(b.Batch[0].Tool) + "? deciding"
	}
	return b.Prompt(m.word(), false) + term.Visible(b.typed)
}

// word is the word that approves calls, "" where y does because the terminal marks pastes.
func (m *model) word() string {
	if m.marksPastes {
		return ""
	}
	return m.batch.Word()
}

// Messages about waiting calls: nothing came for a while after so many calls, and the broker's replies to decisions.
type (
	gatheredMsg int
	decidedMsg  struct {
		replies []subjects.ApprovalReply
		err     error
	}
)

// onApproval queues a waiting call. Calls that come together are asked about together.
func (m *model) onApproval(r subjects.ApprovalRequest) tea.Cmd {
	m.turn.Interrupt()
	m.turn.PrintNotes()
	m.waiting = append(m.waiting, r)
	if m.batch != nil {
		return nil
	}
	m.arrived++
	n := m.arrived
	return tea.Tick(view.GatherTime, func(time.Time) tea.Msg { return gatheredMsg(n) })
}

// onGathered asks about the waiting calls, unless one has come since.
func (m *model) onGathered(n gatheredMsg) {
	if m.batch == nil && int(n) == m.arrived {
		m.showApprovals()
	}
}

// showApprovals prints the first waiting calls, if any: the exact arguments, complete, with hidden characters made
// visible. Calls that come later are none of these.
func (m *model) showApprovals() {
	isReplaced := m.batch != nil && !m.batch.sent // by what was decided elsewhere
	m.batch = nil
	if len(m.waiting) == 0 {
		return
	}
	next, more := view.NextBatch(m.waiting)
	var b strings.Builder
	next.Print(term.Sized(&b, m.width()), more, time.Now())
	m.print("")
	m.print(strings.Split(strings.TrimRight(b.String(), "\n"), "\n")...)
	wait := term.TooFast
	if isReplaced || m.input.Value() != "" { // keys are meant for something else
		wait = term.TooFastAfterSwitch
	}
	m.batch = &batch{Batch: next, early: time.Now().Add(wait)}
}

// onApprovalKey edits the answer to the question about the calls. Enter decides: everything but a clear yes denies. A
// yes without the word, where one is needed, and numbers of no call are asked again. A command decides nothing.
func (m *model) onApprovalKey(k tea.KeyPressMsg) tea.Cmd {
	b := m.batch
	switch {
	case b.sent, time.Now().Before(b.early):
	case k.String() == "enter" && strings.HasPrefix(b.typed, "/"):
		line := b.typed
		b.typed = ""
		return m.command(line)
	case k.String() == "enter":
		decisions, complaint := b.Parse(b.typed, m.word())
		if complaint != "" {
			m.note("%s", complaint)
			b.typed = ""
			return nil
		}
		b.sent = true
		decisions = slices.DeleteFunc(decisions, func(d view.Decision) bool { return m.waitingIndex(d.ID) < 0 })
		return func() tea.Msg { return m.sendDecisions(decisions) }
	case k.String() == "backspace":
		r := []rune(b.typed)
		b.typed = string(r[:max(0, len(r)-1)])
	case len(b.typed) < maxDecision:
		b.typed += k.Text
	}
	return nil
}

// sendDecisions sends decisions one by one, up to the first error. Each approves its call only.
func (m *model) sendDecisions(decisions []view.Decision) (done decidedMsg) {
	for _, d := range decisions {
		d.Remember = ""
		r, err := m.Client.DecideApproval(m.ctx, d.ID, d.ApprovalDecision)
		if err != nil {
			done.err = err
			return done
		}
		done.replies = append(done.replies, r)
	}
	return done
}

// waitingIndex is the index of the waiting call with this request, -1 when it does not wait any more.
func (m *model) waitingIndex(id string) int {
	return slices.IndexFunc(m.waiting, func(r subjects.ApprovalRequest) bool { return r.ID == id })
}

// onDecision reports decisions that were not accepted; accepted ones come as updates of the question. After an error
// the calls that still wait are asked about again.
func (m *model) onDecision(d decidedMsg) {
	for _, r := range d.replies {
		if !r.Accepted {
			m.fail(m.App.RejectedDecision(r))
			m.onDecided(subjects.ApprovalReply{ID: r.ID, State: r.State, By: r.By})
		}
	}
	if d.err != nil {
		m.fail(d.err)
		if m.batch != nil {
			m.batch.sent, m.batch.typed = false, ""
		}
	}
}

// onDecided removes a call that was decided, here or elsewhere, and asks about the next ones when none is left of those
// that were asked about.
func (m *model) onDecided(r subjects.ApprovalReply) {
	at := m.waitingIndex(r.ID)
	if at < 0 {
		return
	}
	m.note("%s: %s", m.waiting[at].Tool, strings.TrimSuffix(r.State+" by "+r.By, " by "))
	m.waiting = slices.Delete(m.waiting, at, at+1)
	if m.batch != nil && !slices.ContainsFunc(m.batch.Batch, func(r subjects.ApprovalRequest) bool {
		return m.waitingIndex(r.ID) >= 0
	}) {
		m.showApprovals()
	}
}
