package policy

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"conclave/pkg/text"
	"conclave/subjects"
)

// A grant is one order of the user: a verb in the position of an order, and the words after it up to the next one. It
// is derived from the words of one question alone, before any tool result is read, and never from a result, an
// attachment or a model. After untrusted content, an act runs without approval only when a grant of its question
// covers
// it, and every value of it stands where the grant says.
//
// The rules recognize plain orders and nothing else. Whatever decides over the meaning of a question in another way
// ends in a question to the user: a negation, a condition, quoted or reported text, a statement beside the order, two
// destinations for one text. A language without verbs in the list has no grants.

// Grant permits one kind of act as often as the question asks for it.
type Grant struct {
	Acts   []Act  `json:"acts"`   // any of them; a verb like "add" names several
	Times  int    `json:"times"`  // how often it may be used
	Clause string `json:"clause"` // the words of the question from its verb to the next one
	// words of the question for which it covers less, see [Grant.doubtAbout]
	Doubt     string   `json:"doubt,omitempty"`
	Condition string   `json:"condition,omitempty"`
	Statement string   `json:"statement,omitempty"`
	Pasted    bool     `json:"pasted,omitempty"` // the statement is in a question of several lines
	Quoted    []string `json:"quoted,omitempty"` // text that the question dictates, in lower case
	Used      []string `json:"used,omitempty"`   // the calls that used it, see [Flow.ClaimGrant]
}

const (
	maxGrants    = 16
	manyTimes    = 25  // of a clause with "all" or "each"
	maxClause    = 400 // bytes of a clause; a longer one grants nothing
	maxQuoteText = 400
)

// Describe returns the grant as the user is shown it.
func (g Grant) Describe() subjects.Grant {
	return subjects.Grant{Acts: namesOf(g.Acts...), Times: g.Times, Used: len(g.Used), Clause: g.Clause}
}

// has reports whether the grant permits act and is not used up.
func (g Grant) has(a Act) bool { return slices.Contains(g.Acts, a) && len(g.Used) < g.Times }

// requestVerbs maps the verbs of requests to the acts they can mean: English in the base form, and the imperatives of
// German, French, Spanish and Italian. Those of [ActRead] begin an order and permit nothing: reading is free.
var requestVerbs = buildVerbs(map[Act]string{
	ActSend: `send email mail e-mail message dm text reply respond answer forward write post publish tell
		notify inform contact ping submit ask comment let
		sende schicke schick maile antworte schreibe schreib informiere frag frage poste leite veröffentliche
		envoie envoyez réponds écris écrivez publie informe demande transfère envía envia enviar manda mande escribe
		responde publica reenvía pregunta invia scrivi rispondi pubblica inoltra chiedi`,
	ActCreate: `create add make schedule save put plan draft note record enter insert generate build open write
		arrange remind set upload invite
		erstelle erstell lege leg speichere plane notiere trag trage erinnere setz mach lade crée créez ajoute
		ajoutez enregistre
		rappelle-moi téléverse crea añade agrega guarda programa recuérdame aggiungi salva pianifica ricordami`,
	ActChange: `change update modify edit adjust set reschedule move postpone shift rename append add
		correct mark replace extend put write insert archive close pause resume
		ändere aktualisiere verschiebe verschieb bearbeite ergänze archiviere schließe pausiere modifie mets change
		déplace
		ajoute ajoutez archive ferme cambia actualiza modifica mueve añade agrega archiva cierra aggiorna sposta
		aggiungi chiudi`,
	ActShare: `share invite add grant give teile lade partage invitez comparte invita condividi añade agrega ` +
		`aggiungi ` +
		`ajoute ajoutez`,
	ActDelete: `delete remove cancel erase clear trash lösche lösch entferne storniere supprime efface annule borra
		elimina cancela cancella annulla`,
	ActPay: `pay transfer refund wire buy purchase order donate reimburse book reserve repay sell
		überweise überweis zahle zahl bezahle bezahl kaufe kauf buche bestelle bestell paie paye payez vire achète
		commande réserve paga transfiere compra reserva bonifica acquista prenota ordina`,
	ActFetch: `read open visit summarize summarise browse view review lies lis lee leggi fasse fass résume resume
		riassumi`,
	ActAuthenticate: `change update reset set ändere aktualisiere cambia actualiza aggiorna modifica modifie`,
	ActControl: `set turn switch dim start stelle stell schalte schalt mach dreh règle mets allume éteins enciende
		apaga
		pon accendi spegni imposta`,
	ActRead: `find check look search get list show sort see compare count sum explain compute calculate translate
		go use perform take visit choose pick recommend
		fetch such suche finde schau sieh prüfe zeig gib vergleiche berechne rechne frag merk cherche regarde
		trouve vérifie montre compare busca
		mira encuentra revisa muestra compara cerca guarda trova controlla mostra confronta`,
})

