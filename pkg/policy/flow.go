package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FlowLayer controls information flow. Once untrusted content entered a session, every later call of the model may
// follow an injected instruction, as it may from the start when the prompt has texts of others: calls that send,
// change, destroy, spend or execute then need approval, unless a grant of the question covers them ([DeriveGrants]).
// The decision depends on the declared act and argument roles of the tool and on where values came from (the user, a
// trusted tool, a search), never on what a text looks like.
type FlowLayer struct{}

// Name implements [Layer].
func (FlowLayer) Name() string { return "flow" }

// Rules of the flow layer.
const (
	ruleUnknownFlow  = "unknown_session" // the flow state of the session is unknown
	ruleUndeclared   = "undeclared"      // the tool declares no act
	ruleIrreversible = "grave"           // an irreversible effect, and not every value is the user's
	ruleFetch        = "fetch"           // a URL that neither the user typed nor a search returned
	ruleQuery        = "query"           // a search query with words that are not the user's
	ruleNotRequested = "act"             // no grant of the question for such an act is left
	ruleSink         = "sink"            // a destination, id or number that the question does not name
	// the content holds an address or number that the user did not name, or lacks the dictated text
	rulePayload       = "payload"
	rulePrivate       = "private" // private data was read that the question did not ask for
	ruleTime          = "time"    // a date or time other than the user's
	ruleNoUserContent = "anchor"  // no value of the call comes from the user
	ruleDoubt         = "doubt"   // words of the question that only the user can decide about

	// the file gains power later: something runs, trusts or shares it; always enforced
	ruleObeyed = "obeyed"
	// arguments that cannot be judged: not an object, or too many values; always enforced
	ruleBadArguments = "bad_arguments"
)

// flowRules are the rules that may be monitor-only, see [monitorRules].
var flowRules = []string{
	ruleUnknownFlow, ruleUndeclared, ruleIrreversible, ruleFetch, ruleQuery, ruleNotRequested,
	ruleSink, rulePayload, rulePrivate, ruleTime, ruleNoUserContent, ruleDoubt,
}

// irreversible lists the effects that cannot be undone: a grant covers them only when every value of the call is the
// user's.
var irreversible = []Effect{Destroy, Spend, Authenticate, Physical, Exec}

// neverGranted lists the effects that ask whatever the question says.
var neverGranted = []Effect{Exec}

// guardedEffects lists the effects that this layer judges. Tools without any of them pass.
var guardedEffects = append([]Effect{Egress, Fetch, Mutate}, irreversible...)

// hasAny reports whether the tool may have one of these effects.
func (t Tool) hasAny(effects []Effect) bool { return slices.ContainsFunc(effects, t.Has) }

// Judge asks before a call with a guarded effect when the session is tainted or its flow state is unknown, unless its
// URL and query come from the user or a search and a grant of the question covers its act, or unless the call can be
// undone ([Call.IsUndoable]). A change of a file that gains power later asks in any case. It denies only arguments that
// [flattenArguments] rejects. The user's own calls and a full override pass, and an untainted session without texts of
// others in its prompt.
func (FlowLayer) Judge(_ context.Context, c Call) Verdict {
	switch {
	case c.FromUser, c.HasFullOverride(), !c.Tool.hasAny(guardedEffects):
		return Pass()
	case c.Flow == nil:
		return Ask(ruleUnknownFlow, "it is not known what was read in this conversation, so a text of somebody else "+
			"may have led to this call of "+c.Tool.Name)
	case !c.Flow.IsTainted() && !c.Foreign:
		return Pass()
	case c.IsUndoable(): // its arguments were read
		return Pass()
	case c.Tool.hasAny(neverGranted):
		return askIrreversible(c, nil, "no order of your question covers that")
	}
	args, err := flattenArguments(c)
	if err != nil {
		return Deny(ruleBadArguments, "the arguments are rejected: "+err.Error())
	}
	// One call may have several effects. All violations are reported, so that an approval of one covers no other.
	var all []Verdict
	if c.Tool.Has(Fetch) {
		all = append(all, judgeFetch(c, args)...)
	}
	isSearch := c.Tool.Args.With(RoleQuery) != ""
	// A query goes to the search that the user chose, and carries the question at most before anything was read.
	if isSearch && c.Tool.Has(Egress) && (c.Flow.IsTainted() || c.Flow.HasPrivate()) {
		all = append(all, judgeQuery(c, args)...)
	}
	if c.Tool.needsGrant() {
		all = append(all, judgeAct(c, args)...)
	}
	return combineVerdicts(append(all, judgeObeyed(c)...)...)
}

