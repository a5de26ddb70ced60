package subjects

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Query is a question for the assistant, the committee or the orchestrator. The actor that
// consumes it generates missing ids.
type Query struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	Query     string `json:"query"` // the user's own words
	// Attachments are untrusted content that the question is about. The router stores them with the question, so that
	// the broker learns of them from TURNS and not from an agent.
	Attachments []Attachment `json:"attachments,omitempty"`

	Model string `json:"model,omitempty"`
	// Hint is the complexity, one of [Hints]; "" = none. It chooses the model of a role that has none of its own.
	Hint string `json:"hint,omitempty"`
	// Personas, Rounds and Parallel are for the committee: who deliberates, how often, and whether a round is parallel.
	// Zero = as configured.
	Personas  []string `json:"personas,omitempty"`
	Rounds    int      `json:"rounds,omitempty"`
	Parallel  bool     `json:"parallel,omitempty"`
	Reference string   `json:"reference,omitempty"` // the expected answer, for the critic; respondents never see it
	// set by the router when it replaced an id; ignored from any other publisher
	Note string `json:"note,omitempty"`
	// Client is the run-time principal that asked, or [APIClient]; "" = the user. The gateway writes it from the
	// caller's account. It only takes rights away: the text of a client is untrusted content.
	Client string `json:"client,omitempty"`
	// ClientMemory means that the answer to the client may use the user's memory. It counts only with Client; the user
	// needs no permission.
	ClientMemory bool `json:"client_memory,omitempty"`

	// Schedule is the schedule that asks, and Fixed identifies the only grants that hold then. Set by the router;
	// ignored from any other publisher.
	Schedule string   `json:"schedule,omitempty"`
	Fixed    []string `json:"fixed_grants,omitempty"`
	// Source is the sequence in QUERIES of the question that a turn is made of, 0 for one of a schedule: the broker
	// compares them, because the router is not the user. Set by the router; ignored from any other publisher.
	Source uint64 `json:"source,omitempty"`
}

// APIClient is the client of questions that come with the user's own credential over an interface for programs. No
// principal has this name.
const APIClient = "api"

// clientScope begins the id of every session and question of a client.
const clientScope = "client_"

// ScopeClientID returns the id of a client's session or question as an id of its own: it continues no conversation of
// another account, and every record of the question names the client. A name has no "_", so two clients never have the
// same id.
func ScopeClientID(client, id string) string { return clientScope + client + "_" + id }

// ClientOf returns the client whose session or question has this id, "" for one of the user.
func ClientOf(id string) string {
	rest, ok := strings.CutPrefix(id, clientScope)
	if !ok {
		return ""
	}
	client, _, _ := strings.Cut(rest, "_")
	return client
}

// ClientOrigin returns the origin of what memory stores from a client, for its provenance; "" for the user.
func ClientOrigin(client string) string {
	if client == "" {
		return ""
	}
	return "client " + client
}

// CheckSession rejects a question of the user in a session of a client, and a client's question in any session but its
// own. What a client wrote would otherwise be asked again as the user's words, or the user's words be read by the
// client.
func (q Query) CheckSession() error {
	owner := ClientOf(q.SessionID)
	switch {
	case owner == q.Client:
		return nil
	case q.Client != "":
		return fmt.Errorf("session %s is not a session of the client %s", q.SessionID, q.Client)
	}
	return fmt.Errorf("session %s belongs to the client %s: begin a new session, and attach the text that the "+
		"question is about", q.SessionID, owner)
}

// Hints are the complexity hints of a question or a model request.
var Hints = []string{"simple", "reasoning", "code"}

// CheckOptions reports what is wrong with the hint and the options for the committee; nil when nothing is.
func (q Query) CheckOptions() error {
	switch {
	case q.Hint != "" && !slices.Contains(Hints, q.Hint):
		return fmt.Errorf("the hint %q is not one of %s", q.Hint, strings.Join(Hints, ", "))
	case len(q.Personas) > MaxPersonas:
		return fmt.Errorf("%d personas, at most %d", len(q.Personas), MaxPersonas)
	case q.Rounds < 0 || q.Rounds > MaxRounds:
		return fmt.Errorf("%d rounds, at most %d", q.Rounds, MaxRounds)
	}
	return nil
}

// Bounds of a deliberation.
const (
	MaxPersonas = 12
	MaxRounds   = 5
)

// Cancel stops a query; its partial answer is kept.
type Cancel struct {
	Reason string `json:"reason,omitempty"`
}

