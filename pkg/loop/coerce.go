package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
)

// schemas holds the compiled schemas of tools. Tools are the same from turn to turn.
var schemas jsonschema.Cache

// compileSchema compiles a tool's schema. A tool without one accepts any object.
func compileSchema(tool *model.Tool) (*jsonschema.Schema, error) {
	if len(tool.Parameters) == 0 || string(tool.Parameters) == "null" {
		return &jsonschema.Schema{Types: jsonschema.Object}, nil
	}
	return schemas.Compile(tool.Parameters)
}

// coerceArguments makes the arguments of a call fit the schema and describes, for the model, the first thing that still
// does not: "" = they are valid. fit is a JSON object in any case, {} when raw is empty, null, "" or no object. It
// corrects without asking "true" for true, "30000" for 30000, one value for a list or for the only property, an object
// as a string, and null for an argument that is left out. The order of keys stays.
func coerceArguments(s *jsonschema.Schema, raw []byte) (fit json.RawMessage, problem string) {
	raw = bytes.TrimSpace(raw)
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte(string(utf8.RuneError)))
	}
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		raw = []byte("{}")
	}
	v, err := parseLenient(raw)
	switch {
	case err != nil && json.Valid(raw):
		if fit = objectOrNil(raw); fit == nil {
			fit = json.RawMessage("{}")
		}
		return fit, "the arguments are invalid: " + err.Error()
	case err != nil:
		return json.RawMessage("{}"), "the arguments are not valid JSON; they must be one object, such as " +
			exampleArguments(s)
	}
	if embedded, ok := parseEmbedded(&v, jsonschema.Object); ok {
		v = embedded
	}
	if v.Type != jsonschema.Object {
		name := soleProperty(s)
		if name == "" {
			return json.RawMessage("{}"), "the arguments must be one object, such as " + exampleArguments(s) +
				", got " + clip(string(raw), 80)
		}
		v = newObject([]jsonschema.Member{{Name: name, Value: v}})
	}
	coerced := coerceValue(s, v)
	fit = json.RawMessage(coerced.Text)
	if coerced.Text == v.Text {
		return fit, describeProblem(s.Validate(&v))
	}
	return fit, describeProblem(s.ValidateJSON(fit)) // strings that were parsed may exceed the limits together
}

// describeProblem is a validation error as a text for the model, with the rejected value where it is known; "" = err is
// nil.
func describeProblem(err error) string {
	if err == nil {
		return ""
	}
	var e *jsonschema.Error
	if errors.As(err, &e) {
		return e.ErrorWithValue()
	}
	return "the arguments are invalid: " + err.Error()
}

// soleProperty is the property that a lone value must mean: the only one that is required, or else the only one. "" =
// there is a choice.
func soleProperty(s *jsonschema.Schema) string {
	if len(s.Required) == 1 {
		return s.Required[0]
	}
	if len(s.PropertyNames) == 1 {
		return s.PropertyNames[0]
	}
	return ""
}

// exampleArguments is an object with the required keys, to show the form.
func exampleArguments(s *jsonschema.Schema) string {
	var keys []string
	for _, r := range s.Required {
		keys = append(keys, string(encodeJSON(r))+": ...")
	}
	return "{" + strings.Join(keys, ", ") + "}"
}

// coerceValue converts v to a type that s allows, as far as v can mean only one thing; nil s allows everything. It
// never fails: a value that it cannot convert is returned unchanged, for the validation to reject.
func coerceValue(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	if s == nil {
		return v
	}
	if len(s.AnyOf) > 0 {
		return coerceAnyOf(s, v)
	}
	if s.Types != 0 && s.Types&v.Type == 0 {
		v = convertType(s, v)
	}
	switch v.Type {
	case jsonschema.Integer:
		if s.Types&jsonschema.Integer != 0 && s.Types&jsonschema.Number == 0 {
			v.Text = formatInteger(v.Text)
		}
	case jsonschema.Object:
		return coerceObject(s, v)
	case jsonschema.Array:
		return coerceArray(s, v)
	case jsonschema.String:
		return coerceEnum(s, v)
	}
	return v
}

// coerceAnyOf returns a value that fits one of s.AnyOf unchanged, and otherwise converts it to the first form that it
// can fit. A value that fits none, even converted, is unchanged.
func coerceAnyOf(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	for _, form := range s.AnyOf {
		if form.Validate(&v) == nil {
			return v
		}
	}
	for _, form := range s.AnyOf {
		if fit := coerceValue(form, v); form.Validate(&fit) == nil {
			return fit
		}
	}
	return v
}

// convertType converts v, whose type s does not allow: a string to the value it spells, 0 and 1 to a boolean, a number
// or boolean to a string, a single value to a list of one. v is returned unchanged when none applies.
func convertType(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	if v.Type == jsonschema.String {
		if parsed, ok := parseString(s, &v); ok {
			return parsed
		}
	}
	switch {
	case s.Types&jsonschema.Boolean != 0 && v.Type == jsonschema.Integer && (v.Text == "0" || v.Text == "1"):
		return newBoolean(v.Text == "1")
	case s.Types&jsonschema.String != 0 && v.Type&(jsonschema.Integer|jsonschema.Number|jsonschema.Boolean) != 0:
		return newString(v.Text)
	case s.Types&jsonschema.Array != 0 && v.Type != jsonschema.Null:
		return newArray([]jsonschema.Value{coerceValue(s.Items, v)})
	}
	return v
}

