package strict

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// document is what the rows of the tables below are decoded into.
type document struct {
	Name  string           `json:"name"`
	Count int64            `json:"count"`
	When  time.Time        `json:"when"`
	List  []documentPart   `json:"list"`
	Map   map[string]int64 `json:"map"`
	Any   json.RawMessage  `json:"any"`
}

type documentPart struct {
	Flag bool `json:"flag" was:"old_flag"`
}

// TestJSON holds the readers of JSON to the same rules, except where a comment says why they differ.
func TestJSON(t *testing.T) {
	const nothing, tree, object, decoded = 0, 1, 2, 4 // what accepts the document: Parse, CheckObject, DecodeJSON
	nested := func(n int) string {
		return `{"any":` + strings.Repeat("[", n-1) + "1" + strings.Repeat("]", n-1) + "}"
	}
	manyKeys := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`,"` + strings.Repeat("k", i+1) + `":1`)
		}
		return `{"any":{` + b.String()[1:] + "}}"
	}
	for _, tt := range []struct {
		name, in string
		accepts  int
	}{
		{"empty object", `{}`, tree | object | decoded},
		{
			"all fields",
			`{"name":"a","count":1,"when":"2026-01-02T03:04:05Z","list":[{"flag":true}],"map":{"x":1},"any":[]}`,
			tree | object | decoded,
		},
		{"white space", " \r\n\t{ \"name\" :\t\"a\" }\n", tree | object | decoded},
		{"brackets in a text", `{"name":"}{\"","any":{"b":[{"c":1},{"c":2}]}}`, tree | object | decoded},
		{"null for a field", `{"name":null,"list":null}`, tree | object | decoded},
		{"list", `[]`, tree},
		{"null", `null`, tree},
		{"text", `"a"`, tree},
		{"nothing", ``, nothing},
		{"white space only", " \n", nothing},
		{"cut off", `{"name":"a"`, nothing},
		{"comma too many", `{"name":"a",}`, nothing},
		{"two documents", `{} {}`, nothing},
		{"text behind it", `{}x`, nothing},
		{"line break in a text", "{\"name\":\"a\nb\"}", nothing},
		{"unknown escape", `{"name":"\x41"}`, nothing},
		{"leading zero", `{"count":01}`, nothing},
		{"not a number", `{"count":NaN}`, nothing},

		{"unknown field", `{"other":1}`, tree | object},
		{"unknown field in a list", `{"list":[{"other":1}]}`, tree | object},
		{"field in another case", `{"Name":"a"}`, tree | object},
		{"free keys", `{"map":{"Name":1,"other":2},"any":{"Other":1}}`, tree | object | decoded},
		{"former name", `{"list":[{"old_flag":true}]}`, tree | object | decoded},
		{"trick: former and present name", `{"list":[{"old_flag":true,"flag":false}]}`, tree | object},

		{"trick: key twice", `{"name":"a","name":"b"}`, nothing},
		{"trick: key twice deep below", `{"any":{"a":[{"b":1,"b":2}]}}`, nothing},
		{"trick: key twice in a map", `{"map":{"a":1,"a":2}}`, nothing},
		{"trick: key twice by an escape", `{"any":{"a":1,"\u0061":2}}`, nothing},
		// A schema says how the name is spelled, which is the better error; see jsonschema.
		{"trick: key twice but for the case", `{"any":{"path":"/ok","Path":"/etc/shadow"}}`, tree},
		{"trick: key twice by a long s", `{"any":{"secret":1,"ſecret":2}}`, tree},
		{"trick: key twice by a Kelvin sign", `{"any":{"key":1,"\u212aey":2}}`, tree},
		{"trick: key twice by invalid UTF-8", "{\"any\":{\"\xff\":1,\"\xfe\":2}}", nothing},
		{"trick: key twice by unpaired surrogates", `{"any":{"\ud800":1,"\ud801":2}}`, nothing},

		{"surrogate pair", `{"name":"\ud83d\ude00"}`, tree | object | decoded},
		// A message quotes what models and web pages wrote: package json decodes these to U+FFFD.
		{"unpaired surrogate", `{"name":"\ud83d"}`, object | decoded},
		{"two high surrogates", `{"name":"\ud83d\ud83d"}`, object | decoded},
		{"invalid UTF-8", "{\"name\":\"\xff\"}", object | decoded},

		{"64 levels", nested(64), tree | object | decoded},
		{"trick: 65 levels", nested(65), nothing},
		{"trick: a million levels", strings.Repeat(`{"any":`, 1<<20), nothing},
		{"1024 keys", manyKeys(1024), tree | object | decoded},
		{"trick: 1025 keys", manyKeys(1025), nothing},
		// Vectors are long lists; only a tree of them is expensive, and exact arithmetic on long numbers.
		{"20,001 values", `{"any":[0` + strings.Repeat(",0", 20_000) + `]}`, object | decoded},
		{"number of 257 bytes", `{"any":1` + strings.Repeat("0", 256) + `}`, object | decoded},
		{"exponent of 4 digits", `{"any":1e1000}`, object | decoded},

		{"number for a text", `{"name":1}`, tree | object},
		{"text for a number", `{"count":"1"}`, tree | object},
		{"fraction for an integer", `{"count":1.5}`, tree | object},
		{"number out of range", `{"count":9223372036854775808}`, tree | object},
		{"list for an object", `{"list":[[true]]}`, tree | object},
		{"object for a list", `{"list":{"flag":true}}`, tree | object},
		{"time in another format", `{"when":"2 January 2026"}`, tree | object},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, parseErr := Parse([]byte(tt.in))
			objectErr := CheckObject([]byte(tt.in))
			decodeErr := DecodeJSON([]byte(tt.in), new(document))
			for _, reader := range []struct {
				name string
				bit  int
				err  error
			}{{"Parse", tree, parseErr}, {"CheckObject", object, objectErr}, {"DecodeJSON", decoded, decodeErr}} {
				if accepted := tt.accepts&reader.bit != 0; (reader.err == nil) != accepted {
					t.Errorf("%s: accepts %t, want %t: %v", reader.name, reader.err == nil, accepted, reader.err)
				}
			}
		})
	}
}

