package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
)

// foundCall is a call and the layer in which it was found.
type foundCall struct {
	model.Call
	layer  string
	source []byte // the text that it was read from; nil = not from text
}

// equals reports whether g is the same call, to the letter.
func (f foundCall) equals(g foundCall) bool {
	return f.Name == g.Name && bytes.Equal(f.Arguments, g.Arguments)
}

// toolNames are the offered tools. Calls of other tools are never read from text.
type toolNames []string

func (n toolNames) has(s string) bool { return slices.Contains(n, s) }

// hasPrefix reports whether some name begins with b.
func (n toolNames) hasPrefix(b []byte) bool {
	return slices.ContainsFunc(n, func(name string) bool { return strings.HasPrefix(name, string(b)) })
}

// Keys that models use for the name and the arguments of a call in JSON, for wrappers, and for members beside them. An
// object with any other key is data and no call.
var (
	nameKeys     = []string{"name", "tool", "function", "tool_name", "function_name"}
	argumentKeys = []string{"arguments", "parameters", "args", "input", "params", "tool_input"}
	wrapKeys     = []string{"tool_calls", "tool_call", "function_call"}
	extraKeys    = []string{"id", "type", "call_id"}
	callKeys     = slices.Concat(nameKeys, argumentKeys, wrapKeys, extraKeys)
)

// parseCalls reads a JSON value as a call or a list of calls. All of it must be calls of offered tools; otherwise it is
// data and ok is false. unknown is the tool of a value that has the form of a call, but is not offered.
func (n toolNames) parseCalls(v *jsonschema.Value) (calls []foundCall, unknown string, ok bool) {
	return n.parseNested(v, 0)
}

// parseNested is parseCalls at a depth of nesting; more than 3 is no call. Deeper than a list in tool_calls in a call
// nobody nests. An empty list is no call either.
func (n toolNames) parseNested(v *jsonschema.Value, depth int) (calls []foundCall, unknown string, ok bool) {
	switch {
	case depth > 3:
	case v.Type == jsonschema.Array:
		for i := range v.Items {
			c, unknown, ok := n.parseNested(&v.Items[i], depth+1)
			if !ok {
				return nil, unknown, false
			}
			calls = append(calls, c...)
		}
		return calls, "", len(calls) > 0
	case v.Type == jsonschema.Object:
		return n.parseObject(v, depth)
	}
	return nil, "", false
}

// callObject is an object in the form of a call: {"name": ..., "arguments": ...} or a variant of it, or a wrapper.
type callObject struct {
	foundCall
	hasName, hasArguments bool
	inner                 *jsonschema.Value // the content of a wrapper; nil = no wrapper
}

// addMember reads one member. It reports false when a call has no such member: another key, a value of the wrong type,
// or a second name, wrapper or arguments.
func (o *callObject) addMember(key string, v *jsonschema.Value) bool {
	isString := v.Type == jsonschema.String
	switch {
	case slices.Contains(nameKeys, key) && isString && !o.hasName:
		o.Name, o.hasName = v.Text, true
	case (key == "function" && v.Type == jsonschema.Object || slices.Contains(wrapKeys, key)) && o.inner == nil:
		o.inner = v
	case slices.Contains(argumentKeys, key) && !o.hasArguments:
		o.Arguments, o.hasArguments = unwrapArguments(v), true
	case (key == "id" || key == "call_id") && isString:
		o.ID = v.Text
	case key == "type" && isString:
		return slices.Contains([]string{"function", "tool_call", "tool_use"}, v.Text)
	default:
		return false
	}
	return true
}

// parseObject reads one object as a call, or as a wrapper around calls. ok is false for an object with any other
// member, without a name, with both a wrapper and a call, or of a tool that is not offered, which unknown then names.
// Missing arguments are {}.
func (n toolNames) parseObject(v *jsonschema.Value, depth int) (calls []foundCall, unknown string, ok bool) {
	var o callObject
	for i := range v.Members {
		if !o.addMember(v.Members[i].Name, &v.Members[i].Value) {
			return nil, "", false
		}
	}
	switch {
	case o.inner != nil && (o.hasName || o.hasArguments) || o.inner == nil && !o.hasName:
		return nil, "", false
	case o.inner != nil:
		calls, unknown, ok = n.parseNested(o.inner, depth+1)
		if len(calls) == 1 && calls[0].ID == "" {
			calls[0].ID = o.ID
		}
		return calls, unknown, ok
	case !n.has(o.Name):
		return nil, o.Name, false
	case !o.hasArguments:
		o.Arguments = json.RawMessage("{}")
	}
	return []foundCall{o.foundCall}, "", true
}

