package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/datatest"
	"conclave/pkg/model/wire"
	"conclave/pkg/undo"
	"conclave/subjects"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// plainConfig is memory without a small model: what plain code makes of a text is always the same.
func plainConfig() Config {
	return Config{
		Enabled: true, Results: 20, Top: 5, Hybrid: true, ContextScore: 0.6, Limit: 128 << 20,
		AuditTimeout: 5 * time.Second, Undo: undo.Limits{Days: 30, Size: 1 << 20},
	}
}

// fixture is everything around one memory: a database of its own, an audit, a model that makes vectors of words and
// says what it is told to say, and a clock.
type fixture struct {
	t    *testing.T
	rec  actortest.Recorder
	m    *Memory
	db   *store.Store
	path string
	hash actor.Hasher

	mu          sync.Mutex
	now         time.Time
	embed       func(texts []string) (subjects.EmbedReply, error)
	chat        func(system, user string, schema string) (string, error) // nil = nobody answers
	auditErrors map[string]error                                         // phase -> why the audit does not take it
	records     []subjects.AuditRecord
	closed      bool
	onClock     func() // called when something asks for the time, also in a transaction; must not ask itself
}

// newFixture is a memory with nothing in it.
func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	dir := datatest.Dir(t)
	w := &fixture{
		t: t, now: noon, auditErrors: map[string]error{},
		path: filepath.Join(dir, "memory", "memory.duckdb"),
	}
	h, err := audit.LoadHasher(filepath.Join(dir, "params.key"))
	if err != nil {
		t.Fatal(err)
	}
	w.hash, w.embed = h, wordEmbedder("words-1", 256)
	w.rec.Reply, w.rec.Time = w.answerModel, noon
	for range 1000 { // ids that are as long as real ones must be at least
		w.rec.Out().NewID()
	}
	file, err := emptyDatabase()
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(w.path), 0o700), os.WriteFile(w.path, file, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg := plainConfig()
	for _, c := range change {
		c(&cfg)
	}
	w.open(cfg)
	t.Cleanup(w.close)
	return w
}

// emptyDatabase is the file of a memory with nothing in it.
var emptyDatabase = datatest.MakeOnce(func(path string) error {
	db, err := store.Open(context.Background(), path, store.Options{})
	if err != nil {
		return err
	}
	return db.Close(context.Background())
})

func (w *fixture) open(cfg Config) {
	w.t.Helper()
	db, err := store.Open(w.t.Context(), w.path, store.Options{
		MemoryLimit: "128MB", Now: w.clock, KeepDays: cfg.Undo.Days, KeepBytes: int64(cfg.Undo.Size),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.m, err = newMemory(w.t.Context(), cfg, db, w, w.hash, w.clock); err != nil {
		w.t.Fatal(err)
	}
	w.db, w.closed = db, false
}

// close ends the actor.
func (w *fixture) close() {
	if w.m == nil {
		return
	}
	if err := w.m.Close(context.Background()); err != nil || !w.closed {
		w.t.Errorf("closing: %v, the audit closed: %t", err, w.closed)
	}
	w.m = nil
}

// restart is the same installation after a restart. The file is looked through on the way.
func (w *fixture) restart() {
	w.t.Helper()
	if err := w.db.Verify(w.t.Context()); err != nil {
		w.t.Errorf("the file: %v", err)
	}
	cfg := w.m.cfg
	w.close()
	w.open(cfg)
}

func (w *fixture) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onClock != nil {
		w.onClock()
	}
	return w.now
}

// advance lets time pass.
func (w *fixture) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
	w.rec.Time = w.now
}

// Append implements [Audit].
func (w *fixture) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a record without a limit on how long it may take")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.auditErrors[rec.Phase]; err != nil {
		return err
	}
	w.records = append(w.records, rec)
	return nil
}

// Close implements [Audit].
func (w *fixture) Close(context.Context) error { w.closed = true; return nil }

// answerModel is the model.
func (w *fixture) answerModel(subject string, body []byte) (any, error) {
	w.mu.Lock()
	embed, chat := w.embed, w.chat
	w.mu.Unlock()
	switch {
	case subject == "model.embed" && embed != nil:
		var r subjects.EmbedRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		return embed(r.Texts)
	case subject == "model.chat" && chat != nil:
		var r subjects.ChatRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		q, err := wire.DecodeRequest(r)
		if err != nil {
			return nil, err
		}
		if q.Think == nil || *q.Think {
			return nil, errors.New("a request of memory must not make the model think")
		}
		said, err := chat(q.Messages[0].Content, q.Messages[1].Content, string(q.Format))
		return actortest.Pieces{subjects.ChatChunk{Content: said, Done: true, Model: "small", Reason: "stop"}}, err
	}
	return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
}

