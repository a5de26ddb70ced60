package policy

import "strings"

// Effect is one thing a tool can do to the world or to what an agent knows.
type Effect uint16

// Effects a tool can have.
const (
	ReadsPrivate   Effect = 1 << iota // sees what belongs to the user
	ReadsUntrusted                    // brings in text that anyone could have written
	Egress                            // sends something off this machine; a search query counts
	Mutate                            // changes something that lasts
	Destroy                           // can lose something for good
	Exec                              // runs what it is given
	Fetch                             // asks an address for a page: the address itself is what it sends out
	Spend                             // moves money, or promises to
	Authenticate                      // changes who may get in: passwords, keys, locks
	Physical                          // moves something in the world
	Remember                          // keeps something for later, under the labels of the session that it came from
)

// effectNames are the names in the order of the constants.
var effectNames = []string{"reads_private", "reads_untrusted", "egress", "mutate", "destroy", "exec", "fetch", "spend", "authenticate", "physical", "remember"}

// String is the effect's name as manifests write it.
func (e Effect) String() string {
	for i, name := range effectNames {
		if e == 1<<i {
			return name
		}
	}
	return "unknown"
}

// Effects is a set of effects. The zero value is not the empty set: nobody has said what the tool does, so it may do
// everything. A tool that truly does nothing says so with Declare().
type Effects struct {
	declared bool
	set      Effect
}

// Declare makes a set of exactly these effects.
func Declare(effects ...Effect) Effects {
	s := Effects{declared: true}
	for _, e := range effects {
		s.set |= e
	}
	return s
}

// Has reports whether e is in the set. What was never declared is.
func (s Effects) Has(e Effect) bool { return !s.declared || s.set&e != 0 }

// String lists the effects, for people.
func (s Effects) String() string {
	if !s.declared {
		return "all (undeclared)"
	}
	var names []string
	for i, name := range effectNames {
		if s.set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}