// secretNouns are the nouns of what an authentication changes. A verb like "update" means [ActAuthenticate] only in a
// clause with one of them.
var secretNouns = listWords(`password passwords passphrase passcode passcodes pin pins key keys lock locks
	credential credentials
	passwort passwörter kennwort kennwörter schlüssel schloss zugangsdaten zugangscode passe mdp clé clés
	clef clefs serrure verrou identifiants
	contraseña contraseñas clave claves llave llaves cerradura credenciales chiave chiavi serratura credenziali`)

// Classes of words of the grammar. All are function words, not words of any tool.
var (
	// politeWords may stand before the verb of an order.
	politeWords = listWords("please pls plz kindly also just now first second third next finally then and so ok " +
		"okay hey hi " +
		"hello your task is to i want need would like you can could will bitte dann auch und jetzt danach zuerst " +
		"kannst " +
		"könntest du puis et ensuite aussi s'il te plaît peux-tu y luego después también por favor puedes e poi " +
		"anche " +
		"quindi per favore puoi lets let's do not don't forget thanks")
	// joints may stand before a further order of a sentence that begins with one.
	joints = listWords("and then und dann danach et puis ensuite y luego e poi please bitte to also")
	// selfWords after a verb of telling make it an answer to the user: tell me, write us.
	selfWords = listWords("me us mir uns moi nous nos mi ci myself")
	// sources precede a name that is an origin or a topic, not a destination.
	sources = listWords("from by of about regarding concerning like von vom über de du des par sur del sobre da " +
		"di dal " +
		"su")
	// markers precede a destination that is written in lower case.
	markers = listWords("to with at in into onto on an mit in auf bei à avec dans sur a con en al alla nel")
	// recipientMarkers are those of them that stand before a recipient where a companion is only a topic: "the call
	// with Mallory to Anna".
	recipientMarkers, companionMarkers = listWords("to an à a al alla"), listWords("with mit avec con")
	// manyWords make a grant usable more than once.
	manyWords = listWords("each every all both everyone everybody them alle jeden jedem allen chaque tous toutes " +
		"cada todos todas ogni tutti")
	// contentWords begin the text that an act carries: doubts in it are not about the act.
	contentWords = listWords("that saying whether dass daß que qu'il qu'elle che")
	// dictations precede text that the user dictates.
	dictations = listWords("titled title subject saying says said named called name text message body content " +
		"contents description caption heading note titre objet asunto betreff titel mit word words sentence phrase")
	// refusals are words for which no grant of the question covers anything.
	refusals = listWords("not don't dont do-not never no nothing nobody none neither nor without cannot can't " +
		"won't " +
		"shouldn't isn't doesn't didn't wasn't aren't avoid except excluding instead forbid refuse stop wait " +
		"nicht nichts kein keine keinen keinem keiner nie niemals niemand niemandem niemanden keinesfalls " +
		"keineswegs " +
		"ohne außer statt ne pas jamais rien personne sans sauf aucun aucune nunca nada nadie sin salvo excepto " +
		"ningún ninguna jamás tampoco ni refrain skip vermeide unterlass verzichte évite évitez evita " +
		"non niente nulla nessuno senza tranne")
	// conditions are words for which the grants of their sentence cover only what can be changed back.
	conditions = listWords("if when whenever unless until case provided assuming wenn falls sobald sofern bevor si " +
		"s'il quand lorsque cuando se quando qualora soon depending vorausgesetzt solange pourvu dès purché appena " +
		"caso cas condition condición condizione")
	// exceptable are words after which "but" makes an exception.
	exceptable = listWords("all everything everybody everyone anything anybody")
	// textVerbs begin an order about a text: what follows in later sentences may be that text.
	textVerbs = listWords("translate explain correct proofread rephrase rewrite interpret übersetze übersetz erkläre " +
		"korrigiere traduis explique corrige traduce explica traduci spiega correggi")
	// leadConditions are conditions as the first word of a sentence.
	leadConditions = listWords("once should ist sollte")
	// functionWords name nothing.
	functionWords = listWords("a an the this that these those my our your his her their its it him them me us " +
		"you i " +
		"we he she they who what where which when how why is are was were be been has have had will would can " +
		"could " +
		"to with in on at for of from by as if or and not no all each every both there here up out one two any new " +
		"der die das den dem des ein eine einen einem mein meine meinen dein ihr sein es er sie wir ich du uns mir " +
		"dich mich und oder mit von zu zum zur im am auf in an bei für über aus nach ist sind war was wer wie wo " +
		"le la les l un une des du de d mon ma mes ton ta son sa ses ce cette ces et ou en dans sur pour par " +
		"avec il " +
		"elle je tu nous est sont el los las lo una mi mis tu su y o con por para es son se que qué il gli i uno " +
		"dei " +
		"della del di da per che e è mr mrs ms dr please bitte also then than so do does did")
)

