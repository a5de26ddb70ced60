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
)

// Two readers of the same bytes must not see two different messages. The decoders of both codecs are lenient: they take
// a name in another case, the last of two equal keys, a list for a struct, a number that does not fit, and the msgpack
// one allocates whatever length a message claims. So a message is walked first, beside the shape of its payload type.

// shape is what the walkers know of a type. A nil shape is anything.
type shape struct {
	kind   reflect.Kind
	fields map[string]field // of a struct, by exact name
	elem   *shape           // of a list or a map
}

type field struct {
	n int // its bit among those already seen
	*shape
}

var (
	shapes      sync.Map // reflect.Type -> *shape
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	timeType    = reflect.TypeFor[time.Time]()
)

// shapeOf is the shape of what v points to.
func shapeOf(v any) *shape {
	t := reflect.TypeOf(v).Elem()
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, makeShape(t))
	return s.(*shape)
}

// makeShape walks a payload type. None of ours contains itself.
func makeShape(t reflect.Type) *shape {
	if t.Kind() == reflect.Pointer {
		return makeShape(t.Elem())
	}
	if t == timeType || reflect.PointerTo(t).Implements(unmarshaler) {
		return nil // reads itself
	}
	s := &shape{kind: t.Kind()}
	switch t.Kind() {
	case reflect.Struct:
		s.fields = map[string]field{}
		for i, f := range reflect.VisibleFields(t) {
			if f.Anonymous { // its fields stand for themselves
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			s.fields[name] = field{i, makeShape(f.Type)}
		}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return nil // bytes: a text in JSON
		}
		s.elem = makeShape(t.Elem())
	case reflect.Map:
		s.elem = makeShape(t.Elem())
	case reflect.Interface:
		return nil
	}
	return s
}

// under is the shape of the value of a key.
func (s *shape) under(key string) (_ *shape, known bool) {
	switch {
	case s == nil:
		return nil, true
	case s.kind == reflect.Struct:
		f, ok := s.fields[key]
		return f.shape, ok
	}
	return s.elem, true
}

func (s *shape) item() *shape {
	if s == nil {
		return nil
	}
	return s.elem
}

// checkJSON refuses what encoding/json lets through: doubled keys, names in another case, deep nesting, a second value.
// It walks the bytes itself, once they are known to be valid: every call passes here several times.
func checkJSON(data []byte, v any) error {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return unreadable{why: "no JSON object"}
	case trimmed[0] != '{':
		return unreadable{why: "not a JSON object"}
	case !json.Valid(data):
		return unreadable{why: "not one valid JSON object"}
	}
	type level struct {
		object bool
		keys   []string // folded: some readers take keys that differ in case alone for one key, others for two
		shape  *shape   // of this object or list
		next   *shape   // of the value to come
	}
	var stack []level
	next := shapeOf(v)
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			if len(stack) == maxDepth {
				return unreadable{why: fmt.Sprintf("nested deeper than %d", maxDepth)}
			}
			if len(stack) > 0 {
				next = stack[len(stack)-1].next
			}
			l := level{object: data[i] == '{', shape: next}
			if !l.object {
				l.next = next.item()
			}
			stack = append(stack, l)
		case '}', ']':
			stack = stack[:len(stack)-1]
		case '"':
			end := i + 1
			for data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			quoted := data[i : end+1]
			i = end
			if rest := bytes.TrimLeft(data[end+1:], " \t\r\n"); len(rest) == 0 || rest[0] != ':' {
				continue // a value
			}
			top := &stack[len(stack)-1]
			key, err := unquote(quoted)
			if err != nil {
				return unreadable{why: "not one valid JSON object"}
			}
			folded := strings.ToLower(strings.ToUpper(key))
			if slices.Contains(top.keys, folded) {
				return unreadable{"a key stands twice:", key}
			}
			if len(top.keys) == maxKeys {
				return unreadable{why: fmt.Sprintf("more than %d keys in one object", maxKeys)}
			}
			below, known := top.shape.under(key)
			if !known {
				return unreadable{"unknown field", key}
			}
			top.keys, top.next = append(top.keys, folded), below
		}
	}
	return nil
}

// maxKeys bounds the keys of one object: they are compared with one another.
const maxKeys = 1024

// unquote reads a JSON string: keys that are written differently can be the same key.
func unquote(quoted []byte) (string, error) {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var s string
	err := json.Unmarshal(quoted, &s)
	return s, err
}

