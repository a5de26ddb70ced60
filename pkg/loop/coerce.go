package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"conclave/pkg/model"
)

// fitArguments makes the arguments of a call fit for s and says what is still wrong, "" when nothing is. What comes back is
// a JSON object in any case. Models write "true" for true, "30000" for 30000, one value where a list is asked, an object
// as text, null for what they leave out: these are put right without asking. The order of keys stays.
func (s *schema) fitArguments(raw []byte) (fit json.RawMessage, wrong string) {
	none := json.RawMessage("{}")
	raw = bytes.TrimSpace(raw)
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte(string(utf8.RuneError)))
	}
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		raw = none
	}
	if !json.Valid(raw) {
		mended := repairJSON(raw)
		if mended == nil {
			return none, "the arguments are not JSON; they must be one object, such as " + s.example()
		}
		raw = mended
	}
	if isTooDeep(raw) {
		return none, "the arguments are nested too deeply"
	}
	if kindOf(raw) == kindString {
		if inner := parseEmbedded(raw, '{'); inner != nil {
			raw = inner
		}
	}
	if kindOf(raw) != kindObject {
		alone := s.soleProperty()
		if alone == "" {
			return none, "the arguments must be one object, such as " + s.example() + ", got " + clipValue(raw)
		}
		raw = slices.Concat([]byte("{"), encodeString(alone), []byte(":"), raw, []byte("}"))
	}
	if wrong := findAmbiguity(raw); wrong != "" {
		return json.RawMessage(raw), wrong
	}
	fit = s.coerce(raw)
	return fit, s.validate(fit)
}

// soleProperty is the one property that a lone value can mean, "" when there is a choice.
func (s *schema) soleProperty() string {
	if len(s.required) == 1 {
		return s.required[0]
	}
	if len(s.props) == 1 {
		return s.props[0].name
	}
	return ""
}

// example is an object with the required keys, to show the form.
func (s *schema) example() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, r := range s.required {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(encodeString(r))
		b.WriteString(": ...")
	}
	b.WriteByte('}')
	return b.String()
}

// coerce turns the valid JSON value b into what s asks for, as far as it can mean only one thing. It returns b itself
// when nothing changes.
func (s *schema) coerce(b []byte) []byte {
	if len(s.anyOf) > 0 {
		return s.coerceAny(b)
	}
	kind := kindOf(b)
	if s.kinds != 0 && s.kinds&kind == 0 {
		b = s.convertKind(b, kind)
		kind = kindOf(b)
	}
	if kind == kindNumber|kindInteger && s.kinds&kindNumber == 0 && s.kinds&kindInteger != 0 && hasFraction(b) {
		b = toInteger(b)
	}
	switch kind {
	case kindObject:
		return s.coerceObject(b)
	case kindArray:
		return s.coerceArray(b)
	case kindString:
		return s.coerceEnum(b)
	}
	return b
}

// coerceAny takes the value as it is when it fits one of the forms, else the first form that it can be made to fit.
func (s *schema) coerceAny(b []byte) []byte {
	if s.matchesAny(b) {
		return b
	}
	for _, a := range s.anyOf {
		if fit := a.coerce(b); a.check(fit, "") == "" {
			return fit
		}
	}
	return b
}

// convertKind makes the kind that is asked out of b, or leaves it.
func (s *schema) convertKind(b []byte, kind int) []byte {
	if kind == kindString {
		if fit := s.parseString(b); fit != nil {
			return fit
		}
	}
	switch {
	case s.kinds&kindBool != 0 && string(b) == "1":
		return []byte("true")
	case s.kinds&kindBool != 0 && string(b) == "0":
		return []byte("false")
	case s.kinds&kindString != 0 && kind&(kindNumber|kindBool) != 0:
		return encodeString(string(b))
	case s.kinds&kindArray != 0 && kind != kindNull:
		one := b
		if s.items != nil {
			one = s.items.coerce(b)
		}
		return slices.Concat([]byte("["), one, []byte("]"))
	}
	return b
}

// parseString reads the text in b as what is asked; nil when it is not that.
func (s *schema) parseString(b []byte) []byte {
	t := strings.TrimSpace(decodeString(b))
	switch {
	case s.kinds&kindObject != 0 && strings.HasPrefix(t, "{"):
		return parseEmbedded(b, '{')
	case s.kinds&kindArray != 0 && strings.HasPrefix(t, "["):
		return parseEmbedded(b, '[')
	case s.kinds&kindArray != 0 && t == "":
		return []byte("[]")
	case s.kinds&kindBool != 0 && (strings.EqualFold(t, "true") || strings.EqualFold(t, "yes")):
		return []byte("true")
	case s.kinds&kindBool != 0 && (strings.EqualFold(t, "false") || strings.EqualFold(t, "no")):
		return []byte("false")
	case s.kinds&(kindInteger|kindNumber) != 0 && t != "":
		n := []byte(t)
		if c := t[0]; (c == '-' || c >= '0' && c <= '9') && json.Valid(n) && kindOf(n)&s.kinds != 0 {
			return n
		}
	}
	return nil
}

