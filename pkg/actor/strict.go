package actor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// Two readers of the same bytes must not see two different messages. The decoders of both codecs are lenient: they
// accept a name in another case, the last of two equal keys, a list for a struct, a number that does not fit, and the
// msgpack one allocates any length that a message claims. So a message is checked first against the shape of its
// payload type.
//
// A field that was renamed keeps its former name in the tag was:"former_name": messages and state of an earlier build
// are decoded into it. Both names in one object count as a duplicate key.

// shape is the part of a type that the checks need. A nil shape accepts anything.
type shape struct {
	kind   reflect.Kind
	fields map[string]field // of a struct, by exact name, former names included
	elem   *shape           // of a list or a map
}

type field struct {
	bit     int    // among the fields already seen
	renamed string // the present name when this is a former one, "" otherwise
	*shape
}

var (
	shapes      sync.Map // reflect.Type -> *shape
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	timeType    = reflect.TypeFor[time.Time]()
)

// shapeOf returns the shape of the value that v points to, from a cache.
func shapeOf(v any) *shape {
	t := reflect.TypeOf(v).Elem()
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, makeShape(t, nil))
	return s.(*shape)
}

// makeShape builds the shape of a type inside the types around it; nil, which accepts anything, for bytes, interfaces,
// times and types with their own JSON decoding. A type that contains itself is checked down to the first repetition
// only. Every field of a struct must have a json tag.
func makeShape(t reflect.Type, around []reflect.Type) *shape {
	if t.Kind() == reflect.Pointer {
		return makeShape(t.Elem(), around)
	}
	if t == timeType || reflect.PointerTo(t).Implements(unmarshaler) || slices.Contains(around, t) {
		return nil // decodes itself, or repeats
	}
	around = append(around, t)
	s := &shape{kind: t.Kind()}
	switch t.Kind() {
	case reflect.Struct:
		s.fields = map[string]field{}
		for i, f := range reflect.VisibleFields(t) {
			if f.Anonymous { // its fields are listed themselves
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			below := makeShape(f.Type, around)
			s.fields[name] = field{bit: i, shape: below}
			if former := f.Tag.Get("was"); former != "" {
				s.fields[former] = field{bit: i, renamed: name, shape: below}
			}
		}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return nil // bytes: a string in JSON
		}
		s.elem = makeShape(t.Elem(), around)
	case reflect.Map:
		s.elem = makeShape(t.Elem(), around)
	case reflect.Interface:
		return nil
	}
	return s
}

// member returns the field of a key and whether the shape allows the key. Only a struct restricts its keys, by exact
// name; a nil shape and a map allow any.
func (s *shape) member(key string) (_ field, known bool) {
	switch {
	case s == nil:
		return field{}, true
	case s.kind == reflect.Struct:
		f, ok := s.fields[key]
		return f, ok
	}
	return field{shape: s.elem}, true
}

// element returns the shape of the elements of a list or map.
func (s *shape) element() *shape {
	if s == nil {
		return nil
	}
	return s.elem
}

// edit replaces data[from:to] by a present field name, encoded.
type edit struct {
	from, to int
	name     []byte
}

// applyEdits returns data with its edits, which must be in order and not overlap. Without edits it is data itself,
// otherwise a copy.
func applyEdits(data []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return data
	}
	var out []byte
	end := 0
	for _, e := range edits {
		out = append(append(out, data[end:e.from]...), e.name...)
		end = e.to
	}
	return append(out, data[end:]...)
}

// maxKeys bounds the keys of one JSON object: they are compared with one another.
const maxKeys = 1024

// jsonChecker walks valid JSON beside a shape.
type jsonChecker struct {
	data    []byte
	lenient bool // unknown and duplicate keys are accepted
	next    *shape
	stack   []jsonLevel
	edits   []edit
}

// jsonLevel is an object or list that is not closed yet.
type jsonLevel struct {
	keys  []string // folded: some readers take keys that differ in case alone for one key, others for two
	shape *shape   // of this object or list
	next  *shape   // of the value that follows
}

// checkJSON rejects everything but one JSON object, and what encoding/json accepts in it: unknown and duplicate keys,
// names in another case, nesting deeper than maxDepth, more than maxKeys keys in an object. Types of values are not
// checked. It returns data with former field names replaced.
func checkJSON(data []byte, v any) ([]byte, error) {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return nil, decodeError{reason: "no JSON object"}
	case trimmed[0] != '{':
		return nil, decodeError{reason: "not a JSON object"}
	case !json.Valid(data):
		return nil, decodeError{reason: "not one valid JSON object"}
	}
	c := jsonChecker{data: data, next: shapeOf(v)}
	return c.walk()
}

