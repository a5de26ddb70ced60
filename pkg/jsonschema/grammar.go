package jsonschema

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/strict"
)

// Limits of a grammar. Model servers turn the JSON schema of a reply into a grammar in which each bound of a length is
// a repetition. llama.cpp, which Ollama uses too, makes no grammar of one with a repetition above 2,000, and the
// process that runs the model then dies; Ollama cuts a grammar beyond 32 KB with the same effect.
const (
	maxRepetition     = 2000 // of one bound, and of nested ones multiplied
	maxRepetitions    = 8000 // of all bounds together
	maxGrammarBytes   = 30_000
	maxGrammarNesting = 16
	// ruleBytes is an upper estimate of what one subschema adds to a grammar, beside its names and values.
	ruleBytes = 80
)

// anyObject is the schema in place of one that cannot be a grammar.
const anyObject = `{"type":"object"}`

// anyValue is the schema of every value: converters reject one without a type.
var anyValue = strict.Value{Type: strict.Object, Members: []strict.Member{{
	Name: "type", Value: strict.Value{Type: strict.Array, Items: []strict.Value{
		{Type: strict.String, Text: "string"},
		{Type: strict.String, Text: "number"},
		{Type: strict.String, Text: "boolean"},
		{Type: strict.String, Text: "object"},
		{Type: strict.String, Text: "array"},
		{Type: strict.String, Text: "null"},
	}},
}}}

// ForGrammar returns the part of a schema that every model server can turn into a grammar: which members and values
// there are, and bounds of a size that grammars can hold. What it leaves out, patterns and formats among it, is
// accepted by the grammar, so that a reply must be checked against the whole schema. The order of members is kept. A
// schema that is invalid or too large becomes that of any object.
func ForGrammar(raw []byte) []byte {
	v, err := strict.Parse(raw)
	if err != nil || !isShaped(&v) {
		return []byte(anyObject)
	}
	g := grammar{}
	out := g.reduce(&v, maxRepetition, len("root"), maxGrammarNesting)
	if g.bytes > maxGrammarBytes {
		return []byte(anyObject)
	}
	return appendJSON(nil, &out)
}

// grammar counts what the grammar of a schema holds.
type grammar struct {
	bytes       int // estimated
	repetitions int
}

// reduce returns the part of a schema that a grammar can hold. most is the largest repetition that may stand here, path
// the length of the rule's name, depth how many levels may follow.
func (g *grammar) reduce(v *strict.Value, most, path, depth int) strict.Value {
	g.bytes += ruleBytes + 4*path
	if depth == 0 || !isShaped(v) {
		return anyValue
	}
	lengths, _ := g.keepBounds(v, "minLength", "maxLength", most)
	counts, inside := g.keepBounds(v, "minItems", "maxItems", most)
	bounds := append(lengths, counts...)
	var kept []strict.Member
	for _, m := range v.Members {
		switch m.Name {
		case "description", "title", "required":
		case "type":
			if _, err := readTypes(&m.Value); err != nil {
				continue
			}
		case "enum", "const":
			if m.Name == "enum" && (m.Value.Type != strict.Array || len(m.Value.Items) == 0) {
				continue
			}
			g.bytes += 2 * len(appendJSON(nil, &m.Value))
		case "properties", "$defs", "definitions", "items":
		case "additionalProperties":
			if v.Member("patternProperties") != nil {
				continue
			}
		case "anyOf", "oneOf":
			// Beside members these are conditions on them, which no grammar holds.
			if v.Member("properties") != nil || m.Value.Type != strict.Array || len(m.Value.Items) == 0 {
				continue
			}
		case "$ref":
			if !strings.HasPrefix(m.Value.Text, "#/$defs/") && !strings.HasPrefix(m.Value.Text, "#/definitions/") {
				return anyValue
			}
		case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
			if _, short := shortFloat(&m.Value); m.Value.Type != strict.Integer || !short {
				continue
			}
		default:
			if !slices.Contains(bounds, m.Name) {
				continue
			}
		}
		replaceSubschemas(&m, func(v *strict.Value, name string) strict.Value {
			return g.reduce(v, inside, path+len(name)+1, depth-1)
		})
		kept = append(kept, m)
	}
	return strict.Value{Type: strict.Object, Members: kept}
}

