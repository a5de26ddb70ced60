package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// foundCall is a call and the layer in which it was found.
type foundCall struct {
	model.Call
	layer  string
	source []byte // what it was read from; nil = not from text
}

// toolNames are the tools that a reply may call. Only these are ever taken out of text.
type toolNames []string

func (n toolNames) has(s string) bool { return slices.Contains(n, s) }

// hasPrefix reports whether some name begins with b.
func (n toolNames) hasPrefix(b []byte) bool {
	return slices.ContainsFunc(n, func(name string) bool { return strings.HasPrefix(name, string(b)) })
}

// Keys under which models write the name and the arguments of a call in JSON, and the ones that may stand beside them.
// An object with any other key is data, not a call.
var (
	nameKeys     = []string{"name", "tool", "function", "tool_name", "function_name"}
	argumentKeys = []string{"arguments", "parameters", "args", "input", "params", "tool_input"}
	wrapKeys     = []string{"tool_calls", "tool_call", "function_call"}
	extraKeys    = []string{"id", "type", "call_id"}
)

// isCallKey reports whether an object that begins with this key can be a call.
func isCallKey(key string) bool {
	return slices.Contains(nameKeys, key) || slices.Contains(argumentKeys, key) || slices.Contains(wrapKeys, key) ||
		slices.Contains(extraKeys, key)
}

// parseCalls reads the valid JSON value b as a call or a list of calls. All of it must be calls of offered tools; otherwise
// it is data and ok is false. unknown is the name of a tool in a value that has the shape of a call, but is not offered.
func (n toolNames) parseCalls(b []byte) (calls []foundCall, unknown string, ok bool) {
	if isTooDeep(b) {
		return nil, "", false
	}
	return n.parseValue(b, 0)
}

func (n toolNames) parseValue(b []byte, depth int) (calls []foundCall, unknown string, ok bool) {
	if depth > 3 { // a list in tool_calls in a call: nobody nests further
		return nil, "", false
	}
	switch kindOf(b) {
	case kindArray:
		for v := range elements(b) {
			c, u, ok := n.parseValue(v, depth+1)
			if !ok {
				return nil, u, false
			}
			calls = append(calls, c...)
		}
		return calls, "", len(calls) > 0
	case kindObject:
		return n.parseObject(b, depth)
	}
	return nil, "", false
}

// parseObject reads one object: {"name": ..., "arguments": ...} and its cousins.
func (n toolNames) parseObject(b []byte, depth int) (calls []foundCall, unknown string, ok bool) {
	var c foundCall
	var inner []byte
	named, given := false, false
	for k, v := range members(b) {
		key := decodeString(k)
		switch {
		case slices.Contains(nameKeys, key) && kindOf(v) == kindString && !named:
			c.Name, named = decodeString(v), true
		case key == "function" && kindOf(v) == kindObject && inner == nil, slices.Contains(wrapKeys, key) && inner == nil:
			inner = v
		case slices.Contains(argumentKeys, key) && !given:
			c.Arguments, given = unwrapArguments(v), true
		case (key == "id" || key == "call_id") && kindOf(v) == kindString:
			c.ID = decodeString(v)
		case key == "type" && (isText(v, "function") || isText(v, "tool_call") || isText(v, "tool_use")):
		default:
			return nil, "", false
		}
	}
	if inner != nil {
		if named || given {
			return nil, "", false
		}
		calls, unknown, ok = n.parseValue(inner, depth+1)
		if len(calls) == 1 && calls[0].ID == "" {
			calls[0].ID = c.ID
		}
		return calls, unknown, ok
	}
	if !named {
		return nil, "", false
	}
	if !n.has(c.Name) {
		return nil, c.Name, false
	}
	if !given {
		c.Arguments = json.RawMessage("{}")
	}
	return []foundCall{c}, "", true
}

// unwrapArguments is the arguments in v, which may stand there as text.
func unwrapArguments(v []byte) json.RawMessage {
	if kindOf(v) == kindString {
		if inner := parseEmbedded(v, '{'); inner != nil {
			return inner
		}
	}
	return bytes.Clone(v)
}

