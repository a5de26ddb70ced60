package chat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// commandTimeout bounds a command that asks the system.
const commandTimeout = time.Minute

// slashCommand is a command of the input.
type slashCommand struct {
	name, args, help string
	run              func(m *model, args string) tea.Cmd
	words            func(m *model, typed string) []string // for completion; nil = none
}

// slashCommands are in the order of /help. Set in init, because /help lists them.
var slashCommands []slashCommand

func init() {
	slashCommands = []slashCommand{
		{"/help", "", "list the commands and keys", (*model).showHelp, nil},
		{
			"/model", "[name]", "list the models, or choose one; " + ownModel + ": as before", (*model).chooseModel,
			func(m *model, _ string) []string { return append([]string{ownModel}, m.names.models...) },
		},
		{
			"/session", "[new|id]", "list the sessions, begin a new one, or continue one", (*model).chooseSession,
			func(m *model, _ string) []string { return append([]string{"new"}, m.names.sessions...) },
		},
		{"/new", "", "begin a new session", func(m *model, _ string) tea.Cmd { return m.chooseSession("new") }, nil},
		{"/memory", "<words>", "search the memory as the assistant does", (*model).searchMemory, nil},
		{"/why", "", "show what the last answer is based on", (*model).explainAnswer, nil},
		{"/changes", "", "list what calls changed in your files", (*model).listChanges, nil},
		{"/undo", "[id] yes", "show what an undo would restore; with yes: do it", (*model).undo, nil},
		{"/stop", "", "stop the running answer", (*model).stopAnswer, nil},
		{"/retry", "", "ask again, with the criticism of the last answer", (*model).retry, nil},
		{
			"/attach", "<file>", "attach a file to the next question, as untrusted content", (*model).attachFile,
			completePath,
		},
		{"/quit", "", "end the conversation; it stays stored", (*model).end, nil},
	}
}

// end ends the conversation. An answer that is written goes on.
func (m *model) end(string) tea.Cmd {
	if m.turn != nil {
		m.print(m.paint(term.Dim, "the answer goes on, and is stored in this session (conclave chat --continue); "+
			"/stop before /quit stops it"))
	}
	m.quit = true
	return nil
}

// command runs a line that begins with a slash.
func (m *model) command(line string) tea.Cmd {
	name, args, _ := strings.Cut(line, " ")
	i := slices.IndexFunc(slashCommands, func(c slashCommand) bool { return c.name == name })
	if i < 0 {
		m.fail(cli.Usage("%s is not a command: see /help", term.Visible(name)))
		return nil
	}
	return slashCommands[i].run(m, strings.TrimSpace(args))
}

// printMsg is the output of a command: lines, an error, and what to do then.
type printMsg struct {
	lines []string
	err   error
	then  func() tea.Cmd
}

func (m *model) onPrint(p printMsg) tea.Cmd {
	m.print(p.lines...)
	if p.err != nil {
		m.fail(p.err)
	}
	if p.then != nil && p.err == nil {
		return p.then()
	}
	return nil
}

// query runs a request to the system beside the loop and prints what it writes to the streams.
func (m *model) query(run func(ctx context.Context, s *term.Streams) error, then func() tea.Cmd) tea.Cmd {
	width := m.width()
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, commandTimeout)
		defer cancel()
		var out, talk strings.Builder
		s := term.NewStreams(nil, term.Sized(&out, width), &talk)
		err := run(ctx, s)
		var lines []string
		if text := strings.TrimRight(out.String()+talk.String(), "\n"); text != "" {
			lines = strings.Split(text, "\n")
		}
		return printMsg{lines, err, then}
	}
}

func (m *model) showHelp(string) tea.Cmd {
	var rows [][]string
	for _, c := range slashCommands {
		rows = append(rows, []string{"  " + strings.TrimSpace(c.name+" "+c.args), c.help})
	}
	rows = append(rows, []string{"  Enter", "send; Alt-Enter, Ctrl-J or \\ at the end begins a new line"},
		[]string{"  Up, Down", "earlier inputs"}, []string{"  Tab", "complete a command"},
		[]string{"  Ctrl-C, Esc", "stop the answer"}, []string{"  Ctrl-C, Ctrl-D", "quit when nothing runs"})
	var b strings.Builder
	term.Table(term.Sized(&b, m.width()), rows, term.Layout{})
	m.print(strings.Split(strings.TrimRight(b.String(), "\n"), "\n")...)
	return nil
}