// parseString reads the string v as a type that s allows: an embedded object, list or number, true, yes, false or no as
// a boolean, and an empty string as an empty list. It reports false when v spells none of the allowed types.
func parseString(s *jsonschema.Schema, v *jsonschema.Value) (jsonschema.Value, bool) {
	t := strings.TrimSpace(v.Text)
	switch {
	case s.Types&jsonschema.Object != 0 && strings.HasPrefix(t, "{"):
		return parseEmbedded(v, jsonschema.Object)
	case s.Types&jsonschema.Array != 0 && strings.HasPrefix(t, "["):
		return parseEmbedded(v, jsonschema.Array)
	case s.Types&jsonschema.Array != 0 && t == "":
		return newArray(nil), true
	case s.Types&jsonschema.Boolean != 0 && (strings.EqualFold(t, "true") || strings.EqualFold(t, "yes")):
		return newBoolean(true), true
	case s.Types&jsonschema.Boolean != 0 && (strings.EqualFold(t, "false") || strings.EqualFold(t, "no")):
		return newBoolean(false), true
	}
	return parseEmbedded(v, s.Types&(jsonschema.Integer|jsonschema.Number))
}

// parseEmbedded parses the JSON value that is the content of the string v. ok is false when it is none of these types.
func parseEmbedded(v *jsonschema.Value, types jsonschema.Types) (embedded jsonschema.Value, ok bool) {
	if v.Type != jsonschema.String {
		return embedded, false
	}
	embedded, err := jsonschema.Parse([]byte(strings.TrimSpace(v.Text)))
	return embedded, err == nil && embedded.Type&types != 0
}

func newBoolean(b bool) jsonschema.Value {
	return jsonschema.Value{Type: jsonschema.Boolean, Text: strconv.FormatBool(b)}
}

// formatInteger writes an integer without fraction and exponent, as parsers of integers require: 3.0 becomes 3.
// Integers beyond 2^53 are returned as they are written.
func formatInteger(s string) string {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !strings.ContainsAny(s, ".eE") || f < -1<<53 || f > 1<<53 {
		return s
	}
	return strconv.FormatInt(int64(f), 10)
}

// coerceObject converts the members of v; undeclared ones follow s.AdditionalProperties. A member that means "no value"
// (see isOmitted) is removed unless it is required.
func coerceObject(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	changed := false
	members := make([]jsonschema.Member, 0, len(v.Members))
	for _, m := range v.Members {
		p, declared := s.Properties[m.Name]
		if !declared {
			p = s.AdditionalProperties
		}
		fit := coerceValue(p, m.Value)
		if isOmitted(p, &fit) && !slices.Contains(s.Required, m.Name) {
			changed = true
			continue
		}
		changed = changed || fit.Type != m.Value.Type || fit.Text != m.Value.Text
		members = append(members, jsonschema.Member{Name: m.Name, Value: fit})
	}
	if !changed {
		return v
	}
	return newObject(members)
}

// isOmitted reports whether v means "no value" where s does not allow it: null, or, where s allows no string, the
// string null, None or an empty one. A nil or untyped s allows everything: false.
func isOmitted(s *jsonschema.Schema, v *jsonschema.Value) bool {
	if s == nil || s.Types == 0 && len(s.AnyOf) == 0 {
		return false
	}
	isNone := v.Type == jsonschema.Null || v.Type == jsonschema.String && s.Types&jsonschema.String == 0 &&
		(v.Text == "null" || v.Text == "None" || v.Text == "")
	return isNone && s.Validate(v) != nil
}

// coerceArray converts the elements of v to s.Items. Elements that cannot be converted stay, for the validation to
// reject.
func coerceArray(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	changed := false
	items := make([]jsonschema.Value, len(v.Items))
	for i, item := range v.Items {
		items[i] = coerceValue(s.Items, item)
		changed = changed || items[i].Type != item.Type || items[i].Text != item.Text
	}
	if !changed {
		return v
	}
	return newArray(items)
}

// coerceEnum replaces a string that differs from exactly one string of s.Enum only in case or surrounding space by that
// one. An exact match, no match and an ambiguous one are returned unchanged.
func coerceEnum(s *jsonschema.Schema, v jsonschema.Value) jsonschema.Value {
	t := strings.TrimSpace(v.Text)
	var matches []jsonschema.Value
	for _, e := range s.Enum {
		switch {
		case e.Type != jsonschema.String:
		case e.Text == v.Text:
			return v
		case strings.EqualFold(e.Text, t):
			matches = append(matches, e)
		}
	}
	if len(matches) != 1 {
		return v
	}
	return matches[0]
}
