package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// errNotEditable means that a file is written in a way that [SetValue] cannot change without touching the rest of it.
var errNotEditable = errors.New("the file is written in a way that cannot be changed here; change it by hand")

// SetValue returns the document data with the field at keys set to value, and everything else, comments and order
// included, as it was. text quotes the value, for a field that takes text. Missing fields are added: below their
// parent, or at the end. It fails, and nothing is lost, when the result would differ from the document in anything but
// this field. The value itself is not validated. name is the file's name in errors.
func SetValue(data []byte, name string, keys []string, value string, text bool) ([]byte, error) {
	d := decoder{file: name, lines: Lines{}}
	root, err := d.parse(data)
	if err != nil {
		return nil, err
	}
	written := value
	if text {
		b, err := json.Marshal(value) // valid in YAML too
		if err != nil {
			return nil, err
		}
		written = string(b)
	}
	if strings.ContainsAny(written, "\r\n") || strings.TrimSpace(written) == "" {
		return nil, &Error{File: name, Path: strings.Join(keys, "."), Text: "must be one line"}
	}
	before, err := decodeMap(data)
	if err != nil {
		return nil, &Error{File: name, Text: errNotEditable.Error()}
	}
	next := placeValue(string(data), root, keys, written)
	after, err := decodeMap([]byte(next))
	if err != nil || !differsOnlyAt(before, after, keys) {
		return nil, &Error{File: name, Path: strings.Join(keys, "."), Text: errNotEditable.Error()}
	}
	return []byte(next), nil
}

// placeValue writes a value into the text of a document.
func placeValue(doc string, root *yaml.Node, keys []string, value string) string {
	lines := strings.SplitAfter(doc, "\n")
	at := root
	for i, key := range keys {
		k, v := findKey(at, key)
		if v == nil {
			return addKey(lines, at, keys[i:], value, i == 0)
		}
		if i == len(keys)-1 {
			return replaceScalar(lines, k, v, value)
		}
		if v.Kind == yaml.MappingNode && v.Style&yaml.FlowStyle == 0 && len(v.Content) > 0 {
			if _, child := findKey(v, keys[i+1]); child == nil {
				indent := strings.Repeat(" ", v.Content[0].Column-1)
				return insertAfter(lines, k.Line, block(keys[i+1:], value, indent))
			}
		}
		at = v
	}
	return doc
}

// findKey returns the nodes of a field of a mapping, nil when there is none.
func findKey(n *yaml.Node, key string) (k, v *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

// addKey adds a field that the mapping n does not have: at the end of the file for the document, inside the braces for
// a flow mapping.
func addKey(lines []string, n *yaml.Node, keys []string, value string, top bool) string {
	if n != nil && n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle != 0 {
		rest := ""
		if len(n.Content) > 0 {
			rest = ", "
		}
		written := value
		for i := len(keys) - 1; i >= 0; i-- {
			written = keys[i] + ": " + written
			if i > 0 {
				written = "{" + written + "}"
			}
		}
		line := lines[n.Line-1]
		lines[n.Line-1] = line[:n.Column] + written + rest + line[n.Column:]
		return strings.Join(lines, "")
	}
	if !top {
		return ""
	}
	doc := strings.Join(lines, "")
	if doc != "" && !strings.HasSuffix(doc, "\n") {
		doc += "\n"
	}
	return doc + block(keys, value, "")
}

// block is a field with its parents as lines.
func block(keys []string, value, indent string) string {
	var b strings.Builder
	for i, k := range keys {
		if i < len(keys)-1 {
			fmt.Fprintf(&b, "%s%s:\n", indent, k)
			indent += "  "
			continue
		}
		fmt.Fprintf(&b, "%s%s: %s\n", indent, k, value)
	}
	return b.String()
}

func insertAfter(lines []string, line int, text string) string {
	if !strings.HasSuffix(lines[line-1], "\n") {
		lines[line-1] += "\n"
	}
	return strings.Join(lines[:line], "") + text + strings.Join(lines[line:], "")
}

// replaceScalar replaces a value that is written on the line of its key.
func replaceScalar(lines []string, k, v *yaml.Node, value string) string {
	if v.Kind != yaml.ScalarNode || v.Line != k.Line || v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return ""
	}
	line := lines[v.Line-1]
	from := v.Column - 1
	if from >= len(line) {
		return ""
	}
	to := from + scalarEnd(line[from:], v)
	lines[v.Line-1] = line[:from] + value + line[to:]
	return strings.Join(lines, "")
}

// scalarEnd returns the length of a scalar at the start of text.
func scalarEnd(text string, v *yaml.Node) int {
	switch {
	case v.Style&yaml.DoubleQuotedStyle != 0:
		for i := 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
	case v.Style&yaml.SingleQuotedStyle != 0:
		for i := 1; i < len(text); i++ {
			if text[i] != '\'' {
				continue
			}
			if i+1 < len(text) && text[i+1] == '\'' {
				i++
				continue
			}
			return i + 1
		}
	case strings.HasPrefix(text, v.Value): // a plain scalar is written as it is read
		return len(v.Value)
	}
	return len(text)
}

// decodeMap returns a document as plain values, an empty map for an empty one.
func decodeMap(data []byte) (map[string]any, error) {
	out := map[string]any{}
	if len(bytes.TrimSpace(data)) == 0 {
		return out, nil
	}
	err := yaml.Unmarshal(data, &out)
	if out == nil {
		out = map[string]any{}
	}
	return out, err
}

// differsOnlyAt reports whether two documents are equal but for the field at keys, which the second one has.
func differsOnlyAt(before, after map[string]any, keys []string) bool {
	next, ok := after[keys[0]]
	was := before[keys[0]]
	others := func(m map[string]any) map[string]any {
		m = maps.Clone(m)
		delete(m, keys[0])
		return m
	}
	if !ok || !maps.EqualFunc(others(before), others(after), func(a, b any) bool { return reflect.DeepEqual(a, b) }) {
		return false
	}
	if len(keys) == 1 {
		return true
	}
	nextMap, isMap := next.(map[string]any)
	wasMap, wasOne := was.(map[string]any)
	return isMap && (wasOne || was == nil) && differsOnlyAt(wasMap, nextMap, keys[1:])
}

// SetEntry returns the document data with the entry of the mapping field set to value, or without it when value is nil.
// Comments and order are kept; line breaks inside of other values may change. name is the file's name in errors.
func SetEntry(data []byte, name, field, entry string, value any) ([]byte, error) {
	d := decoder{file: name, lines: Lines{}}
	if _, err := d.parse(data); err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, &Error{File: name, Text: errNotEditable.Error()}
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	root := doc.Content[0]
	_, entries := findKey(root, field)
	if entries == nil {
		entries = &yaml.Node{Kind: yaml.MappingNode}
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: field}, entries)
	}
	if entries.Kind != yaml.MappingNode {
		*entries = yaml.Node{Kind: yaml.MappingNode}
	}
	entries.Style = 0
	at := len(entries.Content)
	for i := 0; i+1 < len(entries.Content); i += 2 {
		if entries.Content[i].Value == entry {
			at = i
		}
	}
	rest := entries.Content[min(at+2, len(entries.Content)):]
	if value == nil {
		entries.Content = append(entries.Content[:at:at], rest...)
	} else {
		var node yaml.Node
		if err := node.Encode(value); err != nil {
			return nil, err
		}
		entries.Content = slices.Concat(entries.Content[:at], []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: entry},
			&node,
		}, rest)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	err := e.Encode(&doc)
	return out.Bytes(), errors.Join(err, e.Close())
}
