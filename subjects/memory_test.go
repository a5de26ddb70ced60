package subjects

import (
	"encoding/json"
	"testing"
)

func TestSourceReadsTheFormerValue(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]Source{
		"person": SourceUser, "user": SourceUser, "agent": SourceAgent, "": "",
		"Person": "Person",
	} {
		var p Provenance
		if err := json.Unmarshal([]byte(`{"source":"`+stored+`"}`), &p); err != nil || p.Source != want {
			t.Errorf("%q is read as %q, %v; want %q", stored, p.Source, err, want)
		}
		var r Reward
		if err := json.Unmarshal([]byte(`{"source":"`+stored+`"}`), &r); err != nil || r.Source != want {
			t.Errorf("the reward's %q is read as %q, %v; want %q", stored, r.Source, err, want)
		}
	}
	data, err := json.Marshal(Provenance{Source: SourceUser, Trust: Trusted})
	if err != nil || string(data) != `{"source":"user","trust":"trusted"}` {
		t.Errorf("written as %s, %v", data, err)
	}
}
