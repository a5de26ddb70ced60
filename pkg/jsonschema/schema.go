// Package jsonschema checks the arguments of tool calls against the JSON Schema that a tool publishes. It is the gate
// in front of every tool, and the agent loop uses the same rules to correct a call before it is sent.
//
// A general validator does not suffice here, because neither schemas nor arguments are trusted. This one
//   - rejects a schema with a keyword it does not understand, and never loads a reference;
//   - limits the size of a schema, the cost of a pattern and the work of one check, so that no pair of schema and
//     arguments keeps it busy or overflows the stack;
//   - compares numbers without rounding, and rejects JSON that readers understand differently (see [strict.Parse]);
//   - rejects an argument whose name differs from a declared one only in case.
//
// Where the general library and this package understand the same schema, tests hold them to the same answer. The
// library (github.com/google/jsonschema-go v0.4.3) cannot take its place: the schema {"$ref":"#"} overflows its stack
// and ends the process, one of 1.5 KB with twenty nested anyOf keeps it busy for seconds, and its errors quote values.
// docs/decisions/0007 has the figures.
package jsonschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Limits of a schema. Definitions of real tools stay below a tenth of each.
const (
	maxSchemaBytes  = 256 << 10
	maxSubschemas   = 2000
	maxPatternBytes = 1024
	maxPatternSteps = 4000 // instructions of a compiled pattern
)

// Schema is a compiled JSON Schema or subschema. It must not be changed. The exported fields are what a caller needs to
// convert a value to the form that the schema asks for; a nil subschema accepts every value.
type Schema struct {
	Types                strict.Types // 0 = every type
	Enum                 []strict.Value
	Required             []string
	PropertyNames        []string // of Properties, in the order of the document
	Properties           map[string]*Schema
	AdditionalProperties *Schema // of properties that neither Properties nor patternProperties name
	Items                *Schema // of the elements behind prefixItems
	AnyOf                []*Schema

	rejectAll        bool // the schema false
	hasEnum          bool
	minimum, maximum *bound
	multipleOf       *strict.Value
	length           lengthRange // of a string, in code points
	pattern          *pattern
	prefixItems      []*Schema
	itemCount        lengthRange
	uniqueItems      bool
	patterns         []patternProperty
	propertyNames    *Schema // of the names of all properties
	memberCount      lengthRange
	ref, not         *Schema
	allOf, oneOf     []*Schema
}

// RejectsAll reports whether s is the schema false, as in "additionalProperties": false.
func (s *Schema) RejectsAll() bool { return s != nil && s.rejectAll }

// bound is the least or the greatest number that is valid.
type bound struct {
	number    *strict.Value
	exclusive bool
}

// lengthRange is the range of a length. The upper end counts only when bounded.
type lengthRange struct {
	min, max int
	bounded  bool
}

// patternProperty is one entry of patternProperties.
type patternProperty struct {
	*pattern
	schema *Schema
}

// pattern is a compiled regular expression; steps estimates the cost of matching one byte.
type pattern struct {
	*regexp.Regexp
	source string
	steps  int
}

// annotations are keywords without effect on validity. format is an annotation by the standard.
var annotations = []string{
	"$comment", "$defs", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions",
	"deprecated", "description", "example", "examples", "format", "readOnly", "title", "writeOnly",
}

// Compile reads a schema: an object or a boolean. It rejects documents that [strict.Parse] rejects, schemas beyond the
// limits, references that leave the document, and every keyword that it does not understand: a keyword that is skipped
// is a rule that is not enforced. Keywords that begin with "x-" are annotations.
func Compile(raw []byte) (*Schema, error) {
	if len(raw) > maxSchemaBytes {
		return nil, fmt.Errorf("schema of %d bytes; at most %d are allowed", len(raw), maxSchemaBytes)
	}
	root, err := strict.Parse(raw)
	if err != nil {
		return nil, err
	}
	c := compiler{root: &root, compiled: map[*strict.Value]*Schema{}}
	return c.compile(&root)
}

type compiler struct {
	root     *strict.Value
	compiled map[*strict.Value]*Schema // includes schemas under way, because a schema may refer to itself
}

// compile compiles the schema at v, once for each v. It rejects values other than objects and booleans, unsupported
// keywords, and more than maxSubschemas schemas. A schema that is under way, because it refers to itself, is returned
// unfinished.
func (c *compiler) compile(v *strict.Value) (*Schema, error) {
	if s := c.compiled[v]; s != nil {
		return s, nil
	}
	if len(c.compiled) >= maxSubschemas {
		return nil, fmt.Errorf("more than %d subschemas", maxSubschemas)
	}
	s := &Schema{}
	c.compiled[v] = s
	if v.Type == strict.Boolean {
		s.rejectAll = v.Text == "false"
		return s, nil
	}
	if v.Type != strict.Object {
		return nil, errors.New("a subschema is neither an object nor a boolean")
	}
	for i := range v.Members {
		m := &v.Members[i]
		known, err := s.readAssertion(m.Name, &m.Value)
		if !known && err == nil {
			known, err = c.compileApplicator(s, m.Name, &m.Value, v)
		}
		if err != nil {
			return nil, err
		}
		if !known && !slices.Contains(annotations, m.Name) && !strings.HasPrefix(m.Name, "x-") {
			return nil, fmt.Errorf("unsupported keyword %q", text.OneLine(m.Name, 40))
		}
	}
	return s, nil
}

