package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/subjects"
)

// The critic reads an answer after the user has it. Who asked stays a moment longer to hear what it thinks.

const (
	criticActor = "critic"
	rewardActor = "reward"
	// gradeTime is how long ask stays after the answer, unless it is told otherwise.
	gradeTime = 2 * time.Second
	// presence is how long a critic may take to say that it is there, after the answer.
	presence = 200 * time.Millisecond
)

// window is how long this ask stays for the grade. Who pipes the answer on waits for nothing that was not asked for.
func (q *ask) window() time.Duration {
	if q.noWait || !q.gradeAsked && !q.json && !q.streamJSON && !isTerminal(q.stdout) {
		return 0
	}
	return q.gradeWait
}

// listenForGrade subscribes to grades, and asks whether there is a critic at all: it has as long as the answer takes to say
// so.
func (q *ask) listenForGrade() error {
	if q.window() == 0 {
		return nil
	}
	q.critiques, q.pings = subjects.CritiqueResult.LiveSubject(), q.nc.NewInbox()
	for _, subject := range []string{q.critiques, q.pings} {
		if _, err := q.nc.ChanSubscribe(subject, q.messages); err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
	}
	return q.nc.PublishRequest("$SRV.PING."+criticActor, q.pings, nil)
}

// present takes the critic's word that it is there. One that is switched off answers too, but offers no tool.
func (q *ask) present(m *nats.Msg) bool {
	if q.pings == "" || m.Subject != q.pings {
		return false
	}
	var p micro.Ping
	if json.Unmarshal(m.Data, &p) == nil && p.Name == criticActor {
		q.critic = q.critic || p.Metadata["definition.compare_answers"] != ""
	}
	return true
}

// grade waits for the critic's word on the answer, and at most for the window. A critic that is not there is not waited
// for, and nor is an answer that went wrong. What the user ends is over.
func (q *ask) grade(ctx context.Context, res subjects.Response) *subjects.Critique {
	window := q.window()
	if window == 0 || res.Error != nil || ctx.Err() != nil {
		return nil
	}
	over := time.NewTimer(window)
	defer over.Stop()
	there := time.NewTimer(min(presence, window))
	defer there.Stop()
	look := time.After(0) // it may have come before the answer was shown
	for {
		select {
		case m := <-q.messages:
			if q.present(m) {
				continue
			}
			if s, ok := heard(m); ok && s.Subject == q.critiques && s.Query == q.query {
				look = time.After(0)
			}
		case <-q.missed:
			look = time.After(0)
		case <-look:
			_, _, err := q.catchUp(ctx)
			if look = nil; err != nil {
				look = time.After(again)
			}
			if q.graded != nil {
				return q.graded
			}
		case <-there.C:
			if !q.critic {
				return nil
			}
		case <-over.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// takeGrade takes the critic's word on this answer. Respondent B's grade is none of it.
func (q *ask) takeGrade(s said) {
	var c subjects.Critique
	if s.From == criticActor && json.Unmarshal(s.Body, &c) == nil && c.RespondentID == subjects.Generator && c.QueryID == q.query {
		q.graded = &c
	}
}

// graded is a grade in one line.
func graded(c subjects.Critique) string {
	if c.Score == 0 {
		return "ungraded: " + or(oneLine(c.Ungraded), "the critic does not say why")
	}
	return strings.TrimSuffix(fmt.Sprintf("graded %d of 5: %s", c.Score, oneLine(c.Feedback)), ": ")
}

// unfounded is what an answer says was done and no call did, one line for each.
func unfounded(c subjects.Critique) (out []string) {
	for _, claim := range c.Claims {
		line := fmt.Sprintf("the answer says %q, and no call did that", clip(plain(claim.Said), 160))
		if len(claim.Needs) > 0 {
			line += ": it would have taken " + plain(strings.Join(claim.Needs, " or "))
		}
		out = append(out, line)
	}
	return out
}

// anotherTry is how to ask again, where the grade is that low.
func (a *app) anotherTry(c subjects.Critique) string {
	if !c.Retry {
		return ""
	}
	return "try again: " + a.program() + " ask --retry"
}

// showGrade is a grade on a screen: dim, but for what the answer only pretends.
func (s *screen) showGrade(c *subjects.Critique) {
	if c == nil {
		return
	}
	for _, l := range unfounded(*c) {
		s.trouble("", s.paint(s.stderr, yellow, l))
	}
	s.talk("%s", graded(*c))
	if hint := s.anotherTry(*c); hint != "" {
		s.talk("%s", hint)
	}
}

// showGrade is the same for who reads stderr beside a pipe.
func (w *whole) showGrade(c *subjects.Critique) {
	if c == nil {
		return
	}
	for _, l := range append(unfounded(*c), graded(*c), w.anotherTry(*c)) {
		if l != "" {
			w.say("%s", l)
		}
	}
}

// gradedResponse is a response as a document, with its grade where that came in time.
type gradedResponse struct {
	subjects.Response
	Grade *subjects.Critique `json:"grade,omitempty"`
}
