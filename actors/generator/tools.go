package generator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// looking is how long the broker and the model actor are waited for before a turn begins without them.
const looking = 5 * time.Second

// unavailable is the result of a tool that does not answer in time.
const unavailable = "[tool unavailable]"

// tools are the definitions that the broker finds fitting. Without a broker there are none, and the user is told.
func (t *turn) tools(ctx context.Context) []model.Tool {
	most := t.g.cfg.MaxTools
	if most <= 0 {
		return nil
	}
	// Asked for each question: what the user disables or grants holds for the next one.
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	reply, err := actor.Ask(ctx, t.out, subjects.BrokerDiscover, subjects.DiscoverRequest{Task: text.Clip(t.asked.Query, 4<<10), Max: most})
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why := "it does not answer"
			var f *subjects.Fault
			if actor.IsReplyFault(err) && errors.As(err, &f) {
				why = text.OneLine(f.Text, mostWords)
			}
			t.note(subjects.NoteNoBroker, "no tools could be used: the broker did not say which there are ("+why+")")
		}
		return nil
	}
	found := reply.Tools
	out := make([]model.Tool, 0, len(found))
	for _, s := range found[:min(most, len(found))] {
		out = append(out, model.Tool{Name: s.Name, Description: s.Description, Parameters: s.Parameters})
	}
	return out
}

// callID is what a call is called outside of its turn. The model's own ids are unique within a turn at best: some servers
// count from one in every reply, and the broker would take a call of tomorrow for one of today that has run. Whoever
// watches tells respondent B's calls for a question from those of the one who answers it. The latter's never change: a turn
// that was begun by an earlier version must find its calls in the broker's ledger.
func (t *turn) callID(id string) string {
	of := t.session + " " + t.asked.QueryID + " " + id
	if t.g.respondentB {
		of = t.g.name + " " + of
	}
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:16])
}

// runTool runs one call through the broker. What comes back is always a result: denied, failed and silent ones too.
func (t *turn) runTool(ctx context.Context, c model.Call) loop.Result {
	service, err := subjects.ToolRequestService.With(c.Name)
	if err != nil {
		return loop.Result{Text: "There is no tool of that name.", Fault: subjects.CodeUnknownTool}
	}
	ctx, cancel := context.WithTimeout(ctx, t.g.cfg.ToolTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, t.out, service, subjects.ToolRequest{CallID: t.callID(c.ID), QueryID: t.asked.QueryID, Args: c.Arguments})
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f != nil:
		return refusal(f)
	case err != nil:
		return loop.Result{Text: unavailable, Fault: subjects.CodeUnavailable}
	case res.Error != nil:
		t.label(res.Labels)
		return refusal(res.Error)
	}
	t.label(res.Labels)
	t.recalled(res.Recalls)
	shown := inFrame(res.Result, int(t.g.cfg.Result))
	if shown != res.Result {
		t.clipped(c.Name)
	}
	return loop.Result{Text: shown}
}

// label notes what a result brings into the answer. Calls of one reply come back at the same time.
func (t *turn) label(l *subjects.Labels) {
	if l == nil {
		return
	}
	t.labelling.Lock()
	defer t.labelling.Unlock()
	t.rec.Labels = t.rec.Labels.Join(l)
}

// recalled notes which memories the answer is made with.
func (t *turn) recalled(ids []string) {
	t.labelling.Lock()
	defer t.labelling.Unlock()
	for _, id := range ids {
		if len(t.rec.Recalls) < maxRecalls && !slices.Contains(t.rec.Recalls, id) {
			t.rec.Recalls = append(slices.Clone(t.rec.Recalls), text.Clip(id, subjects.MaxToken))
		}
	}
}

// maxRecalls bounds how many memories an answer names.
const maxRecalls = 100

// clipped notes that the model is shown only the beginning of a result.
func (t *turn) clipped(tool string) {
	n := subjects.Note{Code: loop.NoteClipped, Text: "a result of " + tool + " was larger than the model is shown"}
	t.labelling.Lock()
	defer t.labelling.Unlock()
	if !slices.Contains(t.cut, n) {
		t.cut = append(t.cut, n)
		t.tellNote(n.Code, n.Text)
	}
}

// labels are those of the answer, with the memories that it was made with.
func (t *turn) labels() (*subjects.Labels, []string) {
	t.labelling.Lock()
	defer t.labelling.Unlock()
	return t.rec.Labels, t.rec.Recalls
}

// inFrame is a result that fits. The loop would cut its end off, and with it the end of the frame around what strangers
// wrote: the cut is made before that.
func inFrame(s string, most int) string {
	end := strings.LastIndexByte(s, '\n')
	if len(s) <= most || end < 0 || !strings.HasPrefix(s, firewall.FrameStart) {
		return s
	}
	last, room := s[end:], most-(len(s)-end)-len(cutHere)
	if room <= 0 {
		return s
	}
	return strings.ToValidUTF8(s[:room], "") + cutHere + last
}

// cutHere stands where a result was cut.
const cutHere = "\n[cut here: the result is longer]"

// refusal is a fault in words for the model.
func refusal(f *subjects.Fault) loop.Result {
	r := loop.Result{Fault: f.Code}
	switch f.Code {
	case subjects.CodeTimeout, subjects.CodeUnavailable:
		r.Text = unavailable
	case subjects.CodeDenied:
		r.Text = "This call is not allowed"
		if f.Denial != nil {
			r.Text += ": " + text.OneLine(f.Denial.Reason, mostWords)
			if len(f.Denial.Allowed) > 0 {
				r.Text += ". Allowed: " + text.OneLine(strings.Join(f.Denial.Allowed, ", "), mostWords)
			}
		} else if f.Text != "" {
			r.Text += ": " + text.OneLine(f.Text, mostWords)
		}
		r.Text += ". Do not try it again in this way."
	case subjects.CodeNotApproved:
		r.Text = "The user was asked whether this call may run, and said no. Do not try to get the same done in another way; go on without it."
	case subjects.CodeUnanswered:
		r.Text = "The user was asked whether this call may run, and has not answered: it did not run. Say so, and go on without it."
	case subjects.CodeLimit:
		r.Text = "This call was not run, a limit is reached: " + text.OneLine(f.Text, mostWords) + ". Answer with what you have."
	case subjects.CodeNoSecret:
		r.Text = "The call did not run: " + text.OneLine(f.Text, mostWords) + ". Tell the user."
	case subjects.CodeUncertain:
		r.Text = "It is not known whether this call ran before an interruption, and it is not run again. Tell the user so: " + text.OneLine(f.Text, mostWords)
	default:
		r.Text = fmt.Sprintf("The call failed (%s): %s", f.Code, text.Clip(f.Text, 2<<10))
	}
	if r.Fault == "" {
		r.Fault = subjects.CodeTool
	}
	return r
}

// usualWindow is taken for a model whose window nobody knows, in tokens.
const usualWindow = 32768

// role tells what the assistant's model takes now. Without the model actor it is what most models take.
func (g *Generator) role(ctx context.Context, out actor.Out) subjects.RoleModel {
	if r, ok := g.models.get(out.Now()); ok {
		return r
	}
	usual := subjects.RoleModel{Role: subjects.RoleAssistant, Window: usualWindow, Stream: true, Tools: true}
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		return usual
	}
	for _, r := range list.Roles {
		if r.Role != subjects.RoleAssistant {
			continue
		}
		if r.Window <= 0 {
			r.Window = usual.Window
		}
		g.models.put(r, out.Now())
		return r
	}
	return usual
}
