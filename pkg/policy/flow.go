package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/text"
)

// FlowLayer watches where things go. Once a stranger could have written into a session, whatever the model does next may
// be what the stranger wants: calls that send out, change, destroy, spend or run then need the user, unless the
// person's own words ask for exactly this. What passes is decided by values that nobody but the user could have put
// there, never by what a text looks like.
type FlowLayer struct{}

// Name implements [Layer].
func (FlowLayer) Name() string { return "flow" }

// Rules of the flow layer.
const (
	ruleUnknownFlow  = "unknown_session" // nobody knows what went into the session
	ruleIrreversible = "grave"           // it destroys, spends, authenticates, moves something or runs something: always asked
	ruleFetch        = "fetch"           // an address that neither the user typed nor a search returned
	ruleQuery        = "query"           // a search for words that are not the user's
	ruleAct          = "act"             // the user did not ask for anything of the kind
	ruleSink         = "sink"            // it would go somewhere, or change something, that the user did not name
	rulePayload      = "payload"         // the text on its way holds an address or a number that the user did not name
	ruleAnchor       = "anchor"          // nothing in it is the user's
)

// flowRules are the rules that can be watched instead of enforced, see [monitorRules].
var flowRules = []string{ruleUnknownFlow, ruleIrreversible, ruleFetch, ruleQuery, ruleAct, ruleSink, rulePayload, ruleAnchor}

// irreversible effects are asked about whatever the user's words say: what they do cannot be taken back.
var irreversible = []Effect{Destroy, Spend, Authenticate, Physical, Exec}

// guardedEffects effects are those that this layer looks at.
var guardedEffects = append([]Effect{Egress, Fetch, Mutate}, irreversible...)

// Judge implements [Layer].
func (FlowLayer) Judge(_ context.Context, c Call) Verdict {
	hasAny := func(effects []Effect) bool {
		return slices.ContainsFunc(effects, c.Tool.Has)
	}
	switch {
	case c.FromUser, c.hasFullOverride(), !hasAny(guardedEffects):
		return Pass()
	case c.Flow == nil:
		return Ask(ruleUnknownFlow, "nobody knows what went into this session, so "+c.Tool.Name+" needs your word")
	case !c.Flow.IsTainted():
		return Pass()
	case hasAny(irreversible):
		return Ask(ruleIrreversible, fmt.Sprintf("after %s, %s needs your word each time: it %s", c.Flow.describeTaint(), c.Tool.Name, describeEffects(c.Tool)))
	}
	args, err := flattenArguments(c.Tool, c.Args)
	if err != nil {
		return Deny(ruleSink, "the arguments cannot be read: "+err.Error())
	}
	// One call may do several things; each is looked at, and everything that stands against it is told: a yes to one
	// question must cover no other.
	var all []Verdict
	if c.Tool.Has(Fetch) {
		all = append(all, judgeFetch(c, args)...)
	}
	if c.Tool.Query != "" && c.Tool.Has(Egress) {
		all = append(all, judgeQuery(c, args)...)
	} else if c.Tool.Has(Egress) || c.Tool.Has(Mutate) {
		all = append(all, judgeSend(c, args)...)
	}
	return combineVerdicts(all...)
}

// describeEffects say what a grave tool does, for the user who is asked.
func describeEffects(t Tool) string {
	words := map[Effect]string{
		Destroy: "can lose something for good", Spend: "moves money", Authenticate: "changes who may get in",
		Physical: "moves something in the world", Exec: "runs what it is given",
	}
	var out []string
	for _, e := range irreversible {
		if t.Has(e) {
			out = append(out, words[e])
		}
	}
	return strings.Join(out, ", ")
}

