package subjects

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Conversation is what an agent keeps of a session. It stands as JSON under the key conv.<session> in the agent's
// bucket, where the user's roles may read it. Thinking is never part of it.
type Conversation struct {
	SessionID  string   `json:"session_id"`
	Summary    string   `json:"summary,omitempty"`    // stands for the turns that were summarized
	Summarized int      `json:"summarized,omitempty"` // how many those are
	Dropped    int      `json:"dropped,omitempty"`    // turns that were let go without a summary: too many or too large
	Turns      []Turn   `json:"turns"`                // oldest first
	Past       []string `json:"past,omitempty"`       // query ids of the latest turns that are no longer in Turns
	// Labels are those of all turns there ever were: what a stranger wrote is in the summary too.
	Labels  *Labels   `json:"labels,omitempty"`
	Updated time.Time `json:"updated"`
}

// RetryInstruction goes with a question that is asked again. What stands from there on is not what the user typed: the
// critic's words may be among it.
const RetryInstruction = "The last answer to this was not good enough. Try again, and better."

// UserText is what the user typed of a question.
func UserText(question string) string {
	own, _, _ := strings.Cut(question, "\n\n"+RetryInstruction)
	return own
}

// Turn is one question and its answer.
type Turn struct {
	QueryID  string    `json:"query_id"`
	Query    string    `json:"query"`
	Messages []Message `json:"messages,omitempty"` // between question and answer: calls, each with its result
	Answer   string    `json:"answer"`
	Model    string    `json:"model,omitempty"`
	Partial  bool      `json:"partial,omitempty"`
	Error    string    `json:"error,omitempty"`  // code of what went wrong; the answer then says it in words
	Labels   *Labels   `json:"labels,omitempty"` // of all that went into the answer
	Grades   *Grades   `json:"grades,omitempty"` // what others thought of it, as far as it was heard
	Time     time.Time `json:"time"`
}

// Message is one message of a conversation as a model is sent it.
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

// ConversationPrefix is the first token of the keys of all conversations.
const ConversationPrefix = "conv"

// SessionOf is the session whose conversation stands under a key. It reports false for any other key.
func SessionOf(key string) (session string, ok bool) {
	session, ok = strings.CutPrefix(key, ConversationPrefix+".")
	if !ok || CheckToken(session) != nil {
		return "", false
	}
	return session, true
}

// Messages is the history that goes before the next question, message by message: what is stored is what is sent. The
// summary goes before it.
func (c Conversation) Messages() []Message {
	var out []Message
	for _, t := range c.Turns {
		out = append(out, Message{Role: "user", Content: t.Query})
		out = append(out, t.Messages...)
		out = append(out, Message{Role: "assistant", Content: t.Answer})
	}
	return out
}

// Answered reports whether a query's answer is part of the conversation, or was.
func (c Conversation) Answered(query string) bool {
	return slices.ContainsFunc(c.Turns, func(t Turn) bool { return t.QueryID == query }) || slices.Contains(c.Past, query)
}
