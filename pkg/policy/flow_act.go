package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"conclave/pkg/date"
	"conclave/pkg/text"
)

// judgeAct asks about an act that no grant of its question covers. It returns one verdict for each violation, none when
// a grant covers the call.
func judgeAct(c Call, args []argument) []Verdict {
	if c.Tool.Act == "" {
		return []Verdict{Ask(ruleUndeclared, fmt.Sprintf("%snobody has declared what %s does", c.After(), c.Tool.Name),
			listSinks(args)...)}
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
		reason := "your question has no clear order to " + actWords[c.Tool.Act]
		if slices.ContainsFunc(grants, func(g Grant) bool { return slices.Contains(g.Acts, c.Tool.Act) }) {
			reason = "what your question orders of this kind was done already, and this call would be one more"
		}
		objections = append([]Verdict{Ask(ruleNotRequested, c.After()+reason, listSinks(args)...)},
			slices.DeleteFunc(judgeArguments(c, Grant{}, args), c.isAboutTyped)...)
	}
	if c.Tool.hasAny(irreversible) {
		why := strings.TrimPrefix(objections[0].reason, c.After())
		unnamed := args
		if objections[0].rule == ruleSink { // its reason names the value that it is about
			unnamed = slices.DeleteFunc(slices.Clone(args), func(a argument) bool {
				return slices.Equal(objections[0].sinks, []string{a.text})
			})
		}
		return -1, []Verdict{askIrreversible(c, unnamed, why)}
	}
	return -1, objections
}

// isAboutTyped reports whether a verdict asks about a value that the question has: without an order for the act no
// value is clearly for it, which says nothing about the value.
func (c Call) isAboutTyped(v Verdict) bool {
	q := c.Flow.findQuestion(c.Query)
	return v.rule == ruleSink && q != nil && len(v.sinks) == 1 &&
		containsWhole(normalizeValue(v.sinks[0]), strings.ToLower(q.Text))
}

// actWords says what an act does, as the end of "an order to ...".
var actWords = map[Act]string{
	ActRead: "read it", ActSearch: "search for it", ActFetch: "open it", ActSend: "send anything",
	ActCreate: "create anything", ActChange: "change anything", ActShare: "give anybody access",
	ActDelete: "delete or cancel anything", ActPay: "pay or order anything",
	ActAuthenticate: "change passwords, keys or access", ActControl: "switch or move a device",
	ActExecute: "run anything",
}

// doubtAbout says which words of the question make it doubtful that the grant covers a call of the tool; "" when none
// do. A refusal leaves nothing; a condition leaves what can be changed back where it was made; a sentence that is
// neither an order nor a question, as in a mail that was typed in, leaves all but what cannot be undone and access.
func (g Grant) doubtAbout(t Tool) string {
	isGrave := t.hasAny(irreversible) || t.Act == ActShare
	switch {
	case g.Doubt != "":
		return fmt.Sprintf("your question has %s, which may take its order back", quote(g.Doubt))
	case g.Condition != "" && (isGrave || t.Act == ActSend):
		return fmt.Sprintf("your question has a condition, %s, and only you can decide whether it is met",
			quote(g.Condition))
	case g.Statement != "" && (isGrave || g.Pasted && t.Act == ActSend):
		return fmt.Sprintf("%s in your question may be a text that you quote, and no order", quote(g.Statement))
	}
	return ""
}

// act is a call as [judgeArguments] judges it under one grant.
type act struct {
	Call
	grant    Grant
	question *question
	args     []argument
	to       []string // its destinations, in lower case
	// every value must be the user's own: what the act does cannot be undone, or the question has its destinations from
	// an object
	exact bool
	bound bool // a value of the user binds the call
}

