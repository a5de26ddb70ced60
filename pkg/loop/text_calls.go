package loop

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/strict"
)

// This file reads calls that a model wrote as text. It knows the forms that were seen from real models:
//   - {"name": ..., "arguments": {...}}, alone or one after another, the arguments left out where there are none:
//     Qwen2.5-Coder; in a fence and with "parameters": Llama 3.2;
//     with "args": Gemma 3n
//   - the same between <tool_call> tags, which text_form.md asks for
//   - <function=name><parameter=key>value</parameter></function>, also without the opening <tool_call> around it:
//     Qwen3-Coder
//   - [TOOL_CALLS] and a list of calls: Mistral
//   - name {json}, which a model writes that was shown calls so
//
// JSON is decoded strictly. A text that must be meant as a call and is not one makes the reply unreadable: the model is
// asked again.

// foundCall is a call and the layer in which it was found.
type foundCall struct {
	model.Call
	layer  string
	source string // the text that it was read from; "" = not from text
}

// equals reports whether g is the same call, to the letter.
func (f foundCall) equals(g foundCall) bool {
	return f.Name == g.Name && string(f.Arguments) == string(g.Arguments)
}

// toolNames are the offered tools. Calls of other tools are never read from text.
type toolNames []string

func (n toolNames) has(s string) bool { return slices.Contains(n, s) }

const (
	openCall     = "<tool_call>"
	closeCall    = "</tool_call>"
	openFunction = "<function="
	callMarker   = "[TOOL_CALLS]"
	fence        = "```"
	blanks       = " \n\t\r"
)

// argumentKeys are the keys that models use for the arguments of a call. An object with any key but these and "name" is
// data and no call.
var argumentKeys = []string{"arguments", "parameters", "args"}

// callReader reads calls from the start of a text, one after another.
type callReader struct {
	tools       toolNames
	text        string
	pos         int
	end         int // after the last call, with the end of its fence, or after JSON that is no call
	calls       []foundCall
	marked      bool   // a tag or marker says that these are calls, whatever follows them
	inFence     bool   // pos is inside a fence
	endInFence  bool   // end is inside a fence
	brokenJSON  bool   // JSON was begun and is not valid
	unreadable  string // why a text that must be meant as a call is none, for the model; "" = there is none
	unknownTool string // the tool that it names, when that is not offered
}

// read reads calls until something else comes, with white space, commas and semicolons between them, in fences or not.
func (r *callReader) read() {
	for r.unreadable == "" {
		r.skip(blanks + ",;")
		rest := r.rest()
		switch {
		case r.inFence && strings.HasPrefix(rest, fence):
			r.inFence = false
			r.endAt(r.pos + len(fence))
		case strings.HasPrefix(rest, fence):
			info, _, ok := strings.Cut(rest[len(fence):], "\n")
			if !ok || !mayHoldCalls(info) {
				return
			}
			r.inFence = true
			r.pos += len(fence) + len(info)
		case strings.HasPrefix(rest, closeCall) && len(r.calls) > 0: // the opening tag was left out
			r.endAt(r.pos + len(closeCall))
		case strings.HasPrefix(rest, openCall):
			r.readElement()
		case strings.HasPrefix(rest, openFunction):
			r.readFunction()
		case strings.HasPrefix(rest, callMarker):
			r.marked = true
			r.pos += len(callMarker)
			r.skip(blanks)
			r.readMarked()
		case !r.readJSON() && !r.readNamed():
			return
		}
	}
}

// rest is the text that was not read yet.
func (r *callReader) rest() string { return r.text[r.pos:] }

// skip passes over the characters of cutset.
func (r *callReader) skip(cutset string) {
	r.pos = len(r.text) - len(strings.TrimLeft(r.rest(), cutset))
}

// add adds calls whose text ends at end.
func (r *callReader) add(end int, calls ...foundCall) {
	for i := range calls {
		calls[i].source = r.text[r.pos:end]
	}
	r.calls = append(r.calls, calls...)
	r.endAt(end)
}

