package view

import (
	"encoding/json"

	"conclave/pkg/client"
	"conclave/subjects"
)

// jsonLines prints JSON lines as things happen, each with a type: delta, thinking, state, tool, note, approval,
// deliberation, response, grade, error.
type jsonLines struct {
	AnswerOptions
	still
	noted map[subjects.Note]bool
}

// toolLine is a call, or its result.
type toolLine struct {
	Phase  string          `json:"phase"` // request, output, result
	CallID string          `json:"call_id"`
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args,omitempty"`
	Text   string          `json:"text,omitempty"` // of the phase output
	Result string          `json:"result,omitempty"`
	Error  *subjects.Fault `json:"error,omitempty"`
	Millis int64           `json:"ms,omitempty"`
}

// approvalLine is a call that waits for the user's decision, complete so that a program can decide, or the decision.
type approvalLine struct {
	Phase    string                    `json:"phase"` // request, decision
	Request  *subjects.ApprovalRequest `json:"request,omitempty"`
	Decision *subjects.ApprovalReply   `json:"decision,omitempty"`
}

// Show prints a line for every update. A question that is not started yet is a note with the code waiting.
func (l *jsonLines) Show(u client.Update) {
	switch u := u.(type) {
	case client.Delta:
		kind := "delta"
		if u.Thinking {
			kind = "thinking"
		}
		l.print(kind, struct {
			Step int    `json:"step"`
			N    int    `json:"n"`
			Text string `json:"text"`
		}{u.Step, u.N, u.Text})
	case client.State:
		l.print("state", struct {
			Agent string `json:"agent"`
			From  string `json:"from,omitempty"`
			To    string `json:"to"`
			Event string `json:"event,omitempty"`
			Step  int    `json:"step,omitempty"`
			Words string `json:"words,omitempty"`
		}{u.Agent, u.From, u.To, u.Event, u.Step, u.Words})
	case client.Note:
		l.note(u.Note)
	case client.ToolCall:
		l.print("tool", toolLine{Phase: "request", CallID: u.CallID, Tool: u.Tool, Args: u.Args})
	case client.ToolOutput:
		l.print("tool", toolLine{Phase: "output", CallID: u.CallID, Tool: u.Tool, Text: u.Text})
	case client.ToolResult:
		l.print("tool", toolLine{
			Phase: "result", CallID: u.CallID, Tool: u.Tool, Result: u.Result, Error: u.Error, Millis: u.Millis,
		})
	case client.ApprovalAsked:
		l.print("approval", approvalLine{Phase: "request", Request: &u.ApprovalRequest})
	case client.ApprovalDecided:
		l.print("approval", approvalLine{Phase: "decision", Decision: &u.ApprovalReply})
	case client.Deliberation:
		l.print("deliberation", map[string]any{"deliberation": u.Deliberation})
	case client.Progress:
		l.print("progress", u.TaskProgress)
	case client.Waiting:
		l.Warn("waiting", WaitingText(u))
	}
}

// print prints a line: its type, the ids, and the fields of v. stdout remembers its error.
func (l *jsonLines) print(kind string, v any) {
	_ = l.PrintLine(struct {
		Type string `json:"type"`
		IDs
	}{kind, l.IDs}, v)
}

// note prints a note once: the final response repeats those that were sent before.
func (l *jsonLines) note(n subjects.Note) {
	if l.noted[n] {
		return
	}
	l.noted[n] = true
	l.print("note", n)
}

// Warn prints a note with this code, once.
func (l *jsonLines) Warn(code, text string) { l.note(subjects.Note{Code: code, Text: text}) }

// End prints the notes that were not printed yet, the response, and then waits for the grade and prints it when there
// is one.
func (l *jsonLines) End(r subjects.Response, grade func() *subjects.Critique) {
	for _, n := range r.Notes {
		l.note(n)
	}
	l.print("response", map[string]any{"response": r})
	if c := grade(); c != nil {
		l.print("grade", map[string]any{"grade": c})
	}
}

// Fail prints the fault as a line of type error.
func (l *jsonLines) Fail(f *subjects.Fault) { l.print("error", map[string]any{"error": f}) }
