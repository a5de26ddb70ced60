package reward

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

//go:embed give_feedback.md
var giveFeedbackText string

// Tool is what the build knows of a tool of reward.
type Tool struct {
	Facts  policy.Tool
	Schema subjects.ToolSchema
}

// Tools are those that reward serves.
func Tools() []Tool { return []Tool{giveFeedback} }

// giveFeedback takes an opinion from what the user said in a conversation. It says of its results who wrote them, and
// needs to: they are sentences, and those of a tool that does not say so count as a stranger's.
var giveFeedback = Tool{
	Schema: subjects.ToolSchema{
		Name: "give_feedback", Version: Version, Description: strings.TrimSpace(giveFeedbackText),
		Parameters: json.RawMessage(`{"type":"object","properties":{` +
			`"opinion":{"type":"string","enum":["good","bad","mixed"],"description":"what the user thinks of the previous answer"},` +
			`"words":{"type":"string","minLength":1,"maxLength":2000,"description":"the user's own words that say so, unchanged"}` +
			`},"required":["opinion","words"],"additionalProperties":false}`),
	},
	Facts: policy.Tool{
		Name: "give_feedback", Zone: name, Known: true, Effects: policy.Declare(policy.Remember), Timeout: 30 * time.Second, Graded: true, MaxArgs: 32 << 10,
		Rare: []string{
			"wrong", "right", "correct", "incorrect", "mistake", "mistaken", "helpful", "useless", "perfect", "thanks", "thank", "great", "feedback", "answer",
			"falsch", "richtig", "danke", "fehler", "faux", "merci", "erreur", "gracias", "mal", "incorrecto", "error",
		},
	},
}

// definition is the schema as discovery shows it.
func definition() string {
	b, err := json.Marshal(giveFeedback.Schema)
	if err != nil {
		return ""
	}
	return string(b)
}

// opinions are what each word of the tool is worth. A model hears praise more easily than blame, and it is its own: from a
// conversation praise counts half.
var opinions = map[string]float64{"good": 0.5, "bad": -1, "mixed": 0}

// maxAsked bounds how many questions and calls may have an opinion of one answer.
const maxAsked = 32

// person is the account of the user's own tool calls.
const person = "operator"

// onGive handles a call of give_feedback. Who asks, in which session, and whose words are in that session is the broker's
// word. No word of the call is in what it answers.
func (r *Reward) onGive(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
	res := subjects.ToolResult{CallID: in.Body.CallID, QueryID: in.Body.QueryID, Tool: giveFeedback.Schema.Name}
	said, err := r.give(ctx, in.Session, in.Body, out)
	var f *subjects.Fault
	switch {
	case errors.As(err, &f):
		res.Error = f
	case err != nil:
		return res, fmt.Errorf("running %s: %w", giveFeedback.Schema.Name, err)
	default:
		res.Result, res.Labels = said, &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Private}
	}
	return res, nil
}

// give takes in the opinion of a call, and says what came of it.
func (r *Reward) give(ctx context.Context, session string, call subjects.ToolOrder, out actor.Out) (string, error) {
	if f := mayGive(session, call); f != nil {
		return "", f
	}
	o, f := readArgs(call.Args)
	if f != nil {
		return "", f
	}
	last, _, err := get[lastAnswer](ctx, out.Store(bucket), lastKey(session))
	if errors.Is(err, actor.ErrNotFound) {
		return "", failed("there is no earlier answer in this conversation that could be rated")
	}
	if err != nil {
		return "", fmt.Errorf("looking for the last answer of session %s: %w", session, err)
	}
	if last.Query == call.QueryID {
		return "", failed("the question at hand is answered already, and an answer is not rated by itself")
	}
	stands, foreign := false, false
	what, err := r.change(ctx, out, last.Query, func(a *answer) effect {
		if foreign = a.Session != session; foreign {
			return ignored
		}
		stands = a.Opinion.Source == subjects.RewardUser
		if stands || len(a.Asked) >= maxAsked || marked(a.Asked, call) {
			return ignored
		}
		a.Asked = mark(a.Asked, call)
		if a.Opinion == o {
			return noted
		}
		a.Opinion = o
		return counted
	})
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return "", failed("the earlier answer of this conversation is too old to be rated")
	case err != nil:
		return "", err
	case foreign:
		return "", failed("the id of the earlier question was used in another conversation before, so its answer cannot be rated")
	case stands:
		return "The user has rated that answer themselves; that stands, and nothing was changed.", nil
	case what == ignored:
		return "That answer has an opinion from this conversation already; nothing was changed.", nil
	}
	return "Noted for the previous answer.", nil
}

// mayGive says what stands against a call, whatever it says.
func mayGive(session string, call subjects.ToolOrder) *subjects.Fault {
	switch {
	case call.Spawned || call.Caller != person && !slices.Contains(subjects.VisibleRespondents, call.Caller):
		return failed("only the agent that talks with the user may note what the user said")
	case call.Labels == nil || call.Labels.Trust != subjects.Trusted:
		return failed("strangers' words are in this conversation, so only the user's own rating counts: the user can use conclave rate")
	case subjects.CheckToken(session) != nil:
		return failed("outside of a conversation there is no earlier answer")
	case call.QueryID == "" && call.CallID == "":
		return failed("a call without an id cannot be told from the same one again")
	}
	for _, id := range []string{call.QueryID, call.CallID} {
		if id != "" && subjects.CheckToken(id) != nil {
			return failed("the ids of a call may hold letters, digits, - and _ only")
		}
	}
	return nil
}

// readArgs reads the arguments as strictly as the schema says.
func readArgs(args json.RawMessage) (opinion, *subjects.Fault) {
	var a struct {
		Opinion string `json:"opinion"`
		Words   string `json:"words"`
	}
	if err := actor.DecodeStrict(args, &a); err != nil {
		return opinion{}, failed("bad arguments: %v", err)
	}
	value, ok := opinions[a.Opinion]
	if !ok {
		return opinion{}, failed("bad arguments: opinion is good, bad or mixed")
	}
	o := opinion{Value: value, Source: subjects.RewardConversation, Words: clean(a.Words)}
	if o.Words == "" {
		return opinion{}, failed("bad arguments: words must hold what the user said")
	}
	return o, nil
}

// A question has one opinion, however often its agent calls: what the user said once counts once.
func marks(call subjects.ToolOrder) (out []string) {
	if call.QueryID != "" {
		out = append(out, "query "+call.QueryID)
	}
	if call.CallID != "" {
		out = append(out, "call "+call.CallID)
	}
	return out
}

func marked(asked []string, call subjects.ToolOrder) bool {
	return slices.ContainsFunc(marks(call), func(m string) bool { return slices.Contains(asked, m) })
}

func mark(asked []string, call subjects.ToolOrder) []string { return append(asked, marks(call)...) }

func failed(format string, a ...any) *subjects.Fault {
	return subjects.Faultf(subjects.CodeTool, format, a...)
}
