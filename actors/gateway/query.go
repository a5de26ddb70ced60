package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Question is what POST /query reads.
type Question struct {
	Query     string `json:"query"`
	SessionID string `json:"session_id"`
	QueryID   string `json:"query_id"`
	Model     string `json:"model"`
	Reference string `json:"reference"` // what a good answer says: for the critic, never for the one who answers
}

// Answer is what POST /query answers.
type Answer struct {
	QueryID   string              `json:"query_id"`
	SessionID string              `json:"session_id"`
	Answer    string              `json:"answer"`
	Thinking  string              `json:"thinking"`
	ToolCalls []subjects.ToolCall `json:"tool_calls"`
	Notes     []subjects.Note     `json:"notes"`
	Model     string              `json:"model"`
	DemoModel bool                `json:"demo_model"`
	Usage     subjects.Usage      `json:"usage"`
	Partial   bool                `json:"partial"`
	Error     *subjects.Fault     `json:"error"`
	Grade     *subjects.Critique  `json:"grade"`     // of this answer; nil = none yet
	Pairwise  *subjects.Pairwise  `json:"pairwise"`  // between this answer and respondent B's
	Reward    *subjects.Reward    `json:"reward"`    // what the user thinks of it now
	Events    []string            `json:"events"`    // subjects of what happened, in order
	EventLog  []Event             `json:"event_log"` // the same with everything
	Dropped   int                 `json:"events_dropped"`
}

// Bounds of the events that go with an answer, of a model's name, and of what a good answer says.
const (
	logEvents    = 1000
	logBytes     = 4 << 20
	maxModel     = 200
	maxReference = 16 << 10
)

// How long a question, a cancellation or feedback may take to be stored, how often that is tried, and the pause between:
// a link that was cut is back after a quarter of a second.
const (
	storeTimeout  = 3 * time.Second
	storeAttempts = 4
	storePause    = 300 * time.Millisecond
)

// onQuery asks, and waits for the answer unless the client does not want to. A client that goes away leaves its question
// behind: it is answered all the same, and the answer can be fetched.
func (g *Gateway) onQuery(w http.ResponseWriter, r *http.Request) error {
	wait, window, err := g.readWait(r)
	if err != nil {
		return err
	}
	var in Question
	if err := g.readBody(w, r, &in); err != nil {
		return err
	}
	named := in.QueryID != ""
	if named && in.SessionID == "" {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "query_id: name its session_id too; the same question in a new session would be another one")
	}
	if err := validateQuestion(g.out, &in); err != nil {
		return err
	}
	if named {
		// Asked again, it would not be answered again, and this client would wait for nothing.
		if c, err := g.client.Session(r.Context(), in.SessionID); err == nil && c.Answered(in.QueryID) {
			return problemf(http.StatusConflict, codeConflict, "the question %s was answered before: GET /queries/%s shows it; leave query_id out to ask anew", in.QueryID, in.QueryID)
		}
	}
	if wait {
		leave, err := acquireSlot(g.slots.waiting, "questions are waiting")
		if err != nil {
			return err
		}
		defer leave()
	}
	cur := g.events.cursorAtEnd()
	q := question{in.QueryID, in.SessionID, cur.at}
	if !g.asked.add(q) {
		return problemf(http.StatusConflict, codeConflict, "somebody waits for the question %s already; leave query_id out to ask anew", q.id)
	}
	defer g.asked.release(q.id)
	first, err := g.storeQuestion(r.Context(), g.out, in)
	if err != nil {
		return err
	}
	if !wait {
		w.Header().Set("Location", "/queries/"+q.id)
		if r.Header.Get("Prefer") != "" {
			w.Header().Set("Preference-Applied", "respond-async")
		}
		g.writeJSON(w, http.StatusAccepted, q.ids("accepted"))
		return nil
	}
	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	rec := answerRecord{}
	rec.add(first)
	end, err := g.waitForOutcomeOf(ctx, cur, q.id, rec.add)
	if err != nil {
		return g.noAnswerYet(q, err)
	}
	if end.response != nil {
		g.waitForGrade(r.Context(), cur, q.id, window, &rec)
	}
	return g.writeAnswer(w, q, end, &rec)
}

