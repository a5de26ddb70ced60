package subjects

import (
	"encoding/json"
	"slices"
	"time"
)

// Payloads, in the order of the table in docs/bus.md. Field names are what watchers of the bus know; they do not change.
// Ids that travel in headers are repeated only where a person watching with the plain nats tool needs them.

// Query is a question for the assistant, the committee or the orchestrator. Missing ids are made by whoever reads it.
type Query struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	Query     string `json:"query"`
	Model     string `json:"model,omitempty"`
	Reference string `json:"reference,omitempty"` // what a good answer says: for the critic, never for the one who answers
	Note      string `json:"note,omitempty"`      // the router's: an id that had to be changed. What others write there is not read
}

// Cancel stops a query; what is there is kept.
type Cancel struct {
	Reason string `json:"reason,omitempty"`
}

// Delta is a piece of a growing answer or of thinking.
type Delta struct {
	QueryID      string `json:"query_id"`
	RespondentID string `json:"respondent_id"`
	Step         int    `json:"step"` // the model call it belongs to: what was said before a tool call is not the answer
	N            int    `json:"n"`    // counts from 0, so that a watcher sees what was dropped
	Text         string `json:"text"`
}

// PlainText is the piece as someone reads it who asked in plain text.
func (d Delta) PlainText() string { return d.Text }

// Response is a whole answer with everything that led to it.
type Response struct {
	SessionID    string     `json:"session_id"`
	QueryID      string     `json:"query_id"`
	Query        string     `json:"query"`
	Answer       string     `json:"answer"`
	Thinking     string     `json:"thinking"`
	ToolCalls    []ToolCall `json:"tool_calls"`
	Recalls      []string   `json:"recalls,omitempty"`
	GeneratorID  string     `json:"generator_id"`
	RespondentID string     `json:"respondent_id"`
	Model        string     `json:"model"`
	Reference    string     `json:"reference,omitempty"`                 // what a good answer says, when whoever asked said so
	DemoModel    bool       `json:"demo_model,omitempty" was:"stand_in"` // the built-in demo model answered, not a model
	Usage        Usage      `json:"usage"`
	Notes        []Note     `json:"notes,omitempty"`
	Labels       *Labels    `json:"labels,omitempty"`  // of all that went into the answer
	Partial      bool       `json:"partial,omitempty"` // not all of an answer: stopped, cut or failed
	Error        *Fault     `json:"error,omitempty"`
}

// Note is something about an answer that a person should know: a guard that fired, a truncation, a fallback.
type Note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// ToolCall is one call as the answer's record shows it.
type ToolCall struct {
	CallID string          `json:"call_id,omitempty"`
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args"`
	Result string          `json:"result"`
	Layer  string          `json:"layer,omitempty"` // where the call was found: native, or recovered from text
	Error  *Fault          `json:"error,omitempty"`
}

// Usage counts tokens and time.
type Usage struct {
	PromptTokens     int   `json:"prompt_tokens"`
	CompletionTokens int   `json:"completion_tokens"`
	Millis           int64 `json:"ms"`
	ModelCalls       int   `json:"model_calls,omitempty"`
	Estimated        int   `json:"estimated_tokens,omitempty"` // our own count of the last prompt, to compare with
	Counted          int   `json:"counted_tokens,omitempty"`   // the model server's count of the same prompt
}

// Dialog is the light form of an answer: no thinking, ever.
type Dialog struct {
	SessionID    string `json:"session_id"`
	QueryID      string `json:"query_id"`
	Query        string `json:"query"`
	Answer       string `json:"answer"`
	RespondentID string `json:"respondent_id"`
}

// AgentState is one transition of an agent's state machine, or interim words.
type AgentState struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	From      string `json:"from,omitempty"`
	To        string `json:"to"`
	Event     string `json:"event,omitempty"`
	Step      int    `json:"step,omitempty"`
	Code      string `json:"code,omitempty"`  // of a note
	Words     string `json:"words,omitempty"` // interim words of the model, or a note
}

// ToolSchema is how a tool announces itself. Facts about its effects are not here: the broker has those from the build.
type ToolSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON schema
	Version     string          `json:"version"`
	Key         string          `json:"key,omitempty"` // curve key of this run of the tool, to seal credentials to; no part of the pinned definition
}

// ToolRequest is a call. Who asks is in the subject, never here.
type ToolRequest struct {
	CallID  string          `json:"call_id"`
	QueryID string          `json:"query_id,omitempty"`
	Tool    string          `json:"tool,omitempty"` // filled in the event copy; the subject decides
	Caller  string          `json:"caller,omitempty"`
	Args    json.RawMessage `json:"args"`
}

