package critic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// judgeReply is the parsed reply of the judge.
type judgeReply struct {
	feedback string // redacted
	result   byte   // one of the allowed characters
	model    string // the model
	notice   string // when another model than the configured one judged
}

// errDemoModel means that the demo model replied: it cannot judge.
var errDemoModel = errors.New("no model judges: the built-in demo model stands in")

// reminders ask a judge again whose reply had not the required form, by the allowed results.
var reminders = map[string]string{
	scores: "That was not the form. Write it once more, and only this: Feedback: (your feedback) [RESULT] (an " +
		"integer from 1 to 5)",
	letters: "That was not the form. Write it once more, and only this: Feedback: (your feedback) [RESULT] (A or B)",
}

const (
	defaultWindow  = 8192            // tokens, when the model actor does not know
	windowTTL      = 5 * time.Minute // of a cached window
	windowTimeout  = 10 * time.Second
	reservedTokens = 512 // tokens for a reminder and for the chat template
	maxEcho        = 2 << 10
	maxShrinks     = 2 // retries with half the input when the model reports that it is too long
)

// askJudge has m judged: it fits the input into the window of the judge's model, asks, reminds once of the form and
// parses the reply, whose result is one character of allowed. An input that the server finds too long is halved and
// sent again, at most maxShrinks times; one that cannot be made to fit is [model.ErrTooLong]. The call timeout covers
// all of it, including the wait in the model queue.
func (c *Critic) askJudge(ctx context.Context, out actor.Out, m judgeInput, allowed string) (v judgeReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	tokens := c.lookupWindow(ctx, out) - c.cfg.Predict - reservedTokens
	for range maxShrinks + 1 {
		r, ok := m.buildMessages(tokens)
		if !ok {
			return v, fmt.Errorf("%w: the input does not fit %d tokens; give the critic's model a larger window in "+
				"models.yaml", model.ErrTooLong, max(tokens, 0))
		}
		v, err = c.askWithReminder(ctx, out, r, allowed)
		if !errors.Is(err, model.ErrTooLong) {
			return v, err
		}
		tokens /= 2
	}
	return v, err
}

// askWithReminder asks the model, and once more with a reminder when the reply has not the required form. The second
// reply is held to the form by a JSON schema, where the server can do that: small models do not keep to it by
// themselves. A second unreadable reply is errUnreadable. allowed must be a key of reminders.
func (c *Critic) askWithReminder(ctx context.Context, out actor.Out, r []model.Message, allowed string) (judgeReply,
	error,
) {
	v, reply, err := c.askModel(ctx, out, r, nil, allowed)
	if !errors.Is(err, errUnreadable) {
		return v, err
	}
	echo := text.Clip(reply, maxEcho)
	echo = cmp.Or(echo, "(nothing)") // a server may reject an empty message
	r = append(r, model.Message{Role: model.Assistant, Content: echo},
		model.Message{Role: model.User, Content: reminders[allowed]})
	v, _, err = c.askModel(ctx, out, r, replySchema(allowed), allowed)
	return v, err
}

// askModel asks the model once, for a reply by the schema; nil = in words. A reply that has not the required form is
// errUnreadable, and reply is then its redacted text; otherwise reply is "". Replies of the built-in demo model are
// rejected with errDemoModel.
func (c *Critic) askModel(ctx context.Context, out actor.Out, r []model.Message, schema json.RawMessage,
	allowed string,
) (v judgeReply, reply string, err error) {
	var last subjects.ChatChunk
	quiet := false // the model actor leaves it out for models that cannot think
	client := wire.Client{
		Out: out, Role: subjects.RoleCritic, Timeout: c.cfg.CallTimeout,
		OnDone: func(p subjects.ChatChunk) { last = p },
	}
	said, final, err := model.Collect(client.Chat(ctx, model.Request{
		Messages: r, Think: &quiet, Format: schema, Options: model.Options{Predict: c.cfg.Predict},
	}))
	switch {
	case errors.Is(err, model.ErrMalformed):
		return v, "", fmt.Errorf("%w: %w", errUnreadable, err)
	case err != nil:
		return v, "", err
	case last.DemoModel:
		return v, "", errDemoModel
	}
	v = judgeReply{model: oneLine(final.Model, 200), notice: oneLine(last.Notice, 500)}
	if v.feedback, v.result, err = parseReply(said.Content, allowed); err != nil {
		return v, redact(said.Content), err
	}
	return v, "", nil
}