// readAssertion reads a keyword that holds no subschema into s. known is false for other keywords. It rejects a value
// that the keyword does not allow.
func (s *Schema) readAssertion(keyword string, v *strict.Value) (known bool, err error) {
	switch keyword {
	case "type":
		s.Types, err = readTypes(v)
	case "enum":
		if err = requireType(keyword, v, strict.Array); err == nil {
			s.restrictEnum(v.Items)
		}
	case "const":
		s.restrictEnum([]strict.Value{*v})
	case "minimum", "exclusiveMinimum":
		s.minimum, err = narrowBound(s.minimum, keyword, v, 1)
	case "maximum", "exclusiveMaximum":
		s.maximum, err = narrowBound(s.maximum, keyword, v, -1)
	case "multipleOf":
		s.multipleOf = v
		if !isNumber(v) || v.Rat().Sign() <= 0 {
			err = errors.New("multipleOf is not a number above 0")
		}
	case "minLength", "maxLength":
		err = s.length.read(keyword, v)
	case "minItems", "maxItems":
		err = s.itemCount.read(keyword, v)
	case "minProperties", "maxProperties":
		err = s.memberCount.read(keyword, v)
	case "pattern":
		if err = requireType(keyword, v, strict.String); err == nil {
			s.pattern, err = compilePattern(v.Text)
		}
	case "uniqueItems":
		s.uniqueItems = v.Text == "true"
		err = requireType(keyword, v, strict.Boolean)
	case "required":
		names, ok := v.Strings()
		s.Required = names
		if !ok || v.Type != strict.Array {
			err = errors.New("required is not an array of strings")
		}
	default:
		return false, nil
	}
	return true, err
}

// compileApplicator compiles a keyword that holds subschemas or a reference into s. in is the schema object that holds
// the keyword. known is false for other keywords. It rejects $id in a subschema, and ignores additionalItems unless
// items is a list.
func (c *compiler) compileApplicator(s *Schema, keyword string, v, in *strict.Value) (known bool, err error) {
	switch keyword {
	case "properties":
		err = c.compileProperties(s, v)
	case "patternProperties":
		err = c.compilePatternProperties(s, v)
	case "additionalProperties":
		s.AdditionalProperties, err = c.compile(v)
	case "propertyNames":
		s.propertyNames, err = c.compile(v)
	case "items":
		if v.Type == strict.Array { // before draft 2020-12
			s.prefixItems, err = c.compileList(keyword, v)
		} else {
			s.Items, err = c.compile(v)
		}
	case "prefixItems":
		s.prefixItems, err = c.compileList(keyword, v)
	case "additionalItems":
		if items := in.Member("items"); items != nil && items.Type == strict.Array {
			s.Items, err = c.compile(v)
		}
	case "allOf":
		s.allOf, err = c.compileList(keyword, v)
	case "anyOf":
		s.AnyOf, err = c.compileList(keyword, v)
	case "oneOf":
		s.oneOf, err = c.compileList(keyword, v)
	case "not":
		s.not, err = c.compile(v)
	case "$ref":
		s.ref, err = c.compileReference(v)
	case "$id":
		if v.Type != strict.String || in != c.root { // an inner $id would change the base of references
			err = errors.New("$id in a subschema")
		}
	default:
		return false, nil
	}
	return true, err
}

// readTypes reads the value of the keyword type: a name or a list of names. It rejects an empty list and unknown names.
func readTypes(v *strict.Value) (types strict.Types, err error) {
	names, ok := v.Strings()
	if !ok || len(names) == 0 {
		return 0, errors.New("type is neither a name nor a list of names")
	}
	for _, name := range names {
		named := strict.TypesNamed(name)
		if named == 0 {
			return 0, fmt.Errorf("unknown type %q", text.OneLine(name, 40))
		}
		types |= named
	}
	return types, nil
}

// restrictEnum allows only values that are in the list, and in the one of an earlier enum or const. An empty list
// allows nothing.
func (s *Schema) restrictEnum(values []strict.Value) {
	if s.hasEnum {
		c := checker{budget: maxWork}
		values = slices.DeleteFunc(slices.Clone(s.Enum), func(a strict.Value) bool {
			return !slices.ContainsFunc(values, func(b strict.Value) bool { return c.isEqual(&a, &b) })
		})
	}
	s.Enum, s.hasEnum = values, true
}

// narrowBound reads minimum, maximum and their exclusive forms. Of v and the earlier bound old, nil when there is none,
// it keeps the narrower one. direction is 1 for a lower bound and -1 for an upper one. It rejects a v that is no
// number.
func narrowBound(old *bound, keyword string, v *strict.Value, direction int) (*bound, error) {
	if !isNumber(v) {
		return nil, fmt.Errorf("%s is not a number", keyword)
	}
	b := &bound{v, strings.HasPrefix(keyword, "exclusive")}
	if old != nil {
		if d := compareNumbers(old.number, v) * direction; d > 0 || d == 0 && old.exclusive {
			return old, nil
		}
	}
	return b, nil
}

