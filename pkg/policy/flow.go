package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"conclave/pkg/date"
	"conclave/pkg/text"
)

// FlowLayer controls information flow. Once untrusted content entered a session, every later call of the model may
// follow an injected instruction: calls that send, change, destroy, spend or execute then need approval, unless a grant
// of the question covers them ([DeriveGrants]). The decision depends on the declared act and argument roles of the tool
// and on where values came from (the user, a trusted tool, a search), never on what a text looks like.
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

	// arguments that cannot be judged: not an object, or too many values; always enforced
	ruleBadArguments = "bad_arguments"
)

// flowRules are the rules that may be monitor-only, see [monitorRules].
var flowRules = []string{
	ruleUnknownFlow, ruleUndeclared, ruleIrreversible, ruleFetch, ruleQuery, ruleNotRequested,
	ruleSink, rulePayload, rulePrivate, ruleTime, ruleNoUserContent,
}

// irreversible lists the effects that cannot be undone: a grant covers them only when every value of the call is the
// user's.
var irreversible = []Effect{Destroy, Spend, Authenticate, Physical, Exec}

// neverGranted lists the effects that ask whatever the question says.
var neverGranted = []Effect{Physical, Exec}

// guardedEffects lists the effects that this layer judges. Tools without any of them pass.
var guardedEffects = append([]Effect{Egress, Fetch, Mutate}, irreversible...)

// hasAny reports whether the tool may have one of these effects.
func (t Tool) hasAny(effects []Effect) bool { return slices.ContainsFunc(effects, t.Has) }

