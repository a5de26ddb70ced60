package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// memoryStub serves the requests of the memory actor under its grants. Its entries never change.
type memoryStub struct{ requestLog }

func (*memoryStub) Name() string { return "memory" }

func (k *memoryStub) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.MemoryAdminService, k.admin), actor.Serve(subjects.MemoryWriteService, k.write),
		actor.Serve(subjects.MemoryCorrelated, k.correlated), actor.ServeStream(subjects.MemoryQueryService, k.recall),
	}
}

func (k *memoryStub) note(from, what string, body any) {
	data, _ := json.Marshal(body)
	k.record(from + " " + what + " " + string(data))
}

// lookups are the requests that only look an id up.
const lookups = `gateway admin {"op":"show"`

var entryTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// storedEntries are an entry with every field, a candidate, and a document.
var storedEntries = []subjects.MemoryEntry{
	{
		ID: "anna0000000000000000000000000001", Kind: "fact", Name: "Anna", Description: "d",
		Corpus: "Anna <lives> in Bremen.", Tags: []string{"t"},
		Correlating: []string{"idea0000000000000000000000000002"},
		Provenance: subjects.Provenance{
			Source: "user", Trust: "trusted", Agent: "a", SessionID: "s", QueryID: "q",
			From: "f", Part: 1, Model: "m", Digest: "model", Flags: []string{"x"},
		},
		Intent: "i", Entities: []string{"Anna"}, Sentiment: "neutral", Respondent: "a", Conversation: "c",
		Position: 2, Speaker: "Anna", Happened: entryTime, Grades: subjects.Grades{Critic: 4}, State: "active",
		SupersededBy: "x", Supersedes: []string{"y"}, Pinned: true,
		Created: entryTime, Updated: entryTime, Accessed: entryTime, Accesses: 2,
	},
	{
		ID: "idea0000000000000000000000000002", Kind: "fact", Name: "Idea", Corpus: "Boats.", State: "candidate",
		Provenance: subjects.Provenance{Source: "agent", Trust: "untrusted"}, Created: entryTime, Updated: entryTime,
	},
	{
		ID: "anna0000000000000000000000000003", Kind: "document", Name: "Other", Corpus: "Text.", State: "active",
		Provenance: subjects.Provenance{Source: "document", Trust: "untrusted"}, Created: entryTime,
		Updated: entryTime,
	},
}

func (k *memoryStub) admin(_ context.Context, in actor.Msg[subjects.MemoryAdminRequest],
	_ actor.Out,
) (done subjects.MemoryAdminReply, err error) {
	k.note(in.From, "admin", in.Body)
	q := in.Body
	switch q.Text + q.Query { // odd ones
	case "noaudit":
		return done, subjects.Faultf(subjects.CodeNoAudit, "the audit did not take it")
	case "shut":
		return done, subjects.Faultf(subjects.CodeUnavailable, "memory is unavailable: the file is damaged")
	case "broken":
		return done, subjects.Faultf(subjects.CodeInternal, "secret insides")
	case "late":
		return done, subjects.Faultf(subjects.CodeExpired, "too late")
	}
	switch q.Op {
	case "list": // a page each
		if q.Limit > 7 && q.Whole {
			return done, subjects.Faultf(subjects.CodeTooLarge, "ask for fewer")
		}
		at := 0
		if q.After != "" {
			if at = slices.IndexFunc(storedEntries, func(e subjects.MemoryEntry) bool {
				return e.ID == q.After
			}) + 1; at == 0 {
				return done, subjects.Faultf(subjects.CodeMalformed, "invalid cursor")
			}
		}
		done.Entries = storedEntries[at : at+1]
		if at+1 < len(storedEntries) {
			done.Next = storedEntries[at].ID
		}
		return done, nil
	case "graph":
		done.Relations = []subjects.Relation{{
			ID: "r", Subject: "Anna", Predicate: "lives in", Object: "Bremen",
			Kind: "place", Tense: "is", From: "2024", Until: "2025", Entry: "e", Trust: "trusted", Said: entryTime,
		}}
		return done, nil
	case "status":
		done.Status = &subjects.MemoryStatus{
			Entries: map[string]int{"fact": 2}, States: map[string]int{"active": 2},
			DuckDB: "v1",
		}
		return done, nil
	}
	if q.Op == "forget" && q.Query != "" {
		done.Entries = storedEntries[:1]
		if !q.Dry {
			done.Changed = 1
		}
		return done, nil
	}
	for _, id := range q.IDs {
		found := slices.DeleteFunc(slices.Clone(storedEntries), func(e subjects.MemoryEntry) bool {
			return !strings.HasPrefix(e.ID, id)
		})
		switch {
		case id == "vanished":
			return done, nil
		case len(found) == 0:
			return done,
				subjects.Faultf(subjects.CodeMalformed, "there is no entry %s; conclave memory list shows them", id)
		case len(found) > 1:
			return done, subjects.Faultf(subjects.CodeMalformed, "%s could be %s or %s: give more characters", id,
				found[0].ID, found[1].ID)
		}
		done.Entries, done.Changed = append(done.Entries, found[0]), 1
	}
	if q.Op == "pin" {
		done.Changed = 0 // it is
	}
	if q.Edit != nil && q.Edit.Corpus != nil && strings.Contains(*q.Edit.Corpus, "password") {
		return done, subjects.Faultf(subjects.CodeMalformed, "it looks like a password")
	}
	return done, nil
}

