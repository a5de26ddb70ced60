package subjects

import (
	"slices"
	"strings"
	"time"
)

// Advisory is the server's advisory about a message that reached its delivery limit. The fields are the server's.
type Advisory struct {
	Type       string    `json:"type"`
	ID         string    `json:"id"`
	Timestamp  time.Time `json:"timestamp"`
	Stream     string    `json:"stream"`
	Consumer   string    `json:"consumer"`
	StreamSeq  uint64    `json:"stream_seq"`
	Deliveries uint64    `json:"deliveries"`
	Domain     string    `json:"domain,omitempty"`
}

// IsFinalFailure reports whether a dead letter by an account means that its question will not be answered. Other dead
// letters, by the critic, about a turn of respondent B or about a malformed cancellation, do not. account must be the
// one that the server wrote; the letter's headers name the question.
func IsFinalFailure(account string, d DeadLetter) bool {
	switch account {
	case Router:
		return slices.Contains([]string{QueryReceived.Name, QueryCommittee.Name, QueryTask.Name}, d.Subject) ||
			isQuestionExhausted(d.Subject)
	case Generator, Committee, Orchestrator:
		return TurnRespondent(d.Subject) == account
	}
	return false
}

// isQuestionExhausted reports whether an advisory subject is about a question or a turn that the user waits for.
func isQuestionExhausted(subject string) bool {
	t, ok := Match(MaxDeliveriesAdvisory.Received, subject)
	if !ok || len(t) != 2 {
		return false
	}
	who, _, _ := strings.Cut(t[1], "-")
	return t[0] == QueryReceived.Stream && who == Router || IsVisibleTurn(t[0], t[1])
}

// IsVisibleTurn reports whether a consumer of a stream delivers turns to a respondent whose answers the user sees.
func IsVisibleTurn(stream, consumer string) bool {
	who, _, _ := strings.Cut(consumer, "-")
	return stream == QuerySession.Stream && slices.Contains(VisibleRespondents, who)
}

// TurnRespondent returns the account that answers the turn stored under a subject of TURNS, "" for any other subject.
func TurnRespondent(subject string) string {
	t, ok := Match("turn.*.*", subject)
	switch {
	case !ok:
		return ""
	case t[0] == Committee || t[0] == Orchestrator:
		return t[0]
	}
	return Generator
}

// Answers reports whether an account answers the turns of a respondent: its own, and for respondent B the generator's.
func Answers(account, respondent string) bool {
	return account != "" && account == respondent || account == RespondentB && respondent == Generator
}
