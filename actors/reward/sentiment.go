package reward

import (
	"strings"
	"unicode"
)

// classifyWords returns the sentiment of words about an answer: 1 for praise, -1 for blame, 0 for neither, for both and
// for what no rule knows. The rules are lists of words and phrases in four languages, and negations. Questions do not
// count.
func classifyWords(words string) int {
	var all tally
	for _, c := range splitClauses(words) {
		if !c.asks {
			c.count(&all)
		}
	}
	return all.result()
}

// sentiment is the class of a word or phrase.
type sentiment int8

const (
	plain  sentiment = iota
	good             // praise
	bad              // blame
	kind             // polite, or a yes: praise if nothing else is found
	unkind           // a no: blame if nothing else is found
	not              // inverts what follows: not bad
	nope             // "no": a negation before a word, unkind before a sentence
	half             // weakens what follows: half right
	but              // begins another clause
)

// negationReach is the number of words that a negation applies to: I do not think that is right.
const negationReach = 5

// tally counts the words found, by sentiment.
type tally struct{ good, bad, kind, unkind int }

// result returns 1, -1 or 0 as [classifyWords] does: praise and blame of the answer decide first, both together are 0;
// friendly and unfriendly words count only without these.
func (t tally) result() int {
	switch {
	case t.good > 0 && t.bad > 0:
		return 0 // "good, but too long": which one counts more is not known
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

// clause is a part of a text; negations apply within it.
type clause struct {
	words []string
	asks  bool
}

// count adds the sentiments of a clause to t. A negation inverts the next praise or blame within negationReach words,
// or, at the end in languages that negate so, the last one. "half" and the like count as both.
func (c clause) count(t *tally) {
	turned, dimmed := 0, 0 // number of further words that are negated or weakened
	var lasts *int         // the counter of the last praise or blame, for a trailing negation
	for i := 0; i < len(c.words); {
		f, n := matchPhrase(c.words[i:])
		word := c.words[i]
		i += n
		if f == nope && (i == len(c.words) || sentenceStarts[c.words[i]]) {
			f = unkind // no that is wrong
		}
		switch f {
		case not, nope:
			if lasts != nil && trailingNegations[word] { // das hilft nicht; ne fonctionne pas
				t.invert(lasts)
				lasts = nil
				continue
			}
			turned = negationReach
			continue
		case half:
			dimmed = negationReach
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

// invert moves the last count to the opposite sentiment.
func (t *tally) invert(at *int) {
	*at--
	if at == &t.good {
		t.bad++
	} else {
		t.good++
	}
}

// matchPhrase returns the sentiment of the longest phrase at the start of words, and its number of words.
func matchPhrase(words []string) (sentiment, int) {
	for n := min(longestPhrase[words[0]], len(words)); n > 0; n-- {
		if f, ok := lexicon[strings.Join(words[:n], " ")]; ok {
			return f, n
		}
	}
	return plain, 1
}

// splitClauses splits a text at punctuation and conjunctions into clauses of folded words, nil for a text without
// words. A clause that ends with a question mark asks. Emoji and emoticons count as words, +1 and -1 too.
func splitClauses(s string) (out []clause) {
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
			out = append(out, splitAtConjunctions(c)...)
		}
		c = clause{}
	}
	runes := []rune(emoticons.Replace(strings.ToLower(s)))
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			word.WriteString(foldLetter(r))
		case r == '\u0308': // combining diaeresis
			if w := word.String(); w != "" && strings.ContainsAny(w[len(w)-1:], "aou") {
				word.WriteByte('e')
			}
		case unicode.Is(unicode.Mn, r): // other combining accents
		case strings.ContainsRune("'’`´ʼ", r):
			end()
			i += c.expandContraction(runes[i+1:])
		case (r == '+' || r == '-') && word.Len() == 0 && i+1 < len(runes) && runes[i+1] == '1' &&
			(i+2 == len(runes) || !unicode.IsDigit(runes[i+2])) && (i == 0 || unicode.IsSpace(runes[i-1])):
			word.WriteRune(r)
		case r == '?' || r == '¿':
			stop(r == '?')
		case strings.ContainsRune(".!;,:\n()\"“”„«»…—–|/¡", r):
			stop(false)
		case lexicon[string(r)] != plain: // an emoji
			end()
			c.words = append(c.words, string(r))
		default:
			end()
		}
	}
	stop(false)
	return out
}

// splitAtConjunctions splits a clause at conjunctions like "but", unless they are part of a phrase: anything but. A
// clause of the result may have no words.
func splitAtConjunctions(c clause) (out []clause) {
	from := 0
	for i := 0; i < len(c.words); {
		f, n := matchPhrase(c.words[i:])
		if f == but {
			out = append(out, clause{c.words[from:i], c.asks})
			from = i + n
		}
		i += n
	}
	return append(out, clause{c.words[from:], c.asks})
}

// expandContraction expands an English contraction from rest, the text after its apostrophe, and returns the number of
// characters used: isn't becomes "is not", that's "that is". It returns 0 and changes nothing for others: c'est stays
// two words.
func (c *clause) expandContraction(rest []rune) int {
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

// foldLetter removes the accent of a lower-case letter of German, French and Spanish; others stay. German umlauts are
// written out: schön is not schon.
func foldLetter(r rune) string {
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

// emoticons maps emoticons to emoji.
var emoticons = strings.NewReplacer(":-)", " 🙂 ", ":)", " 🙂 ", ":-(", " 🙁 ", ":(", " 🙁 ")
