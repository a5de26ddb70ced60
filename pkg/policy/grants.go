package policy

import (
	"slices"
	"strings"
	"unicode"

	"conclave/pkg/date"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A grant is derived from the words of one question alone, before any tool result is read, and never from a result, an
// attachment or a model. After untrusted content, an act runs without approval only when a grant of its question covers
// it.
//
// The rules find requests: a verb of an act in the position of an order ("send", "could you please send", "and then
// send"). They are about grammar, not about tools. Where they find no verb, as in most languages, there is no grant and
// the user is asked.

// Grant permits one kind of act as often as the question asks for it.
type Grant struct {
	Acts   []Act    `json:"acts"`             // any of them; a verb like "add" names several
	To     []string `json:"to,omitempty"`     // names and addresses in its clause, in lower case
	Times  int      `json:"times"`            // how often it may be used
	Clause string   `json:"clause"`           // the words of the question that it is derived from
	Quoted []string `json:"quoted,omitempty"` // text that the question dictates, in lower case
	Named  []string `json:"named,omitempty"`  // names and numbers of the clause, in lower case, see [listNamed]
	Places []Place  `json:"places,omitempty"` // objects whose people are destinations, see [listPlaces]
	Refers bool     `json:"refers,omitempty"` // the clause points back to something named before: them, it, her
	Used   []string `json:"used,omitempty"`   // the calls that used it, see [Flow.ClaimGrant]
}

const (
	maxGrants    = 16
	manyTimes    = 25  // of a clause with "all" or "each"
	maxClause    = 400 // bytes that are stored and shown
	maxClauseTo  = 40
	maxQuoteText = 400
)

// Describe returns the grant as the user is shown it.
func (g Grant) Describe() subjects.Grant {
	out := subjects.Grant{To: slices.Clone(g.To), Times: g.Times, Used: len(g.Used), Clause: g.Clause}
	for _, a := range g.Acts {
		out.Acts = append(out.Acts, string(a))
	}
	for _, p := range g.Places {
		out.Places = append(out.Places, p.Name)
	}
	return out
}

// has reports whether the grant permits act and is not used up.
func (g Grant) has(a Act) bool { return slices.Contains(g.Acts, a) && len(g.Used) < g.Times }

// requestVerbs maps the verbs of requests to the acts they can mean: English in the base form, and the imperatives of
// German, French, Spanish and Italian.
var requestVerbs = buildVerbs(map[string]string{
	"send": `send email mail e-mail message dm text reply respond answer forward write post publish tell
		notify inform contact ping submit
		sende schicke schick maile antworte schreibe schreib informiere envoie envoyez réponds écris
		écrivez publie informe envía envia enviar manda escribe responde publica invia scrivi rispondi pubblica`,
	"create": `create add make schedule save put plan draft note record enter insert generate build open write arrange
		erstelle erstell lege speichere plane notiere crée créez ajoute ajoutez enregistre crea añade
		agrega guarda programa aggiungi salva pianifica`,
	"change": `change update modify edit adjust set reschedule move postpone shift rename append add
		correct mark replace extend put write insert archive
		ändere aktualisiere verschiebe bearbeite ergänze modifie mets change déplace ajoute ajoutez cambia
		actualiza modifica mueve añade agrega aggiorna sposta aggiungi`,
	"share": `share invite add grant teile lade partage invitez comparte invita condividi añade agrega aggiungi ` +
		`ajoute ajoutez`,
	"delete": `delete remove cancel erase clear trash lösche entferne storniere supprime efface annule borra ` +
		`elimina cancela cancella annulla`,
	"pay": `pay transfer refund wire buy purchase order donate reimburse book reserve repay sell
		überweise zahle bezahle kaufe buche bestelle paie paye payez vire achète réserve paga transfiere
		compra reserva bonifica acquista prenota`,
	"fetch": `read open visit summarize summarise browse view review lies lis lee leggi fasse résume resume ` +
		`riassumi`,
	"authenticate": `change update reset set ändere aktualisiere cambia actualiza aggiorna modifica modifie`,
})

// secretNouns are the nouns of what an authentication changes. A verb like "update" means [ActAuthenticate] only in a
// clause with one of them.
var secretNouns = listWords(`password passwords passphrase passcode passcodes pin pins key keys lock locks
	credential credentials
	passwort passwörter kennwort kennwörter schlüssel schloss zugangsdaten zugangscode passe mdp clé clés
	clef clefs serrure verrou identifiants
	contraseña contraseñas clave claves llave llaves cerradura credenciales chiave chiavi serratura credenziali`)

// namesSecret reports whether a clause has one of secretNouns outside of quotations, also as a part of a compound:
// PIN-Code.
func namesSecret(clause []word) bool {
	return slices.ContainsFunc(clause, func(w word) bool {
		parts := strings.FieldsFunc(w.lower, func(r rune) bool { return r == '-' || r == '\'' })
		return !w.quoted && slices.ContainsFunc(parts, func(p string) bool { return secretNouns[p] })
	})
}

// buildVerbs turns lists of verbs by act into the acts of each verb.
func buildVerbs(lists map[string]string) map[string][]Act {
	out := map[string][]Act{}
	for act, words := range lists {
		for _, w := range strings.Fields(words) {
			if !slices.Contains(out[w], Act(act)) {
				out[w] = append(out[w], Act(act))
			}
		}
	}
	for _, acts := range out {
		slices.Sort(acts)
	}
	return out
}

// actNouns maps nouns to the acts that they name after one of lightVerbs: "make a payment".
var (
	actNouns = buildVerbs(map[string]string{"pay": "payment reservation booking purchase order transfer donation " +
		"deposit", "delete": "cancellation"})
	lightVerbs = listWords("make place do set create arrange")
)

// listWords returns a set of words, as written: folding would merge "à" with "a".
func listWords(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[w] = true
	}
	return set
}

