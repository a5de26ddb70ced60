package strict

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// shape is the part of a type that the checks need; nil accepts anything. The decoders of packages json and msgpack are
// lenient: they accept a name in another case, the last of two equal keys, a list for a struct, a number that does not
// fit, and the msgpack one allocates any length that a document claims. So a document is checked first against the
// shape of its type.
//
// A field that was renamed keeps its former name in the tag was:"former_name": messages and state of an earlier build
// are decoded into it. Both names in one object count as a duplicate key.
type shape struct {
	kind   reflect.Kind
	fields map[string]field // of a struct, by exact name, former names included
	elem   *shape           // of a list or a map
}

type field struct {
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
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous { // its fields are listed themselves
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			below := makeShape(f.Type, around)
			s.fields[name] = field{shape: below}
			if former := f.Tag.Get("was"); former != "" {
				s.fields[former] = field{renamed: name, shape: below}
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
