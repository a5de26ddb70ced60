package strict_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/pkg/strict"
)

// pause is a type with its own text form.
type pause time.Duration

func (p *pause) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s is not a pause", text)
	}
	*p = pause(d)
	return nil
}

func (p pause) String() string { return time.Duration(p).String() }

type inner struct {
	On    bool  `yaml:"on"`
	Pause pause `yaml:"pause"`
}

type outer struct {
	Name  string           `yaml:"name"`
	N     int              `yaml:"n"`
	List  []string         `yaml:"list"`
	Inner inner            `yaml:"inner"`
	Map   map[string]inner `yaml:"map"`
	Maybe *bool            `yaml:"maybe"`
	Other string           // no tag: not a setting
}

func TestDecodeOverridesOnlyNamedFields(t *testing.T) {
	v := outer{Name: "before", N: 3, List: []string{"x", "y"}, Inner: inner{On: true, Pause: pause(time.Second)}}
	lines, err := strict.Decode([]byte("list: [a]\ninner:\n  pause: 2s\nmap:\n  k: {on: true}\nmaybe: false\n"), "f",
		&v)
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := outer{
		Name: "before", N: 3, List: []string{"a"}, Inner: inner{true, pause(2 * time.Second)},
		Map: map[string]inner{"k": {On: true}}, Maybe: &no,
	}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, want %+v", v, want)
	}
	for path, want := range map[string]int{
		"inner.pause": 3, "list[0]": 1, "map.k.on": 5, "map.k.missing": 5,
		"nowhere": 1,
	} {
		if got := lines.At(path); got != want {
			t.Errorf("%s on line %d, want %d", path, got, want)
		}
	}
}

