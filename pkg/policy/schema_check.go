package policy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Bounds of one check. Whatever the schema and the arguments are, it ends within milliseconds.
const (
	maxWork  = 1 << 18 // steps of some ten nanoseconds
	maxCheck = 160     // schemas inside one another, references among them
)

// checker checks one value against one schema. It keeps the first thing that is wrong.
type checker struct {
	work  int  // steps left
	spent bool // they did not suffice: the answer is no, whatever it would have been
	quiet int  // inside a trial, where nothing is told

	wrong   string
	allowed []string
}

// place is where a value stands, for people.
type place struct {
	up    *place
	key   string
	index int // with key == ""
}

func (p *place) String() string {
	if p == nil {
		return "the arguments"
	}
	s := ""
	for ; p != nil; p = p.up {
		part := text.OneLine(p.key, 40)
		if p.key == "" {
			part = "[" + strconv.Itoa(p.index) + "]"
		}
		if s != "" && s[0] != '[' {
			part += "."
		}
		s = part + s
	}
	return `"` + text.Clip(s, 60) + `"`
}

// charge takes n steps.
func (c *checker) charge(n int) bool {
	if c.work -= n; c.work < 0 || n < 0 {
		c.spent = true
	}
	return !c.spent
}

// fail says what is wrong at p, unless it is only tried.
func (c *checker) fail(p *place, format string, a ...any) bool {
	if c.quiet == 0 && c.wrong == "" {
		c.wrong = p.String() + " " + fmt.Sprintf(format, a...)
	}
	return false
}

// try reports whether v fits s, and tells nothing when it does not.
func (c *checker) try(s *schema, v *value, depth int) bool {
	c.quiet++
	ok := c.check(s, v, nil, depth)
	c.quiet--
	return ok
}

// check reports whether v fits s.
func (c *checker) check(s *schema, v *value, p *place, depth int) bool {
	if s == nil {
		return !c.spent
	}
	if depth > maxCheck {
		c.spent = true
	}
	if !c.charge(1) {
		return false
	}
	if s.never {
		return c.fail(p, "is not known here; leave it out")
	}
	if s.kinds != 0 && s.kinds&v.kind == 0 {
		return c.fail(p, "must be of type %s, and is of type %s", s.kinds, v.kind)
	}
	if s.enum != nil && !c.among(s.enum, v, p) {
		return false
	}
	if !c.combined(s, v, p, depth) {
		return false
	}
	switch v.kind {
	case jsonString:
		return c.checkString(s, v, p)
	case jsonInteger, jsonNumber:
		return c.checkNumber(s, v, p)
	case jsonArray:
		return c.checkArray(s, v, p, depth)
	case jsonObject:
		return c.checkObject(s, v, p, depth)
	}
	return true
}

// among reports whether v is one of the values.
func (c *checker) among(enum []*value, v *value, p *place) bool {
	for _, e := range enum {
		if c.equal(e, v) {
			return true
		}
	}
	if c.quiet == 0 && c.wrong == "" {
		for _, e := range enum[:min(len(enum), 20)] {
			if e.kind&(jsonArray|jsonObject) == 0 {
				c.allowed = append(c.allowed, text.OneLine(e.text, 60))
			}
		}
	}
	return c.fail(p, "is none of the %d allowed values", len(enum))
}

// combined checks the parts of s that are schemas for v itself. Running out of steps is never a match.
func (c *checker) combined(s *schema, v *value, p *place, depth int) bool {
	if s.ref != nil && !c.check(s.ref, v, p, depth+1) {
		return false
	}
	for _, sub := range s.allOf {
		if !c.check(sub, v, p, depth+1) {
			return false
		}
	}
	if s.anyOf != nil {
		found := false
		for i := 0; i < len(s.anyOf) && !found; i++ {
			found = c.try(s.anyOf[i], v, depth+1)
		}
		if !found || c.spent {
			return c.fail(p, "fits none of the %d allowed forms%s", len(s.anyOf), kindsIn(s.anyOf))
		}
	}
	if s.oneOf != nil {
		found := 0
		for _, sub := range s.oneOf {
			if c.try(sub, v, depth+1) {
				found++
			}
		}
		if found != 1 || c.spent {
			return c.fail(p, "must fit one of the %d allowed forms%s, and fits %d", len(s.oneOf), kindsIn(s.oneOf), found)
		}
	}
	if s.not != nil && (c.try(s.not, v, depth+1) || c.spent) {
		return c.fail(p, "has a form that is excluded")
	}
	return !c.spent
}

// kindsIn is what the forms are, where they say it.
func kindsIn(forms []*schema) string {
	var kinds jsonKind
	for _, f := range forms {
		if kinds |= f.kinds; f.kinds == 0 {
			return ""
		}
	}
	return " (" + kinds.String() + ")"
}

func (c *checker) checkString(s *schema, v *value, p *place) bool {
	if (s.length != span{}) {
		if !c.charge(len(v.text) / 256) {
			return false
		}
		if !c.within(s.length, utf8.RuneCountInString(v.text), "characters", p) {
			return false
		}
	}
	if s.pattern != nil && !c.matches(s.pattern, v.text) {
		return c.fail(p, "does not match the pattern %s", text.OneLine(s.pattern.source, 60))
	}
	return true
}