// replaceSubschemas replaces the schemas in a member of a schema by what replace returns for them and the name of their
// rule. The values of m are not modified.
func replaceSubschemas(m *strict.Member, replace func(v *strict.Value, name string) strict.Value) {
	switch m.Name {
	case "properties", "$defs", "definitions":
		members := slices.Clone(m.Value.Members)
		for i := range members {
			members[i].Value = replace(&members[i].Value, members[i].Name)
		}
		m.Value = strict.Value{Type: strict.Object, Members: members}
	case "items":
		m.Value = replace(&m.Value, "item")
	case "additionalProperties":
		if m.Value.Type != strict.Boolean {
			m.Value = replace(&m.Value, "value")
		}
	case "anyOf", "oneOf":
		items := slices.Clone(m.Value.Items)
		for i := range items {
			items[i] = replace(&items[i], "alternative")
		}
		m.Value = strict.Value{Type: strict.Array, Items: items}
	}
}

// Shape returns the schema of an object with the members in keywords only, at every depth, and those properties of the
// object itself that keep accepts. A schema that is no JSON object is returned as it is.
func Shape(raw []byte, keywords []string, keep func(property string) bool) []byte {
	v, err := strict.Parse(raw)
	if err != nil || v.Type != strict.Object {
		return raw
	}
	var reduce func(v *strict.Value, _ string) strict.Value
	reduce = func(v *strict.Value, _ string) strict.Value {
		if v.Type != strict.Object {
			return *v
		}
		var kept []strict.Member
		for _, m := range v.Members {
			if slices.Contains(keywords, m.Name) {
				replaceSubschemas(&m, reduce)
				kept = append(kept, m)
			}
		}
		return strict.Value{Type: strict.Object, Members: kept}
	}
	v = reduce(&v, "")
	if properties := v.Member("properties"); properties != nil {
		properties.Members = slices.DeleteFunc(properties.Members, func(m strict.Member) bool { return !keep(m.Name) })
	}
	return appendJSON(nil, &v)
}

// isShaped reports whether a schema says which values there are; converters reject others.
func isShaped(v *strict.Value) bool {
	return v.Type == strict.Object && slices.ContainsFunc(v.Members, func(m strict.Member) bool {
		switch m.Name {
		case "type":
			_, err := readTypes(&m.Value)
			return err == nil
		case "enum", "anyOf", "oneOf":
			return m.Value.Type == strict.Array && len(m.Value.Items) > 0
		case "const", "$ref":
			return true
		case "properties", "items":
			return m.Value.Type == strict.Object
		}
		return false
	})
}

// keepBounds returns those of the two bounds of a length that a grammar can hold, and the largest repetition that may
// stand inside of what they repeat. An upper bound below the lower one is left out.
func (g *grammar) keepBounds(v *strict.Value, low, high string, most int) (kept []string, inside int) {
	lowest := 0
	for _, name := range []string{low, high} {
		bound := v.Member(name)
		if bound == nil {
			continue
		}
		n, err := strconv.Atoi(bound.Text)
		if err != nil || bound.Type != strict.Integer || n < lowest || n > most ||
			g.repetitions+n > maxRepetitions {
			continue
		}
		lowest = n
		kept = append(kept, name)
	}
	g.repetitions += lowest
	return kept, most / max(1, lowest)
}

// appendJSON appends a value as JSON, without white space and without escapes for HTML.
func appendJSON(out []byte, v *strict.Value) []byte {
	appendString := func(s string) {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(s) // a string can be encoded
		out = append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
	}
	switch v.Type {
	case strict.String:
		appendString(v.Text)
	case strict.Array:
		out = append(out, '[')
		for i := range v.Items {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendJSON(out, &v.Items[i])
		}
		out = append(out, ']')
	case strict.Object:
		out = append(out, '{')
		for i := range v.Members {
			if i > 0 {
				out = append(out, ',')
			}
			appendString(v.Members[i].Name)
			out = appendJSON(append(out, ':'), &v.Members[i].Value)
		}
		out = append(out, '}')
	default:
		out = append(out, v.Text...)
	}
	return out
}
