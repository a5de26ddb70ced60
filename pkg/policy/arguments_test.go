package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"conclave/pkg/strict"
)

// judgeCall decides a call with a chain of one layer. rule is "" when it passes, and "ask:..." when it asks.
func judgeCall(t testing.TB, l Layer, c Call) (rule string, denial string, allowed []string) {
	t.Helper()
	d := Chain{l}.Decide(t.Context(), c)
	if d.Failure() != nil {
		t.Fatalf("the layer failed: %v", d.Failure())
	}
	if q := d.Asks(); len(q) > 0 {
		return "ask:" + q[0].Rule, q[0].Reason, nil
	}
	if d.Allowed() {
		return "", "", nil
	}
	if got := d.Denial().Layer; got != l.Name() {
		t.Fatalf("denied by %s and not by %s: %+v", got, l.Name(), d.Denial())
	}
	return d.Denial().Rule, d.Denial().Reason, d.Denial().Allowed
}

// argsCall returns a call with this schema and arguments.
func argsCall(schema, args string) Call {
	c := newCall()
	c.Schema, c.Args = json.RawMessage(schema), json.RawMessage(args)
	return c
}

const noteSchema = `{"type":"object","properties":{"path":{"type":"string","maxLength":20},` +
	`"count":{"type":"integer","minimum":1,"maximum":10},"mode":{"enum":["fast","slow"]}},"required":["path"],` +
	`"additionalProperties":false}`

