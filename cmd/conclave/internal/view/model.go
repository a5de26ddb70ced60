package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// Models prints the available models as a table, with the machine of each when there are others than this one, and on
// stderr that there are none, and the roles whose own model is not used. program begins the commands in the fixes.
func Models(s *term.Streams, list subjects.ModelList, program string) {
	roles := map[string][]string{}
	for _, r := range list.Roles {
		name := strings.TrimSuffix(r.Model, ":latest")
		roles[name] = append(roles[name], term.Plain(r.Role))
	}
	if len(list.Models) == 0 {
		s.Say("no model is available")
	} else {
		rows := [][]string{{"NAME", "MACHINE", "QUEUE", "SIZE", "PARAMETERS", "ROLES", "SUPPORTS", "TOKENS/S", "STATE"}}
		for _, m := range list.Models {
			size := "-"
			if m.Size > 0 {
				size = term.Bytes(m.Size)
			}
			rows = append(rows, []string{
				term.Plain(m.Name), cmp.Or(term.Plain(m.Machine), "this one"), fmt.Sprint(m.Queue), size,
				term.Plain(cmp.Or(m.Parameters, "-")), orDash(roles[strings.TrimSuffix(m.Name, ":latest")]),
				orDash(capabilities(m)), term.Speeds(m.PromptSpeed, m.OutputSpeed), orDash(modelState(m)),
			})
		}
		if len(list.Machines) == 0 { // all are on this machine
			for i, r := range rows {
				rows[i] = slices.Delete(r, 1, 3)
			}
		}
		term.Table(s.Out, rows, term.Layout{Drop: []string{"PARAMETERS", "TOKENS/S", "SUPPORTS", "SIZE"}})
	}
	for _, m := range list.Machines {
		if !m.Connected {
			s.Say("%s is not connected: %s", term.Plain(m.Name), term.Plain(m.Reason))
		}
	}
	for _, n := range RoleNotices(list.Roles, program) {
		s.Say("%s", n)
	}
}

func orDash(v []string) string { return cmp.Or(strings.Join(v, ", "), "-") }

// capabilities lists what a model supports, in the words of conclave model list; nil for nothing.
func capabilities(m subjects.ModelInfo) (out []string) {
	for _, c := range []struct {
		has  bool
		name string
	}{
		{m.Tools && m.Calls != subjects.CallConstrained, "tools" + callTest("", m.CallTest)},
		{m.Calls == subjects.CallConstrained, "tools" + callTest("constrained", m.CallTest)},
		{m.Thinking, "thinking"},
		{m.Vision, "vision"},
		{m.Embedding, "embedding"},
	} {
		if c.has {
			out = append(out, c.name)
		}
	}
	return out
}

// callTest is how a model calls tools in parentheses, and how many calls of its self-test were right; "" for neither.
func callTest(mode string, test *subjects.CallTest) string {
	if test != nil {
		mode = strings.TrimPrefix(mode+", ", ", ") + fmt.Sprintf("test %d/%d", test.Passed, test.Total)
	}
	if mode == "" {
		return ""
	}
	return " (" + mode + ")"
}

// modelState lists where a model is: loaded, on which remote host, and why it is denied; nil for a local one that is
// not loaded.
func modelState(m subjects.ModelInfo) (out []string) {
	if m.Loaded {
		out = append(out, "loaded")
	}
	if m.Remote != "" {
		out = append(out, "on "+term.Plain(m.Remote))
	}
	if m.Refused != "" {
		out = append(out, "denied: "+term.Plain(m.Refused))
	}
	return out
}

