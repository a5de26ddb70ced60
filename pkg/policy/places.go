package policy

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"conclave/pkg/text"
)

// A question can say where a destination stands in place of naming it: "her e-mail is on www.dora.example", "the same guests as
// 'Harvest talk'". Such a place is derived from the question alone. What a read of exactly that place names is a destination when
// the result leaves no choice: the only mail address in it, or the people of the only object in it. Whoever may write to the place
// could still name another destination, so that every other value of such a call must be the user's own, as in an act that cannot be undone.

// Words of the grammar of places, in English, German, French, Spanish and Italian.
var (
	// contactNouns are words for an address. They count after a possessive: "her e-mail", but not "the e-mail from Bob".
	contactNouns = listWords(`e-mail email mail address contact e-mail-adresse mailadresse adresse kontakt courriel contact correo dirección indirizzo contatto`)
	possessives  = listWords(`her his their its ihre ihrer ihren ihr seine seiner seinen sein deren dessen son sa ses leur leurs su sus suo sua loro`)
	// peopleNouns are words for the people of an object.
	peopleNouns = listWords(`participants attendees guests invitees members recipients people teilnehmer teilnehmern gäste gästen empfänger empfängern mitglieder mitgliedern
		invités destinataires membres participantes asistentes invitados destinatarios miembros partecipanti invitati destinatari membri`)
	// placeWords precede the place of an address or of people; ofWords only of people: "the same guests as".
	placeWords = listWords(`on in at under auf in im bei beim unter sur dans à en su nel nella nello sul sulla`)
	ofWords    = listWords(`as of from for wie von des que de du como di del della come`)
	// copulas after a place say something about it and do not point to it: "her e-mail on www.dora.example is wrong".
	copulas = listWords(`is are was were isn't wasn't ist sind war waren est sont était es son era è sono`)
)

// maxPlaceDistance is the largest number of words between the noun of an address and its place.
const maxPlaceDistance = 8

// Place is where a question says that a destination stands.
type Place struct {
	Name   string `json:"name"`             // a quotation or URL of the question, in lower case
	Near   string `json:"near,omitempty"`   // the words before it, from the noun of the destination, and after it, to the next comma
	People bool   `json:"people,omitempty"` // the people of an object, and not one address
}