// isSameModel reports whether the judge is the model of an answer, with or without the default tag. A model without a
// name is not.
func isSameModel(judge, answered string) bool {
	return judge != "" && strings.TrimSuffix(judge, ":latest") == strings.TrimSuffix(answered, ":latest")
}

// lookupWindow returns the context window of the judge's model in tokens, cached for [windowTTL]. It is defaultWindow
// when the model actor does not answer within windowTimeout or does not know it.
func (c *Critic) lookupWindow(ctx context.Context, out actor.Out) int {
	c.judgeWindow.Lock()
	defer c.judgeWindow.Unlock()
	if c.judgeWindow.tokens > 0 && out.Now().Before(c.judgeWindow.until) {
		return c.judgeWindow.tokens
	}
	ctx, cancel := context.WithTimeout(ctx, windowTimeout)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		return defaultWindow // the judgement itself will fail with the reason
	}
	for _, r := range list.Roles {
		if r.Role == subjects.RoleCritic && r.Window > 0 {
			c.judgeWindow.tokens, c.judgeWindow.until = r.Window, out.Now().Add(windowTTL)
			return r.Window
		}
	}
	return defaultWindow
}

// isTransient reports whether a retry may overcome err. Unknown errors are transient.
func isTransient(err error) bool {
	if model.IsAny(err, errUnreadable, errDemoModel, errTooManyAttempts, model.ErrSwap, model.ErrMissing,
		model.ErrTooLong, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized, model.ErrNoThinking,
		model.ErrNoTools) {
		return false
	}
	switch subjects.CodeOf(err) {
	case subjects.CodeMalformed, subjects.CodeTooLarge, subjects.CodeDenied, subjects.CodePermission,
		subjects.CodeStopped:
		return false
	}
	return true
}

// describeFailure returns a sentence for the user: why nothing was judged, after how many attempts. Texts of unknown
// errors are not shown. err must not be nil.
func describeFailure(err error, tries int) string {
	var f *subjects.Fault
	words := ""
	switch {
	case errors.Is(err, errDemoModel):
		return errDemoModel.Error()
	case errors.Is(err, errUnreadable):
		return "the judge's words could not be read, twice: " + oneLine(err.Error(), 300)
	case errors.Is(err, context.Canceled):
		words = "the critic was stopped each time"
	case errors.Is(err, context.DeadlineExceeded):
		words = "the model did not judge in time"
	case errors.As(err, &f) && f != nil:
		words = f.Text
	case model.IsAny(err, errTooManyAttempts, model.ErrTooLong, model.ErrCut, model.ErrUnreachable):
		words = err.Error()
	default:
		words = "something went wrong; the critic's log says what"
	}
	if isTransient(err) || errors.Is(err, errTooManyAttempts) {
		return fmt.Sprintf("given up after %d tries: %s", tries, oneLine(words, 300))
	}
	return "no model judged: " + oneLine(words, 300)
}

// newGiveUpError is the log entry for a transient failure at the last attempt.
func newGiveUpError(err error) error {
	return errors.New("giving up on a judgement: " + redact(err.Error()))
}

// redact removes everything that looks like a credential.
func redact(s string) string {
	s, _ = firewall.Redact(s)
	return s
}

// oneLine returns untrusted text redacted, on one line and cut to most bytes.
func oneLine(s string, most int) string { return text.OneLine(redact(s), most) }
