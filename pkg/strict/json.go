package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Limits of a document; maxNesting is that of msgpack too.
const (
	maxNesting = 64   // objects and lists inside one another
	maxKeys    = 1024 // of one object
)

// Limits of a document that becomes a tree.
const (
	maxValues       = 20_000
	maxNumberBytes  = 256
	maxExponentSize = 3 // digits; keeps exact arithmetic on a number cheap
)

// DecodeError is why JSON or msgpack was rejected. The sender gets both parts; a log has the reason only, because
// Detail quotes the document, which may hold a secret.
type DecodeError struct{ Reason, Detail string }

// Error implements error. It quotes at most 40 bytes of the document and names no types of Go.
func (e DecodeError) Error() string {
	if e.Detail == "" {
		return e.Reason
	}
	return e.Reason + " " + strconv.Quote(text.OneLine(e.Detail, 40))
}

var errNesting = DecodeError{Reason: fmt.Sprintf("nested deeper than %d levels", maxNesting)}

// syntaxError is the offset of the first byte that is not JSON.
type syntaxError int

func (e syntaxError) Error() string { return fmt.Sprintf("invalid JSON at byte %d", int(e)) }

// Parse reads one JSON value. It rejects a key twice in one object, invalid UTF-8, an unpaired surrogate, anything but
// white space behind the value, empty input and documents beyond the limits above. Keys that differ in case alone are
// for the caller to compare with the names that it knows.
func Parse(raw []byte) (Value, error) {
	p := parser{tree: true}
	return p.parseDocument(raw, nil)
}

// CheckObject rejects data unless it is one JSON object without keys that are equal or differ in case alone, and within
// the limits of a document. Those of a tree do not apply. Invalid UTF-8 and unpaired surrogates count as U+FFFD, as
// which package json decodes them: a message quotes what models and web pages wrote.
func CheckObject(data []byte) error {
	_, err := checkObject(data, nil)
	return err
}

// DecodeJSON decodes the one JSON object in data into the struct that v points to, whose fields must all have a json
// tag. It rejects what [CheckObject] rejects, unknown fields, names in another case and values of another type. A field
// that was renamed is read under its former name too, see [shape]. v may be partly filled when it fails.
func DecodeJSON(data []byte, v any) error {
	data, err := checkObject(data, shapeOf(v))
	if err != nil {
		return err
	}
	return decodeChecked(data, v)
}

// DecodeValue is [DecodeJSON] for any value, a list for example. Of what v keeps as raw JSON only syntax and nesting
// are checked: arguments that a model wrote are for their reader to judge.
func DecodeValue(data []byte, v any) error {
	p := parser{opaque: true}
	if _, err := p.parseDocument(data, shapeOf(v)); err != nil {
		return err
	}
	return decodeChecked(applyEdits(data, p.edits), v)
}

// decodeChecked decodes a document that was compared with the shape of v.
func decodeChecked(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var when *time.ParseError
	switch {
	case errors.As(err, new(*json.UnmarshalTypeError)):
		return ExplainJSON(err)
	case errors.As(err, &when):
		return DecodeError{Reason: "a time is not in RFC 3339"}
	case err != nil:
		return DecodeError{Reason: "not the JSON that is expected here"}
	}
	return nil
}

// DecodeStored decodes JSON that this program stored, perhaps an earlier build of it: fields that were renamed are read
// under their former names, unknown ones are ignored.
func DecodeStored(data []byte, v any) error {
	p := parser{lenient: true}
	if _, err := p.parseDocument(data, shapeOf(v)); err == nil { // otherwise the decoder returns a better error
		data = applyEdits(data, p.edits)
	}
	return json.Unmarshal(data, v)
}

// ExplainJSON returns an error of package json for the sender of a body: a value of a wrong type is named by its field,
// without types of Go and without the value.
func ExplainJSON(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return err
	case wrong.Field == "":
		return DecodeError{Reason: "a value is not " + describeType(wrong.Type)}
	}
	return DecodeError{"not " + describeType(wrong.Type) + ": field", wrong.Field}
}

