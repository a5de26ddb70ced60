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
	"unicode/utf16"
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
	p := parser{in: string(raw), tree: true}
	return p.parseDocument(nil)
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
	p := parser{in: string(data), opaque: true}
	if _, err := p.parseDocument(shapeOf(v)); err != nil {
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
	p := parser{in: string(data), lenient: true}
	if _, err := p.parseDocument(shapeOf(v)); err == nil { // otherwise the decoder returns a better error
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
	p := parser{in: string(data)}
	_, err := p.parseDocument(s)
	if errors.As(err, new(syntaxError)) {
		return nil, DecodeError{Reason: "not one valid JSON object"}
	}
	return applyEdits(data, p.edits), err
}

// parser reads a document beside a shape.
type parser struct {
	in      string
	at      int    // offset of the next byte
	values  int    // parsed so far
	tree    bool   // values have their items and members; without it only keys and nesting are checked
	lenient bool   // unknown and duplicate keys are accepted
	opaque  bool   // duplicate keys are accepted where there is no shape
	edits   []edit // that replace former field names
}

func (p *parser) syntaxError() error { return syntaxError(p.at) }

// parseDocument reads the only value of the document. A nil shape allows every key.
func (p *parser) parseDocument(s *shape) (Value, error) {
	if p.tree && !utf8.ValidString(p.in) {
		return Value{}, DecodeError{Reason: "invalid UTF-8"}
	}
	v, err := p.parseValue(s, 0)
	if err != nil {
		return Value{}, err
	}
	p.skipSpace()
	if p.at < len(p.in) {
		return Value{}, p.syntaxError()
	}
	return v, nil
}

// skipSpace moves to the next byte that is no JSON white space, or to the end.
func (p *parser) skipSpace() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// consume skips white space, then c if it is next.
func (p *parser) consume(c byte) bool {
	p.skipSpace()
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

// parseValue skips white space and reads one value. depth counts the objects and lists around it. It rejects more than
// maxValues values in a tree and more than maxNesting levels, unless it is lenient.
func (p *parser) parseValue(s *shape, depth int) (Value, error) {
	p.values++
	if p.tree && p.values > maxValues {
		return Value{}, DecodeError{Reason: fmt.Sprintf("more than %d values", maxValues)}
	}
	p.skipSpace()
	if p.at >= len(p.in) {
		return Value{}, p.syntaxError()
	}
	switch c := p.in[p.at]; {
	case (c == '{' || c == '[') && depth == maxNesting && !p.lenient: // package json has a limit of its own
		return Value{}, errNesting
	case c == '{':
		return p.parseObject(s, depth+1)
	case c == '[':
		return p.parseArray(s, depth+1)
	case c == '"':
		content, err := p.parseString(p.tree)
		return Value{Type: String, Text: content}, err
	case c == '-' || isDigit(c):
		return p.parseNumber()
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(p.in[p.at:], word) {
			p.at += len(word)
			if word == "null" {
				return Value{Type: Null, Text: word}, nil
			}
			return Value{Type: Boolean, Text: word}, nil
		}
	}
	return Value{}, p.syntaxError()
}

// parseObject reads the object whose brace is at p.at. It rejects keys that the shape does not allow, equal keys,
// compared after unescaping, and more than maxKeys of them.
func (p *parser) parseObject(s *shape, depth int) (Value, error) {
	v, start := Value{Type: Object}, p.at
	p.at++
	if p.consume('}') {
		v.Text = p.in[start:p.at]
		return v, nil
	}
	var keys keySet
	for {
		p.skipSpace()
		if p.at >= len(p.in) || p.in[p.at] != '"' {
			return Value{}, p.syntaxError()
		}
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
		if !p.consume(':') {
			return Value{}, p.syntaxError()
		}
		inner, err := p.parseValue(member.shape, depth)
		if err != nil {
			return Value{}, err
		}
		if p.tree {
			v.Members = append(v.Members, Member{key, inner})
		}
		if p.consume('}') {
			v.Text = p.in[start:p.at]
			return v, nil
		}
		if !p.consume(',') {
			return Value{}, p.syntaxError()
		}
	}
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

// parseArray reads the array whose bracket is at p.at. It rejects a comma before the end.
func (p *parser) parseArray(s *shape, depth int) (Value, error) {
	v, start := Value{Type: Array}, p.at
	p.at++
	if p.consume(']') {
		v.Text = p.in[start:p.at]
		return v, nil
	}
	for {
		inner, err := p.parseValue(s.element(), depth)
		if err != nil {
			return Value{}, err
		}
		if p.tree {
			v.Items = append(v.Items, inner)
		}
		if p.consume(']') {
			v.Text = p.in[start:p.at]
			return v, nil
		}
		if !p.consume(',') {
			return Value{}, p.syntaxError()
		}
	}
}

// parseString reads the string whose quote is at p.at. It rejects control characters. A string without escapes is not
// copied, one with escapes is returned only with keep.
func (p *parser) parseString(keep bool) (string, error) {
	start := p.at + 1
	for i := start; i < len(p.in); i++ {
		switch c := p.in[i]; {
		case c == '"':
			p.at = i + 1
			return p.in[start:i], nil
		case c == '\\':
			return p.parseEscapedString(start, i, keep)
		case c < ' ':
			p.at = i
			return "", p.syntaxError()
		}
	}
	return "", p.syntaxError()
}

// parseEscapedString reads the string whose content begins at start and has its first escape at i; see parseString.
func (p *parser) parseEscapedString(start, i int, keep bool) (string, error) {
	var out []byte
	for ; i < len(p.in); i++ {
		switch c := p.in[i]; {
		case c == '"':
			p.at = i + 1
			if !keep {
				return "", nil
			}
			return string(append(out, p.in[start:i]...)), nil
		case c < ' ':
			p.at = i
			return "", p.syntaxError()
		case c != '\\':
			continue
		}
		char, size, err := p.parseEscape(i)
		if err != nil {
			return "", err
		}
		if keep {
			out = utf8.AppendRune(append(out, p.in[start:i]...), char)
		}
		i += size - 1
		start = i + 1
	}
	p.at = len(p.in)
	return "", p.syntaxError()
}

// escapeLetters are the one-letter escapes, escapeValues the bytes they stand for.
const escapeLetters, escapeValues = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// parseEscape reads the escape whose backslash is at i, and returns its character and size in bytes. It rejects unknown
// escapes and, in a tree, unpaired surrogates.
func (p *parser) parseEscape(i int) (char rune, size int, err error) {
	if i+1 < len(p.in) {
		if n := strings.IndexByte(escapeLetters, p.in[i+1]); n >= 0 {
			return rune(escapeValues[n]), 2, nil
		}
	}
	char, ok := p.hexEscape(i + 1)
	if !ok {
		p.at = i + 1
		return 0, 0, p.syntaxError()
	}
	if !utf16.IsSurrogate(char) {
		return char, 6, nil
	}
	low, ok := p.hexEscape(i + 7)
	pair := utf16.DecodeRune(char, low)
	switch {
	case ok && p.in[i+6] == '\\' && pair != utf8.RuneError:
		return pair, 12, nil
	case p.tree:
		return 0, 0, DecodeError{Reason: "unpaired surrogate in a string"}
	}
	return utf8.RuneError, 6, nil
}

// hexEscape reads the four digits behind the u at i.
func (p *parser) hexEscape(i int) (char rune, ok bool) {
	if i+4 >= len(p.in) || p.in[i] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(p.in[i+1:i+5], 16, 16)
	return rune(n), err == nil
}

// parseNumber reads the number at p.at as an Integer when it has no fraction in value, otherwise as a Number. It
// rejects leading zeros and, in a tree, exponents of more than maxExponentSize digits and numbers over maxNumberBytes.
func (p *parser) parseNumber() (Value, error) {
	start := p.at
	skipDigits := func() int {
		from := p.at
		for p.at < len(p.in) && isDigit(p.in[p.at]) {
			p.at++
		}
		return p.at - from
	}
	if p.in[p.at] == '-' {
		p.at++
	}
	zero := p.at < len(p.in) && p.in[p.at] == '0'
	if n := skipDigits(); n == 0 || zero && n > 1 {
		return Value{}, p.syntaxError()
	}
	whole, exponent := true, false
	if p.at < len(p.in) && p.in[p.at] == '.' {
		p.at++
		n := skipDigits()
		if n == 0 {
			return Value{}, p.syntaxError()
		}
		whole = strings.Trim(p.in[p.at-n:p.at], "0") == ""
	}
	if p.at < len(p.in) && p.in[p.at]|0x20 == 'e' {
		exponent = true
		p.at++
		if p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		switch n := skipDigits(); {
		case n == 0:
			return Value{}, p.syntaxError()
		case p.tree && n > maxExponentSize:
			return Value{}, DecodeError{Reason: fmt.Sprintf("number with an exponent of more than %d digits",
				maxExponentSize)}
		}
	}
	if p.tree && p.at-start > maxNumberBytes {
		return Value{}, DecodeError{Reason: fmt.Sprintf("number longer than %d bytes", maxNumberBytes)}
	}
	v := Value{Type: Integer, Text: p.in[start:p.at]}
	if exponent && p.tree {
		whole = v.Rat().IsInt()
	}
	if !whole {
		v.Type = Number
	}
	return v, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
