package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

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
// strings, and differs for others. Invalid JSON is returned unchanged.
func canonicalJSON(b []byte) string {
	v, err := strict.Parse(b)
	if err != nil {
		return string(b)
	}
	return string(appendCanonical(make([]byte, 0, 2*len(b)), &v))
}

// appendCanonical appends v for [canonicalJSON].
func appendCanonical(out []byte, v *strict.Value) []byte {
	switch v.Type {
	case strict.String:
		return strconv.AppendQuote(out, v.Text)
	case strict.Array:
		out = append(out, '[')
		for i := range v.Items {
			out = append(appendCanonical(out, &v.Items[i]), ',')
		}
		return append(out, ']')
	case strict.Object:
		slices.SortFunc(v.Members, func(a, b strict.Member) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, '{')
		for i := range v.Members {
			out = append(strconv.AppendQuote(out, v.Members[i].Name), ':')
			out = append(appendCanonical(out, &v.Members[i].Value), ',')
		}
		return append(out, '}')
	}
	return append(out, v.Text...)
}

// objectOrNil is b when it is a valid JSON object, as servers require of arguments; otherwise nil.
func objectOrNil(b json.RawMessage) json.RawMessage {
	if v, err := strict.Parse(b); err != nil || v.Type != strict.Object {
		return nil
	}
	return b
}
