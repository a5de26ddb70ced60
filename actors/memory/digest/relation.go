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

// plainRelations are those that a few patterns find: who lives, works and was born where, who is whose sister, what
// somebody is called and likes. What is asked, denied, wished or only supposed is no fact.
func plainRelations(m material) []Relation {
	var out []Relation
	for _, p := range m {
		body := prose(text.Cut(p.text, maxPlain))
		for _, s := range text.Sentences(body, 400) {
			line := strings.Join(strings.Fields(body[s.From:s.To]), " ")
			f := parser{sentence: sentence{text.Words(line), line}, by: p.by}
			for _, r := range f.relations() {
				if len(out) < maxRelations && !slices.ContainsFunc(out, r.same) {
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// same tells whether two relations say the same.
func (r Relation) same(o Relation) bool {
	return r.Tense == o.Tense && r.Predicate == o.Predicate && text.Fold(r.Subject) == text.Fold(o.Subject) && text.Fold(r.Object) == text.Fold(o.Object)
}

// parser reads one sentence.
type parser struct {
	sentence
	by  speaker
	out []Relation
}

// phrase is what stands before a verb.
type phrase struct {
	subject       string
	past, perfect bool
	denied        bool
	over          bool // no longer
}

func (p *parser) relations() []Relation {
	for i := range p.all {
		w := p.all[i].Folded
		switch {
		case lives[w] && p.is(i+1, "in"):
			p.place(i, i+2, livesIn)
		case works[w] && p.is(i+1, "at", "for", "with"):
			p.place(i, i+2, worksAt)
		case works[w] && p.is(i+1, "as"):
			p.plain(i, i+2, "works as", KindOther)
		case w == "moved":
			p.moved(i)
		case likes[w] != "":
			p.liked(i, likes[w])
		case w == "married" && p.is(i+1, "to"):
			p.plain(i, i+2, "is married to", KindPerson)
		case w == "born" && p.is(i+1, "in", "on"):
			p.born(i)
		case be[w]:
			p.being(i)
		case kin[w] && p.name(i+1) && p.tied(i+1) && p.owner(i-1) != "": // my sister Ana: said in passing, and so also in a question
			p.put(Relation{Subject: p.text(i+1, p.nameEnd(i+1)), Predicate: "is " + w + " of", Object: p.owner(i - 1), Kind: KindPerson, Tense: tenseIs})
		case w == "call" && p.is(i+1, "me") && p.by == person:
			p.add(phrase{subject: Person}, i+2, "is called", KindPerson, tenseIs)
		}
	}
	return p.out
}

// before reads what stands before the verb at i. It is not ok when there is no subject that is known, or when the clause
// states no fact.
func (p *parser) before(i int) (phrase, bool) {
	var ph phrase
	k := i - 1
	if p.all[i].Gap != 0 {
		return ph, false
	}
	for ; k >= 0 && around[p.all[k].Folded]; k-- {
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
	ph.subject = p.subject(k)
	return ph, ph.subject != "" && p.states(k, i)
}

// subject is who is named by the words that end with word k, "" when that is not known.
func (p *parser) subject(k int) string {
	w := p.all[k]
	switch {
	case w.Folded == "i" || w.Folded == "i'm" || w.Folded == "i've":
		if p.by == person {
			return Person
		}
		return ""
	case w.Folded == "you" || w.Folded == "you're" || w.Folded == "you've":
		if p.by == assistant {
			return Person
		}
		return ""
	case (w.Folded == "person" || w.Folded == "user") && p.is(k-1, "the"):
		if p.by != stranger {
			return Person
		}
		return ""
	case kin[w.Folded]:
		if owner := p.owner(k - 1); owner != "" {
			return owner + "'s " + w.Folded
		}
		return ""
	case !p.name(k):
		return ""
	}
	from := p.nameStart(k)
	if from > 0 && p.all[from].Gap == 0 && p.in(from-1, links) { // "the city of Oslo lives": whose part this is, is not known
		return ""
	}
	return p.text(from, k)
}

// owner is whose something is, by word k: my, your, Ana's.
func (p *parser) owner(k int) string {
	switch {
	case k < 0:
		return ""
	case p.is(k, "my") && p.by == person, p.is(k, "your") && p.by == assistant:
		return Person
	case p.is(k, "person's", "user's") && p.is(k-1, "the") && p.by != stranger:
		return Person
	case p.name(k) && strings.HasSuffix(p.all[k].Folded, "'s"):
		name := p.text(p.nameStart(k), k)
		return strings.TrimSuffix(strings.TrimSuffix(name, "'s"), "’s")
	}
	return ""
}

// nameStart is the first word of the name that ends with word k.
func (p *parser) nameStart(k int) int {
	for k > 0 && p.all[k].Gap == 0 && p.name(k-1) && !leads[p.all[k-1].Folded] {
		k--
	}
	return k
}

// text is the words from a to b as they are written.
func (p *parser) text(a, b int) string { return p.s[p.all[a].From:p.all[b].To] }

// states tells whether the clause with the subject at k and the verb at i states a fact: it is not asked, wished or
// supposed.
func (p *parser) states(k, i int) bool {
	from := k
	for from > 0 && p.all[from].Gap&(text.GapEnd|text.GapComma|text.GapColon) == 0 && !p.is(from, "and", "but", "that", "because", "so") {
		from--
	}
	for j := from; j <= i; j++ {
		if p.in(j, supposed) || p.in(j, questions) && !around[p.all[j].Folded] || p.in(j, hows) || j == from && p.in(j, helpers) {
			return false
		}
	}
	// "if" also reaches over the comma before: If she moves, Ana lives in Oslo.
	if p.in(0, supposed) {
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

// object is what is named from word i on, with the word after it. Of the person also small letters are taken: people
// write to an assistant as they like.
func (p *parser) object(i, most int, loose bool) (string, int) {
	for p.is(i, "the", "a", "an") && i+1 < len(p.all) && p.all[i+1].Gap == 0 {
		i++
	}
	if i >= len(p.all) || p.all[i].Gap&^text.GapQuote != 0 {
		return "", i
	}
	if p.name(i) {
		end := p.nameEnd(i)
		return strings.TrimSuffix(strings.TrimSuffix(p.text(i, end), "'s"), "’s"), end + 1
	}
	if !loose {
		return "", i
	}
	to := i
	for to < len(p.all) && to-i < most && (to == i || p.all[to].Gap == 0) && !stops[p.all[to].Folded] {
		to++
	}
	if to == i {
		return "", i
	}
	return p.text(i, to-1), to
}

// place: Ana lives in Oslo; I used to work for Acme until 2019.
func (p *parser) place(verb, at int, predicate string) {
	ph, ok := p.before(verb)
	if !ok || ph.denied && !ph.over {
		return
	}
	kind := KindPlace
	if predicate == worksAt {
		kind = KindOther
	}
	p.finish(ph, verb, at, predicate, kind)
}

// plain: Ana is married to Tom; I work as a nurse.
func (p *parser) plain(verb, at int, predicate, kind string) {
	if ph, ok := p.before(verb); ok && !ph.denied {
		p.finish(ph, verb, at, predicate, kind)
	}
}

// finish reads the object and the dates and adds the relation.
func (p *parser) finish(ph phrase, verb, at int, predicate, kind string) {
	object, next := p.object(at, 4, strings.HasPrefix(ph.subject, Person) || predicate == "works as")
	from, until, in := p.dates(next)
	was := ph.past || ph.over || until != "" || pasts[p.all[verb].Folded] && predicate != "is married to"
	if ph.perfect && until == "" && !ph.over && p.in(verb, pasts) { // has lived in Oslo since 2019
		was = from == ""
	}
	tense := tenseIs
	if was {
		tense = tenseWas
	}
	if from == "" {
		from = in
	}
	p.put(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense, From: from, Until: until})
}

// moved: Ana moved from Oslo to Bergen in 2020.
func (p *parser) moved(i int) {
	ph, ok := p.before(i)
	if !ok || ph.denied {
		return
	}
	loose := strings.HasPrefix(ph.subject, Person)
	next := i + 1
	left := ""
	if p.is(next, "from") {
		left, next = p.object(next+1, 3, loose)
	}
	goal := ""
	if p.is(next, "to") {
		goal, next = p.object(next+1, 3, loose)
	}
	from, until, in := p.dates(next)
	when := in
	if when == "" {
		when = from + until
	}
	if left != "" {
		p.put(Relation{Subject: ph.subject, Predicate: livesIn, Object: left, Kind: KindPlace, Tense: tenseWas, Until: when})
	}
	if goal != "" {
		p.put(Relation{Subject: ph.subject, Predicate: livesIn, Object: goal, Kind: KindPlace, Tense: tenseIs, From: when})
	}
}

// liked: I don't like fish; Ana used to like tea.
func (p *parser) liked(i int, predicate string) {
	ph, ok := p.before(i)
	if !ok || p.in(i+1, vague) {
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
	object := p.text(at, to-1)
	if p.is(i+1, "to") {
		object = "to " + object
	}
	tense := tenseIs
	if ph.past || ph.over || pasts[p.all[i].Folded] {
		tense = tenseWas
	}
	p.put(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: KindThing, Tense: tense})
}

// born: Ana was born in Oslo; I was born on 3 May 1990.
func (p *parser) born(i int) {
	ph, ok := p.before(i)
	if !ok || ph.denied {
		return
	}
	if d, next := p.date(i + 2); d != "" && next > 0 {
		p.put(Relation{Subject: ph.subject, Predicate: "was born on", Object: d, Kind: KindOther, Tense: tenseWas})
		return
	}
	object, next := p.object(i+2, 3, ph.subject == Person)
	_, _, in := p.dates(next)
	p.put(Relation{Subject: ph.subject, Predicate: "was born in", Object: object, Kind: KindPlace, Tense: tenseWas, From: in})
}

// being: what follows a form of "to be".
func (p *parser) being(i int) {
	tense := tenseIs
	if pasts[p.all[i].Folded] {
		tense = tenseWas
	}
	if p.is(i+1, "not", "never") {
		return
	}
	after := i + 1
	for p.is(after, "called", "named", "now", "still", "also") {
		after++
	}
	// my name is Kim; my sister is (called) Ana; my favourite colour is blue
	if i > 0 && p.all[i].Gap == 0 {
		switch {
		case p.is(i-1, "name") && p.states(i-1, i):
			switch {
			case kin[strings.TrimSuffix(p.all[max(0, i-2)].Folded, "'s")] && strings.HasSuffix(p.all[max(0, i-2)].Folded, "'s"): // my sister's name is Ana
				if owner := p.owner(i - 3); owner != "" {
					p.kinship(after, strings.TrimSuffix(p.all[i-2].Folded, "'s"), owner, tense)
				}
			case p.owner(i-2) != "":
				p.add(phrase{subject: p.owner(i - 2)}, after, "is called", KindPerson, tense)
			}
			return
		case kin[p.all[i-1].Folded] && p.name(after) && p.states(i-1, i):
			if owner := p.owner(i - 2); owner != "" {
				p.kinship(after, p.all[i-1].Folded, owner, tense)
			}
			return
		}
		// the capital of Norway is Oslo
		first := p.nameStart(i - 1)
		if p.name(first) && p.is(first-1, "of") && p.in(first-2, roles) && p.name(after) && p.states(first-2, i) {
			p.put(Relation{Subject: p.text(after, p.nameEnd(after)), Predicate: "is " + p.all[first-2].Folded + " of", Object: p.text(first, i-1), Kind: KindOther, Tense: tense})
			return
		}
		for k := i - 2; k >= 1 && k >= i-3; k-- {
			if p.is(k, "favourite", "favorite") && p.owner(k-1) != "" && p.states(k, i) {
				p.add(phrase{subject: p.owner(k - 1)}, after, "has favourite "+text.Fold(p.text(k+1, i-1)), KindThing, tense)
				return
			}
		}
	}
	var who string
	if w := p.all[i].Folded; w == "i'm" || w == "you're" { // subject and verb are one word
		if who = p.subject(i); !p.states(i, i) {
			return
		}
	} else if ph, ok := p.before(i); ok && !ph.denied {
		who = ph.subject
		if ph.past || ph.over {
			tense = tenseWas
		}
	}
	if who == "" {
		return
	}
	switch {
	case p.is(i+1, "called", "named"):
		p.add(phrase{subject: who}, after, "is called", KindPerson, tense)
	case p.is(after, "from"):
		p.add(phrase{subject: who}, after+1, "is from", KindPlace, tense)
	case p.owner(after) != "" && p.in(after+1, kin):
		p.put(Relation{Subject: who, Predicate: "is " + p.all[after+1].Folded + " of", Object: p.owner(after), Kind: KindPerson, Tense: tense})
	case p.name(after): // Ana Silva's sister
		if end := p.nameEnd(after); p.owner(end) != "" && p.in(end+1, kin) {
			p.put(Relation{Subject: who, Predicate: "is " + p.all[end+1].Folded + " of", Object: p.owner(end), Kind: KindPerson, Tense: tense})
		}
	default:
		if p.is(after, "the") {
			after++
		}
		if p.in(after, roles) && p.is(after+1, "of") {
			p.add(phrase{subject: who}, after+2, "is "+p.all[after].Folded+" of", KindOther, tense)
		}
	}
}

// kinship: Ana is my sister, said the other way round.
func (p *parser) kinship(at int, what, owner, tense string) {
	if name, _ := p.object(at, 2, false); name != "" {
		p.put(Relation{Subject: name, Predicate: "is " + what + " of", Object: owner, Kind: KindPerson, Tense: tense})
	}
}

// add puts a relation whose object begins at word at.
func (p *parser) add(ph phrase, at int, predicate, kind, tense string) {
	object, _ := p.object(at, 4, ph.subject == Person)
	p.put(Relation{Subject: ph.subject, Predicate: predicate, Object: object, Kind: kind, Tense: tense})
}

func (p *parser) put(r Relation) {
	if r.Object == "" || r.Subject == "" || len(r.Object) > maxThing || len(r.Subject) > maxThing || text.Fold(r.Object) == text.Fold(r.Subject) {
		return
	}
	r.Single = single(r.Predicate)
	p.out = append(p.out, r)
}
