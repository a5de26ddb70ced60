package strict

import (
	"math/big"
	"slices"
	"strings"
)

// Types is a set of JSON types.
type Types uint8

// The JSON types. A number without a fraction is an Integer, however it is written (3, 3.0, 3e0).
const (
	Null Types = 1 << iota
	Boolean
	Integer
	Number
	String
	Array
	Object
)

// typeNames holds the names that schemas give to types. "number" includes integers.
var typeNames = []struct {
	name  string
	types Types
}{
	{"string", String},
	{"number", Number | Integer},
	{"integer", Integer},
	{"boolean", Boolean},
	{"array", Array},
	{"object", Object},
	{"null", Null},
}

// TypesNamed returns the types that a schema means by a name, 0 for an unknown name.
func TypesNamed(name string) Types {
	for _, n := range typeNames {
		if n.name == name {
			return n.types
		}
	}
	return 0
}

// String returns the names of the types, joined by "or"; "" for none. A value with a fraction is a number.
func (t Types) String() string {
	var names []string
	for _, n := range typeNames {
		if t&n.types == n.types {
			names = append(names, n.name)
			t &^= n.types
		}
	}
	if t == Number { // a single value with a fraction
		names = append(names, "number")
	}
	return strings.Join(names, " or ")
}

// Value is a parsed JSON value. Numbers keep every digit.
type Value struct {
	Type    Types  // exactly one bit
	Text    string // the decoded content of a string; any other value as it is written
	Items   []Value
	Members []Member // in the order of the document; names are unique
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// Member returns the member with that exact name, nil when there is none.
func (v *Value) Member(name string) *Value {
	for i := range v.Members {
		if v.Members[i].Name == name {
			return &v.Members[i].Value
		}
	}
	return nil
}

// Strings returns the content of a string, or of an array of strings, which may be empty. ok is false for every other
// value.
func (v *Value) Strings() (out []string, ok bool) {
	if v.Type == String {
		return []string{v.Text}, true
	}
	if v.Type != Array || slices.ContainsFunc(v.Items, func(i Value) bool { return i.Type != String }) {
		return nil, false
	}
	for _, i := range v.Items {
		out = append(out, i.Text)
	}
	return out, true
}

// Rat returns the exact value of a number.
func (v *Value) Rat() *big.Rat {
	r, _ := new(big.Rat).SetString(v.Text)
	return r
}
