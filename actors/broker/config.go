package broker

import (
	"errors"
	"time"
)

// Config is the broker's configuration.
type Config struct {
	CallTimeout time.Duration // timeout of a tool whose facts name none
	// timeout of an audit record, and of writes that the caller's deadline must not interrupt
	AuditTimeout time.Duration
	ShowResult   int // bytes of a result that the caller gets; the rest is parked. 0 = [DefaultShow]
	// timeout of the model that ranks tools; 0 = no model is used, neither for ranking nor for distilling
	ModelTimeout time.Duration
	ModelKeys    []string // names of the credentials that the model actor may use
	// folder of the working folders, one per question; "" = there are none, and relative paths are denied
	Workspace string
	// discoveries, dry runs and spawn requests of one account per second; 0 = 5. Each is recorded, so that an agent
	// without limit could fill the audit log
	QuestionRate int
	ApprovalWait time.Duration // how long an approval request stays pending; 0 = as the manifest says
	// how long a tool runs before the copy of its call is published without that of the result; 0 = [defaultCopyDelay]
	CopyDelay time.Duration
	// bytes of the copies of calls and results per day, which the callers share; 0 = [defaultEventBytes]
	EventBytes int64
}

// Usage is counted in memory.
const (
	defaultWindow   = 10 * time.Minute // window for identical calls when the manifest sets none
	countsRetention = 24 * time.Hour   // how long the usage of an idle query or agent is kept
	maxCounted      = 10_000           // entries of each kind
)

// defaultCopyDelay is longer than a fast tool takes, and too short to notice.
const defaultCopyDelay = 2 * time.Millisecond

// defaultEventBytes is the broker's part of the events in the shipped settings.
const defaultEventBytes = 120 << 20

// defaultApprovalWait is how long an approval request stays pending when neither configuration nor manifest sets it.
const defaultApprovalWait = 5 * time.Minute

// defaultQuestionRate is [Config] QuestionRate when it is not set.
const defaultQuestionRate = 5

// DefaultShow is how many bytes of a result a caller gets.
const DefaultShow = 15 << 10

// Validate reports the first thing wrong with c: a CallTimeout or AuditTimeout that is not positive. Other fields are
// not checked.
func (c Config) Validate() error {
	if c.CallTimeout <= 0 {
		return errors.New("call_timeout must be positive")
	}
	if c.AuditTimeout <= 0 {
		return errors.New("audit_timeout must be positive")
	}
	return nil
}
