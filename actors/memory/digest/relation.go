package digest

import (
	"cmp"
	"slices"
	"strings"

	"conclave/pkg/text"
)

// Tenses of a relation.
const (
	tenseIs  = "is"
	tenseWas = "was"
)

// plainRelations returns the relations that patterns find: who lives, works and was born where, who is related to whom,
// names, occupations and preferences. "I" is the speaker, see [part.voices]. Questions, denials, wishes, suppositions
// and sarcasm state no fact and are skipped, and so is whatever the patterns are not sure of: no relation is better
// than a wrong one. It reads at most maxPlain bytes and 400 sentences of each text, and returns at most maxRelations,
// without duplicates.
func plainRelations(m material) []Relation {
	var out []Relation
	for _, whole := range m {
		whole.text = text.Cut(whole.text, maxPlain)
		for _, p := range whole.voices() {
			if sarcasm.MatchString(p.text) {
				continue
			}
			body := stripMarkdown(p.text)
			for _, s := range text.Sentences(body, 400) {
				line := dashes.Replace(strings.Join(strings.Fields(body[s.From:s.To]), " "))
				f := parser{sentence: sentence{text.Words(line), line}, by: p.by}
				for _, r := range f.parse() {
					if len(out) < maxRelations && !slices.ContainsFunc(out, r.isSame) {
						out = append(out, r)
					}
				}
			}
		}
	}
	return out
}

// dashes replaces hyphens between words by dashes, which separate clauses.
var dashes = strings.NewReplacer(" - ", " – ", "- ", " – ", " -- ", " – ")

// isSame reports whether two relations state the same, apart from dates.
func (r Relation) isSame(o Relation) bool {
	return r.Tense == o.Tense && r.Predicate == o.Predicate && text.Fold(r.Subject) == text.Fold(o.Subject) &&
		text.Fold(r.Object) == text.Fold(o.Object)
}

// parser reads the relations of one sentence.
type parser struct {
	sentence
	by  speaker
	out []Relation
}

// clause is the part of a clause before its verb.
type clause struct {
	subject       string
	past, perfect bool
	denied        bool
	over          bool // no longer
}

// parse returns the relations of the sentence, by the first rule that fits each word. A clause whose subject is
// unknown, or that states no fact, gives none.
func (p *parser) parse() []Relation {
	for i := range p.all {
		if !p.parsePlaces(i) && !p.parseActions(i) {
			p.parsePeople(i)
		}
	}
	return p.out
}

// parsePlaces reads where somebody lives, works or comes from, by the verb at word i, and reports whether it is such a
// verb.
func (p *parser) parsePlaces(i int) bool {
	switch w := p.all[i].Folded; {
	case liveVerbs[w] && p.is(i+1, "in"):
		p.parsePlace(i, i+2, livesIn)
	case workVerbs[w] && p.is(i+1, "at", "for"):
		p.parsePlace(i, i+2, worksAt)
	case workVerbs[w] && p.is(i+1, "as"):
		p.parseStatement(i, i+2, "works as", KindOther)
	case w == "grew" && p.is(i+1, "up") && p.is(i+2, "in"):
		p.parseStatement(i, i+3, "grew up in", KindPlace)
	case w == "moved":
		p.parseMove(i)
	case w == "born" && p.is(i+1, "in", "on"):
		p.parseBirth(i)
	default:
		return false
	}
	return true
}

// parseActions reads what somebody likes or does, by the verb at word i, and reports whether it is such a verb.
func (p *parser) parseActions(i int) bool {
	switch w := p.all[i].Folded; {
	case likeVerbs[w] != "":
		p.parsePreference(i, likeVerbs[w])
	case p.eventAt(i) != (event{}):
		p.parseEvent(i, p.eventAt(i))
	case w == "play" || w == "plays" || w == "playing":
		p.parsePlaying(i)
	default:
		return false
	}
	return true
}

// parsePeople reads names, roles and relatives at word i.
func (p *parser) parsePeople(i int) {
	switch w := p.all[i].Folded; {
	case w == "married" && p.is(i+1, "to"):
		p.parseStatement(i, i+2, "is married to", KindPerson)
	case beForms[w]:
		p.parseBeing(i)
	case kinWords[w] && p.isName(i+1) && p.isTied(i+1) && p.ownerAt(i-1) != "":
		// my sister Ana: said in passing, and so also in a question
		p.keepRelation(Relation{
			Subject: p.span(i+1, p.nameEnd(i+1)), Predicate: "is " + w + " of",
			Object: p.ownerAt(i - 1), Kind: KindPerson, Tense: tenseIs,
		})
	case w == "my" && p.household(i+1) != "":
		p.parseOwn(i)
	case w == "call" && p.is(i+1, "me") && p.by.self() != "" && (i == 0 || p.all[i].Gap&text.GapEnd != 0 ||
		p.is(i-1, "please", "just")):
		p.addRelation(clause{subject: p.by.self()}, i+2, "is called", KindPerson, tenseIs)
	}
}

