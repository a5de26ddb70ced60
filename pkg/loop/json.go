package loop

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"strconv"
)

// Kinds of JSON values, as bits: a schema may allow several.
const (
	kindNull = 1 << iota
	kindBool
	kindInteger // also a number
	kindNumber
	kindString
	kindArray
	kindObject
)

// maxDepth is how deep arguments may nest. Models do not; an attack might.
const maxDepth = 64

// kindOf tells the kind of the valid JSON value b by its first byte. A whole number is kindInteger|kindNumber.
func kindOf(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '{':
		return kindObject
	case '[':
		return kindArray
	case '"':
		return kindString
	case 't', 'f':
		return kindBool
	case 'n':
		return kindNull
	}
	if !hasFraction(b) {
		return kindInteger | kindNumber
	}
	if f, err := strconv.ParseFloat(string(b), 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return kindInteger | kindNumber
	}
	return kindNumber
}

// hasFraction reports whether a number is written with a point or an exponent.
func hasFraction(b []byte) bool {
	for _, c := range b {
		if c == '.' || c == 'e' || c == 'E' {
			return true
		}
	}
	return false
}

// members yields the members of the valid JSON object b in their order: the key with its quotes, and the value. Nothing
// is decoded, so what is not touched stays as the model wrote it.
func members(b []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		for i := skipSpace(b, 1); i < len(b) && b[i] != '}'; {
			k := valueEnd(b, i)
			v := skipSpace(b, skipSpace(b, k)+1)
			end := valueEnd(b, v)
			if !yield(b[i:k], b[v:end]) {
				return
			}
			if i = skipSpace(b, end); i < len(b) && b[i] == ',' {
				i = skipSpace(b, i+1)
			}
		}
	}
}

// elements yields the elements of the valid JSON array b.
func elements(b []byte) iter.Seq[[]byte] {
	return func(yield func(v []byte) bool) {
		for i := skipSpace(b, 1); i < len(b) && b[i] != ']'; {
			end := valueEnd(b, i)
			if !yield(b[i:end]) {
				return
			}
			if i = skipSpace(b, end); i < len(b) && b[i] == ',' {
				i = skipSpace(b, i+1)
			}
		}
	}
}

// skipSpace is the first index from i on that is no white space.
func skipSpace[T ~string | ~[]byte](b T, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// valueEnd is where the JSON value that begins at b[i] ends. b is valid JSON.
func valueEnd(b []byte, i int) int {
	if i >= len(b) {
		return len(b)
	}
	if b[i] == '"' {
		// The first quote is the end, unless it may be escaped.
		if n := bytes.IndexByte(b[i+1:], '"'); n >= 0 && b[i+n] != '\\' {
			return i + n + 2
		}
	}
	switch b[i] {
	case '{', '[', '"':
		w := valueScanner{pos: i}
		end, _ := w.findEnd(b)
		return max(end, i+1)
	}
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && !isSpace(b[i]) {
		i++
	}
	return i
}

// valueScanner finds the end of a JSON object, array or string that comes in pieces. It goes over each byte once, however
// small the pieces are. It looks only at brackets and quotes; whether it is JSON is asked when the end is there.
type valueScanner struct {
	pos      int // next byte to look at
	depth    int
	inString bool // inside a string
	escaped  bool // after a backslash
	tooDeep  bool // deeper than maxDepth ever was
	done     bool
}

// findEnd returns the index after the value and whether it has been reached.
func (w *valueScanner) findEnd(b []byte) (int, bool) {
	if w.done {
		return w.pos, true
	}
	for ; w.pos < len(b); w.pos++ {
		c := b[w.pos]
		switch {
		case w.escaped:
			w.escaped = false
		case w.inString && c == '\\':
			w.escaped = true
		case c == '"':
			w.inString = !w.inString
			if w.depth == 0 && !w.inString {
				w.pos++
				w.done = true
				return w.pos, true
			}
		case w.inString:
		case c == '{' || c == '[':
			w.depth++
			w.tooDeep = w.tooDeep || w.depth > maxDepth
		case c == '}' || c == ']':
			if w.depth--; w.depth <= 0 {
				w.pos++
				w.done = true
				return w.pos, true
			}
		}
	}
	return len(b), false
}

// decodeString is the string that the JSON string b holds. Without escapes nothing is copied twice.
func decodeString(b []byte) string {
	if len(b) >= 2 && bytes.IndexByte(b, '\\') < 0 {
		return string(b[1 : len(b)-1])
	}
	var s string
	_ = json.Unmarshal(b, &s)
	return s
}

// isText reports whether the JSON string b holds s.
func isText(b []byte, s string) bool {
	if bytes.IndexByte(b, '\\') < 0 {
		return len(b) == len(s)+2 && string(b[1:len(b)-1]) == s
	}
	return decodeString(b) == s
}

// encodeString is s as a JSON string.
func encodeString(s string) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return bytes.TrimRight(out.Bytes(), "\n")
}

