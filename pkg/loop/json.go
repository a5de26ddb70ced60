package loop

import (
	"bytes"
	"encoding/json"

	"conclave/pkg/strict"
)

// encodeValue is v as JSON.
func encodeValue(v *strict.Value) []byte {
	if v.Type == strict.String {
		return encodeJSON(v.Text)
	}
	return []byte(v.Text)
}

// newObject is an object with these members in their order; its Text is their JSON. A name twice is not rejected.
func newObject(members []strict.Member) strict.Value {
	out := []byte{'{'}
	for i := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, encodeJSON(members[i].Name)...), ':')
		out = append(out, encodeValue(&members[i].Value)...)
	}
	return strict.Value{Type: strict.Object, Members: members, Text: string(append(out, '}'))}
}

// newArray is an array with these elements; its Text is their JSON.
func newArray(items []strict.Value) strict.Value {
	out := []byte{'['}
	for i := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, encodeValue(&items[i])...)
	}
	return strict.Value{Type: strict.Array, Items: items, Text: string(append(out, ']'))}
}

// newString is a JSON string.
func newString(s string) strict.Value { return strict.Value{Type: strict.String, Text: s} }

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
	if v, err := strict.Parse(b); err != nil || v.Type != strict.Object {
		return nil
	}
	return b
}
