// Package strict decodes YAML, JSON and msgpack as a policy requires: two readers of the same bytes must not see two
// different documents. An unknown field, a duplicate field or a value of the wrong type is an error.
//
// An error in YAML has file, line and field; an empty value is one too. The line of each value is returned, so that a
// user can be told where a setting came from. Anchors, merge keys and tags are rejected: with them a file means more
// than its reader sees.
package strict

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"conclave/pkg/text"
)

// MaxFile is the largest accepted file, in bytes.
const MaxFile = 1 << 20

// maxErrors bounds the errors that are reported of one file.
const maxErrors = 20

// Error is one error in a file.
type Error struct {
	File string
	Line int    // 0 = the file as a whole
	Path string // the field, "" = the document
	Text string
}

// Error implements error: file:line: path: text, without line and path when they are unknown. File must be set.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Text)
	return b.String()
}

// Lines maps the path of each field to its line: "actor.drain", "types.coder.tools[2]".
type Lines map[string]int

// At returns the line of path, or of the nearest enclosing field or the document; 0 when there is none.
func (l Lines) At(path string) int {
	for path != "" {
		if n, ok := l[path]; ok {
			return n
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return l[""]
}

// Decode decodes the one YAML document in data into the struct that out points to. Fields that the document does not
// name keep their value, so that one file can override another; an empty document changes nothing. It rejects unknown
// and duplicate fields, empty values, anchors, tags, values of another type, a second document and more than [MaxFile]
// bytes. The error joins at most maxErrors of them; out may then be partly changed. name is the file's name in errors.
func Decode(data []byte, name string, out any) (Lines, error) {
	d := decoder{file: name, lines: Lines{}}
	root, err := d.parse(data)
	if err != nil || root == nil {
		return d.lines, err
	}
	d.decode(root, "", reflect.ValueOf(out).Elem())
	return d.lines, d.joinErrors()
}

// Assign sets the one field of the struct out points to at path (names joined by dots) to value, the text of a flag:
// quotes and YAML are not interpreted, and any text fits a string. It rejects an unknown path and a value of another
// type; a list or map cannot be set, and path must not lead through a map, whose other entries would be lost. name is
// the flag's name in errors.
func Assign(out any, path, value, name string) error {
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	keys := strings.Split(path, ".")
	for _, k := range slices.Backward(keys) {
		node = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: k, Tag: "!!str"},
			node,
		}}
	}
	d := decoder{file: name, lines: Lines{}, fromFlag: true}
	d.decode(node, "", reflect.ValueOf(out).Elem())
	return d.joinErrors()
}

// Field is one setting as text.
type Field struct {
	Path, Value string
	Type        string // see [TypeName]
}

// TypeName is the kind of value that a field of this type takes, for users: text, number, bool, duration, size, list or
// table.
func TypeName(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType:
		return "duration"
	case t == reflect.TypeFor[Size]():
		return "size"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "table"
	}
	return "text"
}

// Fields lists the settings of the struct v in the order of its fields, as a user would write them. What is not set is
// left out where it means that another value holds: a nil pointer, and a zero value with omitempty.
func Fields(v any) []Field { return appendFields(nil, "", reflect.ValueOf(v)) }

// appendFields appends the settings below path in v: a struct without a String method is descended into, by its fields
// with a yaml tag, and so is a map, by its keys. Any other value is one setting.
func appendFields(out []Field, path string, v reflect.Value) []Field {
	_, isText := v.Interface().(fmt.Stringer)
	switch kind := v.Kind(); {
	case kind == reflect.Pointer && v.IsNil():
		return out
	case isText:
	case kind == reflect.Pointer:
		return appendFields(out, path, v.Elem())
	case kind == reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			out = appendFields(out, JoinPath(path, key.String()), v.MapIndex(key))
		}
		return out
	case kind == reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			value := v.FieldByIndex(f.Index)
			if key != "" && key != "-" && !(options == "omitempty" && value.IsZero()) {
				out = appendFields(out, JoinPath(path, key), value)
			}
		}
		return out
	}
	text := fmt.Sprint(v.Interface())
	switch value := v.Interface().(type) {
	case time.Duration:
		text = FormatDuration(value)
	case []string:
		text = strings.Join(value, ", ")
	}
	return append(out, Field{Path: path, Value: text, Type: TypeName(v.Type())})
}

// decoder decodes one document and collects its errors.
type decoder struct {
	file     string
	fromFlag bool // the value is a flag's text: any scalar may be a string
	lines    Lines
	errs     []error
	dropped  int // errors beyond maxErrors
}