// isTooDeep reports whether b nests deeper than arguments may.
func isTooDeep(b []byte) bool {
	if bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) <= maxDepth {
		return false
	}
	var w valueScanner
	w.findEnd(b)
	return w.tooDeep
}

// maxMembers is how many members one object of a call may have.
const maxMembers = 256

// findAmbiguity says what no call may have, "" when there is nothing of it: too many members, or a key twice in one object.
// Readers differ in which of two they take, so the one that is checked may not be the one that is used.
func findAmbiguity(b []byte) string {
	switch kindOf(b) {
	case kindObject:
		var room [8][]byte
		keys := room[:0] // each is kept: to find them again would be to walk over all values before this one
		for k, v := range members(b) {
			key := plainKey(k)
			if slices.ContainsFunc(keys, func(o []byte) bool { return bytes.Equal(o, key) }) {
				return "the key " + clip(string(k), 64) + " is there twice"
			}
			if keys = append(keys, key); len(keys) > maxMembers {
				return "an object has more than " + strconv.Itoa(maxMembers) + " keys"
			}
			if s := findAmbiguity(v); s != "" {
				return s
			}
		}
	case kindArray:
		for v := range elements(b) {
			if s := findAmbiguity(v); s != "" {
				return s
			}
		}
	}
	return ""
}

// plainKey is the text of the JSON string k. Without escapes nothing is copied.
func plainKey(k []byte) []byte {
	if len(k) >= 2 && bytes.IndexByte(k, '\\') < 0 {
		return k[1 : len(k)-1]
	}
	return []byte(decodeString(k))
}

// sameText reports whether two JSON strings hold the same text.
func sameText(a, b []byte) bool {
	if bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		return bytes.Equal(a, b)
	}
	return decodeString(a) == decodeString(b)
}

// same is a hash of the JSON value b that does not depend on white space, the order of keys, or how a text or a number
// is written.
func same(seed maphash.Seed, b []byte) uint64 {
	switch kindOf(b) {
	case kindObject:
		sum := uint64(0x9e3779b97f4a7c15)
		for k, v := range members(b) {
			// Added up, so that the order does not matter; multiplied, so that values do not swap their keys.
			sum += (textHash(seed, k) | 1) * mix(same(seed, v))
		}
		return mix(sum)
	case kindArray:
		sum := uint64(0xc2b2ae3d27d4eb4f)
		for v := range elements(b) {
			sum = mix(sum) + same(seed, v)
		}
		return mix(sum)
	case kindString:
		if bytes.IndexByte(b, '\\') < 0 {
			return maphash.Bytes(seed, b)
		}
		return maphash.String(seed, `"`+decodeString(b)+`"`)
	case kindInteger | kindNumber, kindNumber:
		if f, err := strconv.ParseFloat(string(b), 64); err == nil && math.Abs(f) < 1<<53 {
			return mix(math.Float64bits(f + 0)) // -0 is 0
		}
	}
	return maphash.Bytes(seed, b)
}

// textHash is a hash of the text in the JSON string b.
func textHash(seed maphash.Seed, b []byte) uint64 {
	if len(b) >= 2 && bytes.IndexByte(b, '\\') < 0 {
		return maphash.Bytes(seed, b[1:len(b)-1])
	}
	return maphash.String(seed, decodeString(b))
}

// mix spreads the bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// repairJSON makes JSON out of what a model nearly wrote as JSON: line breaks inside texts, a comma too many, brackets left
// open at the end. It never closes a text: what is missing there is not known. nil when that does not help.
func repairJSON(b []byte) []byte {
	out := make([]byte, 0, len(b)+8)
	var open []byte
	inText, slash := false, false
	for _, c := range b {
		switch {
		case slash:
			slash = false
		case inText && c == '\\':
			slash = true
		case c == '"':
			inText = !inText
		case inText && c < 0x20:
			out = append(out, escapeControl(c)...)
			continue
		case inText:
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
	if inText || len(open) > maxDepth {
		return nil
	}
	for i := len(open) - 1; i >= 0; i-- {
		out = append(trimComma(out), open[i])
	}
	if !json.Valid(out) {
		return nil
	}
	return out
}

func trimComma(b []byte) []byte {
	t := bytes.TrimRight(b, " \n\t\r")
	if len(t) > 0 && t[len(t)-1] == ',' {
		return t[:len(t)-1]
	}
	return b
}

func escapeControl(c byte) string {
	switch c {
	case '\n':
		return `\n`
	case '\t':
		return `\t`
	case '\r':
		return `\r`
	}
	return `\u00` + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15])
}