// Words of the grammar. All are function words or classes of words, not words of any tool.
var (
	// nounVerbs are verbs that are nouns as often: they count only before an object.
	nounVerbs = listWords("email mail e-mail message dm text reply answer post note record book order share plan " +
		"contact draft transfer refund wire change move set update mark cancel put " +
		"purchase schedule edit programa reserva compra cambia manda publica guarda plane invite change maile")
	// objectStarts are words that begin an object, after a verb that could be a noun.
	objectStarts = listWords("a an the this that these those my our your his her their its him them everyone " +
		"everybody each every all both it to me us back one two three any another new there here " +
		"einen eine ein der die das den dem meine meinen alle an le la les un une des mon ma mes tous à el los las " +
		"una mi mis todos todas il lo gli i al alla")
	// starters are words after which an order may begin.
	starters = listWords("and then please also kindly just now first second third next finally or so afterwards " +
		"lastly but additionally bitte und dann auch puis et ensuite aussi y luego después también favor e poi anche " +
		"quindi lets let's")
	// modals precede "you" in a polite order: could you send.
	modals = listWords("can could would will should must")
	// wishes precede "to" in an order: I want to send, I want you to send, your task is to post.
	wishes = listWords("want need like have has is was you going sure remember forget love wish ask")
	// refusals negate the order that follows them; after "forget" it is positive again.
	refusals = listWords("not don't dont do-not never without no cannot can't won't shouldn't isn't avoid stop " +
		"nicht kein keine keinen nie ne pas jamais nunca non mai sin sans ohne")
	reversals = listWords("forget hesitate fail miss vergiss oublie olvides dimenticare")
	// lateRefusals negate the order that precedes them, as in German.
	lateRefusals = listWords("nicht kein keine keinen niet")
	// exceptions end the part of a clause that can name a destination.
	exceptions = listWords("not except excluding without unless instead außer ohne sauf excepto salvo tranne")
	// selfWords after a verb of telling make it an answer to the user: tell me, write us.
	selfWords = listWords("me us mir uns moi nous nos mi ci myself")
	// sources precede a name that is an origin or a topic, not a destination.
	sources = listWords("from by of about regarding concerning titled named called subject saying like if von über " +
		"namens par sobre per da di wegen")
	// markers precede a destination that is written in lower case.
	markers = listWords("to with at à con mit und and into onto")
	// fillers may stand before an object or name and name nothing.
	fillers = listWords("a an the this that these those my our your his her their its it him them me us you i " +
		"all each every both which who what where new also there here and or with to in on at for of from by as if " +
		"is be de la le el der die das mr mrs ms dr please")
	conjunctions = listWords("and und et y e")
	// manyWords make a grant usable more than once.
	manyWords = listWords("each every all both everyone everybody them alle jeden jedem allen chaque tous toutes " +
		"cada todos todas ogni tutti")
	// backReferences point to something named before.
	backReferences = listWords("it that this them these those him her his their there same above each everyone all " +
		"ihm ihr ihnen sie es das lui leur eux lo la les gli loro")
	// dictations precede text that the user dictates.
	dictations = listWords("titled title subject saying says said named called name text message body content " +
		"contents description caption heading note titre objet asunto betreff titel mit word words sentence phrase")
)