// readWait reads whether the client waits, and for how long after the answer it wants to hear of grades.
func (g *Gateway) readWait(r *http.Request) (wait bool, window gradeWait, err error) {
	p, err := parseParams(r, "wait", "grade_wait")
	if err != nil {
		return false, window, err
	}
	wait, window.duration = true, g.cfg.GradeWait
	switch v := p.Get("wait"); v {
	case "", "1":
	case "0":
		wait = false
	default:
		return false, window, problemf(http.StatusBadRequest, subjects.CodeMalformed, "wait is 0 or 1")
	}
	if v := p.Get("grade_wait"); v != "" {
		if window.duration, err = strict.ParseDuration(v); err != nil || window.duration > time.Minute {
			return false, window, problemf(http.StatusBadRequest, subjects.CodeMalformed, "grade_wait is a duration of at most 1m, like 2s")
		}
		window.explicit = true
	}
	for _, v := range r.Header.Values("Prefer") {
		for p := range strings.SplitSeq(v, ",") {
			if name, _, _ := strings.Cut(p, ";"); strings.EqualFold(strings.TrimSpace(name), "respond-async") {
				wait = false
			}
		}
	}
	return wait, window, nil
}

// validateQuestion validates a question and makes the ids that are missing.
func validateQuestion(out actor.Out, in *Question) error {
	if strings.TrimSpace(in.Query) == "" || !utf8.ValidString(in.Query) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "query: write the question as a text")
	}
	if len(in.Model) > maxModel || strings.ContainsFunc(in.Model, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "model: at most %d visible ASCII characters", maxModel)
	}
	if len(in.Reference) > maxReference || !utf8.ValidString(in.Reference) {
		return problemf(http.StatusBadRequest, subjects.CodeMalformed, "reference: a text of at most %d KB", maxReference>>10)
	}
	for _, id := range []struct {
		name string
		at   *string
	}{{"session_id", &in.SessionID}, {"query_id", &in.QueryID}} {
		if *id.at == "" {
			*id.at = out.NewID()
		} else if err := checkID(id.name, *id.at); err != nil {
			return err
		}
	}
	return nil
}

// storeQuestion stores the question. It does so also when its caller goes away in between: whether it was stored would be
// anybody's guess.
func (g *Gateway) storeQuestion(ctx context.Context, out actor.Out, in Question) (Event, error) {
	body := subjects.Query{SessionID: in.SessionID, QueryID: in.QueryID, Query: in.Query, Model: in.Model, Reference: in.Reference}
	if err := emitStored(ctx, out.WithIDs(in.SessionID, in.QueryID), subjects.QueryReceived, body); err != nil {
		return Event{}, err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return Event{}, fmt.Errorf("encoding the question: %w", err)
	}
	return Event{Subject: subjects.QueryReceived.Name, From: g.Name(), Time: out.Now().UTC(), Query: in.QueryID, Session: in.SessionID, Payload: data}, nil
}

// emitStored says an event until it is stored.
func emitStored[T any](ctx context.Context, out actor.Out, t subjects.Topic[T], body T) error {
	return publishStored(ctx, out, t.Name, func(ctx context.Context, id string) error { return actor.EmitOnce(ctx, out, t, id, body) })
}

// publishStored says something until it is stored. An acknowledgement can be lost with the link, so it is said again under the
// same id, which is stored once. When all that fails, the client may try again.
func publishStored(ctx context.Context, out actor.Out, what string, say func(ctx context.Context, id string) error) error {
	ctx = context.WithoutCancel(ctx)
	id := out.NewID()
	var err error
	for try := range storeAttempts {
		if try > 0 {
			time.Sleep(storePause)
		}
		once, cancel := context.WithTimeout(ctx, storeTimeout)
		err = say(once, id)
		cancel()
		var f *subjects.Fault
		switch {
		case err == nil:
			return nil
		case errors.As(err, &f):
			return f
		}
	}
	return notStored(out, what, err)
}

// notStored logs why an event could not be stored and returns the fault for the client.
func notStored(out actor.Out, what string, err error) error {
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return fault
	}
	out.LogError(err)
	return subjects.Faultf(subjects.CodeUnavailable, "%s was not stored, or the acknowledgement was lost; try again", what)
}

