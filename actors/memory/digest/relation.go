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

// plainRelations returns the relations that patterns find: who lives, works and was born where, who is related to whom, names,
// occupations and preferences. "I" is the speaker, see [part.voices]. Questions, denials, wishes, suppositions and sarcasm state
// no fact and are skipped, and so is whatever the patterns are not sure of: no relation is better than a wrong one. It reads at
// most maxPlain bytes and 400 sentences of each text, and returns at most maxRelations, without duplicates.
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
		if !p.parsePlaces(i) && !p.parseActions(i) {
			p.parsePeople(i)
		}
	}
	return p.out
}

// parsePlaces reads where somebody lives, works or comes from, by the verb at word i, and reports whether it is such a verb.
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
	case kinWords[w] && p.isName(i+1) && p.isTied(i+1) && p.ownerAt(i-1) != "": // my sister Ana: said in passing, and so also in a question
		p.keepRelation(Relation{Subject: p.span(i+1, p.nameEnd(i+1)), Predicate: "is " + w + " of", Object: p.ownerAt(i - 1), Kind: KindPerson, Tense: tenseIs})
	case w == "my" && p.household(i+1) != "":
		p.parseOwn(i)
	case w == "call" && p.is(i+1, "me") && p.by.self() != "" && (i == 0 || p.all[i].Gap&text.GapEnd != 0 || p.is(i-1, "please", "just")):
		p.addRelation(clause{subject: p.by.self()}, i+2, "is called", KindPerson, tenseIs)
	}
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

// opensClause reports whether the pronoun at word k is the subject of a main clause: it begins the sentence, follows punctuation
// or one of clauseOpeners. In "something I love" and "Ana says I live here" it is not.
func (p *parser) opensClause(k int) bool {
	for j := k - 1; j >= 0 && p.all[j+1].Gap&text.GapEnd == 0; j-- {
		if p.in(j, reportVerbs) {
			return false
		}
	}
	return k == 0 || p.all[k].Gap&^text.GapLine != 0 || p.in(k-1, clauseOpeners)
}

// subjectEndingAt returns the subject whose last word is k, "" when it is unknown. "I" is the speaker, and must open a clause;
// "you" is the user in the assistant's text only; a relative needs an owner, as in "my sister". A name after a particle ("the city of Oslo") is
// unknown.
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
	if from > 0 && p.all[from].Gap == 0 && p.in(from-1, nameParticles) { // "the city of Oslo lives": whose part this is, is not known
		return ""
	}
	return p.span(from, k)
}

// isSentenceOpener reports whether a folded word that begins a sentence has its capital letter only from there: "Even made ...",
// "Recently joined ...".
func isSentenceOpener(folded string) bool {
	return sentenceOpeners[folded] || len(folded) > 5 && (strings.HasSuffix(folded, "ly") || strings.HasSuffix(folded, "ing"))
}

// ownerAt returns the owner that word k names: the speaker for "my", [UserEntity] for "your" in the assistant's text, the name of
// "Ana's" without its ending; "" when there is none or k is out of range.
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

