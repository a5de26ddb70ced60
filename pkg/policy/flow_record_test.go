package policy

import (
	"encoding/json"
	"testing"
)

// TestMarshalLists compares the encoding of the long lists with that of encoding/json, also for texts that must be
// escaped.
func TestMarshalLists(t *testing.T) {
	t.Parallel()
	texts := []string{
		"plain", `quo"te`, `back\slash`, "<tag>", "a&b", "über", "line\u2028separator", "\x01\x7f",
		"not utf-8: \xff", "", "a,b]}",
	}
	for name, f := range map[string]*Flow{
		"empty": {},
		"both lists": {
			lastTurn: 7, publicWords: texts,
			untrusted: []string{"evil.example.org", `x"@example.org`},
		},
		"one list":         {untrusted: texts},
		"nothing but list": {publicWords: texts[:1]},
	} {
		got, err := f.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(flowRecord{Turn: f.lastTurn, Public: f.publicWords, Strange: f.untrusted})
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
}
