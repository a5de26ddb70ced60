package digest

import (
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// maxPlain is how much of a text plain code reads for names and relations.
const maxPlain = 16 << 10

// links may stand inside of a name.
var links = text.WordSet(`of de da do dos van von der den del di la le du al bin ibn`)

// capitals are words that are written large and are nobody's name.
var capitals = text.WordSet(`i i'm i've i'd i'll monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
	september october november december yesterday today tomorrow later then however meanwhile yes no ok okay question answer mr mrs ms dr prof
	sir miss please thanks hello hi hey dear note sources according`)

// plainEntities are runs of words with capital letters that do not only begin a sentence, names in quotation marks, and the
// ends of relations.
func plainEntities(m material, known []Relation) []Entity {
	var out []Entity
	add := func(name, kind string) {
		low := text.Fold(name)
		if len(out) == maxEntities || len(name) > maxThing || blank(name) || isPerson(low) || strings.HasPrefix(low, Person+"'s") {
			return
		}
		if i := slices.IndexFunc(out, func(e Entity) bool { return text.Fold(e.Name) == low }); i >= 0 {
			if out[i].Kind == KindThing {
				out[i].Kind = kind
			}
			return
		}
		out = append(out, Entity{name, kind})
	}
	for _, r := range known {
		if r.Subject != Person && startsUpper(r.Subject) {
			add(r.Subject, subjectKind(r.Predicate))
		}
		if startsUpper(r.Object) {
			kind := r.Kind
			if kind == KindOther {
				kind = KindThing
				if r.Predicate == worksAt {
					kind = KindOrganization
				}
			}
			add(r.Object, kind)
		}
	}
	for _, p := range m {
		body := prose(text.Cut(p.text, maxPlain))
		for _, s := range text.SentenceTexts(body, 400) {
			titles := quoted(s)
			for _, n := range names(s) {
				if !slices.ContainsFunc(titles, func(q string) bool { return strings.Contains(q, n.text) }) {
					add(n.text, n.kind)
				}
			}
			for _, q := range titles {
				add(q, KindThing)
			}
		}
	}
	return out
}

type named struct{ text, kind string }

// names are the runs of words with capital letters in a sentence.
func names(s string) []named {
	f := sentence{text.Words(s), s}
	var out []named
	for i := 0; i < len(f.all); i++ {
		if !f.name(i) {
			continue
		}
		from, to := i, f.nameEnd(i)
		i = to
		begins := f.all[from].Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0 && !f.in(from-1, ranks)
		// A single word that begins a sentence would have a capital letter anyway.
		if begins && from == to && !shout(s[f.all[from].From:f.all[from].To]) {
			continue
		}
		name := strings.TrimSuffix(strings.TrimSuffix(s[f.all[from].From:f.all[to].To], "'s"), "’s")
		if utf8.RuneCountInString(name) > 1 {
			out = append(out, named{name, f.kind(from, to)})
		}
	}
	return out
}

// name tells whether word i can be a part of a name.
func (f sentence) name(i int) bool {
	return i >= 0 && i < len(f.all) && f.all[i].IsUpper && !small[f.all[i].Folded] && !capitals[f.all[i].Folded]
}

// nameEnd is the last word of the name that begins at i.
func (f sentence) nameEnd(i int) int {
	for {
		next := i + 1
		for next < len(f.all) && next < i+3 && f.all[next].Gap == 0 && f.in(next, links) {
			next++
		}
		if next >= len(f.all) || f.all[next].Gap != 0 || !f.name(next) || strings.HasSuffix(f.all[i].Folded, "'s") {
			return i
		}
		i = next
	}
}

var (
	ranks = text.WordSet(`mr mrs ms dr prof sir miss president king queen uncle aunt sister brother mother father friend wife husband son daughter colleague
		boss called named author actor singer`)
	actions = text.WordSet(`said says lives lived works worked likes liked wrote moved born married thinks told asked loves prefers met visited`)
	where   = text.WordSet(`in near from to at through across around visited`)
	bodies  = text.WordSet(`inc ltd gmbh ag corp corporation company university institute bank ministry council foundation association agency school hospital
		club party church union committee department museum group college society`)
	lands = text.WordSet(`city river lake mountain island street road avenue valley bay sea county state park bridge airport station square`)
)

// kind guesses what a name names.
func (f sentence) kind(from, to int) string {
	for i := from; i <= to; i++ {
		if f.in(i, bodies) {
			return KindOrganization
		}
	}
	name := f.s[f.all[from].From:f.all[to].To]
	switch {
	case f.in(to, lands):
		return KindPlace
	case f.in(from-1, ranks), f.in(to+1, actions) && f.all[to+1].Gap == 0:
		return KindPerson
	case shout(name) && len(name) > 2:
		return KindOrganization
	case f.in(from-1, where) && f.all[from].Gap == 0:
		return KindPlace
	}
	return KindThing
}

// shout tells a word in capital letters only, such as NASA.
func shout(s string) bool {
	return len(s) > 1 && s == strings.ToUpper(s) && s != strings.ToLower(s) && !strings.Contains(s, " ")
}

func startsUpper(s string) bool {
	all := text.Words(s)
	return len(all) > 0 && all[0].IsUpper
}

// quotes are the marks that open and close a quotation.
var quotes = map[rune]rune{'"': '"', '“': '”', '„': '“', '«': '»', '「': '」', '『': '』'}

// quoted are the short quotations in a sentence.
func quoted(s string) []string {
	var out []string
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		end, ok := quotes[r]
		if !ok {
			continue
		}
		to := strings.IndexRune(s[i:min(len(s), i+maxThing)], end)
		if to < 0 {
			continue
		}
		q := strings.Trim(s[i:i+to], " .,;:!?")
		if n := len(strings.Fields(q)); n > 0 && n <= 6 && strings.ContainsFunc(q, text.IsWordRune) {
			out = append(out, q)
		}
		i += to + utf8.RuneLen(end)
	}
	return out
}