// checkMsgpack refuses what the msgpack package lets through or falls over.
func checkMsgpack(data []byte, v any) error {
	w := walker{data}
	if err := w.value(shapeOf(v), 1); err != nil {
		return err
	}
	if len(w.rest) > 0 {
		return unreadable{why: "trailing bytes after the msgpack map"}
	}
	return nil
}

// walker reads msgpack without keeping anything.
type walker struct{ rest []byte }

var errCut = unreadable{why: "the msgpack is cut short or damaged"}

// item reads the code of one value and what follows it: its bytes, or for a list and a map how many are inside.
func (w *walker) item() (code byte, data []byte, n int, err error) {
	head, err := w.take(1)
	if err != nil {
		return 0, nil, 0, err
	}
	code = head[0]
	size, length := 0, 0 // of the value, or of the length that says it
	switch c := code; {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		data = head
	case c&0xf0 == 0x80, c&0xf0 == 0x90:
		n = int(c & 0x0f)
	case c&0xe0 == 0xa0:
		size = int(c & 0x1f)
	case c == 0xc4, c == 0xc7, c == 0xd9:
		length = 1
	case c == 0xc5, c == 0xc8, c == 0xda, c == 0xdc, c == 0xde:
		length = 2
	case c == 0xc6, c == 0xc9, c == 0xdb, c == 0xdd, c == 0xdf:
		length = 4
	case c == 0xca, c == 0xcb:
		size = 4 << (c - 0xca)
	case c >= 0xcc && c <= 0xcf:
		size = 1 << (c - 0xcc)
	case c >= 0xd0 && c <= 0xd3:
		size = 1 << (c - 0xd0)
	case c >= 0xd4 && c <= 0xd8:
		size = 1<<(c-0xd4) + 1 // its type
	default:
		return 0, nil, 0, errCut
	}
	if length > 0 {
		b, err := w.take(length)
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
		data, err = w.take(size)
	}
	return code, data, n, err
}

func (w *walker) take(n int) ([]byte, error) {
	if n > len(w.rest) {
		return nil, errCut
	}
	b := w.rest[:n]
	w.rest = w.rest[n:]
	return b, nil
}

// value walks one value and all below it.
func (w *walker) value(s *shape, depth int) error {
	if depth > maxDepth {
		return unreadable{why: fmt.Sprintf("nested deeper than %d", maxDepth)}
	}
	code, data, n, err := w.item()
	if err != nil {
		return err
	}
	if !s.fits(code, data) {
		return unreadable{why: "a value is not of its field's type"}
	}
	switch {
	case mapCode(code):
		return w.pairs(s, n, depth)
	case listCode(code):
		for range n {
			if err := w.value(s.item(), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs walks the keys and values of a map.
func (w *walker) pairs(s *shape, n, depth int) error {
	var seen uint64
	var keys map[string]bool // of a map whose keys are free
	for range n {
		code, key, _, err := w.item()
		if err != nil {
			return err
		}
		if !textCode(code) {
			return unreadable{why: "a key is not a text"}
		}
		var below *shape
		doubled := false
		if s != nil && s.kind == reflect.Struct {
			f, known := s.fields[string(key)]
			if !known {
				return unreadable{"unknown field", string(key)}
			}
			doubled, seen, below = seen&(1<<f.n) != 0, seen|1<<f.n, f.shape
		} else {
			if keys == nil {
				keys = map[string]bool{}
			}
			doubled, below = keys[string(key)], s.item()
			keys[string(key)] = true
		}
		if doubled {
			return unreadable{"a key stands twice:", string(key)}
		}
		if err := w.value(below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func listCode(c byte) bool { return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }

func textCode(c byte) bool { return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }

// fits reports whether a value may stand where the shape is. Nil may stand anywhere: it is the zero value.
func (s *shape) fits(code byte, data []byte) bool {
	if s == nil || code == 0xc0 {
		return true
	}
	whole := code <= 0x7f || code >= 0xe0 || code >= 0xcc && code <= 0xd3
	negative := code >= 0xe0 || code >= 0xd0 && code <= 0xd3 && data[0] >= 0x80
	switch s.kind {
	case reflect.String:
		return textCode(code)
	case reflect.Bool:
		return code == 0xc2 || code == 0xc3
	case reflect.Int, reflect.Int64:
		return whole && (code != 0xcf || data[0] < 0x80)
	case reflect.Uint, reflect.Uint64:
		return whole && !negative
	case reflect.Float32, reflect.Float64:
		return whole || code == 0xca || code == 0xcb && s.kind == reflect.Float64
	case reflect.Slice, reflect.Array:
		return listCode(code)
	case reflect.Struct, reflect.Map:
		return mapCode(code)
	}
	return true
}