// unwrapArguments is the arguments in v, which may be an object as a string.
func unwrapArguments(v *jsonschema.Value) json.RawMessage {
	if embedded, ok := parseEmbedded(v, jsonschema.Object); ok {
		v = &embedded
	}
	return encodeValue(v)
}

// parseTagged reads the content of call tags, or a bare <function=...> element: JSON, elements and named calls, one
// after another, until it has maxTextCalls; the rest is ignored. ok is false when something in it is none of these, or
// there is no call; calls are the ones before it, and unknown the tool that it names but is not offered.
func (n toolNames) parseTagged(b []byte) (calls []foundCall, unknown string, ok bool) {
	for b = skipWrapTags(b); len(b) > 0 && len(calls) < maxTextCalls; b = skipWrapTags(b) {
		var c []foundCall
		var unknown string
		var size int
		switch {
		case b[0] == '{' || b[0] == '[':
			c, unknown, size = n.parseJSONCalls(b)
		case b[0] == '<':
			c, unknown, size = n.parseElement(b)
		default:
			c, size = n.parseNamedCall(b)
		}
		if size == 0 || len(c) == 0 {
			return calls, unknown, false
		}
		for i := range c {
			c[i].source = b[:size]
		}
		calls, b = append(calls, c...), b[size:]
	}
	return calls, "", len(calls) > 0
}

// skipWrapTags is b without the white space, the call tags (wrapTags) and the commas and semicolons at its start.
func skipWrapTags(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \n\t\r,;")
		tag, _ := matchTag(b, wrapTags)
		if tag == "" {
			return b
		}
		b = b[len(tag):]
	}
}

// parseJSONCalls reads calls from the JSON value at the start of b; size is how many bytes it has. Open brackets are
// closed only when nothing but a call tag follows. size 0 = no calls; unknown then names a tool that is not offered, if
// that is why.
func (n toolNames) parseJSONCalls(b []byte) (calls []foundCall, unknown string, size int) {
	var w valueScanner
	end, done := w.findEnd(b)
	text := b[:end]
	if !done {
		text = bytes.TrimRight(cutAtCallTag(text), " \n\t\r")
	}
	v, err := parseLenient(text)
	if err != nil {
		return nil, "", 0
	}
	calls, unknown, ok := n.parseCalls(&v)
	if !ok {
		return nil, unknown, 0
	}
	return calls, "", len(text)
}

// cutAtCallTag is b before the first call tag in it.
func cutAtCallTag(b []byte) []byte {
	if i, _ := indexAnyTag(b, allCallTags); i >= 0 {
		return b[:i]
	}
	return b
}

// parseElement reads <function=name><parameter=key>value</parameter></function> at the start of b, and the forms with
// name="..." attributes; without its closing tag the element is all of b. Values are strings; coercion converts them.
// size 0 = no call; unknown then names a tool that is not offered, if that is why.
func (n toolNames) parseElement(b []byte) (calls []foundCall, unknown string, size int) {
	tag, name, body := parseOpenTag(b)
	if tag != "function" && tag != "invoke" {
		return nil, "", 0
	}
	if !n.has(name) {
		return nil, name, 0
	}
	content, size := b[body:], len(b)
	if end := indexFold(content, "</"+tag+">"); end >= 0 {
		content, size = content[:end], body+end+len(tag)+3
	}
	arguments := parseParameters(bytes.TrimSpace(content))
	if arguments == nil {
		return nil, "", 0
	}
	return []foundCall{{Call: model.Call{Name: name, Arguments: arguments}}}, "", size
}

// parseParameters reads the content of an element, without white space around it, as arguments: a JSON object, repaired
// if need be, or parameter elements. Empty content is an object without members. nil = neither.
func parseParameters(b []byte) json.RawMessage {
	if len(b) > 0 && b[0] == '{' {
		return validOrRepaired(b)
	}
	var members []jsonschema.Member
	for len(b) > 0 {
		tag, key, body := parseOpenTag(b)
		if tag != "parameter" || key == "" {
			return nil
		}
		value := b[body:]
		if end := indexFold(value, "</parameter>"); end >= 0 {
			b = bytes.TrimSpace(value[end+len("</parameter>"):])
			value = value[:end]
		} else {
			b = nil
		}
		members = append(members, jsonschema.Member{Name: key, Value: newString(trimLineBreaks(string(value)))})
	}
	return json.RawMessage(newObject(members).Text)
}