// RoleNotices are lines about the roles whose own model is not used, with a fix; nil when all use theirs. Roles with
// the same notice share a line. A missing model that is optional has a line on what it would improve. program begins
// the printed command.
func RoleNotices(roles []subjects.RoleModel, program string) []string {
	var notices []string
	byNotice := map[string][]string{}
	for _, r := range roles {
		text := term.Plain(r.Notice)
		switch {
		case r.Improves != "":
			text = fmt.Sprintf("optional: with %s, %s: %s model pull %s", term.Plain(r.Wanted), term.Plain(r.Improves),
				program, term.ShellQuote(term.Plain(r.Wanted)))
		case text != "":
		case r.DemoModel:
			text = "the built-in demo model is used; start Ollama"
		case r.Wanted != "" && r.Wanted != r.Model:
			text = fmt.Sprintf("%s is not installed; %s is used instead; install it: %s model pull %s",
				term.Plain(r.Wanted), term.Plain(r.Model), program, term.ShellQuote(term.Plain(r.Wanted)))
		default:
			continue
		}
		if byNotice[text] == nil {
			notices = append(notices, text)
		}
		byNotice[text] = append(byNotice[text], term.Plain(r.Role))
	}
	for i, text := range notices {
		notices[i] = strings.Join(byNotice[text], ", ") + ": " + text
	}
	return notices
}

// PullProgress shows how far a pull is: a line that is drawn over on a terminal, a line now and then elsewhere. A model
// comes in layers, each with its own count; their sum is shown.
type PullProgress struct {
	streams *term.Streams
	line    *term.Progress
	name    string
	now     func() time.Time
	layers  map[string]subjects.PullProgress // by digest
	status  string                           // last one shown
	total   int64                            // with these bytes to fetch
	tenth   int64                            // and these tenths fetched
	drawn   time.Time
	began   time.Time
	start   int64 // bytes that were there when it began
}

// NewPullProgress returns the progress of pulling a model.
func NewPullProgress(s *term.Streams, model string) *PullProgress {
	return &PullProgress{
		streams: s, line: term.NewProgress(s.Err), name: term.Plain(model), now: time.Now,
		layers: map[string]subjects.PullProgress{},
	}
}

// Clear removes the drawn line.
func (p *PullProgress) Clear() { p.line.Clear() }

// Show adds an update and draws the sum of all layers; without a terminal it prints a line when the status, the total
// or a tenth of it changed. An update without a digest only sets the status.
func (p *PullProgress) Show(update subjects.PullProgress) {
	if update.Digest != "" {
		p.layers[update.Digest] = update
	}
	completed, total := p.sum()
	if p.began.IsZero() && total > 0 {
		p.began, p.start = p.now(), completed
	}
	status := update.Status
	if update.Digest != "" && update.Total > 0 {
		status = "pulling" // without the layer: there are many
	}
	if term.IsTerminal(p.streams.Err) {
		p.draw(status, completed, total)
		return
	}
	tenth := int64(0)
	if total > 0 {
		tenth = 10 * completed / total
	}
	if status == p.status && total == p.total && tenth == p.tenth {
		return
	}
	p.status, p.total, p.tenth = status, total, tenth
	p.streams.Say("%s: %s", p.name, term.Plain(describePull(status, completed, total)))
}

// sum adds up the bytes of all layers. Layers without a total or with a negative count are left out, and completed is
// at most total.
func (p *PullProgress) sum() (completed, total int64) {
	for _, l := range p.layers {
		if l.Total > 0 && l.Completed >= 0 {
			completed, total = completed+min(l.Completed, l.Total), total+l.Total
		}
	}
	return completed, total
}

// describePull is the status, with percentage and bytes while layers are pulled and their total is known. It does not
// sanitize.
func describePull(status string, completed, total int64) string {
	if total == 0 || status != "pulling" {
		return status
	}
	return fmt.Sprintf("%s %3d %%  %s of %s", status, 100*completed/total, term.Bytes(completed), term.Bytes(total))
}

// draw draws over the line with bar and rate. The same status is drawn at most ten times a second; other calls do
// nothing.
func (p *PullProgress) draw(status string, completed, total int64) {
	now := p.now()
	if status == p.status && now.Sub(p.drawn) < 100*time.Millisecond {
		return
	}
	p.status, p.drawn = status, now
	text := p.name + ": " + describePull(status, completed, total)
	if status == "pulling" && total > 0 {
		text += "  " + term.Bar(completed, total)
		if took := now.Sub(p.began); took > time.Second && completed > p.start {
			text += "  " + term.Bytes(int64(float64(completed-p.start)/took.Seconds())) + "/s"
		}
	}
	p.line.Draw("%s", term.Plain(text))
}
