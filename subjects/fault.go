package subjects

import "fmt"

// Codes of what can go wrong, as they stand on the bus. A code never changes its meaning.
const (
	CodeMalformed   = "malformed"         // could not be decoded, or an unknown field
	CodeTooLarge    = "too_large"         // payload over the subject's limit
	CodeCodec       = "wrong_codec"       // a content type this subject does not read
	CodeSubject     = "bad_subject"       // the subject's tokens are not what this subject allows
	CodeNoDeadline  = "no_deadline"       // a request that must carry a deadline did not
	CodeExpired     = "expired"           // the deadline had passed when the message was read
	CodeBusy        = "busy"              // mailbox full
	CodeDenied      = "denied"            // policy said no
	CodeUnknownTool = "unknown_tool"      // no tool of that name is known
	CodeUnavailable = "unavailable"       // nobody answers there
	CodeTimeout     = "timeout"           // no answer before the deadline
	CodeNoAudit     = "audit_unavailable" // the audit could not store the record, so nothing ran
	CodeUnrecorded  = "outcome_unrecorded"
	CodeTool        = "tool_failed"  // the tool ran and reported an error
	CodeInternal    = "internal"     // a bug on our side; details are in that actor's log
	CodePermission  = "permission"   // the server refused a subject
	CodeStopped     = "stopped"      // the user stopped it
	CodeUncertain   = "uncertain"    // it may have run before a crash; it is not run again
	CodeNotApproved = "not_approved" // the user was asked and said no
	CodeUnanswered  = "unanswered"   // the user was asked and did not answer in time: a denial, and told apart from one
	CodeLimit       = "limit"        // a limit of the policy is reached
	CodeNoSecret    = "no_secret"    // a credential that the call needs is not there

	CodeModelUnreachable = "model_unreachable" // the model server does not answer
	CodeModelMissing     = "model_missing"
	CodeModelNoTools     = "model_no_tools"
	CodeModelNoThinking  = "model_no_thinking"
	CodeModelTooLong     = "model_too_long" // the prompt does not fit
	CodeModelMalformed   = "model_malformed"
	CodeModelCut         = "model_cut"    // the reply broke off
	CodeModelRemote      = "model_remote" // it would leave this machine, and nobody allowed it by name
	CodeModelKey         = "model_key"    // the server does not accept the key
	CodeUnsupported      = "unsupported"
	CodeUnknownAnswer    = "unknown_answer" // feedback about an answer that nobody gave, or that is forgotten
)

// Fault is an error as it travels on the bus: a code for programs, a short text for people, no internals.
type Fault struct {
	Code   string  `json:"code"`
	Text   string  `json:"text"`
	Denial *Denial `json:"denial,omitempty"`
}

// Denial says which layer refused, by which rule, why, and what would have been allowed.
type Denial struct {
	Layer   string   `json:"layer"`
	Rule    string   `json:"rule"`
	Reason  string   `json:"reason"`
	Allowed []string `json:"allowed,omitempty"`
}

// Error implements error.
func (f *Fault) Error() string { return f.Code + ": " + f.Text }

// Faultf makes a fault.
func Faultf(code, format string, a ...any) *Fault {
	return &Fault{Code: code, Text: fmt.Sprintf(format, a...)}
}