// isOwn reports whether a subject is the user, the speaker or something of theirs, of which people write in lower case.
func (p *parser) isOwn(subject string) bool {
	return strings.HasPrefix(subject, UserEntity) || p.by.self() != "" && strings.HasPrefix(subject, p.by.self())
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
	object, next := p.readObject(at, 4, p.isOwn(ph.subject) || predicate == "works as")
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
	loose := p.isOwn(ph.subject)
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
// "dislikes" and the reverse; other denied predicates, forms that do not agree with the subject ("sounds like", "unconditional
// love") and objects that readLiked rejects give nothing.
func (p *parser) parsePreference(i int, predicate string) {
	ph, ok := p.readSubject(i)
	if !ok || !p.agrees(i) {
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
	if p.is(at, "the") && strings.HasSuffix(p.all[i].Folded, "s") { // a report about somebody, not a remark about a thing at hand
		at++
	}
	object := p.readLiked(at, predicate == "prefers")
	tense := tenseIs
	if ph.past || ph.over || pastForms[p.all[i].Folded] && !ph.perfect {
		tense = tenseWas
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: KindThing, Tense: tense})
}

// agrees reports whether the verb at word i has the form that its subject demands: the base form only after "I", "you", a form of
// "do" or "used to", the form with s only after a name. After a form of "to be" no verb of liking states a preference.
func (p *parser) agrees(i int) bool {
	k, helped := i-1, false
	for ; k >= 0 && adverbsAndAuxiliaries[p.all[k].Folded]; k-- {
		if beForms[p.all[k].Folded] {
			return false
		}
		helped = helped || p.is(k, "do", "does", "did", "don't", "doesn't", "didn't", "used")
	}
	pronoun := p.is(k, "i", "i've", "you", "you've")
	switch verb := p.all[i].Folded; {
	case p.is(k, "i'm", "you're"):
		return false
	case pastForms[verb]:
		return true
	case strings.HasSuffix(verb, "s"):
		return !pronoun && !helped
	}
	return pronoun || helped
}

// readLiked returns the object of a preference that begins at word at, at most maxLiked words; "" when it cannot be looked up or
// belongs to the moment: "it", "how it looks", "the vase", "seeing you", "something new". A compared object ends at "to".
func (p *parser) readLiked(at int, compared bool) string {
	from := at
	infinitive := p.is(at, "to")
	if infinitive {
		at++
	}
	if p.in(at, vagueObjects) || infinitive && p.in(at, vagueInfinitives) || p.is(at, "all", "both") && p.is(at+1, "the", "these", "those", "this", "that") {
		return ""
	}
	if p.is(at, "the") {
		if at++; !p.isName(at) && !p.in(at, genericThings) {
			return ""
		}
		from = at
	}
	stops := likeStops
	if compared {
		stops = preferStops
	}
	phrase := p.readPhrase(at, stops)
	if phrase == "" {
		return ""
	}
	return p.s[p.all[from].From:p.all[at].From] + phrase
}

// readPhrase returns the words from at on as far as a word of stops or punctuation, with the titles in it, at most maxPhrase; ""
// when it is longer, ends in the middle, or names nothing that could be looked up.
func (p *parser) readPhrase(at int, stops map[string]bool) string {
	if at >= len(p.all) || p.all[at].Gap&^text.GapQuote != 0 {
		return ""
	}
	to := at
	for ; to < len(p.all) && (to == at || p.all[to].Gap == 0 || p.all[to].Gap == text.GapQuote && p.all[to].IsUpper) && !stops[p.all[to].Folded]; to++ {
		if to-at == maxPhrase || p.in(to, vagueHeads) || p.in(to, secondPerson) {
			return ""
		}
	}
	if to < len(p.all) && p.all[to].Gap == 0 && p.in(to, deictics) {
		return ""
	}
	for to > at && p.in(to-1, danglingWords) {
		to--
	}
	switch {
	case to == at, to == at+1 && p.in(at, bareWords):
		return ""
	case p.is(to-2, "a", "an") && to < len(p.all) && p.all[to].Gap == text.GapComma: // a safe, friendly place
		return ""
	}
	phrase := p.span(at, to-1)
	if strings.Count(phrase, `"`)%2 == 1 && strings.HasPrefix(p.s[p.all[to-1].To:], `"`) {
		phrase += `"`
	}
	return phrase
}

// parseAttraction reads "I'm passionate about dancing", "I've been into jazz since 2010" and "Ana is a big fan of pottery" with the
// words of attractions at word at, the first behind the verb.
func (p *parser) parseAttraction(who string, at int, tense string) bool {
	at = p.skip(at, "a", "an", "been", "big", "huge", "real", "really", "so", "very", "super", "always", "also", "still", "pretty")
	if !p.in(at, attractions) {
		return false
	}
	next := at + 1
	if !p.is(at, "into") {
		if !p.is(next, "about", "in", "on", "of", "with") {
			return false
		}
		next++
	}
	if p.is(next, "both") {
		return true
	}
	p.keepRelation(Relation{Subject: who, Predicate: "likes", Object: p.readLiked(next, false), Kind: KindThing, Tense: tense})
	return true
}

// event is what a verb with an object says: its predicate and tense, and the words between verb and object.
type event struct{ predicate, tense, particle string }

// eventAt returns what the verb at word i says, the zero value when it is none of events.
func (p *parser) eventAt(i int) event {
	e := events[p.all[i].Folded]
	if e.particle != "" && !p.is(i+1, e.particle) {
		return event{}
	}
	return e
}

// parseEvent reads "I joined a choir" and "Ana went to a council meeting last week" with the verb at word i. The object must begin
// with "a", "my" or a name, so that it is a thing and not a manner.
func (p *parser) parseEvent(i int, e event) {
	ph, ok := p.readSubject(i)
	if !ok || ph.denied || e.tense == tenseIs && (ph.past || !p.agreesInPerson(i)) {
		return
	}
	at := i + 1
	if e.particle != "" {
		at++
	}
	start := at
	at = p.skip(at, "a", "an", "my", "own")
	if p.is(at, "the") && p.isName(at+1) {
		at++
	}
	if at == start && !p.isName(at) || at > start && p.all[at-1].Gap != 0 || e.predicate == "took" && p.is(start, "my") {
		return
	}
	kind := KindThing
	if p.isName(at) && (e.predicate == "went to" || e.predicate == "visited") {
		kind = KindPlace
		if strings.HasSuffix(p.all[at].Folded, "'s") {
			return
		}
	}
	tense := e.tense
	if ph.over {
		tense = tenseWas
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: e.predicate, Object: p.readPhrase(at, eventStops), Kind: kind, Tense: tense})
}

// agreesInPerson reports whether the verb at word i, in the present tense, has the form of its subject.
func (p *parser) agreesInPerson(i int) bool {
	return p.is(i-1, "i") != strings.HasSuffix(p.all[i].Folded, "s")
}

