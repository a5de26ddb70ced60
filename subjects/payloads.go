package subjects

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Payloads, in the order of the table in docs/bus.md. Field names are an interface to watchers of the bus: a renamed field keeps
// its former name in the tag `was`. Ids that travel in headers are repeated only where a user who watches with the nats
// command line needs them.

// Query is a question for the assistant, the committee or the orchestrator. The actor that
// consumes it generates missing ids.
type Query struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	Query     string `json:"query"` // the user's own words
	// Attachments are untrusted content that the question is about. The router stores them with the question, so that the
	// broker learns of them from TURNS and not from an agent.
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
	Note      string   `json:"note,omitempty"`      // set by the router when it replaced an id; ignored from any other publisher
	// Client is the run-time principal that asked, or [APIClient]; "" = the user. The gateway writes it from the caller's account.
	// It only takes rights away: the text of a client is untrusted content.
	Client string `json:"client,omitempty"`
	// ClientMemory means that the answer to the client may use the user's memory. It counts only with Client; the user needs no permission.
	ClientMemory bool `json:"client_memory,omitempty"`

	// Schedule is the schedule that asks, and Fixed identifies the only grants that hold then. Set by the router; ignored from any other
	// publisher.
	Schedule string   `json:"schedule,omitempty"`
	Fixed    []string `json:"fixed_grants,omitempty"`
}

// APIClient is the client of questions that come with the user's own credential over an interface for programs. No principal has this
// name.
const APIClient = "api"

// clientScope begins the id of every session and question of a client.
const clientScope = "client_"

// ScopeClientID returns the id of a client's session or question as an id of its own: it continues no conversation of another account,
// and every record of the question names the client. A name has no "_", so two clients never have the same id.
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

// CheckSession rejects a question of the user in a session of a client, and a client's question in any session but its own. What a
// client wrote would otherwise be asked again as the user's words, or the user's words be read by the client.
func (q Query) CheckSession() error {
	owner := ClientOf(q.SessionID)
	switch {
	case owner == q.Client:
		return nil
	case q.Client != "":
		return fmt.Errorf("session %s is not a session of the client %s", q.SessionID, q.Client)
	}
	return fmt.Errorf("session %s belongs to the client %s: begin a new session, and attach the text that the question is about", q.SessionID, owner)
}

// Hints are the complexity hints of a question or a model request.
var Hints = []string{"simple", "reasoning", "code"}

