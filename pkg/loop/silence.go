package loop

import (
	"context"
	"fmt"
	"time"

	"conclave/pkg/model"
)

// readingFactor is how many times longer than expected a prompt may be read: the expectation is an average, and other
// programs may use the machine.
const readingFactor = 4

// firstTokenLimit is how long the first token may take: FirstToken, or longer where the measured speed of the model
// makes a long prompt slow. 0 = no bound.
func (l Limits) firstTokenLimit(expected time.Duration) time.Duration {
	if l.FirstToken <= 0 {
		return 0
	}
	return max(l.FirstToken, readingFactor*expected)
}

// TimeoutError means that a model call was ended because nothing came from the model. It is a context.DeadlineExceeded.
type TimeoutError struct {
	Setting string // call_timeout, or first_token_timeout when nothing came at all
	Limit   time.Duration
	File    string // see [Agent.Settings]
	Reading model.Reading
}

// Error says what did not come, and which setting bounds the wait.
func (e *TimeoutError) Error() string {
	if e.Setting == settingCall {
		return fmt.Sprintf("the model stopped writing: nothing came for %s%s", e.Limit, nameSetting(e.Setting, e.File))
	}
	prompt := ""
	if e.Reading.Tokens > 0 {
		prompt = fmt.Sprintf(" to a prompt of about %d tokens", e.Reading.Tokens)
	}
	return fmt.Sprintf("the model began no reply%s within %s%s", prompt, e.Limit, nameSetting(e.Setting, e.File))
}

// Unwrap makes it a timeout of a call for errors.Is.
func (e *TimeoutError) Unwrap() []error { return []error{errCallTimeout, context.DeadlineExceeded} }

// Settings of the two timeouts of a call.
const (
	settingCall  = "call_timeout"
	settingFirst = "first_token_timeout"
)

// nameSetting names a setting and its file in parentheses, "" without a file.
func nameSetting(setting, file string) string {
	if file == "" {
		return ""
	}
	return fmt.Sprintf(" (%s in %s)", setting, file)
}

// silenceTimer ends the context of a model call when nothing comes: for firstTokenLimit before the first chunk, for
// [Limits.CallTimeout] after it. A slow reply is not ended while it goes on; [Limits.TurnTimeout] bounds it. All
// methods are called in one goroutine.
type silenceTimer struct {
	limits  Limits
	timer   *time.Timer  // nil = no bound now
	timeout TimeoutError // the error when timer fires
	cancel  context.CancelCauseFunc
}

// startSilenceTimer returns the context of a call and its timer, which the caller must stop. limits must have their
// defaults; file is [Agent.Settings].
func startSilenceTimer(ctx context.Context, limits Limits, file string) (context.Context, *silenceTimer) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &silenceTimer{limits: limits, cancel: cancel, timeout: TimeoutError{File: file}}
	s.set(settingFirst, limits.firstTokenLimit(0))
	return ctx, s
}

// restart starts the time again after a chunk; reading is that of the chunk, nil for one with a part of the reply.
func (s *silenceTimer) restart(reading *model.Reading) {
	if reading == nil {
		s.set(settingCall, s.limits.CallTimeout)
		return
	}
	s.timeout = TimeoutError{File: s.timeout.File, Reading: *reading}
	s.set(settingFirst, s.limits.firstTokenLimit(reading.Expected))
}

// set ends the context after limit without another call of set; 0 = never.
func (s *silenceTimer) set(setting string, limit time.Duration) {
	if s.timer != nil {
		if setting == s.timeout.Setting && limit == s.timeout.Limit {
			s.timer.Reset(limit)
			return
		}
		s.timer.Stop()
		s.timer = nil
	}
	s.timeout.Setting, s.timeout.Limit = setting, limit
	if limit > 0 {
		err := s.timeout
		s.timer = time.AfterFunc(limit, func() { s.cancel(&err) })
	}
}

// stop ends the context of the call.
func (s *silenceTimer) stop() {
	s.set("", 0)
	s.cancel(nil)
}
