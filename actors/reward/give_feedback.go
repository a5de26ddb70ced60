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
	"conclave/pkg/jsonschema"
	"conclave/pkg/policy"
	"conclave/subjects"
)

//go:embed give_feedback.md
var giveFeedbackText string

// giveFeedbackTool returns the tool give_feedback, which stores the user's opinion of the previous answer from a
// conversation. Its results are labelled trusted: they are fixed sentences with no word of the call. Results of a tool
// without labels count as untrusted content.
func (r *Reward) giveFeedbackTool() actor.Tool {
	return actor.Tool{
		Schema: subjects.ToolSchema{
			Name: "give_feedback", Version: Version, Description: strings.TrimSpace(giveFeedbackText),
			Parameters: jsonschema.Literal(`{
				"type": "object",
				"properties": {
					"opinion": {"type": "string", "enum": ["good", "bad", "mixed"],
						"description": "what the user thinks of the previous answer"},
					"words": {"type": "string", "minLength": 1, "maxLength": 2000,
						"description": "the user's own words that say so, unchanged"}
				},
				"required": ["opinion", "words"],
				"additionalProperties": false
			}`),
		},
		Facts: policy.Tool{
			Name: "give_feedback", Zone: name, Known: true, Effects: policy.Declare(policy.Remember),
			Timeout: 30 * time.Second, Graded: true, MaxArgs: 32 << 10,
			Rare: []string{
				"wrong", "right", "correct", "incorrect", "mistake", "mistaken", "helpful", "useless", "perfect",
				"thanks", "thank", "great", "feedback", "answer",
				"falsch", "richtig", "danke", "fehler", "faux", "merci", "erreur", "gracias", "mal", "incorrecto",
				"error",
			},
		},
		Run: func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
			result, err := r.giveFeedback(ctx, in.Session, in.Body, out)
			return subjects.ToolResult{Result: result, Labels: &subjects.Labels{
				Trust:   subjects.Trusted,
				Privacy: subjects.Private,
			}}, err
		},
	}
}

// opinionValues are the values of the tool's opinions. Praise from a conversation counts half: a model tends to hear
// praise of its own answers.
var opinionValues = map[string]float64{"good": 0.5, "bad": -1, "mixed": 0}

// maxOpinionMarks bounds the queries and calls through which a conversation may rate one answer.
const maxOpinionMarks = 32

// userAccount is the account of the user's own tool calls.
const userAccount = "operator"

// giveFeedback rates the last answer of session with the opinion of a tool call, and returns a sentence for the model.
// The caller, the session and its labels are set by the broker. A rating by the user stands, and a query or call rates
// once: the sentence says so then. It fails for calls that [checkCall] denies and without an earlier answer that can be
// rated.
func (r *Reward) giveFeedback(ctx context.Context, session string, call subjects.ToolOrder, out actor.Out) (string,
	error,
) {
	if f := checkCall(session, call); f != nil {
		return "", f
	}
	o, err := parseArguments(call.Args)
	if err != nil {
		return "", err
	}
	stored, err := lastAnswers.Load(ctx, out, lastKey(session))
	if err != nil {
		return "", fmt.Errorf("reading the last answer of session %s: %w", session, err)
	}
	if stored.Revision == 0 {
		return "", toolFault("there is no earlier answer in this conversation that could be rated")
	}
	last := stored.Value
	if last.Query == call.QueryID {
		return "", toolFault("the question at hand is answered already, and an answer is not rated by itself")
	}
	stands, foreign := false, false
	what, err := r.updateAnswer(ctx, out, last.Query, func(a *answer) outcome {
		if foreign = a.Session != session; foreign {
			return ignored
		}
		stands = a.Opinion.Source == subjects.RewardUser
		if stands || len(a.Asked) >= maxOpinionMarks || hasMark(a.Asked, call) {
			return ignored
		}
		a.Asked = append(a.Asked, callMarks(call)...)
		if a.Opinion == o {
			return recorded
		}
		a.Opinion = o
		return changed
	})
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return "", toolFault("the earlier answer of this conversation is too old to be rated")
	case err != nil:
		return "", err
	case foreign:
		return "", toolFault("the id of the earlier question was used in another conversation before, so its answer " +
			"cannot be rated")
	case stands:
		return "The user has rated that answer themselves; that stands, and nothing was changed.", nil
	case what == ignored:
		return "That answer has an opinion from this conversation already; nothing was changed.", nil
	}
	return "Noted for the previous answer.", nil
}

// checkCall returns why a call may not rate an answer, nil if it may: only the agent that talks with the user may, in a
// session without untrusted content, and with ids by which a repeated call is recognized.
func checkCall(session string, call subjects.ToolOrder) *subjects.Fault {
	switch {
	case call.Spawned || call.Caller != userAccount && !slices.Contains(subjects.VisibleRespondents, call.Caller):
		return toolFault("only the agent that talks with the user may note what the user said")
	case call.Labels == nil || call.Labels.Trust != subjects.Trusted:
		return toolFault("strangers' words are in this conversation, so only the user's own rating counts: the user " +
			"can use conclave rate")
	case subjects.CheckToken(session) != nil:
		return toolFault("outside of a conversation there is no earlier answer")
	case call.QueryID == "" && call.CallID == "":
		return toolFault("a call without an id cannot be told from the same one again")
	}
	for _, id := range []string{call.QueryID, call.CallID} {
		if id != "" && subjects.CheckToken(id) != nil {
			return toolFault("the ids of a call may hold letters, digits, - and _ only")
		}
	}
	return nil
}

// parseArguments decodes the arguments strictly. It rejects an opinion that is not good, bad or mixed, and empty words;
// the error is [actor.ErrArguments].
func parseArguments(args json.RawMessage) (opinion, error) {
	var a struct {
		Opinion string `json:"opinion"`
		Words   string `json:"words"`
	}
	if err := actor.DecodeArguments(args, &a); err != nil {
		return opinion{}, err
	}
	value, ok := opinionValues[a.Opinion]
	if !ok {
		return opinion{}, fmt.Errorf("%w: opinion is good, bad or mixed", actor.ErrArguments)
	}
	o := opinion{Value: value, Source: subjects.RewardConversation, Words: cleanWords(a.Words)}
	if o.Words == "" {
		return opinion{}, fmt.Errorf("%w: words must hold what the user said", actor.ErrArguments)
	}
	return o, nil
}

// callMarks returns the marks of a call in [answer.Asked]. A query rates an answer once, however often its agent calls.
func callMarks(call subjects.ToolOrder) (out []string) {
	if call.QueryID != "" {
		out = append(out, "query "+call.QueryID)
	}
	if call.CallID != "" {
		out = append(out, "call "+call.CallID)
	}
	return out
}

// hasMark reports whether the query or the call has rated the answer before.
func hasMark(asked []string, call subjects.ToolOrder) bool {
	return slices.ContainsFunc(callMarks(call), func(m string) bool { return slices.Contains(asked, m) })
}

// toolFault returns a fault for the model.
func toolFault(format string, a ...any) *subjects.Fault {
	return subjects.Faultf(subjects.CodeTool, format, a...)
}
