package remote

import (
	"regexp"
	"slices"
	"strconv"

	"conclave/pkg/model"
)

// Turn is one message together with the results of the calls it makes. Services insist on what a [model.Message] leaves
// open: that every call has an id of its own and a result, in order.
type Turn struct {
	model.Message
	Made []Made
}

// Made is a call and its result.
type Made struct {
	model.Call
	Wire   string // the id to send: unique in the conversation
	Result string
}

// unanswered stands for the result of a call that got none: without one, services refuse the whole conversation.
const unanswered = "[no result]"

// Turns gathers a conversation. Results are tied to calls by id, then by name, then by order. A result that belongs to no
// call is a turn of its own.
func Turns(in []model.Message) []Turn {
	var out []Turn
	ids := ids{}
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
			t.Made = append(t.Made, Made{Call: c, Wire: ids.unique(c.ID), Result: unanswered})
		}
		taken := make([]bool, len(t.Made))
		results = t.match(results, taken, func(c Made, r model.Message) bool { return r.CallID != "" && r.CallID == c.ID })
		results = t.match(results, taken, func(c Made, r model.Message) bool { return r.CallID == "" && r.ToolName == c.Name })
		results = t.match(results, taken, func(_ Made, r model.Message) bool { return r.CallID == "" && r.ToolName == "" })
		out = append(out, t)
		for _, r := range results {
			out = append(out, Turn{Message: r})
		}
		i = end - 1
	}
	return out
}

// match gives each result the first free call that fits, and returns the results that found none.
func (t *Turn) match(results []model.Message, taken []bool, fits func(Made, model.Message) bool) (left []model.Message) {
	for _, r := range results {
		i := -1
		for j, m := range t.Made {
			if !taken[j] && fits(m, r) {
				i = j
				break
			}
		}
		if i < 0 {
			left = append(left, r)
			continue
		}
		t.Made[i].Result, taken[i] = r.Content, true
	}
	return left
}

// ids are those given out so far.
type ids map[string]bool

// proper is what every service takes.
var proper = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// unique returns id, or another where there is none, or it was used before or is not proper.
func (s ids) unique(id string) string {
	for n := len(s) + 1; s[id] || !proper.MatchString(id); n++ {
		id = "call_" + strconv.Itoa(n)
	}
	s[id] = true
	return id
}