// read sets the lower end of the range for a keyword that begins with min, otherwise the upper one. It accepts whole
// numbers from 0 to 999,999,999.
func (r *lengthRange) read(keyword string, v *strict.Value) error {
	if v.Type != strict.Integer {
		return fmt.Errorf("%s is not a whole number", keyword)
	}
	n, err := strconv.Atoi(v.Rat().Num().String())
	switch {
	case err != nil || n < 0 || n > 999_999_999:
		return fmt.Errorf("%s is not between 0 and 999999999", keyword)
	case strings.HasPrefix(keyword, "min"):
		r.min = n
	default:
		r.max, r.bounded = n, true
	}
	return nil
}

func requireType(keyword string, v *strict.Value, t strict.Types) error {
	if v.Type != t {
		return fmt.Errorf("%s is not of type %s", keyword, t)
	}
	return nil
}

// compileList compiles a list of schemas. It rejects an empty list.
func (c *compiler) compileList(keyword string, v *strict.Value) (out []*Schema, err error) {
	if v.Type != strict.Array || len(v.Items) == 0 {
		return nil, fmt.Errorf("%s is not a list of schemas", keyword)
	}
	for i := range v.Items {
		s, err := c.compile(&v.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// compileProperties compiles the keyword properties into s and keeps the order of the names. It rejects anything but an
// object.
func (c *compiler) compileProperties(s *Schema, v *strict.Value) error {
	s.Properties = make(map[string]*Schema, len(v.Members))
	for i := range v.Members {
		m := &v.Members[i]
		inner, err := c.compile(&m.Value)
		if err != nil {
			return err
		}
		s.PropertyNames = append(s.PropertyNames, m.Name)
		s.Properties[m.Name] = inner
	}
	return requireType("properties", v, strict.Object)
}

// compilePatternProperties compiles the keyword patternProperties into s. It rejects anything but an object, and names
// that [compilePattern] rejects.
func (c *compiler) compilePatternProperties(s *Schema, v *strict.Value) error {
	for i := range v.Members {
		m := &v.Members[i]
		inner, err := c.compile(&m.Value)
		if err != nil {
			return err
		}
		p, err := compilePattern(m.Name)
		if err != nil {
			return err
		}
		s.patterns = append(s.patterns, patternProperty{p, inner})
	}
	return requireType("patternProperties", v, strict.Object)
}

// compileReference compiles the schema that a $ref points to. It rejects references that are not a JSON pointer into
// the document itself, percent escapes, and pointers to nothing; nothing is ever loaded. A schema may refer to itself.
func (c *compiler) compileReference(v *strict.Value) (*Schema, error) {
	path, local := strings.CutPrefix(v.Text, "#")
	if v.Type != strict.String || !local || path != "" && path[0] != '/' || strings.Contains(path, "%") {
		return nil, fmt.Errorf("reference %q does not point into the schema itself", text.OneLine(v.Text, 40))
	}
	target := c.root
	for i, token := range strings.Split(path, "/") {
		if i == 0 {
			continue
		}
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		n, err := strconv.Atoi(token)
		switch {
		case target.Type == strict.Object:
			target = target.Member(token)
		case target.Type == strict.Array && err == nil && n >= 0 && n < len(target.Items):
			target = &target.Items[n]
		default:
			target = nil
		}
		if target == nil {
			return nil, fmt.Errorf("reference %q not found", text.OneLine(v.Text, 40))
		}
	}
	return c.compile(target)
}

// compilePattern compiles a regular expression of RE2, which matches in time linear to the text. It rejects other
// syntax, expressions over maxPatternBytes, and those over maxPatternSteps: a short expression can still compile to
// millions of instructions, so its size is estimated first.
func compilePattern(source string) (*pattern, error) {
	if len(source) > maxPatternBytes {
		return nil, fmt.Errorf("pattern longer than %d bytes", maxPatternBytes)
	}
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("pattern %q is not a valid RE2 expression", text.OneLine(source, 40))
	}
	steps := estimateSteps(tree)
	if steps > maxPatternSteps {
		return nil, fmt.Errorf("pattern %q compiles to more than %d instructions", text.OneLine(source, 40),
			maxPatternSteps)
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("pattern %q does not compile", text.OneLine(source, 40))
	}
	return &pattern{re, source, steps}, nil
}

// estimateSteps returns about how many instructions an expression compiles to, at most maxPatternSteps+1.
func estimateSteps(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		n += estimateSteps(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxPatternSteps+1)
}

// Literal returns a schema that is written as indented text in the program, without its white space: schemas are sent
// to models and count as tokens. It panics on text that is no JSON.
func Literal(text string) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		panic(fmt.Sprintf("schema %s: %v", text, err))
	}
	return b.Bytes()
}
