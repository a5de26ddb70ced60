package policy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"pgregory.net/rapid"

	"conclave/pkg/policy"
)

// Each row is a schema for the argument "v", values that fit and values that do not.
func TestSchemaKeywords(t *testing.T) {
	for _, tt := range []struct {
		name, schema string
		fit, not     []string
	}{
		{"true", `true`, []string{`1`, `null`}, nil},
		{"false", `false`, nil, []string{`1`, `null`}},
		{"empty", `{}`, []string{`1`, `"a"`, `[]`, `{}`}, nil},
		{"type", `{"type":"number"}`, []string{`1`, `1.5`, `-0`}, []string{`"1"`, `null`, `true`, `[1]`}},
		{"integer", `{"type":"integer"}`, []string{`1`, `1.0`, `10e-1`, `123456789012345678901234567890`}, []string{`1.5`, `1e-1`, `"1"`}},
		{"types", `{"type":["string","null"]}`, []string{`"a"`, `null`}, []string{`1`, `{}`}},
		{"enum", `{"enum":["a",1,null,{"x":[1,2]}]}`, []string{`"a"`, `1.0`, `null`, `{"x":[1,2.0]}`}, []string{`"b"`, `"1"`, `{"x":[2,1]}`, `false`}},
		{"enum of nothing", `{"enum":[]}`, nil, []string{`null`, `1`}},
		{"const", `{"const":{"a":1,"b":2}}`, []string{`{"b":2,"a":1}`}, []string{`{"a":1}`, `{"a":1,"b":2,"c":3}`}},
		{"const and enum", `{"const":1,"enum":[1,2]}`, []string{`1`}, []string{`2`}},
		{"minimum", `{"minimum":-1.5,"maximum":1e1}`, []string{`-1.5`, `10`, `0`, `"not a number"`}, []string{`-1.50000000000000000000001`, `10.00000000000000000001`, `1e2`}},
		{"large numbers stay apart", `{"maximum":9007199254740992}`, []string{`9007199254740992`}, []string{`9007199254740993`}},
		{"exclusive", `{"exclusiveMinimum":0,"exclusiveMaximum":1}`, []string{`0.5`, `1e-300`}, []string{`0`, `-0.0`, `1`, `1.0`}},
		{"the narrower of two", `{"minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":20}`, []string{`4`, `9`}, []string{`3`, `10`}},
		{"multipleOf", `{"multipleOf":0.1}`, []string{`0.3`, `1`, `-0.7`, `0`, `1e20`}, []string{`0.35`, `1e-300`}},
		{"multipleOf a large one", `{"multipleOf":3}`, []string{`300000000000000000000000000000000000003`}, []string{`300000000000000000000000000000000000004`}},
		{"length in characters", `{"minLength":2,"maxLength":3}`, []string{`"éé"`, `"😀😀😀"`, `5`}, []string{`"é"`, `"abcd"`}},
		{"pattern", `{"pattern":"^[a-z]+$"}`, []string{`"abc"`, `1`}, []string{`"aBc"`, `"abc\n"`, `""`, `"abc\nx"`}},
		{"a pattern is looked for anywhere", `{"pattern":"b"}`, []string{`"abc"`}, []string{`"ac"`}},
		{"items", `{"items":{"type":"integer"},"minItems":1,"maxItems":2}`, []string{`[1]`, `[1,2]`, `{}`}, []string{`[]`, `["1"]`, `[1,2,3]`}},
		{"prefixItems", `{"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`, []string{`[]`, `["a",1]`}, []string{`[1]`, `["a",1,2]`}},
		{"items as they were", `{"items":[{"type":"string"}],"additionalItems":{"type":"null"}}`, []string{`["a",null]`, `[]`}, []string{`["a",1]`, `[null]`}},
		{"uniqueItems", `{"uniqueItems":true}`, []string{`[1,2]`, `[]`, `[1,"1"]`}, []string{`[1,1.0]`, `[{"a":1,"b":2},{"b":2,"a":1}]`}},
		{"properties", `{"properties":{"a":{"type":"string"}},"required":["a"]}`, []string{`{"a":"x","b":1}`, `[]`}, []string{`{"a":1}`, `{"b":1}`}},
		{"closed", `{"properties":{"a":true},"additionalProperties":false}`, []string{`{"a":1}`, `{}`}, []string{`{"b":1}`, `{"a":1,"b":1}`}},
		{"others", `{"properties":{"a":true},"additionalProperties":{"type":"integer"}}`, []string{`{"a":"x","b":1}`}, []string{`{"b":"x"}`}},
		{"patternProperties", `{"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`, []string{`{"x1":1}`}, []string{`{"x1":"a"}`, `{"y":1}`}},
		{"propertyNames", `{"propertyNames":{"maxLength":2}}`, []string{`{"ab":1}`}, []string{`{"abc":1}`}},
		{"minProperties", `{"minProperties":1,"maxProperties":2}`, []string{`{"a":1}`}, []string{`{}`, `{"a":1,"b":1,"c":1}`}},
		{"allOf", `{"allOf":[{"minimum":1},{"maximum":2}]}`, []string{`1`, `2`}, []string{`0`, `3`}},
		{"anyOf", `{"anyOf":[{"type":"string"},{"minimum":5}]}`, []string{`"a"`, `5`}, []string{`4`}},
		{"oneOf", `{"oneOf":[{"minimum":1},{"maximum":5}]}`, []string{`0`, `6`}, []string{`3`}},
		{"not", `{"not":{"type":"string"}}`, []string{`1`}, []string{`"a"`}},
		{"a reference, and what stands beside it", `{"$ref":"#/$defs/short","pattern":"a"}`, []string{`"a"`}, []string{`"aaaa"`, `"b"`}},
		{"a reference through a list", `{"$ref":"#/$defs/list/allOf/0"}`, []string{`1`}, []string{`"a"`}},
		{"a reference with slashes in a name", `{"$ref":"#/$defs/a~1b~0c"}`, []string{`1`}, []string{`"a"`}},
		{"format is a remark", `{"format":"email"}`, []string{`"not a mail"`}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			schema := `{"type":"object","properties":{"v":` + tt.schema + `},"$defs":{"short":{"maxLength":3},"list":{"allOf":[{"type":"integer"}]},"a/b~c":{"type":"integer"}}}`
			for _, v := range tt.fit {
				if rule, reason, _ := verdictOf(t, policy.NewArgumentsLayer(), argsCall(schema, `{"v":`+v+`}`)); rule != "" {
					t.Errorf("%s does not fit: %s (%s)", v, reason, rule)
				}
			}
			for _, v := range tt.not {
				if rule, reason, _ := verdictOf(t, policy.NewArgumentsLayer(), argsCall(schema, `{"v":`+v+`}`)); rule != policy.RuleMismatch || reason == "" {
					t.Errorf("%s fits: %q %s", v, rule, reason)
				}
			}
		})
	}
}

