package critic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// verdict is what a judge said.
type verdict struct {
	words  string // scrubbed
	result byte   // one of what was allowed
	by     string // the model
	notice string // another model than the critic's own judged
}

// errDemoModel means that no model judged.
var errDemoModel = errors.New("no model judges: the built-in demo model stands in")

// Reminders of the form, for a judge that did not keep to it.
var reminders = map[string]string{
	scores:  "That was not the form. Write it once more, and only this: Feedback: (your feedback) [RESULT] (an integer from 1 to 5)",
	letters: "That was not the form. Write it once more, and only this: Feedback: (your feedback) [RESULT] (A or B)",
}

const (
	usualWindow = 8192            // tokens, when nobody says
	windowFor   = 5 * time.Minute // how long what was said is good for
	windowAsk   = 10 * time.Second
	spare       = 512 // tokens for a reminder and for what a template adds
	maxEcho     = 2 << 10
	tighter     = 2 // times that a request is made smaller because the model finds it too long
)

// judge puts material before the model, reminds it once of the form, and reads what it says. One judgement has one time
// limit, with all that it waits.
func (c *Critic) judge(ctx context.Context, out actor.Out, m material, allowed string) (v verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	tokens := c.window(ctx, out) - c.cfg.Predict - spare
	for range tighter + 1 {
		r, ok := m.request(tokens)
		if !ok {
			return v, fmt.Errorf("%w: nothing can be judged in %d tokens; give the critic's model a larger window in models.yaml", model.ErrTooLong, max(tokens, 0))
		}
		v, err = c.askTwice(ctx, out, r, allowed)
		if !errors.Is(err, model.ErrTooLong) {
			return v, err
		}
		tokens /= 2
	}
	return v, err
}

// askTwice asks, and asks once more when the reply has not the form.
func (c *Critic) askTwice(ctx context.Context, out actor.Out, r []model.Message, allowed string) (verdict, error) {
	v, reply, err := c.ask(ctx, out, r, allowed)
	if !errors.Is(err, errUnreadable) {
		return v, err
	}
	echo := text.Clip(reply, maxEcho)
	if echo == "" {
		echo = "(nothing)" // a server may refuse an empty message
	}
	r = append(r, model.Message{Role: model.Assistant, Content: echo}, model.Message{Role: model.User, Content: reminders[allowed]})
	v, _, err = c.ask(ctx, out, r, allowed)
	return v, err
}

// ask asks the model once.
func (c *Critic) ask(ctx context.Context, out actor.Out, r []model.Message, allowed string) (v verdict, reply string, err error) {
	var last subjects.ChatChunk
	quiet := false // models that do not think are not asked to be quiet: the model actor knows
	client := wire.Client{Out: out, Role: subjects.RoleCritic, Timeout: c.cfg.CallTimeout, Last: func(p subjects.ChatChunk) { last = p }}
	said, final, err := model.Collect(client.Chat(ctx, model.Request{Messages: r, Think: &quiet, Options: model.Options{Predict: c.cfg.Predict}}))
	switch {
	case errors.Is(err, model.ErrMalformed):
		return v, "", fmt.Errorf("%w: %w", errUnreadable, err)
	case err != nil:
		return v, "", err
	case last.DemoModel:
		return v, "", errDemoModel
	}
	v = verdict{by: line(final.Model, 200), notice: line(last.Notice, 500)}
	if v.words, v.result, err = parse(said.Content, allowed); err != nil {
		return v, scrub(said.Content), err
	}
	return v, "", nil
}

// window is how many tokens the judge's model takes.
func (c *Critic) window(ctx context.Context, out actor.Out) int {
	c.room.Lock()
	defer c.room.Unlock()
	if c.room.tokens > 0 && out.Now().Before(c.room.until) {
		return c.room.tokens
	}
	ctx, cancel := context.WithTimeout(ctx, windowAsk)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		return usualWindow // the judgement itself will say what is wrong
	}
	for _, r := range list.Roles {
		if r.Role == subjects.RoleCritic && r.Window > 0 {
			c.room.tokens, c.room.until = r.Window, out.Now().Add(windowFor)
			return r.Window
		}
	}
	return usualWindow
}

// passing reports whether err may be over when it is tried again.
func passing(err error) bool {
	if errors.Is(err, errUnreadable) || errors.Is(err, errDemoModel) || errors.Is(err, errGiven) {
		return false
	}
	for _, lasting := range []error{model.ErrMissing, model.ErrTooLong, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized, model.ErrNoThinking, model.ErrNoTools} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var f *subjects.Fault
	if errors.As(err, &f) && f != nil {
		switch f.Code {
		case subjects.CodeMalformed, subjects.CodeTooLarge, subjects.CodeDenied, subjects.CodePermission, subjects.CodeStopped:
			return false
		}
	}
	return true // what nobody knows is not taken for final
}

// excuse says in a sentence why nothing was judged.
func excuse(err error, tries int) string {
	var f *subjects.Fault
	words := ""
	switch {
	case errors.Is(err, errDemoModel):
		return errDemoModel.Error()
	case errors.Is(err, errUnreadable):
		return "the judge's words could not be read, twice: " + line(err.Error(), 300)
	case errors.Is(err, context.Canceled):
		words = "the critic was stopped each time"
	case errors.Is(err, context.DeadlineExceeded):
		words = "the model did not judge in time"
	case errors.As(err, &f) && f != nil:
		words = f.Text
	case errors.Is(err, errGiven), errors.Is(err, model.ErrTooLong), errors.Is(err, model.ErrCut), errors.Is(err, model.ErrUnreachable):
		words = err.Error()
	default:
		words = "something went wrong; the critic's log says what"
	}
	if passing(err) || errors.Is(err, errGiven) {
		return fmt.Sprintf("given up after %d tries: %s", tries, line(words, 300))
	}
	return "no model judged: " + line(words, 300)
}

// givingUp is what the log says when what may have been over was tried too often.
func givingUp(err error) error { return errors.New("giving up on a judgement: " + scrub(err.Error())) }

// scrub is a text without anything that looks like a credential.
func scrub(s string) string {
	s, _ = firewall.Redact(s)
	return s
}

// line is a text from elsewhere in one line.
func line(s string, most int) string { return text.OneLine(scrub(s), most) }

func short(d time.Duration) string { return strict.Short(d) }
