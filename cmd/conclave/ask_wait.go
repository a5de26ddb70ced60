package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

const (
	// unseen is how long a question may lie there before the user is told that nobody works on it.
	unseen = 3 * time.Second
	// lastWords is how long a stopped question may take to become an answer all the same.
	lastWords = 5 * time.Second
	// untaken is the same for a question that nobody has taken up, or that was given up.
	untaken = time.Second
	// settling is how long an answer that is in the event log waits for the tokens that were said before it.
	settling = 500 * time.Millisecond
	// again is how soon something is tried again that failed because the link was down.
	again = 500 * time.Millisecond
)

// wait takes what is said about the question until its answer is there. It returns the answer, or why there is none.
// The end of ctx is the user's Ctrl-C: it stops the question, and what is there of an answer still comes.
func (q *ask) wait(ctx context.Context) (*subjects.Response, *subjects.Fault) {
	over := time.NewTimer(q.timeout)
	defer over.Stop()
	idle := time.NewTimer(unseen)
	defer idle.Stop()
	var (
		stop  = ctx.Done()
		work  = context.WithoutCancel(ctx)
		end   <-chan time.Time // when set, the last moment for an answer
		why   *subjects.Fault  // then: why there is none
		retry <-chan time.Time
		lie   = make(chan string, 1) // why nobody has taken it up

		answer *subjects.Response // as the event log has it
		settle <-chan time.Time   // when it is given out, though its live copy has not come
		live   bool               // that has
	)
	for {
		select {
		case m := <-q.messages:
			if q.present(m) {
				continue
			}
			s, ok := heard(m)
			switch {
			case !ok:
			case !kept(m.Subject): // live tokens
				q.take(s)
			case s.Query == q.query:
				if live = live || s.Subject == q.answers; live && answer != nil {
					return answer, nil
				}
				// The live copy of an event says only that there is something new. Its headers are its writer's words: who
				// said it, and where it stands, is read from the event log.
				retry = time.After(0)
			}
		case <-q.missed:
			retry = time.After(0)
		case <-retry:
			res, fault, err := q.catchUp(work)
			if retry = nil; err != nil {
				retry = time.After(again)
			}
			if res != nil && live {
				return res, nil
			}
			if res != nil && answer == nil {
				// The live copy of the answer comes after its last token: what was said before it is shown before it.
				answer, settle = res, time.After(settling)
			}
			if fault != nil && why == nil {
				why, end = fault, time.After(untaken)
			}
		case <-settle:
			return answer, nil
		case line := <-q.view.typed():
			q.answerTyped(work, line)
		case <-idle.C:
			if !q.taken {
				go func() { lie <- q.whoIsMissing(ctx) }()
			}
		case text := <-lie:
			if !q.taken && stop != nil {
				q.view.trouble("waiting", text)
			}
		case <-stop:
			stop = nil
			why, end = q.stop(work)
		case <-end:
			return nil, why
		case <-over.C:
			return nil, subjects.Faultf(subjects.CodeTimeout, "no answer within %s", q.timeout)
		}
	}
}

// whoIsMissing says why nobody may have taken the question up.
func (q *ask) whoIsMissing(ctx context.Context) string {
	pings, _ := gather[micro.Ping](ctx, q.nc, "$SRV.PING") // whoever does not answer is missing
	var lost []string
	for _, name := range []string{subjects.Router, subjects.Generator} {
		if !slices.ContainsFunc(pings, func(p micro.Ping) bool { return p.Name == name }) {
			lost = append(lost, name)
		}
	}
	switch len(lost) {
	case 0:
		return "stored; it waits its turn behind other questions"
	case 1:
		return "stored; nobody has taken it up yet, " + lost[0] + " is not there: it will be answered when conclave runs it"
	}
	return "stored; nobody has taken it up yet: it will be answered when conclave runs " + strings.Join(lost, " and ")
}