func TestArgumentsLayer(t *testing.T) {
	for _, tt := range []struct {
		name, schema, args string
		rule               string // "" = passes
		says               string // part of the reason
	}{
		{name: "fits", args: `{"path":"/a","count":3,"mode":"slow"}`},
		{name: "only what is required", args: ` { "path" : "/a" } `},
		{name: "escapes in a value", args: `{"path":"\/\u00e9\ud83d\ude00"}`},
		{name: "whole number with a point", args: `{"path":"/a","count":3.0}`},
		{name: "whole number with an exponent", args: `{"path":"/a","count":1e1}`},
		{name: "missing", args: `{}`, rule: ruleMismatch, says: `"path" is missing; it must be of type string`},
		{
			name: "wrong type", args: `{"path":7}`, rule: ruleMismatch,
			says: `"path" must be of type string, got integer`,
		},
		{
			name: "unknown argument", args: `{"path":"/a","colour":"red"}`, rule: ruleMismatch,
			says: `"colour" is not known; known are: path, count, mode`,
		},
		{
			name: "not in the enum", args: `{"path":"/a","mode":"warp"}`, rule: ruleMismatch,
			says: `"mode" must be one of "fast", "slow"`,
		},
		{name: "too small", args: `{"path":"/a","count":0}`, rule: ruleMismatch, says: `at least 1`},
		{name: "fraction for an integer", args: `{"path":"/a","count":1.5}`, rule: ruleMismatch, says: `integer`},
		{name: "characters and not bytes are counted", args: `{"path":"` + strings.Repeat("é", 20) + `"}`},
		{
			name: "one character too many", args: `{"path":"` + strings.Repeat("é", 21) + `"}`, rule: ruleMismatch,
			says: "at most 20 characters, got 21",
		},
		{name: "not JSON", args: `path=/a`, rule: ruleMalformed},
		{name: "nothing", args: ``, rule: ruleMalformed},
		{name: "no schema", schema: " ", args: `{}`, rule: ruleNoSchema},
		{name: "null as a schema", schema: "null", args: `{}`, rule: ruleNoSchema},

		{name: "trick: a list instead of an object", args: `["/a"]`, rule: ruleMalformed, says: "array"},
		{name: "trick: null instead of an object", args: `null`, rule: ruleMalformed},
		{
			name: "trick: a key twice", args: `{"path":"/a","path":"/etc/shadow"}`, rule: ruleMalformed,
			says: "duplicate key",
		},
		{
			name: "trick: a key twice, once with an escape", args: `{"path":"/a","\u0070ath":"/etc/shadow"}`,
			rule: ruleMalformed, says: "duplicate key",
		},
		{
			name: "trick: a key twice, far inside", schema: `{}`, args: `{"a":[{"b":{"c":1,"c":2}}]}`,
			rule: ruleMalformed,
			says: "duplicate key",
		},
		{
			name: "trick: a key twice among many", schema: `{}`, args: `{` + manyKeys(200) + `,"k7":1}`,
			rule: ruleMalformed, says: "duplicate key",
		},
		{
			name:   "trick: another case of a name, in an open schema",
			schema: `{"properties":{"mode":{"type":"string"}}}`,
			args:   `{"Mode":7}`, rule: ruleMismatch, says: "must be written mode",
		},
		{
			name: "trick: a Kelvin sign for a k", schema: `{"properties":{"key":{"type":"string"}}}`,
			args: "{\"\u212aey\":7}", rule: ruleMismatch, says: "must be written key",
		},
		{name: "trick: a second object behind the first", args: `{"path":"/a"}{"path":"/b"}`, rule: ruleMalformed},
		{name: "trick: a comment", args: `{"path":"/a"} // {`, rule: ruleMalformed},
		{name: "trick: a comma at the end", args: `{"path":"/a",}`, rule: ruleMalformed},
		{name: "trick: bytes that are no text", args: "{\"path\":\"/a\xff\"}", rule: ruleMalformed, says: "UTF-8"},
		{name: "trick: half of a surrogate pair", args: `{"path":"\ud800"}`, rule: ruleMalformed, says: "surrogate"},
		{
			name: "trick: half of a pair, then something else", args: `{"path":"\ud800\u0041"}`, rule: ruleMalformed,
			says: "surrogate",
		},
		{name: "trick: digits of an escape that are none", args: "{\"path\":\"\\u00\x104\"}", rule: ruleMalformed},
		{name: "trick: a raw line break in a string", args: "{\"path\":\"a\nb\"}", rule: ruleMalformed},
		{name: "trick: NUL in a path", args: `{"path":"/a\u0000/etc"}`, rule: ruleNulInPath},
		{name: "trick: NUL in a path of a list", schema: `{}`, args: `{"path":["/a","/b\u0000"]}`, rule: ruleNulInPath},
		{name: "trick: a number with a leading zero", schema: `{}`, args: `{"count":010}`, rule: ruleMalformed},
		{name: "trick: not a number", schema: `{}`, args: `{"count":NaN}`, rule: ruleMalformed},
		{
			name: "trick: an exponent that fills the memory", schema: `{}`, args: `{"count":1e1000000000}`,
			rule: ruleMalformed, says: "exponent",
		},
		{
			name: "trick: a number without end", schema: `{}`, args: `{"count":` + strings.Repeat("9", 100_000) + `}`,
			rule: ruleMalformed, says: "longer",
		},
		{
			name: "trick: a number that rounds into the range",
			args: `{"path":"/a","count":10.00000000000000000000001}`,
			rule: ruleMismatch, says: "integer",
		},
		{
			name: "trick: brackets without end", schema: `{}`, args: strings.Repeat(`{"a":`, 100_000),
			rule: ruleMalformed,
			says: "invalid JSON",
		},
		{
			name: "trick: many brackets", schema: `{}`,
			args: strings.Repeat(`{"a":`, 1000) + "1" + strings.Repeat("}", 1000),
			rule: ruleMalformed,
			says: "deeper",
		},
		{
			name: "trick: a list without end", schema: `{}`, args: `{"a":[` + strings.Repeat("1,", 100_000) + `1]}`,
			rule: ruleMalformed, says: "more than",
		},
		{
			name: "trick: more bytes than the tool accepts", args: `{"path":"/a"}` + strings.Repeat(" ", 2000),
			rule: ruleTooLarge,
		},
		{
			name: "trick: a name that would fill the log", args: `{"path":"/a","` + strings.Repeat("x", 900) + `":1}`,
			rule: ruleMismatch, says: "not known",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			schema := tt.schema
			if schema == "" {
				schema = noteSchema
			}
			c := argsCall(schema, tt.args)
			c.Tool.Paths = []string{"path"}
			if tt.rule == ruleTooLarge || strings.Contains(tt.name, "log") {
				c.Tool.MaxArgs = 1500
			}
			for _, l := range []ArgumentsLayer{newArgumentsLayer(), {}} {
				rule, reason, allowed := judgeCall(t, l, c)
				if rule != tt.rule || !strings.Contains(reason, tt.says) {
					t.Fatalf("rule %q (%s), want %q with %q", rule, reason, tt.rule, tt.says)
				}
				if len(reason) > 400 {
					t.Errorf("the reason has %d bytes: %s", len(reason), reason)
				}
				if tt.says == `"mode" must be one of "fast", "slow"` && strings.Join(allowed, " ") != "fast slow" {
					t.Errorf("allowed %q", allowed)
				}
			}
		})
	}
}

