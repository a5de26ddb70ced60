package loop

import (
	"bytes"
	"encoding/json"

	"conclave/pkg/jsonschema"
)

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

// canonicalJSON is equal for JSON values that differ only in white space, the order of keys and the notation of
// strings. Invalid JSON is returned unchanged.
func canonicalJSON(b []byte) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return string(b)
	}
	return string(encodeJSON(v))
}

// objectOrNil is b when it is a valid JSON object, as servers require of arguments; otherwise nil.
func objectOrNil(b json.RawMessage) json.RawMessage {
	if v, err := jsonschema.Parse(b); err != nil || v.Type != jsonschema.Object {
		return nil
	}
	return b
}
