package digest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"conclave/pkg/text"
)

// What a new statement is to an old one.
const (
	Same        = "same"
	Contradicts = "contradicts"
	Unrelated   = "unrelated" // also when it is not sure: nothing is superseded by a guess
)

// Statement is the claim of one memory entry.
type Statement struct {
	Description, Corpus   string
	Created               time.Time // zero = not known
	Untrusted             bool      // it holds untrusted content
	Speaker, Conversation string    // who said it and where; "" = not known
	Happened              time.Time // when it was said; zero = not known
}

// Relationship is how a new statement relates to an old one, and why.
type Relationship struct{ Kind, Why string }

// Compare returns by plain rules whether next says the same as old, contradicts it, or is unrelated; [Unrelated] also
// means unsure. Only the content is compared, never the names. An untrusted statement never supersedes a trusted one,
// nor an older one a newer, nor one of another speaker; a blank one is unrelated. The same words on another day or in
// another conversation are another statement.
func Compare(old, next Statement) Relationship {
	old, next = old.cleaned(), next.cleaned()
	if why := CheckOrder(old, next); why != "" {
		return Relationship{Unrelated, why}
	}
	if isBlank(old.Description+old.Corpus) || isBlank(next.Description+next.Corpus) {
		return Relationship{Unrelated, "one of the two says nothing"}
	}
	kind, why := plainCompare(old, next)
	if kind == Same && old.isElsewhere(next) {
		return Relationship{Unrelated, "it was said on another day or in another conversation"}
	}
	return Relationship{kind, why}
}

// CheckOrder returns why next must not supersede old, whatever both say, "" when it may: next is untrusted and old is
// not, next is older, or another speaker said it.
func CheckOrder(old, next Statement) (why string) {
	switch {
	case next.Untrusted && !old.Untrusted:
		return "an untrusted entry cannot supersede a trusted one"
	case !old.Created.IsZero() && !next.Created.IsZero() && next.Created.Before(old.Created),
		!old.Happened.IsZero() && !next.Happened.IsZero() && next.Happened.Before(old.Happened):
		return "it is older than what it would replace"
	case text.Fold(old.Speaker) != text.Fold(next.Speaker):
		return "another speaker said it"
	}
	return ""
}

// isElsewhere reports whether both statements are known to be of different days, in UTC, or of different conversations.
func (s Statement) isElsewhere(o Statement) bool {
	days := !s.Happened.IsZero() && !o.Happened.IsZero() &&
		s.Happened.UTC().Format(time.DateOnly) != o.Happened.UTC().Format(time.DateOnly)
	return days || s.Conversation != "" && o.Conversation != "" && s.Conversation != o.Conversation
}

func (s Statement) cleaned() Statement {
	s.Description = shortLine(text.Cut(s.Description, 4<<10), maxDescription)
	s.Corpus = cleanText(text.Cut(s.Corpus, 4<<10))
	if _, _, body, ok := ParseAttribution(s.Corpus); ok { // who said it, and when, are compared as fields
		s.Corpus = body
	}
	return s
}

// claim returns the text to compare: the corpus when it is at most wholeText bytes and no question with its answer,
// else the description, else the beginning of the corpus.
func (s Statement) claim() string {
	switch {
	case !isBlank(s.Corpus) && len(s.Corpus) <= wholeText && !strings.HasPrefix(s.Corpus, questionLabel):
		return s.Corpus
	case !isBlank(s.Description):
		return s.Description
	}
	return text.Cut(s.Corpus, bestWindow)
}

// plainCompare compares by words, then by attributes; the first that decides counts. Anything else is [Unrelated].
func plainCompare(old, next Statement) (kind, why string) {
	x, y := measure(old.claim()), measure(next.claim())
	if kind, why := compareWords(x, y); kind != "" {
		return kind, why
	}
	if kind, why := compareAttributes(old.claim(), next.claim()); kind != "" {
		return kind, why
	}
	return Unrelated, "it is not sure that both speak of the same"
}

// How much of all words two statements must share to say nearly the same.
const (
	sameShare   = 0.9
	denialShare = 0.8
)