// matches charges what the match can cost at most before it is made.
func (c *checker) matches(p *pattern, s string) bool {
	return c.charge(1+len(s)*p.steps/16) && p.MatchString(s)
}

func (c *checker) within(s span, n int, of string, p *place) bool {
	if n < s.least {
		return c.fail(p, "must have at least %d %s, and has %d", s.least, of, n)
	}
	if s.bounded && n > s.most {
		return c.fail(p, "must have at most %d %s, and has %d", s.most, of, n)
	}
	return true
}

func (c *checker) checkNumber(s *schema, v *value, p *place) bool {
	if s.low == nil && s.high == nil && s.multiple == nil {
		return true
	}
	d := v.decimal()
	if s.low != nil {
		if n := d.compare(s.low.decimal); n < 0 || n == 0 && s.low.exclusive {
			return c.fail(p, "must be %s", bound("at least", "more than", s.low))
		}
	}
	if s.high != nil {
		if n := d.compare(s.high.decimal); n > 0 || n == 0 && s.high.exclusive {
			return c.fail(p, "must be %s", bound("at most", "less than", s.high))
		}
	}
	if s.multiple != nil && (!c.charge(32) || !d.multipleOf(*s.multiple)) {
		return c.fail(p, "must be a multiple of what the tool counts in")
	}
	return true
}

func bound(inclusive, exclusive string, l *limit) string {
	if l.exclusive {
		inclusive = exclusive
	}
	return inclusive + " " + text.Clip(l.text, 40)
}

func (c *checker) checkArray(s *schema, v *value, p *place, depth int) bool {
	if !c.within(s.count, len(v.items), "elements", p) {
		return false
	}
	for i := range v.items {
		inner := s.items
		if i < len(s.prefix) {
			inner = s.prefix[i]
		}
		if inner != nil && !c.check(inner, &v.items[i], &place{up: p, index: i}, depth+1) {
			return false
		}
		if !s.unique {
			continue
		}
		for j := range i {
			if c.equal(&v.items[i], &v.items[j]) || c.spent {
				return c.fail(p, "has an element twice")
			}
		}
	}
	return true
}

func (c *checker) checkObject(s *schema, v *value, p *place, depth int) bool {
	for _, name := range s.required {
		if !c.charge(1+len(v.members)/8) || v.at(name) == nil {
			return c.fail(&place{up: p, key: name}, "is missing%s", mustBe(s.props[name]))
		}
	}
	if !c.within(s.members, len(v.members), "members", p) {
		return false
	}
	for i := range v.members {
		m := &v.members[i]
		if !c.checkMember(s, m, &place{up: p, key: m.key}, depth+1) {
			return false
		}
	}
	return true
}

// mustBe is what a missing property has to be.
func mustBe(s *schema) string {
	if s == nil || s.kinds == 0 {
		return ""
	}
	return "; it must be of type " + s.kinds.String()
}

func (c *checker) checkMember(s *schema, m *member, p *place, depth int) bool {
	if s.keys != nil && !c.try(s.keys, &value{kind: jsonString, text: m.key}, depth) {
		return c.fail(p, "is not a name that is allowed here")
	}
	inner, named := s.props[m.key]
	if named && !c.check(inner, &m.value, p, depth) {
		return false
	}
	for _, pp := range s.patterns {
		if c.matches(pp.pattern, m.key) {
			named = true
			if !c.check(pp.schema, &m.value, p, depth) {
				return false
			}
		}
	}
	if named || c.spent {
		return !c.spent
	}
	// Some readers take "Path" for "path": what was checked as a stranger would be used as the argument.
	for _, name := range s.names {
		if !c.charge(1) || strings.EqualFold(name, m.key) {
			return c.fail(p, "must be written %s", name)
		}
	}
	if s.other != nil && s.other.never {
		if c.quiet == 0 && c.wrong == "" {
			c.allowed = s.names
		}
		return c.fail(p, "is not known; known are: %s", or(text.Clip(strings.Join(s.names, ", "), 200), "none"))
	}
	return s.other == nil || c.check(s.other, &m.value, p, depth)
}

// equal reports whether two values mean the same: numbers by what they are, objects in any order.
func (c *checker) equal(a, b *value) bool {
	number := jsonInteger | jsonNumber
	if !c.charge(1) || a.kind != b.kind || len(a.items) != len(b.items) || len(a.members) != len(b.members) {
		return false
	}
	if a.kind&number != 0 {
		return a.decimal().compare(b.decimal()) == 0
	}
	for i := range a.items {
		if !c.equal(&a.items[i], &b.items[i]) {
			return false
		}
	}
	for i := range a.members {
		m := &a.members[i]
		if !c.charge(len(b.members) / 8) {
			return false
		}
		if o := b.at(m.key); o == nil || !c.equal(&m.value, o) {
			return false
		}
	}
	return a.text == b.text
}
