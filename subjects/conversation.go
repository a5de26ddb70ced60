package subjects

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Conversation is the history of a session: the turns that a prompt may have, and what became of those before them. It
// is stored as JSON under the key conv.<session> in the respondent's bucket, where the user's accounts may read it.
// Thinking is never part of it.
type Conversation struct {
	SessionID  string `json:"session_id"`
	Summary    string `json:"summary,omitempty"`    // of the summarized turns
	Summarized int    `json:"summarized,omitempty"` // number of summarized turns
	Dropped    int    `json:"dropped,omitempty"`    // turns dropped without a summary: too many or too large
	// Archived is how many of the summarized and dropped turns are kept under keys of their own, see
	// [Conversation.ArchivedTurnKey]. Those that a version without an archive removed are not.
	Archived int       `json:"archived,omitempty"`
	First    string    `json:"first,omitempty"`    // beginning of the first question, once its turn is not in Turns
	Began    time.Time `json:"began,omitzero"`     // time of the turn of First
	Turns    []Turn    `json:"turns"`              // oldest first
	Past     []string  `json:"past,omitempty"`     // query ids of the latest turns that are no longer in Turns
	Branches []Branch  `json:"branches,omitempty"` // turns that the user set aside, oldest first
	// Labels are joined from all turns, those of branches, summarized and dropped ones included: taint does not expire.
	Labels  *Labels   `json:"labels,omitempty"`
	Updated time.Time `json:"updated"`
	Deleted bool      `json:"deleted,omitempty"` // by the user; Past is kept, so that no question is answered twice
	// Deletions is how often the user deleted it. Each time its archive begins anew.
	Deletions int `json:"deletions,omitempty"`
}

// Branch is the turns that followed a turn of the conversation until the user edited a question or switched to another
// branch. The model does not get them. The query id of its first turn names it.
type Branch struct {
	After string `json:"after,omitempty"` // query id of the turn before it; "" = the conversation begins with it
	Turns []Turn `json:"turns"`           // at least one
}

// RetryInstruction is appended to a question that is retried. Text from there on is not the user's: it may quote the
// critic.
const RetryInstruction = "The last answer to this was not good enough. Try again, and better."

// UserText is the part of a question that the user typed.
func UserText(question string) string {
	own, _, _ := strings.Cut(question, "\n\n"+RetryInstruction)
	return own
}

// Turn is one question and its answer.
type Turn struct {
	QueryID string `json:"query_id"`
	Query   string `json:"query"`
	// Attachments of the question, each with the beginning of its text, for views. Attached is what the model reads:
	// their texts, each framed as untrusted content; "" = none, or too large to be stored.
	Attachments []Attachment `json:"attachments,omitempty"`
	Attached    string       `json:"attached,omitempty"`

	Messages []Message `json:"messages,omitempty"` // between question and answer: tool calls and results
	Answer   string    `json:"answer"`
	// Respondent is the account that answered; "" = the generator.
	Respondent string `json:"respondent,omitempty"`

	Model   string    `json:"model,omitempty"`
	Partial bool      `json:"partial,omitempty"`
	State   string    `json:"state,omitempty"`  // of the question; "" = answered, or stored by an earlier build
	Error   string    `json:"error,omitempty"`  // fault code; the answer then explains it
	Labels  *Labels   `json:"labels,omitempty"` // joined from all inputs of the answer
	Grades  *Grades   `json:"grades,omitempty"` // by critic and user, as far as received
	Time    time.Time `json:"time"`
}

// Message is one message of a conversation as it is sent to a model.
type Message struct {
	Role     string        `json:"role"` // user, assistant, tool
	Content  string        `json:"content"`
	Calls    []MessageCall `json:"tool_calls,omitempty"`
	ToolName string        `json:"tool_name,omitempty"`    // of a result
	CallID   string        `json:"tool_call_id,omitempty"` // of a result
}

// MessageCall is a tool call in a message.
type MessageCall struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// ConversationKey is the key of a session's conversation. The session must be a valid token.
func ConversationKey(session string) string { return ConversationPrefix + "." + session }

// ArchivePrefix is the first tokens of the keys of all archived turns of a session, which must be a valid token.
func ArchivePrefix(session string) string { return "past." + session }

// ArchivedTurnKey is the key of a turn that is no longer in the conversation: n counts from 0, the oldest. The session
// must be a valid token.
func (c Conversation) ArchivedTurnKey(n int) string {
	key := ArchivePrefix(c.SessionID)
	if c.Deletions > 0 {
		key += "." + strconv.Itoa(c.Deletions)
	}
	return key + "." + strconv.Itoa(n)
}

