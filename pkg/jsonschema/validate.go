package jsonschema

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Limits of one check. Whatever the schema and the value are, it ends within milliseconds.
const (
	maxWork  = 1 << 18 // steps of some ten nanoseconds
	maxDepth = 160     // schemas inside one another, references included
)

// ErrTooComplex reports that a check exceeded its budget. The value counts as invalid.
var ErrTooComplex = errors.New("checking the value takes too many steps")

// Error is the first violation of a schema.
type Error struct {
	Path    string   // of the invalid value, as in tags[1].name; "" is the whole document
	Reason  string   // the rule that is violated, as in "must be of type string"
	Got     string   // the type or length that was found; "" where the reason says all
	Value   string   // the invalid value as it is written, clipped; "" where it does not help
	Allowed []string // the allowed values or names, where they are a list
}

// Error names the argument and what is expected. It quotes no value, which makes it fit for logs.
func (e *Error) Error() string { return e.describe(e.Got) }

// ErrorWithValue is like Error and quotes the invalid value, for the model that wrote it.
func (e *Error) ErrorWithValue() string {
	if e.Value == "" {
		return e.Error()
	}
	return e.describe(e.Value)
}

// describe returns the argument, the reason and got as one sentence; "" leaves got out.
func (e *Error) describe(got string) string {
	subject := "the arguments"
	if e.Path != "" {
		subject = `"` + text.Clip(e.Path, 60) + `"`
	}
	if got != "" {
		got = ", got " + got
	}
	return subject + " " + e.Reason + got
}

// Errors of a check whose text nobody sees: one inside a trial (anyOf, oneOf, not), and one over budget.
var (
	errTrial  = &Error{Reason: "does not match"}
	errBudget = &Error{Reason: "takes too many steps to check"}
)

// ValidateJSON parses raw and validates it. The error is one of [strict.Parse] or of [Schema.Validate].
func (s *Schema) ValidateJSON(raw []byte) error {
	v, err := strict.Parse(raw)
	if err != nil {
		return err
	}
	return s.Validate(&v)
}

// Validate returns nil when v is valid, [ErrTooComplex] when the check exceeds its budget, and otherwise an [*Error]
// with the first violation. A nil s accepts every value.
func (s *Schema) Validate(v *strict.Value) error {
	c := checker{budget: maxWork}
	e := c.check(s, v, 0)
	switch {
	case c.exhausted:
		return ErrTooComplex
	case e != nil:
		return e
	}
	return nil
}

// checker is the state of one check.
type checker struct {
	budget    int  // steps left
	exhausted bool // the budget did not suffice: the value is invalid, whatever the schema says
	trials    int  // nested trials, inside which no error text is built
}

// charge takes n steps from the budget and reports whether it suffices.
func (c *checker) charge(n int) bool {
	if c.budget -= n; c.budget < 0 || n < 0 {
		c.exhausted = true
	}
	return !c.exhausted
}

// fail returns the error for v, never nil: errBudget over budget and errTrial inside a trial, which must not be
// changed. got is the type or length found; nil v leaves the value out of the error.
func (c *checker) fail(v *strict.Value, got, format string, a ...any) *Error {
	switch {
	case c.exhausted:
		return errBudget
	case c.trials > 0:
		return errTrial
	}
	e := &Error{Reason: fmt.Sprintf(format, a...), Got: got}
	if v != nil {
		e.Value = quote(v, 80)
	}
	return e
}

// within puts the name of a member, or the [index] of an element, in front of the path of e, which must not be nil, and
// returns e. The shared errors errTrial and errBudget stay unchanged.
func (c *checker) within(segment string, e *Error) *Error {
	if e == errTrial || e == errBudget {
		return e
	}
	if e.Path != "" && e.Path[0] != '[' {
		segment += "."
	}
	e.Path = segment + e.Path
	return e
}

// quote returns the value as it is written, on one line of at most limit bytes.
func quote(v *strict.Value, limit int) string {
	if v.Type == strict.String {
		return strconv.Quote(text.OneLine(v.Text, limit))
	}
	return text.OneLine(v.Text, limit)
}

// matches reports whether v is valid for s, without an error text. It is false over budget; the caller must check
// c.exhausted where a mismatch accepts the value.
func (c *checker) matches(s *Schema, v *strict.Value, depth int) bool {
	c.trials++
	e := c.check(s, v, depth)
	c.trials--
	return e == nil
}