// buildVerbs turns lists of verbs by act into the acts of each verb.
func buildVerbs(lists map[Act]string) map[string][]Act {
	out := map[string][]Act{}
	for act, words := range lists {
		for w := range strings.FieldsSeq(words) {
			if !slices.Contains(out[w], act) {
				out[w] = append(out[w], act)
			}
		}
	}
	for _, acts := range out {
		slices.Sort(acts)
	}
	return out
}

// listWords returns a set of words, as written: folding would merge "à" with "a".
func listWords(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[w] = true
	}
	return set
}

// namesSecret reports whether a clause has one of secretNouns outside of quotations, also as a part of a compound:
// PIN-Code.
func namesSecret(clause []word) bool {
	return slices.ContainsFunc(clause, func(w word) bool {
		parts := strings.FieldsFunc(w.lower, func(r rune) bool { return r == '-' || r == '\'' })
		return !w.quoted && slices.ContainsFunc(parts, func(p string) bool { return secretNouns[p] })
	})
}

// DeriveGrants returns the grants of a question, in the order of its words. It is a pure function of the question.
// More
// than maxGrants orders, or a question over maxQuestionBytes, which is stored only in part, yield none.
func DeriveGrants(question string) []Grant {
	if len(question) > maxQuestionBytes {
		return nil
	}
	question = joinedSentence().ReplaceAllString(strings.ReplaceAll(question, "’", "'"), "$1. $2")
	var out []Grant
	doubt, condition, statement := "", "", ""
	muted := false // after a colon everything may be the text of somebody else, up to a numbered item
	for _, s := range readSentences(question) {
		if len(s) == 1 && isListNumber(s[0]) {
			muted = false
			continue
		}
		orders := findOrders(s)
		if muted {
			orders = nil
		}
		doubt = cmp.Or(doubt, findRefusal(s, orders))
		here := findCondition(s, orders)
		if len(orders) == 0 && !s[len(s)-1].asks && !isPolite(s) {
			condition, statement = cmp.Or(condition, here), cmp.Or(statement, describeWords(s))
		}
		if len(orders) == 0 && len(out) > 0 { // "The title should be '...'." describes the act before it
			last := &out[len(out)-1]
			last.Quoted = append(last.Quoted, listDictated(s)...)
		}
		for i, at := range orders {
			end := len(s)
			if i+1 < len(orders) {
				end = orders[i+1]
			}
			if g, ok := deriveGrant(question, s[at:end]); ok {
				g.Condition = here
				out = append(out, g)
			}
		}
		lead := slices.IndexFunc(s, func(w word) bool { return !politeWords[w.lower] })
		muted = muted || lead >= 0 && textVerbs[s[lead].lower] || slices.ContainsFunc(s, func(w word) bool {
			return w.colon
		})
	}
	if len(out) > maxGrants {
		return nil
	}
	for i, g := range out {
		for _, before := range out[:i] { // "and add her address to it" belongs to what was dictated before
			if len(g.Quoted) == 0 && g.pointsBack() && slices.ContainsFunc(g.Acts, before.has) {
				out[i].Quoted = before.Quoted
			}
		}
		out[i].Doubt, out[i].Condition, out[i].Statement = doubt, cmp.Or(out[i].Condition, condition), statement
		out[i].Pasted = strings.Contains(strings.TrimSpace(question), "\n")
	}
	return out
}

