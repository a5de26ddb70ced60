package digest

import (
	"strings"

	"conclave/pkg/text"
)

// beingRules read what a form of "to be" at word i says. The first that returns true has decided, with or without a
// relation.
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

// parseBeing reads the clause of the form of "to be" at word i by the first of beingRules that decides. A denial ("is
// not") gives no relation.
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

// parseNameOf reads "my name is Kim" and "my sister's name is Ana". It reports whether the word before the verb is
// "name" in a statement, also when the owner is unknown and no relation was kept.
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

// parseKinNamed reads "my sister is (called) Ana". It reports whether a relative before the verb is named behind it in
// a statement, also when the owner is unknown and no relation was kept.
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

// parseRoleNamed reads "the capital of Norway is Oslo": a role word, "of" and a name before the verb, a name behind it.
// It reports whether the clause has this form; the relation is then kept with the second name as its subject.
func (p *parser) parseRoleNamed(b being) bool {
	if !p.isTiedBack(b) {
		return false
	}
	first := p.nameStart(b.verb - 1)
	if !p.isName(first) || !p.is(first-1, "of") || !p.in(first-2, roleWords) || !p.isName(b.after) ||
		!p.statesFact(first-2, b.verb) {
		return false
	}
	p.keepRelation(Relation{
		Subject: p.span(b.after, p.nameEnd(b.after)), Predicate: "is " + p.all[first-2].Folded +
			" of", Object: p.span(first, b.verb-1), Kind: KindOther, Tense: b.tense,
	})
	return true
}

// parseFavourite reads "my favourite colour is blue", with one or two words between "favourite" and the verb. It
// reports whether the clause has this form and a known owner.
func (p *parser) parseFavourite(b being) bool {
	i := b.verb
	for k := i - 2; p.isTiedBack(b) && k >= 1 && k >= i-3; k-- {
		if p.is(k, "favourite", "favorite") && p.ownerAt(k-1) != "" && p.statesFact(k, i) {
			p.addRelation(clause{subject: p.ownerAt(k - 1)}, b.after, "has favourite "+text.Fold(p.span(k+1, i-1)),
				KindThing, b.tense)
			return true
		}
	}
	return false
}

// parseSubjectIs reads "Ana is called Annie", "I'm from Lisbon", "Ana is my sister", "Ana is Tom Silva's sister" and
// "Oslo is the capital of Norway". It reports whether the clause states something of a known subject, even when no
// relation was found, so that no later rule is tried.
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
		p.keepRelation(Relation{
			Subject: who, Predicate: "is a", Object: p.span(after+1, after+p.occupation(after+1)),
			Kind: KindOther, Tense: tense,
		})
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

// subjectOfBeing returns the subject of the clause and its tense. who is "" when the subject is unknown, or the clause
// is denied or states no fact.
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
	p.keepRelation(Relation{
		Subject: who, Predicate: "is " + p.all[owner+1].Folded + " of", Object: p.ownerAt(owner),
		Kind: KindPerson, Tense: tense,
	})
}

// addKinship keeps that the name at word at is a relative of owner.
func (p *parser) addKinship(at int, what, owner, tense string) {
	if name, _ := p.readObject(at, 2, false); name != "" {
		p.keepRelation(Relation{
			Subject: name, Predicate: "is " + what + " of", Object: owner, Kind: KindPerson,
			Tense: tense,
		})
	}
}

// parseFavoured reads "Blue is my favourite colour" with the possessive at word at. The subject is a name or one word
// that opens the clause.
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
	p.keepRelation(Relation{
		Subject: owner, Predicate: predicate, Object: p.subjectEndingAt(b.verb - 1),
		Kind: KindThing, Tense: b.tense,
	})
	return true
}

// occupation returns how many words from at on name an occupation or a role, 0 when they do not.
func (p *parser) occupation(at int) int {
	for i := at; i < at+3 && i < len(p.all) && p.all[i].Gap == 0; i++ {
		switch {
		case p.in(i, occupationWords) && (i+1 == len(p.all) || p.all[i+1].Gap != 0 || p.in(i+1, objectStops) ||
			p.in(i+1, likeStops)):
			return i - at + 1
		case p.in(i, objectStops), p.in(i, unreal), p.is(i, "good", "great", "bad", "better", "of"):
			return 0
		}
	}
	return 0
}
