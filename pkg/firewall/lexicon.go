package firewall

import (
	"strings"
	"sync"
)

// class is the set of roles that a word can have in the rules.
type class uint64

const (
	cIgnore    class = 1 << iota // ignore, disregard, forget
	cPrior                       // previous, above, your
	cOrders                      // instructions, rules, prompt
	cPlease                      // please, kindly
	cLead                        // words that an order may follow
	cAct                         // verbs that change or send something
	cSay                         // verbs that shape an answer
	cSend                        // send, forward, upload
	cMine                        // my, mine, our
	cPrivate                     // messages, password, details
	cAI                          // assistant, chatbot, llm
	cAIWeak                      // agent, model, software: only with another word
	cAutomat                     // ai, automated, artificial, language
	cNote                        // note, message, attention
	cTo                          // to, for
	cFollow                      // follow, obey, adhere, execute
	cNext                        // following, below, these, new
	cStrict                      // strictly, only, must, exactly
	cTell                        // tell, inform, mention, notify
	cNot                         // not, never, don't, without
	cUser                        // user, anyone, human, owner
	cReply                       // response, reply, answer
	cWork                        // code, solution, implementation
	cYour                        // your
	cCode                        // code, snippet, excerpt
	cBoss                        // developer, administrator, creator
	cTask                        // task, request, question
	cDone                        // complete, finished, done
	cShow                        // reveal, print, repeat
	cID                          // id, account, number
	cTool                        // tool, function, api
	cUse                         // use, call, invoke
	cUrgent                      // important, urgent, critical
	cWorked                      // analyzed, monitored: work that an assistant does
	cSolve                       // solve, continue, answer: what an assistant is about to do
	cMode                        // mode
	cBe                          // pretend, act, roleplay
	cNegative                    // words before an order that make it a description: to, how, cannot
	cSly                         // unnoticed, discreetly, secretly
	cAll                         // all, every, everything, whole
	cMachine                     // kinds of places: server, vehicle, patient
	cCourtesy                    // find, see, contact: what is asked of readers everywhere
	cLang                        // languages and ways of writing
	cTold                        // told, given: of instructions that the reader has
	cOpensTask                   // explain, who: what a task of offtopic.go may begin with
	cAddress                     // an address or a link; never in the table
	cDigits                      // has a digit; never in the table
	cPhrase                      // the first word of a phrase; never in the table
)