// check returns nil when v is valid for s, otherwise the first violation, or errBudget over budget or maxDepth. depth
// counts the schemas around s. A nil s accepts every value.
func (c *checker) check(s *Schema, v *strict.Value, depth int) *Error {
	if s == nil {
		return nil
	}
	if depth > maxDepth {
		c.exhausted = true
	}
	if !c.charge(1) {
		return errBudget
	}
	if s.rejectAll {
		return c.fail(nil, "", "is not allowed; leave it out")
	}
	if s.Types != 0 && s.Types&v.Type == 0 {
		return c.fail(v, v.Type.String(), "must be of type %s", s.Types)
	}
	if s.hasEnum {
		if e := c.checkEnum(s.Enum, v); e != nil {
			return e
		}
	}
	if e := c.checkCombined(s, v, depth); e != nil {
		return e
	}
	switch v.Type {
	case strict.String:
		return c.checkString(s, v)
	case strict.Integer, strict.Number:
		return c.checkNumber(s, v)
	case strict.Array:
		return c.checkArray(s, v, depth)
	case strict.Object:
		return c.checkObject(s, v, depth)
	}
	return nil
}

// checkEnum rejects a value that equals none of enum. The error lists at most 20 of the allowed values.
func (c *checker) checkEnum(enum []strict.Value, v *strict.Value) *Error {
	for i := range enum {
		if c.isEqual(&enum[i], v) {
			return nil
		}
	}
	if c.exhausted || c.trials > 0 {
		return c.fail(nil, "", "")
	}
	var quoted, allowed []string
	for i := range enum[:min(len(enum), 20)] {
		e := &enum[i]
		quoted = append(quoted, quote(e, 60))
		if e.Type&(strict.Array|strict.Object) == 0 {
			allowed = append(allowed, text.OneLine(e.Text, 60))
		}
	}
	e := c.fail(v, "", "must be one of %s", text.Clip(strings.Join(quoted, ", "), 200))
	e.Allowed = allowed
	return e
}

// checkCombined checks the subschemas that apply to v itself: $ref, allOf, anyOf, oneOf and not. A trial that exceeds
// the budget rejects the value.
func (c *checker) checkCombined(s *Schema, v *strict.Value, depth int) *Error {
	if s.ref != nil {
		if e := c.check(s.ref, v, depth+1); e != nil {
			return e
		}
	}
	for _, sub := range s.allOf {
		if e := c.check(sub, v, depth+1); e != nil {
			return e
		}
	}
	if s.AnyOf != nil {
		found := false
		for i := 0; i < len(s.AnyOf) && !found; i++ {
			found = c.matches(s.AnyOf[i], v, depth+1)
		}
		if !found || c.exhausted {
			return c.fail(v, "", "matches none of the %d allowed forms%s", len(s.AnyOf), describeTypes(s.AnyOf))
		}
	}
	if s.oneOf != nil {
		found := 0
		for _, sub := range s.oneOf {
			if c.matches(sub, v, depth+1) {
				found++
			}
		}
		if found != 1 || c.exhausted {
			return c.fail(nil, "", "must match one of the %d allowed forms%s, and matches %d", len(s.oneOf),
				describeTypes(s.oneOf), found)
		}
	}
	if s.not != nil && (c.matches(s.not, v, depth+1) || c.exhausted) {
		return c.fail(v, "", "has an excluded form")
	}
	return nil
}

// describeTypes returns the types of the forms in parentheses after a space, "" when one of them has no type.
func describeTypes(forms []*Schema) string {
	var types strict.Types
	for _, f := range forms {
		if types |= f.Types; f.Types == 0 {
			return ""
		}
	}
	return " (" + types.String() + ")"
}

// checkString checks the length in code points and the pattern of a string.
func (c *checker) checkString(s *Schema, v *strict.Value) *Error {
	if (s.length != lengthRange{}) {
		if !c.charge(len(v.Text) / 256) {
			return errBudget
		}
		if e := c.checkLength(s.length, utf8.RuneCountInString(v.Text), "characters"); e != nil {
			return e
		}
	}
	if s.pattern != nil && !c.matchesPattern(s.pattern, v.Text) {
		return c.fail(v, "", "must match the pattern %s", text.OneLine(s.pattern.source, 60))
	}
	return nil
}

// matchesPattern charges the highest cost of the match before it is made.
func (c *checker) matchesPattern(p *pattern, s string) bool {
	return c.charge(1+len(s)*p.steps/16) && p.MatchString(s)
}

// checkLength rejects a length n outside of r. unit is the plural noun in the error.
func (c *checker) checkLength(r lengthRange, n int, unit string) *Error {
	if n < r.min {
		return c.fail(nil, strconv.Itoa(n), "must have at least %d %s", r.min, unit)
	}
	if r.bounded && n > r.max {
		return c.fail(nil, strconv.Itoa(n), "must have at most %d %s", r.max, unit)
	}
	return nil
}