// CheckOptions reports what is wrong with the hint and the options for the committee; nil when nothing is.
func (q Query) CheckOptions() error {
	switch {
	case q.Hint != "" && !slices.Contains(Hints, q.Hint):
		return fmt.Errorf("the hint %q is none of %s", q.Hint, strings.Join(Hints, ", "))
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
	Layer  string          `json:"layer,omitempty"` // how the call came about: native, recovered from text, decision, safety_net or [LayerRecall]
	Error  *Fault          `json:"error,omitempty"`
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
	Estimated        int   `json:"estimated_tokens,omitempty"` // our own estimate of the last prompt, for comparison with Counted
	Counted          int   `json:"counted_tokens,omitempty"`   // the model server's count of the same prompt
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

// ToolSchema is a tool's announcement. It states no effects: the broker knows those from the manifest in the build.
type ToolSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON schema
	Version     string          `json:"version"`
	Key         string          `json:"key,omitempty"` // public curve key of this process, to seal credentials to; not part of the pinned definition
}

// ToolRequest is a tool call. The caller is in the subject, never here.
type ToolRequest struct {
	CallID  string          `json:"call_id"`
	QueryID string          `json:"query_id,omitempty"`
	Tool    string          `json:"tool,omitempty"` // filled in the event copy; the subject decides
	Caller  string          `json:"caller,omitempty"`
	Args    json.RawMessage `json:"args"`

	Judgement *Judgement `json:"judgement,omitempty"` // set by the broker in the event copy; ignored from a caller
}

// ToolOrder is an authorized call from the broker to a tool. Agents have no grant for its subject, and its type differs
// from a [ToolRequest].
type ToolOrder struct {
	CallID  string                 `json:"call_id"`
	QueryID string                 `json:"query_id,omitempty"`
	Args    json.RawMessage        `json:"args"`
	Mode    string                 `json:"mode,omitempty"`    // "" or one of the modes below
	Sealed  map[string]SecretValue `json:"sealed,omitempty"`  // credentials by name, sealed to this process of the tool
	Hosts   *HostRules             `json:"hosts,omitempty"`   // which hosts may be fetched from; checked again at each redirect
	Pages   bool                   `json:"pages,omitempty"`   // whether pages may be fetched at all
	Folders *FolderRules           `json:"folders,omitempty"` // for tools of files and programs; nil = no folder is allowed
	// Caller and the Labels of its session, for tools that store: they record the owner of an entry.
	Caller     string  `json:"caller,omitempty"`
	CallerType string  `json:"caller_type,omitempty"` // agent type of the caller, for the audit log
	Spawned    bool    `json:"spawned,omitempty"`     // the caller is a spawned agent
	Labels     *Labels `json:"labels,omitempty"`
	// Answer is the answer to the form that the tool returned for this call, with [ModeAnswer].
	Answer *FormAnswer `json:"answer,omitempty"`
}

// HostRules are the hosts that a call may reach, as patterns of the manifest. Deny wins over Allow.
type HostRules struct {
	Allow     []string `json:"allow"`
	Deny      []string `json:"deny"`
	Monitored []string `json:"watched,omitempty"` // monitor-only rules: logged, not enforced
}

// FolderRules are the folders that a call may access, absolute and with symlinks resolved. Closed wins over Allowed; without
// Allowed every path is denied.
type FolderRules struct {
	Allowed []string `json:"allowed"` // those of the caller's type and of its ancestors' types, intersected
	Closed  []string `json:"closed"`  // Conclave's own folders
	// Work is the working folder of the question. It may not exist yet; it is in one of Allowed, or empty when the caller may
	// not use it.
	Work string `json:"work,omitempty"`
}

// Modes of a [ToolOrder].
const (
	ModeStructured = "structured" // return untrusted content reduced to structured facts
	ModeSummary    = "summary"    // return a [MemorySummary] in JSON and no content
	// ModePreview asks what the call would do, as text for the user who decides about it. The tool must change nothing.
	ModePreview = "preview"
	// ModeAnswer brings the answer to a form for a call that runs: the result is that of the call, or its next form.
	ModeAnswer = "answer"
)

// ToolResult is the outcome of a call: a result or a fault, never both.
type ToolResult struct {
	CallID  string   `json:"call_id"`
	QueryID string   `json:"query_id,omitempty"`
	Tool    string   `json:"tool"`
	Caller  string   `json:"caller,omitempty"` // set by the broker in the event copy; ignored from a tool
	Result  string   `json:"result,omitempty"`
	Error   *Fault   `json:"error,omitempty"`
	Millis  int64    `json:"ms,omitempty"`
	Links   []string `json:"links,omitempty"` // URLs in the result, unchanged
	// Labels are set by the broker. A tool's own labels count only when the manifest says that it labels its results.
	Labels *Labels `json:"labels,omitempty"`
	// TrustedBytes is the length of the lines at the beginning of an untrusted Result that are trusted: the broker puts its frame
	// around the rest only. It counts from a tool that labels its results; the broker clears it.
	TrustedBytes int `json:"trusted_bytes,omitempty"`
	// Recalls are the ids of the memory entries in the result.
	Recalls []string `json:"recalls,omitempty"`
	// Ephemeral is set by the broker from the facts of the tool: the result holds only at the time of the call.
	Ephemeral bool    `json:"ephemeral,omitempty"`
	Parked    *Parked `json:"parked,omitempty"` // where the complete result is stored, when it was too large
	// Artifacts are the absolute paths of the files that the call wrote; the broker drops paths outside of [FolderRules].
	Artifacts []string `json:"artifacts,omitempty"`
	// Egress says whether the call sent data off this machine, and Destinations to which hosts or machines as far as they are known.
	// The broker sets both from the facts of the tool; a tool's own values are dropped.
	Egress       string   `json:"egress,omitempty"`
	Destinations []string `json:"destinations,omitempty"`
	// Form is a question to the user in place of a result: the call runs on until a [ToolOrder] brings the answer. It counts from
	// run-time principals only; no caller and no event has it.
	Form *UserForm `json:"form,omitempty"`
}

// Labels restrict the use of a text by its origin (trust) and its owner (privacy).
type Labels struct {
	Trust   string   `json:"trust"`           // trusted, untrusted
	Privacy string   `json:"privacy"`         // public, private
	Flags   []string `json:"flags,omitempty"` // detected injection techniques, and "redacted" when a secret was removed
}

// Join returns the labels of a text made from both inputs: untrusted and private win, and any unknown value counts as
// untrusted or private. A nil side adds nothing; two of them join to nil.
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

// Parked locates the complete form of a truncated result.
type Parked struct {
	ID    string `json:"id"`
	Bytes int    `json:"bytes"`
	Shown int    `json:"shown"` // how many of the bytes are in the result
}

// ToolOutput is a piece of live output of a running tool.
type ToolOutput struct {
	CallID string  `json:"call_id"`
	Tool   string  `json:"tool,omitempty"`   // set by the broker
	N      int     `json:"n"`                // number of the piece, from 0
	Text   string  `json:"text"`             // from the broker: whole lines, without secrets and control characters
	Labels *Labels `json:"labels,omitempty"` // set by the broker
}

// DiscoverRequest requests the tools that fit a task.
type DiscoverRequest struct {
	Task string `json:"task"`
	Max  int    `json:"max,omitempty"`
}

// DiscoverReply holds two to four definitions of tools that the caller may use.
type DiscoverReply struct {
	Tools []ToolSchema `json:"tools"`
}

// Verdict is the result of a dry run.
type Verdict struct {
	Allowed   bool           `json:"allowed"`        // it would run without approval
	Asks      []Denial       `json:"asks,omitempty"` // approvals that the user would be asked for
	Denial    *Denial        `json:"denial,omitempty"`
	Layers    []LayerVerdict `json:"layers,omitempty"`    // in order of evaluation, up to the one that denied
	Monitored []Denial       `json:"monitored,omitempty"` // monitor-only rules that would have denied or asked
}

// LayerVerdict is the verdict of one policy layer.
type LayerVerdict struct {
	Layer   string `json:"layer"`
	Verdict string `json:"verdict"` // pass, ask, deny
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// ExplainRequest is the user's dry run of an agent's call.
type ExplainRequest struct {
	As        string          `json:"as"` // the account, with the spawn chain below it
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	SessionID string          `json:"session_id,omitempty"`
	QueryID   string          `json:"query_id,omitempty"`
}

// SpawnRequest requests a child agent. The caller and its spawn chain are in the subject.
type SpawnRequest struct {
	Type   string   `json:"type"`
	Tools  []string `json:"tools,omitempty"`  // a further restriction; empty = every tool that the type may use below this parent
	Budget *Budget  `json:"budget,omitempty"` // a further restriction of the chain's budget
}

// SpawnReply names the child: the next token of its spawn chain.
type SpawnReply struct {
	Child string   `json:"child"`
	Tools []string `json:"tools"`
}

// Budget is the shared limit of a spawn chain. A zero field has no limit but the parent's.
type Budget struct {
	Calls   int   `json:"calls,omitempty"`
	Seconds int   `json:"seconds,omitempty"` // running time of tools
	Bytes   int64 `json:"bytes,omitempty"`   // of results
}

// ApprovalRequest asks the user to approve a call.
type ApprovalRequest struct {
	ID        string          `json:"id"`
	CallID    string          `json:"call_id,omitempty"` // of the call, as its caller named it
	SessionID string          `json:"session_id,omitempty"`
	QueryID   string          `json:"query_id,omitempty"`
	Caller    string          `json:"caller"`
	Type      string          `json:"type"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	Layer     string          `json:"layer"` // the policy layer that asks
	Rule      string          `json:"rule"`
	Reason    string          `json:"reason"`
	Sinks     []string        `json:"sinks,omitempty"`   // where data would be sent; a remembered decision holds for these only
	Hosts     []LookAlikeHost `json:"hosts,omitempty"`   // host names in the arguments and sinks that are not ASCII
	Preview   string          `json:"preview,omitempty"` // what the call would do, as the tool describes it: a diff, a dry run
	Taint     []Taint         `json:"taint,omitempty"`
	Grants    []Grant         `json:"grants,omitempty"` // what the question permits, none of which covers this call
	Form      *UserForm       `json:"form,omitempty"`   // the running call asks the user this; nil = whether it may run
	Asked     time.Time       `json:"asked"`
	Expires   time.Time       `json:"expires"`
}

// Grant is what a question permits after untrusted content, derived from the user's own words.
type Grant struct {
	Acts   []string `json:"acts"`             // kinds of acts, any of them
	To     []string `json:"to,omitempty"`     // names and addresses that the words name
	Places []string `json:"places,omitempty"` // objects whose people are destinations
	Times  int      `json:"times"`            // how often
	Used   int      `json:"used,omitempty"`   // how often it was used
	Clause string   `json:"clause"`           // the words that it is derived from
}

// Grants are the grants of one question, before any tool result was read. None means that every act after untrusted content asks.
type Grants struct {
	SessionID string  `json:"session_id"`
	QueryID   string  `json:"query_id"`
	Grants    []Grant `json:"grants"`
}

// LookAlikeHost is a host name with letters outside of ASCII, which can look like another name, and the name that DNS
// looks up for it.
type LookAlikeHost struct {
	Written  string `json:"written"`
	Punycode string `json:"punycode"`
}

// Taint is the point where untrusted content entered a session.
type Taint struct {
	Tool    string    `json:"tool"`
	CallID  string    `json:"call_id"`
	QueryID string    `json:"query_id,omitempty"`
	From    string    `json:"from,omitempty"`  // its URL or file, when known
	Flags   []string  `json:"flags,omitempty"` // detected injection techniques
	Time    time.Time `json:"time"`
}

// ApprovalDecision is the user's decision. The zero value denies.
type ApprovalDecision struct {
	Approve  bool   `json:"approve"`
	Withdraw bool   `json:"withdraw,omitempty"` // the user's own call no longer waits: close the request; excludes Approve
	Remember string `json:"remember,omitempty"` // "", "session" or "always"
	// Values answer the form of the request; only with Approve. No event and no list holds them.
	Values json.RawMessage `json:"values,omitempty"`
}

// How long a decision is remembered.
const (
	RememberSession = "session"
	RememberAlways  = "always"
)

// ApprovalReply tells whether this decision was the first; later ones are not accepted.
type ApprovalReply struct {
	ID       string `json:"id"`
	Accepted bool   `json:"accepted"`
	State    string `json:"state"` // of the approval now
	By       string `json:"by,omitempty"`
	Remember string `json:"remember,omitempty"`
}

// States of an approval.
const (
	ApprovalPending   = "pending"
	ApprovalApproved  = "approved"
	ApprovalDenied    = "denied"
	ApprovalExpired   = "expired"
	ApprovalWithdrawn = "withdrawn" // the user cancelled the query, or the caller stopped waiting
	ApprovalUnknown   = "unknown"
)

// ApprovalQuery requests the pending approvals and the standing rules.
type ApprovalQuery struct {
	All bool `json:"all,omitempty"` // decided and expired approvals too
}

// ApprovalList is the reply.
type ApprovalList struct {
	Approvals []Approval     `json:"approvals"`
	Rules     []ApprovalRule `json:"rules"`
}

// Approval is an approval request and its state.
type Approval struct {
	ApprovalRequest
	State   string    `json:"state"`
	By      string    `json:"by,omitempty"`
	Decided time.Time `json:"decided,omitzero"`
}

// ApprovalRule is a standing decision for calls of the same type and tool to the same sinks, until it is revoked.
type ApprovalRule struct {
	ID      string    `json:"id"`
	Session string    `json:"session_id,omitempty"` // empty = every session
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
	Once      bool     `json:"once,omitempty"`     // for one query only
	QueryID   string   `json:"query_id,omitempty"` // with Once: the query; empty = the next one
	Disable   []string `json:"disable,omitempty"`
	Grant     []string `json:"grant,omitempty"` // type:tool
	Show      bool     `json:"show,omitempty"`  // change nothing, return the current values
	// Lifetime is how long ALL holds, in seconds, at most [MaxAllLifetime]; 0 = [DefaultAllLifetime].
	Lifetime int       `json:"lifetime_seconds,omitempty"`
	Expires  time.Time `json:"expires,omitzero"` // when ALL ends; set by the broker
}

// Lifetime of the override ALL. It ends by itself, because a user who sets it for one task forgets it.
const (
	DefaultAllLifetime = time.Hour
	MaxAllLifetime     = 24 * time.Hour
)

// Levels of an override.
const (
	OverrideNone  = "NONE"
	OverrideRelax = "RELAX" // high-risk tools need no approval
	OverrideAll   = "ALL"   // every call is allowed, and still audited
)

// Changes of a conversation.
const (
	SessionDelete  = "delete"  // remove the messages; memory, events and audit log keep what they have
	SessionCompact = "compact" // replace all turns but the last by a summary
	SessionBranch  = "branch"  // set a question and all turns after it aside, so that the next question follows the turn before it
	SessionSwitch  = "switch"  // continue with a branch; the turns in its place become one
)

// SessionChange requests a change of a stored conversation.
type SessionChange struct {
	SessionID string `json:"session_id"`
	Change    string `json:"change"`             // SessionDelete, SessionCompact, SessionBranch or SessionSwitch
	QueryID   string `json:"query_id,omitempty"` // SessionBranch: the question to set aside; SessionSwitch: the first one of the branch
}

// SessionChanged says how many turns were deleted, summarized or set aside.
type SessionChanged struct {
	SessionID string `json:"session_id"`
	Change    string `json:"change"`
	Turns     int    `json:"turns"`
}

// Done acknowledges a request that has no other result.
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
	Think    *bool           `json:"think,omitempty"` // nil = as the model supports
	Stream   bool            `json:"stream,omitempty"`
	// Background means that no user waits: every other request goes before it. Optional means that the caller can do without
	// the reply. Either is refused with CodeModelSlow where it would take too long, by the measured speed of the model.
	Background bool `json:"background,omitempty"`
	Optional   bool `json:"optional,omitempty"`
}

// ChatChunk is a piece of the model's reply; the last has Done and the usage.
type ChatChunk struct {
	Content   string          `json:"content,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	ToolCalls json.RawMessage `json:"tool_calls,omitempty"`
	Done      bool            `json:"done,omitempty"`
	Model     string          `json:"model,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Remote    string          `json:"remote,omitempty"`                    // host that served the request; empty = this machine
	DemoModel bool            `json:"demo_model,omitempty" was:"stand_in"` // the built-in demo model replied
	// Notice is why another model than requested replied, in the last chunk. In any other it is a message for the user about the
	// reply, and the chunk has nothing else.
	Notice  string         `json:"notice,omitempty"`
	Usage   Usage          `json:"usage"`
	Reading *PromptReading `json:"reading,omitempty"` // in a chunk of its own, before all others, when the first token takes long
}

// PromptReading says that a model begins to read a prompt, and how long that takes by its measured speed.
type PromptReading struct {
	Tokens int   `json:"tokens"`          // estimated; those that the server has cached are left out
	Millis int64 `json:"ms"`              // until the first token, estimated
	Whole  bool  `json:"whole,omitempty"` // the reply comes in one piece, and Millis is for the longest one permitted
}

// EmbedRequest requests embeddings.
type EmbedRequest struct {
	Model string   `json:"model,omitempty"` // empty = the model of the role embeddings
	Texts []string `json:"texts"`
	Task  string   `json:"task,omitempty"` // query, document: the model's prefix for it is added; empty = none
}

// Tasks of [EmbedRequest].
const (
	EmbedQuery    = "query"
	EmbedDocument = "document"
)

// EmbedReply holds one vector per text, an empty one for each text in Failed.
type EmbedReply struct {
	Vectors [][]float32    `json:"vectors"`
	Model   string         `json:"model"`
	Failed  []EmbedFailure `json:"failed,omitempty"`
}

// EmbedFailure is a text without a vector.
type EmbedFailure struct {
	Index  int    `json:"index"` // of the text
	Reason string `json:"reason"`
}

// Empty is the payload of a request that needs none.
type Empty struct{}

// ModelList lists the available models and the model of each role.
type ModelList struct {
	Models []ModelInfo `json:"models"`
	Roles  []RoleModel `json:"roles"`
	// Machines are the other machines with models, connected or not.
	Machines []ModelMachine `json:"machines,omitempty"`
	// Skipped says which optional and background calls are not made because the model is too slow for them; empty = none.
	Skipped string `json:"skipped,omitempty"`
}

// ModelInfo describes a model.
type ModelInfo struct {
	Name       string `json:"name"`
	Backend    string `json:"backend"`
	Machine    string `json:"machine,omitempty"` // that has it; empty = this machine
	Queue      int    `json:"queue,omitempty"`   // requests that run or wait at its server
	Size       int64  `json:"size,omitempty"`
	Family     string `json:"family,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Window     int    `json:"window,omitempty"` // largest context window, in tokens
	Tools      bool   `json:"tools,omitempty"`
	Thinking   bool   `json:"thinking,omitempty"`
	Vision     bool   `json:"vision,omitempty"`
	Embedding  bool   `json:"embedding,omitempty"`
	Calls      string `json:"calls,omitempty"` // how it calls tools: CallNative, CallConstrained; empty = it does not chat or may not be used
	// CallTest is the self-test of its native tool calls, by which Calls was decided; nil = it was not tested, or models.yaml decides.
	CallTest *CallTest `json:"call_test,omitempty"`
	Loaded   bool      `json:"loaded,omitempty"`
	Remote   string    `json:"remote,omitempty"`  // host that it runs on; empty = this machine
	Refused  string    `json:"refused,omitempty"` // why its use is denied
	// Measured speed on this machine in tokens per second, 0 = not measured yet: of the prompt where it is not cached, and of
	// the output.
	PromptSpeed float64 `json:"prompt_speed,omitempty"`
	OutputSpeed float64 `json:"output_speed,omitempty"`
}

// CallTest is the result of a self-test of native tool calls.
type CallTest struct {
	Passed int       `json:"passed"` // replies that were right
	Total  int       `json:"total"`
	Tested time.Time `json:"tested"`
}

// How a model calls tools.
const (
	CallNative      = "native"      // by the tool calls of its own protocol
	CallConstrained = "constrained" // each step is a decision under a JSON schema
)

// Seeing lists models that can be used and read images, at most five.
func (l ModelList) Seeing() (names []string) {
	for _, m := range l.Models {
		if m.Vision && m.Refused == "" && len(names) < 5 {
			names = append(names, m.Name)
		}
	}
	return names
}

// RoleModel is the model that a role uses now, with its capabilities.
type RoleModel struct {
	Role      string `json:"role"`
	Model     string `json:"model"`
	Wanted    string `json:"wanted,omitempty"`   // the configured model, when a fallback replaces it
	Notice    string `json:"notice,omitempty"`   // why a fallback is used, and what to do
	Improves  string `json:"improves,omitempty"` // what installing Wanted would improve; set only when Wanted is optional
	Window    int    `json:"window"`             // context window in tokens, fixed for the role
	Stream    bool   `json:"stream"`
	Tools     bool   `json:"tools"`
	Thinking  bool   `json:"thinking"`
	Calls     string `json:"calls,omitempty"`  // how it calls tools: CallNative, CallConstrained; empty = unknown
	Vision    bool   `json:"vision,omitempty"` // reads images
	DemoModel bool   `json:"demo_model,omitempty" was:"stand_in"`
}

// PullRequest requests the download of a model.
type PullRequest struct {
	Model string `json:"model"`
}

// PullProgress is the state of a download.
type PullProgress struct {
	Status    string `json:"status"`
	Digest    string `json:"digest,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Completed int64  `json:"completed,omitempty"`
}

// Critique is a grade, or the reason why there is none.
type Critique struct {
	SessionID    string  `json:"session_id"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"`     // the account that answered, or [PersonaRespondent]
	Persona      string  `json:"persona,omitempty"` // a deliberation of this persona was graded, not an answer
	Round        int     `json:"round,omitempty"`   // of the deliberation
	Score        int     `json:"score"`             // 1 to 5, 0 = ungraded
	Feedback     string  `json:"feedback"`
	Rubric       string  `json:"rubric"` // plain, search, memory, task, persona
	Model        string  `json:"model"`
	Ungraded     string  `json:"ungraded,omitempty"` // why there is no grade
	Notice       string  `json:"notice,omitempty"`   // why another model than the critic's own judged
	Claims       []Claim `json:"claims,omitempty"`   // claimed actions without a matching tool call
	Retry        bool    `json:"retry,omitempty"`    // the grade is low enough to offer a retry
	Labels       *Labels `json:"labels,omitempty"`   // of the answer: feedback on untrusted content may quote it
	Millis       int64   `json:"ms,omitempty"`
}

// Rubrics, chosen by the tool calls of the turn.
const (
	RubricPlain  = "plain"
	RubricSearch = "search"
	RubricMemory = "memory"
	RubricTask   = "task"

	RubricPersona = "persona" // the persona's own
)

// Claim is an action that an answer reports although no tool call did it.
type Claim struct {
	Said  string   `json:"said"`  // quoted from the answer
	Needs []string `json:"needs"` // the tools any of which does it
}

// Pairwise is the comparison of two answers to one question.
type Pairwise struct {
	SessionID string   `json:"session_id,omitempty"`
	QueryID   string   `json:"query_id"`
	Winner    string   `json:"winner"`             // respondent id, or [Tie]; "" = undecided
	Between   []string `json:"between,omitempty"`  // the two respondents
	Verdicts  []string `json:"verdicts,omitempty"` // the winner of each comparison: in the order of Between, then swapped
	Reason    string   `json:"reason"`
	Model     string   `json:"model,omitempty"`
	Undecided string   `json:"undecided,omitempty"` // why there is no verdict
	Notice    string   `json:"notice,omitempty"`    // why another model than the critic's own judged
}

// Tie is the winner of two equal answers, and of a comparison whose result depends on their order.
const Tie = "tie"

// Feedback is the user's rating of an answer. Omitted fields are zero.
type Feedback struct {
	QueryID string `json:"query_id"`
	Thumb   int    `json:"thumb,omitempty"` // -1, 1
	Stars   int    `json:"stars,omitempty"` // 1 to 5
	Words   string `json:"words,omitempty"`
}

// Reward is feedback for the agent that produced the answer. It supersedes earlier rewards for the same answer.
type Reward struct {
	SessionID    string  `json:"session_id,omitempty"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"`
	Value        float64 `json:"value"` // -1 to 1
	Count        int     `json:"count"` // increases per answer: the highest is valid, in whatever order events arrive
	Source       Source  `json:"source"`
	Thumb        int     `json:"thumb,omitempty"`
	Stars        int     `json:"stars,omitempty"`
	Words        string  `json:"words,omitempty"`
}

// Sources of a [Reward].
const (
	RewardUser         = "user"         // stated by the user
	RewardConversation = "conversation" // inferred by a model from the conversation
)

// ConfigSet changes settings of an actor.
type ConfigSet struct {
	Values map[string]string `json:"values"`
}

// DeadLetter reports a message that could not be decoded or kept failing. It does not repeat the body, which could hold a
// secret.
type DeadLetter struct {
	Actor   string    `json:"actor"`
	Subject string    `json:"subject"`
	Code    string    `json:"code"`
	Reason  string    `json:"reason"`
	Size    int       `json:"size"`
	SHA256  string    `json:"sha256,omitempty"`
	Time    time.Time `json:"time"`
}

// SecretGet requests one credential, sealed to the tool that needs it.
type SecretGet struct {
	Name string `json:"name"`
	For  string `json:"for"` // the tool's public curve key
}

// SecretValue is the sealed credential.
type SecretValue struct {
	Sealed []byte `json:"sealed"`
	From   string `json:"from"` // public curve key of the sender
}

// SecretUse requests from the broker a credential that the configuration assigns to the caller.
type SecretUse struct {
	Name string `json:"name"`
	For  string `json:"for"` // the caller's public curve key
}
