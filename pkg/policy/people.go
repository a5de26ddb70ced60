package policy

import (
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/date"
)

// A question can point to an object for the people of a new one: "the same guests as the event 'Harvest talk'". The
// people that a read of exactly that object returns are destinations when the result leaves no choice: there is one
// object. The writers of the object could still name others there, so that every other value of such a call must be the
// user's own, as in an act that cannot be undone.
//
// There is no such rule for an address on a page ("her e-mail is on www.dora.example"): the text of a page is an
// extract, in which the address of a commenter may be the only one.

// peopleNouns are words for the people of an object.
var peopleNouns = listWords(`participants attendees guests invitees members recipients people teilnehmer teilnehmern
	gäste gästen empfänger empfängern mitglieder mitgliedern invités destinataires membres participantes asistentes
	invitados destinatarios miembros partecipanti invitati destinatari membri`)

// found holds the people of an object that a question names.
type found struct {
	Query string `json:"query"`
	Name  string `json:"name"` // a quotation of the question, in lower case
	// in lower case; none when a read of the object had a choice, signs of injection, or other people
	Values []string `json:"people,omitempty"`
}

const (
	maxFound       = 8  // objects in a session
	maxFoundValues = 40 // people of one object
)

// peopleObject is an object of whose people a question speaks.
type peopleObject struct{ name, near string } // a quotation, and the words of its sentence after the noun of the people

// maxNounDistance is the largest number of words between the noun of the people and the object.
const maxNounDistance = 8

// peopleObjects returns the objects of whose people a question speaks: the first quotation after a noun of people. A
// question with a refusal has none, nor has one with a statement about them.
func peopleObjects(said string) (out []peopleObject) {
	for _, s := range readSentences(said) {
		if findRefusal(s, nil) != "" {
			return nil
		}
		for i, w := range s {
			at := slices.IndexFunc(s[i:min(len(s), i+maxNounDistance+1)], func(w word) bool { return w.quoted })
			if w.quoted || !peopleNouns[w.lower] || at < 0 {
				continue
			}
			o := peopleObject{name: s[i+at].lower}
			for j, w := range s[i+1:] {
				if j+1 != at {
					o.near += w.text + " "
				}
				if w.comma && j >= at {
					break
				}
			}
			out = append(out, o)
		}
	}
	return out
}

// addFound adds the people that a result names, when its call read exactly an object of whose people its question
// speaks: the tool has its noun, one argument is its name, and every other is a date beside it, so that nothing else
// chose what is read. A result with signs of injection names none, and ends what an earlier read of the object named.
func (f *Flow) addFound(r Result) {
	q := f.findQuestion(r.Query)
	if q == nil || f.overflow || len(r.Tool.People) == 0 {
		return
	}
	args, err := flattenArguments(Call{Tool: r.Tool, Args: r.Args})
	if err != nil {
		return
	}
	for _, o := range peopleObjects(q.Text) {
		isNamed, exact := false, len(r.Flags) == 0 && namesAny(o.near, r.Tool.About)
		days, _ := date.FindDays(o.near)
		for _, a := range args {
			isName := a.role != RoleTime && normalizeValue(a.text) == o.name
			isNamed = isNamed || isName
			exact = exact && (isName || a.text == "" || a.role == RoleTime && areAmong(a.text, days, date.Day.Matches))
		}
		if !isNamed {
			continue
		}
		n := found{Query: r.Query, Name: o.name}
		if exact {
			n.Values = extractPeople(r.Tool.People, r.Text)
		}
		i := slices.IndexFunc(f.found, func(o found) bool { return o.Query == n.Query && o.Name == n.Name })
		f.found = slices.Clone(f.found)
		switch {
		case i < 0:
			f.found = lastN(append(f.found, n), maxFound)
		case !slices.Equal(f.found[i].Values, n.Values):
			f.found[i].Values = nil
		}
	}
}

// isFound reports whether an object that a question names has this person, in lower case.
func (f *Flow) isFound(query, person string) bool {
	return slices.ContainsFunc(f.found, func(o found) bool {
		return o.Query == query && slices.Contains(o.Values, person)
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
