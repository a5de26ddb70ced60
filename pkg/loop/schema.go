package loop

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"conclave/pkg/model"
)

// schema is a tool's parameters, made ready once in a turn. The common keywords are checked by our own walk over the
// bytes, which costs nothing; a schema that uses others is checked by the library as well.
type schema struct {
	kinds    int // 0 = any
	props    []prop
	required []string
	closed   bool    // no other properties
	other    *schema // of other properties; nil = any
	items    *schema // nil = any
	enum     []json.RawMessage
	anyOf    []*schema
	low      *float64
	high     *float64
	lengths  bounds // of a text, in characters
	count    bounds // of a list

	full *jsonschema.Resolved // of the root, when it holds a keyword that we do not check
}

type prop struct {
	name string
	schema
}

// bounds of a length; nil = none.
type bounds struct{ least, most *int }

// compileSchema makes a tool's schema ready. A tool without one takes any object.
func compileSchema(t model.Tool) (*schema, error) {
	if len(t.Parameters) == 0 || string(t.Parameters) == "null" {
		return &schema{kinds: kindObject}, nil
	}
	var js jsonschema.Schema
	if err := json.Unmarshal(t.Parameters, &js); err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	c := compiler{left: maxSchema}
	s := c.node(&js, 0)
	if c.strange {
		// No loader: a reference to another document is an error, never a request.
		full, err := js.Resolve(&jsonschema.ResolveOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the schema: %w", err)
		}
		s.full = full
	}
	if s.kinds == 0 {
		s.kinds = kindObject // arguments are an object, whether the schema says so or not
	}
	return &s, nil
}

// maxSchema is how many nodes of a schema we check ourselves.
const maxSchema = 2000

type compiler struct {
	strange bool // a keyword was met that only the library checks
	left    int
}

func (c *compiler) node(js *jsonschema.Schema, depth int) schema {
	var s schema
	if js == nil {
		return s
	}
	if c.left--; c.left < 0 || depth > maxDepth {
		c.strange = true
		return s
	}
	c.strange = c.strange || strange(js)
	s.kinds = kindBits(js)
	s.low, s.high = js.Minimum, js.Maximum
	s.lengths, s.count = bounds{js.MinLength, js.MaxLength}, bounds{js.MinItems, js.MaxItems}
	s.required = js.Required
	for _, v := range js.Enum {
		raw, err := json.Marshal(v)
		if err != nil {
			c.strange = true
			continue
		}
		s.enum = append(s.enum, raw)
	}
	for _, name := range order(js) {
		s.props = append(s.props, prop{name, c.node(js.Properties[name], depth+1)})
	}
	if a := js.AdditionalProperties; a != nil {
		if never(a) {
			s.closed = true
		} else {
			n := c.node(a, depth+1)
			s.other = &n
		}
	}
	if js.Items != nil {
		n := c.node(js.Items, depth+1)
		s.items = &n
	}
	for _, a := range js.AnyOf {
		n := c.node(a, depth+1)
		s.anyOf = append(s.anyOf, &n)
	}
	return s
}

// order is the properties' names, as written where that is known.
func order(js *jsonschema.Schema) []string {
	if len(js.PropertyOrder) == len(js.Properties) {
		return js.PropertyOrder
	}
	return sortedKeys(js.Properties)
}

// never reports whether js is the schema false, which the library keeps as {"not": {}}.
func never(js *jsonschema.Schema) bool {
	return js.Not != nil && !strange(js.Not) && kindBits(js.Not) == 0 && js.Not.Properties == nil && js.Not.Enum == nil
}

// strange reports whether js says something that only the library checks.
func strange(js *jsonschema.Schema) bool {
	return js.Ref != "" || js.DynamicRef != "" || js.Const != nil || js.MultipleOf != nil || js.ExclusiveMinimum != nil ||
		js.ExclusiveMaximum != nil || js.Pattern != "" || js.PrefixItems != nil || js.ItemsArray != nil ||
		js.AdditionalItems != nil || js.UniqueItems || js.Contains != nil || js.UnevaluatedItems != nil ||
		js.MinProperties != nil || js.MaxProperties != nil || js.DependentRequired != nil || js.PatternProperties != nil ||
		js.PropertyNames != nil || js.UnevaluatedProperties != nil || js.AllOf != nil || js.OneOf != nil || js.Not != nil ||
		js.If != nil || js.DependentSchemas != nil || js.DependencySchemas != nil || js.DependencyStrings != nil
}

func kindBits(js *jsonschema.Schema) int {
	bits := kindBit[js.Type]
	for _, t := range js.Types {
		bits |= kindBit[t]
	}
	return bits
}

var kindBit = map[string]int{
	"null": kindNull, "boolean": kindBool, "integer": kindInteger, "number": kindNumber | kindInteger,
	"string": kindString, "array": kindArray, "object": kindObject,
}

// kindNames is what a person calls the kinds of s.
func (s *schema) kindNames() string {
	var names []string
	add := func(bit int, name string) {
		if s.kinds&bit == bit {
			names = append(names, name)
		}
	}
	add(kindString, "string")
	if s.kinds&kindNumber != 0 {
		names = append(names, "number")
	} else {
		add(kindInteger, "integer")
	}
	add(kindBool, "boolean")
	add(kindArray, "array")
	add(kindObject, "object")
	add(kindNull, "null")
	return strings.Join(names, " or ")
}

// property is the schema of the property whose quoted name is key; nil when it is not named.
func (s *schema) property(key []byte) *schema {
	for i := range s.props {
		if isText(key, s.props[i].name) {
			return &s.props[i].schema
		}
	}
	return nil
}