// listPlaces returns the places of destinations that a sentence gives. A sentence with a refusal gives none.
func listPlaces(s []word) (out []Place) {
	if slices.ContainsFunc(s, func(w word) bool { return refusals[w.lower] && !w.quoted }) {
		return nil
	}
	for i := range s {
		isPeople := !s[i].quoted && peopleNouns[s[i].lower]
		if !isPeople && !isOwnedContact(s, i) {
			continue
		}
		at := findPlace(s, i, isPeople)
		if at < 0 {
			continue
		}
		p := Place{Name: text.Cut(s[at].lower, maxQuoteText), People: isPeople}
		for j, w := range s[i+1 : min(len(s), at+1+maxPlaceDistance)] {
			if i+1+j != at {
				p.Near = strings.TrimSpace(p.Near + " " + w.text)
			}
			if w.comma && i+1+j >= at {
				break
			}
		}
		p.Near = text.Cut(p.Near, maxClause)
		if len(out) < maxPlaces && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// isOwnedContact reports whether the word at i is a noun of an address that belongs to somebody: "her new address", "Dora's e-mail".
func isOwnedContact(s []word, i int) bool {
	return !s[i].quoted && contactNouns[s[i].lower] && slices.ContainsFunc(s[max(0, i-2):i], func(w word) bool {
		return !w.quoted && (possessives[w.lower] || strings.HasSuffix(w.lower, "'s"))
	})
}

// findPlace returns the position of the place of the noun at i, -1 when the words after the noun give none.
func findPlace(s []word, i int, isPeople bool) int {
	located := false
	for j := i + 1; j < len(s) && j <= i+maxPlaceDistance && !s[j-1].comma; j++ {
		w := s[j]
		switch {
		case w.quoted || strings.ContainsAny(w.text, "./@") && !timeWord.MatchString(w.lower):
			if located && !slices.ContainsFunc(s[j+1:], func(w word) bool { return copulas[w.lower] && !w.quoted }) {
				return j
			}
			return -1
		case placeWords[w.lower], isPeople && ofWords[w.lower]:
			located = true
		}
	}
	return -1
}

// isReadBy reports whether a call of a tool for a question reads exactly this place, so that untrusted content cannot choose what is read:
// one argument is the place and every other is a date beside it. A URL must be fetched. Any other place needs a tool whose
// nouns (about) the question has: beside the place for an address, anywhere for the people of an object, which the tool must declare.
func (p Place) isReadBy(t Tool, args []argument, question string) bool {
	hasPlace, isFetched := false, false
	days, _ := extractDays(p.Near)
	for _, a := range args {
		switch {
		case a.text == "":
		case a.role != RoleTime && strings.ToLower(strings.TrimSpace(a.text)) == p.Name:
			hasPlace, isFetched = true, isFetched || a.role == RoleURL && t.Act == ActFetch
		case a.role == RoleTime && areAmong(a.text, days, day.matches):
		default:
			return false
		}
	}
	switch {
	case !hasPlace:
		return false
	case p.People:
		return len(t.People) > 0 && namesAny(question, t.About)
	}
	return isFetched || t.Act != ActFetch && namesAny(p.Near, t.About)
}

// found holds the destinations that a place names for a question.
type found struct {
	Query  string   `json:"query"`
	Place  Place    `json:"place"`
	Values []string `json:"values,omitempty"` // in lower case; none when two reads of the place differ
}

const (
	maxPlaces      = 4  // of one clause or sentence
	maxFound       = 8  // places with destinations in a session
	maxFoundValues = 40 // destinations of one place
)

// addFound adds the destinations that a result names, when its call read a place that its question gives. A result with signs of
// injection names none.
func (f *Flow) addFound(r Result) {
	q := f.findQuestion(r.Query)
	if q == nil || f.overflow || len(r.Flags) > 0 {
		return
	}
	args, err := flattenArguments(Call{Tool: r.Tool, Args: r.Args})
	if err != nil {
		return
	}
	for _, g := range q.Grants {
		for _, p := range g.Places {
			if !p.isReadBy(r.Tool, args, q.Text) {
				continue
			}
			if values := extractDestinations(p.People, r.Tool.People, r.Text); len(values) > 0 {
				f.setFound(found{Query: r.Query, Place: p, Values: values})
			}
		}
	}
}

// setFound stores the destinations of a place. When it was read before and named others, it names none any more.
func (f *Flow) setFound(n found) {
	next := slices.Clone(f.found)
	i := slices.IndexFunc(next, func(o found) bool { return o.Query == n.Query && o.Place == n.Place })
	switch {
	case i < 0:
		next = lastN(append(next, n), maxFound)
	case !slices.Equal(next[i].Values, n.Values):
		next[i].Values = nil
	}
	f.found = next
}

// isFound reports whether a place that the grant gives names this destination for its question.
func (f *Flow) isFound(query string, g Grant, destination string) bool {
	d := strings.ToLower(strings.TrimSpace(destination))
	return slices.ContainsFunc(f.found, func(o found) bool {
		return o.Query == query && slices.Contains(g.Places, o.Place) && slices.Contains(o.Values, d)
	})
}

// usesPlace reports whether a destination of a call is covered only by a place that the grant gives.
func usesPlace(c Call, g Grant, args []argument) bool {
	return slices.ContainsFunc(args, func(a argument) bool {
		return a.role == RoleDestination && c.Flow.isFound(c.Query, g, a.text) && !g.coversDestination(c.Flow, a.text)
	})
}

// mailPattern matches a mail address.
var mailPattern = regexp.MustCompile(`[\p{L}\p{N}._%+-]+@[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)+`)

// hiddenAt matches the @ of an address that is written for humans only: dora (at) lind.example.
var hiddenAt = regexp.MustCompile(`(?i)[(\[{<]\s*(?:at|ät|a|arroba|chiocciola|arobase)\s*[)\]}>]`)

// extractDestinations returns the destinations that a result names without a choice, in lower case and sorted: the people in the given
// fields of the only object that has one of them, or the only mail address in the text. Nothing is returned when there are
// several objects or addresses, more than maxFoundValues people, or another @.
func extractDestinations(isPeople bool, fields []string, s string) []string {
	if isPeople {
		return extractPeople(fields, s)
	}
	s = strings.ToLower(dotReplacer.Replace(norm.NFKC.String(s)))
	all := mailPattern.FindAllString(s, -1)
	signs := strings.Count(s, "@")
	slices.Sort(all)
	if one := slices.Compact(slices.Clone(all)); len(one) != 1 || signs != len(all) || hiddenAt.MatchString(s) || len(one[0]) > 128 {
		return nil
	}
	return all[:1]
}

// extractPeople returns the strings in the given fields of the only object of a JSON text that has one of them.
func extractPeople(fields []string, s string) (out []string) {
	var top any
	if json.Unmarshal([]byte(s), &top) != nil {
		return nil
	}
	objects := 0
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case string:
			out = append(out, strings.ToLower(strings.TrimSpace(v)))
		case []any:
			for _, x := range v {
				collect(x)
			}
		}
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			had := len(out)
			for _, field := range fields {
				collect(v[field])
			}
			if len(out) > had {
				objects++
			}
			for k, x := range v {
				if !slices.Contains(fields, k) {
					walk(x)
				}
			}
		}
	}
	walk(top)
	slices.Sort(out)
	out = slices.DeleteFunc(slices.Compact(out), func(v string) bool { return v == "" })
	if objects != 1 || len(out) > maxFoundValues || slices.ContainsFunc(out, func(v string) bool { return len(v) > 128 }) {
		return nil
	}
	return out
}
