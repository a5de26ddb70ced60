package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/actors/memory/store"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// auditCase is something that memory does for somebody.
type auditCase struct {
	name string
	do   func(w *fixture) (shown string, err error)
	want string // who, what and with what, as the audit has it
}

// auditCases are one of each kind.
func auditCases(known string) []auditCase {
	tool := func(name, args, caller string) func(*fixture) (string, error) {
		return func(w *fixture) (string, error) {
			res := w.callTool(name, subjects.ToolOrder{
				CallID: "c-" + name, QueryID: "q7", Args: json.RawMessage(args),
				Caller: caller, Spawned: strings.Contains(caller, "."), Labels: trusted(),
			})
			if res.Error != nil {
				return res.Result, res.Error
			}
			return res.Result, nil
		}
	}
	admin := func(a subjects.MemoryAdminRequest) func(*fixture) (string, error) {
		return func(w *fixture) (string, error) { return shown(deliver[any](w, "ctl.user.memory.admin", "", "", a)) }
	}
	return []auditCase{
		{"an answer", func(w *fixture) (string, error) {
			return "", w.deliverAnswer("generator", told("q7", "Berta", "Rome"))
		}, "generator memory.write engram s1 q7"},
		{"a grade", func(w *fixture) (string, error) {
			return "", w.critique(7, subjects.Critique{QueryID: "q7", RespondentID: "generator", Score: 3})
		}, "critic memory.annotate q7"},
		{"a comparison", func(w *fixture) (string, error) {
			return "", w.pairwise(8, subjects.Pairwise{QueryID: "q7", Winner: "tie"})
		}, "critic memory.annotate q7"},
		{"a reward", func(w *fixture) (string, error) {
			return "", w.reward(9, subjects.Reward{QueryID: "q7", Value: 1})
		}, "reward memory.annotate q7"},
		{"a recall", func(w *fixture) (string, error) {
			return shown(w.recallStages(subjects.MemoryQuery{Query: "bicycle", Fresh: true}))
		}, "user memory.read s-ask q-ask"},
		{"correlated", func(w *fixture) (string, error) {
			return shown(deliver[any](w, "ctl.user.memory.correlated", "", "",
				subjects.MemoryIDs{IDs: []string{known}}))
		}, "user memory.read"},
		{"a search", tool("search_memory", `{"query":"bicycle"}`, "generator"), "generator memory.read search_memory " +
			"s1 q7"},
		{
			"a search by id", tool("search_memory", `{"query":"x","ids":["`+known+`"]}`, "committee.r1"),
			"committee.r1 memory.read search_memory s1 q7",
		},
		{
			"knowledge graph", tool("search_knowledge_graph", `{"query":"Anna"}`, "generator"),
			"generator memory.read search_knowledge_graph s1 q7",
		},
		{
			"a note", tool("save_memory", `{"content":"The tent has nine pegs."}`, "orchestrator.r1"),
			"orchestrator.r1 memory.write save_memory s1 q7",
		},
		{"a fact", func(w *fixture) (string, error) {
			return shown(deliver[any](w, "ctl.user.memory.write", "", "",
				subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Corpus: "The lamp is broken."}}}))
		}, "user memory.write entries"},
		{"a document", func(w *fixture) (string, error) {
			d := file("h1", "The stove burns gas.")
			return shown(deliver[any](w, "ctl.user.memory.write", "", "", subjects.MemoryWriteRequest{Document: &d}))
		}, "user memory.write document"},
		{"a list", admin(subjects.MemoryAdminRequest{Op: "list"}), "user memory.admin list"},
		{"show", admin(subjects.MemoryAdminRequest{Op: "show", IDs: []string{known}}), "user memory.admin show"},
		{
			"edit",
			admin(subjects.MemoryAdminRequest{
				Op: "edit", IDs: []string{known},
				Edit: &subjects.MemoryEdit{Name: new("bike")},
			}), "user memory.admin edit",
		},
		{"a pin", admin(subjects.MemoryAdminRequest{Op: "pin", IDs: []string{known}}), "user memory.admin pin"},
		{"the graph", admin(subjects.MemoryAdminRequest{Op: "graph"}), "user memory.admin graph"},
		{"forget", admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{known}}), "user memory.admin forget"},
	}
}

// shown is a reply as text.
func shown[A any](all []A, err error) (string, error) {
	if len(all) == 0 {
		return "", err
	}
	return fmt.Sprintf("%+v", all), err
}

