package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// found is a call and the layer in which it was found.
type found struct {
	model.Call
	layer  string
	source []byte // what it was read from; nil = not from text
}

// names are the tools that a reply may call. Only these are ever taken out of text.
type names []string

func (n names) has(s string) bool { return slices.Contains(n, s) }

// begins reports whether some name begins with b.
func (n names) begins(b []byte) bool {
	return slices.ContainsFunc(n, func(name string) bool { return strings.HasPrefix(name, string(b)) })
}

// Keys under which models write the name and the arguments of a call in JSON, and the ones that may stand beside them.
// An object with any other key is data, not a call.
var (
	nameKeys  = []string{"name", "tool", "function", "tool_name", "function_name"}
	argKeys   = []string{"arguments", "parameters", "args", "input", "params", "tool_input"}
	wrapKeys  = []string{"tool_calls", "tool_call", "function_call"}
	extraKeys = []string{"id", "type", "call_id"}
)

// firstKey reports whether an object that begins with this key can be a call.
func firstKey(key string) bool {
	return slices.Contains(nameKeys, key) || slices.Contains(argKeys, key) || slices.Contains(wrapKeys, key) ||
		slices.Contains(extraKeys, key)
}

// callsIn reads the valid JSON value b as a call or a list of calls. All of it must be calls of offered tools; otherwise
// it is data and ok is false. unknown is the name of a tool in a value that has the shape of a call, but is not offered.
func (n names) callsIn(b []byte) (calls []found, unknown string, ok bool) {
	if tooDeep(b) {
		return nil, "", false
	}
	return n.calls(b, 0)
}

func (n names) calls(b []byte, depth int) (calls []found, unknown string, ok bool) {
	if depth > 3 { // a list in tool_calls in a call: nobody nests further
		return nil, "", false
	}
	switch kindOf(b) {
	case kindArray:
		for v := range elements(b) {
			c, u, ok := n.calls(v, depth+1)
			if !ok {
				return nil, u, false
			}
			calls = append(calls, c...)
		}
		return calls, "", len(calls) > 0
	case kindObject:
		return n.call(b, depth)
	}
	return nil, "", false
}

