package digest

import (
	"maps"
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// Predicates that several rules know.
const (
	livesIn = "lives in"
	worksAt = "works at"
)

var (
	liveVerbs = text.WordSet(`live lives lived living reside resides resided`)
	workVerbs = text.WordSet(`work works worked working`)
	beForms   = text.WordSet(`is are am was were i'm you're`)
	pastForms = text.WordSet(`lived resided worked liked loved enjoyed preferred hated disliked was were grew`)
	kinWords  = text.WordSet(`sister brother mother father mom mum dad wife husband partner son daughter child aunt uncle cousin niece nephew grandmother grandfather
		grandma grandpa friend boss colleague neighbour neighbor girlfriend boyfriend fiance teacher doctor dentist dog cat`)
	roleWords = text.WordSet(
		`capital president ceo mayor head founder author director king queen chancellor chair owner leader inventor`)
)

// likeVerbs maps each verb of liking to its predicate.
var likeVerbs = map[string]string{
	"like": "likes", "likes": "likes", "liked": "likes", "love": "likes", "loves": "likes", "loved": "likes",
	"enjoy": "likes", "enjoys": "likes", "enjoyed": "likes",
	"prefer": "prefers", "prefers": "prefers", "preferred": "prefers",
	"hate": "dislikes", "hates": "dislikes", "hated": "dislikes", "dislike": "dislikes", "dislikes": "dislikes",
	"disliked": "dislikes",
}

// adverbsAndAuxiliaries may stand between a subject and its verb.
var adverbsAndAuxiliaries = text.WordSet(`now currently still also really always never just both recently formerly previously once used to has have had been is am are was were not
	don't doesn't didn't isn't aren't wasn't do does no longer actually absolutely usually mostly did already`)

// hypotheticals mark a clause that states no fact.
var hypotheticals = text.WordSet(`if whether would could might may should will want wants wanted wish wishes hope hopes suppose imagine perhaps maybe probably can shall
	pretend unless i'd you'd he'd she'd i'll you'll plan plans wouldn't couldn't shouldn't can't cannot won't gonna wanna hoping hoped wishing dreaming dreamed dreamt thinking
	considering planning planned imagining pretending supposedly almost nearly try trying tried`)

// questionVerbs begin a question.
var questionVerbs = text.WordSet(`do does did is are was were has have had am`)

// clauseOpeners may stand directly before the subject of a main clause.
var clauseOpeners = text.WordSet(`and but because cause so that since as also well yeah yes yep yup know though although plus honestly personally actually however then oh wow
	hey hi hello thanks remember note sure remember ok okay now today nowadays usually normally`)

// sentenceOpeners begin a sentence without a subject.
var sentenceOpeners = text.WordSet(`even just once never always still already soon almost maybe perhaps sometimes often somehow somewhere sure great good nice cool awesome wow oh yeah
	been got had went made took found saw met started finished joined gotta gonna wanna hope guess glad sorry crazy unconditional looks sounds feels seems last next this everyone
	everybody someone somebody nobody anyone people kids family life love work music dance art nature time today`)

// reportVerbs introduce what somebody else says.
var reportVerbs = text.WordSet(
	`said says say saying told tells tell thinks think thought claims claimed believes believe heard hears asked asks guess pretend`)

// maxPhrase is the number of words of an object in lower case.
const maxPhrase = 8

var (
	// vagueInfinitives follow "like to" without naming an activity.
	vagueInfinitives = text.WordSet(`think hear see know say be have get just believe help`)
	// genericThings may follow "the" and still mean any of their kind.
	genericThings = text.WordSet(`sea beach ocean mountains outdoors forest woods countryside city rain snow sun sunshine cold heat winter summer spring autumn fall desert water
		colour color piano guitar violin theater theatre opera cinema gym arts`)
	// vagueHeads name nothing.
	vagueHeads = text.WordSet(
		`thing things stuff something anything everything nothing someone anyone everyone everybody somebody few way ways idea ideas feeling fact kind part parts vibe vibes`)
	secondPerson = text.WordSet(`you your yours you're you've you'll yourself u ur`)
	// deictics directly behind an object show that it is not complete: something outside of the sentence, or a verb
	// whose subject the object is.
	deictics = text.WordSet(
		`you it this that these those them him her is are was were has have can will would could helps makes gives`)
	// danglingWords cannot end an object.
	danglingWords = text.WordSet(
		`together alone a an the of in on at to for from by with about as too so much lot even also really just like into`)
	// bareWords name nothing alone.
	bareWords = text.WordSet(
		`seeing hearing knowing having being getting making doing going taking giving few couple bit while new good great other`)

	// attractions are words for liking behind a form of "to be".
	attractions = text.WordSet(`passionate into keen fond fan obsessed crazy`)
	// householdWords are people and animals of whom "my" says that the speaker has them.
	householdWords = text.WordSet(
		`husband wife kids children son sons daughter daughters fiance fiancee girlfriend boyfriend dog dogs cat cats puppy kitten grandkids grandchildren twins`)
	// unreal words stand before something that does not exist yet or any more.
	unreal = text.WordSet(
		`dream future next potential possible imaginary ideal old former ex first last new wannabe aspiring`)
	playedThings = text.WordSet(`piano guitar violin clarinet flute drums cello trumpet saxophone bass ukulele harp banjo keyboard tennis football soccer basketball baseball volleyball
		chess golf hockey rugby cricket badminton squash poker`)
	occupationWords = text.WordSet(`nurse doctor teacher engineer programmer developer lawyer dancer painter artist musician writer author counselor counsellor therapist psychologist
		veteran student vegetarian vegan banker chef cook baker designer photographer journalist scientist researcher architect electrician plumber carpenter mechanic pilot driver
		firefighter policeman soldier farmer gardener accountant manager consultant salesman cashier waiter waitress bartender barista hairdresser dentist veterinarian vet pharmacist
		librarian professor lecturer translator interpreter coach trainer actor actress singer mom mum mother dad father parent grandmother grandfather widow widower twin`)
)

// events are verbs with an object that a text states as a fact.
var events = map[string]event{
	"joined": {"joined", tenseWas, ""}, "visited": {"visited", tenseWas, ""}, "attended": {"attended", tenseWas, ""},
	"adopted": {"adopted", tenseWas, ""},
	"bought":  {"bought", tenseWas, ""}, "opened": {"opened", tenseWas, ""}, "launched": {"launched", tenseWas, ""},
	"started": {"started", tenseWas, ""},
	"painted": {"painted", tenseWas, ""}, "went": {"went to", tenseWas, "to"},
	"volunteer": {"volunteers at", tenseIs, "at"}, "volunteers": {"volunteers at", tenseIs, "at"},
	"volunteered": {"volunteers at", tenseWas, "at"}, "ran": {"ran", tenseWas, ""}, "took": {"took", tenseWas, ""},
	"made": {"made", tenseWas, ""}, "wrote": {"wrote", tenseWas, ""}, "lost": {"lost", tenseWas, ""},
	"own": {"has", tenseIs, ""}, "owns": {"has", tenseIs, ""}, "run": {"runs", tenseIs, ""},
	"runs": {"runs", tenseIs, ""},
}

// eventStops end the object of an event.
var eventStops = text.WordSet(`and or but because since when if than so while although though until till before after i you he she they we it this that these those them him her
	now as cause which who where to with from at in on by last next yesterday today tonight tomorrow ago two three four five six several recently lately again is was has it's i'm
	where just instead for not together alone`)

// preferStops end the first of two compared objects.
var preferStops = func() map[string]bool {
	out := map[string]bool{"to": true}
	maps.Copy(out, likeStops)
	return out
}()

// ownWords maps the words of a speaker for themselves to words for a reader.
var ownWords = map[string]string{
	"my": "their", "mine": "theirs", "our": "their", "me": "them", "us": "them",
	"myself": "themselves",
}

// objectStops end an object in lower case.
var objectStops = text.WordSet(`and or but since until till from with because for in on at as now when while before after to who which that where so if my i very much
	too anymore here there not it this these those you them him her me us he she they we by near than`)

// likeStops end the object of a preference.
var likeStops = text.WordSet(`and or but because since when if than over more most so very much while although though instead until till before after i you
	he she they we it this that these those them him her now anymore as cause like which who where whenever even especially every too i'm i've it's they're we're you're is are was
	were has have can will would could helps makes gives right lately recently yesterday today since`)

// vagueObjects cannot be looked up.
var vagueObjects = text.WordSet(`it it's its that that's this these those you them him her how when what if your where being's is are was were everything anything something
	one ones some such each another every seeing hearing knowing having`)

var months = text.WordSet(
	`january february march april may june july august september october november december jan feb mar apr jun jul aug sep sept oct nov dec`)

// readDate returns the date at word i as it is written, and the position after it; "" and i when there is none. A date
// has a year (1000 to 2199) or is a number such as 2020-05-03; without a year only a capitalized month alone counts.
func (p *parser) readDate(i int) (string, int) {
	from, year := i, false
	for ; i < len(p.all) && i-from < 4; i++ {
		w := p.all[i]
		if i > from && w.Gap&^text.GapComma != 0 {
			break
		}
		switch {
		case isYear(w.Folded) || w.IsNumber && strings.Count(w.Folded, "-")+strings.Count(w.Folded, "/") == 2 &&
			len(w.Folded) >= 8:
			year = true
		case months[w.Folded], w.IsNumber && len(w.Folded) <= 2 && (i+1 < len(p.all) && p.in(i+1, months) || i > from &&
			p.in(i-1, months)):
			continue
		}
		if year {
			i++
		}
		break
	}
	if i == from || !year && !(i-from == 1 && p.in(from, months) && p.all[from].IsUpper) {
		return "", from
	}
	return p.span(from, i-1), i
}

// isYear reports whether s is a year from 1000 to 2199.
func isYear(s string) bool {
	return len(s) == 4 && (s[0] == '1' || s[:2] == "20" || s[:2] == "21") && strings.Trim(s, "0123456789") == ""
}

// readDates returns the dates of a clause from word i on: from after since, until after until, both after from or
// between, and in after in or on; "" where there is none. The clause ends at "and", "but", a colon or the end of the
// sentence.
func (p *parser) readDates(i int) (from, until, in string) {
	for ; i < len(p.all) && p.all[i].Gap&(text.GapEnd|text.GapColon) == 0 && !p.is(i, "and", "but"); i++ {
		d, next := p.readDate(i + 1)
		if d == "" {
			continue
		}
		switch {
		case p.is(i, "since"):
			from = d
		case p.is(i, "until", "till"):
			until = d
		case p.is(i, "from", "between"):
			from = d
			if p.is(next, "to", "until", "till", "and") {
				if d, _ = p.readDate(next + 1); d != "" {
					until = d
				}
			}
		case p.is(i, "in", "on"):
			in = d
		}
	}
	return from, until, in
}

// singlePredicates have one object at a time.
var singlePredicates = map[string]bool{
	livesIn: true, worksAt: true, "is married to": true, "is called": true, "is from": true, "was born in": true,
	"was born on": true,
	"is wife of":  true, "is husband of": true, "is capital of": true,
}

func isSingle(predicate string) bool {
	return singlePredicates[predicate] || strings.HasPrefix(predicate, "has favourite ")
}

// predicateSynonyms maps other words for a predicate to the stored one.
var predicateSynonyms = func() map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(`lives in|live in|lived in|living in|resides in|resided in|reside in|residence|has residence in|home is|home in|location
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
}()

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
	for len(list) > 1 && adverbsAndAuxiliaries[list[0]] {
		list = list[1:]
	}
	short := strings.Join(list, " ")
	if known, ok := predicateSynonyms[whole]; ok {
		return known
	}
	if known, ok := predicateSynonyms[short]; ok {
		return known
	}
	if rest, ok := strings.CutPrefix(whole, "has favorite "); ok {
		return "has favourite " + rest
	}
	if kinWords[strings.TrimSuffix(short, " of")] || roleWords[strings.TrimSuffix(short, " of")] {
		return "is " + strings.TrimSuffix(short, " of") + " of"
	}
	return whole
}

// userNames are the words for the user, also as earlier versions stored it: the person.
var userNames = text.WordSet(`user person i me myself you yourself`)

// isUser reports whether a folded name means the user.
func isUser(folded string) bool { return userNames[strings.TrimPrefix(folded, "the ")] }

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

// subjectKind returns the kind of the subject of a predicate.
func subjectKind(predicate string) string {
	switch predicate {
	case "is capital of":
		return KindPlace
	}
	return KindPerson
}
