package agent

import (
	"time"

	"conclave/pkg/loop"
	"conclave/pkg/strict"
)

// Bounds of the size of one tool result.
const (
	minResult strict.Size = 256
	maxResult strict.Size = 64 << 10
)

// CheckLimits adds the limits of an actor's loops and of its tool calls that are out of bounds to out, by the names
// that they have in the configuration of every actor.
func CheckLimits(out *strict.Problems, l loop.Limits, toolTimeout time.Duration, maxSteps int) {
	out.CheckInt("steps", l.Steps, 1, maxSteps)
	out.CheckInt("predict", l.StepTokens, 64, 1<<20)
	out.CheckInt("answer", l.AnswerTokens, 64, 1<<20)
	if size := strict.Size(l.ResultBytes); size < minResult || size > maxResult {
		out.Add("result", "%s is not between %s and %s", size, minResult, maxResult)
	}
	out.CheckDuration("wall", l.TurnTimeout, 10*time.Millisecond, 24*time.Hour)
	out.CheckDuration("call_timeout", l.CallTimeout, 10*time.Millisecond, 24*time.Hour)
	out.CheckDuration("first_token_timeout", l.FirstToken, 10*time.Millisecond, 24*time.Hour)
	out.CheckDuration("tool_timeout", toolTimeout, 10*time.Millisecond, 24*time.Hour)
}