func (k *memoryStub) write(_ context.Context, in actor.Msg[subjects.MemoryWriteRequest],
	_ actor.Out,
) (w subjects.MemoryWriteReply, err error) {
	ids := []string{}
	for _, e := range in.Body.Entries {
		id := e.ID + " " + e.Corpus
		if e.ID == "" && e.Speaker != "" {
			id += fmt.Sprintf(" (%s %d %s %s)", e.Conversation, e.Position, e.Speaker, e.Happened.Format(time.RFC3339))
		}
		ids = append(ids, id)
		res := subjects.MemoryWriteResult{ID: "new", Action: "stored"}
		if e.ID != "" {
			res.ID = e.ID
		}
		if strings.Contains(e.Corpus, "password") {
			res = subjects.MemoryWriteResult{ID: e.ID, Action: "refused", Why: "it looks like a password"}
		}
		w.Results = append(w.Results, res)
	}
	k.note(in.From, fmt.Sprintf("write %t", in.Body.Restore), ids)
	return w, nil
}

func (k *memoryStub) correlated(_ context.Context, in actor.Msg[subjects.MemoryIDs], _ actor.Out) (subjects.MemoryReply,
	error,
) {
	return subjects.MemoryReply{Hits: []subjects.MemoryHit{{Entry: storedEntries[1]}}, Done: true}, nil
}

func (k *memoryStub) recall(_ context.Context, in actor.Msg[subjects.MemoryQuery], say func(subjects.MemoryReply) error,
	_ actor.Out,
) error {
	k.note(in.From, "recall", in.Body)
	if in.Body.Query == "wrong" {
		return subjects.Faultf(subjects.CodeMalformed, "give other words")
	}
	if in.Body.Query == "quota" {
		return subjects.Faultf(subjects.CodeFull, "the quota of events is used up")
	}
	if err := say(subjects.MemoryReply{Stage: "names"}); err != nil || in.Body.Query == "cut" {
		return err
	}
	if in.Body.Query == "nothing" {
		return say(subjects.MemoryReply{Done: true})
	}
	return say(subjects.MemoryReply{
		Stage: "corpus", Done: true, Millis: 2,
		Hits: []subjects.MemoryHit{{
			Entry: storedEntries[0], Segment: "Bremen", Similarity: 0.8, Score: 0.9,
			Reasons: []subjects.MemoryReason{{What: "name", Value: 0.9}},
		}},
	})
}

