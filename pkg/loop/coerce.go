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
	"conclave/pkg/strict"
)

// schemas holds the compiled schemas of tools, and shortSchemas those for a prompt. Tools are the same from turn to
// turn.
var (
	schemas      jsonschema.Cache[*jsonschema.Schema]
	shortSchemas jsonschema.Cache[json.RawMessage]
)

// compileSchema compiles a tool's schema. A tool without one accepts any object.
func compileSchema(tool *model.Tool) (*jsonschema.Schema, error) {
	if len(tool.Parameters) == 0 || string(tool.Parameters) == "null" {
		return &jsonschema.Schema{Types: strict.Object}, nil
	}
	return schemas.Get(tool.Parameters, jsonschema.Compile)
}

// coerceArguments makes the arguments of a call fit the schema and describes, for the model, the first thing that still
// does not: "" = they are valid. fit is a JSON object in any case, {} when raw is empty, null or no object. Nothing is
// guessed: see [coerceValue]. The order of keys stays.
func coerceArguments(s *jsonschema.Schema, raw []byte) (fit json.RawMessage, problem string) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		raw = []byte("{}")
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte(string(utf8.RuneError)))
	}
	v, err := strict.Parse(raw)
	if err != nil {
		return json.RawMessage("{}"), "the arguments are invalid: " + err.Error()
	}
	if embedded, ok := parseEmbedded(&v, strict.Object); ok { // as some protocols send them
		v = embedded
	}
	if v.Type != strict.Object {
		return json.RawMessage("{}"), "the arguments must be one JSON object, got " + clip(string(raw), 80)
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
	if e, ok := errors.AsType[*jsonschema.Error](err); ok {
		return e.ErrorWithValue()
	}
	return "the arguments are invalid: " + err.Error()
}

// coerceValue converts v to a type that s allows where v can mean only one thing: a string that holds the JSON of an
// allowed type to that value ("30000" to 30000, "true" to true), one value to a list of it, 3.0 to the integer 3, and
// null for an optional member to none. nil s allows everything. It never fails: a value that it cannot convert is
// returned unchanged, for the validation to reject.
func coerceValue(s *jsonschema.Schema, v strict.Value) strict.Value {
	if s == nil {
		return v
	}
	if len(s.AnyOf) > 0 {
		return coerceAnyOf(s, v)
	}
	if s.Types != 0 && s.Types&v.Type == 0 {
		if embedded, ok := parseEmbedded(&v, s.Types); ok {
			v = embedded
		} else if s.Types&strict.Array != 0 && v.Type != strict.Null {
			v = newArray([]strict.Value{v})
		}
	}
	switch {
	case v.Type == strict.Integer && s.Types&strict.Integer != 0 && s.Types&strict.Number == 0:
		v.Text = formatInteger(v.Text)
	case v.Type == strict.Object:
		return coerceObject(s, v)
	case v.Type == strict.Array:
		return coerceArray(s, v)
	}
	return v
}

// coerceAnyOf returns a value that fits one of s.AnyOf unchanged, and otherwise converts it to the first form that it
// can fit. A value that fits none, even converted, is unchanged.
func coerceAnyOf(s *jsonschema.Schema, v strict.Value) strict.Value {
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

// parseEmbedded parses the JSON value that is the content of the string v. ok is false when it is none of these types.
func parseEmbedded(v *strict.Value, types strict.Types) (embedded strict.Value, ok bool) {
	if v.Type != strict.String {
		return embedded, false
	}
	embedded, err := strict.Parse([]byte(strings.TrimSpace(v.Text)))
	return embedded, err == nil && embedded.Type&types != 0
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

// coerceObject converts the members of v; undeclared ones follow s.AdditionalProperties. A null where the schema allows
// none is removed unless the member is required.
func coerceObject(s *jsonschema.Schema, v strict.Value) strict.Value {
	changed := false
	members := make([]strict.Member, 0, len(v.Members))
	for _, m := range v.Members {
		p, declared := s.Properties[m.Name]
		if !declared {
			p = s.AdditionalProperties
		}
		fit := coerceValue(p, m.Value)
		if p != nil && fit.Type == strict.Null && p.Validate(&fit) != nil && !slices.Contains(s.Required, m.Name) {
			changed = true
			continue
		}
		changed = changed || fit.Type != m.Value.Type || fit.Text != m.Value.Text
		members = append(members, strict.Member{Name: m.Name, Value: fit})
	}
	if !changed {
		return v
	}
	return newObject(members)
}

// coerceArray converts the elements of v to s.Items. Elements that cannot be converted stay, for the validation to
// reject.
func coerceArray(s *jsonschema.Schema, v strict.Value) strict.Value {
	changed := false
	items := make([]strict.Value, len(v.Items))
	for i, item := range v.Items {
		items[i] = coerceValue(s.Items, item)
		changed = changed || items[i].Type != item.Type || items[i].Text != item.Text
	}
	if !changed {
		return v
	}
	return newArray(items)
}