// call reads one object: {"name": ..., "arguments": ...} and its cousins.
func (n names) call(b []byte, depth int) (calls []found, unknown string, ok bool) {
	var c found
	var inner []byte
	named, given := false, false
	for k, v := range members(b) {
		key := text(k)
		switch {
		case slices.Contains(nameKeys, key) && kindOf(v) == kindString && !named:
			c.Name, named = text(v), true
		case key == "function" && kindOf(v) == kindObject && inner == nil, slices.Contains(wrapKeys, key) && inner == nil:
			inner = v
		case slices.Contains(argKeys, key) && !given:
			c.Arguments, given = argumentsOf(v), true
		case (key == "id" || key == "call_id") && kindOf(v) == kindString:
			c.ID = text(v)
		case key == "type" && (isText(v, "function") || isText(v, "tool_call") || isText(v, "tool_use")):
		default:
			return nil, "", false
		}
	}
	if inner != nil {
		if named || given {
			return nil, "", false
		}
		calls, unknown, ok = n.calls(inner, depth+1)
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
	return []found{c}, "", true
}

// argumentsOf is the arguments in v, which may stand there as text.
func argumentsOf(v []byte) json.RawMessage {
	if kindOf(v) == kindString {
		if inner := inside(v, '{'); inner != nil {
			return inner
		}
	}
	return bytes.Clone(v)
}

// tagged reads what stands between call tags, or a bare <function=...> element: JSON, elements, or the text form, one
// after another, up to maxFound. ok is false when something in it is none of these; calls are the ones before it.
func (n names) tagged(b []byte) (calls []found, unknown string, ok bool) {
	for b = skipTags(b); len(b) > 0 && len(calls) < maxFound; b = skipTags(b) {
		var c []found
		var u string
		var size int
		switch {
		case b[0] == '{' || b[0] == '[':
			c, u, size = n.jsonAt(b)
		case b[0] == '<':
			c, u, size = n.elementAt(b)
		default:
			c, size = n.textAt(b)
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

// skipTags goes over white space, wrapping tags, and commas between calls.
func skipTags(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \n\t\r,;")
		size := 0
		for _, t := range wrapTags {
			if hasFold(b, "<"+t+">") {
				size = len(t) + 2
			} else if hasFold(b, "</"+t+">") {
				size = len(t) + 3
			}
		}
		if hasFold(b, "</function>") {
			size = len("</function>")
		}
		if size == 0 {
			return b
		}
		b = b[size:]
	}
}

// jsonAt reads calls from the JSON value at the start of b. What is left open is closed only when nothing follows.
func (n names) jsonAt(b []byte) (calls []found, unknown string, size int) {
	var w walk
	end, whole := w.end(b)
	v := b[:end]
	if !json.Valid(v) {
		if !whole {
			v = bytes.TrimRight(cutTag(v), " \n\t\r")
			end = len(v)
		}
		if v = mend(v); v == nil {
			return nil, "", 0
		}
	}
	calls, unknown, ok := n.callsIn(v)
	if !ok {
		return nil, unknown, 0
	}
	return calls, "", end
}

// cutTag is b before the first call tag in it.
func cutTag(b []byte) []byte {
	if i, _ := indexAny(b, allCall); i >= 0 {
		return b[:i]
	}
	return b
}

// elementAt reads <function=name><parameter=key>value</parameter></function> at the start of b, and the forms with
// name="..." attributes. Values are texts; the schema makes of them what it asks for.
func (n names) elementAt(b []byte) (calls []found, unknown string, size int) {
	tag, name, body := openTag(b)
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
	c := found{Call: model.Call{Name: name}}
	if len(b) > 0 && b[0] == '{' {
		if !json.Valid(b) {
			b = mend(b)
		}
		if b == nil {
			return nil, "", 0
		}
		c.Arguments = bytes.Clone(b)
		return []found{c}, "", size
	}
	args := []byte{'{'}
	for len(b) > 0 {
		tag, key, body := openTag(b)
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
		args = append(append(args, quote(key)...), ':')
		args = append(args, quote(oneBreak(string(value)))...)
	}
	c.Arguments = append(args, '}')
	return []found{c}, "", size
}

// oneBreak takes away the line breaks that only set a value apart from its tags.
func oneBreak(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "\r"), "\n")
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r")
}

// openTag reads <tag=name> or <tag name="name"> at the start of b; body is where its content begins.
func openTag(b []byte) (tag, name string, body int) {
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

// textAt reads the plain form, name {json}, at the start of b.
func (n names) textAt(b []byte) (calls []found, size int) {
	name, body := n.head(b)
	if body <= 0 {
		return nil, 0
	}
	w := walk{at: body}
	end, whole := w.end(b)
	args := bytes.TrimSpace(b[body:end])
	if !json.Valid(args) {
		if args = mend(args); args == nil {
			return nil, 0
		}
	}
	if whole {
		if i := blanks(b, end); i < len(b) && b[i] == ')' && i-end <= maxGap {
			end = i + 1
		}
	}
	return []found{{Call: model.Call{Name: name, Arguments: bytes.Clone(args)}}}, end
}

// What head returns instead of an index.
const (
	needMore = 0
	noName   = -1
)

// head reads an offered name and what may stand between it and its arguments: blanks, a colon, an opening bracket. body
// is where the arguments begin, needMore when b ends too early to say, noName when it is something else.
func (n names) head(b []byte) (name string, body int) {
	end := 0
	for end < len(b) && isWord(b[end]) {
		end++
	}
	word := b[:min(end, maxName)]
	if end == len(b) {
		if n.begins(word) {
			return "", needMore
		}
		return "", noName
	}
	at := slices.IndexFunc(n, func(name string) bool { return name == string(word) })
	if at < 0 {
		return "", noName
	}
	i := blanks(b, end)
	if i < len(b) && (b[i] == ':' || b[i] == '(') {
		i = blanks(b, i+1)
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

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// hasFold reports whether b begins with the ASCII text s, whatever the case.
func hasFold(b []byte, s string) bool {
	return len(b) >= len(s) && strings.EqualFold(string(b[:len(s)]), s)
}

// indexFold is where the ASCII text s, which begins with '<', first stands in b, whatever the case.
func indexFold(b []byte, s string) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], s[0])
		if i < 0 {
			return -1
		}
		if from += i; hasFold(b[from:], s) {
			return from
		}
		from++
	}
}

// indexAny is where the first of some ASCII texts, which all begin with '<', stands in b, whatever the case, and how long
// it is; -1 when none does. It goes over b once and stops there: to look for each in turn would go to the end of b for
// one that is missing, again and again.
func indexAny(b []byte, texts []string) (at, size int) {
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

// same reports whether g is the same call, to the letter.
func (f found) same(g found) bool { return f.Name == g.Name && bytes.Equal(f.Arguments, g.Arguments) }
