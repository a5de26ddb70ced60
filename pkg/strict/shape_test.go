package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"conclave/subjects"
)

// renamed is a payload with a renamed field, also below a list and a map.
type renamed struct {
	Flag bool                `json:"flag" was:"old_flag"`
	List []renamed2          `json:"list,omitempty"`
	Map  map[string]renamed2 `json:"map,omitempty" was:"old_map"`
	Any  json.RawMessage     `json:"any,omitempty"`
}

type renamed2 struct {
	N    int       `json:"n" was:"a_former_name_that_is_longer_than_thirty_one_bytes"`
	Self *renamed2 `json:"self,omitempty"`
}

func TestFormerFieldNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		ok       bool
	}{
		{"present names", `{"flag":true,"list":[{"n":1}],"map":{"k":{"n":2}},"any":{"old_flag":3}}`, true},
		{
			"former names",
			`{"old_flag":true,"list":[{"a_former_name_that_is_longer_than_thirty_one_bytes":1}],` +
				`"old_map":{"k":{"n":2}},"any":{"old_flag":3}}`, true,
		},
		{
			"former name, escaped", `{"old\u005fflag":true,"list":[{"n":1}],"map":{"k":{"n":2}},"any":{"old_flag":3}}`,
			true,
		},
		{"trick: both names", `{"flag":false,"old_flag":true}`, false},
		{"trick: both names, former first", `{"old_flag":true,"flag":false}`, false},
		{"trick: former name in another case", `{"Old_flag":true}`, false},
		{"trick: former name of another level", `{"list":[{"old_flag":true}]}`, false},
		{"trick: a key of a map that looks like a former name", `{"map":{"old_map":{"n":1}}}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got renamed
			if err := DecodeJSON([]byte(tt.in), &got); (err == nil) != tt.ok {
				t.Fatalf("JSON: %+v, %v", got, err)
			}
			var loose any
			if err := json.Unmarshal([]byte(tt.in), &loose); err != nil {
				t.Fatal(err)
			}
			packed, err := msgpack.Marshal(loose)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.ok && DecodeMsgpack(packed, new(renamed)) == nil {
				t.Error("accepted as msgpack")
			}
			if tt.ok && got.Any != nil && (!got.Flag || got.List[0].N != 1 || got.Map["k"].N != 2 ||
				string(got.Any) != `{"old_flag":3}`) {
				t.Errorf("%+v", got)
			}
			var stored renamed
			if err := DecodeStored([]byte(tt.in), &stored); err != nil || got.Any != nil &&
				(!stored.Flag || stored.Map["k"].N != 2) {
				t.Errorf("stored: %+v, %v", stored, err)
			}
		})
	}
}

func TestFormerFieldNamesInMsgpack(t *testing.T) {
	t.Parallel()
	packed, err := msgpack.Marshal(map[string]any{
		"old_flag": true,
		"list":     []any{map[string]any{"a_former_name_that_is_longer_than_thirty_one_bytes": 7}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got renamed
	if err := DecodeMsgpack(packed, &got); err != nil || !got.Flag || got.List[0].N != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFormerPayloads: messages of the build before the field stand_in was renamed.
func TestFormerPayloads(t *testing.T) {
	t.Parallel()
	var r subjects.Response
	if err := DecodeJSON([]byte(`{"query_id":"q","stand_in":true}`), &r); err != nil || !r.DemoModel {
		t.Errorf("%+v, %v", r, err)
	}
	var c subjects.ChatChunk
	if err := DecodeJSON([]byte(`{"done":true,"stand_in":true}`), &c); err != nil || !c.DemoModel {
		t.Errorf("%+v, %v", c, err)
	}
	var l subjects.ModelList
	if err := DecodeJSON([]byte(`{"roles":[{"role":"assistant","stand_in":true}]}`), &l); err != nil ||
		!l.Roles[0].DemoModel {
		t.Errorf("%+v, %v", l, err)
	}
	var state struct {
		Publish struct {
			Response subjects.Response `json:"response"`
		} `json:"publish"`
	}
	if err := DecodeStored([]byte(`{"publish":{"response":{"stand_in":true},"gone":1},"gone":[2]}`),
		&state); err != nil || !state.Publish.Response.DemoModel {
		t.Errorf("%+v, %v", state, err)
	}
	if err := DecodeStored([]byte(`{`), &state); err == nil {
		t.Error("damaged JSON was decoded")
	}
}

// TestDuplicatesAmongManyKeys finds a key that occurs twice at any place of an object, also of a struct with more
// fields than an integer has bits.
func TestDuplicatesAmongManyKeys(t *testing.T) {
	t.Parallel()
	const n = 100
	var fields []reflect.StructField
	var members []string
	for i := range n {
		fields = append(fields, reflect.StructField{
			Name: fmt.Sprintf("F%d", i), Type: reflect.TypeFor[int](),
			Tag: reflect.StructTag(fmt.Sprintf(`json:"f%d"`, i)),
		})
		members = append(members, fmt.Sprintf(`"f%d":%d`, i, i))
	}
	s := makeShape(reflect.StructOf(fields), nil)
	encode := func(last int) (out []byte) {
		out = append(out, 0xdc+2, 0, n+1) // a map of n+1 pairs
		for i := range n + 1 {
			key := fmt.Sprintf("f%d", i)
			if i == n {
				key = fmt.Sprintf("f%d", last)
			}
			out = append(append(append(out, 0xa0|byte(len(key))), key...), 1)
		}
		return out
	}
	for i := range n {
		again := `{` + strings.Join(members, ",") + fmt.Sprintf(`,"f%d":0}`, i)
		if _, err := Parse([]byte(again)); err == nil || !strings.Contains(err.Error(), "duplicate key") {
			t.Errorf("JSON, key %d: %v", i, err)
		}
		for name, of := range map[string]*shape{"a struct": s, "free keys": nil} {
			_, err := checkMsgpack(encode(i), of)
			if err == nil || !strings.Contains(err.Error(), "duplicate key") {
				t.Errorf("msgpack with %s, key %d: %v", name, i, err)
			}
		}
	}
	if _, err := Parse([]byte(`{` + strings.Join(members, ",") + `}`)); err != nil {
		t.Error(err)
	}
}
