package policy

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/text"
)

// Bounds of a schema. A tool's definition of an hour's reading is below a tenth of each.
const (
	maxSchemaBytes = 256 << 10
	maxSchemaNodes = 2000
	maxPattern     = 1024 // bytes of a pattern
	maxProgram     = 4000 // steps that a pattern may be compiled to
)

// schema is a JSON Schema made ready for checking. The bounds of its checking stand with [checker].
type schema struct {
	never bool     // the schema false
	kinds jsonKind // 0 = any

	enum      []*value // nil = any; const is a list of one
	low, high *limit
	multiple  *decimal

	length  span // of a string, in characters
	pattern *pattern

	prefix []*schema
	items  *schema // of the elements behind prefix
	count  span
	unique bool

	names    []string // of props, as written
	props    map[string]*schema
	required []string
	patterns []patternProperty
	other    *schema // of properties that are not named; nil = any
	keys     *schema // of the names themselves
	members  span

	ref                 *schema
	not                 *schema
	allOf, anyOf, oneOf []*schema
}

// limit is the least or the most a number may be.
type limit struct {
	decimal
	text      string
	exclusive bool
}

// span is the least and the most of a length.
type span struct {
	least, most int
	bounded     bool // most counts
}

type patternProperty struct {
	*pattern
	schema *schema
}

// pattern is a regular expression in time linear to the text, and how long one byte takes.
type pattern struct {
	*regexp.Regexp
	source string
	steps  int
}

// annotations say nothing about what is valid. format is one by the standard, and stays one: a reader that knows a format
// and one that does not must agree.
var annotations = []string{
	"$comment", "$defs", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions",
	"deprecated", "description", "example", "examples", "format", "readOnly", "title", "writeOnly",
}

// compileSchema makes a schema ready. Whatever it does not understand is an error: a rule that is not read is a rule
// that is not kept.
func compileSchema(raw []byte) (*schema, error) {
	if len(raw) > maxSchemaBytes {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(raw), maxSchemaBytes)
	}
	root, err := readJSON(raw)
	if err != nil {
		return nil, err
	}
	c := compiler{root: &root, done: map[*value]*schema{}}
	return c.schema(&root)
}

type compiler struct {
	root *value
	done map[*value]*schema // also those under way: a schema may refer to itself
}

func (c *compiler) schema(v *value) (*schema, error) {
	if s := c.done[v]; s != nil {
		return s, nil
	}
	if len(c.done) >= maxSchemaNodes {
		return nil, fmt.Errorf("it has more than %d parts", maxSchemaNodes)
	}
	s := &schema{}
	c.done[v] = s
	if v.kind == jsonBool {
		s.never = v.text == "false"
		return s, nil
	}
	if v.kind != jsonObject {
		return nil, errors.New("a part of it is neither an object nor a boolean")
	}
	for i := range v.members {
		m := &v.members[i]
		known, err := c.keyword(s, m.key, &m.value, v)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, fmt.Errorf("the keyword %q is not understood", text.OneLine(m.key, 40))
		}
	}
	return s, nil
}

// keyword reads one keyword of the schema in into s.
func (c *compiler) keyword(s *schema, key string, v, in *value) (known bool, err error) {
	switch key {
	case "type":
		s.kinds, err = kindsOf(v)
	case "enum":
		if v.kind != jsonArray {
			return true, errors.New("enum is not a list")
		}
		s.enum = either(s.enum, pointers(v.items))
	case "const":
		s.enum = either(s.enum, []*value{v})
	case "minimum", "exclusiveMinimum":
		s.low, err = c.limit(s.low, v, key == "exclusiveMinimum", 1)
	case "maximum", "exclusiveMaximum":
		s.high, err = c.limit(s.high, v, key == "exclusiveMaximum", -1)
	case "multipleOf":
		d := v.decimal()
		if s.multiple = &d; v.kind&(jsonNumber|jsonInteger) == 0 || d.digits == "" || d.negative {
			return true, errors.New("multipleOf is not a number above 0")
		}
	case "minLength", "maxLength":
		err = s.length.read(key, v)
	case "minItems", "maxItems":
		err = s.count.read(key, v)
	case "minProperties", "maxProperties":
		err = s.members.read(key, v)
	case "pattern":
		if v.kind != jsonString {
			return true, errors.New("pattern is not a string")
		}
		s.pattern, err = compilePattern(v.text)
	case "uniqueItems":
		s.unique = v.text == "true" && v.kind == jsonBool
		err = isKind(key, v, jsonBool)
	case "required":
		names, ok := v.stringsOf()
		if s.required = names; !ok || v.kind != jsonArray {
			return true, errors.New("required is not a list of names")
		}
	case "properties", "patternProperties":
		err = c.properties(s, key, v)
	case "additionalProperties":
		s.other, err = c.schema(v)
	case "propertyNames":
		s.keys, err = c.schema(v)
	case "items":
		if v.kind == jsonArray { // as it was written before prefixItems
			s.prefix, err = c.list(key, v)
		} else {
			s.items, err = c.schema(v)
		}
	case "prefixItems":
		s.prefix, err = c.list(key, v)
	case "additionalItems":
		if items := in.at("items"); items != nil && items.kind == jsonArray {
			s.items, err = c.schema(v)
		}
	case "allOf":
		s.allOf, err = c.list(key, v)
	case "anyOf":
		s.anyOf, err = c.list(key, v)
	case "oneOf":
		s.oneOf, err = c.list(key, v)
	case "not":
		s.not, err = c.schema(v)
	case "$ref":
		s.ref, err = c.reference(v)
	case "$id":
		if v.kind != jsonString || in != c.root { // inside it would change what references mean
			err = errors.New("an inner part of it has an $id")
		}
	default:
		return slices.Contains(annotations, key) || strings.HasPrefix(key, "x-"), nil
	}
	return true, err
}