// classWords is the lexicon by class. Languages stand side by side: a text that mixes them hides nothing.
var classWords = []struct {
	class class
	list  string
}{
	{cIgnore, `ignore ignoring disregard disregarding forget override overrule bypass discard neglect overlook throw scrap dismiss abandon erase
		ignorez ignoriere ignora`},
	{
		cPrior,
		`previous prior above earlier preceding foregoing former past existing original initial current other your given before system`,
	},
	{cOrders, `instruction instructions directive directives guidance prompt prompts rule rules guideline guidelines command commands constraint
		constraints restriction restrictions order orders context policy policies programming training safeguards`},
	{cPlease, `please kindly bitte por-favor prego пожалуйста`},
	{cLead, `please kindly now then and also instead just immediately do must should simply first next finally always todo can could would will
		shall important directly bitte urgent quickly carefully secretly discreetly let's`},
	{cAct, `transfer sell buy purchase order pay send forward email mail post upload share delete remove erase wipe grant revoke give unlock
		lock open close schedule cancel book reserve create add update modify change set reset enable disable install uninstall download save
		execute run deploy launch initiate start stop shut restart reboot invite follow unfollow subscribe withdraw deposit donate redirect
		retrieve fetch get find search check access export import copy move rename publish tweet message call notify approve reject
		authorize disclose reveal leak exfiltrate encrypt decrypt inject implant plant jam hijack manipulate alter falsify forge tamper
		fabricate administer prescribe perform conduct provide review verify monitor analyze manage ensure allocate introduce cause
		acquire obtain collect gather extract record capture track locate trace diagnose calibrate validate process simulate make
		disrupt sabotage intercept block suspend terminate kill interrupt overload bypass breach steal sell trade invest convert
		replace register sign log store write submit arrange assign reassign adjust configure activate deactivate turn play print
		concatenate summarize visit click recommend advise use connect mount archive backup draft dispatch confirm accept issue
		refund charge bill wire move rate like comment reply respond evaluate assess compile generate distribute release
		corrupt compromise exploit spread mislead misdirect discredit shorten lengthen degrade damage destroy conceal hide delay
		optimize audit inspect investigate test restrict limit increase decrease reduce raise lower expand scan seize upgrade downgrade
		eliminate prevent maintain secure protect facilitate handle oversee coordinate implement establish integrate utilize
		switch swap mark flag label tag report request ask help assist prepare present show tell let bring take put pull push`},
	{cSay, `add include insert append use write render translate replace substitute enhance modify introduce combine respond reply answer print
		output say state mention recommend summarize end begin start provide encode convert format incorporate integrate embed blend
		deploy let ensure remember make capitalize reverse alternate omit remove anagram swap change express give shift craft construct
		inject weave infuse mix spell repeat deliver present compose conclude finish close open intersperse sprinkle limit craft phrase
		turn apply employ utilize scramble encrypt obfuscate jumble merge split double triple delete keep set offer suggest hint advertise
		promote invite prompt encourage direct link refer complement supplement adopt assimilate consider validate verify confirm have
		place put adapt adjust extend augment refine shape structure communicate return report focus
		generate produce formulate rephrase rewrite translate avoid exclude attach`},
	{cSend, `send forward email mail post upload transmit share leak exfiltrate submit deliver copy bcc cc report wire transfer publish
		sende schicke envoyez envoie envia envie invia отправь отправьте message dispatch relay`},
	{cMine, `my mine our me`},
	{cPrivate, `message messages email emails data detail details password passwords key keys code codes file files content contents history
		conversation secret secrets credential credentials token tokens information info record records address addresses document documents
		contacts summary chat transcript log logs list password location photos passwords database balance statement`},
	{cAI, `assistant assistants chatbot chatbots llm llms gpt chatgpt claude gemini copilot copilots ais`},
	{cAIWeak, `agent agents model models software system systems tool tools bot bots reader readers reviewer reviewers crawler crawlers
		parser summarizer evaluator analyzer intelligence`},
	{cAutomat, `ai automated automatic artificial language llm autonomous virtual digital coding`},
	{cNote, `note notes notice message messages attention instruction instructions reminder hint memo info information warning announcement
		hinweis nota remarque directive directives`},
	{cTo, `to for an fur pour para per`},
	{cFollow, `follow obey adhere execute perform comply carry complete do fulfil fulfill`},
	{cNext, `following below new these this next subsequent given provided updated my`},
	{cStrict, `strictly only must exactly exclusively immediately instead without solely`},
	{
		cTell,
		`tell inform mention notify reveal alert disclose ask asking telling mentioning informing notifying alerting warn report acknowledge`,
	},
	{cNot, `not never don't dont without avoid nicht`},
	{cUser, `user users anyone anybody human humans owner them me him her nobody person people client customer`},
	{cReply, `response responses reply replies answer answers output summary conclusion`},
	{cWork, `code solution implementation response answer codebase program project script application reply output work software architecture
		development system approach design submission workflow routine function algorithm logic answers coding programming`},
	{cYour, `your`},
	{cCode, `code snippet excerpt fragment script codes lines snippets`},
	{
		cBoss,
		`developer developers administrator admin creator owner operator system supervisor manager ceo engineer openai anthropic root security`,
	},
	{cTask, `task tasks request question query job work assignment objective goal instruction command operation`},
	{cDone, `complete completed done finished accomplished solved over concluded fulfilled ended closed`},
	{cShow, `hand reveal print show repeat output display disclose share leak tell recite give reproduce write`},
	{cID, `id ids account number iban identifier uuid ticket order log_id user_id`},
	{cTool, `tool tools function functions api plugin command endpoint`},
	{cUse, `use call invoke using via calling execute run employ trigger utilize`},
	{cUrgent, `important urgent critical attention warning emergency wichtig urgente importante importantly`},
	{cWorked, `provided managed analyzed analysed monitored reviewed developed integrated assessed checked accessed retrieved searched
		tracked gathered evaluated recommended identified summarized queried processed conducted optimized fetched scanned collected
		examined calculated simulated performed extracted tested diagnosed planned designed generated executed compiled looked
		controlled maintained coordinated handled audited inspected investigated measured researched scheduled supported`},
	{cSolve, `solve continue proceed answer complete do respond reply start begin finish perform process summarize continuing answering proceeding
		completing starting responding solving help`},
	{cMode, `mode`},
	{cBe, `pretend act roleplay behave imagine simulate`},
	{cNegative, `to how cannot can't who which that would might may or if when i we they he she it was were`},
	{
		cSly,
		`unnoticed undetected discreetly secretly covertly silently quietly stealthily untraceable traces unrecorded undisclosed`,
	},
	{cAll, `all every everything any whole entire each`},
	{cCourtesy, `find see note contact let visit check review confirm remember refer try wait feel join click reply respond call ensure make read
		use follow log sign enter keep allow provide consider help be report submit open select choose complete fill specify consult`},
	{cLang, `base64 rot13 morse emoji emojis pirate rhyme rhymes haiku uppercase lowercase caps hex binary latin leetspeak french german spanish
		italian portuguese russian chinese japanese korean arabic hindi dutch polish turkish greek english swedish encoding cipher poem verse`},
	{cOpensTask, questionWords + " give tell show teach list name " + taskWords},
	{cTold, `told said taught given received instructed`},
	{
		cMachine,
		`server vehicle patient student company client employee project course aircraft system sensor department customer user member`,
	},
}