// describeType names the value that t expects, in an error for the sender: every kind without a name of its own is "a
// number that fits".
func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number that fits"
}

// checkObject is [CheckObject], and rejects keys that s does not allow. Types of values are not checked. It returns
// data with former field names replaced.
func checkObject(data []byte, s *shape) ([]byte, error) {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return nil, DecodeError{Reason: "no JSON object"}
	case trimmed[0] != '{':
		return nil, DecodeError{Reason: "not a JSON object"}
	}
	var p parser
	_, err := p.parseDocument(data, s)
	if errors.As(err, new(syntaxError)) {
		return nil, DecodeError{Reason: "not one valid JSON object"}
	}
	return applyEdits(data, p.edits), err
}

// parser reads a document beside a shape.
type parser struct {
	in      string // one valid JSON value
	at      int    // offset of the next byte
	values  int    // parsed so far
	tree    bool   // values have their items and members; without it only keys and nesting are checked
	lenient bool   // unknown and duplicate keys are accepted
	opaque  bool   // duplicate keys are accepted where there is no shape
	edits   []edit // that replace former field names
}

// parseDocument reads the only value of the document. A nil shape allows every key.
func (p *parser) parseDocument(data []byte, s *shape) (Value, error) {
	if p.tree && !utf8.Valid(data) {
		return Value{}, DecodeError{Reason: "invalid UTF-8"}
	}
	if !json.Valid(data) {
		var wrong *json.SyntaxError
		errors.As(json.Unmarshal(data, new(json.RawMessage)), &wrong)
		return Value{}, syntaxError(max(wrong.Offset-1, 0))
	}
	p.in = string(data)
	return p.parseValue(s, 0)
}

// next skips white space and the marks between values, and returns the byte behind them.
func (p *parser) next() byte {
	for {
		switch c := p.in[p.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			p.at++
		default:
			return c
		}
	}
}

// parseValue reads the next value. depth counts the objects and lists around it. It rejects more than maxValues values
// in a tree and more than maxNesting levels, unless it is lenient.
func (p *parser) parseValue(s *shape, depth int) (Value, error) {
	p.values++
	if p.tree && p.values > maxValues {
		return Value{}, DecodeError{Reason: fmt.Sprintf("more than %d values", maxValues)}
	}
	v := Value{Type: Boolean, Text: "true"}
	switch c := p.next(); {
	case (c == '{' || c == '[') && depth == maxNesting && !p.lenient: // package json has a limit of its own
		return Value{}, errNesting
	case c == '{':
		return p.parseObject(s, depth+1)
	case c == '[':
		return p.parseArray(s, depth+1)
	case c == '"':
		content, err := p.parseString(p.tree)
		return Value{Type: String, Text: content}, err
	case c == 'f':
		v.Text = "false"
	case c == 'n':
		v = Value{Type: Null, Text: "null"}
	case c != 't':
		return p.parseNumber()
	}
	p.at += len(v.Text)
	return v, nil
}

// parseObject reads the object whose brace is at p.at. It rejects keys that the shape does not allow, equal keys,
// compared after unescaping, and more than maxKeys of them.
func (p *parser) parseObject(s *shape, depth int) (Value, error) {
	v, start := Value{Type: Object}, p.at
	var keys keySet
	for p.at++; p.next() != '}'; {
		from := p.at
		key, err := p.parseString(true)
		if err != nil {
			return Value{}, err
		}
		member, known := s.member(key)
		if member.renamed != "" {
			key = member.renamed
			p.edits = append(p.edits, edit{from, p.at, []byte(`"` + key + `"`)})
		}
		if !p.lenient && (!p.opaque || s != nil) {
			same := key
			if !p.tree { // some readers take keys that differ in case alone for one key, others for two
				same = foldKey(key)
			}
			switch {
			case !known:
				return Value{}, DecodeError{"unknown field", key}
			case !keys.add(same):
				return Value{}, DecodeError{"duplicate key", key}
			case keys.n > maxKeys:
				return Value{}, DecodeError{Reason: fmt.Sprintf("more than %d keys in one object", maxKeys)}
			}
		}
		inner, err := p.parseValue(member.shape, depth)
		if err != nil {
			return Value{}, err
		}
		if p.tree {
			v.Members = append(v.Members, Member{key, inner})
		}
	}
	p.at++
	v.Text = p.in[start:p.at]
	return v, nil
}

