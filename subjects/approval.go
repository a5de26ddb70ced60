package subjects

import (
	"encoding/json"
	"time"
)

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
	Reason    string          `json:"reason"`          // why it asks, for the user
	Rules     []string        `json:"rules,omitempty"` // that ask, as "layer: rule", when there are several reasons
	// where data would be sent; a remembered decision holds for these only
	Sinks []string        `json:"sinks,omitempty"`
	Hosts []LookAlikeHost `json:"hosts,omitempty"` // host names in the arguments and sinks that are not ASCII
	// what the call would do, as the tool describes it: a diff, a dry run
	Preview string    `json:"preview,omitempty"`
	Taint   []Taint   `json:"taint,omitempty"`
	Grants  []Grant   `json:"grants,omitempty"` // what the question permits, none of which covers this call
	Form    *UserForm `json:"form,omitempty"`   // the running call asks the user this; nil = whether it may run
	Asked   time.Time `json:"asked"`
	Expires time.Time `json:"expires"`
}

// Grant is what a question permits after untrusted content, derived from the user's own words.
type Grant struct {
	Acts   []string `json:"acts"`           // kinds of acts, any of them
	Times  int      `json:"times"`          // how often
	Used   int      `json:"used,omitempty"` // how often it was used
	Clause string   `json:"clause"`         // the words that it is derived from
	// To and Places are in records of older versions.
	To     []string `json:"to,omitempty"`
	Places []string `json:"places,omitempty"`
}

// Grants are the grants of one question, before any tool result was read. None means that every act after untrusted
// content asks.
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
	Approve bool `json:"approve"`
	// the user's own call no longer waits: close the request; excludes Approve
	Withdraw bool   `json:"withdraw,omitempty"`
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
	// set a question and all turns after it aside, so that the next question follows the turn before it
	SessionBranch = "branch"
	SessionSwitch = "switch" // continue with a branch; the turns in its place become one
)

// SessionChange requests a change of a stored conversation.
type SessionChange struct {
	SessionID string `json:"session_id"`
	Change    string `json:"change"` // SessionDelete, SessionCompact, SessionBranch or SessionSwitch
	// SessionBranch: the question to set aside; SessionSwitch: the first one of the branch
	QueryID string `json:"query_id,omitempty"`
}

// SessionChanged says how many turns were deleted, summarized or set aside.
type SessionChanged struct {
	SessionID string `json:"session_id"`
	Change    string `json:"change"`
	Turns     int    `json:"turns"`
}
