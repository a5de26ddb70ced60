package memory

import (
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// TestFormerSourceIsAccepted: exports and events of builds that called the user "person" are read as before, in both
// codecs.
func TestFormerSourceIsAccepted(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	export :=
		`{"restore":true,"trusted":true,"entries":[{"id":"entry-json","kind":"fact","name":"bicycle",` +
			`"description":"The bicycle stands in the cellar.",` +
			`"corpus":"The bicycle stands in the cellar.","provenance":{"source":"person","trust":"trusted",` +
			`"agent":"user"},"grades":{},"state":"active",` +
			`"created":"2026-10-01T09:00:00Z","updated":"2026-10-01T09:00:00Z"}]}`
	reply, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "ctl.user.memory.write", Body: []byte(export),
		Type: subjects.TypeJSON, Deadline: time.Now().Add(time.Minute),
	})
	if err != nil || !strings.Contains(reply, `"stored"`) {
		t.Fatalf("importing JSON: %s, %v", reply, err)
	}
	packed := w.entry("entry-json")
	packed.ID, packed.Name, packed.Provenance.Source = "entry-msgpack", "tent", "person"
	if got, err := w.write(subjects.MemoryWriteRequest{
		Entries: []subjects.MemoryEntry{packed}, Restore: true,
		Trusted: true,
	}); err != nil || got.Results[0].Action != "stored" {
		t.Fatalf("importing msgpack: %+v, %v", got, err)
	}
	for _, id := range []string{"entry-json", "entry-msgpack"} {
		if p := w.entry(id).Provenance; p.Source != subjects.SourceUser || p.Trust != subjects.Trusted {
			t.Errorf("%s is kept as %+v", id, p)
		}
	}
	id := w.storeAnswer("q1", "Where does Anna live?", "Anna lives in Rome.")
	event := `{"session_id":"s1","query_id":"q1","respondent_id":"generator","value":1,"count":1,"source":"person",` +
		`"thumb":1}`
	if _, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "from.reward.reward.event", Body: []byte(event),
		Type: subjects.TypeJSON,
	}); err != nil {
		t.Fatal(err)
	}
	if g := w.entry(id).Grades; g.Reward != 1 || g.Rewards != 1 {
		t.Errorf("grades are %+v", g)
	}
}