// Judge asks before a call with a guarded effect when the session is tainted or its flow state is unknown, unless its
// URL and query come from the user or a search and a grant of the question covers its act. It denies only arguments
// that [flattenArguments] rejects. The user's own calls, a full override and an untainted session pass.
func (FlowLayer) Judge(_ context.Context, c Call) Verdict {
	switch {
	case c.FromUser, c.HasFullOverride(), !c.Tool.hasAny(guardedEffects):
		return Pass()
	case c.Flow == nil:
		return Ask(ruleUnknownFlow, "it is unknown what this session has read, so "+c.Tool.Name+" needs your approval")
	case !c.Flow.IsTainted():
		return Pass()
	case c.Tool.hasAny(neverGranted):
		return askIrreversible(c)
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
	if isSearch && c.Tool.Has(Egress) {
		all = append(all, judgeQuery(c, args)...)
	}
	if c.Tool.needsGrant() {
		all = append(all, judgeAct(c, args)...)
	}
	return combineVerdicts(all...)
}

// needsGrant reports whether the tool has an effect that only a grant covers: any guarded one besides requesting a URL
// and sending a search query.
func (t Tool) needsGrant() bool {
	return t.hasAny(irreversible) || t.Has(Mutate) || t.Has(Egress) && t.Args.With(RoleQuery) == ""
}

// askIrreversible asks about an act that cannot be undone. Such an approval is never remembered.
func askIrreversible(c Call) Verdict {
	return Ask(ruleIrreversible, fmt.Sprintf("after %s, %s needs your approval each time: it %s",
		c.Flow.describeTaint(), c.Tool.Name, describeEffects(c.Tool)))
}

// describeEffects describes the irreversible effects of a tool in an approval request, as the end of "it ..."; "" when
// it has none. An unknown tool has all of them.
func describeEffects(t Tool) string {
	words := map[Effect]string{
		Destroy: "can lose data irrecoverably", Spend: "spends money", Authenticate: "changes passwords, keys or " +
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
			all = append(append(all, judgeValue(c, Grant{}, a)), judgeOwnContent(c, a)...)
			continue
		}
		found = true
		if !own.isUserText(a.text) && !own.isSearchResult(a.text) {
			all = append(all, Ask(ruleFetch, fmt.Sprintf("after %s, this URL comes neither from you nor from a "+
				"search result: %s",
				c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
		}
	}
	if !found {
		all = append(all, Ask(ruleFetch, "it fetches a URL that its arguments do not name"))
	}
	return all
}

// judgeQuery asks about a search query with words that are not the user's, see [Flow.isUserQuery], because the query
// leaves the machine, and about every other argument that is not the user's. A call without a query asks too.
func judgeQuery(c Call, args []argument) (all []Verdict) {
	found, own := false, c.Flow.withPlanWords(c.Query)
	for _, a := range args {
		switch {
		case a.role == RoleURL && c.Tool.Has(Fetch): // judged as a URL
		case a.role != RoleQuery:
			all = append(append(all, judgeValue(c, Grant{}, a)), judgeOwnContent(c, a)...)
		default:
			found = true
			if !own.isUserQuery(a.text) {
				all = append(all, Ask(ruleQuery, fmt.Sprintf("after %s, the search query contains words that are not "+
					"yours: %s", c.Flow.describeTaint(), text.OneLine(a.text, 200)), a.text))
			}
		}
	}
	if !found {
		all = append(all, Ask(ruleQuery, "it searches for a query that its arguments do not name"))
	}
	return all
}

// judgeOwnContent asks about content beside a URL or query that is not the user's: it leaves with the request.
func judgeOwnContent(c Call, a argument) []Verdict {
	if a.role != RoleContent || c.Flow.isUserValue(a.text) {
		return nil
	}
	return []Verdict{Ask(rulePayload, fmt.Sprintf("after %s, this content of %s is not yours: %s",
		c.Flow.describeTaint(), c.Tool.Name, text.OneLine(a.text, 200)), a.text)}
}

// judgeAct asks about an act that no grant of its question covers. It returns one verdict for each violation, none when
// a grant covers the call.
func judgeAct(c Call, args []argument) []Verdict {
	if c.Tool.Act == "" {
		return []Verdict{Ask(ruleUndeclared, fmt.Sprintf("after %s, %s needs your approval: its facts do not declare "+
			"what it does", c.Flow.describeTaint(), c.Tool.Name), listSinks(args)...)}
	}
	at, objections := chooseGrant(c, c.Flow.Grants(c.Query), args)
	if at >= 0 {
		return nil
	}
	return objections
}

// chooseGrant returns the first grant that covers the call, and -1 with the objections when none does. c.Flow must not
// be nil.
func chooseGrant(c Call, grants []Grant, args []argument) (at int, objections []Verdict) {
	tried := false
	for i, g := range grants {
		if !g.has(c.Tool.Act) {
			continue
		}
		found := judgeArguments(c, g, args)
		if len(found) == 0 {
			return i, nil
		}
		if !tried {
			tried, objections = true, found
		}
	}
	if !tried {
		reason := fmt.Sprintf("after %s, your question does not ask %s to %s something, or it did so as often as you "+
			"asked", c.Flow.describeTaint(), c.Tool.Name, c.Tool.Act)
		objections = append([]Verdict{Ask(ruleNotRequested, reason, listSinks(args)...)},
			judgeArguments(c, Grant{}, args)...)
	}
	if c.Tool.hasAny(irreversible) {
		return -1, []Verdict{askIrreversible(c)}
	}
	return -1, objections
}

// actValues is what the arguments of an act hold, as [judgeArguments] collects it.
type actValues struct {
	values     []string
	clocks     []int
	hasContent bool
	bound      bool // a value of the user binds the call
	exact      bool // every value must be the user's own: see [actValues.add]
	sends      bool // it has a destination
}

// judgeArguments returns the objections to the arguments of an act under a grant; none when the grant covers them.
func judgeArguments(c Call, g Grant, args []argument) (all []Verdict) {
	q := c.Flow.findQuestion(c.Query)
	if q == nil {
		q = &question{}
	}
	v := actValues{exact: c.Tool.hasAny(irreversible) || usesPlace(c, g, args)}
	for _, a := range args {
		all = append(all, v.add(c, g, q, a, args)...)
	}
	object := func(rule, format string, a ...any) {
		all = append(all, Ask(rule, "after "+c.Flow.describeTaint()+", "+fmt.Sprintf(format, a...), listSinks(args)...))
	}
	if typed := g.listClocks(q.Text); len(typed) > 0 && len(v.clocks) > 0 &&
		!slices.ContainsFunc(v.clocks, func(m int) bool { return slices.Contains(typed, m) }) {
		object(ruleTime, "the call has none of the times that you named")
	}
	if !v.bound {
		object(ruleNoUserContent, "this call of %s contains nothing that you wrote", c.Tool.Name)
	}
	if v.hasContent && len(g.Quoted) > 0 && !slices.ContainsFunc(v.values, g.isDictated) {
		object(rulePayload, "its content is not the text that you dictated")
	}
	if v.sends && c.Tool.Has(Egress) && c.Flow.holdsUnaskedPrivate(q, g) {
		object(rulePrivate, "%s could send private data that your question did not ask for", c.Tool.Name)
	}
	return all
}

// add collects one value and returns the objections to it alone. In an exact call, which cannot be undone or whose
// destination comes from a place that the question gives, every other value must be the user's own.
func (v *actValues) add(c Call, g Grant, q *question, a argument, args []argument) (all []Verdict) {
	v.values = append(v.values, a.text)
	if one := judgeValue(c, g, a); one.kind != verdictPass {
		all = append(all, one)
	}
	// whether the value binds the call; whether what cannot be undone may have it
	isBinding, isUsers := a.text != "", true
	switch a.role {
	case RoleSetting:
		isBinding = false
	case RoleOption:
		isBinding, isUsers = false, a.text == "" || a.text == "false" || g.namesOption(a.text)
	case RoleContent:
		v.hasContent = true
		all = append(all, judgeContent(c, a, listSinks(args))...)
		isTyped := c.Flow.isUserValue(a.text)
		isUsers = isTyped && hasWhole(q.Text, a.text)
		isBinding = isBinding && isTyped || c.Flow.isMadeOfUserWords(a.text)
	case RoleTime:
		v.clocks = append(v.clocks, date.FindClocks(a.text)...)
		isTyped, isBound := g.namesTime(q.Text, a.text, v.exact)
		all = append(all, judgeTime(c, a, args, isTyped, isBound)...)
		isBinding = isTyped
	case RoleDestination:
		v.sends = v.sends || a.text != ""
		isUsers = a.text == "" || g.namesOwnDestination(c.Flow, q.Text, a.text) || !c.Tool.hasAny(irreversible) &&
			c.Flow.isFound(c.Query, g, a.text)
	case RoleAmount:
		n, ok := parsePlainNumber(strings.TrimSpace(a.text))
		isUsers = a.text == "" || ok && g.hasNumber(n) || !ok && g.names(a.text)
	case RoleURL: // [judgeValue] accepts one of any question
		isUsers = containsWhole(a.text, q.Text)
	default:
		isUsers = a.text == "" || g.names(a.text)
	}
	if v.exact && !isUsers {
		all = append(all, askNotOwn(c, a, args))
	}
	v.bound = v.bound || isBinding
	return all
}

// askNotOwn asks about a value of an exact call that is not the user's own.
func askNotOwn(c Call, a argument, args []argument) Verdict {
	if c.Tool.hasAny(irreversible) {
		return askIrreversible(c)
	}
	return Ask(ruleSink, fmt.Sprintf("after %s, its destination comes from there, so that this value of %s must be "+
		"yours: %s",
		c.Flow.describeTaint(), text.OneLine(a.name, 40), text.OneLine(a.text, 200)), listSinks(args)...)
}

// judgeTime objects to a date or time that binds the call and that the user did not name.
func judgeTime(c Call, a argument, args []argument, isTyped, isBound bool) []Verdict {
	if isTyped || !isBound {
		return nil
	}
	return []Verdict{Ask(ruleTime, fmt.Sprintf("after %s, you did not name this date or time: %s",
		c.Flow.describeTaint(), text.OneLine(a.text, 60)), listSinks(args)...)}
}

// namesOption reports whether the clause has an option of an act that cannot be undone, as a word before any exception
// that is no stop word.
func (g Grant) namesOption(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	for _, w := range splitWords(g.Clause) {
		if isException(word{lower: w}) {
			break
		}
		if w == v && !isStopWord(v) {
			return true
		}
	}
	return g.names(v)
}

// hasWhole reports whether a question has a value, ignoring case, that is no stop word; true for an empty value.
func hasWhole(question, value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	return !isStopWord(v) && containsWhole(v, strings.ToLower(question))
}

// namesOwnDestination reports whether a destination that the grant covers is the user's own, and not only a value of a
// listing: the clause names it, the question has it, or an earlier question that the clause points back to.
func (g Grant) namesOwnDestination(f *Flow, question, destination string) bool {
	d := strings.ToLower(strings.TrimSpace(destination))
	return g.isNamedDestination(d) || hasWhole(question, d) || g.Refers && !isStopWord(d) && f.isUserValue(d)
}

// namesTime reports whether a date is one of the clause, or of the question when the clause has none, and whether it
// must be: a question with dates binds the call to them. The year binds only what cannot be undone (exact), which needs
// a date of the user in any case: a wrong year of an event does no harm, and users leave it out.
func (g Grant) namesTime(question, value string, exact bool) (isTyped, isBound bool) {
	typed, _ := date.FindDays(g.Clause)
	if len(typed) == 0 {
		typed, _ = date.FindDays(question)
	}
	if exact {
		return areAmong(value, typed, date.Day.Matches), true
	}
	return areAmong(value, typed, date.Day.MatchesDay), len(typed) > 0
}

// listClocks returns the times of day in the clause, or in the question when the clause has none.
func (g Grant) listClocks(question string) []int {
	if own := date.FindClocks(g.Clause); len(own) > 0 {
		return own
	}
	return date.FindClocks(question)
}

// isDictated reports whether a content is a text that the question dictates, or little more than that. A dictated text
// may have placeholders in braces, which stand for any words.
func (g Grant) isDictated(content string) bool {
	s := strings.ToLower(strings.TrimSpace(content))
	return slices.ContainsFunc(g.Quoted, func(q string) bool {
		rest, fixed := s, 0
		for _, part := range placeholder().Split(q, -1) {
			_, after, ok := strings.Cut(rest, part)
			if !ok {
				return false
			}
			rest, fixed = after, fixed+len(part)
		}
		return fixed > 0 && len(s) <= 2*len(q)+80
	})
}

// placeholder matches a part of a dictated text that the model fills in.
var placeholder = text.Pattern(`\{[^{}]*\}|\[[^\[\]]*\]|<[^<>]*>`)

// holdsUnaskedPrivate reports whether private data is in the session that the question does not ask for: read for it
// without its words asking, or read for another question, also one that is no longer stored, unless the clause of the
// grant points back to that.
func (f *Flow) holdsUnaskedPrivate(q *question, g Grant) bool {
	return q.Unasked || !g.Refers && (f.dropped || slices.ContainsFunc(f.questions, func(o question) bool {
		return o.Private && o.Query != q.Query
	}))
}

// judgeValue passes a value whose role allows it: a destination that the grant covers, an id of a result (see
// [Flow.isResultID]), a number or any other value that the user typed, an option of the facts, content without foreign
// addresses. Dates are judged with the call. It asks about every other value.
func judgeValue(c Call, g Grant, a argument) Verdict {
	f, ok := c.Flow, a.text == ""
	switch a.role {
	case RoleSetting, RoleTime:
		ok = true
	case RoleOption:
		ok = ok || slices.Contains(a.values, a.text) || f.isUserValue(a.text)
	case RoleContent: // the caller judges it with the destinations
		ok = true
	case RoleDestination:
		ok = ok || g.coversDestination(f, a.text) || f.isFound(c.Query, g, a.text)
	case RoleAmount:
		ok = ok || f.isUserNumber(a.text)
	case RoleURL:
		ok = ok || f.isUserText(a.text)
	case RoleID:
		ok = ok || f.isUserID(a.text) || f.isResultID(c.Query, a.text)
	default:
		ok = ok || f.isUserID(a.text)
	}
	if ok {
		return Pass()
	}
	return Ask(ruleSink, fmt.Sprintf("after %s, your question does not name this value of %s: %s", f.describeTaint(),
		text.OneLine(a.name, 40), text.OneLine(a.text, 200)), a.text)
}

// judgeContent asks about each address or account number in a content that neither the user nor a trusted tool named:
// the destination could act on it. sinks are the destinations, which a remembered approval is bound to as well.
func judgeContent(c Call, a argument, sinks []string) (all []Verdict) {
	for _, address := range extractAddresses(a.text) {
		if !c.Flow.isUserValue(address) && !c.Flow.isListed(address) {
			all = append(all, Ask(rulePayload, fmt.Sprintf("after %s, its content contains an address or number that "+
				"you did not name: %s",
				c.Flow.describeTaint(), text.OneLine(address, 200)), append(slices.Clone(sinks), address)...))
		}
	}
	return all
}

// coversDestination reports whether the grant permits a destination: one that its clause names, an address elsewhere in
// the user's words that belongs to a name in the clause, a name that a clause without one points back to, or a value of
// a trusted listing that the clause points to, by the words that were looked up or by the noun of the listing.
func (g Grant) coversDestination(f *Flow, destination string) bool {
	d := strings.TrimLeft(strings.ToLower(strings.TrimSpace(destination)), "#@")
	if d == "" {
		return false
	}
	named := false
	if g.isNamedDestination(d) {
		return true
	}
	for _, to := range g.To {
		named = named || isProperName(to, g.Clause)
	}
	question := f.findText(g)
	if f.isUserValue(d) {
		isAddress := strings.ContainsAny(d, "@/.") || strings.ContainsAny(d, "0123456789") && len(d) > 4
		switch {
		case isAddress && slices.ContainsFunc(g.To, func(to string) bool {
			return len(to) > 2 && slices.Contains(splitParts(d), to)
		}):
			return true
		case !named && len(g.Acts) > 0 && (isAddress || isQuoted(d, question) || g.Refers &&
			isProperName(d, f.userText)):
			return true
		}
	}
	clause := strings.ToLower(g.Clause)
	return slices.ContainsFunc(f.listings, func(l listing) bool {
		if !slices.Contains(l.Values, d) {
			return false
		}
		return namesAny(clause, l.About) || !named && g.Refers && namesAny(question, l.About) ||
			slices.ContainsFunc(l.Asked, g.isPartOfDestination)
	})
}

// isPartOfDestination reports whether a value that was looked up, in lower case, is a destination that the clause
// names, or whole words of one. A stop word is none: it could look up any list.
func (g Grant) isPartOfDestination(asked string) bool {
	return !isStopWord(asked) && slices.ContainsFunc(g.To, func(to string) bool { return containsWhole(asked, to) })
}

// findText returns the text of the question that the grant belongs to.
func (f *Flow) findText(g Grant) string {
	for _, q := range slices.Backward(f.questions) {
		if slices.ContainsFunc(q.Grants, func(o Grant) bool { return o.Clause == g.Clause }) {
			return q.Text
		}
	}
	return ""
}

// isQuoted reports whether a text has a value, given in lower case, as a quotation.
func isQuoted(value, in string) bool {
	for _, m := range quotePattern().FindAllStringSubmatch(strings.ToLower(in), -1) {
		if slices.Contains(m[1:], value) {
			return true
		}
	}
	return false
}

// splitParts splits an address into its parts.
func splitParts(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("@._-+/:", r) })
}

// isProperName reports whether the text writes a name, given in lower case, as a name: capitalized, quoted, or an
// address.
func isProperName(name, in string) bool {
	if strings.ContainsAny(name, "@._/0123456789") {
		return true
	}
	lower := strings.ToLower(in)
	for from := 0; len(lower) == len(in); {
		i := strings.Index(lower[from:], name)
		if i < 0 {
			return false
		}
		i += from
		if isCapitalized(in[i:]) || i > 0 && strings.ContainsRune(`'"`, rune(in[i-1])) {
			return true
		}
		from = i + len(name)
	}
	return false
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
