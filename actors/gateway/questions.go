package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// asked is a stored question whose caller waits for its outcome.
type asked struct {
	question
	stored client.Event // the question itself, without a sequence

	cur    *client.Cursor
	tokens *subscriber
	undo   []func()
}

// sink hears of a question while its caller waits, in one goroutine. event may be nil, and token where no topic is
// heard.
type sink struct {
	event func(client.Event)    // each stored event, the outcome included
	token func(liveEvent) error // each live token; an error ends the wait
}

// errAsked is joined with the problem of a question that is answered or that another caller waits for.
var errAsked = errors.New("the question was asked before")

// ask scopes a question to its caller, nil for the user, completes and checks it, admits it, registers it and stores it
// with its images. The caller hears the live tokens of the topics hear, and must call leave. A question whose caller
// leaves stays: it is answered, and GET /queries/{id} finds it. It rejects a query_id without its session, and one that
// is answered or waited for: it would not be answered again, and the caller would wait in vain.
func (g *Gateway) ask(ctx context.Context, out actor.Out, caller *clientAccess, q *Question, images [][]byte,
	hear ...subjects.Topic[subjects.Delta],
) (_ *asked, err error) {
	named := q.QueryID != ""
	if named && q.SessionID == "" {
		return nil, malformedf("query_id: name its session_id too; the same question in a new session would be " +
			"another one")
	}
	scopeQuestion(out, caller, q)
	if known, ok := g.questions.find(q.QueryID); ok && q.key != "" {
		q.SessionID = known.session // /v1 finds the session of a conversation only once
	}
	if err := validateQuestion(out, q); err != nil {
		return nil, err
	}
	a := &asked{}
	defer func() {
		if err != nil {
			a.leave()
		}
	}()
	cost, size := q.cost()
	place, err := g.admit(out, caller, cost, size) // before the check, which reads several streams
	if err != nil {
		return nil, err
	}
	a.undo = append(a.undo, place.leave)
	a.cur = g.events.OpenCursor(ctx) // before the check: the answer may come after it
	a.undo = append(a.undo, a.cur.Close)
	a.question = question{q.QueryID, q.SessionID, a.cur.At, q.respondent(), q.key}
	answered := false
	if named {
		if answered, err = g.isAnswered(ctx, out, a.question); err != nil {
			return nil, err
		}
	}
	if answered {
		return nil, errors.Join(errAsked, conflictf("question %s is answered already: see GET /queries/%s; omit "+
			"query_id to ask a new one", a.id, a.id))
	}
	if err := a.hear(&g.live, hear); err != nil {
		return nil, err
	}
	if err := g.questions.add(a.question); err != nil {
		return nil, err
	}
	a.undo = append(a.undo, func() { g.questions.release(a.id) })
	a.stored, err = g.storeQuestion(ctx, out, *q, images, place)
	if f := (*subjects.Fault)(nil); errors.As(err, &f) && f.Code == subjects.CodeUnavailable {
		err = &problem{
			status: http.StatusServiceUnavailable, ids: a.ids("unknown"),
			Fault: subjects.Faultf(f.Code, "the question was not stored, or the acknowledgement was lost; to retry "+
				"without asking twice, send it with query_id %s and session_id %s, or with the same %s", a.id,
				a.session, headerKey),
		}
	}
	return a, err
}

// askOnce is [Gateway.ask] for a caller that waits: a question that was asked before with the same key is not asked
// again, and the caller waits for its outcome, without live tokens.
func (g *Gateway) askOnce(ctx context.Context, caller *clientAccess, q *Question, images [][]byte,
	hear ...subjects.Topic[subjects.Delta],
) (*asked, error) {
	a, err := g.ask(ctx, g.out, caller, q, images, hear...)
	if q.key == "" || !errors.Is(err, errAsked) {
		return a, err
	}
	first, ok := g.questions.find(q.QueryID)
	if !ok {
		first = question{id: q.QueryID}
	}
	lookup, cancel := g.withTimeout(ctx, lookupTimeout)
	end, err := g.findOutcome(lookup, first)
	cancel()
	switch {
	case err == nil:
		first.since = end.Seq - 1
	case !errors.Is(err, errNone):
		return nil, err
	case !ok:
		return nil, conflictf("question %s was answered, and the event log no longer has the answer: see its session",
			q.QueryID)
	}
	if !ok && err == nil && end.Response != nil { // asked before a restart
		first.session = end.Response.SessionID
	}
	q.SessionID = first.session
	cur := g.events.OpenCursor(ctx)
	cur.At = first.since
	return &asked{question: first, cur: cur, undo: []func(){cur.Close}}, nil
}