// judgeArguments returns the objections to the arguments of an act under a grant; none when the grant covers them.
func judgeArguments(c Call, g Grant, args []argument) (all []Verdict) {
	a := &act{Call: c, grant: g, question: c.Flow.findQuestion(c.Query), args: args}
	if a.question == nil {
		a.question = &question{}
	}
	var clocks []int
	var values []string
	hasContent := false
	for _, v := range args {
		if v.role == RoleDestination && v.text != "" {
			a.to = append(a.to, normalizeValue(v.text))
		}
		if v.role == RoleTime {
			clocks = append(clocks, date.FindClocks(v.text)...)
		}
		hasContent = hasContent || v.role == RoleContent
		values = append(values, v.text)
	}
	a.exact = c.Tool.hasAny(irreversible) || a.usesFound()
	if doubt := g.doubtAbout(c.Tool); doubt != "" {
		all = append(all, a.ask(ruleDoubt, "%s", doubt))
	}
	for _, v := range args {
		all = append(all, a.judge(v)...)
	}
	if typed := g.listClocks(a.question.Text); len(typed) > 0 && len(clocks) > 0 &&
		!slices.ContainsFunc(clocks, func(m int) bool { return slices.Contains(typed, m) }) {
		all = append(all, a.ask(ruleTime, "the call has none of the times that you named"))
	}
	if !a.bound {
		all = append(all, a.ask(ruleNoUserContent, "nothing in this call of %s is clearly from your question",
			c.Tool.Name))
	}
	if hasContent && len(g.Quoted) > 0 && !slices.ContainsFunc(values, g.isDictated) {
		all = append(all, a.ask(rulePayload, "its content is not the text that you dictated"))
	}
	if len(a.to) > 0 && c.Flow.holdsUnaskedPrivate(a.question, g) {
		all = append(all, a.ask(rulePrivate, "private data that your question did not ask for was read, and could go "+
			"to %s", quoteList(a.to)))
	}
	return all
}

// ask asks about the whole call.
func (a *act) ask(rule, format string, v ...any) Verdict {
	return Ask(rule, a.After()+fmt.Sprintf(format, v...), listSinks(a.args)...)
}

// judge returns the objections to one value. In an exact call every value must be the user's own.
func (a *act) judge(v argument) (all []Verdict) {
	isBinding, ok, value := v.text != "", v.text == "", normalizeValue(v.text)
	switch v.role {
	case RoleSetting:
		isBinding, ok = false, true
	case RoleOption: // the first value has the least power
		isBinding = false
		ok = ok || value == "false" || value != "true" && len(v.values) > 0 && value == strings.ToLower(v.values[0]) ||
			a.grant.hasWord(value)
	case RoleContent:
		all = append(all, judgeContent(a.Call, v, listSinks(a.args))...)
		isTyped := a.question.has(value)
		isBinding = isBinding && isTyped || a.Flow.isMadeOfUserWords(v.text)
		ok = !a.exact || isTyped || v.text == ""
	case RoleTime:
		isTyped, isBound := a.grant.namesTime(a.question.Text, v.text, a.exact)
		isBinding, ok = isTyped, true
		if !isTyped && isBound {
			all = append(all, a.ask(ruleTime, "you did not name this date or time: %s", quote(v.text)))
		}
	case RoleDestination:
		ok = ok || a.coversDestination(value)
	case RoleAmount:
		n, isPlain := parsePlainNumber(value)
		numbers := a.grant.numbers()
		ok = ok || !isPlain && a.namesValue(value) ||
			isPlain && slices.Contains(numbers, n) && (!a.exact || len(numbers) == 1)
	case RoleID:
		ok = ok || a.namesValue(value) || !a.Tool.hasAny(irreversible) && (a.question.isOnlyID(v.text) ||
			a.grant.Times == manyTimes && len(a.to) == 0 && a.question.isFoundID(v.text))
	case RoleURL:
		ok = ok || containsWhole(v.text, a.question.Text)
	default:
		ok = ok || a.namesValue(value)
	}
	a.bound = a.bound || isBinding
	if !ok {
		all = append(all, Ask(ruleSink, a.After()+a.describeValue(v), v.text))
	}
	return all
}

// describeValue is the reason to ask about a value that the grant does not cover. It says so when the user typed it in
// another place or form.
func (a *act) describeValue(v argument) string {
	typed, name := strings.ToLower(a.question.Text), path.Base(v.text)
	isPath := slices.Contains(a.Tool.Paths, v.name)
	hasName := slices.ContainsFunc(strings.Fields(typed), func(word string) bool {
		return path.Base(strings.TrimRight(strings.TrimLeft(word, "\"'(“„«"), ".,;:!?\"')“”»")) == normalizeValue(name)
	})
	switch {
	case isPath && hasName:
		return fmt.Sprintf("it would change the file %s, and your question has %s without this whole path",
			quote(v.text), quote(name))
	case isPath:
		return fmt.Sprintf("it would change the file %s, which your question does not name", quote(v.text))
	case containsWhole(normalizeValue(v.text), typed):
		return fmt.Sprintf("your question has %s%s, but not clearly for this (%s)", quote(v.text),
			strings.TrimSuffix(a.Flow.describeID(v.text), ","), quote(v.name))
	}
	return fmt.Sprintf("your question does not name %s%s for this (%s)", quote(v.text), a.Flow.describeID(v.text),
		quote(v.name))
}

