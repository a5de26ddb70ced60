package jsonschema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	library "github.com/google/jsonschema-go/jsonschema"
	"pgregory.net/rapid"

	"conclave/pkg/jsonschema"
)

// validate compiles a schema and validates a document.
func validate(t testing.TB, schema, document string) error {
	t.Helper()
	s, err := jsonschema.Compile([]byte(schema))
	if err != nil {
		t.Fatalf("compiling %s: %v", schema, err)
	}
	return s.ValidateJSON([]byte(document))
}

// Each row is a schema for the argument "v", with valid and invalid values.
func TestKeywords(t *testing.T) {
	for _, tt := range []struct {
		name, schema string
		valid, not   []string
	}{
		{"true", `true`, []string{`1`, `null`}, nil},
		{"false", `false`, nil, []string{`1`, `null`}},
		{"empty", `{}`, []string{`1`, `"a"`, `[]`, `{}`}, nil},
		{"type", `{"type":"number"}`, []string{`1`, `1.5`, `-0`}, []string{`"1"`, `null`, `true`, `[1]`}},
		{
			"integer", `{"type":"integer"}`,
			[]string{`1`, `1.0`, `10e-1`, `123456789012345678901234567890`},
			[]string{`1.5`, `1e-1`, `"1"`},
		},
		{"types", `{"type":["string","null"]}`, []string{`"a"`, `null`}, []string{`1`, `{}`}},
		{
			"enum", `{"enum":["a",1,null,{"x":[1,2]}]}`,
			[]string{`"a"`, `1.0`, `null`, `{"x":[1,2.0]}`},
			[]string{`"b"`, `"1"`, `{"x":[2,1]}`, `false`},
		},
		{"empty enum", `{"enum":[]}`, nil, []string{`null`, `1`}},
		{"const", `{"const":{"a":1,"b":2}}`, []string{`{"b":2,"a":1}`}, []string{`{"a":1}`, `{"a":1,"b":2,"c":3}`}},
		{"const and enum", `{"const":1,"enum":[1,2]}`, []string{`1`}, []string{`2`}},
		{
			"minimum", `{"minimum":-1.5,"maximum":1e1}`,
			[]string{`-1.5`, `10`, `0`, `"not a number"`},
			[]string{`-1.50000000000000000000001`, `10.00000000000000000001`, `1e2`},
		},
		{
			"large numbers are not rounded", `{"maximum":9007199254740992}`,
			[]string{`9007199254740992`},
			[]string{`9007199254740993`},
		},
		{
			"exclusive", `{"exclusiveMinimum":0,"exclusiveMaximum":1}`,
			[]string{`0.5`, `1e-300`},
			[]string{`0`, `-0.0`, `1`, `1.0`},
		},
		{
			"narrower of two bounds", `{"minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":20}`,
			[]string{`4`, `9`},
			[]string{`3`, `10`},
		},
		{"multipleOf", `{"multipleOf":0.1}`, []string{`0.3`, `1`, `-0.7`, `0`, `1e20`}, []string{`0.35`, `1e-300`}},
		{
			"multipleOf a large one", `{"multipleOf":3}`,
			[]string{`300000000000000000000000000000000000003`},
			[]string{`300000000000000000000000000000000000004`},
		},
		{
			"length in code points", `{"minLength":2,"maxLength":3}`,
			[]string{`"éé"`, `"😀😀😀"`, `5`},
			[]string{`"é"`, `"abcd"`},
		},
		{"pattern", `{"pattern":"^[a-z]+$"}`, []string{`"abc"`, `1`}, []string{`"aBc"`, `"abc\n"`, `""`, `"abc\nx"`}},
		{"pattern is not anchored", `{"pattern":"b"}`, []string{`"abc"`}, []string{`"ac"`}},
		{
			"items", `{"items":{"type":"integer"},"minItems":1,"maxItems":2}`,
			[]string{`[1]`, `[1,2]`, `{}`},
			[]string{`[]`, `["1"]`, `[1,2,3]`},
		},
		{
			"prefixItems", `{"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`,
			[]string{`[]`, `["a",1]`},
			[]string{`[1]`, `["a",1,2]`},
		},
		{
			"items of draft 7", `{"items":[{"type":"string"}],"additionalItems":{"type":"null"}}`,
			[]string{`["a",null]`, `[]`},
			[]string{`["a",1]`, `[null]`},
		},
		{
			"uniqueItems", `{"uniqueItems":true}`,
			[]string{`[1,2]`, `[]`, `[1,"1"]`},
			[]string{`[1,1.0]`, `[{"a":1,"b":2},{"b":2,"a":1}]`},
		},
		{
			"properties", `{"properties":{"a":{"type":"string"}},"required":["a"]}`,
			[]string{`{"a":"x","b":1}`, `[]`},
			[]string{`{"a":1}`, `{"b":1}`},
		},
		{
			"no additional properties", `{"properties":{"a":true},"additionalProperties":false}`,
			[]string{`{"a":1}`, `{}`},
			[]string{`{"b":1}`, `{"a":1,"b":1}`},
		},
		{
			"additional properties", `{"properties":{"a":true},"additionalProperties":{"type":"integer"}}`,
			[]string{`{"a":"x","b":1}`},
			[]string{`{"b":"x"}`},
		},
		{
			"patternProperties", `{"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`,
			[]string{`{"x1":1}`},
			[]string{`{"x1":"a"}`, `{"y":1}`},
		},
		{"propertyNames", `{"propertyNames":{"maxLength":2}}`, []string{`{"ab":1}`}, []string{`{"abc":1}`}},
		{
			"minProperties", `{"minProperties":1,"maxProperties":2}`,
			[]string{`{"a":1}`},
			[]string{`{}`, `{"a":1,"b":1,"c":1}`},
		},
		{"allOf", `{"allOf":[{"minimum":1},{"maximum":2}]}`, []string{`1`, `2`}, []string{`0`, `3`}},
		{"anyOf", `{"anyOf":[{"type":"string"},{"minimum":5}]}`, []string{`"a"`, `5`}, []string{`4`}},
		{"oneOf", `{"oneOf":[{"minimum":1},{"maximum":5}]}`, []string{`0`, `6`}, []string{`3`}},
		{"not", `{"not":{"type":"string"}}`, []string{`1`}, []string{`"a"`}},
		{
			"reference with sibling keywords", `{"$ref":"#/$defs/short","pattern":"a"}`,
			[]string{`"a"`},
			[]string{`"aaaa"`, `"b"`},
		},
		{"reference through a list", `{"$ref":"#/$defs/list/allOf/0"}`, []string{`1`}, []string{`"a"`}},
		{"reference with escaped slashes", `{"$ref":"#/$defs/a~1b~0c"}`, []string{`1`}, []string{`"a"`}},
		{"format is an annotation", `{"format":"email"}`, []string{`"not a mail"`}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			schema := `{"type":"object","properties":{"v":` + tt.schema +
				`},"$defs":{"short":{"maxLength":3},"list":{"allOf":[{"type":"integer"}]},"a/b~c":{"type":"integer"}}}`
			for _, v := range tt.valid {
				if err := validate(t, schema, `{"v":`+v+`}`); err != nil {
					t.Errorf("%s is invalid: %v", v, err)
				}
			}
			for _, v := range tt.not {
				var invalid *jsonschema.Error
				if err := validate(t, schema, `{"v":`+v+`}`); !errors.As(err, &invalid) || invalid.Error() == "" ||
					!strings.HasPrefix(invalid.Path, "v") {
					t.Errorf("%s: error %v, want a violation at v", v, err)
				}
			}
		})
	}
}