// ConversationPrefix is the first token of the keys of all conversations.
const ConversationPrefix = "conv"

// TurnPrefix is the first token of the keys of turn records, the checkpoints of questions: turn.<session> of the
// generator, turn.<query> of the committee. [TurnRecord] is what a list of sessions needs of them.
const TurnPrefix = "turn"

// TurnAbandoned is how long after its last checkpoint an unfinished turn no longer counts as being answered.
const TurnAbandoned = 30 * time.Minute

// TurnRecord is the part of a turn record that tells which question of a session was claimed last.
type TurnRecord struct {
	SessionID string `json:"session_id"` // "" = that of the key
	QueryID   string `json:"query_id"`   // "" = none
	Query     string `json:"query"`      // "" = not stored
	Finished  bool   `json:"finished"`   // also false in a record of the generator, whose conversation tells it
}

// AnswerBucket is the bucket in which the reward actor keeps the answers that the user saw, for as long as EVENTS does.
// It is the index of answers by query: see [AnswerPlace].
const AnswerBucket = "rewarded"

// AnswerKey is the key of the answer to a query in [AnswerBucket]. The query must be a valid token.
func AnswerKey(query string) string { return answerPrefix + query }

const answerPrefix = "answer."

// AnswerPlace is where EVENTS has an answer, of the record under [AnswerKey]. It is a hint: the event decides.
type AnswerPlace struct {
	Answer Place `json:"place"`
	Rated  Place `json:"heard"` // of the feedback that holds; a reward by it is stored later
	Count  int   `json:"count"` // of its last reward; 0 = none
}

// Place is the position of an event in EVENTS.
type Place struct {
	Seq uint64 `json:"seq"`
}

// SessionOf is the session of a conversation's key. It reports false for any other key.
func SessionOf(key string) (session string, ok bool) {
	session, ok = strings.CutPrefix(key, ConversationPrefix+".")
	if !ok || CheckToken(session) != nil {
		return "", false
	}
	return session, true
}

// Messages returns the history that is sent before the next question: per turn the question with its attachments, the
// messages in between and the answer, oldest first. The summary is left out; nil for a conversation without turns.
func (c Conversation) Messages() []Message {
	var out []Message
	for _, t := range c.Turns {
		out = append(out, Message{Role: "user", Content: JoinAttached(t.Query, t.Attached)})
		out = append(out, t.Messages...)
		out = append(out, Message{Role: "assistant", Content: t.Answer})
	}
	return out
}

// JoinAttached returns the message that a model reads: a question, then its framed attachments, "" = none.
func JoinAttached(question, attached string) string {
	if attached == "" {
		return question
	}
	return question + "\n\n" + attached
}

// Answered reports whether a query was answered in the conversation, also in a branch or a turn that was summarized or
// dropped lately.
func (c Conversation) Answered(query string) bool {
	isQuery := func(t Turn) bool { return t.QueryID == query }
	return slices.ContainsFunc(c.Turns, isQuery) || slices.Contains(c.Past, query) ||
		slices.ContainsFunc(c.Branches, func(b Branch) bool { return slices.ContainsFunc(b.Turns, isQuery) })
}

// SessionContextRequest asks for the context of a session.
type SessionContextRequest struct {
	SessionID string `json:"session_id"`
}

// SessionContext is what the model gets with the next question of a session, before its tools and what memory adds to
// it.
type SessionContext struct {
	SessionID string           `json:"session_id"`
	Model     string           `json:"model"`      // of the role assistant; "" = unknown
	Window    int              `json:"window"`     // of the model in tokens; 0 = unknown
	Answer    int              `json:"answer"`     // tokens that are reserved for the answer
	CompactAt int              `json:"compact_at"` // tokens above which the oldest turns are summarized; 0 = never
	Tokens    int              `json:"tokens"`     // estimated, of all messages
	Messages  []ContextMessage `json:"messages"`
	// Turns of the conversation that the model does not get: replaced by the summary, dropped because the session is
	// long, and left out because the window is too small.
	Summarized int `json:"summarized"`
	Dropped    int `json:"dropped"`
	Omitted    int `json:"omitted"`
}

// ContextMessage is one message as the model gets it.
type ContextMessage struct {
	Role     string        `json:"role"`
	Content  string        `json:"content"`
	ToolName string        `json:"tool_name,omitempty"`
	Calls    []MessageCall `json:"tool_calls,omitempty"`
	Tokens   int           `json:"tokens"` // estimated
}