// parseEmbedded is the JSON value that begins with open and stands as text in b; nil when there is none, or one too deep.
func parseEmbedded(b []byte, open byte) []byte {
	t := []byte(strings.TrimSpace(decodeString(b)))
	if len(t) == 0 || t[0] != open || !json.Valid(t) || isTooDeep(t) || findAmbiguity(t) != "" {
		return nil
	}
	return t
}

// toInteger writes a number without a fraction the way every reader of integers takes it: 3.0 becomes 3.
func toInteger(b []byte) []byte {
	f, err := json.Number(b).Float64()
	if err != nil {
		return b
	}
	out, _ := json.Marshal(int64(f))
	return out
}

// coerceObject goes through the members. Null for something that may be left out is left out.
func (s *schema) coerceObject(b []byte) []byte {
	var out []byte // nil as long as nothing changed
	done := 0      // how much of b is in out
	drop := func(upTo int) {
		out = bytes.TrimRight(append(out, b[done:upTo]...), " \n\t\r,")
	}
	for k, v := range members(b) {
		p := s.property(k)
		if p == nil {
			p = s.other
		}
		if p == nil {
			continue
		}
		from := offset(b, v)
		fit := p.coerce(v)
		switch {
		case p.isOmitted(fit) && !s.needs(k):
			drop(offset(b, k))
			if out[len(out)-1] == '{' { // the first one: the comma after it goes too
				done = skipSpace(b, from+len(v))
				if done < len(b) && b[done] == ',' {
					done++
				}
			} else {
				done = from + len(v)
			}
		case !unchanged(fit, v):
			out = append(append(out, b[done:from]...), fit...)
			done = from + len(v)
		}
	}
	if done == 0 {
		return b
	}
	return append(out, b[done:]...)
}

// isOmitted reports whether v says "nothing" where s asks for something.
func (s *schema) isOmitted(v []byte) bool {
	if s.kinds == 0 && s.anyOf == nil || s.check(v, "") == "" {
		return false
	}
	switch string(v) {
	case "null", `"null"`, `"None"`, `""`:
		return string(v) == "null" || s.kinds&kindString == 0
	}
	return false
}

func (s *schema) coerceArray(b []byte) []byte {
	if s.items == nil {
		return b
	}
	var out []byte
	done := 0
	for v := range elements(b) {
		if fit := s.items.coerce(v); !unchanged(fit, v) {
			from := offset(b, v)
			out = append(append(out, b[done:from]...), fit...)
			done = from + len(v)
		}
	}
	if done == 0 {
		return b
	}
	return append(out, b[done:]...)
}

// coerceEnum puts right the case of a word that is one of a few.
func (s *schema) coerceEnum(b []byte) []byte {
	if s.enum == nil || s.inEnum(b) {
		return b
	}
	t := strings.TrimSpace(decodeString(b))
	var fit []byte
	for _, e := range s.enum {
		if kindOf(e) == kindString && strings.EqualFold(decodeString(e), t) {
			if fit != nil {
				return b
			}
			fit = e
		}
	}
	if fit == nil {
		return b
	}
	return fit
}

// offset is where part, a piece of b, begins in it.
func offset(b, part []byte) int { return cap(b) - cap(part) }

// unchanged reports whether a is b itself, not a copy.
func unchanged(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// cachedSchema returns a tool's schema in the form that is checked. Tools are the same from turn to turn: it is made once.
func cachedSchema(tool *model.Tool) (*schema, error) {
	made.Lock()
	c, ok := made.all[string(tool.Parameters)]
	made.Unlock()
	if ok {
		return c.schema, c.err
	}
	s, err := compileSchema(*tool)
	made.Lock()
	defer made.Unlock()
	if made.all == nil || len(made.all) >= maxMade {
		made.all = map[string]compiled{}
	}
	made.all[string(tool.Parameters)] = compiled{s, err}
	return s, err
}

// made are the schemas that were made ready, by their text. Nothing writes to them any more.
var made struct {
	sync.Mutex
	all map[string]compiled
}

// maxMade bounds them: when there are more, those that are in use are made again.
const maxMade = 256

// compiled is what came of making a schema ready.
type compiled struct {
	schema *schema
	err    error
}
