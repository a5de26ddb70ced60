package gateway

import (
	"encoding/json"
	"strings"

	"conclave/subjects"
)

// Accounts whose events can be about what the shadow did.
const (
	brokerAccount = "broker"
	memoryAccount = "memory"
	criticAccount = "critic"
	rewardAccount = "reward"
)

// hidden reports whether an event belongs to the shadow's answer and not to the one that the person sees: what the shadow
// said, its calls and their results, what memory did for it, its grade, and dead letters about any of that. Whoever is
// curious asks for them by name. A verdict between the two answers is about both and is shown, and so is a question to
// the person, whoever made it necessary: nobody else can answer it.
func hidden(ev Event) bool {
	if ev.From == subjects.Shadow {
		return true
	}
	family, _, _ := strings.Cut(ev.Subject, ".")
	switch {
	case ev.From == brokerAccount && family == "tool":
		return shadows(textOf(ev, "caller"))
	case ev.From == memoryAccount && family == "memory":
		return shadows(textOf(ev, "by")) || shadows(textOf(ev, "of"))
	case ev.From == criticAccount && ev.Subject == subjects.CritiqueResult.Name:
		return shadows(textOf(ev, "respondent_id"))
	case family == "dead":
		return buriedShadow(textOf(ev, "subject"))
	}
	return false
}

// shadows reports whether an account, or the path of a spawned agent below it, is the shadow's.
func shadows(who string) bool {
	account, _, _ := strings.Cut(who, ".")
	return account == subjects.Shadow
}

// buriedShadow reports whether a dead letter is about something that the shadow said, or about a turn that it was to take.
func buriedShadow(subject string) bool {
	for _, side := range []string{"from.", "agent."} { // what it said, and what it asked for
		if rest, ok := strings.CutPrefix(subject, side); ok {
			return shadows(rest)
		}
	}
	t, ok := subjects.Match(subjects.Exhausted.Heard, subject)
	if !ok || len(t) != 2 {
		return false
	}
	consumer, _, _ := strings.Cut(t[1], "-")
	return consumer == subjects.Shadow
}

// textOf is one text of an event's payload, "" when there is none.
func textOf(ev Event, field string) string {
	var body map[string]json.RawMessage
	var text string
	if json.Unmarshal(ev.Payload, &body) != nil || json.Unmarshal(body[field], &text) != nil {
		return ""
	}
	return text
}
