package gateway

import (
	"encoding/json"
	"strings"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Accounts whose events can be about respondent B.
const (
	brokerAccount = "broker"
	memoryAccount = "memory"
	criticAccount = "critic"
	rewardAccount = "reward"
)

// isOfRespondentB reports whether an event belongs to respondent B's answer and not to the one that the user sees: its
// events, calls and results, memory operations, grade, and dead letters about them. Clients get these only on request.
// A comparison of the two answers is shown, and so is every approval request, because only the user can decide it.
func isOfRespondentB(ev client.Event) bool {
	if ev.From == subjects.RespondentB {
		return true
	}
	family, _, _ := strings.Cut(ev.Subject, ".")
	switch {
	case ev.From == brokerAccount && family == "tool":
		return isRespondentB(payloadField(ev, "caller"))
	case ev.From == memoryAccount && family == "memory":
		return isRespondentB(payloadField(ev, "by")) || isRespondentB(payloadField(ev, "of"))
	case ev.From == criticAccount && ev.Subject == subjects.CritiqueResult.Name:
		return isRespondentB(payloadField(ev, "respondent_id"))
	case family == "dead":
		return deadLetterOfRespondentB(payloadField(ev, "subject"))
	}
	return false
}

// isRespondentB reports whether an account, or the path of a spawned agent below it, is respondent B's.
func isRespondentB(who string) bool {
	account, _, _ := strings.Cut(who, ".")
	return account == subjects.RespondentB
}

// deadLetterOfRespondentB reports whether a dead letter is about a message of respondent B, or about a turn it was
// given. subject is the subject of the failed message, or the advisory of its consumer.
func deadLetterOfRespondentB(subject string) bool {
	for _, side := range []string{"from.", "agent."} { // its events and its requests
		if rest, ok := strings.CutPrefix(subject, side); ok {
			return isRespondentB(rest)
		}
	}
	t, ok := subjects.Match(subjects.MaxDeliveriesAdvisory.Received, subject)
	if !ok || len(t) != 2 {
		return false
	}
	consumer, _, _ := strings.Cut(t[1], "-")
	return consumer == subjects.RespondentB
}

// payloadField returns a text field of the payload, "" when there is none.
func payloadField(ev client.Event, field string) string {
	var body map[string]json.RawMessage
	var text string
	if json.Unmarshal(ev.Body, &body) != nil || json.Unmarshal(body[field], &text) != nil {
		return ""
	}
	return text
}