// outcome is how a question ended.
type outcome struct {
	response *subjects.Response
	seq      uint64
	dead     *subjects.DeadLetter
}

// readOutcome reads an event that ends a question, nil when it does not.
func readOutcome(ev Event, query string) (*outcome, error) {
	if ev.Query != query {
		return nil, nil
	}
	if ev.Subject == subjects.ResponseGeneration.Name && ev.From == subjects.Generator {
		var r subjects.Response
		if err := json.Unmarshal(ev.Payload, &r); err != nil {
			return nil, problemf(http.StatusBadGateway, subjects.CodeMalformed, "the answer could not be read; it is event %d", ev.Seq)
		}
		return &outcome{response: &r, seq: ev.Seq}, nil
	}
	if t, ok := subjects.Match(subjects.DeadLetterEvent.Name, ev.Subject); ok && len(t) == 1 {
		var d subjects.DeadLetter
		if err := json.Unmarshal(ev.Payload, &d); err != nil || !subjects.IsFinalFailure(ev.From, d) {
			return nil, nil
		}
		d.Actor = ev.From
		return &outcome{dead: &d, seq: ev.Seq}, nil
	}
	return nil, nil
}

// waitForOutcomeOf reads events until the question has ended, and shows each that belongs to it.
func (g *Gateway) waitForOutcomeOf(ctx context.Context, cur *cursor, query string, seen func(Event)) (outcome, error) {
	for {
		ev, err := cur.wait(ctx)
		switch {
		case ctx.Err() != nil:
			return outcome{}, context.Cause(ctx)
		case err != nil:
			// The link is down, or the server restarts. What comes meanwhile is read afterwards.
			select {
			case <-time.After(pollInterval):
			case <-ctx.Done():
			}
			continue
		case ev.Query != query:
			continue
		}
		seen(ev)
		if end, err := readOutcome(ev, query); end != nil || err != nil {
			if err != nil {
				return outcome{}, err
			}
			return *end, nil
		}
	}
}

// answerRecord gathers the events of one question, within bounds, and what others thought of its answer.
type answerRecord struct {
	judgements
	events  []Event
	bytes   int
	dropped int
}

func (c *answerRecord) add(ev Event) {
	if ev.ofRespondentB {
		return
	}
	c.add(ev)
	if len(c.events) >= logEvents || c.bytes+len(ev.Payload) > logBytes {
		c.dropped++
		return
	}
	c.events, c.bytes = append(c.events, ev), c.bytes+len(ev.Payload)
}

// writeAnswer writes how a question ended.
func (g *Gateway) writeAnswer(w http.ResponseWriter, q question, end outcome, rec *answerRecord) error {
	if end.dead != nil {
		return &problem{
			status: http.StatusBadGateway, IDs: q.ids("failed"),
			Fault: subjects.Faultf(end.dead.Code, "%s gave the question up: %s", end.dead.Actor, end.dead.Reason),
		}
	}
	r := end.response
	a := Answer{
		QueryID: q.id, SessionID: r.SessionID, Answer: r.Answer, Thinking: r.Thinking, ToolCalls: r.ToolCalls, Notes: r.Notes,
		Model: r.Model, DemoModel: r.DemoModel, Usage: r.Usage, Partial: r.Partial, Error: r.Error,
		Grade: rec.grade, Pairwise: rec.pairwise, Reward: rec.reward, Events: []string{}, EventLog: rec.events, Dropped: rec.dropped,
	}
	for _, ev := range rec.events {
		a.Events = append(a.Events, ev.Subject)
	}
	if a.ToolCalls == nil {
		a.ToolCalls = []subjects.ToolCall{}
	}
	if a.Notes == nil {
		a.Notes = []subjects.Note{}
	}
	if a.EventLog == nil {
		a.EventLog = []Event{}
	}
	status := http.StatusOK
	if r.Error != nil && strings.TrimSpace(r.Answer) == "" {
		status = http.StatusBadGateway
	}
	g.writeJSON(w, status, a)
	return nil
}