// word is a word of a question with its position in a sentence.
type word struct {
	text   string // as typed, without punctuation around it
	lower  string
	quoted bool // a whole quotation; never a verb
	comma  bool // punctuation follows that separates clauses
	colon  bool // a colon follows: the rest may be data
	asks   bool // a question mark follows
}

// DeriveGrants returns the grants of a question, in the order of its words. It is a pure function of the question. More
// than maxGrants requests, or a question over maxQuestionBytes, which is stored only in part, yield none.
func DeriveGrants(question string) []Grant {
	if len(question) > maxQuestionBytes {
		return nil
	}
	var out []Grant
	for _, sentence := range splitSentences(question) {
		verbs := findVerbs(sentence)
		if len(verbs) == 0 && len(out) > 0 { // "The title should be '...'." describes the act before it
			last := &out[len(out)-1]
			last.Quoted = append(last.Quoted, findDictated(sentence)...)
			if !sentence[len(sentence)-1].asks {
				last.Places = append(last.Places, listPlaces(sentence)...)
			}
		}
		for i, at := range verbs {
			end := len(sentence)
			if i+1 < len(verbs) {
				end = verbs[i+1]
			}
			if g, ok := deriveGrant(sentence[at:end]); ok {
				out = append(out, g)
			}
		}
	}
	if len(out) > maxGrants {
		return nil
	}
	for i, g := range out { // "and add her address" belongs to the event that was dictated before
		for _, before := range out[:i] {
			if g.Refers && len(g.Quoted) == 0 && slices.ContainsFunc(g.Acts, func(a Act) bool {
				return slices.Contains(before.Acts, a)
			}) {
				out[i].Quoted = before.Quoted
			}
		}
	}
	return out
}

// quotePattern matches a quotation. A single quote counts only at the edge of a word, so that "don't" has none.
var quotePattern = text.Pattern(
	`"([^"\n]{1,400})"|“([^”\n]{1,400})”|„([^“\n]{1,400})“|«([^»\n]{1,400})»|` +
		`(?:^|[\s(])'([^'\n]+(?:'\p{L}[^'\n]*)*)'|` + "`([^`\n]{1,400})`")