func TestUnsupportedSchemaIsRejected(t *testing.T) {
	for _, tt := range []struct{ name, schema string }{
		{"not JSON", `{"type":`},
		{"a list", `[]`},
		{"a string", `"object"`},
		{"duplicate key", `{"type":"object","type":"array"}`},
		{"unknown type", `{"type":"path"}`},
		{"a type that is a number", `{"type":7}`},
		{"empty list of types", `{"type":[]}`},
		{"properties that are a list", `{"properties":["a"]}`},
		{"a property that is a string", `{"properties":{"a":"string"}}`},
		{"required that is a name", `{"required":"a"}`},
		{"an enum that is no list", `{"enum":"a"}`},
		{"a minimum that is a string", `{"minimum":"1"}`},
		{"a length below zero", `{"maxLength":-1}`},
		{"a length that is a fraction", `{"minLength":0.5}`},
		{"multipleOf zero", `{"multipleOf":0}`},
		{"empty anyOf", `{"anyOf":[]}`},
		{"uniqueItems that is a string", `{"uniqueItems":"true"}`},
		{"trick: a misspelled keyword", `{"properties":{"a":{"maxLenght":3}}}`},
		{"trick: if and then", `{"if":{"required":["a"]},"then":{"required":["b"]}}`},
		{"trick: remote reference", `{"$ref":"https://example.org/schema.json"}`},
		{"trick: a reference to a file", `{"$ref":"file:///etc/passwd"}`},
		{"trick: dangling reference", `{"$ref":"#/$defs/a"}`},
		{"trick: a reference to something that is no schema", `{"$ref":"#/title","title":"x"}`},
		{"trick: negative index", `{"$ref":"#/allOf/-1","allOf":[{}]}`},
		{"trick: huge index", `{"$ref":"#/allOf/99999999999999999999","allOf":[{}]}`},
		{"trick: an anchor", `{"$ref":"#a","$defs":{"x":{"$anchor":"a"}}}`},
		{"trick: $id in a subschema", `{"allOf":[{"$id":"https://example.org/","$ref":"#/x"}]}`},
		{"trick: a dynamic reference", `{"$dynamicRef":"#a"}`},
		{"trick: lookahead in a pattern", `{"properties":{"a":{"pattern":"^(?=.*x)"}}}`},
		{"trick: backreference in a pattern", `{"properties":{"a":{"pattern":"(a)\\1"}}}`},
		{"trick: unclosed group in a pattern", `{"patternProperties":{"(":{}}}`},
		{"trick: a pattern of kilobytes", `{"properties":{"a":{"pattern":"` + strings.Repeat("a", 5000) + `"}}}`},
		{"trick: boolean exclusiveMinimum of draft 4", `{"minimum":1,"exclusiveMinimum":true}`},
		{"trick: keyword of kilobytes", `{"` + strings.Repeat("x", 5000) + `":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cache jsonschema.Cache[*jsonschema.Schema]
			for range 2 { // the second time from the cache
				if _, err := cache.Get([]byte(tt.schema), jsonschema.Compile); err == nil || len(err.Error()) > 200 {
					t.Errorf("error %v, want a short one", err)
				}
			}
		})
	}
}

// randomValue draws a small JSON value, with collisions and other spellings likely.
func randomValue(depth int) *rapid.Generator[string] {
	scalar := rapid.SampledFrom([]string{
		`0`, `1`, `1.0`, `2`, `-1`, `1.5`, `""`, `"a"`, `"ab"`, `"b\u0061"`, `true`,
		`false`, `null`,
	})
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
			for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).
				Draw(t, "keys") {
				parts = append(parts, `"`+k+`":`+inner())
			}
			return `{` + strings.Join(parts, ",") + `}`
		}
		return scalar.Draw(t, "scalar")
	})
}

// randomSchema draws a schema of keywords that the library and this package support.
func randomSchema(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		inner := func() string {
			if depth == 0 {
				return rapid.SampledFrom([]string{`true`, `{}`, `{"type":"string"}`, `{"$ref":"#/$defs/d"}`}).Draw(t,
					"leaf")
			}
			return randomSchema(depth-1).Draw(t, "inner")
		}
		list := func() string { return `[` + inner() + `,` + inner() + `]` }
		var parts []string
		keywords := []string{
			"type", "enum", "const", "minimum", "maxLength", "minLength", "pattern", "items",
			"minItems", "uniqueItems", "properties", "required", "additionalProperties", "allOf", "anyOf", "oneOf",
			"not", "$ref", "propertyNames", "maxProperties", "prefixItems", "multipleOf", "exclusiveMaximum",
		}
		for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keywords), 0, 4, rapid.ID).Draw(t, "keywords") {
			v := ""
			switch k {
			case "type":
				v = rapid.SampledFrom([]string{
					`"object"`, `"string"`, `"integer"`, `["array","null"]`,
					`["number","boolean"]`,
				}).Draw(t, k)
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

// Where the library and this package support a schema, they agree about every value.
func TestAgreesWithLibrary(t *testing.T) {
	agreed := map[bool]int{}
	rapid.Check(t, func(rt *rapid.T) {
		schema := `{"properties":{"v":` + randomSchema(2).Draw(rt, "schema") +
			`},"$defs":{"d":{"type":["integer","string","object"]}}}`
		args := `{"v":` + randomValue(2).Draw(rt, "value") + `}`
		var js library.Schema
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
		theirs, ours := resolved.Validate(v), validate(t, schema, args)
		if (theirs == nil) != (ours == nil) || errors.Is(ours, jsonschema.ErrTooComplex) {
			rt.Fatalf("schema %s\nargs %s\nlibrary: %v\nours: %v", schema, args, theirs, ours)
		}
		agreed[ours == nil]++
	})
	if agreed[true] == 0 || agreed[false] == 0 {
		t.Errorf("the drawn pairs are all valid or all invalid: %v", agreed)
	}
}

func TestErrorNamesArgumentAndExpectation(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer","minimum":1},"mode":{"enum":["fast","slow",3]},
		"tags":{"items":{"properties":{"name":{"type":"string","maxLength":3}}}},
		"any":{"anyOf":[{"type":"integer"},{"type":"null"}]}},
		"required":["n"],"additionalProperties":false}`
	for _, tt := range []struct{ args, text, withValue, allowed string }{
		{`7`, `the arguments must be of type object, got integer`, `the arguments must be of type object, got 7`, ""},
		{`{}`, `"n" is missing; it must be of type integer`, "", ""},
		{`{"n":1.5}`, `"n" must be of type integer, got number`, `"n" must be of type integer, got 1.5`, ""},
		{`{"n":0}`, `"n" must be at least 1`, `"n" must be at least 1, got 0`, ""},
		{
			`{"n":1,"mode":"x"}`, `"mode" must be one of "fast", "slow", 3`,
			`"mode" must be one of "fast", "slow", 3, got "x"`, "fast slow 3",
		},
		{`{"n":1,"tags":[{},{"name":"abcd"}]}`, `"tags[1].name" must have at most 3 characters, got 4`, "", ""},
		{
			`{"n":1,"tags":[{},{"name":[1, 2]}]}`, `"tags[1].name" must be of type string, got array`,
			`"tags[1].name" must be of type string, got [1, 2]`, "",
		},
		{
			`{"n":1,"any":"x"}`, `"any" matches none of the 2 allowed forms (integer or null)`,
			`"any" matches none of the 2 allowed forms (integer or null), got "x"`, "",
		},
		{`{"n":1,"color":2}`, `"color" is not known; known are: n, mode, tags, any`, "", "n mode tags any"},
		{`{"n":1,"N":2}`, `"N" must be written n`, "", ""},
	} {
		var invalid *jsonschema.Error
		if err := validate(t, schema, tt.args); !errors.As(err, &invalid) {
			t.Errorf("%s: error %v", tt.args, err)
			continue
		}
		if tt.withValue == "" {
			tt.withValue = tt.text
		}
		if invalid.Error() != tt.text || invalid.ErrorWithValue() != tt.withValue ||
			strings.Join(invalid.Allowed, " ") != tt.allowed {
			t.Errorf("%s: %s\n%s\nallowed %q", tt.args, invalid.Error(), invalid.ErrorWithValue(), invalid.Allowed)
		}
	}
}

// Numbers with large exponents are compared exactly; thousands of them stay cheap.
func TestExactArithmeticIsBounded(t *testing.T) {
	many := `{"a":[` + strings.Repeat(`1e-999,`, 15_000) + `1e-999]}`
	for _, schema := range []string{
		`{}`, `{"properties":{"a":{"items":{"minimum":1e-998,"multipleOf":3}}}}`,
		`{"properties":{"a":{"items":{"minimum":1e-999}}}}`, `{"properties":{"a":{"uniqueItems":true}}}`,
	} {
		begin := time.Now()
		_ = validate(t, schema, many)
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("%s took %s", schema, took)
		}
	}
}

func TestCacheIsBoundedAndConcurrent(t *testing.T) {
	var cache jsonschema.Cache[*jsonschema.Schema]
	t.Run("group", func(t *testing.T) {
		for g := range 4 {
			t.Run(fmt.Sprint(g), func(t *testing.T) {
				t.Parallel()
				for i := range 700 {
					s, err := cache.Get(fmt.Appendf(nil, `{"const":%d}`, i), jsonschema.Compile)
					if err != nil || s.ValidateJSON(fmt.Append(nil, i)) != nil ||
						s.ValidateJSON(fmt.Append(nil, i+1)) == nil {
						t.Fatalf("schema %d: %v", i, err)
					}
				}
			})
		}
	})
}