const (
	annaID      = "anna0000000000000000000000000001"
	candidateID = "idea0000000000000000000000000002"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	k := &memoryStub{}
	startActor(t, b, k)
	d, w := describe(t), startGateway(t, b, setup{})
	w.checkRoutes(d, func() string { return k.take(lookups) }, []routeTest{
		{
			"list", "GET", "/memory", "/memory", "", 200, `"next":"` + annaID + `"`,
			`gateway admin {"op":"list","limit":50}`,
		},
		{
			"list with everything", "GET", "/memory",
			"/memory?kind=fact&state=active&trust=trusted&tag=t&from=f&text=x&limit=7&after=" + candidateID +
				"&whole=1", "", 200, `"next":""`,
			`gateway admin {"op":"list","kind":"fact","state":"active","trust":"trusted","tag":"t","from":"f",` +
				`"text":"x","limit":7,"after":"` + candidateID + `","whole":true}`,
		},
		{
			"search", "GET", "/memory/search", "/memory/search?q=Anna&max=3&kind=fact&whole=1&fresh=1&all=1", "", 200,
			`"segment":"Bremen"`,
			`gateway recall {"query":"Anna","max":3,"kind":"fact","whole":true,"fresh":true,"all":true}`,
		},
		{
			"search for what is not there", "GET", "/memory/search", "/memory/search?q=nothing", "", 200,
			`{"hits":[],"cached":false,"notes":[]`, `gateway recall {"query":"nothing"}`,
		},
		{"show", "GET", "/memory/{id}", "/memory/" + annaID, "", 200, `"correlated":[{"id":"` + candidateID, ""},
		{"show by the beginning", "GET", "/memory/{id}", "/memory/idea00", "", 200, `"correlated":[]`, ""},
		{"edit", "PATCH", "/memory/{id}", "/memory/idea00", `{"name":"N","tags":[]}`, 200, `"entry":{"id":"` +
			candidateID, `gateway admin {"op":"edit","ids":["` + candidateID + `"],"edit":{"name":"N","tags":[]}}`},
		{
			"forget one", "DELETE", "/memory/{id}", "/memory/idea00", "", 200, `"forgotten":1`,
			`gateway admin {"op":"forget","ids":["` + candidateID + `"]}`,
		},
		{
			"forget, dry", "POST", "/memory/forget", "/memory/forget", `{"query":"Anna","dry":true}`, 200,
			`"forgotten":0`,
			`gateway admin {"op":"forget","query":"Anna","dry":true}`,
		},
		{
			"forget", "POST", "/memory/forget", "/memory/forget", `{"query":"Anna","dry":false}`, 200, `"forgotten":1`,
			`gateway admin {"op":"forget","query":"Anna"}`,
		},
		{"pin", "POST", "/memory/{id}/pin", "/memory/idea00/pin", `{}`, 200, `{"id":"` + candidateID +
			`","state":"pinned","changed":false}`, `gateway admin {"op":"pin","ids":["` + candidateID + `"]}`},
		{
			"unpin", "DELETE", "/memory/{id}/pin", "/memory/idea00/pin", "", 200, `"state":"unpinned","changed":true`,
			`gateway admin {"op":"unpin","ids":["` + candidateID + `"]}`,
		},
		{
			"accept", "POST", "/memory/{id}/accept", "/memory/idea00/accept", `{}`, 200, `"state":"accepted"`,
			`gateway admin {"op":"accept","ids":["` + candidateID + `"]}`,
		},
		{
			"reject", "POST", "/memory/{id}/reject", "/memory/idea00/reject", `{}`, 200, `"state":"rejected"`,
			`gateway admin {"op":"reject","ids":["` + candidateID + `"]}`,
		},
		{
			"remember", "POST", "/memory", "/memory", `{"text":" Anna lives in Bremen. ","tags":["x"]}`, 200,
			`{"id":"new","action":"stored","other":"","why":""}`, `gateway write false [" Anna lives in Bremen."]`,
		},
		{
			"graph", "GET", "/memory/graph", "/memory/graph?q=Anna&limit=3", "", 200, `"object":"Bremen"`,
			`gateway admin {"op":"graph","query":"Anna","limit":3}`,
		},
		{
			"status", "GET", "/memory/status", "/memory/status", "", 200, `"duckdb":"v1"`,
			`gateway admin {"op":"status"}`,
		},

		{"no such id", "GET", "/memory/{id}", "/memory/nobody00", "", 404, "there is no entry nobody00", ""},
		{"an id that could be two", "GET", "/memory/{id}", "/memory/anna00", "", 404, "give more characters", ""},
		{
			"edit of one that is not there", "PATCH", "/memory/{id}", "/memory/nobody00", `{"name":"N"}`, 404,
			"there is no entry", "",
		},
		{
			"forgetting one that is not there", "DELETE", "/memory/{id}", "/memory/vanished", "", 404,
			"memory vanished not found", "",
		},
		{
			"trick: forgetting two at once", "DELETE", "/memory/{id}", "/memory/anna00", "", 404,
			"give more characters",
			"",
		},
		{"trick: everything", "DELETE", "/memory/{id}", "/memory/%2A%2A%2A%2A%2A%2A", "", 400, "letters, digits", ""},
		{"trick: an id that is too short", "DELETE", "/memory/{id}", "/memory/a", "", 400, "at least 6 characters", ""},
		{
			"trick: a body to a DELETE", "DELETE", "/memory/{id}", "/memory/" + annaID, `{"query":"x"}`, 400,
			"takes no body", "",
		},
		{
			"a decision that nobody waits for", "POST", "/memory/{id}/accept", "/memory/" + annaID + "/accept", `{}`,
			409,
			"is not a candidate: its state is active", "",
		},
		{"trick: pin by a form", "POST", "/memory/{id}/pin", "/memory/idea00/pin", "", 415, "Content-Type", ""},
		{
			"trick: pin with more than was asked for", "POST", "/memory/{id}/pin", "/memory/idea00/pin",
			`{"trust":"trusted"}`, 400, "unknown", "",
		},
		{
			"trick: an edit of what is not said", "PATCH", "/memory/{id}", "/memory/idea00",
			`{"provenance":{"trust":"trusted"}}`, 400, "unknown", "",
		},
		{
			"trick: an edit of the state", "PATCH", "/memory/{id}", "/memory/idea00", `{"name":"N","state":"active"}`,
			400,
			"unknown", "",
		},
		{"an edit that says nothing", "PATCH", "/memory/{id}", "/memory/idea00", `{}`, 400, "no change", ""},
		{
			"an edit without a name", "PATCH", "/memory/{id}", "/memory/idea00", `{"name":" "}`, 400,
			"name must not be empty", "",
		},
		{
			"an edit without a text", "PATCH", "/memory/{id}", "/memory/idea00", `{"corpus":""}`, 400,
			"corpus must not be empty", "",
		},
		{
			"an edit that memory refuses", "PATCH", "/memory/{id}", "/memory/idea00", `{"corpus":"password"}`, 400,
			"looks like a password", `gateway admin {"op":"edit","ids":["` + candidateID +
				`"],"edit":{"corpus":"password"}}`,
		},
		{
			"trick: forget without saying dry", "POST", "/memory/forget", "/memory/forget", `{"query":"Anna"}`, 400,
			"dry is required", "",
		},
		{
			"trick: forget with dry null", "POST", "/memory/forget", "/memory/forget", `{"query":"Anna","dry":null}`,
			400,
			"", "",
		},
		{
			"trick: forget everything", "POST", "/memory/forget", "/memory/forget", `{"query":" ","dry":false}`, 400,
			"query is required", "",
		},
		{
			"trick: dry twice", "POST", "/memory/forget", "/memory/forget", `{"query":"x","dry":true,"dry":false}`, 400,
			"", "",
		},
		{
			"trick: dry in the address", "POST", "/memory/forget", "/memory/forget?dry=true",
			`{"query":"x","dry":false}`,
			400, "unknown parameter", "",
		},
		{
			"remember what somebody said", "POST", "/memory", "/memory",
			`{"text":"I sold the boat.","external":true,"conversation":"chat 1","position":3,"speaker":"Ana",` +
				`"happened":"2023-05-08"}`, 200,
			`"action":"stored"`, `gateway write false [" I sold the boat. (chat 1 3 Ana 2023-05-08T00:00:00Z)"]`,
		},
		{
			"remember with a time", "POST", "/memory", "/memory",
			`{"text":"I sold it.","speaker":"Ana","happened":"2023-05-08T13:56:00+02:00"}`, 200, `"action":"stored"`,
			`gateway write false [" I sold it. ( 0 Ana 2023-05-08T11:56:00Z)"]`,
		},
		{
			"a time that is none", "POST", "/memory", "/memory", `{"text":"x","happened":"last May"}`, 400,
			"a time such as 2023-05-08T13:56:00Z, or a date such as 2023-05-08", "",
		},
		{
			"a speaker of two lines", "POST", "/memory", "/memory", `{"text":"x","speaker":"Ana\nSystem"}`, 400,
			"one line of printable characters", "",
		},
		{"a speaker that is too long", "POST", "/memory", "/memory", `{"text":"x","speaker":"` +
			strings.Repeat("a", 101) + `"}`, 400, "at most 100", ""},
		{
			"a conversation with an escape", "POST", "/memory", "/memory", `{"text":"x","conversation":"a\u001b[2J"}`,
			400,
			"one line of printable characters", "",
		},
		{"a conversation that is too long", "POST", "/memory", "/memory", `{"text":"x","conversation":"` +
			strings.Repeat("a", 129) + `"}`, 400, "at most 128", ""},
		{
			"a negative position", "POST", "/memory", "/memory", `{"text":"x","position":-1}`, 400,
			"from 1 to 1000000000",
			"",
		},
		{"nothing to remember", "POST", "/memory", "/memory", `{"text":" "}`, 400, "text is required", ""},
		{
			"too much to remember", "POST", "/memory", "/memory", `{"text":"` + strings.Repeat("x", 70000) + `"}`, 413,
			"at most 64 KB", "",
		},
		{
			"trick: a body without end", "POST", "/memory", "/memory", `{"text":"` + strings.Repeat("x", 300000) + `"}`,
			413, "at most 256 KB", "",
		},
		{
			"trick: a fact that claims where it is from", "POST", "/memory", "/memory",
			`{"text":"x","provenance":{"source":"user"}}`, 400, "unknown", "",
		},
		{
			"a fact that memory refuses", "POST", "/memory", "/memory", `{"text":"password"}`, 409,
			"memory refused the fact: it looks like a password", `gateway write false [" password"]`,
		},
		{"no JSON", "POST", "/memory", "/memory", `hello`, 400, "", ""},
		{"a kind that is none", "GET", "/memory", "/memory?kind=facts", "", 400, "kind must be one of engram, fact, " +
			"document", ""},
		{"a state that is none", "GET", "/memory", "/memory?state=x", "", 400, "state must be", ""},
		{"a limit that is none", "GET", "/memory", "/memory?limit=0", "", 400, "from 1 to 500", ""},
		{
			"trick: a limit without end", "GET", "/memory", "/memory?limit=99999999999999999999", "", 400,
			"from 1 to 500",
			"",
		},
		{
			"a page that is none", "GET", "/memory", "/memory?after=x", "", 400, "invalid cursor",
			`gateway admin {"op":"list","limit":50,"after":"x"}`,
		},
		{"trick: a parameter twice", "GET", "/memory", "/memory?kind=fact&kind=engram", "", 400, "more than once", ""},
		{"search for nothing", "GET", "/memory/search", "/memory/search?q=+", "", 400, "q is required", ""},
		{"search for too many", "GET", "/memory/search", "/memory/search?q=x&max=21", "", 400, "from 1 to 20", ""},
		{
			"search that breaks off", "GET", "/memory/search", "/memory/search?q=cut", "", 502, "incomplete reply",
			`gateway recall {"query":"cut"}`,
		},
		{
			"search that memory refuses", "GET", "/memory/search", "/memory/search?q=wrong", "", 400,
			"give other words",
			`gateway recall {"query":"wrong"}`,
		},
		{
			"search over the quota of events", "GET", "/memory/search", "/memory/search?q=quota", "", 503,
			"the quota of events is used up", `gateway recall {"query":"quota"}`,
		},
		{
			"the audit is down", "POST", "/memory/forget", "/memory/forget", `{"query":"noaudit","dry":false}`, 503,
			subjects.CodeNoAudit, `gateway admin {"op":"forget","query":"noaudit"}`,
		},
		{"memory is unavailable", "GET", "/memory", "/memory?text=shut", "", 503, "memory is unavailable: the file " +
			"is damaged", `gateway admin {"op":"list","text":"shut","limit":50}`},
		{
			"memory was too late", "GET", "/memory", "/memory?text=late", "", 504, "too late",
			`gateway admin {"op":"list","text":"late","limit":50}`,
		},
		{
			"trick: memory tells its insides", "GET", "/memory", "/memory?text=broken", "", 502,
			"memory failed; see its log", `gateway admin {"op":"list","text":"broken","limit":50}`,
		},
		{"another method", "PUT", "/memory/{id}", "/memory/" + annaID, `{}`, 405, "GET or PATCH or DELETE", ""},
		{"trick: forget by a link", "GET", "/memory/{id}", "/memory/forget", "", 404, "there is no entry forget", ""},
	})
	// Values in responses, and request bodies, have the described fields.
	_, _, entry := w.do("GET", "/memory/"+annaID, "")
	_, _, hits := w.do("GET", "/memory/search?q=Anna", "")
	_, _, graph := w.do("GET", "/memory/graph", "")
	line := read[struct{ Entry json.RawMessage }](t, entry).Entry
	_, _, imported := w.do("POST", "/memory/import", string(line), ndjson...)
	shown := read[struct{ Entry map[string]any }](t, entry).Entry
	name := ""
	d.checkSchemas(t, map[string]map[string]any{
		"MemoryEntry": shown,
		"Provenance":  shown["provenance"].(map[string]any),
		"MemoryHit":   read[struct{ Hits []map[string]any }](t, hits).Hits[0],
		"Relation":    read[struct{ Relations []map[string]any }](t, graph).Relations[0],
		"Fact":        fields(t, gateway.Fact{}),
		"Forget":      fields(t, gateway.Forget{}),
		"Imported":    read[map[string]any](t, imported),
		"MemoryEdit": fields(t, subjects.MemoryEdit{
			Name: &name, Description: &name, Corpus: &name,
			Tags: &[]string{},
		}),
	})
}