// judgeFetch looks at an address before it is fetched: the address itself is a message to whoever owns it.
func judgeFetch(c Call, args []argument) (all []Verdict) {
	found := false
	for _, a := range args {
		if a.name != c.Tool.URL {
			all = append(all, judgeValue(c, a))
			continue
		}
		found = true
		if !c.Flow.isUserText(a.text) && !c.Flow.isSearchResult(a.text) {
			all = append(all, Ask(ruleFetch, fmt.Sprintf("after %s, this address is new: neither did you type it nor did a search return it: %s",
				c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleFetch, "it fetches something, and its arguments do not say what"))
	}
	return all
}

// judgeQuery looks at the words of a search: they leave the machine.
func judgeQuery(c Call, args []argument) (all []Verdict) {
	found := false
	for _, a := range args {
		if a.name != c.Tool.Query {
			all = append(all, judgeValue(c, a))
			continue
		}
		found = true
		if !c.Flow.isUserQuery(a.text) {
			all = append(all, Ask(ruleQuery, fmt.Sprintf("after %s, it would search for words that are not yours: %s", c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleQuery, "it searches for something, and its arguments do not say what"))
	}
	return all
}

// judgeSend looks at what is sent or changed. The user's words must ask for such an act; where it goes must stand in
// them, or in what a trusted tool listed; and the text on its way must not carry addresses of a stranger.
func judgeSend(c Call, args []argument) (all []Verdict) {
	where := listSinks(c, args)
	if !isRequested(c.Tool.Name, c.Flow) {
		all = append(all, Ask(ruleAct, fmt.Sprintf("after %s, %s does what your words do not ask for", c.Flow.describeTaint(), c.Tool.Name), where...))
	}
	sinks, anchored := 0, false
	for _, a := range args {
		switch {
		case isContent(c.Tool, a.name):
			anchored = anchored || c.Flow.isMostlyUserWords(a.text)
			for _, address := range extractAddresses(a.text) {
				if !c.Flow.isUserValue(address) && !c.Flow.isTrustedValue(address) {
					all = append(all, Ask(rulePayload, fmt.Sprintf("after %s, its text holds an address or a number that you did not name: %s",
						c.Flow.describeTaint(), text.OneLine(address, 200)), append(slices.Clone(where), address)...))
				}
			}
		case isSmallValue(c, a): // too little to say anything, and a sign of what the user meant
			anchored = anchored || c.Flow.isUserDate(a.text)
		default:
			sinks++
			all = append(all, judgeValue(c, a))
		}
	}
	if sinks == 0 && !anchored {
		all = append(all, Ask(ruleAnchor, fmt.Sprintf("after %s, nothing in this call of %s is in your words", c.Flow.describeTaint(), c.Tool.Name), where...))
	}
	return all
}

// judgeValue passes a value that the user typed, that a trusted tool listed, or that is too small to say anything.
func judgeValue(c Call, a argument) Verdict {
	if isSmallValue(c, a) || c.Flow.isUserValue(a.text) || c.Flow.isTrustedValue(a.text) {
		return Pass()
	}
	return Ask(ruleSink, fmt.Sprintf("after %s, %s is not in your words: %s", c.Flow.describeTaint(), text.OneLine(a.name, 40), text.OneLine(a.text, 200)), a.text)
}

// listSinks are the values that a remembered answer is tied to: all that is not free text.
func listSinks(c Call, args []argument) (out []string) {
	for _, a := range args {
		if !isContent(c.Tool, a.name) && !isSmallValue(c, a) {
			out = append(out, a.text)
		}
	}
	return out
}

// argument is one value in a call's arguments, under the name of the argument that it is part of.
type argument struct {
	name     string // of the outermost
	text     string
	isScalar bool // it was a number or a truth value
}

// maxFlowValues bounds how many values a call may have for this layer to look at them.
const maxFlowValues = 4096

// flattenArguments lists every value in the arguments, keys of inner objects among them: a stranger can write those too.
func flattenArguments(t Tool, raw json.RawMessage) ([]argument, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, fmt.Errorf("they are no object")
	}
	var out []argument
	var walk func(name string, v any) error
	walk = func(name string, v any) error {
		if len(out) >= maxFlowValues {
			return fmt.Errorf("more than %d values", maxFlowValues)
		}
		switch v := v.(type) {
		case string:
			out = append(out, argument{name: name, text: v})
		case json.Number:
			out = append(out, argument{name: name, text: v.String(), isScalar: true})
		case bool:
			out = append(out, argument{name: name, text: fmt.Sprint(v), isScalar: true})
		case []any:
			for _, x := range v {
				if err := walk(name, x); err != nil {
					return err
				}
			}
		case map[string]any:
			for _, k := range slices.Sorted(keys(v)) {
				if !isFieldName(k) {
					out = append(out, argument{name: name, text: k})
				}
				if err := walk(argumentName(t, name, k), v[k]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	names := make([]string, 0, len(top))
	for k := range top {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, name := range names {
		d := json.NewDecoder(strings.NewReader(string(top[name])))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s cannot be read", text.Clip(name, 40))
		}
		if err := walk(name, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// argumentName is the name that a value inside of an object goes by. Below a sink or below free text everything is the same;
// elsewhere it is the inner name that counts.
func argumentName(t Tool, outer, key string) string {
	if slices.Contains(t.Sinks, outer) || isContent(t, outer) || outer == t.URL || outer == t.Query {
		return outer
	}
	return key
}

func keys(m map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// isFieldName reports whether a key is a name of a field and not a message.
func isFieldName(k string) bool {
	if len(k) > 40 {
		return false
	}
	for _, r := range k {
		if r != '_' && r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return false
		}
	}
	return true
}

// freeTextNames are names under which tools that do not say so themselves take free text.
var freeTextNames = map[string]bool{
	"body": true, "content": true, "text": true, "message": true, "subject": true, "title": true, "description": true, "summary": true,
	"note": true, "notes": true, "comment": true, "caption": true, "location": true, "markdown": true, "html": true,
}

// isContent reports whether an argument is free text on its way somewhere. Everything that was not said to be is a sink.
func isContent(t Tool, name string) bool {
	if len(t.Sinks) > 0 || len(t.Content) > 0 {
		return slices.Contains(t.Content, name) && !slices.Contains(t.Sinks, name)
	}
	return freeTextNames[name]
}