// lexeme is what is known about a word.
type lexeme struct {
	class class
	wordRoles
	opens bool // an expression of the vocabulary begins with it
}

// lexicon is every word of classWords and of the vocabulary. The words go through the same folding as the texts.
// It is made at first use.
var lexicon = sync.OnceValue(func() map[string]lexeme {
	m := map[string]lexeme{}
	change := func(word string, f func(*lexeme)) {
		l := m[word]
		f(&l)
		m[word] = l
	}
	for _, w := range classWords {
		for word := range strings.FieldsSeq(w.list) {
			change(foldText(word), func(l *lexeme) { l.class |= w.class })
		}
	}
	for first := range byFirstWord {
		change(first, func(l *lexeme) { l.class |= cPhrase })
	}
	for word, roles := range vocab().words {
		change(word, func(l *lexeme) { l.wordRoles = roles })
	}
	for first := range vocab().expressions {
		change(first, func(l *lexeme) { l.opens = true })
	}
	return m
})

// lookUp returns what is known about a folded word, also about its form with 's or 'd and the part after an apostrophe,
// as in "l'utilisateur"; the zero value when nothing is. Misspellings of "instruction" count as orders: words of 9 to
// 16 bytes that begin with i or l and contain "struct", except infrastructure and instructor.
func lookUp(word string) lexeme {
	l, ok := lexicon()[word]
	l.wordRoles = l.with(vocab().rolesOfStem(word))
	if ok {
		return l
	}
	if len(word) >= 9 && len(word) <= 16 && (word[0] == 'i' || word[0] == 'l') && strings.Contains(word, "struct") &&
		!strings.HasPrefix(word, "infra") && !strings.HasSuffix(word, "or") && !strings.HasSuffix(word, "ors") {
		l.class = cOrders
		return l
	}
	if rest := cutParticle(word); l.role == 0 && rest != "" {
		return lexeme{wordRoles: lexicon()[rest].with(vocab().rolesOfStem(rest))}
	}
	before, after, ok := strings.Cut(word, "'")
	if !ok {
		return l
	}
	if after == "s" || after == "d" {
		l.class = lexicon()[before].class
		return l
	}
	l = lexicon()[after]
	l.wordRoles = l.with(vocab().rolesOfStem(after))
	if negation := lexicon()[before]; negation.role&rNot != 0 {
		l.wordRoles = l.with(negation.wordRoles)
	}
	return lexeme{wordRoles: l.wordRoles}
}

// cutParticle returns an Arabic or Hebrew word without the particle that is written as part of it, such as "to" or
// "and"; "" for other words.
func cutParticle(word string) string {
	if word[0] < 0xD7 || word[0] > 0xDB {
		return ""
	}
	if rest, ok := strings.CutPrefix(word, "لل"); ok {
		return "ال" + rest
	}
	for _, particle := range []string{"و", "ف", "ب", "ل", "ك", "ו", "ב", "ל", "מ", "ש", "כ", "ה"} {
		if rest, ok := strings.CutPrefix(word, particle); ok && len(rest) >= 6 {
			return rest
		}
	}
	return ""
}