// parsePlaying reads "I play the clarinet" and "I started playing acoustic guitar" with the verb at word i: an instrument or a
// sport must follow.
func (p *parser) parsePlaying(i int) {
	verb := i
	if p.is(i, "playing") {
		if !p.is(i-1, "started", "began", "been", "i'm") {
			return
		}
		if verb = i - 1; p.is(verb, "i'm") {
			return
		}
	}
	ph, ok := p.readSubject(verb)
	if !ok || ph.denied {
		return
	}
	at := p.skip(i+1, "the", "a", "some")
	end := at
	for end < at+2 && !p.in(end, playedThings) {
		end++
	}
	if !p.in(end, playedThings) || p.all[end].Gap != 0 {
		return
	}
	tense := tenseIs
	if ph.past || ph.over {
		tense = tenseWas
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: "plays", Object: p.span(at, end), Kind: KindThing, Tense: tense})
}

// parseOwn reads "my husband" with the possessive at word i: said in passing, the speaker has one. A name behind it is read
// elsewhere, and "our kids" may be those of the town. Suppositions give nothing.
func (p *parser) parseOwn(i int) {
	for j := range i {
		if p.in(j, hypotheticals) {
			return
		}
	}
	if !p.isTied(i+1) || p.isTied(i+2) && p.isName(i+2) {
		return
	}
	for ; p.household(i+1) != ""; i += 2 { // my husband and kids
		p.keepRelation(Relation{Subject: p.by.self(), Predicate: "has", Object: p.household(i + 1), Kind: KindPerson, Tense: tenseIs})
		if !p.is(i+2, "and") || !p.isTied(i+2) || !p.isTied(i+3) {
			return
		}
	}
}

// household returns the word of householdWords at word i without a possessive ending, "" when there is none.
func (p *parser) household(i int) string {
	if i >= len(p.all) {
		return ""
	}
	if w := strings.TrimSuffix(p.all[i].Folded, "'s"); householdWords[w] {
		return w
	}
	return ""
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
	object, next := p.readObject(i+2, 3, p.isOwn(ph.subject))
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
	case p.parseAttraction(who, after, tense), p.parseFavoured(b, after):
	case p.is(after, "a", "an") && p.occupation(after+1) > 0 && p.by.self() == who:
		p.keepRelation(Relation{Subject: who, Predicate: "is a", Object: p.span(after+1, after+p.occupation(after+1)), Kind: KindOther, Tense: tense})
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
	object, _ := p.readObject(at, 4, p.isOwn(ph.subject))
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense})
}

// keepRelation adds r and sets Single. It drops a relation with an empty end, one longer than maxThing bytes, or two equal ends.
func (p *parser) keepRelation(r Relation) {
	r.Subject, r.Object = p.cleanEnd(r.Subject), p.cleanEnd(r.Object)
	if r.Object == "" || r.Subject == "" || len(r.Object) > maxThing || len(r.Subject) > maxThing || text.Fold(r.Object) == text.Fold(r.Subject) {
		return
	}
	r.Single = isSingle(r.Predicate)
	p.out = append(p.out, r)
}

// cleanEnd returns an end of a relation without a possessive ending. Of a named speaker "my" becomes "their": the reader of a
// relation is not the speaker.
func (p *parser) cleanEnd(s string) string {
	s = strings.TrimSuffix(strings.TrimSuffix(s, "'s"), "’s")
	if p.by == byUser || !slices.ContainsFunc(strings.Fields(s), func(w string) bool { return ownWords[text.Fold(w)] != "" }) {
		return s
	}
	words := strings.Fields(s)
	for i, w := range words {
		words[i] = cmp.Or(ownWords[text.Fold(w)], w)
	}
	return strings.Join(words, " ")
}

// parseFavoured reads "Blue is my favourite colour" with the possessive at word at. The subject is a name or one word that opens
// the clause.
func (p *parser) parseFavoured(b being, at int) bool {
	owner := p.ownerAt(at)
	if owner == "" || !p.is(at+1, "favourite", "favorite", "fave") {
		return false
	}
	what := p.readPhrase(at+2, likeStops)
	predicate := "has favourite " + text.Fold(what)
	if what == "" {
		predicate = "likes"
	}
	p.keepRelation(Relation{Subject: owner, Predicate: predicate, Object: p.subjectEndingAt(b.verb - 1), Kind: KindThing, Tense: b.tense})
	return true
}

// occupation returns how many words from at on name an occupation or a role, 0 when they do not.
func (p *parser) occupation(at int) int {
	for i := at; i < at+3 && i < len(p.all) && p.all[i].Gap == 0; i++ {
		switch {
		case p.in(i, occupationWords) && (i+1 == len(p.all) || p.all[i+1].Gap != 0 || p.in(i+1, objectStops) || p.in(i+1, likeStops)):
			return i - at + 1
		case p.in(i, objectStops), p.in(i, unreal), p.is(i, "good", "great", "bad", "better", "of"):
			return 0
		}
	}
	return 0
}