// ToolOrder is a call as the broker hands it to the tool. Agents cannot say it: it is another type on another subject.
type ToolOrder struct {
	CallID  string                 `json:"call_id"`
	QueryID string                 `json:"query_id,omitempty"`
	Args    json.RawMessage        `json:"args"`
	Mode    string                 `json:"mode,omitempty"`   // "" or [ModeStructured]
	Sealed  map[string]SecretValue `json:"sealed,omitempty"` // credentials by name, sealed to this run of the tool
	Hosts   *HostRules             `json:"hosts,omitempty"`  // where pages may be read from, at each redirect too
	Pages   bool                   `json:"pages,omitempty"`  // pages may be read at all
	// Caller is who asks, and Labels are those of its session: for tools that keep something, which must know whose it is.
	Caller  string  `json:"caller,omitempty"`
	Spawned bool    `json:"spawned,omitempty"` // the caller is an agent below an account
	Labels  *Labels `json:"labels,omitempty"`
}

// HostRules say which hosts may be reached: patterns as in the manifest.
type HostRules struct {
	Allow     []string `json:"allow"`
	Deny      []string `json:"deny"`
	Monitored []string `json:"watched,omitempty"` // rules that are not enforced
}

// ModeStructured asks a tool for material that is distilled before an agent sees it.
const ModeStructured = "structured"

// ToolResult is what came of a call: a result or a fault, never both.
type ToolResult struct {
	CallID  string   `json:"call_id"`
	QueryID string   `json:"query_id,omitempty"`
	Tool    string   `json:"tool"`
	Caller  string   `json:"caller,omitempty"` // filled in the event copy; what a tool writes here is not read
	Result  string   `json:"result,omitempty"`
	Error   *Fault   `json:"error,omitempty"`
	Millis  int64    `json:"ms,omitempty"`
	Links   []string `json:"links,omitempty"` // addresses that the result lists, unchanged
	// Labels are the broker's. What a tool writes here is read only of one whose facts say that it grades its own results.
	Labels *Labels `json:"labels,omitempty"`
	// Recalls are the memories that the result shows.
	Recalls []string `json:"recalls,omitempty"`
	Parked  *Parked  `json:"parked,omitempty"` // where the whole result is, when it was too large to be shown
}

// Labels say what may be done with a text: who could have written it, and whom it belongs to.
type Labels struct {
	Trust   string   `json:"trust"`           // trusted, untrusted
	Privacy string   `json:"privacy"`         // public, private
	Flags   []string `json:"flags,omitempty"` // techniques of injection that the text shows signs of, and "redacted" when a secret was taken out
}

// Join is what holds of a text that both went into: untrusted and private win. Nothing said by either is nil.
func (l *Labels) Join(other *Labels) *Labels {
	if l == nil && other == nil {
		return nil
	}
	all := Labels{Trust: Trusted, Privacy: Public}
	for _, o := range []*Labels{l, other} {
		if o == nil {
			continue
		}
		if o.Trust != Trusted {
			all.Trust = Untrusted
		}
		if o.Privacy != Public {
			all.Privacy = Private
		}
		for _, f := range o.Flags {
			if !slices.Contains(all.Flags, f) {
				all.Flags = append(all.Flags, f)
			}
		}
	}
	return &all
}

// Values of [Labels].
const (
	Trusted   = "trusted"
	Untrusted = "untrusted"
	Public    = "public"
	Private   = "private"
)

// Parked says where a large result is kept whole.
type Parked struct {
	ID    string `json:"id"`
	Bytes int    `json:"bytes"`
	Shown int    `json:"shown"` // of these, so many bytes are in the result
}

// ToolOutput is live output of a long tool.
type ToolOutput struct {
	CallID string `json:"call_id"`
	N      int    `json:"n"`
	Text   string `json:"text"`
}

// DiscoverRequest asks for the few tools that fit a task.
type DiscoverRequest struct {
	Task string `json:"task"`
	Max  int    `json:"max,omitempty"`
}

// DiscoverReply holds two to four definitions the caller may use.
type DiscoverReply struct {
	Tools []ToolSchema `json:"tools"`
}

// Verdict is the answer to a dry run.
type Verdict struct {
	Allowed   bool           `json:"allowed"`        // it would run without anybody being asked
	Asks      []Denial       `json:"asks,omitempty"` // what the user would be asked about
	Denial    *Denial        `json:"denial,omitempty"`
	Layers    []LayerVerdict `json:"layers,omitempty"`    // in the order in which they judge, up to the one that refused
	Monitored []Denial       `json:"monitored,omitempty"` // rules that would have refused or asked, and are only watched
}

