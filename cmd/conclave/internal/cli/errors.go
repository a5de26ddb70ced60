package cli

import (
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // wrong arguments
	ExitDenied = 3 // denied by policy
	ExitAbsent = 4 // nothing to connect to: not running, unreachable, no such tool
	ExitAudit  = 5 // the audit log does not verify
)

// ExitHelp lists them for the root help.
const ExitHelp = `Exit codes:
  0  success
  1  failed
  2  wrong usage
  3  denied by policy
  4  not reachable (not running, no answer, tool unavailable)
  5  the audit log does not verify`

// Failure is an error with an exit code.
type Failure struct {
	Code int
	Err  error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Fail returns an error with an exit code that says what happened and what to do: "what: fix".
func Fail(code int, what, fix string) error { return &Failure{code, errors.New(what + ": " + fix)} }

// Usage returns the error of wrong arguments, with exit code 2.
func Usage(format string, v ...any) error { return &Failure{ExitUsage, fmt.Errorf(format, v...)} }

// Code is the exit code of an error: 0 for nil, that of a [Failure], 4 when nothing runs or answers, 1 for any other.
func Code(err error) int {
	var f *Failure
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &f):
		return f.Code
	case errors.Is(err, bus.ErrNotRunning), errors.Is(err, bus.ErrUnreachable):
		return ExitAbsent
	}
	return ExitFailed
}

// faultRow is the exit code and the fix of a fault's code.
type faultRow struct {
	exit int
	fix  string
}

var toolFaults = map[string]faultRow{
	subjects.CodeNotApproved: {ExitDenied, "nothing was run"},
	subjects.CodeUnanswered:  {ExitDenied, "nothing was run; conclave approve lists waiting calls"},
	subjects.CodeDenied:      {ExitDenied, "the policy is in manifest.yaml"},
	subjects.CodeLimit:       {ExitDenied, "wait, or raise the limits in manifest.yaml"},
	subjects.CodeNoSecret:    {ExitFailed, "conclave secret check lists the stored credentials"},
	subjects.CodeUncertain:   {ExitFailed, "check whether it has run before you call it again"},
	subjects.CodeUnknownTool: {ExitAbsent, "conclave tool list shows the tools that you added, also those of MCP " +
		"servers; conclave actor those of this build, conclave top the running ones"},
	subjects.CodeUnavailable: {ExitAbsent, "conclave doctor shows what runs"},
	subjects.CodeTimeout:     {ExitAbsent, "try again, or raise --timeout"},
	subjects.CodeExpired:     {ExitAbsent, "try again, or raise --timeout"},
	subjects.CodeBusy:        {ExitAbsent, "try again, or raise --timeout"},
	subjects.CodeTool:        {ExitFailed, ""}, // the tool's own text says what to do
	subjects.CodeMalformed:   {ExitFailed, "change the arguments"},
	subjects.CodeTooLarge:    {ExitFailed, "change the arguments"},
	subjects.CodeNoAudit:     {ExitFailed, "see conclave doctor"},
	subjects.CodeUnrecorded:  {ExitFailed, "see conclave doctor"},
}

var answerFaults = map[string]faultRow{
	subjects.CodeUnknownPersona:   {ExitUsage, "choose from them with --committee"},
	subjects.CodeNoPersonas:       {ExitUsage, "name personas with --committee"},
	subjects.CodeModelUnreachable: {ExitAbsent, "start the model server, then ask again; see conclave doctor"},
	subjects.CodeModelMissing: {
		ExitAbsent,
		"fetch it with conclave model pull, or choose from conclave model list",
	},
	subjects.CodeModelRemote: {ExitDenied, "choose a local one from conclave model list, or allow this one by " +
		"name in models.yaml"},
	subjects.CodeModelKey:     {ExitFailed, "correct the key of that server, or choose another model with --model"},
	subjects.CodeModelTooLong: {ExitFailed, "ask for less at once, or start a new session"},
	subjects.CodeUnavailable:  {ExitAbsent, "conclave doctor shows what runs"},
	subjects.CodeTimeout:      {ExitAbsent, "try again"},
	subjects.CodeExpired:      {ExitAbsent, "try again"},
	subjects.CodeBusy:         {ExitAbsent, "try again"},
	subjects.CodeStopped:      {ExitFailed, "ask again"},
	subjects.CodeUnsupported:  {ExitFailed, "choose another model; conclave model list shows what each supports"},
	subjects.CodeModelCut:     {ExitFailed, "ask again, or choose another model with --model"},
	subjects.CodeModelRunner: {ExitFailed, "look into the model server's log, or choose a smaller model with " +
		"--model"},
	subjects.CodeModelMalformed: {ExitFailed, "ask again, or choose another model with --model"},
	subjects.CodeModelNoTools:   {ExitFailed, "ask again, or choose another model with --model"},
	subjects.CodeModelNoVision: {ExitFailed, "choose a model that reads images with --model; conclave model list " +
		"shows which do"},
	subjects.CodeNoAttachment:    {ExitFailed, "attach the image again"},
	subjects.CodeModelNoThinking: {ExitFailed, "ask again, or choose another model with --model"},
	subjects.CodeMalformed:       {ExitFailed, "rephrase the question"},
	subjects.CodeTooLarge:        {ExitFailed, "shorten the question"},
	subjects.CodeTaskFailed:      {ExitFailed, "conclave task show prints what became of each subtask"},
}

