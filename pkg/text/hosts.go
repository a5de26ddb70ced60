package text

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/net/idna"
)

// Host is a host name with letters outside of ASCII, and the name that DNS looks up for it.
type Host struct {
	Written  string `json:"written"`
	Punycode string `json:"punycode"`
}

// NonASCIIHosts returns the distinct host names in a text that have letters outside of ASCII, with their punycode: such
// a name can look like another one. It finds names with a dot, in addresses and outside of them; a word with a dot that
// is no host may be among them.
func NonASCIIHosts(s string) (out []Host) {
	for _, w := range strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("/\\,;|\"'<>()[]{}@:?#&=%", r)
	}) {
		w = strings.Trim(w, ".!。．｡")
		if IsASCII(w) || !strings.ContainsAny(w, ".。．｡") || slices.ContainsFunc(out, func(h Host) bool {
			return h.Written == w
		}) {
			continue
		}
		name, err := lookupName.ToASCII(w)
		if err != nil || name == "" {
			name, err = idna.Punycode.ToASCII(w)
		}
		if err == nil && name != w {
			out = append(out, Host{w, name})
		}
	}
	return out
}

// lookupName maps a name as a client does before it asks DNS.
var lookupName = idna.New(idna.MapForLookup(), idna.StrictDomainName(false))