// setEmbedder changes the model for vectors; nil = nobody answers.
func (w *fixture) setEmbedder(f func([]string) (subjects.EmbedReply, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.embed = f
}

// wordEmbedder makes vectors of words: texts that share words are near. Each word points somewhere of its own.
func wordEmbedder(by string, dims int) func([]string) (subjects.EmbedReply, error) {
	return func(texts []string) (subjects.EmbedReply, error) {
		r := subjects.EmbedReply{Model: by}
		for _, t := range texts {
			v := make([]float32, dims)
			for _, word := range strings.FieldsFunc(strings.ToLower(t), func(r rune) bool {
				return !unicode.IsLetter(r) && !unicode.IsDigit(r)
			}) {
				h := fnv.New64a()
				h.Write([]byte(word))
				at := rand.New(rand.NewPCG(h.Sum64(), 1))
				for i := range v {
					v[i] += float32(at.NormFloat64())
				}
			}
			r.Vectors = append(r.Vectors, v)
		}
		return r, nil
	}
}

// deliver hands a request in and reads the reply, the last piece of a streamed one.
func deliver[A any](w *fixture, subject, query, session string, body any) (out []A, err error) {
	w.t.Helper()
	m := actortest.Message{
		Subject: subject, Body: body, Query: query, Session: session,
		Deadline: w.clock().Add(time.Minute),
	}
	if _, raw := body.([]byte); raw {
		m.Type = subjects.TypeJSON
	}
	got, err := w.rec.Deliver(w.t, w.m, m)
	for line := range strings.Lines(got) {
		var a A
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			w.t.Fatalf("%s answers %s: %v", subject, line, err)
		}
		out = append(out, a)
	}
	return out, err
}

func one[A any](all []A, err error) (A, error) { return last(all), err }

// last of a list that must have one.
func last[T any](all []T) (v T) {
	if len(all) > 0 {
		v = all[len(all)-1]
	}
	return v
}

// recallStages recalls as the user does, and returns every stage.
func (w *fixture) recallStages(q subjects.MemoryQuery) ([]subjects.MemoryReply, error) {
	w.t.Helper()
	return deliver[subjects.MemoryReply](w, "ctl.user.memory.query", "q-ask", "s-ask", q)
}

// recallIDs is the names of what is recalled for some words, best first.
func (w *fixture) recallIDs(query string) []string {
	w.t.Helper()
	r, err := one(w.recallStages(subjects.MemoryQuery{Query: query, Fresh: true}))
	if err != nil {
		w.t.Fatalf("recalling %q: %v", query, err)
	}
	out := []string{}
	for _, h := range r.Hits {
		out = append(out, h.Entry.ID)
	}
	return out
}

func (w *fixture) admin(a subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error) {
	w.t.Helper()
	return one(deliver[subjects.MemoryAdminReply](w, "ctl.user.memory.admin", "", "", a))
}

func (w *fixture) write(body subjects.MemoryWriteRequest) (subjects.MemoryWriteReply, error) {
	w.t.Helper()
	return one(deliver[subjects.MemoryWriteReply](w, "ctl.user.memory.write", "", "", body))
}

// storeFact stores what the user says by hand, and returns its id.
func (w *fixture) storeFact(text string) string {
	w.t.Helper()
	got, err := w.write(subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: text}}})
	if err != nil || len(got.Results) != 1 || got.Results[0].Action == "refused" {
		w.t.Fatalf("storing %q: %+v, %v", text, got, err)
	}
	return got.Results[0].ID
}

// supersede makes the entry by supersede the entry old, as a model's relations do.
func (w *fixture) supersede(old, by string) {
	w.t.Helper()
	e := w.entry(by)
	e.Supersedes = []string{old}
	if err := w.db.Supersede(w.t.Context(), e); err != nil {
		w.t.Fatal(err)
	}
	if err := w.m.refreshIndex(w.t.Context(), old); err != nil {
		w.t.Fatal(err)
	}
}

// deliverAnswer delivers an answer under the key of an account.
func (w *fixture) deliverAnswer(account string, r subjects.Response) error {
	w.t.Helper()
	_, err := deliver[any](w, "from."+account+".response.generation", r.QueryID, r.SessionID, r)
	return err
}

