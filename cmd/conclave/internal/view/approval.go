package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// PrintApproval prints everything there is to know before a decision, or how it was decided. Ages and expiry are
// relative to now. The arguments are complete and hidden characters escaped: what is not shown was not approved.
func PrintApproval(w io.Writer, a subjects.Approval, now time.Time) {
	state := "expires in " + formatRemaining(a.Expires.Sub(now))
	switch {
	case a.State != subjects.ApprovalPending && a.By != "":
		state = a.State + " by " + term.Visible(a.By)
	case a.State != subjects.ApprovalPending:
		state = a.State
	case !now.Before(a.Expires):
		state = "expired"
	}
	if a.Form != nil {
		defer printForm(w, *a.Form)
	}
	fmt.Fprintf(w, "%s  %s requests %s\n", term.Paint(w, term.Yellow, term.Visible(a.ID)), term.Visible(a.Caller),
		term.Paint(w, term.Bold, term.Visible(a.Tool)))
	printAsked(w, a.ApprovalRequest, state, now)
	printCall(w, a.ApprovalRequest)
	if len(a.Sinks) == 0 {
		printField(w, "remember", "not possible: this is asked each time")
	}
	printSources(w, a.ApprovalRequest, now)
}

// printField prints a line of a request. Its further lines are indented, also where a terminal would begin them, so
// that no text looks like another field.
func printField(w io.Writer, name, text string) {
	const indent = 13
	if columns, _, ok := term.Size(w); ok && columns > 2*indent {
		text = ansi.Hardwrap(text, columns-indent, true)
	}
	text = strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent))
	fmt.Fprintf(w, "  %-10s %s\n", name, text)
}

// printAsked prints since when a request waits, its state, and for whom.
func printAsked(w io.Writer, r subjects.ApprovalRequest, state string, now time.Time) {
	printField(w, "asked", fmt.Sprintf("%s ago, %s", term.Age(now.Sub(r.Asked)), state))
	if r.Type != "" {
		printField(w, "type", term.Visible(r.Type))
	}
	if r.SessionID != "" {
		printField(w, "session", term.Visible(r.SessionID))
	}
}

// printCall prints what a request is about: the arguments, what the call would do, why it asks, and where data goes.
func printCall(w io.Writer, r subjects.ApprovalRequest) {
	printField(w, "arguments", term.VisibleJSON(r.Args, ""))
	printDiff(w, fmt.Sprintf("  %-10s ", "preview"), strings.Repeat(" ", 13), r.Preview)
	printField(w, "reason", term.Visible(r.Reason))
	rules := r.Rules
	if len(rules) == 0 {
		rules = []string{r.Layer + ": " + r.Rule}
	}
	printField(w, "rule", term.Visible(strings.Join(rules, ", ")))
	for _, s := range r.Sinks {
		printField(w, "target", term.Visible(punycodeHosts(s, r.Hosts)))
	}
	for _, h := range r.Hosts {
		printField(w, "host", fmt.Sprintf("%s, written as %s: check that it is the one you mean",
			term.Visible(h.Punycode), term.Visible(h.Written)))
	}
}

// printSources prints what the question permits, and the untrusted content of the session.
func printSources(w io.Writer, r subjects.ApprovalRequest, now time.Time) {
	for _, g := range r.Grants {
		printField(w, "granted", GrantText(g))
	}
	for _, t := range r.Taint {
		text := term.Visible(t.Tool)
		if t.From != "" {
			text += " " + term.Visible(t.From)
		}
		text += ", " + term.Age(now.Sub(t.Time)) + " ago"
		if len(t.Flags) > 0 {
			text += ", with signs of injection: " + term.Visible(strings.Join(t.Flags, ", "))
		}
		printField(w, "untrusted", text)
	}
}

// printForm prints the question of a running call: who asks, the text as it is with nothing hidden, and the fields.
func printForm(w io.Writer, f subjects.UserForm) {
	line := func(name, text string) { printField(w, name, text) }
	line("asks you", term.Paint(w, term.Bold, term.Visible(f.From))+": what follows is untrusted content of that "+
		"server. Never enter a password or a key")
	line("question", term.Visible(f.Message))
	for _, field := range f.Fields {
		text := term.Visible(field.Name) + " (" + field.Type
		if field.Required {
			text += ", required"
		}
		text += ")"
		for _, more := range []string{field.Title, field.Description} {
			if more != "" {
				text += " " + term.Visible(more)
			}
		}
		if len(field.Choices) > 0 {
			text += ", one of: " + term.Visible(strings.Join(field.Choices, ", "))
		}
		line("field", text)
	}
}

