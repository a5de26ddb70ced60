package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Question is the body of POST /query.
type Question struct {
	Query       string                `json:"query"`       // the user's own words
	Attachments []subjects.Attachment `json:"attachments"` // untrusted content that the question is about
	SessionID   string                `json:"session_id"`
	QueryID     string                `json:"query_id"`
	Model       string                `json:"model"`
	Hint        string                `json:"hint"`      // complexity, one of [subjects.Hints]
	Mode        string                `json:"mode"`      // who answers, one of [subjects.Modes]; "" = assistant
	Personas    []string              `json:"personas"`  // this and the next two are for the committee
	Rounds      int                   `json:"rounds"`    // 0 = as configured
	Parallel    bool                  `json:"parallel"`  // the personas of a round speak at the same time
	Reference   string                `json:"reference"` // what a good answer says; only the critic gets it
	Client      string                `json:"-"`         // the client that asks; "" = the user

	key          string    // digest of headerKey and of the client, from which the ids follow; "" = none
	clientMemory bool      // see [subjects.Query]
	continues    *[32]byte // key of the conversation whose session it continues, see [conversationIndex]; nil = none
}

// respondent is the account that the question is for; "" for an unknown mode.
func (q Question) respondent() string { return subjects.Modes[cmp.Or(q.Mode, "assistant")] }

// Answer is the reply of POST /query.
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
	State     string              `json:"state"` // answered, stopped or failed
	Partial   bool                `json:"partial"`
	Error     *subjects.Fault     `json:"error"`
	Grade     *subjects.Critique  `json:"grade"`    // nil = none yet
	Pairwise  *subjects.Pairwise  `json:"pairwise"` // between this answer and respondent B's
	Reward    *subjects.Reward    `json:"reward"`   // latest
	// Deliberations are those of the committee.
	Deliberations []subjects.DeliberationSummary `json:"deliberations"`

	Events   []string   `json:"events"`    // subjects of the events, in order
	EventLog []LogEntry `json:"event_log"` // the same events, complete
	Dropped  int        `json:"events_dropped"`
}

// Bounds of the event log of an answer, of a model name, of a reference, and of a key.
const (
	logEvents    = 1000
	logBytes     = 4 << 20
	maxModel     = 200
	maxReference = 16 << 10
	maxKey       = 255
)

// onQuery stores a question and waits for the answer, QueryTimeout at most, unless the client asks for 202. When the
// client disconnects, the question stays: it is answered, and the answer can be fetched. It rejects a query_id without
// session_id, and with 409 a query_id that is answered or that another client waits for; too many waiting clients are
// 429. A request with headerKey that was stored before gets the state of that question instead of 409.
func (g *Gateway) onQuery(w http.ResponseWriter, r *http.Request) error {
	wait, window, err := g.readWait(r)
	if err != nil {
		return err
	}
	in, images, err := g.readQuestion(w, r)
	if err != nil {
		return err
	}
	if err := in.setKeyedIDs(r.Header.Values(headerKey), clientOf(r), in); err != nil {
		return err
	}
	if wait {
		leave, err := g.acquireWaiting(r)
		if err != nil {
			return err
		}
		defer leave()
	}
	q, err := g.ask(r.Context(), g.out, clientOf(r), &in, images)
	switch {
	case in.key != "" && errors.Is(err, errAsked):
		return g.writeState(w, r, in.QueryID)
	case err != nil:
		return err
	}
	defer q.leave()
	if !wait {
		w.Header().Set("Location", "/queries/"+q.id)
		if r.Header.Get("Prefer") != "" {
			w.Header().Set("Preference-Applied", "respond-async")
		}
		g.writeJSON(w, http.StatusAccepted, q.ids(subjects.StateRunning))
		return nil
	}
	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	rec := answerRecord{judgements: judgements{respondent: q.respondent}}
	rec.add(q.stored)
	outcome, err := q.wait(ctx, sink{event: rec.add})
	if err != nil {
		return explainUnanswered(q.question, err)
	}
	if outcome.Response != nil {
		g.waitForGrade(r.Context(), q.cur, q.id, window, &rec)
	}
	return g.writeAnswer(w, r, q.question, outcome, &rec)
}

