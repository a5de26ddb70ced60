package digest

import (
	"strings"

	"conclave/pkg/text"
)

// parsePlace reads "Ana lives in Oslo" and "I used to work for Acme until 2019" with the verb at word verb and the
// object from word at on. predicate is livesIn or worksAt. A denial gives no relation, "no longer" one in the past.
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

// addWithDates reads the object at word at and the dates behind it, and keeps the relation. It is past when the clause
// or the verb is, or an end date is given; "has lived in Oslo since 2019" is present.
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
	p.keepRelation(Relation{
		Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense,
		From: from, Until: until,
	})
}

// parseMove reads "Ana moved from Oslo to Bergen in 2020" with the verb at word i: she lived in Oslo until 2020 and
// lives in Bergen since. Either place may be missing. A denial gives nothing.
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
		p.keepRelation(Relation{
			Subject: ph.subject, Predicate: livesIn, Object: left, Kind: KindPlace, Tense: tenseWas,
			Until: when,
		})
	}
	if goal != "" {
		p.keepRelation(Relation{
			Subject: ph.subject, Predicate: livesIn, Object: goal, Kind: KindPlace, Tense: tenseIs,
			From: when,
		})
	}
}

// parsePreference reads "I don't like fish" and "Ana used to like tea" with the verb at word i. A denied "likes"
// becomes "dislikes" and the reverse; other denied predicates, forms that do not agree with the subject ("sounds like",
// "unconditional love") and objects that readLiked rejects give nothing.
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
	// a report about somebody, not a remark about a thing at hand
	if p.is(at, "the") && strings.HasSuffix(p.all[i].Folded, "s") {
		at++
	}
	object := p.readLiked(at, predicate == "prefers")
	tense := tenseIs
	if ph.past || ph.over || pastForms[p.all[i].Folded] && !ph.perfect {
		tense = tenseWas
	}
	p.keepRelation(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: KindThing, Tense: tense})
}

// agrees reports whether the verb at word i has the form that its subject demands: the base form only after "I", "you",
// a form of "do" or "used to", the form with s only after a name. After a form of "to be" no verb of liking states a
// preference.
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

// readLiked returns the object of a preference that begins at word at, at most maxLiked words; "" when it cannot be
// looked up or belongs to the moment: "it", "how it looks", "the vase", "seeing you", "something new". A compared
// object ends at "to".
func (p *parser) readLiked(at int, compared bool) string {
	from := at
	infinitive := p.is(at, "to")
	if infinitive {
		at++
	}
	if p.in(at, vagueObjects) || infinitive && p.in(at, vagueInfinitives) || p.is(at, "all", "both") &&
		p.is(at+1, "the", "these", "those", "this", "that") {
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

// readPhrase returns the words from at on as far as a word of stops or punctuation, with the titles in it, at most
// maxPhrase; "" when it is longer, ends in the middle, or names nothing that could be looked up.
func (p *parser) readPhrase(at int, stops map[string]bool) string {
	if at >= len(p.all) || p.all[at].Gap&^text.GapQuote != 0 {
		return ""
	}
	to := at
	for ; to < len(p.all) && (to == at || p.all[to].Gap == 0 || p.all[to].Gap == text.GapQuote && p.all[to].IsUpper) &&
		!stops[p.all[to].Folded]; to++ {
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

// parseAttraction reads "I'm passionate about dancing", "I've been into jazz since 2010" and "Ana is a big fan of
// pottery" with the words of attractions at word at, the first behind the verb.
func (p *parser) parseAttraction(who string, at int, tense string) bool {
	at = p.skip(at, "a", "an", "been", "big", "huge", "real", "really", "so", "very", "super", "always", "also",
		"still", "pretty")
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
	p.keepRelation(Relation{
		Subject: who, Predicate: "likes", Object: p.readLiked(next, false), Kind: KindThing,
		Tense: tense,
	})
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

// parseEvent reads "I joined a choir" and "Ana went to a council meeting last week" with the verb at word i. The object
// must begin with "a", "my" or a name, so that it is a thing and not a manner.
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
	if at == start && !p.isName(at) || at > start && p.all[at-1].Gap != 0 || e.predicate == "took" &&
		p.is(start, "my") {
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
	p.keepRelation(Relation{
		Subject: ph.subject, Predicate: e.predicate, Object: p.readPhrase(at, eventStops),
		Kind: kind, Tense: tense,
	})
}

// agreesInPerson reports whether the verb at word i, in the present tense, has the form of its subject.
func (p *parser) agreesInPerson(i int) bool {
	return p.is(i-1, "i") != strings.HasSuffix(p.all[i].Folded, "s")
}

// parsePlaying reads "I play the clarinet" and "I started playing acoustic guitar" with the verb at word i: an
// instrument or a sport must follow.
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
	p.keepRelation(Relation{
		Subject: ph.subject, Predicate: "plays", Object: p.span(at, end), Kind: KindThing,
		Tense: tense,
	})
}

// parseOwn reads "my husband" with the possessive at word i: said in passing, the speaker has one. A name behind it is
// read elsewhere, and "our kids" may be those of the town. Suppositions give nothing.
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
		p.keepRelation(Relation{
			Subject: p.by.self(), Predicate: "has", Object: p.household(i + 1), Kind: KindPerson,
			Tense: tenseIs,
		})
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

// parseBirth reads "Ana was born in Oslo" and "I was born on 3 May 1990" with "born" at word i. A date behind it gives
// "was born on", anything else "was born in". A denial gives nothing.
func (p *parser) parseBirth(i int) {
	ph, ok := p.readSubject(i)
	if !ok || ph.denied {
		return
	}
	if d, next := p.readDate(i + 2); d != "" && next > 0 {
		p.keepRelation(Relation{
			Subject: ph.subject, Predicate: "was born on", Object: d, Kind: KindOther,
			Tense: tenseWas,
		})
		return
	}
	object, next := p.readObject(i+2, 3, p.isOwn(ph.subject))
	_, _, in := p.readDates(next)
	p.keepRelation(Relation{
		Subject: ph.subject, Predicate: "was born in", Object: object, Kind: KindPlace,
		Tense: tenseWas, From: in,
	})
}