// storeAnswer stores an answer to a question and returns the engram's id.
func (w *fixture) storeAnswer(query, question, text string) string {
	w.t.Helper()
	if err := w.deliverAnswer("generator", subjects.Response{
		SessionID: "s1", QueryID: query, Query: question,
		Answer: text, Model: "m", Labels: trusted(),
	}); err != nil {
		w.t.Fatal(err)
	}
	id, state, err := w.db.FindAnswer(w.t.Context(), query, "generator")
	if err != nil || state != store.Stored {
		w.t.Fatalf("the answer to %s is %q, %v", query, state, err)
	}
	return id
}

// refine has the model describe all entries that wait for it; an unavailable model is no failure.
func (w *fixture) refine() {
	w.t.Helper()
	for {
		n, err := w.m.refineBatch(w.t.Context(), w.rec.Out())
		if err != nil && !isModelUnavailable(err) {
			w.t.Fatal(err)
		}
		if n < refineSize {
			return
		}
	}
}

// relate stores relations of an entry, as a model's digest of it does.
func (w *fixture) relate(id string, relations ...digest.Relation) {
	w.t.Helper()
	if err := storeRelations(w.t.Context(), &access{w.db}, w.entry(id), relations); err != nil {
		w.t.Fatal(err)
	}
}

// callTool has a tool called as the broker does.
func (w *fixture) callTool(tool string, o subjects.ToolOrder) subjects.ToolResult {
	w.t.Helper()
	if o.CallID == "" {
		o.CallID = actor.NewID()
	}
	if o.Caller == "" {
		o.Caller = "generator"
	}
	res, err := one(deliver[subjects.ToolResult](w, "tool.request."+tool, o.QueryID, "s1", o))
	var f *subjects.Fault
	switch {
	case errors.As(err, &f):
		res.Error = f
	case err != nil:
		w.t.Fatalf("%s: %v", tool, err)
	}
	return res
}

// trusted are the labels of a session that no stranger has written into.
func trusted() *subjects.Labels { return &subjects.Labels{Trust: subjects.Trusted} }

// importPieces hands in a document of one message, and returns the ids of its pieces.
func (w *fixture) importPieces(from string, pieces ...string) (ids []string) {
	w.t.Helper()
	d := subjects.MemoryDocument{From: from, Title: from, Hash: strings.Join(pieces, "\n"), First: 1, Last: true}
	for _, p := range pieces {
		d.Pieces = append(d.Pieces, subjects.DocumentPiece{Text: p})
	}
	got, err := w.write(subjects.MemoryWriteRequest{Document: &d})
	if err != nil {
		w.t.Fatalf("importing %s: %v", from, err)
	}
	for _, r := range got.Results {
		ids = append(ids, r.ID)
	}
	return ids
}

// entry is one that must be there.
func (w *fixture) entry(id string) subjects.MemoryEntry {
	w.t.Helper()
	all, err := w.db.Get(w.t.Context(), id)
	if err != nil || len(all) != 1 {
		w.t.Fatalf("%d entries %s, %v", len(all), id, err)
	}
	return all[0]
}

// count is how many entries there are, in any state.
func (w *fixture) count() int {
	w.t.Helper()
	s, err := w.db.Stats(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Entries
}

// events are those that memory said on a subject.
func (w *fixture) events(subject string) (out []subjects.MemoryEvent) {
	w.t.Helper()
	for _, s := range w.rec.Published() {
		if s.Subject != subject {
			continue
		}
		var ev subjects.MemoryEvent
		if err := json.Unmarshal([]byte(s.Body), &ev); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, ev)
	}
	return out
}

// storedActions is what memory did, as its events tell.
func (w *fixture) storedActions() (out []string) {
	for _, ev := range w.events("memory.stored") {
		out = append(out, ev.Action)
	}
	return out
}

// takeAudit is "memory.write save_memory before allowed" ... of the records since the last call.
func (w *fixture) takeAudit() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		out = append(out,
			strings.Join(strings.Fields(strings.Join([]string{r.AgentID, r.Action, r.Tool, r.Phase, r.Status, r.Reason},
				" ")), " "))
	}
	w.records = nil
	return out
}

// assertAbsent fails the test when a secret is in the database, in what was said, asked, noted or recorded.
func (w *fixture) assertAbsent(secret string) {
	w.t.Helper()
	entries, _, err := w.db.List(w.t.Context(), store.Filter{Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	records := slices.Clone(w.records)
	w.mu.Unlock()
	for what, v := range map[string]any{
		"the database": entries, "events": w.rec.Published(),
		"questions to a model": w.rec.Requested(), "the log": w.rec.Logged(), "the audit": records,
	} {
		if all := fmt.Sprintf("%+v", v); strings.Contains(all, secret) {
			at := strings.Index(all, secret)
			w.t.Errorf("%s holds %q", what, all[max(0, at-80):min(len(all), at+80)])
		}
	}
}
