package generator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model/wire"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// summaryTimeout is the timeout of a summary. It runs in the background, so it may be long.
const summaryTimeout = 5 * time.Minute

// summaries are the summaries that run in the background, at most one per session. The zero value is ready.
type summaries struct {
	running sync.WaitGroup
	mu      sync.Mutex
	cancels map[string]context.CancelFunc // by session
	closed  bool
}

// start runs work in a goroutine. It does nothing when one runs for the session already, or after cancelAll. The
// context of work has the values of ctx but not its end.
func (s *summaries) start(ctx context.Context, session string, work func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.cancels[session] != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), summaryTimeout)
	if s.cancels == nil {
		s.cancels = map[string]context.CancelFunc{}
	}
	s.cancels[session] = cancel
	s.running.Go(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.cancels, session)
			cancel()
		}()
		work(ctx)
	})
}

// cancel cancels the summary of a session, if one runs.
func (s *summaries) cancel(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[session]; cancel != nil {
		cancel()
	}
}

// cancelAll cancels all summaries. None is started after it.
func (s *summaries) cancelAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel()
	}
}

// startSummary summarizes the oldest turns in the background, without waiting, when the conversation exceeds its share
// (CompactAt) of the model's window. rev and size are the revision and the encoded bytes of c, window is in tokens. It
// does nothing with fewer than two turns, without CompactAt, or while a summary of the session runs. Failures are
// logged, also of a summary that loses against another write; a later turn tries again.
func (g *Generator) startSummary(ctx context.Context, out actor.Out, session string, c subjects.Conversation,
	rev uint64, size, window int,
) {
	most := window * g.cfg.CompactAt / 100
	if most == 0 || size <= most || len(c.Turns) < 2 { // a token has a byte at least
		return
	}
	n := countTurnsToSummarize(c, g.systemPrompt(), most)
	if n == 0 {
		return
	}
	g.mu.Lock()
	if g.background != nil {
		out = g.background.WithIDs(session, "") // without the deadline of the question
	}
	g.mu.Unlock()
	g.summaries.start(ctx, session, func(ctx context.Context) {
		defer func() { // a panic here must not end the process
			if p := recover(); p != nil {
				out.LogError(fmt.Errorf("summarizing session %s: panic: %v", session, p))
			}
		}()
		if err := g.summarizeTurns(ctx, out, session, c, rev, n, window); err != nil &&
			!errors.Is(ctx.Err(), context.Canceled) {
			out.LogError(fmt.Errorf("summarizing session %s: %w", session, err))
		}
	})
}

// countTurnsToSummarize is how many of the oldest turns a summary replaces: enough that the rest has about half of most
// tokens, at least one but never the last. 0 = the conversation with the system prompt fits. c must have two turns or
// more.
func countTurnsToSummarize(c subjects.Conversation, system string, most int) int {
	if loop.Estimate(system, nil, buildHistory(c))+loop.Estimate(c.Summary, nil, nil) <= most {
		return 0
	}
	n := len(c.Turns) - 1
	for left := 0; n > 0; n-- {
		left += loop.Estimate("", nil, buildHistory(subjects.Conversation{Turns: c.Turns[n : n+1]}))
		if left > most/2 {
			break
		}
	}
	return max(1, min(n+1, len(c.Turns)-1))
}

// summarizeTurns replaces the oldest n turns of c, stored as revision rev, by a summary. Only grades may change in the
// conversation meanwhile: after any other write it fails with actor.ErrChanged and changes nothing. window is in
// tokens.
func (g *Generator) summarizeTurns(ctx context.Context, out actor.Out, session string, c subjects.Conversation,
	rev uint64, n, window int,
) error {
	demo := false
	onDone := func(c subjects.ChatChunk) { demo = c.DemoModel }
	a := loop.Agent{Chat: wire.Client{
		Out: out, Role: subjects.RoleSummaries, Timeout: g.cfg.Wall, OnDone: onDone,
		Background: true,
	}, Limits: g.cfg.loopLimits(), Settings: settingsFile, Now: out.Now, NewID: out.NewID}
	a.Options.Window = window
	summary, err := loop.Summarize(ctx, a, c.Summary, buildHistory(subjects.Conversation{Turns: c.Turns[:n]}))
	if err == nil && demo {
		err = subjects.Faultf(subjects.CodeUnsupported, "the built-in demo model cannot summarize: start Ollama")
	}
	if err != nil {
		return err
	}
	store := out.Store(g.Bucket.Name)
	for {
		next := conversation.RemoveOldest(c, n)
		next.Summary, next.Summarized, next.Updated = text.Clip(summary, 16<<10), c.Summarized+n, out.Now().UTC()
		actor.Step(ctx, "compact/before")
		now, err := conversation.Replace(ctx, store, c, rev, next)
		if err == nil {
			actor.Step(ctx, "compact/after")
			g.sessions.replaceOlder(session, next, now)
			break
		}
		// A grade is often stored just now: it comes soon after an answer, as a summary does.
		fresh, at, rerr := conversation.Read(ctx, store, session)
		if !errors.Is(err, actor.ErrChanged) || rerr != nil || !sameTurns(c, fresh) {
			return err
		}
		c, rev = fresh, at
	}
	g.emitSessionNote(out, session, "", subjects.NoteCompacted, fmt.Sprintf("%d turns were summarized to make room",
		n))
	return nil
}

// sameTurns reports whether two conversations differ in their grades at most.
func sameTurns(a, b subjects.Conversation) bool {
	return a.Summarized == b.Summarized && a.Dropped == b.Dropped &&
		slices.EqualFunc(a.Turns, b.Turns, func(x, y subjects.Turn) bool { return x.QueryID == y.QueryID })
}
