package reward

import (
	"strings"
	"unicode"
)

// moodOf is what words alone say of an answer: 1 when they praise it, -1 when they find fault with it, 0 when they do neither,
// both, or something that no rule here knows. The rules are plain: lists of words and phrases in four languages, and words
// that turn the next one round. A question is no opinion.
func moodOf(words string) int {
	var all tally
	for _, c := range clauses(words) {
		if !c.asks {
			c.weigh(&all)
		}
	}
	return all.mood()
}

// feel is what a word or phrase does.
type feel int8

const (
	plain  feel = iota
	good        // praise
	bad         // blame
	kind        // polite or a yes: praise when there is nothing else
	unkind      // a no: blame when there is nothing else
	not         // turns what follows round: not bad
	nope        // no: a negation before a word, and an answer of its own before a sentence
	half        // takes what follows back in part: half right
	but         // begins another clause
)

// reach is how many words behind it a negation holds: I do not think that is right.
const reach = 5

// tally counts what was found.
type tally struct{ good, bad, kind, unkind int }

func (t tally) mood() int {
	switch {
	case t.good > 0 && t.bad > 0:
		return 0 // good, but too long: nobody can tell which counts more
	case t.good > 0:
		return 1
	case t.bad > 0:
		return -1
	case t.kind > 0 && t.unkind == 0:
		return 1
	case t.unkind > 0 && t.kind == 0:
		return -1
	}
	return 0
}

// clause is a piece of text in which a negation holds.
type clause struct {
	words []string
	asks  bool
}

// weigh counts what a clause says.
func (c clause) weigh(t *tally) {
	turned, dimmed := 0, 0 // for how many more words
	var lasts *int         // what the last word of praise or blame was counted as, for a negation behind it
	for i := 0; i < len(c.words); {
		f, n := find(c.words[i:])
		word := c.words[i]
		i += n
		if f == nope && (i == len(c.words) || sentence[c.words[i]]) {
			f = unkind // no that is wrong
		}
		switch f {
		case not, nope:
			if lasts != nil && behind[word] { // das hilft nicht; ne fonctionne pas
				t.turn(lasts)
				lasts = nil
				continue
			}
			turned = reach
			continue
		case half:
			dimmed = reach
			continue
		case kind:
			t.kind++
		case unkind:
			t.unkind++
		case good, bad:
			at := &t.good
			if (f == bad) != (turned > 0) {
				at = &t.bad
			}
			*at++
			lasts = at
			if dimmed > 0 { // half right is half wrong
				t.good, t.bad = max(t.good, 1), max(t.bad, 1)
			}
			if turned > 0 {
				lasts = nil
			}
			turned, dimmed = 0, 0
			continue
		}
		turned, dimmed = max(turned-n, 0), max(dimmed-n, 0)
	}
}

// turn counts the other way round what was counted last.
func (t *tally) turn(at *int) {
	*at--
	if at == &t.good {
		t.bad++
	} else {
		t.good++
	}
}

// find is the longest phrase that the words begin with, and how many words it has.
func find(words []string) (feel, int) {
	for n := min(phrases[words[0]], len(words)); n > 0; n-- {
		if f, ok := lexicon[strings.Join(words[:n], " ")]; ok {
			return f, n
		}
	}
	return plain, 1
}

// clauses cuts a text into pieces that say one thing each, in small letters and without accents.
func clauses(s string) (out []clause) {
	var c clause
	var word strings.Builder
	end := func() { // of a word
		if word.Len() > 0 {
			c.words = append(c.words, word.String())
			word.Reset()
		}
	}
	stop := func(asks bool) { // of a clause
		end()
		if c.asks = asks; len(c.words) > 0 {
			out = append(out, split(c)...)
		}
		c = clause{}
	}
	runes := []rune(faces.Replace(strings.ToLower(s)))
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			word.WriteString(letter(r))
		case r == '\u0308': // two dots that come after their letter
			if w := word.String(); w != "" && strings.ContainsAny(w[len(w)-1:], "aou") {
				word.WriteByte('e')
			}
		case unicode.Is(unicode.Mn, r): // other accents that do
		case strings.ContainsRune("'’`´ʼ", r):
			end()
			i += c.elide(runes[i+1:])
		case (r == '+' || r == '-') && word.Len() == 0 && i+1 < len(runes) && runes[i+1] == '1' && (i+2 == len(runes) || !unicode.IsDigit(runes[i+2])) && (i == 0 || unicode.IsSpace(runes[i-1])):
			word.WriteRune(r)
		case r == '?' || r == '¿':
			stop(r == '?')
		case strings.ContainsRune(".!;,:\n()\"“”„«»…—–|/¡", r):
			stop(false)
		case lexicon[string(r)] != plain: // a face, a thumb
			end()
			c.words = append(c.words, string(r))
		default:
			end()
		}
	}
	stop(false)
	return out
}

// split cuts a clause at words that begin another one, unless they are part of a phrase: anything but.
func split(c clause) (out []clause) {
	from := 0
	for i := 0; i < len(c.words); {
		f, n := find(c.words[i:])
		if f == but {
			out = append(out, clause{c.words[from:i], c.asks})
			from = i + n
		}
		i += n
	}
	return append(out, clause{c.words[from:], c.asks})
}

// elide reads what comes behind an apostrophe, and returns how many characters of it belong to the word before: isn't is
// "is not", that's is "that is", c'est is two words.
func (c *clause) elide(rest []rune) int {
	n := 0
	for n < len(rest) && n < 3 && unicode.IsLetter(rest[n]) {
		n++
	}
	last := len(c.words) - 1
	if last < 0 {
		return 0
	}
	switch stem, ok := strings.CutSuffix(c.words[last], "n"); string(rest[:n]) {
	case "t":
		if !ok || stem == "" {
			return 0
		}
		c.words[last] = stem
		c.words = append(c.words, "not")
	case "s":
		c.words = append(c.words, "is")
	case "re":
		c.words = append(c.words, "are")
	default:
		return 0
	}
	return n
}

// letter is a small letter without its accent. A German umlaut is written out: schön is not schon.
func letter(r rune) string {
	switch r {
	case 'ä':
		return "ae"
	case 'ö':
		return "oe"
	case 'ü':
		return "ue"
	case 'ß':
		return "ss"
	case 'œ':
		return "oe"
	case 'á', 'à', 'â', 'ã':
		return "a"
	case 'é', 'è', 'ê', 'ë':
		return "e"
	case 'í', 'ì', 'î', 'ï':
		return "i"
	case 'ó', 'ò', 'ô':
		return "o"
	case 'ú', 'ù', 'û':
		return "u"
	case 'ç':
		return "c"
	case 'ñ':
		return "n"
	}
	return string(r)
}

// faces are signs of several characters.
var faces = strings.NewReplacer(":-)", " 🙂 ", ":)", " 🙂 ", ":-(", " 🙁 ", ":(", " 🙁 ")
