package loop

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	oracle "github.com/google/jsonschema-go/jsonschema"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
)

const everything = `{"type":"object","properties":{
	"text":{"type":"string","minLength":1,"maxLength":8},"on":{"type":"boolean"},
	"n":{"type":"integer","minimum":1,"maximum":50000},
	"x":{"type":"number"},"tags":{"type":"array","items":{"type":"string"},"maxItems":3},
	"ids":{"type":"array","items":{"type":"integer"}},
	"deep":{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false},
	"mode":{"type":"string","enum":["fast","slow"]},"maybe":{"anyOf":[{"type":"integer"},{"type":"null"}]},
	"two":{"type":["string","null"]}},"required":["text"],"additionalProperties":false}`

func mustCompile(t testing.TB, s string) *jsonschema.Schema {
	t.Helper()
	out, err := compileSchema(&model.Tool{Name: "x", Parameters: json.RawMessage(s)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCoerceArguments(t *testing.T) {
	t.Parallel()
	s := mustCompile(t, everything)
	for _, tt := range []struct{ name, in, out, wrong string }{
		{"as it is", `{"text":"a", "n" : 3}`, `{"text":"a", "n" : 3}`, ""},
		{"boolean as text", `{"text":"a","on":"true"}`, `{"text":"a","on":true}`, ""},
		{"boolean as another text", `{"text":"a","on":"No"}`, "", `"on" must be of type boolean, got "No"`},
		{"boolean as number", `{"text":"a","on":1}`, "", `"on" must be of type boolean, got 1`},
		{"integer as text", `{"n":"30000","text":"a"}`, `{"n":30000,"text":"a"}`, ""},
		{"integer with a fraction of nothing", `{"text":"a","n":3.0}`, `{"text":"a","n":3}`, ""},
		{"integer with a fraction", `{"text":"a","n":3.5}`, "", `"n" must be of type integer, got 3.5`},
		{"number as text", `{"text":"a","x":"-1.5e3"}`, `{"text":"a","x":-1.5e3}`, ""},
		{"not a number", `{"text":"a","n":"many"}`, "", `"n" must be of type integer, got "many"`},
		{"too small", `{"text":"a","n":0}`, "", `"n" must be at least 1, got 0`},
		{"too large", `{"text":"a","n":"50001"}`, "", `"n" must be at most 50000, got 50001`},
		{"text as number", `{"text":12}`, "", `"text" must be of type string, got 12`},
		{"text as boolean", `{"text":true}`, "", `"text" must be of type string, got true`},
		{"text as object", `{"text":{"a":1}}`, "", `"text" must be of type string, got {"a":1}`},
		{"text too long", `{"text":"123456789"}`, "", `"text" must have at most 8 characters, got 9`},
		{"lone value for a list", `{"text":"a","tags":"x"}`, `{"text":"a","tags":["x"]}`, ""},
		{"lone value of another kind", `{"text":"a","ids":"7"}`, `{"text":"a","ids":[7]}`, ""},
		{"list as text", `{"text":"a","ids":"[1, \"2\"]"}`, `{"text":"a","ids":[1,2]}`, ""},
		{"list of other kinds", `{"text":"a","tags":["x",1]}`, "", `"tags[1]" must be of type string, got 1`},
		{
			"list too long", `{"text":"a","ids":[1,"2"],"tags":["1","2","3","4"]}`, "",
			`"tags" must have at most 3 elements, got 4`,
		},
		{"wrong inside a list", `{"text":"a","ids":[1,"x"]}`, "", `"ids[1]" must be of type integer, got "x"`},
		{"object as text", `{"text":"a","deep":"{\"n\":\"4\"}"}`, `{"text":"a","deep":{"n":4}}`, ""},
		{"unknown inside", `{"text":"a","deep":{"m":4}}`, "", `"deep.m" is not known; known are: n`},
		{"null for what may be left out", `{"on":null,"text":"a","n":null}`, `{"text":"a"}`, ""},
		{"all null", `{"on":null,"n":null}`, "", `"text" is missing; it must be of type string`},
		{"null for what is required", `{"text":null}`, "", `"text" must be of type string, got null`},
		{
			"null where it is allowed", `{"text":"a","two":null,"maybe":null}`, `{"text":"a","two":null,"maybe":null}`,
			"",
		},
		{"None for a number", `{"text":"a","n":"None"}`, "", `"n" must be of type integer, got "None"`},
		{"case of a word", `{"text":"a","mode":"FAST"}`, "", `"mode" must be one of "fast", "slow", got "FAST"`},
		{"another word", `{"text":"a","mode":"medium"}`, "", `"mode" must be one of "fast", "slow", got "medium"`},
		{"one of several", `{"text":"a","maybe":"5"}`, `{"text":"a","maybe":5}`, ""},
		{
			"none of several", `{"text":"a","maybe":"x"}`, "",
			`"maybe" matches none of the 2 allowed forms (integer or null), got "x"`,
		},
		{"missing", `{}`, "", `"text" is missing; it must be of type string`},
		{"unknown", `{"text":"a","other":1}`, "", `"other" is not known; known are: `},
		{"twice", `{"text":"a","text":"b"}`, "", `duplicate key "text"`},
		{"twice, once escaped", `{"text":"a","te\u0078t":"b"}`, "", `duplicate key "text"`},
		{"all as text", `"{\"text\":\"a\"}"`, `{"text":"a"}`, ""},
		{"lone value for all", `"hello"`, "", `the arguments must be one JSON object, got "hello"`},
		{"list for all", `[1,2]`, "", `the arguments must be one JSON object, got [1,2]`},
		{"nothing", ``, "", `"text" is missing`},
		{"null for all", `null`, "", `"text" is missing`},
		{"no JSON", `text=a`, "", "the arguments are invalid: invalid JSON at byte 1"},
		{"nearly JSON", `{"text":"a",}`, "", "the arguments are invalid: invalid JSON at byte 1"},
		{
			"too deep", `{"text":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "",
			"nested deeper than 64 levels",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, wrong := coerceArguments(s, []byte(tt.in))
			if (wrong == "") != (tt.wrong == "") || !strings.Contains(wrong, tt.wrong) {
				t.Fatalf("wrong %q, want %q", wrong, tt.wrong)
			}
			if wrong == "" && string(out) != tt.out {
				t.Errorf("got %s, want %s", out, tt.out)
			}
			if !json.Valid(out) || out[0] != '{' {
				t.Errorf("%s is no JSON object", out)
			}
		})
	}
}

func TestSchemaKeywords(t *testing.T) {
	t.Parallel()
	pattern := mustCompile(t,
		`{"type":"object","properties":{"d":{"type":"string","pattern":"^[0-9]+$"},"e":{"$ref":"#/$defs/e"}},`+
			`"$defs":{"e":{"type":"integer"}}}`)
	if _, wrong := coerceArguments(pattern, []byte(`{"d":"12","e":3}`)); wrong != "" {
		t.Errorf("wrong %q", wrong)
	}
	for in, want := range map[string]string{
		`{"d":"x"}`: `"d" must match the pattern`,
		`{"e":"x"}`: `"e" must be of type integer`,
	} {
		if _, wrong := coerceArguments(pattern, []byte(in)); !strings.Contains(wrong, want) {
			t.Errorf("%s: wrong %q", in, wrong)
		}
	}
	for _, broken := range []string{
		`{"type":`, `[]`, `{"$ref":"http://127.0.0.1:1/x"}`,
		`{"properties":{"a":{"pattern":"("}}}`,
	} {
		if _, err := compileSchema(&model.Tool{Name: "x", Parameters: json.RawMessage(broken)}); err == nil {
			t.Errorf("%s compiled", broken)
		}
	}
	for _, none := range []string{"", "null", "true", "{}"} {
		s, err := compileSchema(&model.Tool{Name: "x", Parameters: json.RawMessage(none)})
		if err != nil {
			t.Errorf("%q: %v", none, err)
			continue
		}
		if out, wrong := coerceArguments(s, []byte(`{"a":1}`)); wrong != "" || string(out) != `{"a":1}` {
			t.Errorf("%q: %s %q", none, out, wrong)
		}
	}
}

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{
		{`{"a":1,"b":[1,2]}`, "{ \"b\" : [1 ,2],\n\"a\":1}"},
		{`{"a":"x"}`, `{"\u0061":"\u0078"}`},
	} {
		if canonicalJSON([]byte(pair[0])) != canonicalJSON([]byte(pair[1])) {
			t.Errorf("%s and %s differ", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{
		{`{"a":1,"b":2}`, `{"a":2,"b":1}`},
		{`[1,2]`, `[2,1]`},
		{`{"a":"1"}`, `{"a":1}`},
		{`{}`, `[]`},
		{`{"a":null}`, `{}`},
		{`123456789012345678901`, `123456789012345678902`},
	} {
		if canonicalJSON([]byte(pair[0])) == canonicalJSON([]byte(pair[1])) {
			t.Errorf("%s and %s are the same", pair[0], pair[1])
		}
	}
}

func FuzzCoerce(f *testing.F) {
	for _, seed := range []string{
		`{"text":"a","n":"3","tags":"x","deep":"{\"n\":1}","on":null}`, `{"on":null,"n":null}`, `"x"`, `{"text":1,}`,
		`[]`, `{"ids":"[1,2]"}`,
		`{ "on" : null , "text" : "a" , "n" : null }`, `{"two":null,"maybe":"7","mode":"SLOW"}`, `{"text":"a"`,
		`{"a":{"a":{"a":[]}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := mustCompile(t, everything)
		full := everythingFull()
		before := string(in)
		out, wrong := coerceArguments(s, in)
		if string(in) != before {
			t.Fatal("the input was written to")
		}
		if !json.Valid(out) || out[0] != '{' {
			t.Fatalf("%q became %q, which is no object", in, out)
		}
		if wrong != "" {
			return
		}
		// What we let through, the library lets through as well.
		var v any
		if err := json.Unmarshal(out, &v); err != nil {
			t.Fatal(err)
		}
		if err := full.Validate(v); err != nil {
			t.Fatalf("%q became %q, which the library refuses: %v", in, out, err)
		}
		again, wrong := coerceArguments(s, out)
		if wrong != "" || string(again) != string(out) {
			t.Fatalf("%q became %q, and that %q (%s)", in, out, again, wrong)
		}
	})
}

// everythingFull is the test schema as the library reads it.
var everythingFull = sync.OnceValue(func() *oracle.Resolved {
	var js oracle.Schema
	if err := json.Unmarshal([]byte(everything), &js); err != nil {
		panic(err)
	}
	r, err := js.Resolve(nil)
	if err != nil {
		panic(err)
	}
	return r
})
