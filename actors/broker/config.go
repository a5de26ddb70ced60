package broker

import (
	"errors"
	"time"
)

// Config is the broker's settings.
type Config struct {
	CallTimeout  time.Duration // longest run of a tool that names no time of its own
	AuditTimeout time.Duration // how long a call waits for its audit record
	ShowResult   int           // bytes of a result that an agent is shown; the rest is parked. 0 = [DefaultShow]
	ModelTimeout time.Duration // how long a small model may take to choose tools; 0 = no model is asked, also not to read pages
	ModelKeys    []string      // names of the credentials that the model actor may use
	ApprovalWait time.Duration // how long a question to the user stays open; 0 = what the manifest says
}

// Calls are counted in memory.
const (
	defaultWindow   = 10 * time.Minute // in which calls are identical, when the manifest does not say
	countsRetention = 24 * time.Hour   // what a question or an agent has used, after it was last heard of
	maxCounted      = 10_000           // entries of each kind
)

// defaultApprovalWait is how long the user has to answer when nothing else is said.
const defaultApprovalWait = 5 * time.Minute

// DefaultShow is how much of a result an agent is shown.
const DefaultShow = 15 << 10

// Validate reports the first thing wrong with c.
func (c Config) Validate() error {
	if c.CallTimeout <= 0 {
		return errors.New("call_timeout must be positive")
	}
	if c.AuditTimeout <= 0 {
		return errors.New("audit_timeout must be positive")
	}
	return nil
}
