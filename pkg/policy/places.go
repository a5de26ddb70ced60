package policy

import (
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/date"
	"conclave/pkg/text"
)

// A question can point to an object for the people of a new one: "the same guests as the event 'Harvest talk'". Such a
// place is derived from the question alone. The people that a read of exactly that object returns are destinations when
// the result leaves no choice: there is one object. The writers of the object could still name others there, so that
// every other value of such a call must be the user's own, as in an act that cannot be undone.
//
// There is no such rule for an address on a page ("her e-mail is on www.dora.example"): the text of a page is an
// extract, in which the address of a commenter may be the only one.

// Words of the grammar of places, in English, German, French, Spanish and Italian.
var (
	// peopleNouns are words for the people of an object.
	peopleNouns = listWords(`participants attendees guests invitees members recipients people teilnehmer
	teilnehmern gäste gästen empfänger empfängern mitglieder mitgliedern
		invités destinataires membres participantes asistentes invitados destinatarios miembros
		partecipanti invitati destinatari membri`)
	// placeWords precede the object: "the same guests as".
	placeWords = listWords(
		`on in at under auf in im bei beim unter sur dans à en su nel nella nello sul sulla as of from for wie von ` +
			`des que de du como di del della come`)
	// copulas after a place say something about it and do not point to it: "the guests of 'Talk' are wrong".
	copulas = listWords(`is are was were isn't wasn't ist sind war waren est sont était es son era è sono`)
)

// maxPlaceDistance is the largest number of words between the noun of the people and the object.
const maxPlaceDistance = 8

// Place is the object whose people a question makes destinations.
type Place struct {
	Name string `json:"name"` // a quotation of the question, in lower case
	// the words before it, from the noun of the people, and after it, to the next comma
	Near string `json:"near,omitempty"`
}

// listPlaces returns the places that a sentence gives. A sentence with a refusal or an exception gives none.
func listPlaces(s []word) (out []Place) {
	if slices.ContainsFunc(s, func(w word) bool { return refusals[w.lower] && !w.quoted || isException(w) }) {
		return nil
	}
	for i := range s {
		if s[i].quoted || !peopleNouns[s[i].lower] {
			continue
		}
		at := findPlace(s, i)
		if at < 0 {
			continue
		}
		p := Place{Name: text.Cut(s[at].lower, maxQuoteText)}
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

// findPlace returns the position of the object of the noun at i, -1 when the words after the noun give none.
func findPlace(s []word, i int) int {
	located := false
	for j := i + 1; j < len(s) && j <= i+maxPlaceDistance && !s[j-1].comma; j++ {
		switch w := s[j]; {
		case w.quoted:
			if located && !slices.ContainsFunc(s[j+1:], func(w word) bool { return copulas[w.lower] && !w.quoted }) {
				return j
			}
			return -1
		case placeWords[w.lower]:
			located = true
		}
	}
	return -1
}

// isNamedBy reports whether an argument of a call is the place.
func (p Place) isNamedBy(args []argument) bool {
	return slices.ContainsFunc(args, func(a argument) bool {
		return a.role != RoleTime && strings.ToLower(strings.TrimSpace(a.text)) == p.Name
	})
}

// isReadBy reports whether a call of a tool reads exactly this place, so that untrusted content cannot choose what is
// read: the tool declares people and its nouns (about) are beside the place, one argument is the place, and every other
// is a date beside it.
func (p Place) isReadBy(t Tool, args []argument) bool {
	days, _ := date.FindDays(p.Near)
	for _, a := range args {
		switch {
		case a.text == "":
		case a.role != RoleTime && strings.ToLower(strings.TrimSpace(a.text)) == p.Name:
		case a.role == RoleTime && areAmong(a.text, days, date.Day.Matches):
		default:
			return false
		}
	}
	return p.isNamedBy(args) && len(t.People) > 0 && namesAny(p.Near, t.About)
}

// found holds the destinations that a place names for a question.
type found struct {
	Query string `json:"query"`
	Place Place  `json:"place"`
	// in lower case; none when a read of the place had a choice, signs of injection, or other people
	Values []string `json:"values,omitempty"`
}

const (
	maxPlaces      = 4  // of one clause or sentence
	maxFound       = 8  // places with destinations in a session
	maxFoundValues = 40 // destinations of one place
)

// addFound adds the destinations that a result names, when its call read a place that its question gives. A result with
// signs of injection names none, and ends what an earlier read of the place named.
func (f *Flow) addFound(r Result) {
	q := f.findQuestion(r.Query)
	if q == nil || f.overflow {
		return
	}
	args, err := flattenArguments(Call{Tool: r.Tool, Args: r.Args})
	if err != nil {
		return
	}
	for _, g := range q.Grants {
		for _, p := range g.Places {
			if len(r.Tool.People) == 0 || !p.isNamedBy(args) {
				continue
			}
			values := extractPeople(r.Tool.People, r.Text)
			if len(r.Flags) > 0 || !p.isReadBy(r.Tool, args) {
				values = nil
			}
			f.setFound(found{Query: r.Query, Place: p, Values: values})
		}
	}
}

// setFound stores the destinations of a place. When it was read before and named others, it names none any more. Places
// of earlier questions are dropped when there are too many; a further one of the same question is then not stored.
func (f *Flow) setFound(n found) {
	next := slices.Clone(f.found)
	i := slices.IndexFunc(next, func(o found) bool { return o.Query == n.Query && o.Place == n.Place })
	if i < 0 && len(next) >= maxFound {
		next = slices.DeleteFunc(next, func(o found) bool { return o.Query != n.Query })
	}
	switch {
	case i >= 0 && !slices.Equal(next[i].Values, n.Values):
		next[i].Values = nil
	case i < 0 && len(next) < maxFound:
		next = append(next, n)
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

// extractPeople returns the strings in the given fields of the only object of a JSON text that has one of them, in
// lower case and sorted. Nothing is returned when there are several such objects, also empty ones, when a value in a
// field is no text, and for more than maxFoundValues people.
func extractPeople(fields []string, s string) (out []string) {
	var top any
	if json.Unmarshal([]byte(s), &top) != nil {
		return nil
	}
	objects, isText := 0, true
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case string:
			out = append(out, strings.ToLower(strings.TrimSpace(v)))
		case []any:
			for _, x := range v {
				collect(x)
			}
		default:
			isText = false
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
			had := false
			for _, field := range fields {
				if people, ok := v[field]; ok {
					had = true
					collect(people)
				}
			}
			if had {
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
	if objects != 1 || !isText || len(out) > maxFoundValues || slices.ContainsFunc(out, func(v string) bool {
		return len(v) > 128
	}) {
		return nil
	}
	return out
}
