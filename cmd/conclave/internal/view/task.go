package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// taskMarks stand before a subtask, by its state.
var taskMarks = map[string]string{
	subjects.SubtaskWaiting: "·", subjects.SubtaskRunning: ">", subjects.SubtaskVerifying: "?",
	subjects.SubtaskDone: "+", subjects.SubtaskFailed: "!", subjects.SubtaskSkipped: "-",
}

// Tasks prints a list of tasks as a table, in the order given.
func Tasks(w io.Writer, all []subjects.Task) {
	rows := [][]string{{"TASK", "STATE", "DONE", "BEGAN", "WHAT"}}
	for _, t := range all {
		done := 0
		for _, s := range t.Subtasks {
			if s.State == subjects.SubtaskDone {
				done++
			}
		}
		rows = append(rows, []string{
			t.TaskID, t.QuestionState(), fmt.Sprintf("%d/%d", done, len(t.Subtasks)),
			term.Stamp(t.Began), term.Plain(term.Clip(t.Query, nameRoom(w))),
		})
	}
	term.Table(w, rows, term.Layout{Drop: []string{"DONE", "BEGAN"}})
}

// Task prints a task: its words and state, the tree of its subtasks with their results, and the report.
func Task(w io.Writer, t subjects.Task) {
	state := t.QuestionState()
	if state == subjects.StateRunning && t.State != state {
		state += " (" + t.State + ")" // what goes on
	}
	fmt.Fprintf(w, "%s %s, %d tokens\n", term.Paint(w, term.Cyan, t.TaskID), state, t.Tokens)
	fmt.Fprintln(w, "  "+term.Plain(term.OneLine(t.Query)))
	for _, s := range t.Subtasks {
		fmt.Fprintln(w, subtaskLine(s))
		if r := s.Return; r != nil {
			fmt.Fprintf(w, "      %s, %s, %s: %s\n", r.Status, r.ResultQuality, r.Source,
				term.Plain(term.OneLine(r.Summary)))
			for _, a := range r.Artifacts {
				fmt.Fprintln(w, "      file "+term.Plain(a))
			}
			if r.FailureReason != "" {
				fmt.Fprintln(w, "      "+term.Plain(term.OneLine(r.FailureReason)))
			}
		}
		if s.Doubt != "" {
			fmt.Fprintln(w, "      "+term.Plain(term.OneLine(s.Doubt)))
		}
	}
	if t.Report != "" {
		message(w, "report", "", t.Report)
	}
}

// subtaskLine is a subtask as a line of the tree: mark, id, title, state, agent, time and tool calls.
func subtaskLine(s subjects.Subtask) string {
	line := fmt.Sprintf("  %s %s: %s (%s", cmp.Or(taskMarks[s.State], "·"), s.ID, s.Title, cmp.Or(s.Child, s.Agent))
	if len(s.DependsOn) > 0 {
		line += ", after " + strings.Join(s.DependsOn, ", ")
	}
	line += ") " + s.State
	if !s.Began.IsZero() && !s.Ended.IsZero() {
		line += fmt.Sprintf(", %s", s.Ended.Sub(s.Began).Round(100*time.Millisecond))
	}
	if s.Calls > 0 {
		line += ", " + term.Count(s.Calls, "tool call")
	}
	return term.Plain(line)
}

// taskTree follows the subtasks of a running task.
type taskTree struct {
	subtasks map[string]subjects.Subtask
}

// follow returns the lines to print for a change: the whole tree when there is a plan, the subtask when its state
// changed, and nothing for a state that was printed before.
func (t *taskTree) follow(p subjects.TaskProgress) (lines []string) {
	if t.subtasks == nil {
		t.subtasks = map[string]subjects.Subtask{}
	}
	if len(p.Subtasks) > 0 && p.Text != "finished" {
		for _, s := range p.Subtasks {
			if _, known := t.subtasks[s.ID]; !known {
				lines = append(lines, subtaskLine(s))
			}
			t.subtasks[s.ID] = s
		}
		return lines
	}
	if p.Subtask == "" {
		if p.State == subjects.TaskPaused || p.State == subjects.TaskPlanning {
			return []string{"task " + p.State}
		}
		return nil
	}
	s, known := t.subtasks[p.Subtask]
	if !known || s.State == p.State && s.Child == p.Agent {
		return nil
	}
	s.State, s.Child, s.Calls = p.State, cmp.Or(p.Agent, s.Child), p.Calls
	t.subtasks[p.Subtask] = s
	line := subtaskLine(s)
	if p.Millis > 0 && s.State != subjects.SubtaskRunning {
		line += fmt.Sprintf(", %.1f s", float64(p.Millis)/1000)
	}
	if p.Text != "" {
		line += ": " + term.OneLine(p.Text)
	}
	return append(lines, line)
}
