package subjects

import (
	"encoding/json"
	"slices"
)

// ToolSchema is a tool's announcement. It states no effects: the broker knows those from the manifest in the build.
type ToolSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON schema
	Version     string          `json:"version"`
	// public curve key of this process, to seal credentials to; not part of the pinned definition
	Key string `json:"key,omitempty"`
}

// ToolRequest is a tool call. The caller is in the subject, never here.
type ToolRequest struct {
	CallID  string          `json:"call_id"`
	QueryID string          `json:"query_id,omitempty"`
	Tool    string          `json:"tool,omitempty"` // filled in the event copy; the subject decides
	Caller  string          `json:"caller,omitempty"`
	Args    json.RawMessage `json:"args"`
	// Own says that no model chose the call: the runtime of the caller makes it before the first model call, and the
	// tool shall return the user's own statements only ([ModeOwn]). The broker rejects it from other accounts than the
	// respondents', and for a tool without that mode.
	Own bool `json:"own,omitempty"`

	Judgement *Judgement `json:"judgement,omitempty"` // set by the broker in the event copy; ignored from a caller
}

// ToolOrder is an authorized call from the broker to a tool. Agents have no grant for its subject, and its type differs
// from a [ToolRequest].
type ToolOrder struct {
	CallID  string                 `json:"call_id"`
	QueryID string                 `json:"query_id,omitempty"`
	Args    json.RawMessage        `json:"args"`
	Mode    string                 `json:"mode,omitempty"`   // "" or one of the modes below
	Sealed  map[string]SecretValue `json:"sealed,omitempty"` // credentials by name, sealed to this process of the tool
	// which hosts may be fetched from; checked again at each redirect
	Hosts *HostRules `json:"hosts,omitempty"`
	Pages bool       `json:"pages,omitempty"` // whether pages may be fetched at all
	// for tools of files and programs; nil = no folder is allowed
	Folders *FolderRules `json:"folders,omitempty"`
	// Caller and the Labels of its session, for tools that store: they record the owner of an entry.
	Caller     string  `json:"caller,omitempty"`
	CallerType string  `json:"caller_type,omitempty"` // agent type of the caller, for the audit log
	Spawned    bool    `json:"spawned,omitempty"`     // the caller is a spawned agent
	Labels     *Labels `json:"labels,omitempty"`
	// Change is the change as which the call takes effect, for a tool that keeps the state before.
	Change *ChangeOrder `json:"change,omitempty"`
	// Answer is the answer to the form that the tool returned for this call, with [ModeAnswer].
	Answer *FormAnswer `json:"answer,omitempty"`
}

// HostRules are the hosts that a call may reach, as patterns of the manifest. Deny wins over Allow.
type HostRules struct {
	Allow     []string `json:"allow"`
	Deny      []string `json:"deny"`
	Monitored []string `json:"watched,omitempty"` // monitor-only rules: logged, not enforced
}

// FolderRules are the folders that a call may access, absolute and with symlinks resolved. Closed wins over Allowed;
// without Allowed every path is denied.
type FolderRules struct {
	Allowed []string `json:"allowed"` // those of the caller's type and of its ancestors' types, intersected
	Closed  []string `json:"closed"`  // Conclave's own folders
	// Work is the working folder of the question. It may not exist yet; it is in one of Allowed, or empty when the
	// caller may not use it.
	Work string `json:"work,omitempty"`
}

// Modes of a [ToolOrder].
const (
	ModeStructured = "structured" // return untrusted content reduced to structured facts
	ModeSummary    = "summary"    // return a [MemorySummary] in JSON and no content
	ModeOwn        = "own"        // return pinned facts and the user's own trusted statements, nothing else
	// ModePreview asks what the call would do, as text for the user who decides about it. The tool must change nothing.
	ModePreview = "preview"
	// ModeCapture asks the tool to keep the state of what the call would change. It must change nothing else.
	ModeCapture = "capture"
	// ModeUndo lists the changes whose state before the tool keeps, or takes some back, as [ChangeOrder] says. The
	// result is a [ChangeList] or an [UndoReply] in JSON.
	ModeUndo = "undo"
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
	// Recalls are the ids of the memory entries in the result.
	Recalls []string `json:"recalls,omitempty"`
	// Ephemeral is set by the broker from the facts of the tool: the result holds only at the time of the call.
	Ephemeral bool    `json:"ephemeral,omitempty"`
	Parked    *Parked `json:"parked,omitempty"` // where the complete result is stored, when it was too large
	// Artifacts are the absolute paths of the files that the call wrote; the broker drops paths outside of
	// [FolderRules].
	Artifacts []string `json:"artifacts,omitempty"`
	// Change names the change that the call made and that can be undone.
	Change *ChangeRef `json:"change,omitempty"`
	// Egress says whether the call sent data off this machine, and Destinations to which hosts or machines as far as
	// they are known. The broker sets both from the facts of the tool; a tool's own values are dropped.
	Egress       string   `json:"egress,omitempty"`
	Destinations []string `json:"destinations,omitempty"`
	// Repeated is the number of refused calls of the account before this one that have no copies, because there were
	// many. Only the broker's copy of a refusal has it.
	Repeated int `json:"repeated,omitempty"`
	// Form is a question to the user in place of a result: the call runs on until a [ToolOrder] brings the answer. It
	// counts from run-time principals only; no caller and no event has it.
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
	// Unavailable has tools that are left out because their backend does not answer. Only agents that were spawned for
	// a part of a task are asked for: in front of the user, a failed call says why there is no result.
	Unavailable []UnavailableTool `json:"unavailable,omitempty"`
}

// UnavailableTool is a tool that cannot be used now. Why says what to do, in words of the tool's own process.
type UnavailableTool struct {
	Name string `json:"name"`
	Why  string `json:"why"`
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
	Type string `json:"type"`
	// a further restriction; empty = every tool that the type may use below this parent
	Tools  []string `json:"tools,omitempty"`
	Budget *Budget  `json:"budget,omitempty"` // a further restriction of the chain's budget
	// Plan is the text of the plan that the agents of the query work on, from the orchestrator only. The broker lets
	// its words count as the user's for searches and fetches when the session held nothing untrusted or private.
	Plan string `json:"plan,omitempty"`
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