// splitSentences splits a question into sentences of words. Quotations are one word each.
func splitSentences(question string) (out [][]word) {
	question = joinedSentence().ReplaceAllString(strings.ReplaceAll(question, "’", "'"), "$1. $2")
	var current []word
	end := func() {
		if len(current) > 0 {
			out = append(out, current)
		}
		current = nil
	}
	plain := func(s string) {
		for i, line := range strings.Split(s, "\n") {
			if i > 0 {
				end()
			}
			for _, f := range strings.Fields(line) {
				w := strings.TrimFunc(f, func(r rune) bool { return strings.ContainsRune(`.,;:!?()[]{}"'…¿¡*-–—`, r) })
				tail := f[strings.LastIndex(f, w)+len(w):]
				if w != "" {
					current = append(current,
						word{text: w, lower: strings.ToLower(w), comma: strings.ContainsAny(tail, ",;)–—") ||
							strings.Contains(f, "("), colon: strings.Contains(tail, ":")})
				}
				if n := len(current); n > 0 && (strings.Contains(tail, "?") || w == "" && strings.Contains(f, "?")) {
					current[n-1].asks = true
				}
				if strings.ContainsAny(tail, ".!?…;") || w == "" && strings.ContainsAny(f, ".!?…-–—") {
					end()
				}
			}
		}
	}
	for {
		m := quotePattern().FindStringSubmatchIndex(question)
		if m == nil {
			plain(question)
			end()
			return out
		}
		plain(question[:m[0]])
		for g := 1; g < len(m)/2; g++ {
			if m[2*g] >= 0 {
				q := question[m[2*g]:m[2*g+1]]
				current = append(current, word{text: q, lower: strings.ToLower(q), quoted: true})
			}
		}
		question = question[m[1]:]
		if rest := strings.TrimLeft(question, " "); strings.HasPrefix(rest, ",") && len(current) > 0 {
			current[len(current)-1].comma = true
		}
	}
}

// joinedSentence matches a full stop without a space between two sentences.
var joinedSentence = text.Pattern(`(\p{Ll})\.(\p{Lu}\p{Ll})`)

// findVerbs returns the positions of the verbs in a sentence that begin an order and are not negated.
func findVerbs(s []word) (out []int) {
	for i, w := range s {
		if requestVerbs[w.lower] == nil || w.quoted || !beginsOrder(s, i) || isNegated(s, i) {
			continue
		}
		if nounVerbs[w.lower] && (i+1 >= len(s) || !objectStarts[s[i+1].lower] && !isNameLike(s[i+1]) &&
			!(i > 0 && (modals[s[0].lower] || s[i-1].lower == "please"))) {
			continue
		}
		out = append(out, i)
	}
	return out
}

// beginsOrder reports whether the word at i stands where an order begins: first in its sentence, after a comma or a
// starter such as "please", after "could you", or after "want to".
func beginsOrder(s []word, i int) bool {
	if i == 0 {
		return true
	}
	before := s[i-1]
	switch {
	case before.colon || before.quoted && !before.comma:
		return false
	case before.comma, starters[before.lower]:
		return true
	case before.lower == "you":
		return i > 1 && modals[s[i-2].lower]
	case before.lower == "to":
		return i > 1 && wishes[s[i-2].lower] || i > 1 && reversals[s[i-2].lower]
	}
	return i == 1 && len(before.lower) <= 2 && strings.Trim(before.lower, "0123456789") == "" // a numbered list
}

// isNegated reports whether a refusal stands before the verb at i, after the last comma, or a late one after it.
func isNegated(s []word, i int) bool {
	negated := false
	for _, w := range s[:i] {
		switch {
		case refusals[w.lower] && !w.quoted:
			negated = true
		case reversals[w.lower], w.comma && !strings.HasSuffix(w.lower, "not"), w.lower == "but", w.lower == "aber":
			negated = false
		}
	}
	return negated || slices.ContainsFunc(s[i:], func(w word) bool { return lateRefusals[w.lower] && !w.quoted })
}