// What is not understood is refused, whatever the arguments are.
func TestSchemaNotUnderstood(t *testing.T) {
	for _, tt := range []struct{ name, schema string }{
		{"not JSON", `{"type":`},
		{"a list", `[]`},
		{"a string", `"object"`},
		{"a key twice", `{"type":"object","type":"array"}`},
		{"a type that is none", `{"type":"path"}`},
		{"a type that is a number", `{"type":7}`},
		{"no type in a list", `{"type":[]}`},
		{"properties that are a list", `{"properties":["a"]}`},
		{"a property that is a string", `{"properties":{"a":"string"}}`},
		{"required that is a name", `{"required":"a"}`},
		{"an enum that is no list", `{"enum":"a"}`},
		{"a minimum that is a string", `{"minimum":"1"}`},
		{"a length below zero", `{"maxLength":-1}`},
		{"a length that is a fraction", `{"minLength":0.5}`},
		{"a multiple of zero", `{"multipleOf":0}`},
		{"anyOf nothing", `{"anyOf":[]}`},
		{"uniqueItems that is a string", `{"uniqueItems":"true"}`},
		{"trick: a misspelled keyword", `{"properties":{"a":{"maxLenght":3}}}`},
		{"trick: a condition", `{"if":{"required":["a"]},"then":{"required":["b"]}}`},
		{"trick: a reference to the net", `{"$ref":"https://example.org/schema.json"}`},
		{"trick: a reference to a file", `{"$ref":"file:///etc/passwd"}`},
		{"trick: a reference to nothing", `{"$ref":"#/$defs/a"}`},
		{"trick: a reference to something that is no schema", `{"$ref":"#/title","title":"x"}`},
		{"trick: an index that is none", `{"$ref":"#/allOf/-1","allOf":[{}]}`},
		{"trick: an index far away", `{"$ref":"#/allOf/99999999999999999999","allOf":[{}]}`},
		{"trick: an anchor", `{"$ref":"#a","$defs":{"x":{"$anchor":"a"}}}`},
		{"trick: another base inside", `{"allOf":[{"$id":"https://example.org/","$ref":"#/x"}]}`},
		{"trick: a dynamic reference", `{"$dynamicRef":"#a"}`},
		{"trick: a pattern that looks ahead", `{"properties":{"a":{"pattern":"^(?=.*x)"}}}`},
		{"trick: a pattern that looks back", `{"properties":{"a":{"pattern":"(a)\\1"}}}`},
		{"trick: a pattern without an end", `{"patternProperties":{"(":{}}}`},
		{"trick: a pattern of kilobytes", `{"properties":{"a":{"pattern":"` + strings.Repeat("a", 5000) + `"}}}`},
		{"trick: an exclusive minimum as it was", `{"minimum":1,"exclusiveMinimum":true}`},
		{"trick: a keyword that would fill the log", `{"` + strings.Repeat("x", 5000) + `":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := policy.NewArgumentsLayer()
			for range 2 { // the second time from what is kept
				rule, reason, _ := verdictOf(t, l, argsCall(tt.schema, `{"a":"b"}`))
				if rule != policy.RuleBadSchema || len(reason) > 300 {
					t.Errorf("rule %q, want bad_schema: %s", rule, reason)
				}
			}
		})
	}
}

// randomValue draws a small JSON value, with collisions and other spellings likely.
func randomValue(depth int) *rapid.Generator[string] {
	scalar := rapid.SampledFrom([]string{`0`, `1`, `1.0`, `2`, `-1`, `1.5`, `""`, `"a"`, `"ab"`, `"b\u0061"`, `true`, `false`, `null`})
	if depth == 0 {
		return scalar
	}
	return rapid.Custom(func(t *rapid.T) string {
		inner := func() string { return randomValue(depth-1).Draw(t, "inner") }
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			var parts []string
			for range rapid.IntRange(0, 3).Draw(t, "items") {
				parts = append(parts, inner())
			}
			return `[` + strings.Join(parts, ",") + `]`
		case 1:
			var parts []string
			for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, "keys") {
				parts = append(parts, `"`+k+`":`+inner())
			}
			return `{` + strings.Join(parts, ",") + `}`
		}
		return scalar.Draw(t, "scalar")
	})
}

// randomSchema draws a schema of keywords that both checkers know.
func randomSchema(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		inner := func() string {
			if depth == 0 {
				return rapid.SampledFrom([]string{`true`, `{}`, `{"type":"string"}`, `{"$ref":"#/$defs/d"}`}).Draw(t, "leaf")
			}
			return randomSchema(depth-1).Draw(t, "inner")
		}
		list := func() string { return `[` + inner() + `,` + inner() + `]` }
		var parts []string
		keywords := []string{"type", "enum", "const", "minimum", "maxLength", "minLength", "pattern", "items", "minItems", "uniqueItems", "properties", "required", "additionalProperties", "allOf", "anyOf", "oneOf", "not", "$ref", "propertyNames", "maxProperties", "prefixItems", "multipleOf", "exclusiveMaximum"}
		for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keywords), 0, 4, rapid.ID).Draw(t, "keywords") {
			v := ""
			switch k {
			case "type":
				v = rapid.SampledFrom([]string{`"object"`, `"string"`, `"integer"`, `["array","null"]`, `["number","boolean"]`}).Draw(t, k)
			case "enum":
				v = `[` + randomValue(1).Draw(t, k) + `,` + randomValue(1).Draw(t, k) + `]`
			case "const":
				v = randomValue(1).Draw(t, k)
			case "minimum", "exclusiveMaximum":
				v = rapid.SampledFrom([]string{`0`, `1`, `1.5`}).Draw(t, k)
			case "multipleOf":
				v = rapid.SampledFrom([]string{`1`, `2`, `0.5`}).Draw(t, k)
			case "maxLength", "minLength", "minItems", "maxProperties":
				v = rapid.SampledFrom([]string{`0`, `1`, `2`}).Draw(t, k)
			case "pattern":
				v = rapid.SampledFrom([]string{`"a"`, `"^b"`, `"^$"`}).Draw(t, k)
			case "uniqueItems":
				v = `true`
			case "items", "additionalProperties", "not", "propertyNames":
				v = inner()
			case "properties":
				v = `{"a":` + inner() + `,"b":` + inner() + `}`
			case "required":
				v = `["a"]`
			case "allOf", "anyOf", "oneOf", "prefixItems":
				v = list()
			case "$ref":
				v = `"#/$defs/d"`
			}
			parts = append(parts, `"`+k+`":`+v)
		}
		return `{` + strings.Join(parts, ",") + `}`
	})
}

// Where the library and our own checker both understand a schema, they must agree.
func TestSchemaAsTheLibrary(t *testing.T) {
	agreed := map[bool]int{}
	rapid.Check(t, func(rt *rapid.T) {
		schema := `{"properties":{"v":` + randomSchema(2).Draw(rt, "schema") + `},"$defs":{"d":{"type":["integer","string","object"]}}}`
		args := `{"v":` + randomValue(2).Draw(rt, "value") + `}`
		var js jsonschema.Schema
		if err := json.Unmarshal([]byte(schema), &js); err != nil {
			rt.Fatal(err)
		}
		resolved, err := js.Resolve(nil)
		if err != nil {
			rt.Fatal(err)
		}
		var v any
		if err := json.Unmarshal([]byte(args), &v); err != nil {
			rt.Fatal(err)
		}
		theirs := resolved.Validate(v)
		rule, reason, _ := verdictOf(t, policy.ArgumentsLayer{}, argsCall(schema, args))
		if (theirs == nil) != (rule == "") || rule != "" && rule != policy.RuleMismatch {
			rt.Fatalf("schema %s\nargs %s\nlibrary: %v\nours: %q %s", schema, args, theirs, rule, reason)
		}
		agreed[rule == ""]++
	})
	if agreed[true] == 0 || agreed[false] == 0 {
		t.Errorf("the drawn pairs show nothing: %v", agreed)
	}
}

func FuzzArguments(f *testing.F) {
	for _, s := range [][2]string{
		{noteSchema, `{"path":"/a","count":3}`},
		{noteSchema, `{"path":"/a","path":"/b"}`},
		{`{"$ref":"#"}`, `{}`},
		{`{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}`, `{"a":1e5}`},
		{`{"properties":{"a":{"pattern":"(a|b)*"}}}`, `{"a":"\ud83d\ude00"}`},
		{`{"items":[{}],"additionalItems":false,"multipleOf":0.1}`, `{"a":[1.50,-0e9]}`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, args string) {
		c := argsCall(schema, args)
		c.Tool.Paths = []string{"path"}
		rule, reason, _ := verdictOf(t, policy.ArgumentsLayer{}, c)
		if len(reason) > 700 || !utf8.ValidString(reason) {
			t.Errorf("%d bytes of reason: %q", len(reason), reason)
		}
		if rule == "" && (!json.Valid([]byte(args)) || !json.Valid([]byte(schema))) {
			t.Errorf("passed, and is not JSON: %q %q", schema, args)
		}
		// What we read is JSON to all readers.
		if policy.ReadJSON([]byte(args)) == nil && !json.Valid([]byte(args)) {
			t.Errorf("read, and is not JSON: %q", args)
		}
	})
}
