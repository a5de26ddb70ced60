package model

import (
	"context"
	"errors"

	"conclave/subjects"
)

// backgroundPriority has the accounts whose requests no user waits for; a higher number is a lower priority. A request
// is admitted before all of a lower priority, and preempts one of them that holds its slot. The critic is last: a grade
// has no deadline, while an answer of respondent B is compared only if it arrives within the pair wait.
//
// The priority depends on the account that the server wrote into the subject, and on nothing in the request: else any
// caller could raise its own priority, or lower another's.
//
// Background requests wait for as long as there are foreground requests; there is no aging: a grade must never delay an
// answer. While there are none, they run at once.
var backgroundPriority = map[string]int{
	subjects.RespondentB: 1,
	"critic":             2,
}

const (
	foreground = 0
	lowest     = 2
	priorities = 3
)

// priorityOf returns the priority of an account: foreground unless it is in [backgroundPriority].
func priorityOf(account string) int { return backgroundPriority[account] }

// errPreempted is the cause of a turn whose slot was given to a request of a higher priority.
var errPreempted = errors.New("preempted by a foreground request")

// errPreemptedMidReply means that a reply was preempted after a part of it was sent, so that it cannot be restarted.
var errPreemptedMidReply = errors.New("the reply was preempted by a foreground request after a part of it was sent")

// preemptionError returns err, unless turn was preempted: then [errPreemptedMidReply] if a part of the reply was sent,
// else [errPreempted], with which the queue runs the request again.
func preemptionError(turn context.Context, err error, sent bool) error {
	switch {
	case !errors.Is(context.Cause(turn), errPreempted):
		return err
	case sent:
		return errPreemptedMidReply
	}
	return errPreempted
}