// hear subscribes to the live tokens of the topics.
func (a *asked) hear(live *broadcaster, topics []subjects.Topic[subjects.Delta]) error {
	if len(topics) == 0 {
		return nil
	}
	var names []string
	for _, t := range topics {
		of, err := t.With(a.id)
		if err != nil {
			return err
		}
		names = append(names, of.Name)
	}
	a.tokens = live.subscribe(func(ev client.Event) bool { return slices.Contains(names, ev.Subject) })
	a.undo = append(a.undo, func() { live.unsubscribe(a.tokens) })
	return nil
}

// leave ends the wait.
func (a *asked) leave() {
	for _, f := range slices.Backward(a.undo) {
		f()
	}
}

// wait waits for the outcome and passes events and tokens to to. When ctx ends the error is its cause.
func (a *asked) wait(ctx context.Context, to sink) (*client.Outcome, error) {
	var live <-chan liveEvent
	if a.tokens != nil {
		live = a.tokens.events
	}
	return awaitOutcome(ctx, a.cur, a.question, live, to)
}

// awaitOutcome waits for the outcome of a question and passes its events and those of live, which may be nil, to to. It
// retries while the bus is not connected. When ctx ends the error is its cause.
func awaitOutcome(ctx context.Context, cur *client.Cursor, q question, live <-chan liveEvent, to sink) (
	*client.Outcome, error,
) {
	for {
		ev, ok, more, _ := cur.Next(ctx) // after an error it is tried again
		switch {
		case ok && ev.Query != q.id:
			continue
		case ok:
			if to.event != nil {
				to.event(ev)
			}
			if end, err := readOutcome(ev, q); end != nil || err != nil {
				return end, err
			}
			continue
		}
		select {
		case <-more:
		case l := <-live:
			if err := to.token(l); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isAnswered reports whether a question has an answer: in its session, or in the event log when it was asked here,
// because the session is stored after the answer, or has a key, because a retry may not know the session. When the log
// cannot be read a question with a key is not asked again.
func (g *Gateway) isAnswered(ctx context.Context, out actor.Out, q question) (bool, error) {
	ctx, cancel := g.withTimeout(ctx, lookupTimeout)
	defer cancel()
	known, ok := g.questions.find(q.id)
	if !ok {
		known = question{id: q.id}
	}
	if ok || q.key != "" {
		end, err := g.findAnswer(ctx, known)
		switch {
		case err == nil && end != nil:
			return true, nil
		case err != nil && q.key != "":
			return false, g.explainEnd(ctx, err)
		}
	}
	c, err := client.Wrap(out).Session(ctx, q.session)
	return err == nil && c.Answered(q.id), nil
}

// question is a question that was asked through this gateway.
type question struct {
	id, session string
	since       uint64 // its events have a higher sequence
	respondent  string // the account that it was asked; "" = not known, as for a question that was asked elsewhere
	key         string // see [Question]
}

// respondents are the accounts whose response can be the answer.
func (q question) respondents() []string {
	if q.respondent == "" {
		return subjects.VisibleRespondents
	}
	return []string{q.respondent}
}

// questionLog keeps the latest questions of this gateway, so that their answers are found without reading the whole
// log.
type questionLog struct {
	mu      sync.Mutex
	known   recentMap[string, question]
	keys    recentMap[string, string] // query ids by key
	waiting map[string]bool           // by query id: a client waits for the answer
}

// maxAsked is the number of questions that are kept; the oldest are dropped.
const maxAsked = 4096

// add records a question and marks it as waited for, until release. It returns a problem, and records nothing, when its
// key belongs to another question, or when a client already waits for it. Beyond maxAsked the oldest question and the
// oldest key are dropped.
func (a *questionLog) add(q question) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first, used := a.keys.values[q.key]; used && first != q.id {
		return problemf(http.StatusUnprocessableEntity, codeConflict, "%s: it was sent with another question; use a "+
			"new key for each question", headerKey)
	}
	if a.waiting[q.id] {
		return errors.Join(errAsked, conflictf("another client waits for question %s; omit query_id to ask a new one",
			q.id))
	}
	if a.waiting == nil {
		a.waiting = map[string]bool{}
	}
	a.waiting[q.id] = true
	a.known.put(q.id, q, maxAsked)
	if q.key != "" {
		a.keys.put(q.key, q.id, maxAsked)
	}
	return nil
}

// release ends the wait for a question.
func (a *questionLog) release(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// find returns a question by its id, false when it is not kept.
func (a *questionLog) find(id string) (question, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, ok := a.known.values[id]
	return q, ok
}
