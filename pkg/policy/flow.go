package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"conclave/pkg/text"
)

// FlowLayer controls information flow. Once untrusted content entered a session, every later call of the model may follow
// an injected instruction: calls that send, change, destroy, spend or execute then need approval, unless the user's own
// words ask for exactly this call. The decision depends on where values came from (the user, a trusted tool, a search),
// never on what a text looks like.
type FlowLayer struct{}

// Name implements [Layer].
func (FlowLayer) Name() string { return "flow" }

// Rules of the flow layer.
const (
	ruleUnknownFlow   = "unknown_session" // the flow state of the session is unknown
	ruleIrreversible  = "grave"           // an irreversible effect: asks each time
	ruleFetch         = "fetch"           // a URL that neither the user typed nor a search returned
	ruleQuery         = "query"           // a search query with words that are not the user's
	ruleNotRequested  = "act"             // the user's words do not ask for such a call
	ruleSink          = "sink"            // a destination or target that the user did not name
	rulePayload       = "payload"         // the content holds an address or number that the user did not name
	ruleNoUserContent = "anchor"          // no value of the call comes from the user
)

// flowRules are the rules that may be monitor-only, see [monitorRules].
var flowRules = []string{ruleUnknownFlow, ruleIrreversible, ruleFetch, ruleQuery, ruleNotRequested, ruleSink, rulePayload, ruleNoUserContent}

// irreversible lists the effects that ask whatever the user's words say, because they cannot be undone.
var irreversible = []Effect{Destroy, Spend, Authenticate, Physical, Exec}

// guardedEffects lists the effects that this layer judges. Tools without any of them pass.
var guardedEffects = append([]Effect{Egress, Fetch, Mutate}, irreversible...)