// stop says that the user has had enough, and how long to wait for what is there.
func (q *ask) stop(ctx context.Context) (*subjects.Fault, <-chan time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	topic, err := subjects.QueryCancel.With(q.query)
	if err == nil {
		err = actor.Emit(ctx, q.out, topic, subjects.Cancel{Reason: "stopped by the user"})
	}
	switch {
	case err != nil:
		return subjects.Faultf(subjects.CodeStopped, "stopped waiting, but the assistant could not be told: it goes on"), time.After(0)
	case !q.taken:
		return subjects.Faultf(subjects.CodeStopped, "stopped waiting; nobody had taken the question up, so it stays stored"), time.After(untaken)
	}
	return subjects.Faultf(subjects.CodeStopped, "stopped, and no part of an answer came"), time.After(lastWords)
}

// take takes one message. It returns the answer when this is it, and a fault when there will be none.
func (q *ask) take(s said) (*subjects.Response, *subjects.Fault) {
	switch s.Subject {
	case q.answers:
		var r subjects.Response
		// Respondent B answers in respondent B: its answer is not this one.
		if s.From != subjects.Generator || json.Unmarshal(s.Body, &r) != nil || r.QueryID != q.query {
			return nil, nil
		}
		return &r, nil
	case q.delta, q.thought:
		var d subjects.Delta
		if json.Unmarshal(s.Body, &d) == nil {
			q.taken = true
			q.view.delta(d, s.Subject == q.thought)
		}
		return nil, nil
	}
	if s.Query != q.query {
		return nil, nil
	}
	if s.Subject == q.critiques {
		q.takeGrade(s)
		return nil, nil
	}
	if words, ok := subjects.Match(subjects.DeadLetterEvent.LiveSubject(), s.Subject); ok {
		fault := buried(words[0], s.Body)
		q.taken = q.taken || fault != nil
		return nil, fault
	}
	q.event(s)
	return nil, nil
}

// event takes what happens on the way to the answer.
func (q *ask) event(s said) {
	if words, ok := subjects.Match(q.states, s.Subject); ok && words[0] == subjects.Generator {
		var st subjects.AgentState
		if json.Unmarshal(s.Body, &st) != nil {
			return
		}
		q.taken = true
		if st.Code == subjects.NoteGraded { // the grade itself is told
			return
		}
		if st.Code != "" {
			q.view.note(subjects.Note{Code: st.Code, Text: st.Words})
			return
		}
		q.view.state(subjects.Generator, st)
		return
	}
	if _, ok := subjects.Match(q.asked, s.Subject); ok {
		var r subjects.ToolRequest
		if json.Unmarshal(s.Body, &r) != nil {
			return
		}
		// Somebody else may call a tool under the id of this query; that is not the assistant's doing.
		if caller, _, _ := strings.Cut(r.Caller, "."); caller != subjects.Generator {
			return
		}
		q.calls[r.CallID] = r.Tool
		q.view.called(r)
		return
	}
	if _, ok := subjects.Match(q.done, s.Subject); ok {
		var r subjects.ToolResult
		if json.Unmarshal(s.Body, &r) != nil || q.calls[r.CallID] != r.Tool {
			return
		}
		q.view.returned(r)
		return
	}
	q.approval(s)
}

// buried is what a dead letter about the question means: nobody tries it again. Other dead letters, of the critic or of
// a cancellation that could not be read, do not keep the answer from coming.
func buried(who string, body []byte) *subjects.Fault {
	var l subjects.DeadLetter
	if json.Unmarshal(body, &l) != nil || !subjects.IsFinalFailure(who, l) {
		return nil
	}
	return subjects.Faultf(l.Code, "the question was given up by %s: %s", who, l.Reason)
}

// catchUp reads from the event log what may have been missed while the link was down.
func (q *ask) catchUp(ctx context.Context) (*subjects.Response, *subjects.Fault, error) {
	info, err := stream(ctx, q.nc, bus.CoreAPI, events)
	if err != nil {
		return nil, nil, err
	}
	var fault *subjects.Fault
	for ; q.from <= info.State.Last; q.from++ {
		s, ok, err := event(ctx, q.nc, q.from)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		res, f := q.take(s)
		if res != nil {
			q.from++
			return res, nil, nil
		}
		if f != nil {
			fault = f
		}
	}
	return nil, fault, nil
}
