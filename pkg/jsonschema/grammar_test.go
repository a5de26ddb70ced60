package jsonschema_test

import (
	"fmt"
	"strings"
	"testing"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model/scriptserver"
)

func TestForGrammar(t *testing.T) {
	any := `{"type":["string","number","boolean","object","array","null"]}`
	for name, c := range map[string]struct{ schema, want string }{
		"bounds that fit": {
			`{"type": "object", "properties": {"b": {"type":"string","minLength":1,"maxLength":2000}, ` +
				`"a": {"type":"integer","minimum":0,"maximum":10}}, "required": ["b"], "additionalProperties": false}`,
			`{"type":"object","properties":{"b":{"type":"string","minLength":1,"maxLength":2000},` +
				`"a":{"type":"integer","minimum":0,"maximum":10}},"required":["b"],"additionalProperties":false}`,
		},
		"a repetition above 2,000": {
			`{"type":"object","properties":{"a":{"type":"string","minLength":1,"maxLength":2001}}}`,
			`{"type":"object","properties":{"a":{"type":"string","minLength":1}}}`,
		},
		"nested repetitions": {
			`{"type":"array","maxItems":20,"items":{"type":"array","maxItems":10,` +
				`"items":{"type":"string","maxLength":11}}}`,
			`{"type":"array","maxItems":20,"items":{"type":"array","maxItems":10,"items":{"type":"string"}}}`,
		},
		"exchanged bounds": {
			`{"type":"array","minItems":5,"maxItems":3,"items":{"type":"string"}}`,
			`{"type":"array","minItems":5,"items":{"type":"string"}}`,
		},
		"patterns, formats and unknown keywords": {
			`{"type":"object","properties":{"a":{"type":"string","pattern":"\\d","format":"email","x-a":1}},` +
				`"patternProperties":{"^b":{}},"additionalProperties":false,"not":{}}`,
			`{"type":"object","properties":{"a":{"type":"string"}}}`,
		},
		"no type": {
			`{"type":"object","properties":{"a":true,"b":{},"c":{"description":"d"},` +
				`"e":{"type":"thing"},"f":{"allOf":[{}]}}}`,
			strings.ReplaceAll(`{"type":"object","properties":{"a":ANY,"b":ANY,"c":ANY,"e":ANY,"f":ANY}}`, "ANY", any),
		},
		"conditions on members": {
			`{"properties":{"a":{"type":"null"}},"anyOf":[{"required":["a"]}]}`,
			`{"properties":{"a":{"type":"null"}}}`,
		},
		"references": {
			`{"$defs":{"n":{"type":"string","maxLength":9999}},` +
				`"anyOf":[{"$ref":"#/$defs/n"},{"$ref":"https://example.org/a"}]}`,
			`{"$defs":{"n":{"type":"string"}},"anyOf":[{"$ref":"#/$defs/n"},` + any + `]}`,
		},
		"bounds that are no numbers": {
			`{"type":"array","maxItems":-1,"minItems":"3","items":{"type":"integer","minimum":0.5,"maximum":1e99}}`,
			`{"type":"array","items":{"type":"integer"}}`,
		},
		"no schema": {`[1]`, `{"type":"object"}`},
		"no JSON":   {`{"type":`, `{"type":"object"}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(jsonschema.ForGrammar([]byte(c.schema)))
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if err := scriptserver.CheckGrammar([]byte(got)); err != nil {
				t.Errorf("a server fails on it: %v", err)
			}
		})
	}
}

// TestForGrammarSize has schemas whose grammars no server can hold.
func TestForGrammarSize(t *testing.T) {
	var properties []string
	for i := range 1000 {
		properties = append(properties, fmt.Sprintf(`"property_%d":{"type":"string","maxLength":100}`, i))
	}
	deep := `{"type":"string"}`
	for range 60 {
		deep = `{"type":"array","items":` + deep + `}`
	}
	for name, schema := range map[string]string{
		"wide": `{"type":"object","properties":{` + strings.Join(properties, ",") + `}}`,
		"deep": deep,
	} {
		got := jsonschema.ForGrammar([]byte(schema))
		if err := scriptserver.CheckGrammar(got); err != nil || len(got) > 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func FuzzForGrammar(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string","maxLength":4000}}}`)
	f.Add(`{"type":["array","null"],"minItems":9,"maxItems":2,"items":[{"enum":[]}]}`)
	f.Fuzz(func(t *testing.T, schema string) {
		got := jsonschema.ForGrammar([]byte(schema))
		if err := scriptserver.CheckGrammar(got); err != nil {
			t.Errorf("%s becomes %s: %v", schema, got, err)
		}
	})
}
