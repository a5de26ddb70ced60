package policy

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Bounds of what is read as arguments or as a schema. Models need far less; an attack would like more.
const (
	maxJSONDepth  = 64
	maxJSONValues = 20_000
	maxNumber     = 256 // bytes of one number
)

// jsonKind is a set of kinds of JSON values, because a schema may allow several.
type jsonKind uint8

const (
	jsonNull jsonKind = 1 << iota
	jsonBool
	jsonInteger // a number without a fraction, however it is written
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

// jsonNames are what schemas call the kinds. An integer is a number too.
var jsonNames = []struct {
	name string
	kind jsonKind
}{
	{"string", jsonString},
	{"number", jsonNumber | jsonInteger},
	{"integer", jsonInteger},
	{"boolean", jsonBool},
	{"array", jsonArray},
	{"object", jsonObject},
	{"null", jsonNull},
}

// String is what a person calls the kinds.
func (k jsonKind) String() string {
	var names []string
	for _, n := range jsonNames {
		if k&n.kind == n.kind {
			names = append(names, n.name)
			k &^= n.kind
		}
	}
	return strings.Join(names, " or ")
}

// value is a JSON value as it was written: numbers keep every digit.
type value struct {
	kind    jsonKind // one bit
	text    string   // what a string holds, or a number or boolean as written
	items   []value
	members []member
}

type member struct {
	key   string
	value value
}

// at is the member of that name, nil when there is none.
func (v *value) at(key string) *value {
	for i := range v.members {
		if v.members[i].key == key {
			return &v.members[i].value
		}
	}
	return nil
}

// readJSON reads one JSON value more strictly than most readers: what two of them could read differently is an error.
// That is a key twice in one object, bytes that are no UTF-8, half of a surrogate pair, a number beyond all use. The
// error repeats at most a clipped key of what was read.
func readJSON(raw []byte) (value, error) {
	if !utf8.Valid(raw) {
		return value{}, errors.New("it holds bytes that are no UTF-8")
	}
	r := jsonReader{in: string(raw)}
	v, err := r.value(0)
	if err != nil {
		return value{}, err
	}
	if r.blanks(); r.at < len(r.in) {
		return value{}, r.broken()
	}
	return v, nil
}

type jsonReader struct {
	in   string
	at   int
	read int // values so far
}

func (r *jsonReader) broken() error { return fmt.Errorf("it is not JSON from byte %d on", r.at) }

func (r *jsonReader) blanks() {
	for r.at < len(r.in) && strings.IndexByte(" \t\r\n", r.in[r.at]) >= 0 {
		r.at++
	}
}

// next skips blanks and takes c if it is there.
func (r *jsonReader) next(c byte) bool {
	if r.blanks(); r.at < len(r.in) && r.in[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *jsonReader) value(depth int) (value, error) {
	if r.read++; r.read > maxJSONValues {
		return value{}, fmt.Errorf("it has more than %d values", maxJSONValues)
	}
	if depth > maxJSONDepth {
		return value{}, fmt.Errorf("it nests deeper than %d", maxJSONDepth)
	}
	r.blanks()
	if r.at >= len(r.in) {
		return value{}, r.broken()
	}
	switch c := r.in[r.at]; {
	case c == '{':
		return r.object(depth)
	case c == '[':
		return r.array(depth)
	case c == '"':
		s, err := r.string()
		return value{kind: jsonString, text: s}, err
	case c == '-' || isDigit(c):
		return r.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(r.in[r.at:], word) {
			r.at += len(word)
			kind := jsonBool
			if word == "null" {
				kind = jsonNull
			}
			return value{kind: kind, text: word}, nil
		}
	}
	return value{}, r.broken()
}

func (r *jsonReader) object(depth int) (value, error) {
	v := value{kind: jsonObject}
	r.at++
	if r.next('}') {
		return v, nil
	}
	var seen map[string]bool // only for objects that are large
	for {
		if r.blanks(); r.at >= len(r.in) || r.in[r.at] != '"' {
			return value{}, r.broken()
		}
		key, err := r.string()
		if err != nil {
			return value{}, err
		}
		if seen == nil && len(v.members) == 32 {
			seen = map[string]bool{}
			for _, m := range v.members {
				seen[m.key] = true
			}
		}
		if seen[key] || seen == nil && v.at(key) != nil {
			return value{}, fmt.Errorf("the key %q is there twice", text.OneLine(key, 40))
		}
		if seen != nil {
			seen[key] = true
		}
		if !r.next(':') {
			return value{}, r.broken()
		}
		inner, err := r.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.members = append(v.members, member{key, inner})
		if r.next('}') {
			return v, nil
		}
		if !r.next(',') {
			return value{}, r.broken()
		}
	}
}

func (r *jsonReader) array(depth int) (value, error) {
	v := value{kind: jsonArray}
	r.at++
	if r.next(']') {
		return v, nil
	}
	for {
		inner, err := r.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, inner)
		if r.next(']') {
			return v, nil
		}
		if !r.next(',') {
			return value{}, r.broken()
		}
	}
}

// string reads a string that begins at r.at. One without escapes is not copied.
func (r *jsonReader) string() (string, error) {
	start := r.at + 1
	for i := start; i < len(r.in); i++ {
		switch c := r.in[i]; {
		case c == '"':
			r.at = i + 1
			return r.in[start:i], nil
		case c == '\\':
			return r.escaped(start, i)
		case c < ' ':
			r.at = i
			return "", r.broken()
		}
	}
	return "", r.broken()
}

// escapes are the short ones and what they stand for.
const escapes, meant = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// escaped reads a string that began at start and has its first escape at i.
func (r *jsonReader) escaped(start, i int) (string, error) {
	out := append(make([]byte, 0, 64), r.in[start:i]...)
	for ; i < len(r.in); i++ {
		c := r.in[i]
		switch {
		case c == '"':
			r.at = i + 1
			return string(out), nil
		case c < ' ':
			r.at = i
			return "", r.broken()
		case c != '\\':
			out = append(out, c)
			continue
		}
		if i++; i >= len(r.in) {
			break
		}
		if n := strings.IndexByte(escapes, r.in[i]); n >= 0 {
			out = append(out, meant[n])
			continue
		}
		char, ok := r.hex(i)
		if !ok {
			r.at = i
			return "", r.broken()
		}
		i += 4
		if utf16.IsSurrogate(char) {
			low, ok := r.hex(i + 2)
			pair := utf16.DecodeRune(char, low)
			if !ok || r.in[i+1] != '\\' || pair == utf8.RuneError {
				return "", errors.New("it holds half of a surrogate pair, which readers take in different ways")
			}
			char, i = pair, i+6
		}
		out = utf8.AppendRune(out, char)
	}
	r.at = len(r.in)
	return "", r.broken()
}

// hex reads the four digits behind the u at i.
func (r *jsonReader) hex(i int) (char rune, ok bool) {
	if i+4 >= len(r.in) || r.in[i] != 'u' {
		return 0, false
	}
	for _, c := range []byte(r.in[i+1 : i+5]) {
		n := strings.IndexByte("0123456789abcdefABCDEF", c)
		if n < 0 {
			return 0, false
		}
		if n > 15 {
			n -= 6
		}
		char = char<<4 | rune(n)
	}
	return char, true
}

func (r *jsonReader) number() (value, error) {
	start := r.at
	digits := func() int {
		from := r.at
		for r.at < len(r.in) && isDigit(r.in[r.at]) {
			r.at++
		}
		return r.at - from
	}
	if r.in[r.at] == '-' {
		r.at++
	}
	zero := r.at < len(r.in) && r.in[r.at] == '0'
	if n := digits(); n == 0 || zero && n > 1 {
		return value{}, r.broken()
	}
	if r.at < len(r.in) && r.in[r.at] == '.' {
		if r.at++; digits() == 0 {
			return value{}, r.broken()
		}
	}
	if r.at < len(r.in) && r.in[r.at]|0x20 == 'e' {
		if r.at++; r.at < len(r.in) && (r.in[r.at] == '+' || r.in[r.at] == '-') {
			r.at++
		}
		switch n := digits(); {
		case n == 0:
			return value{}, r.broken()
		case n > 4:
			return value{}, errors.New("a number in it has too large an exponent")
		}
	}
	if r.at-start > maxNumber {
		return value{}, fmt.Errorf("a number in it is longer than %d bytes", maxNumber)
	}
	v := value{kind: jsonNumber, text: r.in[start:r.at]}
	if v.decimal().whole() {
		v.kind = jsonInteger
	}
	return v, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// decimal is a number without rounding: 0.digits times ten to the power of exp. Zero has no digits.
type decimal struct {
	negative bool
	digits   string // neither begins nor ends with 0
	exp      int
}

// decimal is what a number says.
func (v *value) decimal() decimal {
	s, negative := strings.CutPrefix(v.text, "-")
	exp := 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		for _, c := range strings.TrimLeft(s[i+1:], "+-") {
			exp = exp*10 + int(c-'0')
		}
		if s[i+1] == '-' {
			exp = -exp
		}
		s = s[:i]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	exp += len(whole)
	digits := whole + fraction
	short := strings.TrimLeft(digits, "0")
	exp -= len(digits) - len(short)
	if short = strings.TrimRight(short, "0"); short == "" {
		return decimal{}
	}
	return decimal{negative, short, exp}
}

// whole reports whether there is nothing behind the point.
func (d decimal) whole() bool { return d.exp >= len(d.digits) }

// compare is negative, zero or positive as d is less than, equal to or greater than e.
func (d decimal) compare(e decimal) int {
	sign := 1
	if d.negative {
		sign = -1
	}
	switch {
	case d.digits == "" && e.digits == "":
		return 0
	case d.digits == "":
		return -e.compare(d)
	case e.digits == "" || d.negative != e.negative:
		return sign
	case d.exp != e.exp:
		if d.exp < e.exp {
			return -sign
		}
		return sign
	}
	return sign * strings.Compare(d.digits, e.digits)
}

// maxShift bounds the digits that multiples are computed with.
const maxShift = 600

// multipleOf reports whether d is a multiple of unit. What is too far apart to be computed is none.
func (d decimal) multipleOf(unit decimal) bool {
	if d.digits == "" || unit.digits == "" {
		return d.digits == "" && unit.digits != ""
	}
	shift := (d.exp - len(d.digits)) - (unit.exp - len(unit.digits))
	if shift < -maxShift || shift > maxShift {
		return false
	}
	n, _ := new(big.Int).SetString(d.digits+strings.Repeat("0", max(shift, 0)), 10)
	m, _ := new(big.Int).SetString(unit.digits+strings.Repeat("0", max(-shift, 0)), 10)
	return n.Rem(n, m).Sign() == 0
}

// count is a number as a schema gives for lengths: whole, not negative, and of a size that makes sense.
func (v *value) count() (int, bool) {
	d := v.decimal()
	if v.kind != jsonInteger || d.negative || d.exp > 9 {
		return 0, false
	}
	n := 0
	for i := range d.exp {
		n *= 10
		if i < len(d.digits) {
			n += int(d.digits[i] - '0')
		}
	}
	return n, true
}

// stringsOf are the strings that an argument holds: itself, or the elements of a list. ok is false when it holds
// anything else.
func (v *value) stringsOf() (out []string, ok bool) {
	if v.kind == jsonString {
		return []string{v.text}, true
	}
	if v.kind != jsonArray || slices.ContainsFunc(v.items, func(i value) bool { return i.kind != jsonString }) {
		return nil, false
	}
	for _, i := range v.items {
		out = append(out, i.text)
	}
	return out, true
}