// deriveGrant derives the grant of one clause, which begins with its verb. false means that the order is an answer to
// the user ("write me a summary", "tell us") or that no act is left, as of "reset" without a password.
func deriveGrant(clause []word) (Grant, bool) {
	g := Grant{Acts: requestVerbs[clause[0].lower], Times: 1}
	for _, w := range clause[1:min(4, len(clause))] { // "make a reservation": the noun names the act
		if acts := actNouns[w.lower]; acts != nil && lightVerbs[clause[0].lower] {
			g.Acts = append(slices.Clone(g.Acts), acts...)
		}
	}
	if !namesSecret(clause) {
		g.Acts = slices.DeleteFunc(slices.Clone(g.Acts), func(a Act) bool { return a == ActAuthenticate })
	}
	if len(clause) > 1 && selfWords[clause[1].lower] && slices.Contains(g.Acts, ActSend) {
		return g, false
	}
	var shown []string
	names := nameList{open: true}
	for i, w := range clause {
		shown = append(shown, w.text)
		if i == 0 {
			continue
		}
		if manyWords[w.lower] {
			g.Times = manyTimes
		}
		g.Refers = g.Refers || backReferences[w.lower]
		if isDictation(clause, i) {
			names.flush()
			g.Quoted = append(g.Quoted, text.Cut(w.lower, maxQuoteText))
			continue
		}
		names.add(clause[i-1], w)
	}
	names.flush()
	g.To, g.Named, g.Places = names.all, listNamed(clause[1:]), listPlaces(clause)
	if g.Times != manyTimes {
		g.Times += names.listed
	}
	if len(g.To) >= maxClauseTo {
		g.To, g.Named, g.Places, g.Times = nil, nil, nil, 0 // an unusual clause grants nothing
	}
	g.Clause = text.OneLine(strings.Join(shown, " "), maxClause)
	return g, g.Times > 0 && len(g.Acts) > 0
}

// listNamed returns the names and numbers in the words of a clause, in lower case: runs of words that are capitalized
// or have an @, a dot, an underscore or a digit, and quotations in quotation marks. Dates, times of day, stop words and
// the words after an exception are none.
func listNamed(clause []word) (out []string) {
	var plain strings.Builder
	for _, w := range clause {
		if isException(w) {
			break
		}
		if plain.WriteString(" "); w.quoted {
			plain.WriteString(",")
			out = append(out, `"`+text.Cut(w.lower, maxQuoteText)+`"`)
			continue
		}
		if plain.WriteString(w.text); w.comma || w.colon {
			plain.WriteString(" ,")
		}
	}
	_, rest := date.FindDays(plain.String())
	run := ""
	for _, f := range append(strings.Fields(dateGap().ReplaceAllString(date.RemoveClocks(rest), " , ")), ",") {
		w := word{text: f, lower: strings.ToLower(f)}
		switch {
		case f == "," || !isNameLike(w) || isStopWord(w.lower):
			if run != "" && len(out) < maxClauseTo && !slices.Contains(out, run) {
				out = append(out, run)
			}
			run = ""
		case run == "":
			run = w.lower
		default:
			run += " " + w.lower
		}
	}
	return out
}

// dateGap matches the spaces that [date.FindDays] and [date.RemoveClocks] leave in the place of a date or time.
var dateGap = text.Pattern(` {2,}`)

// names reports whether the clause of the grant names a value, as what cannot be undone needs it: as a destination, as
// a whole quotation, or as a name or number of whole words. A stop word names nothing.
func (g Grant) names(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	if v == "" || isStopWord(v) {
		return false
	}
	return g.isNamedDestination(v) || slices.Contains(g.Quoted, v) || slices.ContainsFunc(g.Named, func(n string) bool {
		return n == `"`+v+`"` || !strings.HasPrefix(n, `"`) && strings.Contains(" "+n+" ", " "+v+" ")
	})
}

// isNamedDestination reports whether the clause names a destination, given in lower case.
func (g Grant) isNamedDestination(d string) bool {
	d = strings.TrimLeft(d, "#@")
	return d != "" && slices.ContainsFunc(g.To, func(to string) bool { return strings.TrimLeft(to, "#@") == d })
}

// hasNumber reports whether the clause has this number as a word of its own, with at most a currency sign: not as a
// part of a date, a time, a name or a percentage.
func (g Grant) hasNumber(n float64) bool {
	for _, run := range g.Named {
		for w := range strings.FieldsSeq(run) {
			if own, ok := parsePlainNumber(strings.Trim(w, "$€£¥")); ok && own == n {
				return true
			}
		}
	}
	return false
}

