package digest

import (
	"slices"
	"strings"

	"conclave/pkg/text"
)

// Tenses of a relation.
const (
	tenseIs  = "is"
	tenseWas = "was"
)

// plainRelations returns the relations that patterns find: who lives, works and was born where, who is related to whom, names and
// preferences. Questions, denials, wishes and suppositions state no fact and are skipped. It reads at most maxPlain bytes and 400
// sentences of each text, and returns at most maxRelations, without duplicates.
func plainRelations(m material) []Relation {
	var out []Relation
	for _, p := range m {
		body := stripMarkdown(text.Cut(p.text, maxPlain))
		for _, s := range text.Sentences(body, 400) {
			line := strings.Join(strings.Fields(body[s.From:s.To]), " ")
			f := parser{sentence: sentence{text.Words(line), line}, by: p.by}
			for _, r := range f.parse() {
				if len(out) < maxRelations && !slices.ContainsFunc(out, r.isSame) {
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// isSame reports whether two relations state the same, apart from dates.
func (r Relation) isSame(o Relation) bool {
	return r.Tense == o.Tense && r.Predicate == o.Predicate && text.Fold(r.Subject) == text.Fold(o.Subject) && text.Fold(r.Object) == text.Fold(o.Object)
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

// parse returns the relations of the sentence, by the first rule that fits each word. A clause whose subject is unknown, or that
// states no fact, gives none.
func (p *parser) parse() []Relation {
	for i := range p.all {
		w := p.all[i].Folded
		switch {
		case liveVerbs[w] && p.is(i+1, "in"):
			p.parsePlace(i, i+2, livesIn)
		case workVerbs[w] && p.is(i+1, "at", "for", "with"):
			p.parsePlace(i, i+2, worksAt)
		case workVerbs[w] && p.is(i+1, "as"):
			p.parseStatement(i, i+2, "works as", KindOther)
		case w == "moved":
			p.parseMove(i)
		case likeVerbs[w] != "":
			p.parsePreference(i, likeVerbs[w])
		case w == "married" && p.is(i+1, "to"):
			p.parseStatement(i, i+2, "is married to", KindPerson)
		case w == "born" && p.is(i+1, "in", "on"):
			p.parseBirth(i)
		case beForms[w]:
			p.parseBeing(i)
		case kinWords[w] && p.isName(i+1) && p.isTied(i+1) && p.ownerAt(i-1) != "": // my sister Ana: said in passing, and so also in a question
			p.keepRelation(Relation{Subject: p.span(i+1, p.nameEnd(i+1)), Predicate: "is " + w + " of", Object: p.ownerAt(i - 1), Kind: KindPerson, Tense: tenseIs})
		case w == "call" && p.is(i+1, "me") && p.by == byUser:
			p.addRelation(clause{subject: UserEntity}, i+2, "is called", KindPerson, tenseIs)
		}
	}
	return p.out
}

// readSubject reads the words before the verb at word i: adverbs and auxiliaries, which set tense and denial, and the subject. It
// is not ok when the subject is missing or unknown, punctuation stands between it and the verb, or the clause is a question, wish
// or supposition. A denied clause is ok: the caller checks denied.
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

// subjectEndingAt returns the subject whose last word is k, "" when it is unknown. "I" is the user in the user's own text only,
// "you" in the assistant's only; a relative needs an owner, as in "my sister". A name after a particle ("the city of Oslo") is
// unknown.
func (p *parser) subjectEndingAt(k int) string {
	w := p.all[k]
	switch {
	case w.Folded == "i" || w.Folded == "i'm" || w.Folded == "i've":
		if p.by == byUser {
			return UserEntity
		}
		return ""
	case w.Folded == "you" || w.Folded == "you're" || w.Folded == "you've":
		if p.by == byAssistant {
			return UserEntity
		}
		return ""
	case (w.Folded == "person" || w.Folded == "user") && p.is(k-1, "the"):
		if p.by != byUnknown {
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
	if from > 0 && p.all[from].Gap == 0 && p.in(from-1, nameParticles) { // "the city of Oslo lives": whose part this is, is not known
		return ""
	}
	return p.span(from, k)
}

// ownerAt returns the owner that word k names: [UserEntity] for "my" in the user's text and "your" in the assistant's, the name
// of "Ana's" without its ending; "" when there is none or k is out of range.
func (p *parser) ownerAt(k int) string {
	switch {
	case k < 0:
		return ""
	case p.is(k, "my") && p.by == byUser, p.is(k, "your") && p.by == byAssistant:
		return UserEntity
	case p.is(k, "person's", "user's") && p.is(k-1, "the") && p.by != byUnknown:
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

// statesFact reports whether the clause with the subject at word k and the verb at word i states a fact. False for a question,
// also one that the sentence ends with in the same clause, for a wish and for a supposition, also by an "if" that begins the
// sentence.
func (p *parser) statesFact(k, i int) bool {
	from := k
	for from > 0 && p.all[from].Gap&(text.GapEnd|text.GapComma|text.GapColon) == 0 && !p.is(from, "and", "but", "that", "because", "so") {
		from--
	}
	for j := from; j <= i; j++ {
		if p.in(j, hypotheticals) || p.in(j, questionWords) && !adverbsAndAuxiliaries[p.all[j].Folded] || p.in(j, howWords) || j == from && p.in(j, questionVerbs) {
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

// readObject returns the object that begins at word i, without articles, and the position after it; "" when there is none. An
// object is a name, of any length. loose also accepts up to most words in lower case, which users write: without it they are no
// object.
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

// parsePlace reads "Ana lives in Oslo" and "I used to work for Acme until 2019" with the verb at word verb and the object from
// word at on. predicate is livesIn or worksAt. A denial gives no relation, "no longer" one in the past.
func (p *parser) parsePlace(verb, at int, predicate string) {
	ph, ok := p.readSubject(verb)
	if !ok || ph.denied && !ph.over {
		return
	}
	kind := KindPlace
	if predicate == worksAt {
		kind = KindOther
	}
	p.addWithDates(ph, verb, at, predicate, kind)
}

// parseStatement reads "Ana is married to Tom" and "I work as a nurse". The object begins at word at.
func (p *parser) parseStatement(verb, at int, predicate, kind string) {
	if ph, ok := p.readSubject(verb); ok && !ph.denied {
		p.addWithDates(ph, verb, at, predicate, kind)
	}
}

// addWithDates reads the object at word at and the dates behind it, and keeps the relation. It is past when the clause or the
// verb is, or an end date is given; "has lived in Oslo since 2019" is present.
func (p *parser) addWithDates(ph clause, verb, at int, predicate, kind string) {
	object, next := p.readObject(at, 4, strings.HasPrefix(ph.subject, UserEntity) || predicate == "works as")
	from, until, in := p.readDates(next)
	was := ph.past || ph.over || until != "" || pastForms[p.all[verb].Folded] && predicate != "is married to"
	if ph.perfect && until == "" && !ph.over && p.in(verb, pastForms) { // has lived in Oslo since 2019
		was = from == ""
	}
	tense := tenseIs
	if was {
		tense = tenseWas
	}
	if from == "" {
		from = in
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense, From: from, Until: until})
}

// parseMove reads "Ana moved from Oslo to Bergen in 2020" with the verb at word i: she lived in Oslo until 2020 and lives in
// Bergen since. Either place may be missing. A denial gives nothing.
func (p *parser) parseMove(i int) {
	ph, ok := p.readSubject(i)
	if !ok || ph.denied {
		return
	}
	loose := strings.HasPrefix(ph.subject, UserEntity)
	next := i + 1
	left := ""
	if p.is(next, "from") {
		left, next = p.readObject(next+1, 3, loose)
	}
	goal := ""
	if p.is(next, "to") {
		goal, next = p.readObject(next+1, 3, loose)
	}
	from, until, in := p.readDates(next)
	when := in
	if when == "" {
		when = from + until
	}
	if left != "" {
		p.keepRelation(Relation{Subject: ph.subject, Predicate: livesIn, Object: left, Kind: KindPlace, Tense: tenseWas, Until: when})
	}
	if goal != "" {
		p.keepRelation(Relation{Subject: ph.subject, Predicate: livesIn, Object: goal, Kind: KindPlace, Tense: tenseIs, From: when})
	}
}

// parsePreference reads "I don't like fish" and "Ana used to like tea" with the verb at word i. A denied "likes" becomes
// "dislikes" and the reverse; other denied predicates, and objects such as "it" that cannot be looked up, give nothing. The
// object has at most 6 words.
func (p *parser) parsePreference(i int, predicate string) {
	ph, ok := p.readSubject(i)
	if !ok || p.in(i+1, vagueObjects) {
		return
	}
	if ph.denied {
		switch predicate {
		case "likes":
			predicate = "dislikes"
		case "dislikes":
			predicate = "likes"
		default:
			return
		}
	}
	at := i + 1
	for p.is(at, "to", "the") {
		at++
	}
	to := at
	for to < len(p.all) && to-at < 6 && (to == at || p.all[to].Gap == 0) && !likeStops[p.all[to].Folded] &&
		!(predicate == "prefers" && p.is(to, "to")) {
		to++
	}
	if to == at {
		return
	}
	object := p.span(at, to-1)
	if p.is(i+1, "to") {
		object = "to " + object
	}
	tense := tenseIs
	if ph.past || ph.over || pastForms[p.all[i].Folded] {
		tense = tenseWas
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: KindThing, Tense: tense})
}

// parseBirth reads "Ana was born in Oslo" and "I was born on 3 May 1990" with "born" at word i. A date behind it gives "was born
// on", anything else "was born in". A denial gives nothing.
func (p *parser) parseBirth(i int) {
	ph, ok := p.readSubject(i)
	if !ok || ph.denied {
		return
	}
	if d, next := p.readDate(i + 2); d != "" && next > 0 {
		p.keepRelation(Relation{Subject: ph.subject, Predicate: "was born on", Object: d, Kind: KindOther, Tense: tenseWas})
		return
	}
	object, next := p.readObject(i+2, 3, ph.subject == UserEntity)
	_, _, in := p.readDates(next)
	p.keepRelation(Relation{Subject: ph.subject, Predicate: "was born in", Object: object, Kind: KindPlace, Tense: tenseWas, From: in})
}

// beingRules read what a form of "to be" at word i says. The first that returns true has decided, with or without a relation.
var beingRules = []func(p *parser, b being) bool{
	(*parser).parseNameOf,
	(*parser).parseKinNamed,
	(*parser).parseRoleNamed,
	(*parser).parseFavourite,
	(*parser).parseSubjectIs,
}

// being is a form of "to be" in a sentence.
type being struct {
	verb  int // its word
	after int // the first word behind it that is no adverb, and no "called"
	tense string
}

// parseBeing reads the clause of the form of "to be" at word i by the first of beingRules that decides. A denial ("is not") gives
// no relation.
func (p *parser) parseBeing(i int) {
	if p.is(i+1, "not", "never") {
		return
	}
	b := being{verb: i, after: p.skip(i+1, "called", "named", "now", "still", "also"), tense: tenseIs}
	if pastForms[p.all[i].Folded] {
		b.tense = tenseWas
	}
	for _, parse := range beingRules {
		if parse(p, b) {
			return
		}
	}
}

// isTiedBack reports whether a word stands directly before the verb.
func (p *parser) isTiedBack(b being) bool { return b.verb > 0 && p.all[b.verb].Gap == 0 }

// parseNameOf reads "my name is Kim" and "my sister's name is Ana". It reports whether the word before the verb is "name" in a
// statement, also when the owner is unknown and no relation was kept.
func (p *parser) parseNameOf(b being) bool {
	i := b.verb
	if !p.isTiedBack(b) || !p.is(i-1, "name") || !p.statesFact(i-1, i) {
		return false
	}
	if i >= 2 {
		if relative, ok := strings.CutSuffix(p.all[i-2].Folded, "'s"); ok && kinWords[relative] {
			if owner := p.ownerAt(i - 3); owner != "" {
				p.addKinship(b.after, relative, owner, b.tense)
			}
			return true
		}
	}
	if owner := p.ownerAt(i - 2); owner != "" {
		p.addRelation(clause{subject: owner}, b.after, "is called", KindPerson, b.tense)
	}
	return true
}

// parseKinNamed reads "my sister is (called) Ana". It reports whether a relative before the verb is named behind it in a
// statement, also when the owner is unknown and no relation was kept.
func (p *parser) parseKinNamed(b being) bool {
	i := b.verb
	if !p.isTiedBack(b) || !p.in(i-1, kinWords) || !p.isName(b.after) || !p.statesFact(i-1, i) {
		return false
	}
	if owner := p.ownerAt(i - 2); owner != "" {
		p.addKinship(b.after, p.all[i-1].Folded, owner, b.tense)
	}
	return true
}

// parseRoleNamed reads "the capital of Norway is Oslo": a role word, "of" and a name before the verb, a name behind it. It
// reports whether the clause has this form; the relation is then kept with the second name as its subject.
func (p *parser) parseRoleNamed(b being) bool {
	if !p.isTiedBack(b) {
		return false
	}
	first := p.nameStart(b.verb - 1)
	if !p.isName(first) || !p.is(first-1, "of") || !p.in(first-2, roleWords) || !p.isName(b.after) || !p.statesFact(first-2, b.verb) {
		return false
	}
	p.keepRelation(Relation{
		Subject: p.span(b.after, p.nameEnd(b.after)), Predicate: "is " + p.all[first-2].Folded + " of", Object: p.span(first, b.verb-1), Kind: KindOther, Tense: b.tense,
	})
	return true
}

// parseFavourite reads "my favourite colour is blue", with one or two words between "favourite" and the verb. It reports whether
// the clause has this form and a known owner.
func (p *parser) parseFavourite(b being) bool {
	i := b.verb
	for k := i - 2; p.isTiedBack(b) && k >= 1 && k >= i-3; k-- {
		if p.is(k, "favourite", "favorite") && p.ownerAt(k-1) != "" && p.statesFact(k, i) {
			p.addRelation(clause{subject: p.ownerAt(k - 1)}, b.after, "has favourite "+text.Fold(p.span(k+1, i-1)), KindThing, b.tense)
			return true
		}
	}
	return false
}

// parseSubjectIs reads "Ana is called Annie", "I'm from Lisbon", "Ana is my sister", "Ana is Tom Silva's sister" and "Oslo is the
// capital of Norway". It reports whether the clause states something of a known subject, even when no relation was found, so that
// no later rule is tried.
func (p *parser) parseSubjectIs(b being) bool {
	who, tense := p.subjectOfBeing(b)
	if who == "" {
		return false
	}
	after := b.after
	switch {
	case p.is(b.verb+1, "called", "named"):
		p.addRelation(clause{subject: who}, after, "is called", KindPerson, tense)
	case p.is(after, "from"):
		p.addRelation(clause{subject: who}, after+1, "is from", KindPlace, tense)
	case p.ownerAt(after) != "" && p.in(after+1, kinWords):
		p.addKinOf(who, after, tense)
	case p.isName(after):
		if end := p.nameEnd(after); p.ownerAt(end) != "" && p.in(end+1, kinWords) {
			p.addKinOf(who, end, tense)
		}
	default:
		after = min(p.skip(after, "the"), after+1)
		if p.in(after, roleWords) && p.is(after+1, "of") {
			p.addRelation(clause{subject: who}, after+2, "is "+p.all[after].Folded+" of", KindOther, tense)
		}
	}
	return true
}

// subjectOfBeing returns the subject of the clause and its tense. who is "" when the subject is unknown, or the clause is denied
// or states no fact.
func (p *parser) subjectOfBeing(b being) (who, tense string) {
	if p.is(b.verb, "i'm", "you're") { // subject and verb are one word
		if !p.statesFact(b.verb, b.verb) {
			return "", b.tense
		}
		return p.subjectEndingAt(b.verb), b.tense
	}
	c, ok := p.readSubject(b.verb)
	switch {
	case !ok || c.denied:
		return "", b.tense
	case c.past || c.over:
		return c.subject, tenseWas
	}
	return c.subject, b.tense
}

// addKinOf adds that who is the relative, named by the word behind owner, of the owner at that word.
func (p *parser) addKinOf(who string, owner int, tense string) {
	p.keepRelation(Relation{Subject: who, Predicate: "is " + p.all[owner+1].Folded + " of", Object: p.ownerAt(owner), Kind: KindPerson, Tense: tense})
}

// addKinship keeps that the name at word at is a relative of owner.
func (p *parser) addKinship(at int, what, owner, tense string) {
	if name, _ := p.readObject(at, 2, false); name != "" {
		p.keepRelation(Relation{Subject: name, Predicate: "is " + what + " of", Object: owner, Kind: KindPerson, Tense: tense})
	}
}

// addRelation keeps a relation whose object begins at word at.
func (p *parser) addRelation(ph clause, at int, predicate, kind, tense string) {
	object, _ := p.readObject(at, 4, ph.subject == UserEntity)
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense})
}

// keepRelation adds r and sets Single. It drops a relation with an empty end, one longer than maxThing bytes, or two equal ends.
func (p *parser) keepRelation(r Relation) {
	if r.Object == "" || r.Subject == "" || len(r.Object) > maxThing || len(r.Subject) > maxThing || text.Fold(r.Object) == text.Fold(r.Subject) {
		return
	}
	r.Single = isSingle(r.Predicate)
	p.out = append(p.out, r)
}