// parserLine matches the line of a syntax error in the parser's message.
var parserLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// parse returns the root of the one document, nil when it is empty or null. It rejects a second document, invalid YAML
// and more than MaxFile bytes.
func (d *decoder) parse(data []byte) (*yaml.Node, error) {
	if len(data) > MaxFile {
		return nil, &Error{File: d.file, Text: fmt.Sprintf("larger than %d bytes", MaxFile)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, d.syntaxError(err)
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, &Error{File: d.file, Line: next.Line, Text: "a second document; a file holds one"}
	case !errors.Is(err, io.EOF):
		return nil, d.syntaxError(err)
	}
	if len(doc.Content) != 1 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, nil
	}
	return root, nil
}

// syntaxError returns the parser's error as an [Error], with the line that its text names, if any.
func (d *decoder) syntaxError(err error) error {
	text := err.Error()
	e := &Error{File: d.file, Text: text}
	if m := parserLine.FindStringSubmatch(text); m != nil {
		e.Line, _ = strconv.Atoi(m[1]) // no line: 0, the file as a whole
		e.Text = strings.TrimPrefix(text, m[0])
	}
	if strings.HasPrefix(e.Text, "unknown anchor") { // it quotes the text of the file
		e.Text = "anchors are not supported; write the value out"
	}
	return e
}

func (d *decoder) addError(n *yaml.Node, path, format string, a ...any) {
	if len(d.errs) == maxErrors {
		d.dropped++
		return
	}
	d.errs = append(d.errs, &Error{File: d.file, Line: n.Line, Path: path, Text: fmt.Sprintf(format, a...)})
}

func (d *decoder) joinErrors() error {
	if d.dropped > 0 {
		d.errs = append(d.errs, &Error{File: d.file, Text: fmt.Sprintf("and %d more errors", d.dropped)})
	}
	return errors.Join(d.errs...)
}

// decode decodes n into v, records the line of path, and reports errors with addError; v may then be partly changed. It
// rejects anchors, tags and, except from a flag, empty values. A list or map replaces the former value. v must be
// settable.
func (d *decoder) decode(n *yaml.Node, path string, v reflect.Value) {
	d.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.addError(n, path, "anchors are not supported; write the value out")
		return
	case n.Style&yaml.TaggedStyle != 0:
		d.addError(n, path, "tags are not supported; write the plain value")
		return
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && !d.fromFlag:
		d.addError(n, path, "has no value; give one or leave the line out")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if n.Kind != yaml.ScalarNode {
			d.addError(n, path, "must be one value")
		} else if err := t.UnmarshalText([]byte(n.Value)); err != nil {
			d.addError(n, path, "%v", err)
		}
		return
	}
	switch {
	case v.Type() == durationType:
		d.decodeDuration(n, path, v)
	case v.Kind() == reflect.Interface:
		d.decodeAny(n, path, v)
	case v.Kind() == reflect.Struct:
		d.decodeStruct(n, path, v)
	case v.Kind() == reflect.Map:
		d.decodeMap(n, path, v)
	case v.Kind() == reflect.Slice:
		d.decodeList(n, path, v)
	default:
		d.decodeScalar(n, path, v)
	}
}

// decodeStruct decodes the fields with a yaml tag and rejects names that the struct does not have. Fields that n does
// not name keep their value.
func (d *decoder) decodeStruct(n *yaml.Node, path string, v reflect.Value) {
	known := map[string]reflect.Value{}
	var names []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		if key, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); key != "" && key != "-" {
			known[key], names = v.FieldByIndex(f.Index), append(names, key)
		}
	}
	d.eachField(n, path, func(key string, k, val *yaml.Node) {
		field, ok := known[key]
		if !ok {
			d.addError(k, joinKnown(path, key), "unknown field; known here: %s", strings.Join(names, ", "))
			return
		}
		d.decode(val, JoinPath(path, key), field)
	})
}

// decodeMap replaces v by a map of the fields of n; any name is accepted. The keys of v must be strings. A field with
// an error is zero; when n is no map, v becomes empty.
func (d *decoder) decodeMap(n *yaml.Node, path string, v reflect.Value) {
	fresh := reflect.MakeMap(v.Type())
	d.eachField(n, path, func(key string, _, val *yaml.Node) {
		elem := reflect.New(v.Type().Elem()).Elem()
		d.decode(val, JoinPath(path, key), elem)
		fresh.SetMapIndex(reflect.ValueOf(key), elem)
	})
	v.Set(fresh)
}