// readSubject reads the words before the verb at word i: adverbs and auxiliaries, which set tense and denial, and the
// subject. It is not ok when the subject is missing or unknown, punctuation stands between it and the verb, or the
// clause is a question, wish or supposition. A denied clause is ok: the caller checks denied.
func (p *parser) readSubject(i int) (clause, bool) {
	var ph clause
	k := i - 1
	if p.all[i].Gap != 0 {
		return ph, false
	}
	for ; k >= 0 && adverbsAndAuxiliaries[p.all[k].Folded]; k-- {
		switch w := p.all[k].Folded; w {
		case "used", "formerly", "previously", "once", "was", "were", "had":
			ph.past = true
		case "has", "have":
			ph.perfect = true
		case "longer":
			ph.over = true
		case "not", "never", "don't", "doesn't", "didn't", "isn't", "aren't", "wasn't":
			ph.denied = true
		}
		if p.all[k].Gap != 0 {
			return ph, false
		}
	}
	if k < 0 {
		return ph, false
	}
	ph.subject = p.subjectEndingAt(k)
	return ph, ph.subject != "" && p.statesFact(k, i)
}

// opensClause reports whether the pronoun at word k is the subject of a main clause: it begins the sentence, follows
// punctuation or one of clauseOpeners. In "something I love" and "Ana says I live here" it is not.
func (p *parser) opensClause(k int) bool {
	for j := k - 1; j >= 0 && p.all[j+1].Gap&text.GapEnd == 0; j-- {
		if p.in(j, reportVerbs) {
			return false
		}
	}
	return k == 0 || p.all[k].Gap&^text.GapLine != 0 || p.in(k-1, clauseOpeners)
}

// subjectEndingAt returns the subject whose last word is k, "" when it is unknown. "I" is the speaker, and must open a
// clause; "you" is the user in the assistant's text only; a relative needs an owner, as in "my sister". A name after a
// particle ("the city of Oslo") is unknown.
func (p *parser) subjectEndingAt(k int) string {
	w := p.all[k]
	switch {
	case w.Folded == "i" || w.Folded == "i'm" || w.Folded == "i've":
		if !p.opensClause(k) {
			return ""
		}
		return p.by.self()
	case w.Folded == "you" || w.Folded == "you're" || w.Folded == "you've":
		if p.by == byAssistant {
			return UserEntity
		}
		return ""
	case (w.Folded == "person" || w.Folded == "user") && p.is(k-1, "the"):
		if p.by == byUser || p.by == byAssistant {
			return UserEntity
		}
		return ""
	case kinWords[w.Folded]:
		if owner := p.ownerAt(k - 1); owner != "" {
			return owner + "'s " + w.Folded
		}
		return ""
	case !p.isName(k):
		return ""
	}
	from := p.nameStart(k)
	if from == k && p.all[k].Gap&text.GapEnd != 0 && isSentenceOpener(w.Folded) {
		return ""
	}
	// "the city of Oslo lives": whose part this is, is not known
	if from > 0 && p.all[from].Gap == 0 && p.in(from-1, nameParticles) {
		return ""
	}
	return p.span(from, k)
}

// isSentenceOpener reports whether a folded word that begins a sentence has its capital letter only from there: "Even
// made ...", "Recently joined ...".
func isSentenceOpener(folded string) bool {
	return sentenceOpeners[folded] || len(folded) > 5 &&
		(strings.HasSuffix(folded, "ly") || strings.HasSuffix(folded, "ing"))
}

// ownerAt returns the owner that word k names: the speaker for "my", [UserEntity] for "your" in the assistant's text,
// the name of "Ana's" without its ending; "" when there is none or k is out of range.
func (p *parser) ownerAt(k int) string {
	switch {
	case k < 0:
		return ""
	case p.is(k, "my"):
		return p.by.self()
	case p.is(k, "your") && p.by == byAssistant:
		return UserEntity
	case p.is(k, "person's", "user's") && p.is(k-1, "the") && (p.by == byUser || p.by == byAssistant):
		return UserEntity
	case p.isName(k) && strings.HasSuffix(p.all[k].Folded, "'s"):
		name := p.span(p.nameStart(k), k)
		return strings.TrimSuffix(strings.TrimSuffix(name, "'s"), "’s")
	}
	return ""
}

