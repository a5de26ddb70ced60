package subjects

import (
	"strings"
	"time"
)

// Advisory is what the server says of a message that was handed out too often. Its fields are the server's.
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

// IsFinalFailure reports whether a dead letter that an account wrote means that its question will not be answered. Other dead
// letters, of the critic, of respondent B's turn or of a cancellation that could not be read, do not keep the answer from
// coming. The account must be the one that the server wrote; which question it is stands in the letter's headers.
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

// isQuestionExhausted reports whether an advisory is about a message without which there is no answer.
func isQuestionExhausted(subject string) bool {
	t, ok := Match(MaxDeliveriesAdvisory.Received, subject)
	if !ok || len(t) != 2 {
		return false
	}
	who, _, _ := strings.Cut(t[1], "-")
	return t[0] == QueryReceived.Stream && who == Router || IsGeneratorTurn(t[0], t[1])
}

// IsGeneratorTurn reports whether a consumer of a stream hands out the turns that the answerer answers.
func IsGeneratorTurn(stream, consumer string) bool {
	who, _, _ := strings.Cut(consumer, "-")
	return stream == QuerySession.Stream && who == Generator
}