// GrantText is what a question permits, on one line: the acts, how often, the user's words, and the objects whose
// people are destinations.
func GrantText(g subjects.Grant) string {
	return fmt.Sprintf("%s, %d of %d used: %s", term.Visible(strings.Join(g.Acts, " or ")), g.Used, g.Times,
		term.Visible(g.Clause))
}

// formatRemaining returns the time until an expiry, to the second and rounded up: it does not say 4m of a request that
// has five minutes.
func formatRemaining(d time.Duration) string {
	d = (d + time.Second - 1).Truncate(time.Second)
	s := strings.TrimSuffix(d.String(), "m0s")
	if s != d.String() {
		s += "m"
	}
	if h := strings.TrimSuffix(s, "h0m"); h != s {
		s = h + "h"
	}
	return s
}

// punycodeHosts returns a target with its look-alike hosts in punycode.
func punycodeHosts(target string, hosts []subjects.LookAlikeHost) string {
	for _, h := range hosts {
		target = strings.ReplaceAll(target, h.Written, h.Punycode)
	}
	return target
}

// WaitingCall is one line about a call that waits for a decision. The targets, or the arguments of a call without
// targets, are never cut: their end decides where data goes.
func WaitingCall(r subjects.ApprovalRequest, program string) string {
	if r.Form != nil {
		return fmt.Sprintf("%s asks you: %s (untrusted content of that server); see conclave approve %s",
			term.Visible(r.Form.From), term.Visible(term.Clip(r.Form.Message, 200)), term.ShortID(r.ID))
	}
	what := strings.Join(strings.Fields(string(r.Args)), " ")
	if len(r.Sinks) > 0 {
		what = "to " + strings.Join(r.Sinks, " ")
	}
	return fmt.Sprintf("%s: %s %s (%s); %s", subjects.StateWaiting, term.Visible(r.Tool),
		term.Visible(punycodeHosts(what, r.Hosts)), term.Visible(r.Reason), HowToDecide(r.ID, program))
}

// HowToDecide says how to decide a call from another terminal.
func HowToDecide(id, program string) string {
	return fmt.Sprintf("decide with: %s approve %s, or --deny %s", program, term.ShortID(id), term.ShortID(id))
}

// AcceptedDecision says what an accepted decision means: what the broker made of it in r, not what d requested. The
// broker may approve once where d asked to remember it.
func AcceptedDecision(d subjects.ApprovalDecision, r subjects.ApprovalReply) string {
	switch {
	case r.State == subjects.ApprovalDenied:
		return "denied; the agent is told that you said no"
	case r.Remember == subjects.RememberSession:
		return "approved, also for later calls of this kind in this session"
	case r.Remember == subjects.RememberAlways:
		return "approved, also for all later calls of this kind until you revoke it"
	case d.Remember != "":
		return "approved for this call only: calls of this kind are asked each time, or too many decisions are " +
			"remembered"
	}
	return "approved for this call only"
}

// ApprovalRules prints remembered decisions as a table, a header alone when there are none.
func ApprovalRules(w io.Writer, rules []subjects.ApprovalRule) {
	rows := [][]string{{"RULE", "MADE", "HOLDS IN", "AGENTS", "TOOL", "ASKED BY", "TARGETS"}}
	for _, r := range rules {
		rows = append(rows, []string{
			term.Visible(term.ShortID(r.ID)), term.Stamp(r.Made), term.Visible(cmp.Or(r.Session, "every session")),
			term.Visible(r.Type), term.Visible(r.Tool),
			term.Visible(r.Rule), term.Visible(strings.Join(r.Sinks, " ")),
		})
	}
	term.Table(w, rows, term.Layout{Drop: []string{"MADE", "ASKED BY", "AGENTS"}, Whole: true})
}

// WaitingCalls says how many calls wait for the user.
func WaitingCalls(n int) string {
	if n == 1 {
		return "1 call waits for your approval"
	}
	return fmt.Sprintf("%d calls wait for your approval", n)
}

// Word is what a line must begin with to approve a request where a paste cannot be told from typing: the first
// characters of its id, which is a hash over the random id of the session. A text that was written before the request
// contains it only by chance.
func Word(r subjects.ApprovalRequest) string { return r.ID[:min(4, len(r.ID))] }