// validOrRepaired is a copy of b when it is valid JSON, otherwise b repaired, nil when that is not possible.
func validOrRepaired(b []byte) []byte {
	if json.Valid(b) {
		return bytes.Clone(b)
	}
	return repairJSON(b)
}

// trimLineBreaks removes the line breaks that only separate a value from its tags.
func trimLineBreaks(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "\r"), "\n")
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r")
}

// parseOpenTag reads <tag=name> or <tag name="name"> at the start of b; body is the index of its content, and tag is in
// lower case. tag "" = none, or one longer than about maxName.
func parseOpenTag(b []byte) (tag, name string, body int) {
	end := bytes.IndexByte(b, '>')
	if end < 0 || end > maxName+32 || b[0] != '<' {
		return "", "", 0
	}
	tag, name, ok := strings.Cut(string(b[1:end]), "=")
	if !ok {
		return "", "", 0
	}
	tag = strings.TrimSuffix(strings.ToLower(tag), " name")
	return tag, strings.Trim(strings.TrimSpace(name), `"'`), end + 1
}

// maxName is the longest tool name that is looked for in text.
const maxName = 128

// parseNamedCall reads the form name {json}, and name({json}), at the start of b, where name is offered. size 0 = no
// call: another form, or arguments that cannot be repaired.
func (n toolNames) parseNamedCall(b []byte) (calls []foundCall, size int) {
	name, body, verdict := n.parseCallHead(b)
	if verdict != match {
		return nil, 0
	}
	w := valueScanner{pos: body}
	end, done := w.findEnd(b)
	arguments := validOrRepaired(bytes.TrimSpace(b[body:end]))
	if arguments == nil {
		return nil, 0
	}
	if done {
		if i := skipSpace(b, end); i < len(b) && b[i] == ')' && i-end <= maxGap {
			end = i + 1
		}
	}
	return []foundCall{{Call: model.Call{Name: name, Arguments: arguments}}}, end
}

// verdict says whether the beginning of a text, which may still grow, matches a form.
type verdict int

const (
	needMore verdict = iota
	noMatch
	match
)

// parseCallHead reads an offered name and the separator before its arguments: white space, a colon, an opening
// parenthesis, at most maxGap bytes in all. body is the index of the '{' of the arguments when the verdict is match;
// needMore means that b ends too early to tell.
func (n toolNames) parseCallHead(b []byte) (name string, body int, v verdict) {
	end := 0
	for end < len(b) && isNameByte(b[end]) {
		end++
	}
	word := b[:min(end, maxName)]
	if end == len(b) {
		if n.hasPrefix(word) {
			return "", 0, needMore
		}
		return "", 0, noMatch
	}
	if !n.has(string(word)) {
		return "", 0, noMatch
	}
	i := skipSpace(b, end)
	if i < len(b) && (b[i] == ':' || b[i] == '(') {
		i = skipSpace(b, i+1)
	}
	switch {
	case i > end+maxGap:
		return "", 0, noMatch
	case i == len(b):
		return "", 0, needMore
	case b[i] != '{':
		return "", 0, noMatch
	}
	return string(word), i, match
}

// maxGap is how much white space may be inside the form of a call. Without a bound an endless reply of spaces would be
// looked at again and again.
const maxGap = 64

// isNameByte reports whether c may be part of a tool's name.
func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// hasPrefixFold reports whether b begins with the ASCII text s in any case.
func hasPrefixFold(b []byte, s string) bool {
	return len(b) >= len(s) && strings.EqualFold(string(b[:len(s)]), s)
}

// indexFold is the index of the ASCII text s, which must begin with '<', in b in any case; -1 = not there.
func indexFold(b []byte, s string) int {
	i, _ := indexAnyTag(b, []string{s})
	return i
}

// indexAnyTag is the index and the length of the first of some ASCII texts, which must begin with '<', in b in any
// case; -1 = none is there. It goes over b once: looking for each text in turn would go to the end of b for each that
// is missing.
func indexAnyTag(b []byte, tags []string) (at, size int) {
	for from := 0; ; from++ {
		i := bytes.IndexByte(b[from:], '<')
		if i < 0 {
			return -1, 0
		}
		from += i
		if tag, _ := matchTag(b[from:], tags); tag != "" {
			return from, len(tag)
		}
	}
}

// matchTag is the first of some tags that b begins with, in any case; "" = none. more reports whether b is the
// beginning of one and may become it with more bytes.
func matchTag(b []byte, tags []string) (tag string, more bool) {
	for _, t := range tags {
		if hasPrefixFold(b, t) {
			return t, false
		}
		more = more || len(b) < len(t) && strings.EqualFold(string(b), t[:len(b)])
	}
	return "", more
}