// endAt moves behind something that belongs to the calls.
func (r *callReader) endAt(end int) {
	r.pos, r.end, r.endInFence = end, end, r.inFence
}

// fail makes the reply unreadable; unknown is the tool that is not offered, "" = that is not the reason.
func (r *callReader) fail(why, unknown string) {
	r.unreadable, r.unknownTool = why, unknown
}

// failAtEnd makes the reply unreadable because of broken JSON. Where that ends is unknown: nothing behind it is text.
func (r *callReader) failAtEnd() {
	r.fail("a tool call was not valid JSON", "")
	r.endAt(len(r.text))
}

// readMarked reads JSON behind a marker, where it must be calls.
func (r *callReader) readMarked() {
	if !r.readJSON() && r.unreadable == "" {
		r.fail("a tool call could not be read", r.unknownTool)
		r.endAt(len(r.text))
	}
}

// readJSON reads one JSON value as calls of offered tools. Otherwise it reports false: JSON that is something else is
// passed over, and broken JSON that names an offered tool makes the reply unreadable.
func (r *callReader) readJSON() bool {
	rest := r.rest()
	if rest == "" || rest[0] != '{' && rest[0] != '[' {
		return false
	}
	raw, size := decodeJSON(rest)
	if size == 0 {
		head := rest[:min(len(rest), maxHead)]
		if slices.ContainsFunc(r.tools, func(name string) bool { return strings.Contains(head, `"`+name+`"`) }) {
			r.failAtEnd()
		}
		r.brokenJSON = true
		return false
	}
	calls, unknown := r.tools.parseCalls(raw)
	if len(calls) == 0 {
		r.unknownTool = unknown
		if len(r.calls) == 0 {
			r.end, r.endInFence = r.pos+size, r.inFence
		}
		return false
	}
	r.add(r.pos+size, calls...)
	return true
}

// maxHead is how many bytes at the beginning of broken JSON may name the tool.
const maxHead = 256

// decodeJSON decodes the JSON value at the start of s; size is how many bytes it has, 0 = it is not valid.
func decodeJSON(s string) (raw json.RawMessage, size int) {
	d := json.NewDecoder(strings.NewReader(s))
	if d.Decode(&raw) != nil {
		return nil, 0
	}
	return raw, int(d.InputOffset())
}

// parseCalls reads a JSON value as a call or a list of calls. All of it must be calls of offered tools; otherwise it is
// data and there are none. unknown is the tool of a call that is not offered.
func (n toolNames) parseCalls(raw json.RawMessage) (calls []foundCall, unknown string) {
	v, err := strict.Parse(raw)
	if err != nil {
		return nil, ""
	}
	items := []strict.Value{v}
	if v.Type == strict.Array {
		items = v.Items
	}
	for i := range items {
		c, ok := parseCall(&items[i])
		switch {
		case !ok:
			return nil, ""
		case !n.has(c.Name):
			return nil, c.Name
		}
		calls = append(calls, foundCall{Call: c, layer: LayerJSON})
	}
	return calls, ""
}

// parseCall reads one object as a call; ok is false for an object in any other form. Missing arguments are {}.
func parseCall(v *strict.Value) (c model.Call, ok bool) {
	for i := range v.Members {
		m := &v.Members[i]
		switch {
		case m.Name == "name" && m.Value.Type == strict.String:
			c.Name = m.Value.Text
		case slices.Contains(argumentKeys, m.Name) && c.Arguments == nil:
			if embedded, ok := parseEmbedded(&m.Value, strict.Object); ok {
				m.Value = embedded
			}
			c.Arguments = encodeValue(&m.Value)
		default:
			return c, false
		}
	}
	if c.Arguments == nil {
		c.Arguments = json.RawMessage("{}")
	}
	return c, c.Name != ""
}

// readNamed reads name {json} with an offered name. It reports false for anything else.
func (r *callReader) readNamed() bool {
	m := namedCall.FindStringSubmatch(r.rest())
	if m == nil || !r.tools.has(m[1]) {
		return false
	}
	raw, size := decodeJSON(r.rest()[len(m[0])-1:])
	if size == 0 {
		r.failAtEnd()
		return false
	}
	r.add(r.pos+len(m[0])-1+size, foundCall{Call: model.Call{Name: m[1], Arguments: raw}, layer: LayerText})
	return true
}