// Judge asks before a call with a guarded effect when the session is tainted or its flow state is unknown: always for
// an irreversible effect, otherwise for each URL, query, destination and address in the content that does not come from
// the user, a trusted tool or a search. It denies only arguments that [flattenArguments] rejects. The user's own calls,
// a full override and an untainted session pass.
func (FlowLayer) Judge(_ context.Context, c Call) Verdict {
	hasAny := func(effects []Effect) bool {
		return slices.ContainsFunc(effects, c.Tool.Has)
	}
	switch {
	case c.FromUser, c.hasFullOverride(), !hasAny(guardedEffects):
		return Pass()
	case c.Flow == nil:
		return Ask(ruleUnknownFlow, "it is unknown what this session has read, so "+c.Tool.Name+" needs your approval")
	case !c.Flow.IsTainted():
		return Pass()
	case hasAny(irreversible):
		return Ask(ruleIrreversible, fmt.Sprintf("after %s, %s needs your approval each time: it %s", c.Flow.describeTaint(), c.Tool.Name, describeEffects(c.Tool)))
	}
	args, err := flattenArguments(c.Tool, c.Args)
	if err != nil {
		return Deny(ruleSink, "the arguments are rejected: "+err.Error())
	}
	// One call may have several effects. All violations are reported, so that an approval of one covers no other.
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

// describeEffects describes the irreversible effects of a tool in an approval request, as the end of "it ..."; "" when
// it has none. An unknown tool has all of them.
func describeEffects(t Tool) string {
	words := map[Effect]string{
		Destroy: "can lose data irrecoverably", Spend: "spends money", Authenticate: "changes passwords, keys or access",
		Physical: "controls a physical device", Exec: "runs code or commands",
	}
	var out []string
	for _, e := range irreversible {
		if t.Has(e) {
			out = append(out, words[e])
		}
	}
	return strings.Join(out, ", ")
}

// judgeFetch asks about a URL that is neither the user's text nor a search result, because a URL carries data to the
// owner of its host, and about every other argument that [judgeValue] does not pass. A call without a URL asks too. The
// verdicts may be passes; none means that it has no objection. c.Flow must not be nil.
func judgeFetch(c Call, args []argument) (all []Verdict) {
	found := false
	for _, a := range args {
		if a.name != c.Tool.URL {
			all = append(all, judgeValue(c, a))
			continue
		}
		found = true
		if !c.Flow.isUserText(a.text) && !c.Flow.isSearchResult(a.text) {
			all = append(all, Ask(ruleFetch, fmt.Sprintf("after %s, this URL comes neither from you nor from a search result: %s",
				c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleFetch, "it fetches a URL that its arguments do not name"))
	}
	return all
}

// judgeQuery asks about a search query with words that are not the user's, see [Flow.isUserQuery], because the query
// leaves the machine, and about every other argument that [judgeValue] does not pass. A call without a query asks too.
// The verdicts may be passes; none means that it has no objection. c.Flow must not be nil.
func judgeQuery(c Call, args []argument) (all []Verdict) {
	found := false
	for _, a := range args {
		if a.name != c.Tool.Query {
			all = append(all, judgeValue(c, a))
			continue
		}
		found = true
		if !c.Flow.isUserQuery(a.text) {
			all = append(all, Ask(ruleQuery, fmt.Sprintf("after %s, the search query contains words that are not yours: %s", c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleQuery, "it searches for a query that its arguments do not name"))
	}
	return all
}

// judgeSend judges a call that sends or changes something. It asks when the user's words do not ask for such a call,
// about each destination that is neither the user's nor listed by a trusted tool, about each other address or number in
// the content, and, for a call without a destination, when neither its content nor a date in it is the user's. It
// returns one verdict for each violation, and passes. c.Flow must not be nil.
func judgeSend(c Call, args []argument) (all []Verdict) {
	destinations := listSinks(c, args)
	if !isRequested(c.Tool.Name, c.Flow) {
		all = append(all, Ask(ruleNotRequested, fmt.Sprintf("after %s, you did not ask for what %s does", c.Flow.describeTaint(), c.Tool.Name), destinations...))
	}
	sinks, anchored := 0, false
	for _, a := range args {
		switch {
		case isContent(c.Tool, a.name):
			anchored = anchored || c.Flow.isMostlyUserWords(a.text)
			for _, address := range extractAddresses(a.text) {
				if !c.Flow.isUserValue(address) && !c.Flow.isTrustedValue(address) {
					all = append(all, Ask(rulePayload, fmt.Sprintf("after %s, its content contains an address or number that you did not name: %s",
						c.Flow.describeTaint(), text.OneLine(address, 200)), append(slices.Clone(destinations), address)...))
				}
			}
		case isSmallValue(c, a): // carries no data; a date of the user shows that the call is theirs
			anchored = anchored || c.Flow.isUserDate(a.text)
		default:
			sinks++
			all = append(all, judgeValue(c, a))
		}
	}
	if sinks == 0 && !anchored {
		all = append(all, Ask(ruleNoUserContent, fmt.Sprintf("after %s, this call of %s contains nothing that you wrote", c.Flow.describeTaint(), c.Tool.Name), destinations...))
	}
	return all
}

// judgeValue passes a value that the user typed, that a trusted tool listed, or that is too small to carry data. It asks
// about every other value.
func judgeValue(c Call, a argument) Verdict {
	if isSmallValue(c, a) || c.Flow.isUserValue(a.text) || c.Flow.isTrustedValue(a.text) {
		return Pass()
	}
	return Ask(ruleSink, fmt.Sprintf("after %s, you did not name this value of %s: %s", c.Flow.describeTaint(), text.OneLine(a.name, 40), text.OneLine(a.text, 200)), a.text)
}

// listSinks returns the values that a remembered approval is bound to: all but free text and small values.
func listSinks(c Call, args []argument) (out []string) {
	for _, a := range args {
		if !isContent(c.Tool, a.name) && !isSmallValue(c, a) {
			out = append(out, a.text)
		}
	}
	return out
}

// argument is one scalar value in a call's arguments.
type argument struct {
	name     string // see argumentName for values inside of objects
	text     string
	isScalar bool // a JSON number or boolean
}

// maxFlowValues is the largest number of values in the arguments of a guarded call; more are rejected.
const maxFlowValues = 4096

// flattenArguments lists every string, number and boolean in the arguments, sorted by argument name; null is no value.
// Keys of inner objects that are not field names count as values, because an injected instruction can hide a
// destination in a key. It rejects arguments that are not an object or have more than maxFlowValues values.
func flattenArguments(t Tool, raw json.RawMessage) ([]argument, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, errors.New("not a JSON object")
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
			for _, k := range slices.Sorted(maps.Keys(v)) {
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
	for _, name := range slices.Sorted(maps.Keys(top)) {
		d := json.NewDecoder(strings.NewReader(string(top[name])))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s is not valid JSON", text.Clip(name, 40))
		}
		if err := walk(name, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// argumentName returns the name under which a value inside of an object is judged: the outer name below a sink, content,
// URL or query argument, so that an inner key cannot reclassify a value; otherwise the inner key.
func argumentName(t Tool, outer, key string) string {
	if slices.Contains(t.Sinks, outer) || isContent(t, outer) || outer == t.URL || outer == t.Query {
		return outer
	}
	return key
}

// isFieldName reports whether a key looks like a field name: at most 40 ASCII letters, digits, hyphens and underscores.
// The empty key does.
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

// freeTextNames are the argument names that count as content for tools that declare neither sinks nor content.
var freeTextNames = map[string]bool{
	"body": true, "content": true, "text": true, "message": true, "subject": true, "title": true, "description": true, "summary": true,
	"note": true, "notes": true, "comment": true, "caption": true, "location": true, "markdown": true, "html": true,
}

// isContent reports whether an argument is free text, as the tool declares it or by its name. Every other argument counts
// as a sink.
func isContent(t Tool, name string) bool {
	if len(t.Sinks) > 0 || len(t.Content) > 0 {
		return slices.Contains(t.Content, name) && !slices.Contains(t.Sinks, name)
	}
	return freeTextNames[name]
}