// parseTagged reads what stands between call tags, or a bare <function=...> element: JSON, elements, or the text form, one
// after another, up to maxFound. ok is false when something in it is none of these; calls are the ones before it.
func (n toolNames) parseTagged(b []byte) (calls []foundCall, unknown string, ok bool) {
	for b = skipWrapTags(b); len(b) > 0 && len(calls) < maxTextCalls; b = skipWrapTags(b) {
		var c []foundCall
		var u string
		var size int
		switch {
		case b[0] == '{' || b[0] == '[':
			c, u, size = n.parseJSONCalls(b)
		case b[0] == '<':
			c, u, size = n.parseElement(b)
		default:
			c, size = n.parseNamedCall(b)
		}
		if size == 0 || len(c) == 0 {
			return calls, u, false
		}
		for i := range c {
			c[i].source = b[:size]
		}
		calls, b = append(calls, c...), b[size:]
	}
	return calls, "", len(calls) > 0
}

// skipWrapTags goes over white space, wrapping tags, and commas between calls.
func skipWrapTags(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \n\t\r,;")
		size := 0
		for _, t := range wrapTags {
			if hasPrefixFold(b, "<"+t+">") {
				size = len(t) + 2
			} else if hasPrefixFold(b, "</"+t+">") {
				size = len(t) + 3
			}
		}
		if hasPrefixFold(b, "</function>") {
			size = len("</function>")
		}
		if size == 0 {
			return b
		}
		b = b[size:]
	}
}

// parseJSONCalls reads calls from the JSON value at the start of b. What is left open is closed only when nothing follows.
func (n toolNames) parseJSONCalls(b []byte) (calls []foundCall, unknown string, size int) {
	var w valueScanner
	end, whole := w.findEnd(b)
	v := b[:end]
	if !json.Valid(v) {
		if !whole {
			v = bytes.TrimRight(cutAtCallTag(v), " \n\t\r")
			end = len(v)
		}
		if v = repairJSON(v); v == nil {
			return nil, "", 0
		}
	}
	calls, unknown, ok := n.parseCalls(v)
	if !ok {
		return nil, unknown, 0
	}
	return calls, "", end
}

// cutAtCallTag is b before the first call tag in it.
func cutAtCallTag(b []byte) []byte {
	if i, _ := indexAnyTag(b, allCallTags); i >= 0 {
		return b[:i]
	}
	return b
}

// parseElement reads <function=name><parameter=key>value</parameter></function> at the start of b, and the forms with
// name="..." attributes. Values are texts; the schema makes of them what it asks for.
func (n toolNames) parseElement(b []byte) (calls []foundCall, unknown string, size int) {
	tag, name, body := parseOpenTag(b)
	if tag != "function" && tag != "invoke" {
		return nil, "", 0
	}
	if !n.has(name) {
		return nil, name, 0
	}
	end := indexFold(b[body:], "</"+tag+">")
	size = len(b)
	if end >= 0 {
		size = body + end + len(tag) + 3
		b = b[:body+end]
	}
	b = bytes.TrimSpace(b[body:])
	c := foundCall{Call: model.Call{Name: name}}
	if len(b) > 0 && b[0] == '{' {
		if !json.Valid(b) {
			b = repairJSON(b)
		}
		if b == nil {
			return nil, "", 0
		}
		c.Arguments = bytes.Clone(b)
		return []foundCall{c}, "", size
	}
	args := []byte{'{'}
	for len(b) > 0 {
		tag, key, body := parseOpenTag(b)
		if tag != "parameter" || key == "" {
			return nil, "", 0
		}
		value := b[body:]
		if end := indexFold(value, "</parameter>"); end >= 0 {
			b = bytes.TrimSpace(value[end+len("</parameter>"):])
			value = value[:end]
		} else {
			b = nil
		}
		if len(args) > 1 {
			args = append(args, ',')
		}
		args = append(append(args, encodeString(key)...), ':')
		args = append(args, encodeString(trimLineBreaks(string(value)))...)
	}
	c.Arguments = append(args, '}')
	return []foundCall{c}, "", size
}

