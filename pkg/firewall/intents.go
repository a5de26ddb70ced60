package firewall

import (
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// wordRoles are the roles that a word has, and the languages in which it has one as a set of indexes in languages.
type wordRoles struct {
	role  role
	langs uint32
}

// with returns the roles of r and of other together.
func (r wordRoles) with(other wordRoles) wordRoles {
	return wordRoles{r.role | other.role, r.langs | other.langs}
}

// expression is several words in a row that have a role together. A word that ends with "*" stands for all words that
// begin so.
type expression struct {
	then  []string // the words after the first
	roles wordRoles
}

// vocabulary is the table of languages as the scanner looks words up.
type vocabulary struct {
	words       map[string]wordRoles
	stems       map[string][]stem // by their first stemKey bytes
	expressions map[string][]expression
	mayBeStem   [1 << 12]bool // by stemHash: whether any stem begins so; most words do not, and skip the map
}

type stem struct {
	text  string
	roles wordRoles
}

// stemKey is the number of bytes by which stems are looked up, and the shortest length of a stem.
const stemKey = 4

func stemHash(word string) int {
	return (int(word[0]) + int(word[1])<<3 + int(word[2])<<5 + int(word[3])<<7) & (1<<12 - 1)
}

// vocab is the vocabulary of languages. It is made at first use: most commands never scan a text.
var vocab = sync.OnceValue(func() *vocabulary {
	v := &vocabulary{words: map[string]wordRoles{}, stems: map[string][]stem{}, expressions: map[string][]expression{}}
	for n, l := range languages {
		for _, column := range []struct {
			role, marked role
			list         string
		}{
			{rIgnore, rStarts, l.ignore},
			{rOrders, 0, l.orders},
			{rPrior, 0, l.prior},
			{rAll, 0, l.all},
			{rTold, 0, l.told},
			{rNot, 0, l.not},
			{rNotAfter, 0, l.notAfter},
			{rFollow, 0, l.follow},
			{rTell, rNegated, l.tell},
			{rUser, 0, l.user},
			{rHelper, 0, l.helper},
			{rAI, 0, l.intelligence},
			{rLead, 0, l.lead},
		} {
			for entry := range strings.FieldsSeq(column.list) {
				word, isMarked := strings.CutPrefix(entry, "!")
				roles := wordRoles{column.role, 1 << n}
				if isMarked {
					roles.role |= column.marked
				}
				// Some capital letters look like an ASCII letter that their small letter does not look like.
				first, size := utf8.DecodeRuneInString(word)
				for _, form := range []string{word, string(unicode.ToUpper(first)) +
					word[size:], strings.ToUpper(word)} {
					v.add(foldText(form), roles)
				}
			}
		}
	}
	return v
})

// add enters a folded word, stem or expression. A stem must have at least stemKey bytes.
func (v *vocabulary) add(word string, roles wordRoles) {
	if first, rest, ok := strings.Cut(word, "+"); ok {
		e := expression{strings.Split(rest, "+"), roles}
		if !slices.ContainsFunc(v.expressions[first], func(known expression) bool {
			return slices.Equal(known.then, e.then) && known.roles == e.roles
		}) {
			v.expressions[first] = append(v.expressions[first], e)
		}
		return
	}
	if prefix, ok := strings.CutSuffix(word, "*"); ok {
		key := prefix[:stemKey]
		if entry := (stem{prefix, roles}); !slices.Contains(v.stems[key], entry) {
			v.stems[key] = append(v.stems[key], entry)
		}
		v.mayBeStem[stemHash(key)] = true
		return
	}
	v.words[word] = v.words[word].with(roles)
}

// rolesOfStem returns the roles that a folded word has by its beginning; the zero value when it has none.
func (v *vocabulary) rolesOfStem(word string) (found wordRoles) {
	if len(word) < stemKey || !v.mayBeStem[stemHash(word)] {
		return found
	}
	for _, s := range v.stems[word[:stemKey]] {
		if strings.HasPrefix(word, s.text) {
			found = found.with(s.roles)
		}
	}
	return found
}

// intentTriggers are the roles from which the rules over roles start.
const intentTriggers = rIgnore | rFollow | rTell | rHelper

// matchIntents adds signs for orders to a model in the languages of [languages]. The words of an order may stand in any
// sequence within a sentence, because languages differ in it.
func (s *scanner) matchIntents() {
	for i := range s.tokens {
		t := &s.tokens[i]
		if t.role&intentTriggers != 0 {
			s.matchIntent(i, i, t.wordRoles)
		}
	}
	for _, e := range s.expressions {
		s.matchIntent(e.from, e.to, e.roles)
	}
}

// foundExpression is an expression that stands in the text, from one token to another.
type foundExpression struct {
	from, to int
	roles    wordRoles
}

// findExpressions looks for the expressions of the vocabulary. Those that trigger a rule go to s.expressions; of the
// others the first token gets the roles. The tokens must be there.
func (s *scanner) findExpressions() {
	for i := range s.tokens {
		if !s.tokens[i].opens {
			continue
		}
		for _, e := range vocab().expressions[s.word(i)] {
			switch {
			case !s.hasWords(i+1, e.then):
			case e.roles.role&intentTriggers != 0:
				s.expressions = append(s.expressions, foundExpression{i, i + len(e.then), e.roles})
			default:
				s.tokens[i].wordRoles = s.tokens[i].with(e.roles)
			}
		}
	}
}

// hasWords reports whether the words stand from token i on, within the sentence.
func (s *scanner) hasWords(i int, words []string) bool {
	for k, w := range words {
		if s.stopAt(i+k)&sEnd != 0 {
			return false
		}
		got := s.word(i + k)
		if prefix, ok := strings.CutSuffix(w, "*"); ok && got != "" && strings.HasPrefix(got, prefix) {
			continue
		}
		if got != w {
			return false
		}
	}
	return true
}

// matchIntent applies the rules to the trigger of the given roles that stands from token i to token last.
func (s *scanner) matchIntent(i, last int, trigger wordRoles) {
	switch {
	case trigger.role&rIgnore != 0:
		if trigger.role&rStarts == 0 || s.begins(i) || s.tokens[i].stop&sComma != 0 || s.tokens[i-1].role&rLead != 0 &&
			s.tokens[i-1].langs&trigger.langs != 0 {
			s.matchForeignOverride(i, last, trigger)
		}
	case trigger.role&rFollow != 0:
		if s.negationAfter(last, trigger.langs) {
			s.matchForeignOverride(i, last, wordRoles{trigger.role &^ rFollow, trigger.langs})
		}
	case trigger.role&rTell != 0:
		s.matchForeignSecrecy(i, last, trigger)
	case trigger.role&rHelper != 0:
		s.matchForeignAddress(i, last, trigger)
	}
}

// intentSpan is how many words before or after its verb an order may hold.
const intentSpan = 14

// near returns the token nearest to the words from i to last that has role r in one of the languages, in the same
// sentence and at most span words away; -1 when there is none.
func (s *scanner) near(i, last int, r role, langs uint32, span int) int {
	before, after := true, true
	for d := 1; d <= span && (before || after); d++ {
		if j := last + d; after && j < len(s.tokens) && s.tokens[j].stop&sEnd == 0 {
			if s.tokens[j].role&r != 0 && s.tokens[j].langs&langs != 0 {
				return j
			}
		} else {
			after = false
		}
		if j := i - d; before && j >= 0 && s.tokens[j+1].stop&sEnd == 0 {
			if s.tokens[j].role&r != 0 && s.tokens[j].langs&langs != 0 {
				return j
			}
		} else {
			before = false
		}
	}
	return -1
}

// negationBefore reports whether one of the n words before token i, in its sentence, is a negation in one of the
// languages.
func (s *scanner) negationBefore(i int, langs uint32, n int) bool {
	for j := i - 1; j >= 0 && j >= i-n && s.tokens[j+1].stop&sEnd == 0; j-- {
		if s.tokens[j].role&rNot != 0 && s.tokens[j].langs&langs != 0 {
			return true
		}
	}
	return false
}

// negationAfter reports whether a negation that belongs to the verb before token last follows it in its clause: the
// clause ends at a comma, a conjunction or after 9 words.
func (s *scanner) negationAfter(last int, langs uint32) bool {
	for j := last + 1; j < len(s.tokens) && j <= last+9 && s.tokens[j].stop&(sEnd|sComma|sColon) == 0; j++ {
		t := s.tokens[j]
		if t.langs&langs == 0 {
			continue
		}
		if t.role&rNotAfter != 0 {
			return true
		}
		if t.role&rLead != 0 {
			return false
		}
	}
	return false
}

// matchForeignOverride adds an override sign when the verb from token i to token last means to ignore and its object
// are instructions, or everything that was said. It weighs most with a word for previous, your or all.
func (s *scanner) matchForeignOverride(i, last int, verb wordRoles) {
	isNegated := i == last && s.tokens[i].role&rNot != 0 // n'oubliez pas
	if isNegated || s.negationBefore(i, verb.langs, 2) || verb.role&rIgnore != 0 && s.negationAfter(last, verb.langs) {
		return
	}
	find := func(r role) int { return s.near(i, last, r, verb.langs, intentSpan) }
	orders, prior, all, told := find(rOrders), find(rPrior), find(rAll), find(rTold)
	weight, object := 0, orders
	switch {
	case orders >= 0 && (prior >= 0 || all >= 0):
		weight = 10
	case all >= 0 && told >= 0:
		weight, object = 10, told
	case all >= 0 && prior >= 0:
		weight, object = 6, prior
	case orders >= 0:
		weight = 5
	default:
		return
	}
	from := min(i, object)
	s.addTokens(techOverride, s.halveQuoted(from, weight), from, max(last, object))
}

// matchForeignSecrecy adds a secrecy sign when the verb from token i to token last is negated and its object is the
// user.
func (s *scanner) matchForeignSecrecy(i, last int, verb wordRoles) {
	isNegated := verb.role&rNegated != 0 || s.negationBefore(i, verb.langs, 3) || s.negationAfter(last, verb.langs)
	user := s.near(i, last, rUser, verb.langs, 6)
	if !isNegated || user < 0 {
		return
	}
	from := min(i, user)
	s.addTokens(techSecrecy, s.halveQuoted(from, 6), from, max(last, user))
}

// matchForeignAddress adds an address sign when the words for an artificial assistant stand in the first 8 words of a
// sentence or line, and a colon ends the address within 10 words.
func (s *scanner) matchForeignAddress(i, last int, helper wordRoles) {
	if s.near(i, last, rAI, helper.langs, 2) < 0 {
		return
	}
	from := i
	for from > 0 && i-from < 8 && s.tokens[from].stop&(sEnd|sLine) == 0 {
		from--
	}
	if s.tokens[from].stop&(sEnd|sLine) == 0 {
		return
	}
	for j := last + 1; j < len(s.tokens) && j <= last+11 && s.tokens[j].stop&sEnd == 0; j++ {
		if s.tokens[j].stop&sColon != 0 {
			s.addTokens(techAddress, s.halveQuoted(from, 6), from, j-1)
			return
		}
	}
}