// noAnswerYet says why there is no answer yet, and where it will be.
func (g *Gateway) noAnswerYet(q question, err error) error {
	switch {
	case errors.Is(err, errTimeout):
		return &problem{
			status: http.StatusGatewayTimeout, IDs: q.ids("waiting"),
			Fault: subjects.Faultf(subjects.CodeTimeout, "no answer within %s; the question is still being worked at: see later", strict.FormatDuration(g.cfg.QueryTimeout)),
		}
	case errors.Is(err, errClosing):
		return &problem{
			status: http.StatusServiceUnavailable, IDs: q.ids("waiting"),
			Fault: subjects.Faultf(subjects.CodeUnavailable, "the gateway is stopping; the question is kept and will be answered: see later"),
		}
	}
	return err
}

// ids of a question, with where to look.
func (q question) ids(state string) *ids {
	return &ids{QueryID: q.id, SessionID: q.session, State: state, Later: &links{
		Answer:  "/queries/" + q.id,
		Events:  fmt.Sprintf("/events?query=%s&after=%d", url.QueryEscape(q.id), q.since),
		Session: "/sessions/" + q.session,
	}}
}

// lookupTimeout bounds a search in EVENTS.
const lookupTimeout = 10 * time.Second

// onLookUp finds the answer to a question that was asked before, here or elsewhere.
func (g *Gateway) onLookUp(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the query id", id); err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	q, known := g.asked.find(id)
	if !known {
		q = question{id: id}
	}
	ctx, cancel := g.withTimeout(r.Context(), lookupTimeout)
	defer cancel()
	end, err := g.findOutcome(ctx, q)
	switch {
	case errors.Is(err, errNone) && known:
		g.writeJSON(w, http.StatusAccepted, q.ids("waiting"))
		return nil
	case errors.Is(err, errNone):
		return problemf(http.StatusNotFound, codeNotFound, "there is no answer to %s, and the question was not asked here", id)
	case errors.Is(err, errTimeout):
		return problemf(http.StatusGatewayTimeout, subjects.CodeTimeout, "no answer to %s among the answers that could be read in %s; look into its session", id, lookupTimeout)
	case err != nil:
		return err
	}
	rec := answerRecord{}
	if known {
		err = g.readEventsOf(ctx, q, end.seq, rec.add)
	}
	if err != nil {
		return err
	}
	g.findJudgements(ctx, id, end.seq, &rec.judgements)
	return g.writeAnswer(w, q, *end, &rec)
}

// findOutcome searches the answers, then the dead letters, that came after a question.
func (g *Gateway) findOutcome(ctx context.Context, q question) (*outcome, error) {
	for _, s := range []string{subjects.ResponseGeneration.StoredBy(subjects.Generator), subjects.DeadLetterEvent.StoredBy(subjects.Router), subjects.DeadLetterEvent.StoredBy(subjects.Generator)} {
		for at := q.since; ; {
			ev, err := g.events.readEvent(ctx, at+1, s)
			if errors.Is(err, errNone) {
				break
			}
			if err != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return nil, err
			}
			if end, err := readOutcome(ev, q.id); end != nil || err != nil {
				return end, err
			}
			at = ev.Seq
		}
	}
	return nil, errNone
}

// readEventsOf shows the events of a question up to its end.
func (g *Gateway) readEventsOf(ctx context.Context, q question, last uint64, seen func(Event)) error {
	cur := &cursor{events: g.events, at: q.since}
	for cur.at < last {
		ev, ok, _, err := cur.next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return nil
		}
		if ev.Query == q.id {
			seen(ev)
		}
	}
	return nil
}

// onCancel stops a question; what is there is kept and comes as a partial answer.
func (g *Gateway) onCancel(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := checkID("the query id", id); err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	topic, err := subjects.QueryCancel.With(id)
	if err != nil {
		return err
	}
	q, _ := g.asked.find(id)
	if err := emitStored(r.Context(), g.out.WithIDs(q.session, id), topic, subjects.Cancel{Reason: "asked for over HTTP"}); err != nil {
		return err
	}
	g.writeJSON(w, http.StatusAccepted, struct {
		QueryID string `json:"query_id"`
		State   string `json:"state"`
	}{id, "cancelling"})
	return nil
}