// readElement reads a <tool_call> element, to the end of the text when its closing tag is missing. All of its content
// must be calls of offered tools, otherwise the reply is unreadable.
func (r *callReader) readElement() {
	r.marked = true
	content, _, closed := strings.Cut(r.rest()[len(openCall):], closeCall)
	inner := callReader{tools: r.tools, text: content}
	for inner.skip(blanks); inner.unreadable == "" && inner.rest() != ""; inner.skip(blanks) {
		if strings.HasPrefix(inner.rest(), openFunction) {
			inner.readFunction()
		} else if !inner.readNamed() {
			inner.readMarked()
		}
	}
	end := r.pos + len(openCall) + len(content)
	if closed {
		end += len(closeCall)
	}
	r.endAt(end)
	if inner.unreadable != "" || len(inner.calls) == 0 {
		r.fail("a tool call between tags could not be read", inner.unknownTool)
		return
	}
	for i := range inner.calls {
		inner.calls[i].layer = LayerXML
	}
	r.calls = append(r.calls, inner.calls...)
}

// readFunction reads a <function=name> element. Its values are strings, which coercion converts.
func (r *callReader) readFunction() {
	r.marked = true
	element, _, closed := strings.Cut(r.rest(), "</function>")
	name, body, _ := strings.Cut(element[len(openFunction):], ">")
	members, ok := parseParameters(body)
	ok = ok && closed
	if ok && r.tools.has(name) {
		c := model.Call{Name: name, Arguments: json.RawMessage(newObject(members).Text)}
		r.add(r.pos+len(element)+len("</function>"), foundCall{Call: c, layer: LayerXML})
		return
	}
	r.fail("a tool call between tags could not be read", "")
	if ok {
		r.unknownTool = name
	}
	r.endAt(min(len(r.text), r.pos+len(element)+len("</function>")))
}

// parseParameters reads <parameter=key>value</parameter> elements. The line breaks around a value only separate it from
// its tags. ok is false when there is anything else.
func parseParameters(s string) (members []strict.Member, ok bool) {
	for s = strings.Trim(s, blanks); s != ""; s = strings.TrimLeft(s, blanks) {
		rest, isOpen := strings.CutPrefix(s, "<parameter=")
		key, rest, isNamed := strings.Cut(rest, ">")
		value, after, isClosed := strings.Cut(rest, "</parameter>")
		if !isOpen || !isNamed || !isClosed {
			return nil, false
		}
		value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
		members = append(members, strict.Member{Name: key, Value: newString(value)})
		s = after
	}
	return members, true
}

// mayHoldCalls reports whether a code block with this info string may hold calls.
func mayHoldCalls(info string) bool {
	switch strings.Trim(info, blanks) {
	case "", "json", "xml", "tool_call":
		return true
	}
	return false
}

// callStart matches the beginning of a text that may be a call: in a fence or not, a tag or marker, JSON whose first
// key is that of a call, or a name, which it captures, before JSON. An opening tag with other text behind it is none.
var callStart = regexp.MustCompile("^(?:```(?:json|xml|tool_call)?[ \t]*\n\\s*)?" +
	`(?:<tool_call>\s*(?:[{\[<]|[\w.-]+\s*\{|$)|<function=|\[TOOL_CALLS\]|` +
	`(?:\[\s*)?\{\s*"(?:name|arguments|parameters|args)"|([\w.-]+)\s*\{)`)

// startsCall reports whether a call may begin at the start of b.
func (n toolNames) startsCall(b []byte) bool {
	m := callStart.FindSubmatch(b)
	return m != nil && (len(m[1]) == 0 || n.has(string(m[1])))
}

// namedCall matches a name before its arguments, up to the brace.
var namedCall = regexp.MustCompile(`^([\w.-]+)\s*\{`)