// trimLineBreaks takes away the line breaks that only set a value apart from its tags.
func trimLineBreaks(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "\r"), "\n")
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r")
}

// parseOpenTag reads <tag=name> or <tag name="name"> at the start of b; body is where its content begins.
func parseOpenTag(b []byte) (tag, name string, body int) {
	end := bytes.IndexByte(b, '>')
	if end < 0 || end > maxName+32 || len(b) == 0 || b[0] != '<' {
		return "", "", 0
	}
	inner := string(b[1:end])
	tag, name, ok := strings.Cut(inner, "=")
	if !ok {
		return "", "", 0
	}
	tag = strings.TrimSuffix(strings.ToLower(tag), " name")
	return tag, strings.Trim(strings.TrimSpace(name), `"'`), end + 1
}

// maxName is the longest name of a tool that is looked for in text.
const maxName = 128

// parseNamedCall reads the plain form, name {json}, at the start of b.
func (n toolNames) parseNamedCall(b []byte) (calls []foundCall, size int) {
	name, body := n.parseCallHead(b)
	if body <= 0 {
		return nil, 0
	}
	w := valueScanner{pos: body}
	end, whole := w.findEnd(b)
	args := bytes.TrimSpace(b[body:end])
	if !json.Valid(args) {
		if args = repairJSON(args); args == nil {
			return nil, 0
		}
	}
	if whole {
		if i := skipSpace(b, end); i < len(b) && b[i] == ')' && i-end <= maxGap {
			end = i + 1
		}
	}
	return []foundCall{{Call: model.Call{Name: name, Arguments: bytes.Clone(args)}}}, end
}

// What head returns instead of an index.
const (
	needMore = 0
	noName   = -1
)

// parseCallHead reads an offered name and what may stand between it and its arguments: blanks, a colon, an opening bracket. body
// is where the arguments begin, needMore when b ends too early to say, noName when it is something else.
func (n toolNames) parseCallHead(b []byte) (name string, body int) {
	end := 0
	for end < len(b) && isNameByte(b[end]) {
		end++
	}
	word := b[:min(end, maxName)]
	if end == len(b) {
		if n.hasPrefix(word) {
			return "", needMore
		}
		return "", noName
	}
	at := slices.IndexFunc(n, func(name string) bool { return name == string(word) })
	if at < 0 {
		return "", noName
	}
	i := skipSpace(b, end)
	if i < len(b) && (b[i] == ':' || b[i] == '(') {
		i = skipSpace(b, i+1)
	}
	switch {
	case i > end+maxGap:
		return "", noName
	case i == len(b):
		return "", needMore
	case b[i] != '{':
		return "", noName
	}
	return n[at], i
}

// maxGap is how much white space may stand inside the form of a call. Without a bound an endless reply of blanks would
// be looked at again and again.
const maxGap = 64

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// hasPrefixFold reports whether b begins with the ASCII text s, whatever the case.
func hasPrefixFold(b []byte, s string) bool {
	return len(b) >= len(s) && strings.EqualFold(string(b[:len(s)]), s)
}

// indexFold is where the ASCII text s, which begins with '<', first stands in b, whatever the case.
func indexFold(b []byte, s string) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], s[0])
		if i < 0 {
			return -1
		}
		if from += i; hasPrefixFold(b[from:], s) {
			return from
		}
		from++
	}
}

// indexAnyTag is where the first of some ASCII texts, which all begin with '<', stands in b, whatever the case, and how long
// it is; -1 when none does. It goes over b once and stops there: to look for each in turn would go to the end of b for
// one that is missing, again and again.
func indexAnyTag(b []byte, texts []string) (at, size int) {
	for from := 0; ; from++ {
		i := bytes.IndexByte(b[from:], '<')
		if i < 0 {
			return -1, 0
		}
		from += i
		if hit, _ := matchTag(b[from:], texts); hit != "" {
			return from, len(hit)
		}
	}
}

// equals reports whether g is the same call, to the letter.
func (f foundCall) equals(g foundCall) bool {
	return f.Name == g.Name && bytes.Equal(f.Arguments, g.Arguments)
}
