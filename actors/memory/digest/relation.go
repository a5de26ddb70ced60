package digest

import (
	"strings"
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

// singlePredicates have one object at a time. The prompts name them in these words.
var singlePredicates = map[string]bool{
	"lives in": true, "works at": true, "is married to": true, "is called": true, "is from": true, "was born in": true,
	"was born on": true, "is wife of": true, "is husband of": true, "is capital of": true,
}

func isSingle(predicate string) bool {
	return singlePredicates[predicate] || strings.HasPrefix(predicate, "has favourite ")
}

// canonicalPredicate returns a model's predicate as it is stored: folded, on one line. "" when it is longer than
// maxPredicate bytes or 5 words, blank, or holds anything but words.
func canonicalPredicate(s string) string {
	s = shortLine(strings.ReplaceAll(s, "_", " "), maxPredicate+1)
	list := strings.Fields(text.Fold(s))
	if len(s) > maxPredicate || len(list) > 5 || strings.ContainsFunc(s, func(r rune) bool {
		return !text.IsWordRune(r) && !strings.ContainsRune(" '’-", r) || unicode.IsDigit(r)
	}) {
		return ""
	}
	return strings.Join(list, " ")
}

// userNames are the words for the user, also as earlier versions stored it: the person.
var userNames = text.WordSet(`user person i me myself you yourself`)

// isUser reports whether a folded name means the user.
func isUser(folded string) bool { return userNames(strings.TrimPrefix(folded, "the ")) }

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
