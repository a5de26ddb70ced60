package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Printer prints a [Transcript] on a terminal.
type Printer interface {
	// PrintBlock prints a complete block of the answer; begins is true for the first one of a text.
	PrintBlock(b markdown.Block, begins bool)
	// Talk prints one line of progress, which may be cut. It must call [Transcript.Interrupt] before, where both share
	// a terminal.
	Talk(line string)
	// Note prints a whole line about the answer, like Talk.
	Note(line string)
}

// Transcript is what a terminal shows of a question on its way to the answer. Deltas can be lost, so the shown text is
// compared with the answer at the end, and the rest, or all of it, is printed then.
type Transcript struct {
	to     Printer
	deltas Deltas
	plain  term.PlainStream // sanitizes the answer
	text   markdown.Stream  // of the answer
	blocks int              // of it that were printed
	shown  bool             // nothing was printed since it began but the text itself
	over   int              // steps whose text a state had: pieces of them are late, and shown already
	said   []string         // texts of steps that ended, for states that are late

	results []subjects.ToolResult // of the calls so far, as the broker reports them
	noted   map[subjects.Note]bool
	models  map[string]bool // texts of notes about models that the user has seen, also with earlier questions
	held    []subjects.Note // to be shown before the next thing
	tree    taskTree        // of a task
}

// NewTranscript returns the transcript of a question that was just asked. A note about the model that is in models is
// not repeated; others of them are added to it.
func NewTranscript(to Printer, models map[string]bool) Transcript {
	return Transcript{to: to, noted: map[subjects.Note]bool{}, models: models}
}

// Show prints an update as it comes: pieces of the answer, and lines about states, calls, deliberations and progress.
// Notes are held back; see holdNote. It ignores the thinking and every other update.
func (t *Transcript) Show(u client.Update) {
	switch u := u.(type) {
	case client.Delta:
		t.showDelta(u)
	case client.State:
		// Text of a step that was streamed is on the screen already.
		words := strings.TrimSpace(u.Words)
		if words != "" && strings.TrimSpace(t.deltas.Text()) != words && !slices.Contains(t.said, words) {
			t.talk("%s", u.Words)
		}
		if words != "" && u.Code == "" {
			t.over = u.Step + 1
		}
	case client.Note:
		t.holdNote(u.Note)
	case client.ToolCall:
		t.talk("tool %s %s", u.Tool, u.Args)
	case client.ToolOutput:
		for l := range strings.Lines(u.Text) {
			t.talk("| %s", strings.TrimSuffix(l, "\n"))
		}
	case client.ToolResult:
		t.results = append(t.results, u.ToolResult)
		t.talk("%s", DescribeResult(u.ToolResult))
	case client.Deliberation:
		t.talk("%s", DescribeDeliberation(u.Deliberation))
	case client.Progress:
		for _, line := range t.tree.follow(u.TaskProgress) {
			t.talk("%s", line)
		}
	}
}

// showDelta prints the blocks that a piece of the answer completes. After a lost piece it prints no more of this step,
// since the text would have a gap; PrintAnswer prints the rest. A new step, or one that begins again, is another text.
func (t *Transcript) showDelta(d client.Delta) {
	if d.Thinking || d.Step < t.over {
		return
	}
	before := strings.TrimSpace(t.deltas.Text())
	text, begins := t.deltas.Next(d)
	if begins {
		t.said = append(t.said, before)
		t.beginText()
		t.PrintNotes() // later ones wait for the end of the text
	}
	if text != "" {
		t.printBlocks(t.text.Write(t.plain.Next(text)))
	}
}

// Tail is the growing end of the answer, which is not printed yet; false when there is none.
func (t *Transcript) Tail() (markdown.Block, bool) { return t.text.Tail() }

// beginText ends the text so far: what follows is another one.
func (t *Transcript) beginText() {
	t.Flush()
	t.plain.Reset()
	t.blocks, t.shown = 0, true
}

// Interrupt prints the text so far because something else follows: what comes of it later is not its continuation on
// the screen.
func (t *Transcript) Interrupt() {
	t.Flush()
	t.shown = false
}

// Flush prints the rest of the text so far.
func (t *Transcript) Flush() { t.printBlocks(t.text.End()) }

func (t *Transcript) printBlocks(blocks []markdown.Block) {
	for _, b := range blocks {
		t.to.PrintBlock(b, t.blocks == 0)
		t.blocks++
	}
}

// talk prints a line behind the notes that were held back.
func (t *Transcript) talk(format string, v ...any) {
	t.PrintNotes()
	t.to.Talk(fmt.Sprintf(format, v...))
}

// holdNote holds a note back until something follows: the last one before a failed answer is about the failure, which
// is printed as an error. The demo model has a notice of its own at the end.
func (t *Transcript) holdNote(n subjects.Note) {
	if t.noted[n] || n.IsDemoModel() || t.models[n.Text] {
		return
	}
	t.noted[n] = true
	t.held = append(t.held, n)
	if n.Code == subjects.NoteModel {
		t.models[n.Text] = true
	}
}

// PrintNotes prints the notes that were held back.
func (t *Transcript) PrintNotes() {
	for _, n := range t.held {
		t.to.Note("note: " + cmp.Or(n.Text, n.Code))
	}
	t.held = nil
}

// PrintAnswer prints the part of the answer that the deltas did not show, or all of it when they differ or other text
// came between.
func (t *Transcript) PrintAnswer(r subjects.Response) {
	answer := AnswerText(r)
	switch rest, continues := t.deltas.Rest(answer); {
	case rest == "":
	case continues && t.shown:
		t.printBlocks(t.text.Write(t.plain.Next(rest)))
	default:
		t.beginText()
		t.printBlocks(t.text.Write(term.PlainText(answer)))
	}
	t.Flush()
}

// PrintAnswerNotes prints the notes of the answer. One about its error is left out: the caller prints that.
func (t *Transcript) PrintAnswerNotes(r subjects.Response) {
	for _, n := range r.Notes {
		t.holdNote(n)
	}
	t.held = slices.DeleteFunc(t.held, func(n subjects.Note) bool { return r.Error != nil && n.Code == r.Error.Code })
	t.PrintNotes()
}

// Summarize is one line about an answer and about what left the machine for it.
func (t *Transcript) Summarize(r subjects.Response) string {
	return SummarizeAnswer(r) + ", " + subjects.DescribeEgress(t.results, r)
}