// state is all that a test can see of a memory.
func (w *fixture) state() string {
	w.t.Helper()
	s, err := w.db.Stats(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	entries, _, err := w.db.List(w.t.Context(), store.Filter{})
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("%+v %+v %d events", entries, s, len(w.rec.Published()))
}

// TestAuditOfRefusals: rejected and malformed requests are recorded too.
func TestAuditOfRefusals(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, tt := range []struct {
		name, subject string
		body          any
		want          []string
	}{
		{
			"unknown id", "ctl.user.memory.admin",
			subjects.MemoryAdminRequest{Op: "forget", IDs: []string{"nobody-knows"}},
			[]string{"user memory.admin forget before allowed", "user memory.admin forget after failed malformed"},
		},
		{"a secret", "tool.request.save_memory", subjects.ToolOrder{
			CallID: "c", Caller: "generator",
			Args: json.RawMessage(`{"content":"password: ` + canary + `"}`),
		}, []string{
			"generator memory.write save_memory before allowed",
			"generator memory.write save_memory after failed tool_failed",
		}},
		{"no JSON", "ctl.user.memory.query", []byte("{"), []string{"user memory.read before refused malformed"}},
		{
			"trick: unknown field", "ctl.user.memory.write", []byte(`{"who":"operator"}`),
			[]string{"user memory.write before refused malformed"},
		},
		{"trick: invalid account", "ctl.us er.memory.admin", []byte(`{`), []string{"memory.admin before refused " +
			"malformed"}},
		{
			"invalid document", "ctl.user.memory.write",
			subjects.MemoryWriteRequest{Document: &subjects.MemoryDocument{From: "x"}},
			[]string{"user memory.write document before allowed", "user memory.write document after failed malformed"},
		},
	} {
		if _, err := deliver[any](w, tt.subject, "", "", tt.body); err == nil &&
			!strings.HasPrefix(tt.subject, "tool") {
			t.Errorf("%s: it is done", tt.name)
		}
		if got := w.takeAudit(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: recorded %q, want %q", tt.name, got, tt.want)
		}
	}
	w.assertAbsent(canary)
}

// TestAudit: without an acknowledged first record nothing is read or written and no model is called. Otherwise each
// operation has two records.
func TestAudit(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	known := w.storeFact("The bicycle stands in the cellar.")
	before, asked := w.state(), len(w.rec.Requested())
	for reason, says := range map[error]string{
		context.DeadlineExceeded: "see conclave doctor",
		audit.ErrFull:            "conclave audit rotate",
	} {
		w.auditErrors[subjects.AuditBefore] = fmt.Errorf("appending: %w", reason)
		for _, d := range auditCases(known) {
			shown, err := d.do(w)
			if actortest.Code(err) != subjects.CodeNoAudit || !strings.Contains(err.Error(), says) || shown != "" {
				t.Errorf("%s: %v, shows %q", d.name, err, shown)
			}
		}
	}
	if after := w.state(); after != before {
		t.Errorf("there was\n%s, and now\n%s", before, after)
	}
	if n := len(w.rec.Requested()); n != asked {
		t.Errorf("a model was asked %d times", n-asked)
	}
	// When it answers again each is done, the events too, and recorded before and after under who wanted it.
	delete(w.auditErrors, subjects.AuditBefore)
	w.takeAudit()
	for _, d := range auditCases(known) {
		if _, err := d.do(w); err != nil {
			t.Errorf("%s, once more: %v", d.name, err)
		}
		records := slices.Clone(w.records)
		w.records = nil
		if len(records) != 2 {
			t.Errorf("%s: %d records", d.name, len(records))
			continue
		}
		for i, phase := range []string{subjects.AuditBefore, subjects.AuditAfter} {
			r := records[i]
			if got := strings.Join(
				strings.Fields(strings.Join([]string{r.AgentID, r.Action, r.Tool, r.Session, r.Query}, " ")),
				" "); got != d.want {
				t.Errorf("%s: recorded as %q, want %q", d.name, got, d.want)
			}
			if r.Phase != phase || r.Status != []string{subjects.StatusAllowed, subjects.StatusOK}[i] ||
				len(r.ParamsHash) != 64 || r.ID == "" || r.ID != records[0].ID || r.Reason != "" {
				t.Errorf("%s: %+v", d.name, r)
			}
		}
	}
}

// TestFailedOutcomeRecordWithholdsReply: a reply whose outcome cannot be recorded is withheld. Names and descriptions
// of a recall were sent under the first record; texts were not.
func TestFailedOutcomeRecordWithholdsReply(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	known := w.storeFact("The bicycle stands in the cellar.")
	w.storeFact("The sledge hangs under the roof.")
	w.auditErrors[subjects.AuditAfter] = errors.New("the audit is away")
	for _, d := range auditCases(known) {
		shown, err := d.do(w)
		if actortest.Code(err) != subjects.CodeUnrecorded || !strings.Contains(err.Error(), "withheld") {
			t.Errorf("%s: %v", d.name, err)
		}
		if d.name != "a recall" && shown != "" {
			t.Errorf("%s: shows %q", d.name, shown)
		}
	}
	for _, fresh := range []bool{true, false} { // the second time from the cache
		replies, err := w.recallStages(subjects.MemoryQuery{Query: "sledge", Fresh: fresh})
		if actortest.Code(err) != subjects.CodeUnrecorded ||
			slices.ContainsFunc(replies, func(r subjects.MemoryReply) bool {
				return r.Done || slices.ContainsFunc(r.Hits, func(h subjects.MemoryHit) bool {
					return h.Segment != "" || h.Entry.Corpus != ""
				})
			}) {
			t.Errorf("a recall, fresh %t: %v, %+v", fresh, err, replies)
		}
	}
	// An answer was stored. Its event comes again and is told of once.
	delete(w.auditErrors, subjects.AuditAfter)
	if err := w.deliverAnswer("generator", told("q7", "Berta", "Rome")); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, ev := range w.events("memory.stored") {
		if ev.QueryID == "q7" && ev.By == "generator" {
			n++
		}
	}
	if n != 1 || w.entry(deriveID(subjects.KindEngram, "q7", "generator")).State != subjects.MemoryActive {
		t.Errorf("told of %d times", n)
	}
}