func TestDecodeRejects(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"fraction", "n: 1.5", "f:1: n: 1.5 is not a whole number"},
		{"number too large", "n: 99999999999999999999", "is not a whole number"},
		{"number in quotes", "n: '1'", "is not a whole number"},
		{"text that is a number", "name: 1", "f:1: name: 1 is not text; put it in quotes"},
		{"own type", "inner: {pause: soon}", "f:1: inner.pause: soon is not a pause"},
		{"list for own type", "inner: {pause: [1s]}", "inner.pause: must be one value"},
		{"map for text", "name: {a: b}", "name: must be one value"},
		{"text for fields", "inner: yes", "inner: must hold fields"},
		{"list at the top", "- a", "f:1: must hold fields"},
		{"no value", "name:\n", "f:1: name: has no value"},
		{"yes for true", "inner: {on: yes}", "yes is neither true nor false"},
		{"alias without anchor", "name: *a", "f: anchors are not supported"},
		{"key that is a list", "[a]: b", "the name of a field must be plain text"},
		{"key that is a number", "1: b", "the name of a field must be plain text"},
		{"field that has no name", "Other: b", "Other: unknown field"},
		{"control character", "name: \x01", "control characters are not allowed"},
		{"long key", strings.Repeat("k", 200) + ": x", "f:1: unknown field"},
		{"line of another file", "root:$6$5alt$hash:19000:0:99999:7:::", "f:1: unknown field"},
		{"line of another file twice", "a:$6$5alt$hash:::\na:$6$5alt$hash:::", "f:2: written twice"},
		{"anchor of another file", "name: *5alt", "f: anchors are not supported"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var v outer
			if _, err := strict.Decode([]byte(tt.text), "f", &v); err == nil ||
				!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "5alt") {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDecodeBoundsItsErrors(t *testing.T) {
	var v outer
	_, err := strict.Decode([]byte("list: ["+strings.Repeat("1,", 100)+"]"), "f", &v)
	if err == nil || strings.Count(err.Error(), "\n") != 20 || !strings.Contains(err.Error(), "and 80 more errors") {
		t.Errorf("got %v", err)
	}
}

func TestAssign(t *testing.T) {
	var v outer
	for path, text := range map[string]string{"name": "1", "n": "7", "inner.on": "true", "inner.pause": "3s"} {
		if err := strict.Assign(&v, path, text, "flag"); err != nil {
			t.Error(err)
		}
	}
	want := outer{Name: "1", N: 7, Inner: inner{true, pause(3 * time.Second)}}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, want %+v", v, want)
	}
	for path, want := range map[string]string{
		"nope": "flag: nope: unknown field; known here: name, n", "inner": "must hold fields",
		"inner.on": "is neither true nor false",
		"":         `flag: "": unknown field`, "n": "is not a whole number",
	} {
		if err := strict.Assign(&v, path, "", "flag"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}

func TestFields(t *testing.T) {
	got := strict.Fields(struct {
		A string `yaml:"a"`
		B inner  `yaml:"b"`
		C int
		D time.Duration `yaml:"d"`
		E strict.Size   `yaml:"e"`
	}{A: "x", B: inner{Pause: pause(time.Minute)}, D: 10 * time.Minute, E: 16 << 10})
	want := []strict.Field{
		{"a", "x", "text"},
		{"b.on", "false", "bool"},
		{"b.pause", "1m0s", "number"},
		{"d", "10m", "duration"},
		{"e", "16KB", "size"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDecodeAny: data without a schema is decoded under the same rules.
func TestDecodeAny(t *testing.T) {
	type loose struct {
		Any  any            `yaml:"any"`
		Map  map[string]any `yaml:"map"`
		Wait time.Duration  `yaml:"wait"`
	}
	var v loose
	lines, err := strict.Decode([]byte("any: [1, 1.5, true, text, '2', {a: b}]\nmap:\n  list: [x]\n  deep: {n: "+
		"3}\nwait: 1m30s\n"), "f", &v)
	if err != nil {
		t.Fatal(err)
	}
	want := loose{
		Any:  []any{1, 1.5, true, "text", "2", map[string]any{"a": "b"}},
		Map:  map[string]any{"list": []any{"x"}, "deep": map[string]any{"n": 3}},
		Wait: 90 * time.Second,
	}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %#v, want %#v", v, want)
	}
	if lines.At("map.deep.n") != 4 || lines.At("any[5].a") != 1 {
		t.Errorf("lines %v", lines)
	}
	for text, want := range map[string]string{
		"any: 2026-01-01":         "f:1: any: 2026-01-01 is neither text, a number, true nor false; put it in quotes",
		"any:\n  - {a: ~}":        "f:2: any[0].a: has no value",
		"any: {a: 1, a: 2}":       "any.a: written twice",
		"any: {1: a}":             "the name of a field must be plain text",
		"map: [a]":                "map: must hold fields",
		"any: [&a x]":             "any[0]: anchors are not supported",
		"any: !!binary aGFsbG8=":  "any: tags are not supported",
		"wait: 90":                "f:1: wait: 90 is not a duration; write 60s or 10m",
		"wait: 0":                 "wait: 0 is not a duration",
		"wait: -1s":               "f:1: wait: -1s is not a duration; write 60s or 10m",
		"wait: -0s":               "wait: -0s is not a duration",
		"wait: ''":                `wait: "" is not a duration`,
		"wait: [1s]":              "wait: must be one value, like 60s or 10m",
		"map: {x: {y: 2026-1-1}}": "map.x.y: 2026-1-1 is neither",
	} {
		if _, err := strict.Decode([]byte(text), "f", &loose{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]string{
		"60s": "1m", "90s": "1m30s", "1h": "1h", "1h0m5s": "1h0m5s", "10m": "10m",
		"250ms": "250ms", "0s": "0s", "3600s": "1h", "20s": "20s",
	} {
		if d, err := strict.ParseDuration(text); err != nil || strict.FormatDuration(d) != want {
			t.Errorf("%s is %s, %v, want %s", text, strict.FormatDuration(d), err, want)
		}
	}
	for _, text := range []string{"", "0", "60", "+1", "1.5", "-1s", "-0s", "-0", "soon", "1d", "9999999h"} {
		if d, err := strict.ParseDuration(text); err == nil {
			t.Errorf("%q is %s", text, d)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]strict.Size{
		"0B": 0, "1B": 1, "1KB": 1 << 10, "512MB": 512 << 20, "1GB": 1 << 30,
		"1536MB": 1536 << 20, "8TB": 8 << 40,
	} {
		var s strict.Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want || s.String() != text {
			t.Errorf("%s: %d (%s), %v, want %d", text, s, s, err, want)
		}
	}
	for _, text := range []string{
		"", "1", "GB", "1gb", "1 GB", "1.5GB", "1GBB", "+1GB", "-1GB", "0x1GB", "1_0GB",
		"1GiB", "B1", "9223372036854775808B", "8388608TB",
	} {
		var s strict.Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, s)
		}
	}
}

func TestProblems(t *testing.T) {
	var p strict.Problems
	if err := p.Err(); err != nil {
		t.Errorf("nothing is wrong, and yet: %v", err)
	}
	p.Add("a.b", "%d is too much", 7)
	p.Add("c", "is missing")
	if err := p.Err(); err == nil || err.Error() != "a.b: 7 is too much\nc: is missing" {
		t.Errorf("got %v", err)
	}
	var one strict.Problem
	if !errors.As(p.Err(), &one) || one.Path != "a.b" {
		t.Errorf("the field is not to be had: %+v", one)
	}
}

func TestDecimal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text, want string // "" = refused
	}{
		{"a fraction", "0.7", "0.7"},
		{"whole", "1", "1"},
		{"below zero", "-0.25", "-0.25"},
		{"small", "1e-3", "0.001"},
		{"words", "warm", ""},
		{"nothing", "", ""},
		{"trick: no number", "NaN", ""},
		{"trick: endless", "Inf", ""},
		{"trick: beyond all measure", "1e300", ""},
		{"trick: a comma", "0,7", ""},
	} {
		var d strict.Decimal
		if err := d.UnmarshalText([]byte(tt.text)); (err == nil) != (tt.want != "") || err == nil &&
			d.String() != tt.want {
			t.Errorf("%s: %s, %v", tt.name, d, err)
		}
	}
}

// TestSetValue changes one field of a file and nothing else.
func TestSetValue(t *testing.T) {
	t.Parallel()
	const file = "# top\nsteps: 5   # calls\nhedge:\n  search: \"a b\"  # tool\n  # below\n  reask: true\nflow: {a: " +
		"'x', b: 2} # two\nempty: {}\n"
	for name, c := range map[string]struct {
		doc, path, value string
		text             bool
		want             string // "" = refused
	}{
		"a number": {file, "steps", "7", false, strings.Replace(file, "steps: 5 ", "steps: 7 ", 1)},
		"a quoted text": {
			file, "hedge.search", `c "d" # e`, true,
			strings.Replace(file, `"a b"`, `"c \"d\" # e"`, 1),
		},
		"a nested value": {
			file, "hedge.reask", "false", false,
			strings.Replace(file, "reask: true", "reask: false", 1),
		},
		"in braces":           {file, "flow.a", "y", true, strings.Replace(file, "'x'", `"y"`, 1)},
		"in braces, the last": {file, "flow.b", "3", false, strings.Replace(file, "b: 2", "b: 3", 1)},
		"a new field":         {file, "wall", "5m", false, file + "wall: 5m\n"},
		"a new group":         {file, "grades.retry", "true", false, file + "grades:\n  retry: true\n"},
		"a new nested field": {
			file, "hedge.more", "1", false,
			strings.Replace(file, "hedge:\n", "hedge:\n  more: 1\n", 1),
		},
		"a field of no braces":  {file, "empty.a", "1", false, strings.Replace(file, "{}", "{a: 1}", 1)},
		"a new field in braces": {file, "flow.c", "1", false, strings.Replace(file, "{a", "{c: 1, a", 1)},
		"an empty file":         {"", "a.b", "1", false, "a:\n  b: 1\n"},
		"only comments":         {"# nothing", "a", "1", false, "# nothing\na: 1\n"},
		"a second field":        {file, "steps", "7\nallow_remote: true", false, ""},
		"a field in the value":  {"flow: {a: 1}\n", "flow.a", "2, b: 3", false, ""},
		// the loader rejects an empty value
		"a comment as value": {"a: 1\nb: 2\n", "a", "# x", false, "a: # x\nb: 2\n"},
		"many lines":         {"a: |\n  x\n  y\nb: 1\n", "a", "z", true, ""},
		"a group as value":   {file, "hedge", "1", false, ""},
		"below a value":      {file, "steps.x", "1", false, ""},
		"invalid":            {"a: [", "a", "1", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := strict.SetValue([]byte(c.doc), "f.yaml", strings.Split(c.path, "."), c.value, c.text)
			if string(got) != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