// ownModel stands for the model that the role assistant has.
const ownModel = "assistant"

// chooseModel sets the model of the next questions, or lists the models and says which one is chosen. A model that the
// system does not have is rejected.
func (m *model) chooseModel(name string) tea.Cmd {
	if name == ownModel {
		m.Model = ""
		m.note("the next questions go to the assistant's model")
		return nil
	}
	if name != "" {
		if err := cli.CheckModel(name); err != nil {
			m.fail(err)
			return nil
		}
	}
	chosen := func() tea.Cmd {
		if name != "" {
			m.Model = name
			m.note("the next questions go to %s", name)
		}
		return nil
	}
	chosenModel := m.Model
	return m.query(func(ctx context.Context, s *term.Streams) error {
		list, err := m.Client.Models(ctx)
		switch {
		case err != nil:
			return err
		case name == "":
			view.Models(s, list, m.App.Program())
			s.Say("the next questions go to %s", cmp.Or(term.Plain(chosenModel), "the assistant's model"))
		case !client.HasModel(list, name):
			return cli.Fail(cli.ExitFailed, "there is no model "+name, "pull it with "+m.App.Program()+" model pull "+
				name)
		}
		return nil
	}, chosen)
}

// chooseSession begins or continues a session; without an argument it lists them.
func (m *model) chooseSession(id string) tea.Cmd {
	switch {
	case id != "" && m.turn != nil:
		m.fail(errors.New("an answer is running: stop it with /stop first"))
		return nil
	case id == "new":
		m.Session, m.last = "", nil
		m.note("the next question begins a new session")
		return nil
	case id == "":
		return m.query(func(ctx context.Context, s *term.Streams) error {
			list, _, err := m.Client.Sessions(ctx, math.MaxInt, nil)
			if err == nil {
				view.Sessions(s.Out, slices.DeleteFunc(list, func(c client.SessionSummary) bool {
					return c.Err != nil
				}))
			}
			return err
		}, nil)
	}
	var found string
	return m.query(func(ctx context.Context, _ *term.Streams) (err error) {
		if found, err = m.Client.FindSession(ctx, id); errors.Is(err, client.ErrNotFound) {
			err = cli.Fail(cli.ExitFailed, "there is no session "+term.Visible(id), "list them with /session")
		}
		if client := subjects.ClientOf(found); err == nil && client != "" {
			err = cli.Fail(cli.ExitFailed, "session "+found+" belongs to the client "+client+": its questions are "+
				"not your words", "read it with "+m.App.Program()+" session show "+found)
		}
		return err
	}, func() tea.Cmd {
		m.Session, m.last = found, nil
		return m.showLastTurn()
	})
}

// showLastTurn prints the last question and answer of the session, so that the user knows where it stands.
func (m *model) showLastTurn() tea.Cmd {
	session, format := m.Session, m.format()
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, commandTimeout)
		defer cancel()
		t, _, err := m.Client.LastTurn(ctx, session)
		if errors.Is(err, client.ErrNotFound) {
			return printMsg{lines: []string{"session " + session + " has no answer yet"}}
		}
		if err != nil {
			return printMsg{err: err}
		}
		lines := []string{"", m.paint(term.Dim, "session "+term.ShortID(session)+", last used "+term.Stamp(t.Time))}
		for l := range strings.SplitSeq("> "+strings.ReplaceAll(term.PlainText(t.Query), "\n", "\n  "), "\n") {
			lines = append(lines, m.paint(term.Cyan, l))
		}
		return printMsg{lines: append(lines, format.RenderText(t.Answer)...)}
	}
}

func (m *model) searchMemory(words string) tea.Cmd {
	if words == "" {
		m.fail(cli.Usage("give words to search for: /memory tomatoes"))
		return nil
	}
	return m.query(func(ctx context.Context, s *term.Streams) error {
		r, err := m.Client.SearchMemory(ctx, subjects.MemoryQuery{Query: words})
		if err == nil {
			view.MemoryHits(s, r, false, false)
		}
		return m.App.MemoryError(err)
	}, nil)
}

