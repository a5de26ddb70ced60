package jsonschema

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Limits of a document that [Parse] accepts, arguments and schemas alike.
const (
	maxNesting      = 64
	maxValues       = 20_000
	maxNumberBytes  = 256
	maxExponentSize = 3 // digits; keeps exact arithmetic on a number cheap
)

// Types is a set of JSON types.
type Types uint8

// The JSON types. A number without a fraction is an Integer, however it is written (3, 3.0, 3e0).
const (
	Null Types = 1 << iota
	Boolean
	Integer
	Number
	String
	Array
	Object
)

// typeNames holds the names that schemas give to types. "number" includes integers.
var typeNames = []struct {
	name  string
	types Types
}{
	{"string", String},
	{"number", Number | Integer},
	{"integer", Integer},
	{"boolean", Boolean},
	{"array", Array},
	{"object", Object},
	{"null", Null},
}

// String returns the names of the types, joined by "or"; "" for none. A value with a fraction is a number.
func (t Types) String() string {
	var names []string
	for _, n := range typeNames {
		if t&n.types == n.types {
			names = append(names, n.name)
			t &^= n.types
		}
	}
	if t == Number { // a single value with a fraction
		names = append(names, "number")
	}
	return strings.Join(names, " or ")
}

// Value is a parsed JSON value. Numbers keep every digit.
type Value struct {
	Type    Types  // exactly one bit
	Text    string // the decoded content of a string; any other value as it is written
	Items   []Value
	Members []Member // in the order of the document; names are unique
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// Member returns the member with that exact name, nil when there is none.
func (v *Value) Member(name string) *Value {
	for i := range v.Members {
		if v.Members[i].Name == name {
			return &v.Members[i].Value
		}
	}
	return nil
}

// Strings returns the content of a string, or of an array of strings, which may be empty. ok is false for every other
// value.
func (v *Value) Strings() (out []string, ok bool) {
	if v.Type == String {
		return []string{v.Text}, true
	}
	if v.Type != Array || slices.ContainsFunc(v.Items, func(i Value) bool { return i.Type != String }) {
		return nil, false
	}
	for _, i := range v.Items {
		out = append(out, i.Text)
	}
	return out, true
}

// isNumber reports whether v is an integer or a number with a fraction.
func (v *Value) isNumber() bool { return v.Type&(Integer|Number) != 0 }

// rat returns the exact value of a number.
func (v *Value) rat() *big.Rat {
	r, _ := new(big.Rat).SetString(v.Text)
	return r
}

// compareNumbers returns -1, 0 or 1 as the number a is below, equal to or above the number b, without rounding. Both
// must be numbers.
func compareNumbers(a, b *Value) int {
	if x, ok := a.shortFloat(); ok {
		if y, ok := b.shortFloat(); ok {
			return cmp.Compare(x, y)
		}
	}
	return a.rat().Cmp(b.rat())
}

// compareCost is the work of comparing v with a bound, in steps: exact arithmetic on long numbers costs hundreds of
// times as much as floats.
func (v *Value) compareCost() int {
	if _, ok := v.shortFloat(); ok {
		return 1
	}
	return 64
}

// shortFloat returns the value of a number of at most 15 bytes and no exponent; ok is false for others. Such numbers
// compare as floats exactly as they compare as decimals, because no two of them round to the same float.
func (v *Value) shortFloat() (f float64, ok bool) {
	if len(v.Text) > 15 || strings.ContainsAny(v.Text, "eE") {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.Text, 64)
	return f, err == nil
}

// Parse reads one JSON value and rejects every document that two readers could understand differently: a key twice in
// one object, invalid UTF-8, an unpaired surrogate, anything but white space behind the value. It also rejects empty
// input and documents beyond the limits of nesting, number of values and size of a number. Errors quote at most a
// clipped key of the input.
func Parse(raw []byte) (Value, error) {
	if !utf8.Valid(raw) {
		return Value{}, errors.New("invalid UTF-8")
	}
	p := parser{in: string(raw)}
	v, err := p.parseValue(0)
	if err != nil {
		return Value{}, err
	}
	if p.skipSpace(); p.at < len(p.in) {
		return Value{}, p.syntaxError()
	}
	return v, nil
}

// parser reads valid UTF-8 from in.
type parser struct {
	in     string
	at     int // offset of the next byte
	values int // parsed so far
}

func (p *parser) syntaxError() error { return fmt.Errorf("invalid JSON at byte %d", p.at) }

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
	if p.skipSpace(); p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

// parseValue skips white space and reads one value. depth counts the values around it. It rejects more than maxValues
// values in the document and more than maxNesting levels.
func (p *parser) parseValue(depth int) (Value, error) {
	if p.values++; p.values > maxValues {
		return Value{}, fmt.Errorf("more than %d values", maxValues)
	}
	if depth > maxNesting {
		return Value{}, fmt.Errorf("nested deeper than %d levels", maxNesting)
	}
	p.skipSpace()
	if p.at >= len(p.in) {
		return Value{}, p.syntaxError()
	}
	switch c := p.in[p.at]; {
	case c == '{':
		return p.parseObject(depth)
	case c == '[':
		return p.parseArray(depth)
	case c == '"':
		s, err := p.parseString()
		return Value{Type: String, Text: s}, err
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

// parseObject reads the object whose brace is at p.at. It rejects a key that is there twice, compared after unescaping.
func (p *parser) parseObject(depth int) (Value, error) {
	v, start := Value{Type: Object}, p.at
	p.at++
	if p.consume('}') {
		v.Text = p.in[start:p.at]
		return v, nil
	}
	var seen map[string]bool // of objects with many members, where a linear search would be slow
	for {
		if p.skipSpace(); p.at >= len(p.in) || p.in[p.at] != '"' {
			return Value{}, p.syntaxError()
		}
		name, err := p.parseString()
		if err != nil {
			return Value{}, err
		}
		if seen == nil && len(v.Members) == 32 {
			seen = map[string]bool{}
			for _, m := range v.Members {
				seen[m.Name] = true
			}
		}
		if seen[name] || seen == nil && v.Member(name) != nil {
			return Value{}, fmt.Errorf("duplicate key %q", text.OneLine(name, 40))
		}
		if seen != nil {
			seen[name] = true
		}
		if !p.consume(':') {
			return Value{}, p.syntaxError()
		}
		inner, err := p.parseValue(depth + 1)
		if err != nil {
			return Value{}, err
		}
		v.Members = append(v.Members, Member{name, inner})
		if p.consume('}') {
			v.Text = p.in[start:p.at]
			return v, nil
		}
		if !p.consume(',') {
			return Value{}, p.syntaxError()
		}
	}
}

// parseArray reads the array whose bracket is at p.at. It rejects a comma before the end.
func (p *parser) parseArray(depth int) (Value, error) {
	v, start := Value{Type: Array}, p.at
	p.at++
	if p.consume(']') {
		v.Text = p.in[start:p.at]
		return v, nil
	}
	for {
		inner, err := p.parseValue(depth + 1)
		if err != nil {
			return Value{}, err
		}
		v.Items = append(v.Items, inner)
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
// copied.
func (p *parser) parseString() (string, error) {
	start := p.at + 1
	for i := start; i < len(p.in); i++ {
		switch c := p.in[i]; {
		case c == '"':
			p.at = i + 1
			return p.in[start:i], nil
		case c == '\\':
			return p.parseEscapedString(start, i)
		case c < ' ':
			p.at = i
			return "", p.syntaxError()
		}
	}
	return "", p.syntaxError()
}

// escapeLetters are the one-letter escapes, escapeValues the bytes they stand for.
const escapeLetters, escapeValues = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// parseEscapedString reads the string whose content begins at start and has its first escape at i. It rejects unknown
// escapes and unpaired surrogates.
func (p *parser) parseEscapedString(start, i int) (string, error) {
	out := append(make([]byte, 0, 64), p.in[start:i]...)
	for ; i < len(p.in); i++ {
		c := p.in[i]
		switch {
		case c == '"':
			p.at = i + 1
			return string(out), nil
		case c < ' ':
			p.at = i
			return "", p.syntaxError()
		case c != '\\':
			out = append(out, c)
			continue
		}
		if i++; i >= len(p.in) {
			break
		}
		if n := strings.IndexByte(escapeLetters, p.in[i]); n >= 0 {
			out = append(out, escapeValues[n])
			continue
		}
		char, ok := p.hexEscape(i)
		if !ok {
			p.at = i
			return "", p.syntaxError()
		}
		i += 4
		if utf16.IsSurrogate(char) {
			low, ok := p.hexEscape(i + 2)
			pair := utf16.DecodeRune(char, low)
			if !ok || p.in[i+1] != '\\' || pair == utf8.RuneError {
				return "", errors.New("unpaired surrogate in a string")
			}
			char, i = pair, i+6
		}
		out = utf8.AppendRune(out, char)
	}
	p.at = len(p.in)
	return "", p.syntaxError()
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
// rejects leading zeros, exponents of more than maxExponentSize digits, and numbers over maxNumberBytes.
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
		if p.at++; p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		switch n := skipDigits(); {
		case n == 0:
			return Value{}, p.syntaxError()
		case n > maxExponentSize:
			return Value{}, fmt.Errorf("number with an exponent of more than %d digits", maxExponentSize)
		}
	}
	if p.at-start > maxNumberBytes {
		return Value{}, fmt.Errorf("number longer than %d bytes", maxNumberBytes)
	}
	v := Value{Type: Integer, Text: p.in[start:p.at]}
	if exponent {
		whole = v.rat().IsInt()
	}
	if !whole {
		v.Type = Number
	}
	return v, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
