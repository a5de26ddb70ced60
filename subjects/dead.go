package subjects

import (
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

// IsFinalFailure reports whether a dead letter by an account means that its question will not be answered. Other dead letters, by
// the critic, about a turn of respondent B or about a malformed cancellation, do not. account must be the one that the server
// wrote; the letter's headers name the question.
func IsFinalFailure(account string, d DeadLetter) bool {
	switch account {
	case Router:
		return d.Subject == QueryReceived.Name || isQuestionExhausted(d.Subject)
	case Generator:
		_, turn := Match(QuerySession.Received, d.Subject)
		return turn
	}
	return false
}

// isQuestionExhausted reports whether an advisory subject is about a question or a turn of the generator.
func isQuestionExhausted(subject string) bool {
	t, ok := Match(MaxDeliveriesAdvisory.Received, subject)
	if !ok || len(t) != 2 {
		return false
	}
	who, _, _ := strings.Cut(t[1], "-")
	return t[0] == QueryReceived.Stream && who == Router || IsGeneratorTurn(t[0], t[1])
}

// IsGeneratorTurn reports whether a consumer of a stream delivers turns to the generator.
func IsGeneratorTurn(stream, consumer string) bool {
	who, _, _ := strings.Cut(consumer, "-")
	return stream == QuerySession.Stream && who == Generator
}
