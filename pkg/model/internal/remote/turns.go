package remote

import (
	"regexp"
	"slices"
	"strconv"

	"conclave/pkg/model"
)

// Turn is one message with the results of its tool calls. Services require, and [model.Message] does not, that every
// call has a unique id and a result, in order.
type Turn struct {
	model.Message
	Calls []CallResult
}

// CallResult is a tool call and its result.
type CallResult struct {
	model.Call
	Wire   string // the id to send: unique in the conversation
	Result string
}

// unanswered is the placeholder for a missing result: without one, services reject the whole conversation.
const unanswered = "[no result]"

// GroupTurns groups a conversation into turns. Results that follow a message with calls are matched to its calls by id,
// then by name, then by order; a call without a result gets a placeholder. A result without a call becomes a turn of
// its own. Ids to send are made valid and unique.
func GroupTurns(in []model.Message) []Turn {
	var out []Turn
	ids := idSet{}
	for i := 0; i < len(in); i++ {
		t := Turn{Message: in[i]}
		if in[i].Role != model.Assistant || len(in[i].Calls) == 0 {
			out = append(out, t)
			continue
		}
		end := i + 1
		for end < len(in) && in[end].Role == model.ToolRole {
			end++
		}
		results := slices.Clone(in[i+1 : end])
		for _, c := range in[i].Calls {
			t.Calls = append(t.Calls, CallResult{Call: c, Wire: ids.unique(c.ID), Result: unanswered})
		}
		taken := make([]bool, len(t.Calls))
		results = t.matchResults(results, taken, func(c CallResult, r model.Message) bool {
			return r.CallID != "" && r.CallID == c.ID
		})
		results = t.matchResults(results, taken, func(c CallResult, r model.Message) bool {
			return r.CallID == "" && r.ToolName == c.Name
		})
		results = t.matchResults(results, taken, func(_ CallResult, r model.Message) bool {
			return r.CallID == "" && r.ToolName == ""
		})
		out = append(out, t)
		for _, r := range results {
			out = append(out, Turn{Message: r})
		}
		i = end - 1
	}
	return out
}

// matchResults assigns each result to the first unmatched call that fits, marks the call in taken, and returns the
// results left over.
func (t *Turn) matchResults(results []model.Message, taken []bool, fits func(CallResult, model.Message) bool) (
	left []model.Message,
) {
	for _, r := range results {
		i := -1
		for j, m := range t.Calls {
			if !taken[j] && fits(m, r) {
				i = j
				break
			}
		}
		if i < 0 {
			left = append(left, r)
			continue
		}
		t.Calls[i].Result, taken[i] = r.Content, true
	}
	return left
}

// idSet is the set of ids in use.
type idSet map[string]bool

// validID is what every service takes.
var validID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// unique returns id if it is valid and unused, and a generated id otherwise.
func (s idSet) unique(id string) string {
	for n := len(s) + 1; s[id] || !validID.MatchString(id); n++ {
		id = "call_" + strconv.Itoa(n)
	}
	s[id] = true
	return id
}
