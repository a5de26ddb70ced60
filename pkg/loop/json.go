package loop

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
)

// maxDepth is how deep a JSON value in a reply may nest to be read as a call. Models do not nest deeply; an attack
// might.
const maxDepth = 64

// skipSpace is the first index from i on that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// valueScanner finds the end of a JSON object, array or string that comes in pieces, and looks at each byte once. It
// looks only at brackets and quotes: the caller checks whether the value is valid.
type valueScanner struct {
	pos      int // next byte to look at
	depth    int
	inString bool
	escaped  bool // after a backslash
	tooDeep  bool // the depth exceeded maxDepth
	done     bool
}

// findEnd is the index after the value, and whether it has been reached; if not, it is called again with more bytes. b
// must begin with the bytes of earlier calls. Nesting beyond maxDepth does not stop it but sets tooDeep.
func (w *valueScanner) findEnd(b []byte) (end int, done bool) {
	for ; !w.done && w.pos < len(b); w.pos++ {
		c := b[w.pos]
		switch {
		case w.escaped:
			w.escaped = false
		case w.inString && c == '\\':
			w.escaped = true
		case c == '"':
			w.inString = !w.inString
			w.done = w.depth == 0 && !w.inString
		case w.inString:
		case c == '{' || c == '[':
			w.depth++
			w.tooDeep = w.tooDeep || w.depth > maxDepth
		case c == '}' || c == ']':
			w.depth--
			w.done = w.depth <= 0
		}
	}
	return w.pos, w.done
}

// parseLenient parses b, repaired if it is not valid JSON and [repairJSON] can. Valid JSON that [jsonschema.Parse]
// rejects, such as an object with a key twice, is not repaired. The error is that of jsonschema.Parse.
func parseLenient(b []byte) (jsonschema.Value, error) {
	if !json.Valid(b) {
		if repaired := repairJSON(b); repaired != nil {
			b = repaired
		}
	}
	return jsonschema.Parse(b)
}

// encodeValue is v as JSON.
func encodeValue(v *jsonschema.Value) []byte {
	if v.Type == jsonschema.String {
		return encodeJSON(v.Text)
	}
	return []byte(v.Text)
}

// newObject is an object with these members in their order; its Text is their JSON. A name twice is not rejected.
func newObject(members []jsonschema.Member) jsonschema.Value {
	out := []byte{'{'}
	for i := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, encodeJSON(members[i].Name)...), ':')
		out = append(out, encodeValue(&members[i].Value)...)
	}
	return jsonschema.Value{Type: jsonschema.Object, Members: members, Text: string(append(out, '}'))}
}

// newArray is an array with these elements; its Text is their JSON.
func newArray(items []jsonschema.Value) jsonschema.Value {
	out := []byte{'['}
	for i := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, encodeValue(&items[i])...)
	}
	return jsonschema.Value{Type: jsonschema.Array, Items: items, Text: string(append(out, ']'))}
}

// newString is a JSON string.
func newString(s string) jsonschema.Value { return jsonschema.Value{Type: jsonschema.String, Text: s} }

// encodeJSON is v, which must be encodable, as JSON without escapes for HTML.
func encodeJSON(v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimRight(out.Bytes(), "\n")
}

// canonicalJSON is equal for JSON values that differ only in white space, the order of keys, and the notation of
// strings and numbers. Numbers of 2^53 and more are compared as they are written. Invalid JSON is returned unchanged.
func canonicalJSON(b []byte) string {
	v, err := jsonschema.Parse(b)
	if err != nil {
		return string(b)
	}
	return canonicalValue(&v)
}

// canonicalValue is canonicalJSON of a parsed value.
func canonicalValue(v *jsonschema.Value) string {
	var parts []string
	switch v.Type {
	case jsonschema.Object:
		for i := range v.Members {
			parts = append(parts, string(encodeJSON(v.Members[i].Name))+":"+canonicalValue(&v.Members[i].Value))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ",") + "}"
	case jsonschema.Array:
		for i := range v.Items {
			parts = append(parts, canonicalValue(&v.Items[i]))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case jsonschema.Integer, jsonschema.Number:
		if f, err := json.Number(v.Text).Float64(); err == nil && math.Abs(f) < 1<<53 {
			b, _ := json.Marshal(f + 0) // -0 becomes 0
			return string(b)
		}
	}
	return string(encodeValue(v))
}

// repairJSON repairs JSON with control characters such as line breaks inside strings, a comma too many, or brackets
// left open at the end. It never closes a string, because the rest of it is unknown. nil = not repairable: an open
// string, brackets that do not match, more than maxDepth of them open, or still invalid.
func repairJSON(b []byte) []byte {
	out := make([]byte, 0, len(b)+8)
	var open []byte // closing brackets that are due
	inString, escaped := false, false
	for _, c := range b {
		switch {
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case inString && c < 0x20:
			q := encodeJSON(string(rune(c)))
			out = append(out, q[1:len(q)-1]...)
			continue
		case inString:
		case c == '{' || c == '[':
			open = append(open, c+2) // '{'+2 is '}', '['+2 is ']'
		case c == '}' || c == ']':
			if len(open) == 0 || open[len(open)-1] != c {
				return nil
			}
			open = open[:len(open)-1]
			out = trimComma(out)
		}
		out = append(out, c)
	}
	if inString || len(open) > maxDepth {
		return nil
	}
	for _, c := range slices.Backward(open) {
		out = append(trimComma(out), c)
	}
	if !json.Valid(out) {
		return nil
	}
	return out
}

// trimComma is b without a comma at its end and the white space behind it; without such a comma b is unchanged.
func trimComma(b []byte) []byte {
	t := bytes.TrimRight(b, " \n\t\r")
	if len(t) > 0 && t[len(t)-1] == ',' {
		return t[:len(t)-1]
	}
	return b
}
