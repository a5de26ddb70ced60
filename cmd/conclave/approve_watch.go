package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

const (
	// lookSometimes is how often the questions are looked at though nothing was heard.
	lookSometimes = 5 * time.Second
	// tooFast is how soon after a question was shown nobody can have read it: the line was typed before.
	tooFast = 250 * time.Millisecond
	// mistaken is the same when the question took the place of another: the line was meant for that.
	mistaken = time.Second
)

// typedAhead is said of a line that came too fast.
const typedAhead = "that was typed before the question could be read: look at it, then answer"

// typed reads lines from a terminal, until Ctrl-D. It cannot be interrupted, so it is left behind at the end. A file or a
// pipe is nobody who could be asked.
func typed(r io.Reader) <-chan string {
	f, is := r.(*os.File)
	if !is || !isTerminal(f) {
		return nil
	}
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(f); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// meant is the answer behind a typed line. Everything but a clear yes is no.
func meant(line string) subjects.ApprovalDecision {
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return subjects.ApprovalDecision{Approve: true}
	case "s", "session":
		return subjects.ApprovalDecision{Approve: true, Remember: subjects.RememberSession}
	case "a", "always":
		return subjects.ApprovalDecision{Approve: true, Remember: subjects.RememberAlways}
	}
	return subjects.ApprovalDecision{}
}

// watch is the questions on a screen, one at a time.
type watch struct {
	*approve
	out   actor.Out
	lines <-chan string   // nil = nobody is asked
	shown map[string]bool // questions that were printed
	open  *subjects.Approval
	since time.Time // when it was asked
	hasty bool      // it took the place of another: what is typed at once was meant for that
}

// follow shows each question as it comes, until the user has had enough. What is heard live only says that there is
// something new; what is shown is what the broker says.
func (p *approve) follow(ctx context.Context) error {
	news := make(chan *nats.Msg, 256)
	again := make(chan struct{}, 1)
	nc, err := p.dial("user", nats.ReconnectHandler(func(*nats.Conn) {
		select {
		case again <- struct{}{}:
		default: // it will look anyway
		}
	}))
	if err != nil {
		return err
	}
	defer nc.Close()
	for _, subject := range []string{subjects.ApprovalRequestEvent.LiveSubject(), subjects.ApprovalDecisionEvent.LiveSubject()} {
		if _, err := nc.ChanSubscribe(subject, news); err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
	}
	if err := bus.Ready(ctx, nc); err != nil {
		return fmt.Errorf("listening for questions: %w", err)
	}
	w := &watch{approve: p, shown: map[string]bool{}}
	if w.out, err = actor.NewOut(nc); err != nil {
		return err
	}
	if !p.json {
		w.lines = typed(p.stdin)
		p.say("watching for questions; Ctrl-C ends it, and what is not answered stays open")
	}
	if err := w.look(ctx); err != nil {
		return quietly(ctx, err)
	}
	now := time.NewTicker(lookSometimes)
	defer now.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-w.lines:
			err = w.typed(ctx, line)
		case <-news:
			err = w.look(ctx)
		case <-again:
			err = w.look(ctx)
		case <-now.C:
			err = w.look(ctx)
		}
		if err != nil && ctx.Err() == nil {
			p.say("%s", oneLine(err.Error())) // the next look may find the broker again
		}
		if p.stdout.err != nil {
			return p.stdout.err
		}
	}
}

// look shows what is new, and asks about one question at a time.
func (w *watch) look(ctx context.Context) error {
	l, err := fetchApprovals(ctx, w.out, false)
	if err != nil {
		return err
	}
	waits := map[string]bool{}
	for i := len(l.Approvals) - 1; i >= 0; i-- { // the oldest expires first
		q := l.Approvals[i]
		waits[q.ID] = true
		if w.shown[q.ID] || w.lines != nil && w.open != nil {
			continue
		}
		w.show(q)
	}
	if w.open != nil && !waits[w.open.ID] {
		w.say("\n%s was answered elsewhere, or has expired", short(w.open.ID))
		w.open, w.hasty = nil, true
		return w.look(ctx)
	}
	return nil
}

func (w *watch) show(q subjects.Approval) {
	w.shown[q.ID] = true
	if w.json {
		_ = w.line(q) // stdout remembers what went wrong
		return
	}
	w.showQuestion(w.stdout, q, time.Now())
	if w.lines == nil {
		w.say("%s", w.howToAnswer(q.ID))
		return
	}
	w.open = &q
	w.ask()
}

// ask prompts. It goes where the user looks, and no line ends it.
func (w *watch) ask() {
	choices := "[y/N/s/a]"
	if len(w.open.Sinks) == 0 {
		choices = "[y/N]"
	}
	fmt.Fprintf(w.stderr, "allow %s? %s ", visible(w.open.Tool), choices)
	w.since = time.Now()
}

func (w *watch) typed(ctx context.Context, line string) error {
	if w.open == nil {
		return nil
	}
	if d := time.Since(w.since); d < tooFast || w.hasty && d < mistaken {
		w.say("%s", typedAhead)
		w.ask()
		return nil
	}
	q, d := w.open, meant(line)
	w.open, w.hasty = nil, false
	r, err := decide(ctx, w.out, q.ID, d)
	switch {
	case err != nil:
		delete(w.shown, q.ID) // it is asked again
		return err
	case !r.Accepted:
		w.say("%s", oneLine(untakenAnswer(r, w.program()).Error()))
	default:
		w.say("%s", taken(d, r))
	}
	return w.look(ctx)
}
