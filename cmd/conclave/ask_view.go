package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/subjects"
)

// view shows a question's way to its answer: on a screen as it happens, elsewhere only the end, or as JSON lines.
type view interface {
	delta(d subjects.Delta, thinking bool)
	state(agent string, s subjects.AgentState)
	called(r subjects.ToolRequest)
	returned(r subjects.ToolResult)
	note(n subjects.Note)
	waits(r subjects.ApprovalRequest) // a call waits for the user's answer
	decided(r subjects.ApprovalReply) // it has one
	typed() <-chan string             // lines of the user; nil = nobody is asked here
	answered(line string) (id string, d subjects.ApprovalDecision, ok bool)
	trouble(code, text string) // ours, and not about the answer
	// end shows the answer. Each view calls grade, which may take a moment, when it has shown what there is.
	end(r subjects.Response, grade func() *subjects.Critique) error
	lost(f *subjects.Fault) error // there will be no answer
}

func (q *ask) chooseView() view {
	switch {
	case q.streamJSON:
		return &lines{app: q.app, ids: ids{q.session, q.query}, noted: map[subjects.Note]bool{}}
	case q.json:
		return &whole{app: q.app, ids: ids{q.session, q.query}, question: q.question, thinking: q.thinking}
	case isTerminal(q.stdout):
		return &screen{app: q.app, thinking: q.thinking, step: -1, n: -1, noted: map[subjects.Note]bool{}}
	}
	return &whole{app: q.app, thinking: q.thinking}
}

// clip keeps the beginning of a text on one line of n characters.
func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n && n > 3 {
		return string(r[:n-3]) + "..."
	}
	return s
}

// standIn is said of every answer that no model gave.
const standIn = "this is the built-in demo model, not a model: start Ollama to get real answers"

// written is what there is of an answer. An answer that came with an error ends with words about that error, for those
// who see nothing but the answer; here it is told on stderr, and is no data.
func written(r subjects.Response) string {
	if r.Error == nil || r.Error.Text == "" {
		return r.Answer
	}
	text := strings.TrimRight(r.Error.Text, ". ")
	first, n := utf8.DecodeRuneInString(text)
	for _, begins := range []string{text, string(unicode.ToUpper(first)) + text[n:]} {
		if at := strings.LastIndex(r.Answer, begins); at == 0 || at > 1 && r.Answer[at-2:at] == "\n\n" {
			return strings.TrimRight(r.Answer[:at], "\n")
		}
	}
	return r.Answer
}

// whole shows nothing before the end: an answer for a pipe, or the response as a document.
type whole struct {
	*app
	ids
	question string
	thinking bool // wanted by name, so it is shown even here
	midLine  bool
}

func (w *whole) delta(d subjects.Delta, thinking bool) {
	if thinking && w.thinking && d.Text != "" {
		fmt.Fprint(w.stderr, plainText(d.Text))
		w.midLine = !strings.HasSuffix(d.Text, "\n")
	}
}
func (w *whole) state(string, subjects.AgentState) {}
func (w *whole) called(subjects.ToolRequest)       {}
func (w *whole) returned(subjects.ToolResult)      {}
func (w *whole) note(subjects.Note)                {}
func (w *whole) decided(subjects.ApprovalReply)    {}
func (w *whole) typed() <-chan string              { return nil }
func (w *whole) answered(string) (id string, d subjects.ApprovalDecision, ok bool) {
	return "", d, false
}

func (w *whole) waits(r subjects.ApprovalRequest) {
	w.breakLine()
	w.say("%s", w.waitingFor(r))
}

func (w *whole) breakLine() {
	if w.midLine {
		fmt.Fprintln(w.stderr)
		w.midLine = false
	}
}

func (w *whole) trouble(_, text string) {
	w.breakLine()
	w.say("%s", text)
}

func (w *whole) end(r subjects.Response, grade func() *subjects.Critique) error {
	w.breakLine()
	if w.json {
		return w.document(gradedResponse{r, grade()})
	}
	if r.DemoModel {
		w.say("%s", standIn)
	}
	text := written(r)
	if text == "" {
		return nil
	}
	if _, err := fmt.Fprintln(w.stdout, strings.TrimSuffix(text, "\n")); err != nil {
		return err
	}
	w.showGrade(grade())
	return nil
}

func (w *whole) lost(f *subjects.Fault) error {
	w.breakLine()
	if !w.json {
		return nil
	}
	return w.document(subjects.Response{SessionID: w.Session, QueryID: w.Query, Query: w.question, ToolCalls: []subjects.ToolCall{}, Partial: true, Error: f})
}

// lines prints JSON lines as it happens.
type lines struct {
	*app
	ids
	noted map[subjects.Note]bool
}

// Types of lines.
const (
	lineDelta    = "delta"
	lineThinking = "thinking"
	lineState    = "state"
	lineTool     = "tool"
	lineNote     = "note"
	lineApproval = "approval"
	lineResponse = "response"
	lineGrade    = "grade"
	lineError    = "error"
)