// compareWords compares by the share of words in common, by numbers and by denials; "" when they decide nothing.
// Statements of less than two content words are [Same] or [Unrelated].
func compareWords(x, y measurement) (kind, why string) {
	shared := x.sharedKeys(y)
	fewer, all := min(len(x.keys), len(y.keys)), len(x.keys)+len(y.keys)-shared
	if fewer < 2 {
		if all > 0 && shared == all && x.agrees(y) {
			return Same, "both have the same words"
		}
		return Unrelated, "too little is said to compare"
	}
	share := float64(shared) / float64(all)
	sameNumbers := slices.Equal(x.numbers, y.numbers)
	switch {
	case share >= sameShare && x.agrees(y):
		return Same, "both have nearly the same words, numbers and names"
	case share >= denialShare && sameNumbers && x.denied != y.denied:
		return Contradicts, "one denies what the other says"
	case share >= denialShare && !sameNumbers && x.denied == y.denied && x.lasting && y.lasting && len(x.numbers) > 0 &&
		len(x.numbers) == len(y.numbers):
		return Contradicts, "both say the same of another number or date"
	}
	return "", ""
}

// negations deny a statement.
var negations = text.WordSet(
	`not no never don't doesn't isn't wasn't didn't can't won't hardly without nicht kein keine pas не`)

// measurement is a text in a form that can be compared.
type measurement struct {
	keys    map[string]bool
	numbers []string
	denied  bool // an odd number of denials
	lasting bool // it says what is so, and not what happened once
}

var presentVerbs = text.WordSet(
	`is are costs cost has have starts start opens open closes close ends end weighs earns owns needs takes contains lives works`)

// measure returns the stemmed content words of s, its sorted numbers, whether it is denied and whether it says what is
// so.
func measure(s string) measurement {
	m := measurement{keys: map[string]bool{}}
	for _, w := range text.Words(s) {
		switch {
		case w.IsNumber:
			m.numbers = append(m.numbers, w.Folded)
			continue
		case negations(w.Folded):
			m.denied = !m.denied
			continue
		case presentVerbs(w.Folded):
			m.lasting = true
		}
		if !functionWords(w.Folded) {
			m.keys[text.Stem(w.Folded)] = true
		}
	}
	slices.Sort(m.numbers)
	return m
}

// sharedKeys returns how many keys both have.
func (m measurement) sharedKeys(o measurement) (n int) {
	for k := range m.keys {
		if o.keys[k] {
			n++
		}
	}
	return n
}

func (m measurement) agrees(o measurement) bool {
	return slices.Equal(m.numbers, o.numbers) && m.denied == o.denied
}

// attributeWords are attributes with one value at a time.
var attributeWords = text.WordSet(`favourite favorite name capital colour color address birthday email phone number password code deadline date time price cost age
	height weight size version owner author president ceo mayor boss language currency population day place room seat`)

// compareAttributes compares "the ... is ..." where the subject is an attribute with one value, over the subjects that
// both texts have: [Contradicts] when one has another value, naming the first in alphabetical order, [Same] when all
// are equal, "" when there is no such subject.
func compareAttributes(old, next string) (kind, why string) {
	a, b := readAttributes(old), readAttributes(next)
	for _, subject := range slices.Sorted(maps.Keys(a)) {
		value, ok := b[subject]
		switch {
		case !ok:
		case a[subject] != value:
			return Contradicts, "both give the " + subject + " another value"
		default:
			kind, why = Same, "both give the same value"
		}
	}
	return kind, why
}

// readAttributes returns the value of each subject in "the ... is ..." and "my ... is ...", folded, in the first 4
// sentences. It skips questions, "is not", subjects without one of attributeWords or of more than 8 words, and values
// of more than 5 words.
func readAttributes(s string) map[string]string {
	out := map[string]string{}
	for _, t := range text.SentenceTexts(s, 4) {
		f := sentence{text.Words(t), t}
		at := slices.IndexFunc(f.all, func(w text.Word) bool { return w.Folded == "is" || w.Folded == "are" })
		if at < 2 || at > 8 || len(f.all)-at-1 > 5 || at+1 >= len(f.all) || f.is(at+1, "not") || text.IsQuestion(t) {
			continue
		}
		one, subject, value := false, make([]string, 0, at), make([]string, 0, 5)
		for i := range at {
			one = one || f.in(i, attributeWords)
			if !f.is(i, "the", "a", "an") {
				subject = append(subject, f.all[i].Folded)
			}
		}
		for _, w := range f.all[at+1:] {
			if !functionWords(w.Folded) {
				value = append(value, w.Folded)
			}
		}
		if one && len(value) > 0 {
			out[strings.Join(subject, " ")] = strings.Join(value, " ")
		}
	}
	return out
}