// AskDecision is the prompt for a decision about a request, where Enter denies. With a word, every answer that approves
// begins with it. remember adds the answers that remember the decision.
func AskDecision(r subjects.ApprovalRequest, word string, remember bool) string {
	switch question := "allow " + term.Visible(r.Tool) + "?"; {
	case r.Form != nil:
		answer := cmp.Or(word, "y")
		if len(r.Form.Fields) > 0 {
			answer = strings.TrimSpace(word + " name=value; name=value")
		}
		return fmt.Sprintf("answer %s? [%s / Enter declines] ", term.Visible(r.Form.From), answer)
	case word == "" && remember:
		return question + " [y/N/s/a] "
	case word == "":
		return question + " [y/N] "
	case !remember:
		return fmt.Sprintf("%s type %s to allow, Enter to deny: ", question, word)
	default:
		return fmt.Sprintf("%s type %s to allow, %s s for this session, %s a for always, Enter to deny: ", question,
			word, word, word)
	}
}

// isDenial reports whether a typed line is a clear no.
func isDenial(line string) bool {
	return slices.Contains([]string{"n", "no", "deny"}, strings.ToLower(strings.TrimSpace(line)))
}

// AskLater is the prompt for a decision about a request that the user looked up, where Enter decides nothing. question
// is what is decided. remember adds the answers that remember the decision.
func AskLater(question, word string, remember bool) string {
	answers := fmt.Sprintf("type %s to allow", word)
	if remember {
		answers += fmt.Sprintf(", %s s for this session, %[1]s a for always", word)
	}
	return fmt.Sprintf("%s %s, no to deny, Enter to decide later: ", question, answers)
}

// ParseLater reads the answer to [AskLater]: decided is false for an empty line. complaint is not empty for a line that
// is no answer, also one that would approve without the word.
func ParseLater(line, word string, remember bool) (d subjects.ApprovalDecision, decided bool, complaint string) {
	if strings.TrimSpace(line) == "" || isDenial(line) {
		return d, strings.TrimSpace(line) != "", ""
	}
	switch d, ok := ParseAnswer(line, nil, word); {
	case !ok:
		return subjects.ApprovalDecision{}, false, term.NeedsWord(word)
	case !d.Approve, d.Remember != "" && !remember:
		return subjects.ApprovalDecision{}, false,
			fmt.Sprintf("this is not an answer: type %s to allow, no to deny, or Enter to decide later", word)
	default:
		return d, true, ""
	}
}

// ParseAnswer reads a typed line about a request: for one with a form, name=value of its fields, separated by
// semicolons, or y to agree; otherwise see [ParseDecision]. With a word, a line that approves begins with it, and the
// word alone is y; ok is false for a line that would approve without the word, and the caller asks again.
func ParseAnswer(line string, form *subjects.UserForm, word string) (d subjects.ApprovalDecision, ok bool) {
	rest, found := term.CutWord(line, word)
	switch {
	case !found:
		return subjects.ApprovalDecision{}, !parseAnswer(line, form).Approve
	case rest == "" && word != "":
		rest = "y"
	}
	return parseAnswer(rest, form), true
}

func parseAnswer(line string, form *subjects.UserForm) subjects.ApprovalDecision {
	if form == nil || !strings.Contains(line, "=") {
		d := ParseDecision(line)
		if form != nil {
			d.Remember = ""
		}
		return d
	}
	return subjects.ApprovalDecision{Approve: true, Values: ParseValues(strings.Split(line, ";"), *form)}
}

// ParseValues returns the values of name=value, as the types of the form; the broker rejects those that do not fit it.
func ParseValues(pairs []string, form subjects.UserForm) json.RawMessage {
	values := map[string]any{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if name == "" && value == "" {
			continue
		}
		values[name] = value
		for _, f := range form.Fields {
			typed := json.RawMessage(strings.TrimSpace(value))
			if f.Name == name && f.Type != "string" && json.Valid(typed) {
				values[name] = typed
			}
		}
	}
	data, err := json.Marshal(values)
	if err != nil {
		return nil
	}
	return data
}

// ParseDecision reads a typed line: y or yes approves once, s or session for the session, a or always until revoked, in
// any case. Everything else, also an empty line, denies.
func ParseDecision(line string) subjects.ApprovalDecision {
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return subjects.ApprovalDecision{Approve: true}
	case "s", "session":
		return subjects.ApprovalDecision{Approve: true, Remember: subjects.RememberSession}
	case "a", "always":
		return subjects.ApprovalDecision{Approve: true, Remember: subjects.RememberAlways}
	}
	return subjects.ApprovalDecision{}
}
