package subjects

import (
	"errors"
	"fmt"
)

// Fault codes on the bus. A code never changes its meaning.
const (
	CodeMalformed   = "malformed"          // could not be decoded, or an unknown field
	CodeTooLarge    = "too_large"          // payload over the subject's limit
	CodeCodec       = "wrong_codec"        // a content type this subject does not read
	CodeSubject     = "bad_subject"        // the subject's tokens are not what this subject allows
	CodeNoDeadline  = "no_deadline"        // a request that must carry a deadline did not
	CodeExpired     = "expired"            // the deadline had passed when the message was read
	CodeBusy        = "busy"               // mailbox full
	CodeDenied      = "denied"             // denied by policy
	CodeUnknownTool = "unknown_tool"       // no tool of that name is known
	CodeUnavailable = "unavailable"        // no responder
	CodeUnserved    = "unserved"           // no actor of this version serves the subject
	CodeTimeout     = "timeout"            // no reply before the deadline
	CodeNoAudit     = "audit_unavailable"  // the audit could not store the record, so nothing ran
	CodeUnrecorded  = "outcome_unrecorded" // it ran, the audit did not store the outcome, and the result is withheld
	CodeTool        = "tool_failed"        // the tool ran and reported an error
	CodeInternal    = "internal"           // a bug or failure; details are in the actor's log
	CodePermission  = "permission"         // the server denied a subject
	CodeStopped     = "stopped"            // the user stopped it
	CodeUncertain   = "uncertain"          // it may have run before a crash; it is not run again
	CodeNotApproved = "not_approved"       // the user denied the approval
	CodeUnanswered  = "unanswered"         // the approval expired: also a denial
	CodeLimit       = "limit"              // a limit of the policy is reached
	// a stream has no room for the message: the quota of its publisher or the size of the stream is used up
	CodeFull       = "full"
	CodeTaskFailed = "task_failed" // no subtask of a task is done
	CodeNoSecret   = "no_secret"   // a credential that the call needs is missing
	CodeExists     = "exists"      // something of that name exists or existed
	CodeNoChange   = "no_change"   // a keeper of changes has none that is selected

	CodeModelUnreachable = "model_unreachable" // the model server is unreachable
	CodeModelMissing     = "model_missing"
	CodeModelNoTools     = "model_no_tools"
	CodeModelNoThinking  = "model_no_thinking"
	CodeModelNoVision    = "model_no_vision" // the model cannot read images
	CodeModelTooLong     = "model_too_long"  // the prompt does not fit
	CodeModelMalformed   = "model_malformed"
	CodeModelCut         = "model_cut"    // the reply was cut off
	CodeModelRunner      = "model_runner" // the server's process that runs the model stopped
	CodeModelRemote      = "model_remote" // the request would leave this machine, and the model is not allowed by name
	CodeModelKey         = "model_key"    // the server rejects the key
	CodeModelSwap        = "model_swap"   // a background call or embedding unloaded the model that answers
	CodeUnsupported      = "unsupported"
	CodeUnknownAnswer    = "unknown_answer"  // feedback about an unknown or expired answer
	CodeNoPersonas       = "no_personas"     // no persona is active, and the question names none
	CodeUnknownPersona   = "unknown_persona" // the question names a persona that is not configured
	// an attached image is not stored in this session, or no longer, or is damaged
	CodeNoAttachment = "attachment_missing"
)

// Fault is an error on the bus: a code for programs and a short text for users, without internals.
type Fault struct {
	Code   string  `json:"code"`
	Text   string  `json:"text"`
	Denial *Denial `json:"denial,omitempty"`
}

// Denial is the decision of a policy layer: its rule, the reason, and what would have been allowed.
type Denial struct {
	Layer   string   `json:"layer"`
	Rule    string   `json:"rule"`
	Reason  string   `json:"reason"`
	Allowed []string `json:"allowed,omitempty"`
}

// Error implements error.
func (f *Fault) Error() string { return f.Code + ": " + f.Text }

// Faultf returns a fault with a formatted text.
func Faultf(code, format string, a ...any) *Fault {
	return &Fault{Code: code, Text: fmt.Sprintf(format, a...)}
}

// CodeOf returns the code of the fault in err, "" when there is none.
func CodeOf(err error) string {
	if f, ok := errors.AsType[*Fault](err); ok && f != nil {
		return f.Code
	}
	return ""
}

// ErrorCode returns the code of f in a reply to a request on s: its own, and on a raw subject the number that the micro
// protocol and HTTP have for it.
func (s Spec) ErrorCode(f *Fault) string {
	if s.Codec != Raw {
		return f.Code
	}
	switch f.Code {
	case CodeMalformed, CodeTooLarge, CodeCodec, CodeNoDeadline, CodeExpired, CodeUnsupported:
		return "400"
	case CodeDenied, CodePermission:
		return "403"
	case CodeSubject:
		return "404"
	case CodeBusy, CodeLimit:
		return "429"
	}
	return "500"
}
