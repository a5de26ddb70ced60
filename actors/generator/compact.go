package generator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// summaryTimeout is how long a summary may take. Nobody waits for it.
const summaryTimeout = 5 * time.Minute

// startSummary makes a summary of the oldest turns in the background when the conversation takes up too much of the model's
// window. One at a time for a session; whoever loses against another write drops the work, and a later turn tries again.
func (g *Generator) startSummary(out actor.Out, session string, c subjects.Conversation, rev uint64, size, window int) {
	most := window * g.cfg.CompactAt / 100
	if most == 0 || size <= most || len(c.Turns) < 2 { // a token has a byte at least
		return
	}
	n := countTurnsToSummarize(c, g.systemPrompt(nil), most)
	if n == 0 {
		return
	}
	if _, busy := g.summing.LoadOrStore(session, true); busy {
		return
	}
	g.mu.Lock()
	if g.background != nil {
		out = g.background.WithIDs(session, "") // the question's own deadline does not count for this
	}
	g.mu.Unlock()
	g.behind.Go(func() {
		defer g.summing.Delete(session)
		defer func() { // a mistake in here must not end the system
			if p := recover(); p != nil {
				out.LogError(fmt.Errorf("summarizing session %s: panic: %v", session, p))
			}
		}()
		ctx, cancel := context.WithTimeout(g.life, summaryTimeout)
		defer cancel()
		if err := g.summarizeTurns(ctx, out, session, c, rev, n, window); err != nil && g.life.Err() == nil {
			out.LogError(fmt.Errorf("summarizing session %s: %w", session, err))
		}
	})
}

// countTurnsToSummarize is how many turns a summary should take in: enough that the rest is half of what is allowed, and never the
// last one. 0 = none, there is room.
func countTurnsToSummarize(c subjects.Conversation, system string, most int) int {
	if loop.Estimate(system, nil, historyMessages(c))+loop.Estimate(c.Summary, nil, nil) <= most {
		return 0
	}
	n := len(c.Turns) - 1
	for left := 0; n > 0; n-- {
		left += loop.Estimate("", nil, historyMessages(subjects.Conversation{Turns: c.Turns[n : n+1]}))
		if left > most/2 {
			break
		}
	}
	return max(1, min(n+1, len(c.Turns)-1))
}

// summarizeTurns replaces the oldest n turns by a summary.
func (g *Generator) summarizeTurns(ctx context.Context, out actor.Out, session string, c subjects.Conversation, rev uint64, n, window int) error {
	a := loop.Agent{Chat: wire.Client{Out: out, Role: subjects.RoleSummaries, Timeout: g.cfg.CallTimeout}, Limits: g.cfg.loopLimits(), Now: out.Now, NewID: out.NewID}
	a.Options.Window = window
	summary, err := loop.Summarize(ctx, a, c.Summary, historyMessages(subjects.Conversation{Turns: c.Turns[:n]}))
	if err != nil {
		return err
	}
	store := out.Store(g.bucket())
	for {
		next := removeOldestTurns(c, n)
		next.Summary, next.Summarized, next.Updated = text.Clip(summary, 16<<10), c.Summarized+n, out.Now().UTC()
		data, err := encodeJSON(next)
		if err != nil {
			return err
		}
		g.at("compact/before")
		now, err := store.Put(ctx, subjects.ConversationKey(session), data, rev)
		if err == nil {
			g.at("compact/after")
			g.sessions.replace(session, rev, next, now)
			break
		}
		// A grade comes soon after an answer, which is when summaries are made. It changes no turn's words.
		fresh, at, rerr := readConversation(ctx, store, session)
		if !errors.Is(err, actor.ErrChanged) || rerr != nil || !sameTurns(c, fresh) {
			return err
		}
		c, rev = fresh, at
	}
	topic, err := subjects.AgentStateEvent.With(g.name)
	if err != nil {
		return err
	}
	return actor.EmitAsync(ctx, out, topic, subjects.AgentState{
		SessionID: session, To: string(idle), Code: subjects.NoteCompacted, Words: fmt.Sprintf("%d turns were summarized to make room", n),
	})
}

// sameTurns reports whether two conversations differ in their grades at most.
func sameTurns(a, b subjects.Conversation) bool {
	return a.Summarized == b.Summarized && a.Dropped == b.Dropped &&
		slices.EqualFunc(a.Turns, b.Turns, func(x, y subjects.Turn) bool { return x.QueryID == y.QueryID })
}
