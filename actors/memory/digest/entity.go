package digest

import (
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// maxPlain is how many bytes of a text plain code reads for names.
const maxPlain = 16 << 10

// nameParticles may stand inside of a name.
var nameParticles = text.WordSet(`of de da do dos van von der den del di la le du al bin ibn`)

// capitalizedWords are written with a capital letter and are no names.
var capitalizedWords = text.WordSet(`i i'm i've i'd i'll monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
	september october november december yesterday today tomorrow later then however meanwhile yes no ok okay question answer mr mrs ms dr prof
	sir miss please thanks hello hi hey dear note sources according they've they're they'll they'd we've we're we'll we'd he's he'd he'll she's she'd she'll it'll it'd that's
	there's here's who's where's how's let's you've you're you'll you'd didn't doesn't isn't wasn't won't can't couldn't wouldn't haven't hasn't`)

// plainEntities returns the capitalized runs of texts that do not only begin a sentence, and quoted names: at most
// maxEntities, each once, without the user and names of more than maxThing bytes. It reads maxPlain bytes of each text.
func plainEntities(texts ...string) (out []string) {
	add := func(name string) {
		low := text.Fold(name)
		if len(out) == maxEntities || len(name) > maxThing || isBlank(name) || isUser(low) || isUsers(low) ||
			slices.ContainsFunc(out, func(known string) bool { return text.Fold(known) == low }) {
			return
		}
		out = append(out, name)
	}
	for _, whole := range texts {
		body := stripMarkdown(text.Cut(whole, maxPlain))
		for _, s := range text.SentenceTexts(body, 400) {
			titles := findQuotations(s)
			for _, n := range findNames(s) {
				if !slices.ContainsFunc(titles, func(q string) bool { return strings.Contains(q, n) }) {
					add(n)
				}
			}
			for _, q := range titles {
				add(q)
			}
		}
	}
	return out
}

// findNames returns the capitalized runs of a sentence. A single word that begins the sentence counts only in capitals,
// such as NASA, or behind a title; a single character never does.
func findNames(s string) (out []string) {
	f := sentence{text.Words(s), s}
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
			out = append(out, name)
		}
	}
	return out
}

// isName reports whether word i can be part of a name.
func (f sentence) isName(i int) bool {
	return i >= 0 && i < len(f.all) && f.all[i].IsUpper && !functionWords(f.all[i].Folded) &&
		!capitalizedWords(f.all[i].Folded)
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

// titleWords may stand before the name of a person.
var titleWords = text.WordSet(`
	mr mrs ms dr prof sir miss president king queen uncle aunt sister brother mother father friend wife husband son
	daughter colleague boss called named author actor singer`)

// isAllCapitals reports whether s is one word in capital letters, such as NASA.
func isAllCapitals(s string) bool {
	return len(s) > 1 && s == strings.ToUpper(s) && s != strings.ToLower(s) && !strings.Contains(s, " ")
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