// isStopWord reports whether a word, in lower case, is a word of the grammar, which names nothing.
func isStopWord(w string) bool {
	return stopWords[w] || slices.ContainsFunc(grammarWords, func(set map[string]bool) bool { return set[w] })
}

// grammarWords are the sets of words that name nothing.
var grammarWords = []map[string]bool{
	objectStarts, starters, modals, wishes, refusals, lateRefusals, exceptions, selfWords, sources, markers, fillers,
	conjunctions, manyWords, backReferences,
}

// nameList collects the destinations of a clause.
type nameList struct {
	all    []string // in lower case
	name   string   // the name that is being read, which may have more words
	open   bool     // no exception stands before: "to Ana, not Bob"
	listed int      // further destinations after "and" or a comma
}

// add reads the next word of the clause, which follows before.
func (n *nameList) add(before, w word) {
	switch {
	case isException(w):
		n.open = false
	case n.open && isDestination(before, w):
		if n.name != "" && !w.quoted && !before.comma && isCapitalized(w.text) && isCapitalized(before.text) {
			whole := n.name + " " + w.lower
			n.flush()
			n.all, n.name = append(n.all, w.lower), whole
			return
		}
		n.flush()
		if len(n.all) > 0 && (before.comma || conjunctions[before.lower]) {
			n.listed++
		}
		n.name = w.lower
		return
	}
	n.flush()
}

// isException reports whether a word ends the part of a clause that can name something: "except", or a refusal as in
// "but never Bob". "no" is none: it precedes numbers.
func isException(w word) bool {
	return !w.quoted && (exceptions[w.lower] || refusals[w.lower] && w.lower != "no")
}

// flush ends the name that is being read.
func (n *nameList) flush() {
	if n.name != "" && len(n.all) < maxClauseTo && !slices.Contains(n.all, n.name) {
		n.all = append(n.all, n.name)
	}
	n.name = ""
}

// isDictation reports whether the word at i is a quotation after a word like "titled" or "subject".
func isDictation(s []word, i int) bool {
	return s[i].quoted && slices.ContainsFunc(s[max(0, i-5):i], func(b word) bool {
		return dictations[b.lower] && !b.quoted
	})
}

// findDictated returns the texts that a sentence dictates, in lower case.
func findDictated(s []word) (out []string) {
	for i := range s {
		if isDictation(s, i) {
			out = append(out, text.Cut(s[i].lower, maxQuoteText))
		}
	}
	return out
}

// isDestination reports whether a word of a clause can name a destination: a quotation, an address, a name, or a word
// after "to" or "with". A word after "from", "by" or "about" is a source.
func isDestination(before, w word) bool {
	switch {
	case sources[before.lower] && !before.quoted, strings.HasSuffix(w.lower, "'s"):
		return false
	case !w.quoted && (date.IsMonth(w.lower) || timeWord().MatchString(w.lower)):
		return false
	case isNameLike(w):
		return true
	}
	return markers[before.lower] && !fillers[w.lower] && !w.quoted
}

// isNameLike reports whether a word looks like a name or an address: quoted, capitalized, or with an @, a dot, an
// underscore or a digit.
func isNameLike(w word) bool {
	return w.quoted || isCapitalized(w.text) && w.lower != "i" || strings.ContainsAny(w.text, "@._#/0123456789")
}

func isCapitalized(s string) bool {
	for _, r := range s {
		return unicode.IsUpper(r)
	}
	return false
}

// timeWord matches a part of a date or time: a year or other short number, an ordinal, a day, a time of day.
var timeWord = text.Pattern(`^(?:\d{1,4}(?:st|nd|rd|th)?|\d{4}-\d\d?-\d\d?|\d{1,2}:\d\d|\d{1,2}[ap]m)$`)