// head is what every line has.
type head struct {
	Type string `json:"type"`
	ids
}

// print writes a line. An error of the writing is remembered by stdout itself.
func (l *lines) print(v any) { _ = l.line(v) }

func (l *lines) head(kind string) head { return head{kind, l.ids} }

func (l *lines) delta(d subjects.Delta, thinking bool) {
	kind := lineDelta
	if thinking {
		kind = lineThinking
	}
	l.print(struct {
		head
		Step int    `json:"step"`
		N    int    `json:"n"`
		Text string `json:"text"`
	}{l.head(kind), d.Step, d.N, d.Text})
}

func (l *lines) state(agent string, s subjects.AgentState) {
	l.print(struct {
		head
		Agent string `json:"agent"`
		From  string `json:"from,omitempty"`
		To    string `json:"to"`
		Event string `json:"event,omitempty"`
		Step  int    `json:"step,omitempty"`
		Words string `json:"words,omitempty"`
	}{l.head(lineState), agent, s.From, s.To, s.Event, s.Step, s.Words})
}

// toolLine is a call, and then what came of it.
type toolLine struct {
	head
	Phase  string          `json:"phase"` // request, result
	CallID string          `json:"call_id"`
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args,omitempty"`
	Result string          `json:"result,omitempty"`
	Error  *subjects.Fault `json:"error,omitempty"`
	Millis int64           `json:"ms,omitempty"`
}

func (l *lines) called(r subjects.ToolRequest) {
	l.print(toolLine{head: l.head(lineTool), Phase: "request", CallID: r.CallID, Tool: r.Tool, Args: r.Args})
}

func (l *lines) returned(r subjects.ToolResult) {
	l.print(toolLine{head: l.head(lineTool), Phase: "result", CallID: r.CallID, Tool: r.Tool, Result: r.Result, Error: r.Error, Millis: r.Millis})
}

func (l *lines) note(n subjects.Note) {
	if l.noted[n] {
		return
	}
	l.noted[n] = true
	l.print(struct {
		head
		subjects.Note
	}{l.head(lineNote), n})
}

// waits prints the whole question: a program that reads the lines may answer it.
func (l *lines) waits(r subjects.ApprovalRequest) {
	l.print(struct {
		head
		Phase   string                   `json:"phase"` // request, decision
		Request subjects.ApprovalRequest `json:"request"`
	}{l.head(lineApproval), "request", r})
}

func (l *lines) decided(r subjects.ApprovalReply) {
	l.print(struct {
		head
		Phase    string                 `json:"phase"`
		Decision subjects.ApprovalReply `json:"decision"`
	}{l.head(lineApproval), "decision", r})
}

func (l *lines) typed() <-chan string { return nil }
func (l *lines) answered(string) (id string, d subjects.ApprovalDecision, ok bool) {
	return "", d, false
}

func (l *lines) trouble(code, text string) { l.note(subjects.Note{Code: code, Text: text}) }

func (l *lines) end(r subjects.Response, grade func() *subjects.Critique) error {
	for _, n := range r.Notes {
		l.note(n)
	}
	l.print(struct {
		head
		Response subjects.Response `json:"response"`
	}{l.head(lineResponse), r})
	if c := grade(); c != nil {
		l.print(struct {
			head
			Grade subjects.Critique `json:"grade"`
		}{l.head(lineGrade), *c})
	}
	return l.stdout.err
}

func (l *lines) lost(f *subjects.Fault) error {
	return l.line(struct {
		head
		Error *subjects.Fault `json:"error"`
	}{l.head(lineError), f})
}

// screen shows an answer to a person as it grows. Live tokens may be lost on the way, so what was shown is compared with
// the answer in the end: the user has read all of it, or gets it anew.
type screen struct {
	*app
	thinking bool
	open     io.Writer       // whose line is not ended; nil = none
	last     io.Writer       // who wrote last
	step     int             // the model call whose words are shown
	n        int             // the last piece of it
	gap      bool            // a piece of it was lost: the rest is shown when all of it is there
	shown    strings.Builder // of this step
	noted    map[subjects.Note]bool
	held     []subjects.Note // to be shown with what comes next
	desk     desk            // questions to the user
}

// put writes text where the cursor is. Answer and talk share a terminal, so each begins on a line of its own.
func (s *screen) put(w io.Writer, colour, text string) {
	if w != s.stdout && !isTerminal(w) {
		fmt.Fprint(w, plainText(text))
		return
	}
	if s.open != w {
		s.endLine()
	}
	s.last = w
	for l := range strings.Lines(plainText(text)) { // no colour across the end of a line
		body, ended := strings.CutSuffix(l, "\n")
		if body != "" {
			body = s.paint(w, colour, body)
		}
		if s.open = w; ended {
			body, s.open = body+"\n", nil
		}
		fmt.Fprint(w, body)
	}
}