// explainAnswer shows what the last answer of this conversation is based on: memories, tool calls, notes, model and
// tokens.
func (m *model) explainAnswer(string) tea.Cmd {
	if m.last == nil {
		m.fail(errors.New("there is no answer in this conversation yet"))
		return nil
	}
	r := *m.last
	return m.query(func(ctx context.Context, s *term.Streams) error {
		recalls, err := m.recalls(ctx, r.QueryID)
		if err == nil {
			view.Basis(s.Out, r, recalls)
		}
		return err
	}, nil)
}

// maxRecallEvents is how many of the newest recalls are searched for those of an answer.
const maxRecallEvents = 200

// recalls returns the memories that were recalled for a question.
func (m *model) recalls(ctx context.Context, query string) (hits []subjects.MemoryRecall, err error) {
	n := 0
	for e, err := range m.Client.EventsBack(ctx, "from.memory."+subjects.MemoryRecalled.Name) {
		var body subjects.MemoryEvent
		if err != nil {
			return nil, err
		}
		if n++; n > maxRecallEvents {
			break
		}
		if e.Decode(&body) && body.QueryID == query {
			hits = append(hits, body.Hits...)
		}
	}
	return hits, nil
}

// listChanges lists the changes of this session that can be undone, newest first.
func (m *model) listChanges(string) tea.Cmd {
	q := subjects.ChangeQuery{Limit: maxChanges}
	return m.query(func(ctx context.Context, s *term.Streams) error {
		list, err := m.Client.Changes(ctx, q)
		if err == nil {
			view.Changes(s.Out, list, time.Now())
		}
		return err
	}, nil)
}

// maxChanges bounds the list of changes.
const maxChanges = 20

// undo shows what an undo of the change with an id, or of the last one, restores; followed by yes it does that.
func (m *model) undo(args string) tea.Cmd {
	words := strings.Fields(args)
	isApplied := len(words) > 0 && words[len(words)-1] == "yes"
	if isApplied {
		words = words[:len(words)-1]
	}
	q := subjects.UndoRequest{Action: subjects.UndoPlan}
	switch len(words) {
	case 0:
		q.Last = true
	case 1:
		q.ID = words[0]
	default:
		m.fail(cli.Usage("give one id: /undo 3f9c01d2"))
		return nil
	}
	if isApplied {
		q.Action, q.Plan = subjects.UndoApply, m.undoPlan[strings.Join(words, "")]
	}
	var r subjects.UndoReply
	return m.query(func(ctx context.Context, s *term.Streams) (err error) {
		if isApplied && q.Plan == "" {
			return cli.Fail(cli.ExitUsage, "nothing was restored", "look first, with /undo "+strings.Join(words, ""))
		}
		if r, err = m.Client.Undo(ctx, q); err == nil {
			view.Undo(s.Out, r, r.Done)
		}
		return err
	}, func() tea.Cmd {
		m.undoPlan = map[string]string{}
		if !r.Done && len(r.Refusals) == 0 {
			m.undoPlan[strings.Join(words, "")] = r.Plan
			m.note("/%s restores this", strings.Join(append([]string{"undo"}, append(words, "yes")...), " "))
		}
		return nil
	})
}

func (m *model) stopAnswer(string) tea.Cmd {
	if m.turn == nil {
		m.note("nothing is running")
		return nil
	}
	m.stop()
	return nil
}

// retry asks the last question of the session again.
func (m *model) retry(string) tea.Cmd {
	if m.turn != nil || m.Session == "" {
		m.fail(errors.New("there is nothing to retry: ask something first, or wait for the answer"))
		return nil
	}
	session := m.Session
	var text string
	return m.query(func(ctx context.Context, _ *term.Streams) (err error) {
		text, err = m.App.RetryQuestion(ctx, m.Client, session)
		return err
	}, func() tea.Cmd { return m.ask(text) })
}

// attachFile attaches a file to the next question.
func (m *model) attachFile(path string) tea.Cmd {
	if path == "" {
		m.fail(cli.Usage("name a file: /attach letter.pdf"))
		return nil
	}
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			path = filepath.Join(home, rest)
		}
	}
	var q client.Question
	read := func(ctx context.Context, _ *term.Streams) error { return cli.AttachFile(ctx, path, &q) }
	return m.query(read, func() tea.Cmd {
		for _, a := range q.Attachments {
			if err := m.attach(a); err != nil {
				m.fail(err)
				return nil
			}
		}
		m.next.Images = append(m.next.Images, q.Images...)
		return nil
	})
}