var memoryFaults = map[string]faultRow{
	subjects.CodeUnavailable: {ExitAbsent, "see conclave doctor"},
	subjects.CodeTimeout:     {ExitAbsent, "try again"},
	subjects.CodeExpired:     {ExitAbsent, "try again"},
	subjects.CodeBusy:        {ExitAbsent, "try again"},
	subjects.CodeMalformed:   {ExitFailed, ""}, // memory's own text says what to do
	subjects.CodeTooLarge:    {ExitFailed, ""},
	subjects.CodeNoAudit:     {ExitFailed, "see conclave doctor"},
	subjects.CodeUnrecorded:  {ExitFailed, "see conclave doctor"},
}

// explain makes an error of a fault: what, the fault's code, and the fix and exit code that rows has for it. A code
// that is not in rows refers to the log.
func explain(what string, rows map[string]faultRow, f *subjects.Fault) error {
	row, ok := rows[f.Code]
	switch what = fmt.Sprintf("%s (%s)", what, f.Code); {
	case !ok:
		return Fail(ExitFailed, what, "see the log of conclave up")
	case row.fix == "":
		return &Failure{row.exit, errors.New(what)}
	}
	return Fail(row.exit, what, row.fix)
}

// ToolFault explains the fault of a call or of a request to the broker, with the exit code of its cause; name is the
// tool or the thing requested. A denial says which layer denied it, by which rule, and what is allowed. f must not be
// nil.
func ToolFault(name string, f *subjects.Fault) error {
	d := f.Denial
	if d == nil || f.Code == subjects.CodeNotApproved || f.Code == subjects.CodeUnanswered {
		return explain(name+": "+f.Text, toolFaults, f)
	}
	fix := "the rules are in manifest.yaml; conclave policy explain shows what each layer decides"
	switch {
	case d.Rule == subjects.CodeUnknownTool: // as for a call of it
		return explain(name+": "+d.Reason, toolFaults, &subjects.Fault{Code: subjects.CodeUnknownTool})
	case len(d.Allowed) > 0:
		fix = "allowed: " + strings.Join(d.Allowed, ", ")
	case d.Layer == (policy.ArgumentsLayer{}).Name():
		fix = "change the arguments"
	case f.Code == subjects.CodeLimit:
		fix = toolFaults[f.Code].fix
	}
	return Fail(ExitDenied, fmt.Sprintf("%s was denied by layer %s, rule %s: %s", name, d.Layer, d.Rule, d.Reason), fix)
}

// AnswerFault explains the fault of a question without an answer, or with a partial one, with the exit code of its
// cause. f must not be nil.
func AnswerFault(f *subjects.Fault) error {
	if f.Denial != nil || f.Code == subjects.CodeDenied {
		return ToolFault("the question", f)
	}
	return explain(f.Text, answerFaults, f)
}

// BrokerError explains a fault of a request to the broker; what is the thing requested. Other errors, and nil, are
// returned as they are.
func BrokerError(what string, err error) error {
	var f *subjects.Fault
	if errors.As(err, &f) {
		return ToolFault(what, f)
	}
	return err
}

// RequestError explains a fault of a request to an actor: with absent when no such actor is running, else as explain
// does. Other errors, and nil, are returned as they are.
func RequestError(err, absent error, explain func(f *subjects.Fault) error) error {
	var f *subjects.Fault
	switch {
	case !errors.As(err, &f):
		return err
	case f.Code == subjects.CodeUnavailable && !actor.IsReplyFault(err):
		return absent
	}
	return explain(f)
}

// ModelError is [RequestError] of a request to the model actor.
func ModelError(err error) error {
	return RequestError(err, Fail(ExitAbsent, "no model actor is running", "see conclave doctor, or start one with "+
		"conclave actor model"), AnswerFault)
}

// ErrNoMemory means that no memory actor runs: the next request would fail too.
var ErrNoMemory = errors.New("no memory actor is running")

// MemoryError is [RequestError] of a request to memory; it wraps [ErrNoMemory] when no memory actor is running.
func (a *App) MemoryError(err error) error {
	return RequestError(err, &Failure{ExitAbsent, fmt.Errorf("%w: see %s doctor, or start one with %[2]s actor memory",
		ErrNoMemory, a.Program())}, func(f *subjects.Fault) error {
		what := f.Text
		if !strings.HasPrefix(what, "memory") {
			what = "memory: " + what
		}
		switch row, ok := memoryFaults[f.Code]; {
		case !ok:
			return ToolFault("memory", f)
		case row.fix == "":
			return &Failure{row.exit, errors.New(what)}
		}
		return explain(what, memoryFaults, f)
	})
}