// renameFormerKeys returns JSON with former field names of v's type replaced, and is otherwise lenient.
func renameFormerKeys(data []byte, v any) ([]byte, error) {
	if !json.Valid(data) {
		return data, nil // the decoder returns a better error
	}
	c := jsonChecker{data: data, next: shapeOf(v), lenient: true}
	return c.walk()
}

// walk checks c.data, which must be valid JSON, in one pass and returns it with former field names replaced.
func (c *jsonChecker) walk() ([]byte, error) {
	for i := 0; i < len(c.data); i++ {
		switch c.data[i] {
		case '{', '[':
			if err := c.open(c.data[i] == '['); err != nil {
				return nil, err
			}
		case '}', ']':
			c.stack = c.stack[:len(c.stack)-1]
		case '"':
			end := stringEnd(c.data, i)
			if err := c.text(i, end); err != nil {
				return nil, err
			}
			i = end - 1
		}
	}
	return applyEdits(c.data, c.edits), nil
}

// open begins an object or a list, with the shape of the field or list that it is in. It rejects nesting deeper than
// maxDepth.
func (c *jsonChecker) open(list bool) error {
	if len(c.stack) == maxDepth {
		return decodeError{reason: fmt.Sprintf("nested deeper than %d", maxDepth)}
	}
	if len(c.stack) > 0 {
		c.next = c.stack[len(c.stack)-1].next
	}
	l := jsonLevel{shape: c.next}
	if list {
		l.next = c.next.element()
	}
	c.stack = append(c.stack, l)
	return nil
}