// findRefusal returns a word of a sentence that refuses something, "" when there is none: outside of the text of a
// message, "do not forget to" and "all who are not".
func findRefusal(s []word, orders []int) string {
	for i, w := range s {
		isException := w.lower == "but" && i > 0 && exceptable[s[i-1].lower]
		if (refusals[w.lower] || isException) && !w.quoted && !isContent(s, orders, i) && !isAffirmed(s, i) &&
			!slices.ContainsFunc(s[max(0, i-2):i], func(w word) bool { return w.lower == "who" }) {
			return w.text
		}
	}
	return ""
}

// findCondition returns a word of a sentence that makes an order depend on something, "" when there is none. After an
// order to read, as in "find out when", it belongs to what is read.
func findCondition(s []word, orders []int) string {
	isRead := false
	for i, w := range s {
		if slices.Contains(orders, i) {
			isRead = !slices.ContainsFunc(requestVerbs[w.lower], func(a Act) bool {
				return a != ActRead && a != ActFetch
			}) ||
				i+1 < len(s) && selfWords[s[i+1].lower]
		}
		isOnce := w.lower == "once" && i > 0 && i+1 < len(s) && !functionWords[s[i+1].lower]
		isLeading := i == 0 && leadConditions[w.lower] && !s[len(s)-1].asks
		if isOnce || isLeading || conditions[w.lower] && !w.quoted && !isRead && !isContent(s, orders, i) {
			return w.text
		}
	}
	return ""
}

// deriveGrant derives the grant of one order, which begins with its verb. false means that the order is an answer to
// the user ("write me a summary", "tell us") or that no act is left, as of "reset" without a password.
func deriveGrant(question string, clause []word) (Grant, bool) {
	g := Grant{Acts: slices.Clone(requestVerbs[clause[0].lower]), Times: 1, Quoted: listDictated(clause)}
	if !namesSecret(clause) {
		g.Acts = slices.DeleteFunc(g.Acts, func(a Act) bool { return a == ActAuthenticate })
	}
	g.Acts = slices.DeleteFunc(g.Acts, func(a Act) bool { return a == ActRead })
	if len(clause) > 1 && selfWords[clause[1].lower] && slices.Contains(g.Acts, ActSend) {
		return g, false
	}
	if slices.ContainsFunc(clause, func(w word) bool { return manyWords[w.lower] && !w.quoted }) {
		g.Times = manyTimes
	}
	g.Clause = question[clause[0].from:clause[len(clause)-1].to]
	return g, len(g.Acts) > 0 && len(g.Clause) <= maxClause
}

