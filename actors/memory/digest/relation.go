package digest

import (
	"strings"
	"sync"
	"unicode"

	"conclave/pkg/text"
)

// Tenses of a relation.
const (
	tenseIs  = "is"
	tenseWas = "was"
)

// isSame reports whether two relations state the same, apart from dates.
func (r Relation) isSame(o Relation) bool {
	return r.Tense == o.Tense && r.Predicate == o.Predicate && text.Fold(r.Subject) == text.Fold(o.Subject) &&
		text.Fold(r.Object) == text.Fold(o.Object)
}

// opposite predicates cannot both hold of the same two.
var opposite = map[string]string{"likes": "dislikes", "dislikes": "likes"}

// Contradicts returns why r cannot hold together with the older relation o, "" when both can.
func (r Relation) Contradicts(o Relation) string {
	if text.NameKey(r.Subject) != text.NameKey(o.Subject) {
		return ""
	}
	sameObject, statement := text.NameKey(r.Object) == text.NameKey(o.Object), r.Subject+" "+r.Predicate+" "+r.Object
	bothNow := r.Tense == tenseIs && o.Tense == tenseIs
	switch {
	case r.Predicate == o.Predicate && sameObject && r.Tense == tenseWas && o.Tense == tenseIs:
		return statement + " no longer"
	case r.Predicate == o.Predicate && r.Single && !sameObject && r.Tense == o.Tense &&
		(bothNow || strings.HasPrefix(r.Predicate, "was ")):
		return statement + " and not " + o.Object
	case opposite[r.Predicate] == o.Predicate && sameObject && bothNow:
		return statement
	}
	return ""
}

var (
	kinWords = text.WordSet(`
		sister brother mother father mom mum dad wife husband partner son daughter child aunt uncle cousin niece
		nephew grandmother grandfather grandma grandpa friend boss colleague neighbour neighbor girlfriend boyfriend
		fiance teacher doctor dentist dog cat`)
	roleWords = text.WordSet(
		`capital president ceo mayor head founder author director king queen chancellor chair owner leader inventor`)
)

// leadingWords may stand before the verb of a predicate and are dropped.
var leadingWords = text.WordSet(`
	now currently still also really always recently formerly previously once used to has have had been is am are
	was were do does actually usually mostly did already`)

// singlePredicates have one object at a time.
var singlePredicates = map[string]bool{
	"lives in": true, "works at": true, "is married to": true, "is called": true, "is from": true, "was born in": true,
	"was born on": true,
	"is wife of":  true, "is husband of": true, "is capital of": true,
}

func isSingle(predicate string) bool {
	return singlePredicates[predicate] || strings.HasPrefix(predicate, "has favourite ")
}

// predicateSynonyms maps other words for a predicate to the stored one.
var predicateSynonyms = sync.OnceValue(func() map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(`lives in|live in|lived in|living in|resides in|resided in|reside in
lives in|residence|has residence in|home is|home in|location
works at|work at|worked at|working at|works for|work for|worked for|working for|employed by|employed at|employer
works as|work as|worked as|working as|job|occupation|profession
is called|name|named|called|name is|has name|goes by
likes|like|liked|loves|love|loved|enjoys|enjoy|enjoyed|fond of
prefers|prefer|preferred|preference
dislikes|dislike|disliked|hates|hate|hated
is married to|married to|married|spouse|spouse of
is from|from|comes from|come from|came from
was born in|born in|birthplace
was born on|born on|birthday|birth date|date of birth`) {
		list := strings.Split(strings.TrimSpace(line), "|")
		for _, w := range list {
			m[w] = list[0]
		}
	}
	return m
})

// canonicalPredicate returns a model's predicate as it is stored: a synonym as its known form, a relative or role as
// "is ... of", others folded. "" when it is longer than maxPredicate bytes or 5 words, blank, or holds anything but
// words.
func canonicalPredicate(s string) string {
	s = shortLine(strings.ReplaceAll(s, "_", " "), maxPredicate+1)
	if len(s) > maxPredicate || strings.ContainsFunc(s, func(r rune) bool {
		return !text.IsWordRune(r) && !strings.ContainsRune(" '’-", r) || unicode.IsDigit(r)
	}) {
		return ""
	}
	list := strings.Fields(text.Fold(s))
	whole := strings.Join(list, " ")
	if len(list) == 0 || len(list) > 5 {
		return ""
	}
	for len(list) > 1 && leadingWords(list[0]) {
		list = list[1:]
	}
	short := strings.Join(list, " ")
	if known, ok := predicateSynonyms()[whole]; ok {
		return known
	}
	if known, ok := predicateSynonyms()[short]; ok {
		return known
	}
	if rest, ok := strings.CutPrefix(whole, "has favorite "); ok {
		return "has favourite " + rest
	}
	if kinWords(strings.TrimSuffix(short, " of")) || roleWords(strings.TrimSuffix(short, " of")) {
		return "is " + strings.TrimSuffix(short, " of") + " of"
	}
	return whole
}

// userNames are the words for the user, also as earlier versions stored it: the person.
var userNames = text.WordSet(`user person i me myself you yourself`)

// isUser reports whether a folded name means the user.
func isUser(folded string) bool { return userNames(strings.TrimPrefix(folded, "the ")) }

// isUsers reports whether a folded name is a possession of the user, such as "the user's sister".
func isUsers(folded string) bool {
	return strings.HasPrefix(folded, "the user's") || strings.HasPrefix(folded, "the person's")
}

// cutUserPossessive returns "sister" of "my sister" and "the user's sister". It is not ok for anything that does not
// belong to the user.
func cutUserPossessive(s string) (rest string, ok bool) {
	folded := text.Fold(s)
	for _, own := range []string{"my ", "your ", "the person's ", "the user's ", "person's ", "user's "} {
		if strings.HasPrefix(folded, own) && len(s) > len(own) && len(folded) == len(s) {
			return strings.TrimSpace(s[len(own):]), true
		}
	}
	return "", false
}