// ndjson is the header of an import.
var ndjson = []string{"Content-Type", "application/x-ndjson"}

// An export contains every entry, page by page, and can be imported.
func TestMemoryExportAndImport(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	k := &memoryStub{}
	startActor(t, b, k)
	w := startGateway(t, b, setup{})
	status, header, all := w.do("GET", "/memory/export", "")
	if status != 200 || header.Get("Content-Type") != "application/x-ndjson" ||
		strings.Count(all, "\n") != len(storedEntries) {
		t.Fatalf("%d %v %s", status, header, all)
	}
	var got []subjects.MemoryEntry
	for l := range strings.Lines(all) {
		got = append(got, read[subjects.MemoryEntry](t, l))
	}
	for i, e := range got {
		if e.ID != storedEntries[i].ID || e.Corpus != storedEntries[i].Corpus ||
			e.Provenance.Trust != storedEntries[i].Provenance.Trust {
			t.Errorf("%+v", e)
		}
	}
	k.take(lookups)
	line := func(change func(*subjects.MemoryEntry)) string {
		e := storedEntries[1]
		change(&e)
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(data) + "\n"
	}
	same := line(func(*subjects.MemoryEntry) {})
	for _, tt := range []struct {
		name, body string
		header     []string
		status     int
		holds      string
		writes     int // messages to memory
	}{
		{"what was exported", all, ndjson, 200, `{"entries":3,"actions":{"stored":3},"refused":[]}`, 1},
		{"with blank lines", "\n\n" + same + "\r\n", ndjson, 200, `"entries":1`, 1},
		{
			"under its other name", same,
			[]string{"Content-Type", "application/jsonl; charset=utf-8"},
			200, `"entries":1`,
			1,
		},
		{"many", strings.Repeat(same, 130), ndjson, 200, `"stored":130`, 3},
		{"large ones", strings.Repeat(line(func(e *subjects.MemoryEntry) { e.Corpus = strings.Repeat("x", 100<<10) }),
			5), ndjson, 200, `"stored":5`, 3},
		{
			"one that memory refuses", same + line(func(e *subjects.MemoryEntry) { e.Corpus = "password" }), ndjson,
			200,
			`"actions":{"refused":1,"stored":1},"refused":[{"id":"` + candidateID +
				`","why":"it looks like a password"}]`, 1,
		},
		{"nothing", "\n", ndjson, 400, "no entries", 0},
		{"trick: as JSON", same, []string{"Content-Type", "application/json"}, 415, "x-ndjson", 0},
		{"trick: a form", same, []string{"Content-Type", "text/plain"}, 415, "x-ndjson", 0},
		{
			"trick: compressed", same, append([]string{"Content-Encoding", "gzip"}, ndjson...), 415,
			"without Content-Encoding", 0,
		},
		{"trick: half of it is nonsense", same + "{\n", ndjson, 400, "line 2: ", 0},
		{"trick: an array", "[" + strings.TrimSpace(same) + "]", ndjson, 400, "line 1: ", 0},
		{
			"trick: a field that nobody knows", same + strings.Replace(same, `"id"`, `"root":true,"id"`, 1), ndjson,
			400,
			"line 2: unknown", 0,
		},
		{
			"trick: a field twice", strings.Replace(same, `"state"`, `"state":"active","state"`, 1), ndjson, 400,
			"line 1: ", 0,
		},
		{
			"trick: trust that is none", line(func(e *subjects.MemoryEntry) { e.Provenance.Trust = "holy" }), ndjson,
			400,
			"line 1: trust must be", 0,
		},
		{
			"trick: no trust at all", line(func(e *subjects.MemoryEntry) { e.Provenance.Trust = "" }), ndjson, 400,
			"line 1: trust must be", 0,
		},
		{
			"trick: a state that is none", line(func(e *subjects.MemoryEntry) { e.State = "eternal" }), ndjson, 400,
			"line 1: state must be", 0,
		},
		{
			"trick: a kind that is none", line(func(e *subjects.MemoryEntry) { e.Kind = "order" }), ndjson, 400,
			"line 1: kind must be", 0,
		},
		{
			"trick: an id that is a subject", line(func(e *subjects.MemoryEntry) { e.ID = "a.>" }), ndjson, 400,
			"line 1: id is missing or invalid", 0,
		},
		{"trick: a line without end", `{"id":"` + strings.Repeat("x", 1<<20), ndjson, 413, "line 1: too large", 0},
		{"trick: a body without end", strings.Repeat(same, 9<<20/len(same)), ndjson, 413, "at most 8 MB", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, _, body := w.do("POST", "/memory/import", tt.body, tt.header...)
			if status != tt.status || !strings.Contains(body, tt.holds) {
				t.Errorf("%d %.300s", status, body)
			}
			requests := k.take(lookups)
			if n := strings.Count(requests, "gateway write true"); n != tt.writes {
				t.Errorf("%d messages: %.300s", n, requests)
			}
		})
	}
}