// findOrders returns the positions of the verbs in a sentence that begin an order. None follows the text that a
// message
// carries: "tell Bob that we are late and ...".
func findOrders(s []word) (out []int) {
	from := 0 // "If so, please create"
	for i, w := range s {
		if len(out) > 0 && isContent(s, out, i) {
			break
		}
		if i > 0 && conditions[s[0].lower] && s[i-1].comma && len(out) == 0 {
			from = i
		}
		isFirst := isLead(s[from:i])
		isJoint := len(out) > 0 && (joints[s[i-1].lower] || s[i-1].comma)
		if requestVerbs[w.lower] != nil && !w.quoted && (isFirst || isJoint) && !isNoun(s, i) {
			out = append(out, i)
		}
	}
	return out
}

// isLead reports whether the words before a verb make it an order: none, polite ones, "could you", "I want you to".
func isLead(before []word) bool {
	if slices.ContainsFunc(before, func(w word) bool { return w.quoted || w.colon || !politeWords[w.lower] }) {
		return false
	}
	if !slices.ContainsFunc(before, func(w word) bool {
		return slices.Contains([]string{"i", "you", "is"}, w.lower)
	}) {
		return true
	}
	last := before[len(before)-1].lower
	return last == "to" || slices.Contains([]string{"you", "please"}, last) && len(before) > 1 && before[0].lower != "i"
}

// nounVerbs are verbs that are nouns as often.
var nounVerbs = listWords("email mail e-mail message dm text reply answer post note record book order share plan " +
	"contact draft transfer refund wire change move set update mark cancel put purchase schedule edit visit view " +
	"review look search check list show use comment archive programa reserva compra cambia manda publica guarda " +
	"plane " +
	"invite maile commande demande frage")

// isNoun reports whether the word at i, which can be a verb, is a noun here: before a source ("Mail from Bob"),
// before
// a word that begins no object, or in a question that nothing polite begins.
func isNoun(s []word, i int) bool {
	if !nounVerbs[s[i].lower] {
		return false
	}
	if i+1 == len(s) || s[len(s)-1].asks && i == 0 {
		return true
	}
	next := s[i+1]
	return sources[next.lower] && next.lower != "about" || !next.quoted && !functionWords[next.lower] &&
		!markers[next.lower] && !manyWords[next.lower] && !isNameLike(next) && i == 0 && s[i].lower != "archive"
}

// isContent reports whether the word at i belongs to the text that a message of the sentence carries.
func isContent(s []word, orders []int, i int) bool {
	for _, at := range orders {
		if !slices.Contains(requestVerbs[s[at].lower], ActSend) {
			continue
		}
		for _, w := range s[at+1 : max(i, at+1)] {
			if contentWords[w.lower] && !w.quoted || conditions[w.lower] && asksSomebody[s[at].lower] {
				return true
			}
		}
		if i > at && asksSomebody[s[at].lower] && conditions[s[i].lower] {
			return true
		}
	}
	return false
}

// asksSomebody are the verbs after which "if" begins what is asked.
var asksSomebody = listWords("ask frag frage demande pregunta chiedi")

// isAffirmed reports whether a verb after the refusal at i makes it an order again: "do not forget to".
func isAffirmed(s []word, i int) bool {
	return i+1 < len(s) && slices.Contains([]string{"forget", "hesitate"}, s[i+1].lower)
}

// isPolite reports whether a sentence says nothing: "Hey Bob!", "Thanks a lot!".
func isPolite(s []word) bool { return len(s) <= 3 && (politeWords[s[0].lower] || len(s) == 1) }

// isListNumber reports whether a word is the number of an item in a list.
func isListNumber(w word) bool { return len(w.lower) <= 2 && strings.Trim(w.lower, "0123456789") == "" }

// describeWords returns the first words of a sentence.
func describeWords(s []word) string {
	var out []string
	for _, w := range s[:min(len(s), 6)] {
		out = append(out, w.text)
	}
	return strings.Join(out, " ")
}