// needsGrant reports whether the tool has an effect that only a grant covers: any guarded one besides requesting a URL
// and sending a search query.
func (t Tool) needsGrant() bool {
	return t.hasAny(irreversible) || t.Has(Mutate) || t.Has(Egress) && t.Args.With(RoleQuery) == ""
}

// askIrreversible asks about an act that cannot be undone; why is why no grant covers it. It names the objects and
// destinations in args. Such an approval is never remembered.
func askIrreversible(c Call, args []argument, why string) Verdict {
	var about []string
	for _, a := range args {
		if (a.role == RoleID || a.role == RoleDestination) && a.text != "" {
			about = append(about, quoteClipped(a.text, listedBytes)+strings.TrimSuffix(c.Flow.describeID(a.text), ","))
		}
	}
	what := describeEffects(c.Tool)
	if len(about) > 0 {
		what += " (" + joinFirst(about) + ")"
	}
	return Ask(ruleIrreversible, fmt.Sprintf("%s%s %s, and %s", c.After(), c.Tool.Name, what, why))
}

// describeEffects describes the irreversible effects of a tool in an approval request, as the end of "<tool> ...";
// "" when it has none. An unknown tool has all of them.
func describeEffects(t Tool) string {
	words := map[Effect]string{
		Destroy: "can lose data for good", Spend: "spends money", Authenticate: "changes passwords, keys or " +
			"access",
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
// owner of its host, and about every other argument that is not the user's. A call without a URL asks too.
func judgeFetch(c Call, args []argument) (all []Verdict) {
	found, own := false, c.Flow.withPlanWords(c.Query)
	for _, a := range args {
		if a.role != RoleURL {
			all = append(all, judgeBeside(c, a)...)
			continue
		}
		found = true
		if !own.isTypedURL(c.Query, a.text) && !own.isSearchResult(a.text) {
			all = append(all, Ask(ruleFetch, fmt.Sprintf("%sit would open %s, %s", c.After(), quote(a.text),
				own.describeURL(a.text)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleFetch, "it fetches a URL that its arguments do not name"))
	}
	return all
}

// describeURL says why a URL may not be opened without a question, as the end of "it would open <URL>, ...".
func (f *Flow) describeURL(address string) string {
	switch {
	case slices.ContainsFunc(f.searches, func(s searchLinks) bool { return slices.Contains(s.Links, address) }):
		return "which a search found, but is not its next result: the choice could tell something of private data"
	case f.isUserText(address):
		return "which you wrote, but not clearly to have it opened"
	}
	return "which is neither in your question nor a search result"
}

// judgeQuery asks about a search query with words that are not the user's, see [Flow.isUserQuery], because the query
// leaves the machine, and about every other argument that is not the user's. A call without a query asks too.
func judgeQuery(c Call, args []argument) (all []Verdict) {
	found, own := false, c.Flow.withPlanWords(c.Query)
	for _, a := range args {
		switch {
		case a.role == RoleURL && c.Tool.Has(Fetch): // judged as a URL
		case a.role != RoleQuery:
			all = append(all, judgeBeside(c, a)...)
		default:
			found = true
			switch q := c.Flow.findQuestion(c.Query); {
			case own.private && q != nil && slices.ContainsFunc(q.Queries, func(o string) bool { return o != a.text }):
				all = append(all, Ask(ruleQuery, "private data was read, and another search could tell the "+
					"search service something of it by its words: "+quote(a.text), a.text))
			case !own.isUserQuery(a.text):
				all = append(all, Ask(ruleQuery, fmt.Sprintf("%sit would send a search that is not made of your words "+
					"alone: %s", c.After(), quote(a.text)), a.text))
			}
		}
	}
	if !found {
		all = append(all, Ask(ruleQuery, "it searches for a query that its arguments do not name"))
	}
	return all
}

// judgeBeside asks about a value beside a URL or query that is not the user's: it leaves with the request.
func judgeBeside(c Call, a argument) []Verdict {
	rule := ruleSink
	switch a.role {
	case RoleSetting, RoleTime:
		return nil
	case RoleOption:
		if slices.Contains(a.values, a.text) {
			return nil
		}
	case RoleContent:
		rule = rulePayload
	}
	if c.Flow.isUserID(a.text) {
		return nil
	}
	return []Verdict{Ask(rule, fmt.Sprintf("%sit would send %s along (%s), which is not from you", c.After(),
		quote(a.text), quote(a.name)), a.text)}
}

// listSinks returns the values that a remembered approval is bound to: all but content, options and settings.
func listSinks(args []argument) (out []string) {
	for _, a := range args {
		if a.role != RoleContent && a.role != RoleOption && a.role != RoleSetting && a.role != RoleTime &&
			a.text != "" {
			out = append(out, a.text)
		}
	}
	return out
}

// argument is one scalar value in a call's arguments.
type argument struct {
	name   string // its path, see [Args]
	role   Role
	values []string // of an option
	text   string
}

// maxFlowValues is the largest number of values in the arguments of a guarded call; more are rejected.
const maxFlowValues = 4096

// flattenArguments lists every string, number and boolean in the arguments with its role, sorted by argument name; null
// is no value. A value inside of an object has the role of its path, or else of the object. A key that neither the
// facts nor the schema name counts as a value itself, because an injected instruction can hide a destination in a key.
// It rejects arguments that are not an object or have more than maxFlowValues values.
func flattenArguments(c Call) ([]argument, error) {
	var top any
	d := json.NewDecoder(strings.NewReader(string(c.Args)))
	d.UseNumber()
	if err := d.Decode(&top); err != nil {
		return nil, errors.New("not valid JSON")
	}
	object, ok := top.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	w := &argumentWalk{tool: c.Tool}
	_ = json.Unmarshal(c.Schema, &w.schema) // a schema that does not decode names nothing
	w.walkObject("", argument{}, &w.schema, object)
	if len(w.out) > maxFlowValues {
		return nil, fmt.Errorf("more than %d values", maxFlowValues)
	}
	return w.out, nil
}

// schemaNode is the part of a JSON Schema that names arguments.
type schemaNode struct {
	Properties map[string]*schemaNode `json:"properties"`
	Items      *schemaNode            `json:"items"`
	Enum       []any                  `json:"enum"`
}

// argumentWalk collects the values of arguments.
type argumentWalk struct {
	tool   Tool
	schema schemaNode
	out    []argument
}

// walkObject adds the members of an object at a path; outer has the role that undeclared members inherit.
func (w *argumentWalk) walkObject(path string, outer argument, schema *schemaNode, object map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if len(w.out) > maxFlowValues {
			return
		}
		name := key
		if path != "" {
			name = path + "." + key
		}
		inner := outer
		inner.name = name
		var node *schemaNode
		if schema != nil {
			node = schema.Properties[key]
		}
		facts, declared := w.tool.Args[name]
		if declared {
			inner.role, inner.values = facts.Role, facts.Values
		}
		if !declared && node == nil {
			outer.name, outer.text = name, key
			w.out = append(w.out, outer)
		}
		w.walk(inner, node, object[key])
	}
}

// walk adds the values of v, which stands under a.
func (w *argumentWalk) walk(a argument, schema *schemaNode, v any) {
	if schema != nil && a.role == "" {
		for _, e := range schema.Enum {
			if s, ok := e.(string); ok {
				a.values = append(slices.Clone(a.values), s)
			}
		}
	}
	if len(a.values) > 0 && a.role == "" {
		a.role = RoleOption
	}
	switch v := v.(type) {
	case string:
		a.text = v
	case json.Number:
		a.text = v.String()
	case bool:
		a.text = fmt.Sprint(v)
	case []any:
		if schema != nil {
			schema = schema.Items
		}
		for _, x := range v {
			if len(w.out) > maxFlowValues {
				return
			}
			w.walk(a, schema, x)
		}
		return
	case map[string]any:
		w.walkObject(a.name, a, schema, v)
		return
	default:
		return
	}
	w.out = append(w.out, a)
}
