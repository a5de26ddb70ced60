package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"conclave/subjects"
)

// A question of the user may stop at a call that needs the user's yes. Whoever waits for the answer is told, and on a
// terminal is asked right there.

// approval takes a question about a call of this query, or its answer. Only the broker's word counts.
func (q *ask) approval(s said) {
	if s.From != "broker" {
		return
	}
	if words, ok := subjects.Match(subjects.ApprovalRequestEvent.LiveSubject(), s.Subject); ok {
		var r subjects.ApprovalRequest
		if json.Unmarshal(s.Body, &r) == nil && r.ID == words[0] {
			q.taken = true
			q.view.waits(r)
		}
		return
	}
	if words, ok := subjects.Match(subjects.ApprovalDecisionEvent.LiveSubject(), s.Subject); ok {
		var r subjects.ApprovalReply
		if json.Unmarshal(s.Body, &r) == nil && r.ID == words[0] {
			q.view.decided(r)
		}
	}
}

// answerTyped takes a line that the user typed. Without an open question it is nobody's answer.
func (q *ask) answerTyped(ctx context.Context, line string) {
	id, d, ok := q.view.answered(line)
	if !ok {
		return
	}
	r, err := decide(ctx, q.out, id, d)
	switch {
	case err != nil:
		q.view.trouble("approval", oneLine(err.Error()))
	case !r.Accepted:
		q.view.trouble("approval", oneLine(untakenAnswer(r, q.program()).Error()))
		q.view.decided(r)
	}
	// That it was taken is told by the broker to everybody who watches, and so here.
}

// waitingFor is one line about a call that waits.
func (a *app) waitingFor(r subjects.ApprovalRequest) string {
	return fmt.Sprintf("waiting for you: %s %s (%s); %s", visible(r.Tool), visible(clip(string(r.Args), 80)), visible(clip(r.Reason, 120)), a.howToAnswer(r.ID))
}

// howToAnswer is how a question is answered from elsewhere, with yes and with no.
func (a *app) howToAnswer(id string) string {
	return fmt.Sprintf("answer with: %s approve %s, or --deny %s", a.program(), short(id), short(id))
}

// desk is where the user is asked while an answer grows. One question is asked at a time.
type desk struct {
	lines <-chan string
	open  []subjects.ApprovalRequest
	since time.Time // when the first of them was shown
}

// waits shows a question in full and asks. Without a keyboard it says how to answer elsewhere.
func (s *screen) waits(r subjects.ApprovalRequest) {
	s.release()
	s.endLine()
	if s.desk.lines == nil && isTerminal(s.stderr) {
		s.desk.lines = typed(s.stdin)
	}
	if s.desk.lines == nil {
		s.say("%s", s.waitingFor(r))
		s.last = s.stderr
		return
	}
	if s.desk.open = append(s.desk.open, r); len(s.desk.open) == 1 {
		s.prompt()
	}
}

// prompt shows the first open question.
func (s *screen) prompt() {
	r := s.desk.open[0]
	s.showQuestion(s.stderr, subjects.Approval{ApprovalRequest: r, State: subjects.ApprovalPending}, time.Now())
	fmt.Fprintf(s.stderr, "allow %s? [y/N] ", visible(r.Tool))
	s.open, s.last, s.desk.since = s.stderr, s.stderr, time.Now()
}

func (s *screen) typed() <-chan string { return s.desk.lines }

// answered pairs a line with the question that is open. Here a yes is for this once: what holds for longer is said with
// more time, by conclave approve.
func (s *screen) answered(line string) (id string, d subjects.ApprovalDecision, ok bool) {
	if len(s.desk.open) == 0 {
		return "", d, false
	}
	s.open = nil // the user has ended the line
	if time.Since(s.desk.since) < tooFast {
		s.say("%s", typedAhead)
		s.prompt()
		return "", d, false
	}
	return s.desk.open[0].ID, subjects.ApprovalDecision{Approve: meant(line).Approve}, true
}

// decided takes a question off the desk, whoever has answered it.
func (s *screen) decided(r subjects.ApprovalReply) {
	for i, o := range s.desk.open {
		if o.ID != r.ID {
			continue
		}
		s.desk.open = append(s.desk.open[:i:i], s.desk.open[i+1:]...)
		s.endLine()
		s.talk("%s: %s", o.Tool, strings.TrimSuffix(r.State+" by "+r.By, " by "))
		if i == 0 && len(s.desk.open) > 0 {
			s.prompt()
		}
		return
	}
}