// LayerVerdict is what one layer said.
type LayerVerdict struct {
	Layer   string `json:"layer"`
	Verdict string `json:"verdict"` // pass, ask, deny
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// ExplainRequest is the user's dry run of somebody's call.
type ExplainRequest struct {
	As        string          `json:"as"` // the account, with the path of spawned agents below it
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	SessionID string          `json:"session_id,omitempty"`
	QueryID   string          `json:"query_id,omitempty"`
}

// SpawnRequest asks for a child agent of a type. Who asks, and below whom, is in the subject.
type SpawnRequest struct {
	Type   string   `json:"type"`
	Tools  []string `json:"tools,omitempty"`  // a further narrowing; nothing = all that its type may have below this parent
	Budget *Budget  `json:"budget,omitempty"` // a further narrowing of what its line may spend
}

// SpawnReply names the child: the next token of its path.
type SpawnReply struct {
	Child string   `json:"child"`
	Tools []string `json:"tools"`
}

// Budget is what a line of agents may spend together. Nothing said means no limit but that of the parent.
type Budget struct {
	Calls   int   `json:"calls,omitempty"`
	Seconds int   `json:"seconds,omitempty"` // of tools running
	Bytes   int64 `json:"bytes,omitempty"`   // of results
}

// ApprovalRequest asks the user.
type ApprovalRequest struct {
	ID        string          `json:"id"`
	SessionID string          `json:"session_id,omitempty"`
	QueryID   string          `json:"query_id,omitempty"`
	Caller    string          `json:"caller"`
	Type      string          `json:"type"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	Layer     string          `json:"layer"` // who asked
	Rule      string          `json:"rule"`
	Reason    string          `json:"reason"`
	Sinks     []string        `json:"sinks,omitempty"` // where something would go; an answer that is remembered holds for these alone
	Taint     []Taint         `json:"taint,omitempty"`
	Asked     time.Time       `json:"asked"`
	Expires   time.Time       `json:"expires"`
}

// Taint says where text that a stranger could have written entered a session.
type Taint struct {
	Tool    string    `json:"tool"`
	CallID  string    `json:"call_id"`
	QueryID string    `json:"query_id,omitempty"`
	From    string    `json:"from,omitempty"`  // an address, when there is one
	Flags   []string  `json:"flags,omitempty"` // signs of injection in it
	Time    time.Time `json:"time"`
}

// ApprovalDecision is the user's answer. The zero value is no.
type ApprovalDecision struct {
	Approve  bool   `json:"approve"`
	Remember string `json:"remember,omitempty"` // "", "session" or "always"
}

// How long an answer is remembered.
const (
	RememberSession = "session"
	RememberAlways  = "always"
)

// ApprovalReply says whether this answer was the first.
type ApprovalReply struct {
	ID       string `json:"id"`
	Accepted bool   `json:"accepted"`
	State    string `json:"state"` // of the question now
	By       string `json:"by,omitempty"`
	Remember string `json:"remember,omitempty"`
}

// States of a question to the user.
const (
	ApprovalPending  = "pending"
	ApprovalApproved = "approved"
	ApprovalDenied   = "denied"
	ApprovalExpired  = "expired"
	ApprovalUnknown  = "unknown"
)

// ApprovalQuery asks what waits for an answer, and what was answered for good.
type ApprovalQuery struct {
	All bool `json:"all,omitempty"` // those that are over too
}

// ApprovalList is the answer.
type ApprovalList struct {
	Approvals []Approval     `json:"approvals"`
	Rules     []ApprovalRule `json:"rules"`
}

// Approval is a question and where it stands.
type Approval struct {
	ApprovalRequest
	State   string    `json:"state"`
	By      string    `json:"by,omitempty"`
	Decided time.Time `json:"decided,omitzero"`
}

// ApprovalRule is an answer that holds for later calls of the same kind to the same place, until it is revoked.
type ApprovalRule struct {
	ID      string    `json:"id"`
	Session string    `json:"session_id,omitempty"` // nothing = every session
	Type    string    `json:"type"`
	Tool    string    `json:"tool"`
	Rule    string    `json:"rule"`
	Sinks   []string  `json:"sinks"`
	By      string    `json:"by"`
	Made    time.Time `json:"made"`
}

// SessionConfig overrides policy for one session.
type SessionConfig struct {
	SessionID string   `json:"session_id"`
	Override  string   `json:"override,omitempty"` // NONE, RELAX, ALL
	Once      bool     `json:"once,omitempty"`     // for one message, then back
	QueryID   string   `json:"query_id,omitempty"` // with Once: the message; nothing = the next one
	Disable   []string `json:"disable,omitempty"`
	Grant     []string `json:"grant,omitempty"` // type:tool
	Show      bool     `json:"show,omitempty"`  // change nothing, tell what holds
}

// Levels of an override.
const (
	OverrideNone  = "NONE"
	OverrideRelax = "RELAX" // tools marked high-risk no longer ask
	OverrideAll   = "ALL"   // everything passes, still audited
)

// Done is the answer to a request that has nothing to say but that it worked.
type Done struct {
	OK bool `json:"ok"`
}

// ChatRequest asks a model for the next message.
type ChatRequest struct {
	Role     string          `json:"role"` // assistant, critic, ...: routed to a model
	Model    string          `json:"model,omitempty"`
	Hint     string          `json:"hint,omitempty"` // simple, reasoning, code
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools,omitempty"`
	Format   json.RawMessage `json:"format,omitempty"`
	Options  json.RawMessage `json:"options,omitempty"`
	Think    *bool           `json:"think,omitempty"` // nothing = as the model can
	Stream   bool            `json:"stream,omitempty"`
}

// ChatChunk is a piece of the model's reply; the last has Done and the figures.
type ChatChunk struct {
	Content   string          `json:"content,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	ToolCalls json.RawMessage `json:"tool_calls,omitempty"`
	Done      bool            `json:"done,omitempty"`
	Model     string          `json:"model,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Remote    string          `json:"remote,omitempty"`                    // host that it was passed on to
	DemoModel bool            `json:"demo_model,omitempty" was:"stand_in"` // the built-in demo model, not a model
	Notice    string          `json:"notice,omitempty"`                    // another model than asked for answered, and why
	Usage     Usage           `json:"usage"`
}

// EmbedRequest asks for vectors.
type EmbedRequest struct {
	Model string   `json:"model,omitempty"` // nothing = the role embeddings
	Texts []string `json:"texts"`
}

// EmbedReply holds one vector per text.
type EmbedReply struct {
	Vectors [][]float32 `json:"vectors"`
	Model   string      `json:"model"`
}

// Empty is the payload of a request that needs none.
type Empty struct{}

// ModelList names the models at hand.
type ModelList struct {
	Models []ModelInfo `json:"models"`
	Roles  []RoleModel `json:"roles"`
}

// ModelInfo describes a model.
type ModelInfo struct {
	Name       string `json:"name"`
	Backend    string `json:"backend"`
	Size       int64  `json:"size,omitempty"`
	Family     string `json:"family,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Window     int    `json:"window,omitempty"` // most it can
	Tools      bool   `json:"tools,omitempty"`
	Thinking   bool   `json:"thinking,omitempty"`
	Vision     bool   `json:"vision,omitempty"`
	Embedding  bool   `json:"embedding,omitempty"`
	Loaded     bool   `json:"loaded,omitempty"`
	Remote     string `json:"remote,omitempty"`  // host that it runs on; nothing = this machine
	Refused    string `json:"refused,omitempty"` // why it may not be used
}

// RoleModel says which model a role has now, and what that model takes.
type RoleModel struct {
	Role      string `json:"role"`
	Model     string `json:"model"`
	Wanted    string `json:"wanted,omitempty"` // what the configuration names, when another one stands in
	Notice    string `json:"notice,omitempty"` // why, and what to do
	Window    int    `json:"window"`           // tokens, frozen
	Stream    bool   `json:"stream"`
	Tools     bool   `json:"tools"`
	Thinking  bool   `json:"thinking"`
	DemoModel bool   `json:"demo_model,omitempty" was:"stand_in"`
}

// PullRequest asks for a model to be fetched.
type PullRequest struct {
	Model string `json:"model"`
}

// PullProgress is how far that is.
type PullProgress struct {
	Status    string `json:"status"`
	Digest    string `json:"digest,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Completed int64  `json:"completed,omitempty"`
}

// Critique is a grade, or says why there is none.
type Critique struct {
	SessionID    string  `json:"session_id"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"` // the account that answered
	Score        int     `json:"score"`         // 1 to 5, 0 = ungraded
	Feedback     string  `json:"feedback"`
	Rubric       string  `json:"rubric"` // what was looked for: plain, search, memory, task
	Model        string  `json:"model"`
	Ungraded     string  `json:"ungraded,omitempty"` // why there is no grade
	Notice       string  `json:"notice,omitempty"`   // another model than the critic's own judged, and why
	Claims       []Claim `json:"claims,omitempty"`   // what the answer says was done, and no call did
	Retry        bool    `json:"retry,omitempty"`    // so low that another try should be offered
	Labels       *Labels `json:"labels,omitempty"`   // of the answer: what is said about a stranger's words may hold them
	Millis       int64   `json:"ms,omitempty"`
}

// Rubrics: what an answer is judged by, after what its turn did.
const (
	RubricPlain  = "plain"
	RubricSearch = "search"
	RubricMemory = "memory"
	RubricTask   = "task"
)

// Claim is something that an answer says was done although no call did it.
type Claim struct {
	Said  string   `json:"said"`  // the words of the answer
	Needs []string `json:"needs"` // tools one of which would have done it
}

// Pairwise is the verdict between two answers to one question.
type Pairwise struct {
	SessionID string   `json:"session_id,omitempty"`
	QueryID   string   `json:"query_id"`
	Winner    string   `json:"winner"`             // respondent id, or [Tie]; "" = undecided
	Between   []string `json:"between,omitempty"`  // the two respondents
	Verdicts  []string `json:"verdicts,omitempty"` // the winner of each judgement: as they stand in between, then swapped
	Reason    string   `json:"reason"`
	Model     string   `json:"model,omitempty"`
	Undecided string   `json:"undecided,omitempty"` // why there is no verdict
	Notice    string   `json:"notice,omitempty"`    // another model than the critic's own judged, and why
}

// Tie is the winner of two answers that are as good as each other, or when the judgement changes with their order.
const Tie = "tie"

// Feedback is what the user thought of an answer. What is not said is zero.
type Feedback struct {
	QueryID string `json:"query_id"`
	Thumb   int    `json:"thumb,omitempty"` // -1, 1
	Stars   int    `json:"stars,omitempty"` // 1 to 5
	Words   string `json:"words,omitempty"`
}

// Reward is feedback on its way to the agent that produced the answer. What the user thinks now takes the place of what
// they thought before.
type Reward struct {
	SessionID    string  `json:"session_id,omitempty"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"`
	Value        float64 `json:"value"` // -1 to 1
	Count        int     `json:"count"` // counts up for one answer: the highest holds, in whatever order they come
	Source       Source  `json:"source"`
	Thumb        int     `json:"thumb,omitempty"`
	Stars        int     `json:"stars,omitempty"`
	Words        string  `json:"words,omitempty"`
}

// Sources of a [Reward].
const (
	RewardUser         = "user"         // stated by the user
	RewardConversation = "conversation" // a model took it from what the user said
)

// Deliberation is one persona's turn.
type Deliberation struct {
	QueryID  string     `json:"query_id"`
	Persona  string     `json:"persona"`
	Round    int        `json:"round"`
	Response string     `json:"response"`
	Thinking string     `json:"thinking,omitempty"`
	Calls    []ToolCall `json:"tool_calls,omitempty"`
	Usage    Usage      `json:"usage"`
}

// TaskProgress is the state of a plan.
type TaskProgress struct {
	TaskID  string `json:"task_id"`
	Subtask string `json:"subtask,omitempty"`
	State   string `json:"state"`
	Text    string `json:"text,omitempty"`
}

// AgentReturn is the structured return of a subagent.
type AgentReturn struct {
	Status        string   `json:"status"` // success, partial, failed
	Summary       string   `json:"summary"`
	Artifacts     []string `json:"artifacts,omitempty"`
	ResultQuality string   `json:"result_quality"`
	Source        string   `json:"source"`
	Candidates    []string `json:"new_memory_candidates,omitempty"`
	FailureReason string   `json:"failure_reason,omitempty"`
}

// ConfigSet changes settings of an actor.
type ConfigSet struct {
	Values map[string]string `json:"values"`
}

// DeadLetter tells of a message that could not be read or kept failing. The body is not repeated: it could hold
// anything, a secret too.
type DeadLetter struct {
	Actor   string    `json:"actor"`
	Subject string    `json:"subject"`
	Code    string    `json:"code"`
	Reason  string    `json:"reason"`
	Size    int       `json:"size"`
	SHA256  string    `json:"sha256,omitempty"`
	Time    time.Time `json:"time"`
}

// SecretGet asks for one credential, sealed to the tool that needs it.
type SecretGet struct {
	Name string `json:"name"`
	For  string `json:"for"` // the tool's public curve key
}

// SecretValue is the sealed credential.
type SecretValue struct {
	Sealed []byte `json:"sealed"`
	From   string `json:"from"` // curve key of the one who sealed it
}

// SecretUse asks the broker for a credential that the settings name for the caller.
type SecretUse struct {
	Name string `json:"name"`
	For  string `json:"for"` // the caller's public curve key
}
