package digest

import (
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// maxPlain is how many bytes of a text plain code reads for names and relations.
const maxPlain = 16 << 10

// nameParticles may stand inside of a name.
var nameParticles = text.WordSet(`of de da do dos van von der den del di la le du al bin ibn`)

// capitalizedWords are written with a capital letter and are no names.
var capitalizedWords = text.WordSet(`i i'm i've i'd i'll monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
	september october november december yesterday today tomorrow later then however meanwhile yes no ok okay question answer mr mrs ms dr prof
	sir miss please thanks hello hi hey dear note sources according they've they're they'll they'd we've we're we'll we'd he's he'd he'll she's she'd she'll it'll it'd that's
	there's here's who's where's how's let's you've you're you'll you'd didn't doesn't isn't wasn't won't can't couldn't wouldn't haven't hasn't`)

// plainEntities returns the ends of the known relations, capitalized runs that do not only begin a sentence, and quoted
// names: at most maxEntities, each once, without the user and names of more than maxThing bytes. It reads maxPlain
// bytes of each text.
func plainEntities(m material, known []Relation) []Entity {
	var out []Entity
	add := func(name, kind string) {
		low := text.Fold(name)
		if len(out) == maxEntities || len(name) > maxThing || isBlank(name) || isUser(low) || isUsers(low) {
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
		if r.Subject != UserEntity && startsUpper(r.Subject) {
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
		body := stripMarkdown(text.Cut(p.text, maxPlain))
		for _, s := range text.SentenceTexts(body, 400) {
			titles := findQuotations(s)
			for _, n := range findNames(s) {
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

type namedEntity struct{ text, kind string }

// findNames returns the capitalized runs of a sentence with a guessed kind. A single word that begins the sentence
// counts only in capitals, such as NASA; a single character never does.
func findNames(s string) []namedEntity {
	f := sentence{text.Words(s), s}
	var out []namedEntity
	for i := 0; i < len(f.all); i++ {
		if !f.isName(i) {
			continue
		}
		from, to := i, f.nameEnd(i)
		i = to
		begins := f.all[from].Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0 && !f.in(from-1, titleWords)
		// A single word that begins a sentence would have a capital letter anyway.
		if begins && from == to && !isAllCapitals(s[f.all[from].From:f.all[from].To]) {
			continue
		}
		name := strings.TrimSuffix(strings.TrimSuffix(s[f.all[from].From:f.all[to].To], "'s"), "’s")
		if utf8.RuneCountInString(name) > 1 {
			out = append(out, namedEntity{name, f.kindOfName(from, to)})
		}
	}
	return out
}

// isName reports whether word i can be part of a name.
func (f sentence) isName(i int) bool {
	return i >= 0 && i < len(f.all) && f.all[i].IsUpper && !functionWords[f.all[i].Folded] &&
		!capitalizedWords[f.all[i].Folded]
}

// nameEnd returns the last word of the name that begins at word i, over particles such as "de" and "of" inside of it. A
// possessive ('s) ends a name.
func (f sentence) nameEnd(i int) int {
	for {
		next := i + 1
		for next < len(f.all) && next < i+3 && f.all[next].Gap == 0 && f.in(next, nameParticles) {
			next++
		}
		if next >= len(f.all) || f.all[next].Gap != 0 || !f.isName(next) || strings.HasSuffix(f.all[i].Folded, "'s") {
			return i
		}
		i = next
	}
}

var (
	titleWords = text.WordSet(`mr mrs ms dr prof sir miss president king queen uncle aunt sister brother mother father friend wife husband son daughter colleague
		boss called named author actor singer`)
	personVerbs = text.WordSet(
		`said says lives lived works worked likes liked wrote moved born married thinks told asked loves prefers met visited`)
	placePrepositions = text.WordSet(`in near from to at through across around visited`)
	organizationWords = text.WordSet(`inc ltd gmbh ag corp corporation company university institute bank ministry council foundation association agency school hospital
		club party church union committee department museum group college society`)
	placeWords = text.WordSet(
		`city river lake mountain island street road avenue valley bay sea county state park bridge airport station square`)
)

// kindOfName guesses the kind of the entity that the words from to to, both included, name; [KindThing] when nothing
// tells it.
func (f sentence) kindOfName(from, to int) string {
	for i := from; i <= to; i++ {
		if f.in(i, organizationWords) {
			return KindOrganization
		}
	}
	name := f.s[f.all[from].From:f.all[to].To]
	switch {
	case f.in(to, placeWords):
		return KindPlace
	case f.in(from-1, titleWords), f.in(to+1, personVerbs) && f.all[to+1].Gap == 0:
		return KindPerson
	case isAllCapitals(name) && len(name) > 2:
		return KindOrganization
	case f.in(from-1, placePrepositions) && f.all[from].Gap == 0:
		return KindPlace
	}
	return KindThing
}

// isAllCapitals reports whether s is one word in capital letters, such as NASA.
func isAllCapitals(s string) bool {
	return len(s) > 1 && s == strings.ToUpper(s) && s != strings.ToLower(s) && !strings.Contains(s, " ")
}

func startsUpper(s string) bool {
	all := text.Words(s)
	return len(all) > 0 && all[0].IsUpper
}

// quotes are the marks that open and close a quotation.
var quotes = map[rune]rune{'"': '"', '“': '”', '„': '“', '«': '»', '「': '」', '『': '』'}

// findQuotations returns the quotations in a sentence of 1 to 6 words and at most maxThing bytes, without their marks.
func findQuotations(s string) []string {
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