// Delta is a piece of a growing answer or of thinking.
type Delta struct {
	QueryID      string `json:"query_id"`
	RespondentID string `json:"respondent_id"`
	Step         int    `json:"step"` // index of the model call: text before a tool call is not part of the answer
	N            int    `json:"n"`    // counts from 0, so that a watcher detects dropped deltas
	Text         string `json:"text"`
}

// PlainText is the form of the delta in the reply to a plain-text request.
func (d Delta) PlainText() string { return d.Text }

// Response is a whole answer with everything that led to it.
type Response struct {
	SessionID string `json:"session_id"`
	QueryID   string `json:"query_id"`
	Query     string `json:"query"`
	Answer    string `json:"answer"`
	Thinking  string `json:"thinking"`
	// Attachments of the query, without credentials; shortened when the response would be too large.
	Attachments []Attachment `json:"attachments,omitempty"`

	ToolCalls    []ToolCall `json:"tool_calls"`
	Recalls      []string   `json:"recalls,omitempty"`
	GeneratorID  string     `json:"generator_id"`
	RespondentID string     `json:"respondent_id"`
	Model        string     `json:"model"`
	Reference    string     `json:"reference,omitempty"`                 // the expected answer, when the query had one
	DemoModel    bool       `json:"demo_model,omitempty" was:"stand_in"` // the built-in demo model answered
	Usage        Usage      `json:"usage"`
	// ModelCalls are the times of the model calls, as far as they are known.
	ModelCalls []ModelCall `json:"model_calls,omitempty"`
	// Deliberations are those that led to an answer of the committee.
	Deliberations []DeliberationSummary `json:"deliberations,omitempty"`

	Notes   []Note  `json:"notes,omitempty"`
	Labels  *Labels `json:"labels,omitempty"`  // joined from all inputs of the answer
	Partial bool    `json:"partial,omitempty"` // incomplete: stopped, truncated or failed
	Error   *Fault  `json:"error,omitempty"`
}

// States of a question, each in the one word that it has for users, in events and in metrics.
const (
	StateRunning  = "running"
	StateWaiting  = "waiting for you" // to decide about a call
	StateAnswered = "answered"
	StateStopped  = "stopped" // by the user
	StateFailed   = "failed"
)

// State is the state of the question that r answers.
func (r Response) State() string {
	switch {
	case r.Error != nil:
		return StateFailed
	case slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Code == NoteStopped }):
		return StateStopped
	}
	return StateAnswered
}

// Note tells the user about an event in the making of an answer: a guard that fired, a truncation, a fallback.
type Note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// ToolCall is one tool call in the record of an answer.
type ToolCall struct {
	CallID string          `json:"call_id,omitempty"`
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args"`
	Result string          `json:"result"`
	// how the call came about: native, recovered from text, decision, safety_net or [LayerRecall]
	Layer string `json:"layer,omitempty"`
	Error *Fault `json:"error,omitempty"`
	// Ephemeral means that the result holds only at the time of the call.
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// LayerRecall is the layer of the search of memory before the first model call, which no model chose; see [ToolCall].
const LayerRecall = "recall"

// Usage counts tokens and time.
type Usage struct {
	PromptTokens     int   `json:"prompt_tokens"`
	CompletionTokens int   `json:"completion_tokens"`
	Millis           int64 `json:"ms"`
	ModelCalls       int   `json:"model_calls,omitempty"`
	// our own estimate of the last prompt, for comparison with Counted
	Estimated int `json:"estimated_tokens,omitempty"`
	Counted   int `json:"counted_tokens,omitempty"` // the model server's count of the same prompt
	// Hosts are those that got the prompts, separated by ", ", with [ThisMachine] for this one; "" = unknown.
	Hosts string `json:"hosts,omitempty"`
}

// ModelCall is the time of one model call of an answer.
type ModelCall struct {
	Step        int   `json:"step"`     // as in [Delta] and [AgentState]
	FirstMillis int64 `json:"first_ms"` // from its beginning to the first token of text or thinking
}

// Dialog is the light form of an answer, without thinking.
type Dialog struct {
	SessionID    string `json:"session_id"`
	QueryID      string `json:"query_id"`
	Query        string `json:"query"`
	Answer       string `json:"answer"`
	RespondentID string `json:"respondent_id"`
}

// AgentState is one transition of an agent's state machine, or interim text.
type AgentState struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	From      string `json:"from,omitempty"`
	To        string `json:"to"`
	Event     string `json:"event,omitempty"`
	Step      int    `json:"step,omitempty"`
	Code      string `json:"code,omitempty"`  // of a note
	Words     string `json:"words,omitempty"` // interim text of the model, or of a note
	// Reading is set when the model begins to read a prompt for which it needs a second or longer.
	Reading *PromptReading `json:"reading,omitempty"`
}