// decodeList replaces v by the elements of n, and rejects anything but a list. An element with an error is zero.
func (d *decoder) decodeList(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.addError(n, path, "must be a list, like [a, b]")
		return
	}
	fresh := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		d.decode(c, fmt.Sprintf("%s[%d]", path, i), fresh.Index(i))
	}
	v.Set(fresh)
}

var durationType = reflect.TypeFor[time.Duration]()

// decodeDuration decodes one value by [ParseDuration] and rejects what it rejects.
func (d *decoder) decodeDuration(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.addError(n, path, "must be one value, like 60s or 10m")
		return
	}
	t, err := ParseDuration(n.Value)
	if err != nil {
		d.addError(n, path, "%v", err)
		return
	}
	v.SetInt(int64(t))
}

// decodeAny decodes data without a schema, such as the arguments of a call, into maps, lists and scalars. It rejects
// scalars other than text, numbers and booleans, such as an unquoted date.
func (d *decoder) decodeAny(n *yaml.Node, path string, v reflect.Value) {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		d.decode(n, path, reflect.ValueOf(&m).Elem())
		v.Set(reflect.ValueOf(m))
	case yaml.SequenceNode:
		var l []any
		d.decode(n, path, reflect.ValueOf(&l).Elem())
		v.Set(reflect.ValueOf(l))
	default:
		var x any
		switch tag := n.ShortTag(); {
		case tag != "!!str" && tag != "!!bool" && tag != "!!int" && tag != "!!float", n.Decode(&x) != nil:
			d.addError(n, path, "%s is neither text, a number, true nor false; put it in quotes",
				quoteForError(n.Value))
		default:
			v.Set(reflect.ValueOf(x))
		}
	}
}

// eachField calls each with the name and nodes of every field of n. It reports, and skips, merge keys, duplicate names
// and names that are not plain text, and reports an n that is no map.
func (d *decoder) eachField(n *yaml.Node, path string, each func(key string, k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.addError(n, path, "must hold fields, like name: value")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge":
			d.addError(k, path, "merge keys are not supported; write the fields out")
			continue
		case k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str" || k.Anchor != "" || k.Style&yaml.TaggedStyle != 0:
			d.addError(k, path, "the name of a field must be plain text")
			continue
		}
		if first, twice := seen[k.Value]; twice {
			d.addError(k, joinKnown(path, k.Value), "written twice, first on line %d", first)
			continue
		}
		seen[k.Value] = k.Line
		each(k.Value, k, v)
	}
}

// decodeScalar decodes one value into a string, bool, int, int64 or float64 field, without conversion between them,
// except that any text of a flag is a string. A value of another type, no single value, or an integer that
// overflows is added to the errors of d, and the field keeps its value. It panics on a field of any other kind,
// also uint and int32.
func (d *decoder) decodeScalar(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.addError(n, path, "must be one value")
		return
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String:
		if tag != "!!str" && !d.fromFlag {
			d.addError(n, path, "%s is not text; put it in quotes", quoteForError(n.Value))
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		var b bool
		if tag != "!!bool" || n.Decode(&b) != nil {
			d.addError(n, path, "%s is neither true nor false", quoteForError(n.Value))
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		var i int64
		if tag != "!!int" || n.Decode(&i) != nil || v.OverflowInt(i) {
			d.addError(n, path, "%s is not a whole number", quoteForError(n.Value))
			return
		}
		v.SetInt(i)
	case reflect.Float64:
		var f Decimal
		if err := f.UnmarshalText([]byte(n.Value)); err != nil {
			d.addError(n, path, "%v", err)
			return
		}
		v.SetFloat(float64(f))
	default:
		panic("strict: no reader for " + v.Type().String()) // a bug in the struct that the first test of it finds
	}
}

// fieldName matches the name of a field.
var fieldName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)

// joinKnown is [JoinPath] for a name that may not be one of a field: a line of another file, perhaps with a credential,
// is not quoted.
func joinKnown(path, key string) string {
	if !fieldName.MatchString(key) {
		return path
	}
	return JoinPath(path, key)
}

// JoinPath appends a field's name to a path, quoted where it is not plain.
func JoinPath(path, key string) string {
	if path == "" {
		return quoteForError(key)
	}
	return path + "." + quoteForError(key)
}

// quoteForError is a name or value as errors print it: short, and quoted when it holds more than plain characters.
func quoteForError(s string) string {
	s = text.Clip(s, 60)
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) || s == "" {
		return strconv.Quote(s)
	}
	return s
}

// SortedKeys returns the keys of m in order, so that errors about a decoded map have a stable order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