// TestMsgpack is TestJSON for msgpack.
func TestMsgpack(t *testing.T) {
	const nothing, value, decoded = 0, 1, 2 // what accepts the document: CheckMsgpack, DecodeMsgpack
	for _, tt := range []struct {
		name, in string
		accepts  int
	}{
		{"empty map", "\x80", value | decoded},
		{"fields", "\x82\xa4name\xa1a\xa5count\x01", value | decoded},
		{"nil for a field", "\x81\xa4name\xc0", value | decoded},
		{"list", "\x91\x01", value},
		{"nil", "\xc0", value},
		{"nothing", "", nothing},
		{"cut off", "\x81\xa4na", nothing},
		{"two documents", "\x80\x80", nothing},
		{"unused code", "\xc1", nothing},

		{"unknown field", "\x81\xa5other\x01", value},
		{"unknown field in a list", "\x81\xa4list\x91\x81\xa5other\x01", value},
		{"field in another case", "\x81\xa4Name\xa1a", value},
		{"former name", "\x81\xa4list\x91\x81\xa8old_flag\xc3", value | decoded},
		{"trick: former and present name", "\x81\xa4list\x91\x82\xa8old_flag\xc3\xa4flag\xc2", value},
		{"trick: key twice", "\x82\xa4name\xa1a\xa4name\xa1b", nothing},
		{"trick: key twice in a map", "\x81\xa3map\x82\xa1a\x01\xa1a\x02", nothing},
		{"trick: key that is no text", "\x81\xa3map\x81\x01\x02", nothing},

		{"trick: list of four billion", "\x81\xa4list\xdd\xff\xff\xff\xff", nothing},
		{"trick: map of four billion", "\x81\xa3map\xdf\xff\xff\xff\xff", nothing},
		{"trick: text of four billion bytes", "\x81\xa4name\xdb\xff\xff\xff\xffa", nothing},
		{"trick: bytes of four billion", "\x81\xa3any\xc6\xff\xff\xff\xffa", nothing},
		{"trick: extension of four billion", "\x81\xa4when\xc9\xff\xff\xff\xff\xffa", nothing},
		{"64 levels", strings.Repeat("\x91", 64) + "\xc0", value},
		{"trick: 65 levels", strings.Repeat("\x91", 65) + "\xc0", nothing},
		{"trick: a million levels", strings.Repeat("\x91", 1<<20), nothing},

		{"number for a text", "\x81\xa4name\x01", value},
		{"text for a number", "\x81\xa5count\xa11", value},
		{"fraction for an integer", "\x81\xa5count\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", value},
		{"number out of range", "\x81\xa5count\xcf\xff\xff\xff\xff\xff\xff\xff\xff", value},
		{"list for a map", "\x81\xa4list\x91\x91\xc3", value},
		{"map for a list", "\x81\xa4list\x81\xa4flag\xc3", value},
		// Msgpack that is stored holds the texts of tools as they were.
		{"invalid UTF-8", "\x81\xa4name\xa1\xff", value | decoded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckMsgpack([]byte(tt.in)); (err == nil) != (tt.accepts&value != 0) {
				t.Errorf("CheckMsgpack: %v", err)
			}
			if err := DecodeMsgpack([]byte(tt.in), new(document)); (err == nil) != (tt.accepts&decoded != 0) {
				t.Errorf("DecodeMsgpack: %v", err)
			}
		})
	}
}

// TestStoredJSON: what an earlier build stored is decoded as far as it is JSON.
func TestStoredJSON(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		ok       bool
	}{
		{"unknown field", `{"other":1,"name":"a"}`, true},
		{"key twice", `{"name":"b","name":"a"}`, true},
		{"unpaired surrogate", `{"any":"\ud800","name":"a","list":[{"old_flag":true}]}`, true},
		{"invalid UTF-8", "{\"any\":\"\xff\",\"name\":\"a\",\"list\":[{\"old_flag\":true}]}", true},
		{"cut off", `{"name":"a"`, false},
		{"two documents", `{"name":"a"}{}`, false},
		{"another type", `{"name":1}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d document
			err := DecodeStored([]byte(tt.in), &d)
			if (err == nil) != tt.ok || tt.ok && d.Name != "a" || len(d.List) == 1 && !d.List[0].Flag {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// TestDecodeValue: a list is decoded under the rules of an object, and what stays raw is not judged.
func TestDecodeValue(t *testing.T) {
	for name, tt := range map[string]struct {
		in      string
		rejects bool
	}{
		"a list":                        {`[{"any":{"a":1,"a":2,"A":3}},{"list":[]}] `, false},
		"an unknown field":              {`[{"other":1}]`, true},
		"a name in another case":        {`[{"Any":1}]`, true},
		"a field twice":                 {`[{"any":1,"any":2}]`, true},
		"an object in place of a list":  {`{"any":1}`, true},
		"trick: a second value":         {`[] []`, true},
		"trick: nested raw JSON":        {`[{"any":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}]`, true},
		"trick: raw JSON with an error": {`[{"any":{"a":}}]`, true},
	} {
		var got []document
		if err := DecodeValue([]byte(tt.in), &got); (err != nil) != tt.rejects {
			t.Errorf("%s: %v", name, err)
		}
	}
}