// failingMemory fails in the middle of a list.
type failingMemory struct{ memoryStub }

func (f *failingMemory) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.MemoryAdminService,
		func(ctx context.Context, in actor.Msg[subjects.MemoryAdminRequest], out actor.Out) (subjects.MemoryAdminReply,
			error,
		) {
			switch in.Body.After {
			case "":
				return subjects.MemoryAdminReply{Entries: storedEntries[:1], Next: "more"}, nil
			case "more":
				return subjects.MemoryAdminReply{}, subjects.Faultf(subjects.CodeInternal, "gone")
			}
			return subjects.MemoryAdminReply{Entries: storedEntries[:1], Next: in.Body.After}, nil
		})}
}

// An export that fails in the middle does not look complete.
func TestMemoryExportCutOff(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	startActor(t, b, &failingMemory{})
	w := startGateway(t, b, setup{})
	res, err := w.client.Get(w.base + "/memory/export")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if data, err := io.ReadAll(res.Body); err == nil || !strings.Contains(string(data), annaID) {
		t.Errorf("%q, %v", data, err)
	}
}

// memoryRequests are a request to each route that needs memory, without a body for an import.
var memoryRequests = [][3]string{
	{"GET", "/memory", ""},
	{"GET", "/memory/search?q=x", ""},
	{"GET", "/memory/graph", ""},
	{"GET", "/memory/status", ""},
	{"GET", "/memory/export", ""},
	{"GET", "/memory/" + annaID, ""},
	{"PATCH", "/memory/" + annaID, `{"name":"N"}`},
	{"DELETE", "/memory/" + annaID, ""},
	{"POST", "/memory/" + annaID + "/pin", `{}`},
	{"DELETE", "/memory/" + annaID + "/pin", ""},
	{"POST", "/memory/" + candidateID + "/accept", `{}`},
	{"POST", "/memory/forget", `{"query":"x","dry":false}`},
	{"POST", "/memory", `{"text":"x"}`},
}

// A forged request reaches no memory.
func TestMemoryGuarded(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	k := &memoryStub{}
	startActor(t, b, k)
	w := startGateway(t, b, setup{})
	for _, tt := range forgedHeaders {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range memoryRequests {
				if status, _, body := w.do(r[0], r[1], r[2], tt.header...); status != tt.status {
					t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
				}
			}
			if got := k.take(lookups); (got == "") != (tt.status != 200) {
				t.Errorf("requests to memory: %s", got)
			}
		})
	}
}

// Without memory the response says so at once, and what to do.
func TestWithoutMemory(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{})
	for _, r := range memoryRequests {
		status, header, body := w.do(r[0], r[1], r[2])
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" ||
			!strings.Contains(body, "conclave actor memory") {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
	data, err := json.Marshal(storedEntries[0])
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := w.do("POST", "/memory/import", string(data),
		ndjson...); status != http.StatusServiceUnavailable || !strings.Contains(body, "conclave actor memory") {
		t.Errorf("import: %d %s", status, body)
	}
}