// word is a word of a question with its position.
type word struct {
	text     string // as typed, without punctuation around it
	lower    string
	quoted   bool // a whole quotation; never a verb
	comma    bool // punctuation follows that separates clauses
	colon    bool // a colon follows: the rest may be data
	asks     bool // a question mark follows
	from, to int  // bytes of the question
}

// quotePattern matches a quotation. A single quote counts only at the edge of a word, so that "don't" has none.
var quotePattern = text.Pattern(
	`"([^"\n]{1,400})"|“([^”\n]{1,400})”|„([^“\n]{1,400})“|«([^»\n]{1,400})»|` +
		`(?:^|[\s(])'([^'\n]+(?:'\p{L}[^'\n]*)*)'|` + "`([^`\n]{1,400})`")

// joinedSentence matches a full stop without a space between two sentences.
var joinedSentence = text.Pattern(`(\p{Ll})\.(\p{Lu}\p{Ll})`)

// fieldPattern matches a line of quoted text, the end of a line, and a word with its punctuation.
var fieldPattern = text.Pattern(`\n[ \t]*[>|][^\n]*|\n|\S+`)

// readSentences splits a question into sentences of words. Quotations are one word each, and lines that begin with >
// are left out.
func readSentences(question string) (out [][]word) {
	var current []word
	end := func() {
		if len(current) > 0 {
			out = append(out, current)
		}
		current = nil
	}
	plain := func(from, to int) {
		for _, m := range fieldPattern().FindAllStringIndex(question[from:to], -1) {
			f := question[from+m[0] : from+m[1]]
			if f[0] == '\n' {
				end()
				continue
			}
			w := strings.TrimFunc(f, func(r rune) bool { return strings.ContainsRune(`.,;:!?()[]{}"'…¿¡*-–—`, r) })
			at := strings.LastIndex(f, w)
			tail := f[at+len(w):]
			if w != "" {
				current = append(current, word{
					text: w, lower: strings.ToLower(w), from: from + m[0] + at, to: from + m[0] + at + len(w),
					comma: strings.ContainsAny(tail, ",;)–—") || strings.Contains(f, "("),
					colon: strings.Contains(tail, ":"),
				})
			}
			if n := len(current); n > 0 && (strings.Contains(tail, "?") || w == "" && strings.Contains(f, "?")) {
				current[n-1].asks = true
			}
			if n := len(current); n > 0 && w == "" && strings.ContainsAny(f, "-–—") {
				current[n-1].colon = true
			}
			if strings.ContainsAny(tail, ".!?…;") || w == "" && strings.ContainsAny(f, ".!?…-–—") {
				end()
			}
		}
	}
	for at := 0; ; {
		m := quotePattern().FindStringSubmatchIndex(question[at:])
		if m == nil {
			plain(at, len(question))
			end()
			return out
		}
		plain(at, at+m[0])
		for g := 1; g < len(m)/2; g++ {
			if m[2*g] >= 0 {
				q := question[at+m[2*g] : at+m[2*g+1]]
				current = append(current, word{
					text: q, lower: strings.ToLower(q), quoted: true, from: at + m[0], to: at + m[1],
				})
			}
		}
		if at += m[1]; strings.HasPrefix(question[at:], ",") && len(current) > 0 {
			current[len(current)-1].comma = true
		}
	}
}

// listDictated returns the texts that a sentence dictates, in lower case: quotations after a word like "titled".
func listDictated(s []word) (out []string) {
	for i := range s {
		if s[i].quoted && slices.ContainsFunc(s[max(0, i-5):i], func(b word) bool {
			return dictations[b.lower] && !b.quoted
		}) {
			out = append(out, text.Cut(s[i].lower, maxQuoteText))
		}
	}
	return out
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

// isStopWord reports whether a value, in lower case, has only function words, which name nothing. An empty value
// names nothing either.
func isStopWord(v string) bool {
	return !slices.ContainsFunc(splitWords(v), func(w string) bool {
		return !stopWords[w] && !functionWords[w] && !manyWords[w]
	})
}