// keySet is a set of keys of an object. The first ones are in a list, which needs no allocation, the others in a map,
// so that a document with many keys costs no more per key. The zero value is empty.
type keySet struct {
	first [16]string
	more  map[string]struct{}
	n     int
}

// add adds a key. It reports false for one that the set has.
func (s *keySet) add(key string) bool {
	_, known := s.more[key]
	if known || slices.Contains(s.first[:min(s.n, len(s.first))], key) {
		return false
	}
	switch {
	case s.n < len(s.first):
		s.first[s.n] = key
	case s.more == nil:
		s.more = map[string]struct{}{key: {}}
	default:
		s.more[key] = struct{}{}
	}
	s.n++
	return true
}

// foldKey returns the same text for keys that differ in case alone. Most keys are lower-case ASCII and not copied.
func foldKey(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return r >= utf8.RuneSelf || r >= 'A' && r <= 'Z' }) {
		return strings.ToLower(strings.ToUpper(key))
	}
	return key
}

// parseArray reads the array whose bracket is at p.at.
func (p *parser) parseArray(s *shape, depth int) (Value, error) {
	v, start := Value{Type: Array}, p.at
	for p.at++; p.next() != ']'; {
		inner, err := p.parseValue(s.element(), depth)
		if err != nil {
			return Value{}, err
		}
		if p.tree {
			v.Items = append(v.Items, inner)
		}
	}
	p.at++
	v.Text = p.in[start:p.at]
	return v, nil
}

// paired matches a string in which every surrogate has its pair.
var paired = text.Pattern(`^(?:[^\\]|\\[^u]|\\u(?:[^dD]...|[dD][0-7]..|[dD][89abAB]..\\u[dD][c-fC-F]..))*$`)

// parseString reads the string whose quote is at p.at. A string without escapes is not copied, one with escapes is
// returned only with keep. It rejects an unpaired surrogate in a tree.
func (p *parser) parseString(keep bool) (string, error) {
	start, escaped := p.at, false
	for p.at++; p.in[p.at] != '"'; p.at++ {
		if p.in[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	s := p.in[start+1 : p.at-1]
	switch {
	case !escaped:
		return s, nil
	case p.tree && (strings.Contains(s, `\ud`) || strings.Contains(s, `\uD`)) && !paired().MatchString(s):
		return "", DecodeError{Reason: "unpaired surrogate in a string"}
	case !keep:
		return "", nil
	}
	var content string // apart from s, which would be on the heap
	err := json.Unmarshal([]byte(p.in[start:p.at]), &content)
	return content, err
}

// parseNumber reads the number at p.at as an Integer when it has no fraction in value, otherwise as a Number. In a tree
// it rejects exponents of more than maxExponentSize digits and numbers over maxNumberBytes.
func (p *parser) parseNumber() (Value, error) {
	start := p.at
	for p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] > ',' && p.in[p.at] != ']' && p.in[p.at] != '}') {
		p.at++
	}
	v := Value{Type: Integer, Text: p.in[start:p.at]}
	if !p.tree {
		return v, nil
	}
	mantissa, exponent, isScientific := strings.Cut(strings.ToLower(v.Text), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	switch {
	case len(strings.TrimLeft(exponent, "+-")) > maxExponentSize:
		return Value{}, DecodeError{Reason: fmt.Sprintf("number with an exponent of more than %d digits",
			maxExponentSize)}
	case len(v.Text) > maxNumberBytes:
		return Value{}, DecodeError{Reason: fmt.Sprintf("number longer than %d bytes", maxNumberBytes)}
	case isScientific && !v.Rat().IsInt(), !isScientific && strings.Trim(fraction, "0") != "":
		v.Type = Number
	}
	return v, nil
}
