package model

import (
	"context"
	"errors"
	"time"

	"conclave/pkg/model"
	"conclave/subjects"
)

// observedReply is what the hub itself sees of a reply: its times by the hub's clock, and its size.
type observedReply struct {
	begun, first, ended time.Time // first is that of the first chunk; zero when all came in the last one
	bytes               int
}

// add notes a chunk that is not the last. A notice is not a part of the reply.
func (o *observedReply) add(c subjects.ChatChunk) {
	if c.Notice != "" {
		return
	}
	if o.first.IsZero() {
		o.first = time.Now()
	}
	o.bytes += len(c.Content) + len(c.Thinking) + len(c.ToolCalls)
}

// end notes the last chunk, the zero value when there was none.
func (o *observedReply) end(last model.Chunk) {
	o.ended = time.Now()
	o.bytes += chunkSize(last)
}

// replaceClaims replaces the times that a machine reports by those of the hub, and bounds its count of tokens by the
// bytes that arrived: the measured speed decides which machine gets the next calls. The output takes at least a part of
// the whole time, so that a machine that waits and then sends everything at once is not a fast one.
func (o *observedReply) replaceClaims(f *model.Final) {
	total := o.ended.Sub(o.begun)
	f.PromptTime, f.OutputTime = total, total
	if !o.first.IsZero() {
		f.PromptTime, f.OutputTime = o.first.Sub(o.begun), max(o.ended.Sub(o.first), total/cachedFactor)
	}
	f.OutputTokens = min(max(f.OutputTokens, o.bytes/maxBytesPerToken), o.bytes/minBytesPerToken)
}

// noteEnd makes a machine whose call failed, or ended without content, the last choice of the next calls for a while:
// see [LinkTimes]. A call that was preempted, or that its caller stopped before the machine had time to reply, is not
// held against it.
func (s *machines) noteEnd(turn context.Context, t target, o observedReply, err error) {
	c := s.get(t.machine)
	if c == nil || errors.Is(err, errPreempted) || errors.Is(err, errPreemptedMidReply) {
		return
	}
	failed := o.bytes == 0
	switch {
	case turn.Err() != nil:
		failed = o.ended.Sub(o.begun) >= c.times.Lost
	case err != nil:
		failed = isServerLost(err) || errors.Is(err, model.ErrMalformed)
	}
	if failed {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.avoidUntil = o.ended.Add(c.times.Avoid)
	}
}

// isAvoided reports whether a call of the machine failed a short time ago. A nil machine is the hub.
func (c *machine) isAvoided(now time.Time) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.avoidUntil)
}