// names are the words of completions, as they were at the beginning.
type names struct{ models, sessions []string }

type namesMsg names

// loadNames reads the names of models and sessions; what cannot be read is not completed.
func (m *model) loadNames() tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, commandTimeout)
		defer cancel()
		var n namesMsg
		if list, err := m.Client.Models(ctx); err == nil {
			for _, i := range list.Models {
				if i.Refused == "" && term.Plain(i.Name) == i.Name {
					n.models = append(n.models, i.Name)
				}
			}
		}
		n.sessions, _ = m.Client.SessionIDs(ctx)
		return n
	}
}

// completePath returns the files that a path may mean, folders with a slash at their end.
func completePath(_ *model, typed string) (found []string) {
	matches, _ := filepath.Glob(strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`).Replace(typed) + "*")
	for _, f := range matches {
		if info, err := os.Stat(f); err == nil && info.IsDir() {
			f += "/"
		}
		if term.Plain(f) == f {
			found = append(found, f)
		}
	}
	return found
}

// candidates returns what the input may become, nil unless it is a command on one line.
func (m *model) candidates() (found []string) {
	text := m.input.Value()
	if !strings.HasPrefix(text, "/") || strings.Contains(text, "\n") {
		return nil
	}
	name, args, hasArgs := strings.Cut(text, " ")
	for _, c := range slashCommands {
		switch {
		case !hasArgs && strings.HasPrefix(c.name, name):
			found = append(found, c.name)
		case hasArgs && c.name == name && c.words != nil:
			for _, w := range c.words(m, args) {
				if strings.HasPrefix(w, args) {
					found = append(found, name+" "+w)
				}
			}
		}
	}
	return found
}

// complete extends the input to what all candidates share.
func (m *model) complete() {
	found := m.candidates()
	if len(found) == 0 {
		return
	}
	common := found[0]
	for _, f := range found[1:] {
		for !strings.HasPrefix(f, common) {
			common = common[:len(common)-1]
		}
	}
	if len(found) == 1 && !strings.HasSuffix(common, "/") && !strings.Contains(common, " ") {
		common += " "
	}
	m.input.SetValue(common)
	m.input.MoveToEnd()
	m.hint = m.suggest()
}

// suggest is the hint about the command that is typed: its use, or the candidates.
func (m *model) suggest() string {
	found := m.candidates()
	if len(found) == 1 {
		name, _, _ := strings.Cut(found[0], " ")
		i := slices.IndexFunc(slashCommands, func(c slashCommand) bool { return c.name == name })
		return strings.Join(strings.Fields(name+" "+slashCommands[i].args), " ") + ": " + slashCommands[i].help
	}
	var words []string
	for _, f := range found {
		_, arg, hasArg := strings.Cut(f, " ")
		if !hasArg {
			arg = f
		}
		words = append(words, arg)
	}
	return strings.Join(words, "  ")
}

// hintText is the line below the input.
func (m *model) hintText() string {
	switch {
	case m.batch != nil && len(m.batch.Batch) > 1:
		return "Enter denies; each call is decided by itself, and only those above"
	case m.batch != nil:
		return fmt.Sprintf("Enter denies; %s and Enter allows this call only", cmp.Or(m.word(), "y"))
	case m.hint != "":
		return m.hint
	}
	parts := []string{"/help"}
	if m.offline {
		parts = []string{"not connected to conclave: reconnecting"}
	}
	if m.Session != "" {
		parts = append(parts, "session "+term.ShortID(m.Session))
	}
	if m.Model != "" {
		parts = append(parts, m.Model)
	}
	if n := len(m.next.Attachments); n > 0 {
		parts = append(parts, fmt.Sprintf("%s attached", term.Count(n, "item")))
	}
	if n := len(m.queue); n > 0 {
		parts = append(parts, fmt.Sprintf("%d queued", n))
	}
	return strings.Join(parts, " · ")
}

// greet prints what this is, and with --continue where the session stands.
func (m *model) greet() tea.Cmd {
	m.print(m.paint(term.Bold, "Conclave") + m.paint(term.Dim, " · /help lists the commands, Ctrl-D quits"))
	if m.Resume {
		return m.showLastTurn()
	}
	return nil
}