func (s *schema) needs(key []byte) bool {
	for _, r := range s.required {
		if isText(key, r) {
			return true
		}
	}
	return false
}

// check returns what is wrong with the valid JSON value b, "" when nothing is. where names the field for the model.
func (s *schema) check(b []byte, where string) string {
	if len(s.anyOf) > 0 && !s.matchesAny(b) {
		return fmt.Sprintf("%s fits none of the allowed forms (%s), got %s", fieldName(where), s.anyNames(), clipValue(b))
	}
	kind := kindOf(b)
	if s.kinds != 0 && s.kinds&kind == 0 {
		return fmt.Sprintf("%s must be %s, got %s", fieldName(where), s.kindNames(), clipValue(b))
	}
	if s.enum != nil && !s.inEnum(b) {
		return fmt.Sprintf("%s must be one of %s, got %s", fieldName(where), s.enumNames(), clipValue(b))
	}
	switch {
	case kind == kindObject:
		return s.checkObject(b, where)
	case kind == kindArray:
		return s.checkArray(b, where)
	case kind == kindString && s.lengths != bounds{}:
		return s.lengths.check(utf8.RuneCountInString(decodeString(b)), where, "characters")
	case kind&kindNumber != 0 && (s.low != nil || s.high != nil):
		return s.checkNumber(b, where)
	}
	return ""
}

func (s *schema) checkObject(b []byte, where string) string {
	for _, r := range s.required {
		found := false
		for k := range members(b) {
			if found = isText(k, r); found {
				break
			}
		}
		if !found {
			p := s.property(encodeString(r))
			if p == nil || p.kinds == 0 {
				return fmt.Sprintf("%s is missing", fieldName(joinPath(where, r)))
			}
			return fmt.Sprintf("%s is missing; it must be %s", fieldName(joinPath(where, r)), p.kindNames())
		}
	}
	for k, v := range members(b) {
		p := s.property(k)
		if p == nil && s.closed {
			return fmt.Sprintf("%s is not known; known are: %s", fieldName(joinPath(where, decodeString(k))), s.names())
		}
		if p == nil {
			p = s.other
		}
		if p == nil {
			continue
		}
		if wrong := p.check(v, where); wrong != "" {
			return p.check(v, joinPath(where, decodeString(k))) // the field's name is put together only when it is needed
		}
	}
	return ""
}

func (s *schema) checkArray(b []byte, where string) string {
	n := 0
	for v := range elements(b) {
		n++
		if s.items == nil {
			continue
		}
		if wrong := s.items.check(v, where); wrong != "" {
			return s.items.check(v, where+"["+strconv.Itoa(n-1)+"]")
		}
	}
	return s.count.check(n, where, "elements")
}

func (s *schema) checkNumber(b []byte, where string) string {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsInf(f, 0) {
		return fmt.Sprintf("%s is too large a number", fieldName(where))
	}
	if s.low != nil && f < *s.low {
		return fmt.Sprintf("%s must be at least %v, got %s", fieldName(where), *s.low, clipValue(b))
	}
	if s.high != nil && f > *s.high {
		return fmt.Sprintf("%s must be at most %v, got %s", fieldName(where), *s.high, clipValue(b))
	}
	return ""
}

func (l bounds) check(n int, where, of string) string {
	if l.least != nil && n < *l.least {
		return fmt.Sprintf("%s must have at least %d %s, got %d", fieldName(where), *l.least, of, n)
	}
	if l.most != nil && n > *l.most {
		return fmt.Sprintf("%s must have at most %d %s, got %d", fieldName(where), *l.most, of, n)
	}
	return ""
}

func (s *schema) matchesAny(b []byte) bool {
	for _, a := range s.anyOf {
		if a.check(b, "") == "" {
			return true
		}
	}
	return false
}

func (s *schema) anyNames() string {
	var names []string
	for _, a := range s.anyOf {
		if n := a.kindNames(); n != "" {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

func (s *schema) inEnum(b []byte) bool {
	for _, e := range s.enum {
		if string(e) == string(b) || (kindOf(e) == kindString && kindOf(b) == kindString && sameText(e, b)) {
			return true
		}
		if kindOf(e) != kindString && same(seed, e) == same(seed, b) {
			return true
		}
	}
	return false
}

func (s *schema) enumNames() string {
	var names []string
	for _, e := range s.enum {
		names = append(names, string(e))
	}
	return clip(strings.Join(names, ", "), 300)
}

// names is the properties a call may give.
func (s *schema) names() string {
	var names []string
	for _, p := range s.props {
		names = append(names, p.name)
	}
	if len(names) == 0 {
		return "none"
	}
	return clip(strings.Join(names, ", "), 300)
}

// validate returns what is wrong with arguments, as the library sees it where our own walk does not see all.
func (s *schema) validate(b []byte) string {
	if wrong := s.check(b, ""); wrong != "" || s.full == nil {
		return wrong
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return "the arguments could not be read"
	}
	if err := s.full.Validate(v); err != nil {
		return "the arguments do not fit the schema: " + clip(err.Error(), 300)
	}
	return ""
}

// fieldName names a field for the model.
func fieldName(where string) string {
	if where == "" {
		return "the arguments"
	}
	return `"` + where + `"`
}

func joinPath(where, key string) string {
	if where == "" {
		return clip(key, 64)
	}
	return where + "." + clip(key, 64)
}

// clipValue is a value as far as it helps.
func clipValue(b []byte) string { return clip(string(b), 80) }