// kindsOf reads type.
func kindsOf(v *value) (jsonKind, error) {
	names, ok := v.stringsOf()
	if !ok || len(names) == 0 {
		return 0, errors.New("type is neither a name nor a list of names")
	}
	var kinds jsonKind
	for _, name := range names {
		var one jsonKind
		for _, n := range jsonNames {
			if n.name == name {
				one = n.kind
			}
		}
		if one == 0 {
			return 0, fmt.Errorf("there is no type %q", text.OneLine(name, 40))
		}
		kinds |= one
	}
	return kinds, nil
}

// either is the values of both lists; nil is any.
func either(a, b []*value) []*value {
	if a == nil {
		return b
	}
	w := checker{work: maxWork}
	both := []*value{}
	for _, v := range a {
		if slices.ContainsFunc(b, func(o *value) bool { return w.equal(v, o) }) {
			both = append(both, v)
		}
	}
	return both
}

func pointers(in []value) []*value {
	out := make([]*value, len(in))
	for i := range in {
		out[i] = &in[i]
	}
	return out
}

// limit reads a bound; of two on the same side the narrower one counts. narrower is 1 for the least and -1 for the most.
func (c *compiler) limit(old *limit, v *value, exclusive bool, narrower int) (*limit, error) {
	if v.kind&(jsonNumber|jsonInteger) == 0 {
		return nil, errors.New("a minimum or maximum is not a number")
	}
	l := &limit{v.decimal(), v.text, exclusive}
	if old != nil {
		if d := old.compare(l.decimal) * narrower; d > 0 || d == 0 && old.exclusive {
			return old, nil
		}
	}
	return l, nil
}

// read takes one bound of a length.
func (s *span) read(key string, v *value) error {
	n, ok := v.count()
	switch {
	case !ok:
		return fmt.Errorf("%s is not a whole number of a usual size", key)
	case strings.HasPrefix(key, "min"):
		s.least = n
	default:
		s.most, s.bounded = n, true
	}
	return nil
}

func isKind(key string, v *value, kind jsonKind) error {
	if v.kind != kind {
		return fmt.Errorf("%s is not of type %s", key, kind)
	}
	return nil
}

func (c *compiler) list(key string, v *value) (out []*schema, err error) {
	if v.kind != jsonArray || len(v.items) == 0 {
		return nil, fmt.Errorf("%s is not a list with something in it", key)
	}
	for i := range v.items {
		s, err := c.schema(&v.items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (c *compiler) properties(s *schema, key string, v *value) error {
	if err := isKind(key, v, jsonObject); err != nil {
		return err
	}
	if key == "properties" {
		s.props = make(map[string]*schema, len(v.members))
	}
	for i := range v.members {
		m := &v.members[i]
		inner, err := c.schema(&m.value)
		if err != nil {
			return err
		}
		if key == "properties" {
			s.names = append(s.names, m.key)
			s.props[m.key] = inner
			continue
		}
		p, err := compilePattern(m.key)
		if err != nil {
			return err
		}
		s.patterns = append(s.patterns, patternProperty{p, inner})
	}
	return nil
}

// reference follows a $ref inside the document. Nothing is ever loaded.
func (c *compiler) reference(v *value) (*schema, error) {
	path, local := strings.CutPrefix(v.text, "#")
	if v.kind != jsonString || !local || path != "" && path[0] != '/' || strings.Contains(path, "%") {
		return nil, fmt.Errorf("the reference %q does not point into the schema itself", text.OneLine(v.text, 40))
	}
	to := c.root
	for i, token := range strings.Split(path, "/") {
		if i == 0 {
			continue
		}
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch {
		case to.kind == jsonObject:
			to = to.at(token)
		case to.kind == jsonArray:
			n, err := strconv.Atoi(token)
			if err != nil || n < 0 || n >= len(to.items) {
				to = nil
				break
			}
			to = &to.items[n]
		default:
			to = nil
		}
		if to == nil {
			return nil, fmt.Errorf("the reference %q points to nothing", text.OneLine(v.text, 40))
		}
	}
	return c.schema(to)
}

// compilePattern reads a regular expression. Go's are linear in the text, but a short one can still be compiled to
// millions of steps: it is measured before it is compiled.
func compilePattern(source string) (*pattern, error) {
	if len(source) > maxPattern {
		return nil, fmt.Errorf("a pattern is longer than %d bytes", maxPattern)
	}
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q is not one that takes linear time (RE2)", text.OneLine(source, 40))
	}
	steps := programSize(tree)
	if steps > maxProgram {
		return nil, fmt.Errorf("the pattern %q would take more than %d steps for each byte", text.OneLine(source, 40), maxProgram)
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q does not compile", text.OneLine(source, 40))
	}
	return &pattern{re, source, steps}, nil
}

// programSize is about how many steps an expression is compiled to. It stops counting above the limit.
func programSize(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		n += programSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxProgram+1)
}