func manyKeys(n int) string {
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf(`"k%d":0`, i))
	}
	return strings.Join(keys, ",")
}

// TestArgumentNameInOtherCaseDenies: a declared argument name in another case is denied, because some tools ignore
// case.
func TestArgumentNameInOtherCaseDenies(t *testing.T) {
	for _, key := range []string{"PATH", "Url", "QUERY", "To", "BODY"} {
		c := argsCall(`{}`, `{"`+key+`":"x"}`)
		c.Tool.Paths, c.Tool.Args = []string{"path"}, Args{
			"url": {Role: RoleURL}, "query": {Role: RoleQuery},
			"to": {Role: RoleDestination}, "body": {Role: RoleContent},
		}
		rule, reason, allowed := judgeCall(t, newArgumentsLayer(), c)
		if rule != ruleArgumentCase || len(allowed) != 1 || allowed[0] != strings.ToLower(key) {
			t.Errorf("%s: rule %q (%s), allowed %q", key, rule, reason, allowed)
		}
	}
}

// TestArgumentChecksAreBounded: no schema or arguments make validation slow. The limit is far above measured times and
// far below what each case takes without a bound.
func TestArgumentChecksAreBounded(t *testing.T) {
	deepAny := `{"anyOf":[` // each level tries the next twice
	forms := strings.Repeat(`{"$ref":"#/$defs/a"},`, 50)
	for _, tt := range []struct{ name, schema, args, rule string }{
		{"trick: a reference to itself", `{"$ref":"#"}`, `{}`, ruleTooComplex},
		{
			"trick: two references to one another",
			`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, `{}`, ruleTooComplex,
		},
		{"trick: forms that multiply", `{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}`, `{}`, ruleTooComplex},
		{
			"trick: forms that multiply and are excluded", `{"not":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}}`, `{}`,
			ruleTooComplex,
		},
		{"trick: exactly one of ever more forms", `{"oneOf":[` + forms + `{}],"$defs":{"a":{"oneOf":[` + forms +
			`{"$ref":"#"}]}}}`, `{}`, ruleTooComplex},
		{"trick: a schema that nests without end", strings.Repeat(deepAny, 50_000), `{}`, ruleBadSchema},
		{"trick: a schema of megabytes", `{"enum":["` + strings.Repeat("x", 1<<20) + `"]}`, `{}`, ruleBadSchema},
		{"trick: thousands of parts", `{"allOf":[` + strings.Repeat(`{},`, 5000) + `{}]}`, `{}`, ruleBadSchema},
		{"trick: an enum of thousands, for each of thousands", `{"properties":{"a":{"items":{"enum":[` +
			strings.Repeat(`"a",`, 15_000) + `"b"]}}}}`, `{"a":[` + strings.Repeat(`"c",`, 15_000) +
			`"c"]}`, ruleMismatch},
		{"trick: an enum of thousands that is found last", `{"properties":{"a":{"items":{"enum":[` +
			strings.Repeat(`"a",`, 15_000) + `"b"]}}}}`, `{"a":[` + strings.Repeat(`"b",`, 15_000) +
			`"b"]}`, ruleTooComplex},
		{
			"trick: all different, among thousands", `{"properties":{"a":{"uniqueItems":true}}}`,
			`{"a":[` + joinNumbers(15_000) + `]}`, ruleTooComplex,
		},
		{
			"trick: a pattern that is compiled to millions",
			`{"properties":{"a":{"pattern":"((a{1,30}){1,30}){1,30}"}}}`,
			`{"a":"a"}`, ruleBadSchema,
		},
		{
			"trick: a slow pattern over a long text", `{"properties":{"a":{"pattern":"(x+x+)+y"}}}`,
			`{"a":"` + strings.Repeat("x", 3<<20) + `"}`, ruleTooComplex,
		},
		{
			"a pattern that would be slow elsewhere", `{"properties":{"a":{"pattern":"^(x+x+)+y$"}}}`,
			`{"a":"` + strings.Repeat("x", 5000) + `"}`, ruleMismatch,
		},
		{"a reference that comes back with the data", `{"properties":{"a":{"$ref":"#"}}}`, strings.Repeat(`{"a":`, 50) +
			`{}` + strings.Repeat(`}`, 50), ""},
		{
			"a text of megabytes", `{"properties":{"a":{"type":"string","maxLength":4000000}}}`,
			`{"a":"` + strings.Repeat("x", 3<<20) + `"}`, "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begin := time.Now()
			rule, reason, _ := judgeCall(t, newArgumentsLayer(), argsCall(tt.schema, tt.args))
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			if rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
		})
	}
}

func joinNumbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String() + "-1"
}

// TestArgumentsLayerIsConcurrent: concurrent calls with more schemas than the cache holds.
func TestArgumentsLayerIsConcurrent(t *testing.T) {
	l := newArgumentsLayer()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				schema := fmt.Sprintf(`{"properties":{"n":{"const":%d}}}`, i+g*100)
				for n, want := range map[int]string{i + g*100: "", i + g*100 + 1: ruleMismatch} {
					if rule, reason, _ := judgeCall(t, l, argsCall(schema, fmt.Sprintf(`{"n":%d}`, n))); rule != want {
						t.Errorf("%s with %d: %q %s", schema, n, rule, reason)
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkArguments(b *testing.B) {
	l := newArgumentsLayer()
	c := argsCall(noteSchema, `{"path":"/home/a/notes.txt","count":3,"mode":"slow"}`)
	c.Tool.Paths = []string{"path"}
	b.ReportAllocs()
	for b.Loop() {
		if v := l.Judge(b.Context(), c); v.kind != verdictPass {
			b.Fatal("denied")
		}
	}
}

func BenchmarkLargeArguments(b *testing.B) {
	const schema = `{"type":"object","properties":{"query":{"type":"string","maxLength":400},` +
		`"limit":{"type":"integer","minimum":1,"maximum":50},"tags":{"type":"array","items":{"type":"string"},` +
		`"maxItems":20},"filter":{"type":"object","properties":{"after":{"type":"string","pattern":"^[0-9-]+$"},` +
		`"kind":{"enum":["note","mail","page"]},"score":{"type":"number","minimum":0.5}},` +
		`"additionalProperties":false},"target":{"anyOf":[{"type":"integer"},{"type":"string"},{"type":"null"}]}},` +
		`"required":["query"],"additionalProperties":false}`
	l := newArgumentsLayer()
	c := argsCall(schema,
		`{"query":"what did we decide about the \"outbox\" last week?","limit":20,"tags":["a","b","c","d"],`+
			`"filter":{"after":"2026-01-01","kind":"page","score":0.75},"target":"notes"}`)
	b.ReportAllocs()
	for b.Loop() {
		if v := l.Judge(b.Context(), c); v.kind != verdictPass {
			b.Fatal("denied")
		}
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
		rule, reason, _ := judgeCall(t, ArgumentsLayer{}, c)
		if len(reason) > 700 || !utf8.ValidString(reason) {
			t.Errorf("%d bytes of reason: %q", len(reason), reason)
		}
		if rule == "" && (!json.Valid([]byte(args)) || !json.Valid([]byte(schema))) {
			t.Errorf("passed, and is not JSON: %q %q", schema, args)
		}
		if _, err := strict.Parse([]byte(args)); err == nil && !json.Valid([]byte(args)) {
			t.Errorf("parsed, and is not JSON: %q", args)
		}
	})
}
