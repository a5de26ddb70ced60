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

// lookupTimeout is the timeout of requests to the broker and the model actor before a turn begins without them.
const lookupTimeout = 5 * time.Second

// unavailableText is the result of a tool that timed out.
const unavailableText = "[tool unavailable]"

// discoverTools asks the broker for tools that fit the question, at most MaxTools. It asks for each question, so that
// grants and disabled tools take effect at once. It waits for lookupTimeout; without a reply there are no tools, and a
// note says so. nil = no tools.
func (t *turn) discoverTools(ctx context.Context) []model.Tool {
	most := t.g.cfg.MaxTools
	if most <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	reply, err := actor.Ask(ctx, t.out, subjects.BrokerDiscover, subjects.DiscoverRequest{Task: t.task(), Max: most})
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why := "no reply"
			var f *subjects.Fault
			if actor.IsReplyFault(err) && errors.As(err, &f) {
				why = text.OneLine(f.Text, maxTextBytes)
			}
			t.addNote(subjects.NoteNoBroker, "no tools could be used: asking the broker for tools failed ("+why+")")
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

// callID is the id of a call outside of its turn, derived from session, query and the model's own id. The model's id alone is
// unique within a turn at best, and the broker would take a later call with the same id for one that has run. Ids of
// respondent B differ from the generator's for the same query. The derivation must not change: a resumed turn finds its
// calls in the broker's ledger.
func (t *turn) callID(id string) string {
	of := t.sessionID + " " + t.query.QueryID + " " + id
	if t.g.isRespondentB {
		of = t.g.name + " " + of
	}
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:16])
}

// runTool runs one call through the broker and waits for its result, at most ToolTimeout. A denial, a failure and a
// timeout are results too, with a fault and a text for the model to read. A long framed result is clipped.
func (t *turn) runTool(ctx context.Context, c model.Call) loop.Result {
	service, err := subjects.ToolRequestService.With(c.Name)
	if err != nil {
		return loop.Result{Text: "There is no tool of that name.", Fault: subjects.CodeUnknownTool}
	}
	ctx, cancel := context.WithTimeout(ctx, t.g.cfg.ToolTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, t.out, service, subjects.ToolRequest{CallID: t.callID(c.ID), QueryID: t.query.QueryID, Args: c.Arguments})
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f != nil:
		return describeFault(f)
	case err != nil:
		return loop.Result{Text: unavailableText, Fault: subjects.CodeUnavailable}
	case res.Error != nil:
		t.addLabels(res.Labels)
		return describeFault(res.Error)
	}
	t.addLabels(res.Labels)
	t.addRecalls(res.Recalls)
	shown := clipInFrame(res.Result, int(t.g.cfg.Result))
	if shown != res.Result {
		t.noteClippedResult(c.Name)
	}
	return loop.Result{Text: shown, Ephemeral: res.Ephemeral}
}

// addLabels joins the labels of a result to those of the answer.
func (t *turn) addLabels(l *subjects.Labels) {
	if l == nil {
		return
	}
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	t.record.Labels = t.record.Labels.Join(l)
}

// addRecalls adds the ids of memories that a result holds, each once. Ids beyond maxRecalls are dropped.
func (t *turn) addRecalls(ids []string) {
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	for _, id := range ids {
		if len(t.record.Recalls) < maxRecalls && !slices.Contains(t.record.Recalls, id) {
			t.record.Recalls = append(slices.Clone(t.record.Recalls), text.Clip(id, subjects.MaxToken))
		}
	}
}

// maxRecalls bounds how many memories an answer names.
const maxRecalls = 100

// noteClippedResult notes, once per tool, that the model is sent only a part of a result.
func (t *turn) noteClippedResult(tool string) {
	n := subjects.Note{Code: loop.NoteClipped, Text: "a result of " + tool + " was clipped for the model"}
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	if !slices.Contains(t.clipNotes, n) {
		t.clipNotes = append(t.clipNotes, n)
		t.emitNote(n.Code, n.Text)
	}
}

// answerLabels are the labels of the answer and the ids of the memories it used.
func (t *turn) answerLabels() (*subjects.Labels, []string) {
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	return t.record.Labels, t.record.Recalls
}

// clipInFrame clips a framed result to most bytes and keeps the last line, which ends the frame around untrusted
// content: the loop would cut it. A result without a frame, or whose last line leaves no room, is returned unchanged.
func clipInFrame(s string, most int) string {
	end := strings.LastIndexByte(s, '\n')
	if len(s) <= most || end < 0 || !strings.HasPrefix(s, firewall.FrameStart) {
		return s
	}
	last, room := s[end:], most-(len(s)-end)-len(clipMark)
	if room <= 0 {
		return s
	}
	return strings.ToValidUTF8(s[:room], "") + clipMark + last
}

// clipMark marks where a result was clipped.
const clipMark = "\n[cut here: the result is longer]"

// describeFault is the result of a call that failed, was denied or did not run, in words for the model. Its fault is
// the code of f, CodeTool when f has none.
func describeFault(f *subjects.Fault) loop.Result {
	r := loop.Result{Fault: f.Code}
	switch f.Code {
	case subjects.CodeTimeout, subjects.CodeUnavailable:
		r.Text = unavailableText
	case subjects.CodeDenied:
		r.Text = "This call is not allowed"
		if f.Denial != nil {
			r.Text += ": " + text.OneLine(f.Denial.Reason, maxTextBytes)
			if len(f.Denial.Allowed) > 0 {
				r.Text += ". Allowed: " + text.OneLine(strings.Join(f.Denial.Allowed, ", "), maxTextBytes)
			}
		} else if f.Text != "" {
			r.Text += ": " + text.OneLine(f.Text, maxTextBytes)
		}
		r.Text += ". Do not try it again in this way."
	case subjects.CodeNotApproved:
		r.Text = "The user was asked whether this call may run, and said no. Do not try to get the same done in another way; go on without it."
	case subjects.CodeUnanswered:
		r.Text = "The user was asked whether this call may run, and has not answered: it did not run. Say so, and go on without it."
	case subjects.CodeLimit:
		r.Text = "This call was not run, a limit is reached: " + text.OneLine(f.Text, maxTextBytes) + ". Answer with what you have."
	case subjects.CodeNoSecret:
		r.Text = "The call did not run: " + text.OneLine(f.Text, maxTextBytes) + ". Tell the user."
	case subjects.CodeUncertain:
		r.Text = "It is not known whether this call ran before an interruption, and it is not run again. Tell the user so: " + text.OneLine(f.Text, maxTextBytes)
	default:
		r.Text = fmt.Sprintf("The call failed (%s): %s", f.Code, text.Clip(f.Text, 2<<10))
	}
	if r.Fault == "" {
		r.Fault = subjects.CodeTool
	}
	return r
}

// defaultWindow is assumed for a model with an unknown context window, in tokens.
const defaultWindow = 32768

// assistantModel is the current model of the assistant role and its capabilities, cached for cacheTTL. When the model
// actor does not reply within lookupTimeout or has no such role, it is a default with tools and streaming, without a
// name. The window is never 0.
func (g *Generator) assistantModel(ctx context.Context, out actor.Out) subjects.RoleModel {
	if r, ok := g.roleCache.get(out.Now()); ok {
		return r
	}
	usual := subjects.RoleModel{Role: subjects.RoleAssistant, Window: defaultWindow, Stream: true, Tools: true}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
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
		g.roleCache.put(r, out.Now())
		return r
	}
	return usual
}