// headerKey is the header by which a client repeats a question without asking it twice. In the metadata of a call of
// /mcp it has the same name.
const headerKey = "Idempotency-Key"

// setKeyedIDs gives a question of a request with headerKey, whose values are keys, the ids that follow from the key,
// the authenticated client, nil for the user, and the content that the client sent: a repeated request is the same
// question, and a key of another client is another one. The same key with another content is a conflict, see
// [questionLog.add]. It rejects a key beside a query_id.
func (q *Question) setKeyedIDs(keys []string, caller *clientAccess, content any) error {
	if len(keys) == 0 {
		return nil
	}
	if len(keys) > 1 || keys[0] == "" || len(keys[0]) > maxKey || q.QueryID != "" {
		return malformedf("%s: one of at most %d characters, without query_id", headerKey, maxKey)
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	scope := "user"
	if caller != nil {
		scope = caller.scope
	}
	prefix := fmt.Appendf(nil, "%s\n%d\n%s", scope, len(keys[0]), keys[0])
	key, sum := sha256.Sum256(prefix), sha256.Sum256(append(prefix, data...))
	id := hex.EncodeToString(sum[:12])
	q.QueryID, q.SessionID, q.key = id, cmp.Or(q.SessionID, id), hex.EncodeToString(key[:])
	return nil
}

// readWait reads whether the client waits for the answer, and its grade wait. wait=0 or the header "Prefer:
// respond-async" mean that it does not. It rejects other values of wait than 0 and 1, and a grade_wait that is not a
// duration or is longer than a minute.
func (g *Gateway) readWait(r *http.Request) (wait bool, window gradeWait, err error) {
	p := r.URL.Query()
	wait, window.duration = p.Get("wait") != "0", g.cfg.GradeWait
	if err := checkFlag("wait", p.Get("wait")); err != nil {
		return false, window, err
	}
	if v := p.Get("grade_wait"); v != "" {
		if window.duration, err = strict.ParseDuration(v); err != nil || window.duration > time.Minute {
			return false, window, malformedf("grade_wait is a duration of at most 1m, like 2s")
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

// validateQuestion checks a question and generates missing ids in it. It rejects an empty query, text that is not
// UTF-8, a model name that is longer than maxModel or not visible ASCII, a reference longer than maxReference, invalid
// ids, attachments that [subjects.CheckAttachments] rejects, and a session of another ([subjects.Query.CheckSession]).
func validateQuestion(out actor.Out, in *Question) error {
	if strings.TrimSpace(in.Query) == "" || !utf8.ValidString(in.Query) {
		return malformedf("query: write the question as a text")
	}
	if len(in.Model) > maxModel || strings.ContainsFunc(in.Model, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return malformedf("model: at most %d visible ASCII characters", maxModel)
	}
	if len(in.Reference) > maxReference || !utf8.ValidString(in.Reference) {
		return malformedf("reference: a text of at most %d KB", maxReference>>10)
	}
	if err := subjects.CheckAttachments(in.Attachments); err != nil {
		return malformedf("attachments: %v", err)
	}
	if in.Client != "" && (in.Model != "" || in.Hint != "" || in.Reference != "") {
		return deniedf("model, hint and reference are for the user: a client is answered by the configured models")
	}
	if err := in.checkOptions(); err != nil {
		return malformedf("%v", err)
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
	if err := (subjects.Query{SessionID: in.SessionID, Client: in.Client}).CheckSession(); err != nil {
		return deniedf("%v", err)
	}
	return nil
}

// checkOptions rejects an unknown mode or hint, too many personas or rounds, and options of the committee in another
// mode.
func (q Question) checkOptions() error {
	switch {
	case q.respondent() == "":
		return fmt.Errorf("mode: %q is not one of %s", text.Clip(q.Mode, 40),
			strings.Join(strict.SortedKeys(subjects.Modes), ", "))
	case q.respondent() != subjects.Committee && (len(q.Personas) > 0 || q.Rounds != 0 || q.Parallel):
		return errors.New(`personas, rounds and parallel are for the mode "committee"`)
	}
	return subjects.Query{Hint: q.Hint, Personas: q.Personas, Rounds: q.Rounds}.CheckOptions()
}

// storeQuestion stores the images of the question and then the question, also when the client disconnects meanwhile:
// whether it is stored must be known. It returns the event without its sequence. The question of a client, which has a
// place, is followed from then on. in must be validated.
func (g *Gateway) storeQuestion(ctx context.Context, out actor.Out, in Question, images [][]byte, p *place) (
	client.Event, error,
) {
	if err := g.client.StoreImages(ctx, in.SessionID, images); err != nil {
		return client.Event{}, storeFault(out, "an attached image", err)
	}
	body := subjects.Query{
		SessionID: in.SessionID, QueryID: in.QueryID, Query: in.Query, Attachments: in.Attachments, Model: in.Model,
		Reference: in.Reference,
		Hint:      in.Hint, Personas: in.Personas, Rounds: in.Rounds, Parallel: in.Parallel, Client: in.Client,
		ClientMemory: in.clientMemory,
	}
	topic, _ := subjects.QuestionTopic(in.respondent())
	ctx, cancel := g.withStoreTimeout(ctx)
	defer cancel()
	var cur *client.Cursor
	if p != nil {
		cur = g.events.OpenCursor(g.life)
	}
	if err := client.Wrap(out).StoreQuestion(ctx, in.respondent(), body); err != nil {
		if cur != nil {
			cur.Close()
		}
		return client.Event{}, storeFault(out, topic.Name, err)
	}
	if p != nil {
		p.follow(cur, question{id: in.QueryID, session: in.SessionID, respondent: in.respondent()})
	}
	data, err := json.Marshal(body)
	if err != nil {
		return client.Event{}, fmt.Errorf("encoding the question: %w", err)
	}
	return client.Event{
		Subject: topic.Name, From: g.Name(), Time: out.Now().UTC(), Query: in.QueryID, Session: in.SessionID,
		Body: data,
	}, nil
}

// Times within which storing an event is repeated. A cut connection is back after a quarter of a second, and a client
// should learn soon that the bus is down; a cluster elects a leader in 4 to 9 s.
const (
	storeTimeout        = 2 * time.Second
	clusterStoreTimeout = 18 * time.Second // actors repeat for 15 s, and the last attempt takes up to 3 s
)

// withStoreTimeout returns a context for storing an event: it does not end with ctx, and failed attempts are not
// repeated after it ended. All attempts have one message id, so that the event is stored once.
func (g *Gateway) withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := storeTimeout
	if len(g.link.Servers()) > 1 {
		timeout = clusterStoreTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// storeFault logs why an event could not be stored and returns the fault for the client.
func storeFault(out actor.Out, what string, err error) error {
	var fault *subjects.Fault
	if errors.As(err, &fault) {
		return fault
	}
	out.LogError(err)
	return subjects.Faultf(subjects.CodeUnavailable, "%s was not stored, or the acknowledgement was lost; try again",
		what)
}

// readOutcome reads the outcome of a question from an event, nil for every other event, also for the answer of another
// account. An answer that cannot be decoded is a problem 502.
func readOutcome(ev client.Event, q question) (*client.Outcome, error) {
	if ev.Query != q.id {
		return nil, nil
	}
	end, err := client.ReadOutcome(ev, q.respondents()...)
	if err != nil {
		return nil, problemf(http.StatusBadGateway, subjects.CodeMalformed, "%v", err)
	}
	return end, nil
}

// explainDeadLetter returns the fault of a question that was abandoned.
func explainDeadLetter(d *subjects.DeadLetter) *subjects.Fault {
	return subjects.Faultf(d.Code, "%s failed permanently: %s", d.Actor, d.Reason)
}

// answerRecord collects the events of one question, within bounds, and the judgements of its answer.
type answerRecord struct {
	judgements
	events  []client.Event
	bytes   int
	dropped int
}

// add records an event and its judgement. Events of respondent B are ignored; events beyond logEvents or logBytes are
// only counted as dropped, but their judgements are kept.
func (c *answerRecord) add(ev client.Event) {
	if isOfRespondentB(ev) {
		return
	}
	c.judgements.add(ev)
	if len(c.events) >= logEvents || c.bytes+len(ev.Body) > logBytes {
		c.dropped++
		return
	}
	c.events, c.bytes = append(c.events, ev), c.bytes+len(ev.Body)
}

// writeAnswer responds with the outcome of a question: 200 with the answer, 502 with it when it is empty because of an
// error. A client gets the answer without the events, thinking, notes and tool calls behind it, which may hold private
// data of the user. After a dead letter it returns a problem 502.
func (g *Gateway) writeAnswer(w http.ResponseWriter, req *http.Request, q question, end *client.Outcome,
	rec *answerRecord,
) error {
	if end.Dead != nil {
		return &problem{
			status: http.StatusBadGateway, ids: q.ids(subjects.StateFailed), Fault: explainDeadLetter(end.Dead),
		}
	}
	r, state := end.Response, end.Response.State()
	if clientOf(req) != nil {
		r, rec = &subjects.Response{
			SessionID: r.SessionID, Answer: r.Answer, Model: r.Model, DemoModel: r.DemoModel, Usage: r.Usage,
			Partial: r.Partial, Error: r.Error,
		}, &answerRecord{}
	}
	a := Answer{
		QueryID: q.id, SessionID: r.SessionID, Answer: r.Answer, Thinking: r.Thinking, State: state,
		ToolCalls: append([]subjects.ToolCall{}, r.ToolCalls...), Notes: append([]subjects.Note{}, r.Notes...),
		Model: r.Model, DemoModel: r.DemoModel, Usage: r.Usage, Partial: r.Partial, Error: r.Error,
		Deliberations: append([]subjects.DeliberationSummary{}, r.Deliberations...),
		Grade:         rec.grade, Pairwise: rec.pairwise, Reward: rec.reward, Events: []string{},
		EventLog: []LogEntry{},
		Dropped:  rec.dropped,
	}
	var seconds float64 // never decreases: the server's wall clock may be set back between two events
	for _, ev := range rec.events {
		seconds = max(seconds, ev.Time.Sub(rec.events[0].Time).Seconds())
		a.Events = append(a.Events, ev.Subject)
		a.EventLog = append(a.EventLog, LogEntry{newEvent(ev), seconds})
	}
	status := http.StatusOK
	if r.Error != nil && strings.TrimSpace(r.Answer) == "" {
		status = http.StatusBadGateway
	}
	g.writeJSON(w, status, a)
	return nil
}

// explainUnanswered returns the problem of a wait that ended without an answer: 504 after the timeout, 503 when the
// gateway stops, both with links to the answer later, 401 for a revoked credential. Any other err is returned
// unchanged.
func explainUnanswered(q question, err error) error {
	switch {
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return &problem{
			status: http.StatusGatewayTimeout, ids: q.ids(subjects.StateRunning),
			Fault: subjects.Faultf(subjects.CodeTimeout, "timeout: no answer yet; question %s is still running, in "+
				"session %s", q.id, q.session),
		}
	case errors.Is(err, errRevoked):
		return errUnauthorized
	case errors.Is(err, errClosing):
		return &problem{
			status: http.StatusServiceUnavailable, ids: q.ids(subjects.StateRunning),
			Fault: subjects.Faultf(subjects.CodeUnavailable, "the gateway is stopping; question %s is stored and "+
				"will be answered, in session %s", q.id, q.session),
		}
	}
	return err
}

// ids returns the ids of a question with its links.
func (q question) ids(state string) *ids {
	later := links{
		Answer:  "/queries/" + q.id,
		Events:  fmt.Sprintf("/events?query=%s&after=%d", url.QueryEscape(q.id), q.since),
		Session: "/sessions/" + q.session,
	}
	if q.respondent == subjects.Orchestrator {
		later.Task = "/tasks/" + q.id
	}
	return &ids{QueryID: q.id, SessionID: q.session, State: state, Later: &later}
}