// normalizeValue returns a value as it is compared with the words of a question.
func normalizeValue(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// namesValue reports whether the user typed a value: in the question, and in the clause as a name when the act is
// exact. A device has a name of common words.
func (a *act) namesValue(v string) bool {
	if a.exact && a.Tool.Has(Physical) && !a.Tool.hasAny([]Effect{Destroy, Spend, Authenticate, Exec}) {
		words := a.grant.words()
		return slices.ContainsFunc(findValue(words, v), func(at span) bool {
			return at.from > 0 && !isListed(words, at, nil)
		})
	}
	if a.exact {
		return a.grant.names(v)
	}
	return a.question.has(v)
}

// has reports whether a question has a value, in lower case, that is no stop word, as a whole; a number also not as a
// part of a date.
func (q *question) has(v string) bool {
	all := strings.ToLower(joinedSentence().ReplaceAllString(q.Text, "$1. $2"))
	if isStopWord(v) || !containsWhole(v, all) {
		return false
	}
	if strings.Trim(v, "0123456789") == "" {
		_, all = date.FindDays(all)
		all = listNumber().ReplaceAllString(all, "$1 ")
	}
	return containsWhole(v, all)
}

// coversDestination reports whether the grant permits a destination, in lower case: one that its clause names, an
// address elsewhere in the question that belongs to a name in the clause, or one that a trusted listing or an object
// has to which the clause points.
func (a *act) coversDestination(d string) bool {
	d = strings.TrimLeft(d, "#@")
	g := a.grant
	names := func(v string) bool { return g.namesDestination(strings.TrimLeft(v, "#@"), a.to) }
	if names(d) {
		return true
	}
	if strings.Contains(d, "@") && a.question.has(d) && slices.ContainsFunc(ownParts(d), func(part string) bool {
		return len(part) > 2 && names(part)
	}) {
		return true
	}
	if a.Tool.hasAny(irreversible) {
		return false
	}
	if a.Flow.isFound(a.Query, d) {
		return true
	}
	return slices.ContainsFunc(a.Flow.listings, func(l listing) bool {
		return slices.Contains(l.Values, d) && (namesAny(strings.ToLower(g.Clause), l.About) ||
			g.pointsBack() && namesAny(a.question.Text, l.About) ||
			slices.ContainsFunc(l.Asked, names) && l.isOnlyAddress(d))
	})
}

// ownParts returns the parts of an address that tell whose it is: not the top-level domain, nor a provider that
// everybody may use.
func ownParts(address string) []string {
	local, host, _ := strings.Cut(address, "@")
	labels := strings.Split(host, ".")
	return slices.DeleteFunc(append(splitParts(local), labels[:len(labels)-1]...), func(part string) bool {
		return mailProviders[part]
	})
}

var mailProviders = listWords("gmail googlemail outlook hotmail live msn yahoo icloud gmx web proton protonmail mail " +
	"aol fastmail posteo mailbox zoho yandex")

// isOnlyAddress reports whether a value is the only address of a listing, or is none.
func (l listing) isOnlyAddress(v string) bool {
	return !strings.Contains(v, "@") || !slices.ContainsFunc(l.Values, func(o string) bool {
		return strings.Contains(o, "@") && o != v
	})
}

// usesFound reports whether a destination is covered only by an object to which the question points.
func (a *act) usesFound() bool {
	return slices.ContainsFunc(a.to, func(d string) bool {
		return a.Flow.isFound(a.Query, d) && !a.grant.namesDestination(d, a.to)
	})
}

// namesTime reports whether a date is one of the clause, or of the question when the clause has none, and whether it
// must be: a question with dates binds the call to them. The year binds only an exact call, which needs a date of the
// user in any case: a wrong year of an event does no harm, and users leave it out.
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
	return q.Unasked || !g.pointsBack() && (f.dropped || slices.ContainsFunc(f.questions, func(o question) bool {
		return o.Private && o.Query != q.Query
	}))
}

// judgeContent asks about each address or account number in a content that neither the user nor a trusted tool named:
// the destination could act on it. sinks are the destinations, which a remembered approval is bound to as well.
func judgeContent(c Call, a argument, sinks []string) (all []Verdict) {
	for _, address := range extractAddresses(a.text) {
		isName := strings.Contains(c.Flow.userTextLower, "/"+strings.ToLower(address)) // of a typed path
		if !isName && !c.Flow.isUserValue(address) && !c.Flow.isListed(address) {
			all = append(all, Ask(rulePayload, fmt.Sprintf("%sthe text of %s has %s, which you did not name", c.After(),
				c.Tool.Name, quote(address)), append(slices.Clone(sinks), address)...))
		}
	}
	return all
}

// splitParts splits an address into its parts.
func splitParts(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("@._-+/:", r) })
}
