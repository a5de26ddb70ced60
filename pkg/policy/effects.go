package policy

import "strings"

// Effect is one kind of access or side effect of a tool.
type Effect uint16

// Effects a tool can have.
const (
	ReadsPrivate   Effect = 1 << iota // returns private data of the user
	ReadsUntrusted                    // returns untrusted content
	Egress                            // sends data off this machine; a search query counts
	Mutate                            // changes persistent state
	Destroy                           // can lose data irrecoverably
	Exec                              // runs code or commands from its arguments
	Fetch                             // requests a URL; the URL itself is data sent out
	Spend                             // pays, or commits to a payment
	Authenticate                      // changes access: passwords, keys, locks
	Physical                          // controls a physical device
	Remember                          // stores content in memory, with the labels of its session
)

// EffectNames are the names in manifests, in the order of the constants.
var EffectNames = []string{
	"reads_private", "reads_untrusted", "egress", "mutate", "destroy", "exec", "fetch", "spend",
	"authenticate", "physical", "remember",
}

// String returns the effect's name as manifests write it; "unknown" for anything but one single effect.
func (e Effect) String() string {
	for i, name := range EffectNames {
		if e == 1<<i {
			return name
		}
	}
	return "unknown"
}

// Effects is a set of effects. The zero value is undeclared and counts as every effect, so that a tool without a
// declaration is treated as the most dangerous one. Declare() without arguments is the empty set.
type Effects struct {
	declared bool
	set      Effect
}

// Declare returns a set of exactly these effects.
func Declare(effects ...Effect) Effects {
	s := Effects{declared: true}
	for _, e := range effects {
		s.set |= e
	}
	return s
}

// With returns the set with e added. An undeclared set stays undeclared: it has e.
func (s Effects) With(e Effect) Effects {
	if s.declared {
		s.set |= e
	}
	return s
}

// Declared reports whether the set was declared. The zero value was not.
func (s Effects) Declared() bool { return s.declared }

// Includes reports whether every effect of other is in the set.
func (s Effects) Includes(other Effects) bool {
	return !s.declared || other.declared && other.set&^s.set == 0
}

// Has reports whether e is in the set; true for every effect when the set is undeclared.
func (s Effects) Has(e Effect) bool { return !s.declared || s.set&e != 0 }

// String lists the names of the effects, separated by commas, for display: "none" for the empty set, "all (undeclared)"
// for the zero value.
func (s Effects) String() string {
	if !s.declared {
		return "all (undeclared)"
	}
	var names []string
	for i, name := range EffectNames {
		if s.set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}