// stringEnd returns the index after the closing quote of the string that begins at i.
func stringEnd(data []byte, i int) int {
	for i++; data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// text checks the string data[from:to], quotes included, when it is a key; a value needs no check. It rejects unknown
// keys, keys that are equal but for case, and more than maxKeys keys in one object; a lenient checker rejects none of
// them.
func (c *jsonChecker) text(from, to int) error {
	if rest := bytes.TrimLeft(c.data[to:], " \t\r\n"); len(rest) == 0 || rest[0] != ':' {
		return nil
	}
	key, err := unquoteKey(c.data[from:to])
	if err != nil {
		return decodeError{reason: "not one valid JSON object"}
	}
	top := &c.stack[len(c.stack)-1]
	f, known := top.shape.member(key)
	if !known && !c.lenient {
		return decodeError{"unknown field", key}
	}
	top.next = f.shape
	if f.renamed != "" {
		c.edits = append(c.edits, edit{from, to, []byte(`"` + f.renamed + `"`)})
		key = f.renamed
	}
	if c.lenient {
		return nil
	}
	folded := strings.ToLower(strings.ToUpper(key))
	switch {
	case slices.Contains(top.keys, folded):
		return decodeError{"duplicate key", key}
	case len(top.keys) == maxKeys:
		return decodeError{reason: fmt.Sprintf("more than %d keys in one object", maxKeys)}
	}
	top.keys = append(top.keys, folded)
	return nil
}

// unquoteKey decodes a JSON string: keys that are written differently can be the same key.
func unquoteKey(quoted []byte) (string, error) {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var s string
	err := json.Unmarshal(quoted, &s)
	return s, err
}

// checkMsgpack rejects what the msgpack package accepts or fails on: duplicate keys, unknown fields, keys that are no
// text, values of another type, nesting deeper than maxDepth, lengths without their bytes, trailing bytes. It returns
// data with former field names replaced.
func checkMsgpack(data []byte, v any) ([]byte, error) {
	c := msgpackChecker{rest: data, size: len(data)}
	if err := c.value(shapeOf(v), 1); err != nil {
		return nil, err
	}
	if len(c.rest) > 0 {
		return nil, decodeError{reason: "trailing bytes after the msgpack map"}
	}
	return applyEdits(data, c.edits), nil
}

// msgpackChecker walks msgpack beside a shape without allocating what the message claims.
type msgpackChecker struct {
	rest  []byte
	size  int // of the whole
	edits []edit
}

var errMsgpackCut = decodeError{reason: "the msgpack is cut short or damaged"}

// item consumes one value: its code and its bytes without code and length, a small value's code itself. For a list and
// a map it returns the claimed number of elements or pairs, which are not consumed and may be more than there are. It
// rejects a value that is cut off and the unused code 0xc1.
func (c *msgpackChecker) item() (code byte, data []byte, n int, err error) {
	head, err := c.take(1)
	if err != nil {
		return 0, nil, 0, err
	}
	code = head[0]
	size, length := 0, 0 // bytes of the value, or of its length prefix
	switch k := code; {
	case k <= 0x7f, k >= 0xe0, k == 0xc0, k == 0xc2, k == 0xc3:
		data = head
	case k&0xf0 == 0x80, k&0xf0 == 0x90:
		n = int(k & 0x0f)
	case k&0xe0 == 0xa0:
		size = int(k & 0x1f)
	case k == 0xc4, k == 0xc7, k == 0xd9:
		length = 1
	case k == 0xc5, k == 0xc8, k == 0xda, k == 0xdc, k == 0xde:
		length = 2
	case k == 0xc6, k == 0xc9, k == 0xdb, k == 0xdd, k == 0xdf:
		length = 4
	case k == 0xca, k == 0xcb:
		size = 4 << (k - 0xca)
	case k >= 0xcc && k <= 0xcf:
		size = 1 << (k - 0xcc)
	case k >= 0xd0 && k <= 0xd3:
		size = 1 << (k - 0xd0)
	case k >= 0xd4 && k <= 0xd8:
		size = 1<<(k-0xd4) + 1 // its type
	default:
		return 0, nil, 0, errMsgpackCut
	}
	if length > 0 {
		b, err := c.take(length)
		if err != nil {
			return 0, nil, 0, err
		}
		var long [4]byte
		copy(long[4-length:], b)
		size = int(binary.BigEndian.Uint32(long[:]))
		switch {
		case code >= 0xdc:
			n, size = size, 0
		case code >= 0xc7 && code <= 0xc9:
			size++ // its type
		}
	}
	if size > 0 {
		data, err = c.take(size)
	}
	return code, data, n, err
}

// take consumes n bytes, or fails when there are fewer.
func (c *msgpackChecker) take(n int) ([]byte, error) {
	if n > len(c.rest) {
		return nil, errMsgpackCut
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b, nil
}

// value checks one value and everything below it against s, at this depth (1 = the message). It rejects nesting deeper
// than maxDepth and a value of another type.
func (c *msgpackChecker) value(s *shape, depth int) error {
	if depth > maxDepth {
		return decodeError{reason: fmt.Sprintf("nested deeper than %d", maxDepth)}
	}
	code, data, n, err := c.item()
	if err != nil {
		return err
	}
	if !s.fits(code, data) {
		return decodeError{reason: "a value is not of its field's type"}
	}
	switch {
	case isMapCode(code):
		return c.pairs(s, n, depth)
	case isListCode(code):
		for range n {
			if err := c.value(s.element(), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs checks the n keys and values of a map. It rejects keys that are no text, unknown fields and duplicate keys; a
// former name and its present one are duplicates.
func (c *msgpackChecker) pairs(s *shape, n, depth int) error {
	var seen uint64          // fields of a struct, by their bit
	var keys map[string]bool // of a map whose keys are free
	for range n {
		from := c.size - len(c.rest)
		code, raw, _, err := c.item()
		if err != nil {
			return err
		}
		if !isTextCode(code) {
			return decodeError{reason: "a key is not a text"}
		}
		key := string(raw)
		f, known := s.member(key)
		if !known {
			return decodeError{"unknown field", key}
		}
		if f.renamed != "" {
			name, err := msgpack.Marshal(f.renamed)
			if err != nil {
				return errMsgpackCut
			}
			c.edits = append(c.edits, edit{from, c.size - len(c.rest), name})
		}
		duplicate := false
		if s != nil && s.kind == reflect.Struct {
			duplicate, seen = seen&(1<<f.bit) != 0, seen|1<<f.bit
		} else {
			if keys == nil {
				keys = map[string]bool{}
			}
			duplicate = keys[key]
			keys[key] = true
		}
		if duplicate {
			return decodeError{"duplicate key", key}
		}
		if err := c.value(f.shape, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func isListCode(c byte) bool { return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }

func isTextCode(c byte) bool { return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }

// fits reports whether a msgpack value of this code and these bytes has the type of the shape. Nil fits everywhere: it
// is the zero value. An integer outside the range of an int64 or uint64 field does not fit; an integer fits a float, a
// float64 no float32.
func (s *shape) fits(code byte, data []byte) bool {
	if s == nil || code == 0xc0 {
		return true
	}
	whole := code <= 0x7f || code >= 0xe0 || code >= 0xcc && code <= 0xd3
	negative := code >= 0xe0 || code >= 0xd0 && code <= 0xd3 && data[0] >= 0x80
	switch s.kind {
	case reflect.String:
		return isTextCode(code)
	case reflect.Bool:
		return code == 0xc2 || code == 0xc3
	case reflect.Int, reflect.Int64:
		return whole && (code != 0xcf || data[0] < 0x80)
	case reflect.Uint, reflect.Uint64:
		return whole && !negative
	case reflect.Float32, reflect.Float64:
		return whole || code == 0xca || code == 0xcb && s.kind == reflect.Float64
	case reflect.Slice, reflect.Array:
		return isListCode(code)
	case reflect.Struct, reflect.Map:
		return isMapCode(code)
	}
	return true
}