// checkNumber checks the bounds and multipleOf of a number, without rounding.
func (c *checker) checkNumber(s *Schema, v *strict.Value) *Error {
	if (s.minimum != nil || s.maximum != nil) && !c.charge(compareCost(v)) {
		return errBudget
	}
	if b := s.minimum; b != nil {
		if d := compareNumbers(v, b.number); d < 0 || d == 0 && b.exclusive {
			return c.fail(v, "", "must be %s", b.describe("at least", "above"))
		}
	}
	if b := s.maximum; b != nil {
		if d := compareNumbers(v, b.number); d > 0 || d == 0 && b.exclusive {
			return c.fail(v, "", "must be %s", b.describe("at most", "below"))
		}
	}
	if m := s.multipleOf; m != nil {
		if !c.charge(32) {
			return errBudget
		}
		if q := v.Rat(); !q.Quo(q, m.Rat()).IsInt() {
			return c.fail(v, "", "must be a multiple of %s", text.Clip(m.Text, 40))
		}
	}
	return nil
}

func (b *bound) describe(inclusive, exclusive string) string {
	if b.exclusive {
		inclusive = exclusive
	}
	return inclusive + " " + text.Clip(b.number.Text, 40)
}

// checkArray checks the number of elements, each element, and uniqueItems. The path of the error has the index of the
// element.
func (c *checker) checkArray(s *Schema, v *strict.Value, depth int) *Error {
	if e := c.checkLength(s.itemCount, len(v.Items), "elements"); e != nil {
		return e
	}
	for i := range v.Items {
		inner := s.Items
		if i < len(s.prefixItems) {
			inner = s.prefixItems[i]
		}
		if e := c.check(inner, &v.Items[i], depth+1); e != nil {
			return c.within("["+strconv.Itoa(i)+"]", e)
		}
		if !s.uniqueItems {
			continue
		}
		for j := range i {
			if c.isEqual(&v.Items[i], &v.Items[j]) || c.exhausted {
				return c.fail(nil, "", "has the same element twice")
			}
		}
	}
	return nil
}

// checkObject checks required members, the number of members, and each member. The path of the error has the member's
// name.
func (c *checker) checkObject(s *Schema, v *strict.Value, depth int) *Error {
	for _, name := range s.Required {
		if !c.charge(1+len(v.Members)/8) || v.Member(name) == nil {
			expected := ""
			if p := s.Properties[name]; p != nil && p.Types != 0 {
				expected = "; it must be of type " + p.Types.String()
			}
			return c.within(text.OneLine(name, 40), c.fail(nil, "", "is missing%s", expected))
		}
	}
	if e := c.checkLength(s.memberCount, len(v.Members), "members"); e != nil {
		return e
	}
	for i := range v.Members {
		m := &v.Members[i]
		if e := c.checkMember(s, m, depth+1); e != nil {
			return c.within(text.OneLine(m.Name, 40), e)
		}
	}
	return nil
}

// checkMember checks one member by its name, properties, patternProperties, and additionalProperties if neither names
// it. It also rejects a member that neither names and whose name differs from a declared one only in case.
func (c *checker) checkMember(s *Schema, m *strict.Member, depth int) *Error {
	if s.propertyNames != nil && !c.matches(s.propertyNames, &strict.Value{Type: strict.String, Text: m.Name}, depth) {
		return c.fail(nil, "", "is not an allowed name")
	}
	inner, named := s.Properties[m.Name]
	if named {
		if e := c.check(inner, &m.Value, depth); e != nil {
			return e
		}
	}
	for _, p := range s.patterns {
		if c.matchesPattern(p.pattern, m.Name) {
			named = true
			if e := c.check(p.schema, &m.Value, depth); e != nil {
				return e
			}
		}
	}
	if c.exhausted {
		return errBudget
	}
	if named {
		return nil
	}
	// Some decoders ignore case: a tool would read "Path" as "path", unchecked.
	for _, name := range s.PropertyNames {
		if !c.charge(1) || strings.EqualFold(name, m.Name) {
			return c.fail(nil, "", "must be written %s", name)
		}
	}
	if s.AdditionalProperties.RejectsAll() {
		e := c.fail(nil, "", "is not known; known are: %s",
			cmp.Or(text.Clip(strings.Join(s.PropertyNames, ", "), 200), "none"))
		if e != errTrial && e != errBudget {
			e.Allowed = s.PropertyNames
		}
		return e
	}
	return c.check(s.AdditionalProperties, &m.Value, depth)
}

// isEqual reports whether two values are equal as JSON: numbers by value, objects in any order of members. It is false
// over budget, and then c.exhausted is set.
func (c *checker) isEqual(a, b *strict.Value) bool {
	if !c.charge(1) || a.Type != b.Type || len(a.Items) != len(b.Items) || len(a.Members) != len(b.Members) {
		return false
	}
	if a.Text == b.Text {
		return true
	}
	if isNumber(a) {
		return c.charge(32) && compareNumbers(a, b) == 0
	}
	for i := range a.Items {
		if !c.isEqual(&a.Items[i], &b.Items[i]) {
			return false
		}
	}
	for i := range a.Members {
		m := &a.Members[i]
		if !c.charge(len(b.Members) / 8) {
			return false
		}
		if o := b.Member(m.Name); o == nil || !c.isEqual(&m.Value, o) {
			return false
		}
	}
	return a.Type&(strict.Array|strict.Object) != 0
}