// endLine ends the line that is open.
func (s *screen) endLine() {
	if s.open != nil {
		fmt.Fprintln(s.open)
		s.open = nil
	}
}

// talk is one dim line on stderr.
func (s *screen) talk(format string, v ...any) {
	columns, _, ok := terminal(s.stderr)
	if !ok || columns < 20 {
		columns = 200
	}
	if isTerminal(s.stderr) {
		s.endLine()
	}
	s.put(s.stderr, dim, clip(fmt.Sprintf(format, v...), columns-1)+"\n")
}

func (s *screen) delta(d subjects.Delta, thinking bool) {
	if thinking {
		if s.thinking && d.Text != "" {
			s.put(s.stderr, dim, d.Text)
		}
		return
	}
	// A step that begins anew is one that a crash has interrupted.
	next := d.N == s.n+1
	if d.Step != s.step || d.N == 0 && s.n >= 0 {
		if s.open == s.stdout {
			s.endLine()
		}
		next = next || d.N == 0
		s.step, s.gap = d.Step, false
		s.shown.Reset()
	}
	s.gap = s.gap || !next
	s.n = d.N
	if s.gap {
		return
	}
	text := d.Text
	if s.shown.Len() == 0 {
		text = strings.TrimLeft(text, " \t\r\n")
	}
	s.shown.WriteString(text)
	if text != "" {
		s.release()
		s.put(s.stdout, "", text)
	}
}

func (s *screen) state(_ string, st subjects.AgentState) {
	// The words of a step that were streamed are on the screen already.
	if st.Words != "" && strings.TrimSpace(s.shown.String()) != strings.TrimSpace(st.Words) {
		s.release()
		s.talk("%s", st.Words)
	}
}

func (s *screen) called(r subjects.ToolRequest) {
	s.release()
	s.talk("tool %s %s", r.Tool, r.Args)
}

func (s *screen) returned(r subjects.ToolResult) {
	s.release()
	switch f := r.Error; {
	case f == nil:
		s.talk("tool %s: done in %s", r.Tool, took(r.Millis))
	case f.Denial != nil:
		s.talk("tool %s: denied by layer %s, rule %s: %s", r.Tool, f.Denial.Layer, f.Denial.Rule, f.Denial.Reason)
	default:
		s.talk("tool %s: %s (%s)", r.Tool, f.Text, f.Code)
	}
}

// note holds a note back until something follows: the last one before a failed answer is about the failure, which is
// told as an error.
func (s *screen) note(n subjects.Note) {
	if !s.noted[n] && !n.IsDemoModel() { // which is said in the end, and louder
		s.noted[n] = true
		s.held = append(s.held, n)
	}
}

func (s *screen) release() {
	for _, n := range s.held {
		s.talk("note: %s", or(n.Text, n.Code))
	}
	s.held = nil
}

func (s *screen) trouble(_, text string) {
	if isTerminal(s.stderr) {
		s.endLine()
		s.last = s.stderr
	}
	s.say("%s", text)
}

func (s *screen) end(r subjects.Response, grade func() *subjects.Critique) error {
	shown, answer := s.shown.String(), written(r)
	if strings.TrimSpace(shown) != strings.TrimSpace(answer) {
		rest, goesOn := strings.CutPrefix(answer, shown)
		if !goesOn || shown == "" || s.last != s.stdout {
			s.endLine()
			rest = answer
		}
		s.put(s.stdout, "", strings.TrimRight(rest, "\n"))
	}
	s.endLine()
	for _, n := range r.Notes {
		s.note(n)
	}
	s.held = slices.DeleteFunc(s.held, func(n subjects.Note) bool { return r.Error != nil && n.Code == r.Error.Code })
	s.release()
	if r.DemoModel {
		s.say("%s", s.paint(s.stderr, yellow, standIn))
	}
	if r.Error == nil {
		s.talk("%s", summary(r))
	}
	s.showGrade(grade())
	return s.stdout.err
}

// summary is one line about an answer.
func summary(r subjects.Response) string {
	parts := []string{or(r.Model, "no model")}
	if n := len(r.ToolCalls); n > 0 {
		parts = append(parts, count(n, "tool call"))
	}
	if n := r.Usage.CompletionTokens; n > 0 {
		parts = append(parts, count(n, "token"))
	}
	if ms := r.Usage.Millis; ms > 0 {
		parts = append(parts, took(ms))
	}
	return "(" + strings.Join(parts, ", ") + "; --continue goes on from here)"
}

// took is a time for people.
func took(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d < time.Second {
		return fmt.Sprintf("%d ms", ms)
	}
	return d.Round(100 * time.Millisecond).String()
}

// count is a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func (s *screen) lost(*subjects.Fault) error {
	s.endLine()
	return nil
}