// nameStart returns the first word of the name that ends with word k.
func (p *parser) nameStart(k int) int {
	for k > 0 && p.all[k].Gap == 0 && p.isName(k-1) && !orderLeads[p.all[k-1].Folded] {
		k--
	}
	return k
}

// span returns the words from a to b as they are written.
func (p *parser) span(a, b int) string { return p.s[p.all[a].From:p.all[b].To] }

// statesFact reports whether the clause with the subject at word k and the verb at word i states a fact. False for a
// question, also one that the sentence ends with in the same clause, for a wish and for a supposition, also by an "if"
// that begins the sentence.
func (p *parser) statesFact(k, i int) bool {
	from := k
	for from > 0 && p.all[from].Gap&(text.GapEnd|text.GapComma|text.GapColon) == 0 &&
		!p.is(from, "and", "but", "that", "because", "so") {
		from--
	}
	for j := from; j <= i; j++ {
		if p.in(j, hypotheticals) || p.in(j, questionWords) && !adverbsAndAuxiliaries[p.all[j].Folded] ||
			p.in(j, howWords) || j == from && p.in(j, questionVerbs) {
			return false
		}
	}
	// "if" also reaches over the comma before: If she moves, Ana lives in Oslo.
	if p.in(0, hypotheticals) {
		return false
	}
	if !strings.ContainsAny(p.s[p.all[i].To:], "?？؟") {
		return true
	}
	for j := i + 1; j < len(p.all); j++ { // the question comes in a clause after this one
		if p.all[j].Gap&(text.GapComma|text.GapColon|text.GapEnd) != 0 {
			return true
		}
	}
	return false
}

// isOwn reports whether a subject is the user, the speaker or something of theirs, of which people write in lower case.
func (p *parser) isOwn(subject string) bool {
	return strings.HasPrefix(subject, UserEntity) || p.by.self() != "" && strings.HasPrefix(subject, p.by.self())
}

// readObject returns the object that begins at word i, without articles, and the position after it; "" when there is
// none. An object is a name, of any length. loose also accepts up to most words in lower case, which users write:
// without it they are no object.
func (p *parser) readObject(i, most int, loose bool) (string, int) {
	for p.is(i, "the", "a", "an") && i+1 < len(p.all) && p.all[i+1].Gap == 0 {
		i++
	}
	if i >= len(p.all) || p.all[i].Gap&^text.GapQuote != 0 {
		return "", i
	}
	if p.isName(i) {
		end := p.nameEnd(i)
		return strings.TrimSuffix(strings.TrimSuffix(p.span(i, end), "'s"), "’s"), end + 1
	}
	if !loose {
		return "", i
	}
	to := i
	for to < len(p.all) && to-i < most && (to == i || p.all[to].Gap == 0) && !objectStops[p.all[to].Folded] {
		to++
	}
	if to == i {
		return "", i
	}
	return p.span(i, to-1), to
}

// addRelation keeps a relation whose object begins at word at.
func (p *parser) addRelation(ph clause, at int, predicate, kind, tense string) {
	object, _ := p.readObject(at, 4, p.isOwn(ph.subject))
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense})
}

// keepRelation adds r and sets Single. It drops a relation with an empty end, one longer than maxThing bytes, or two
// equal ends.
func (p *parser) keepRelation(r Relation) {
	r.Subject, r.Object = p.cleanEnd(r.Subject), p.cleanEnd(r.Object)
	if r.Object == "" || r.Subject == "" || len(r.Object) > maxThing || len(r.Subject) > maxThing ||
		text.Fold(r.Object) == text.Fold(r.Subject) {
		return
	}
	r.Single = isSingle(r.Predicate)
	p.out = append(p.out, r)
}

// cleanEnd returns an end of a relation without a possessive ending. Of a named speaker "my" becomes "their": the
// reader of a relation is not the speaker.
func (p *parser) cleanEnd(s string) string {
	s = strings.TrimSuffix(strings.TrimSuffix(s, "'s"), "’s")
	if p.by == byUser || !slices.ContainsFunc(strings.Fields(s), func(w string) bool {
		return ownWords[text.Fold(w)] != ""
	}) {
		return s
	}
	words := strings.Fields(s)
	for i, w := range words {
		words[i] = cmp.Or(ownWords[text.Fold(w)], w)
	}
	return strings.Join(words, " ")
}
