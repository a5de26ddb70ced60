package scriptserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Replies of Ollama to a schema that llama.cpp cannot turn into a grammar.
const (
	// RunnerDied is the error when the process that runs the model died.
	RunnerDied = "model runner has unexpectedly stopped, this may be due to resource limitations or an internal " +
		"error, check ollama server logs for details"
	invalidSchema = "invalid JSON schema in format"
)

// Limits of llama.cpp's converter of JSON schemas, and of Ollama's buffer for its result. Ollama 0.17.4 compares each
// repetition with maxRepetition; nested ones multiply in cost, so that their product is compared here. llama.cpp has no
// limit of nesting: deeper schemas than this were never sent to a server.
const (
	maxRepetition  = 2000
	maxNesting     = 20
	minGrammarSize = 32 << 10
)

// refuseFormat returns the refusal of a request whose JSON schema a real server would fail on, nil when there is none.
func refuseFormat(seen Request) *Answer {
	if len(seen.Format) == 0 {
		return nil
	}
	if err := CheckGrammar(seen.Format); err != nil {
		return &Answer{
			Model: seen.Model, Refusal: RefusedStatus, Status: http.StatusInternalServerError, Text: err.Error(),
		}
	}
	return nil
}

// CheckGrammar returns the error of a real Ollama for a JSON schema, nil when it can turn the schema into a grammar. It
// follows llama.cpp's converter in the keywords that this project sends.
func CheckGrammar(schema []byte) error {
	var root any
	if err := json.Unmarshal(schema, &root); err != nil {
		return fmt.Errorf("%s", invalidSchema)
	}
	c := converter{repeated: 1}
	if !c.visit(root, "root") {
		return fmt.Errorf("%s", invalidSchema)
	}
	if c.died || c.size > max(minGrammarSize, min(1<<20, 4*len(schema))) {
		return fmt.Errorf("%s", RunnerDied)
	}
	return nil
}

// converter counts the grammar of a schema.
type converter struct {
	size     int     // bytes, about
	died     bool    // the grammar cannot be parsed
	depth    int     // schemas around this one
	repeated float64 // the product of the repetitions around this one
}

// visit converts one subschema and reports whether the converter accepts it. name is that of its rule.
func (c *converter) visit(v any, name string) bool {
	s, ok := v.(map[string]any)
	if !ok {
		return false
	}
	c.size += 3*len(name) + 30
	c.depth++
	defer func() { c.depth-- }()
	c.died = c.died || c.depth > maxNesting
	all := func(list any, suffix string) bool {
		items, _ := list.([]any)
		return !slices.ContainsFunc(items, func(item any) bool { return !c.visit(item, name+suffix) })
	}
	kind, _ := s["type"].(string)
	is := func(t string) bool { return s["type"] == nil || kind == t }
	switch {
	case s["$ref"] != nil:
		ref, _ := s["$ref"].(string)
		return strings.HasPrefix(ref, "#/")
	case s["oneOf"] != nil:
		return all(s["oneOf"], "-0")
	case s["anyOf"] != nil:
		return all(s["anyOf"], "-0")
	case s["const"] != nil, s["enum"] != nil:
		c.size += len(MustEncode([]any{s["const"], s["enum"]}))
		return true
	case is("object") && (s["properties"] != nil || s["additionalProperties"] != nil):
		return c.visitObject(s, name)
	case is("array") && s["items"] != nil:
		outer := c.repeated
		defer func() { c.repeated = outer }()
		c.repeated *= c.repeat(s["minItems"], s["maxItems"])
		return c.visit(s["items"], name+"-item")
	case is("string") && s["pattern"] != nil:
		pattern, _ := s["pattern"].(string)
		return strings.HasPrefix(pattern, "^") && strings.HasSuffix(pattern, "$")
	case kind == "string":
		c.repeat(s["minLength"], s["maxLength"])
		return true
	case s["type"] == nil:
		return len(s) == 0
	}
	types, ok := s["type"].([]any)
	if !ok {
		types = []any{s["type"]}
	}
	return !slices.ContainsFunc(types, func(t any) bool {
		name, _ := t.(string)
		return !slices.Contains([]string{"string", "number", "integer", "boolean", "object", "array", "null"}, name)
	})
}

// visitObject converts the members of an object.
func (c *converter) visitObject(s map[string]any, name string) bool {
	properties, _ := s["properties"].(map[string]any)
	for key, p := range properties {
		c.size += 2 * (len(name) + len(key))
		if !c.visit(p, name+"-"+key) {
			return false
		}
	}
	if more := s["additionalProperties"]; more != nil && more != false && more != true {
		return c.visit(more, name+"-additional-value")
	}
	return true
}

// repeat notes a repetition from least to most, nil is no bound, and returns how often it repeats, at least 1. The
// grammar of one that is too large, with those around it, or whose bounds are exchanged, is not parsed.
func (c *converter) repeat(least, most any) float64 {
	low, _ := least.(float64)
	high, bounded := most.(float64)
	times := max(1, low, high)
	c.died = c.died || c.repeated*times > maxRepetition || bounded && high < low
	return times
}
