package loop

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// The patterns in this file classify the text of an answer. Each prefers false negatives: a missed hedge costs one
// weaker answer, a false positive costs a search that nobody wanted. Patterns are compiled when they are first needed.
// Each has a prefilter that must be changed with it.

// isHedge reports whether an answer says that it cannot know current facts: no access to the web or to live data, or
// knowledge that ends at some date. Other gaps ("I cannot know your name") are no hedge. Of an answer longer than 1200
// characters only the first 300 and the last 200 count, so that a caveat in the middle is no hedge.
func isHedge(answer string) bool {
	s := normalizeApostrophes(answer)
	if utf8.RuneCountInString(s) > 1200 {
		s = firstRunes(s, 300) + "\n" + lastRunes(s, 200)
	}
	return hedgePrefilter.passes(s) && hedgePattern().MatchString(s)
}

var hedgePrefilter = prefilter{
	"do not", "don't", "cannot", "can't", "not able", "unable", "ability to", "access to", "tool to",
	"tools to", "as of my", "my knowledge", "my training", "not aware of", "not up to date", "kein", "mein wissen",
	"mein trainings", "im internet", "das internet", "das web", "je n'ai pas", "ma derni", "ma base de",
	"no tengo acceso",
	"mi última", "mi conocimiento", "tenho acesso", "non ho accesso",
}

var hedgePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)` + strings.Join([]string{
		// English
		`\b(?:i|we) (?:do not|don't|don’t|cannot|can't|can’t|am not able to|am unable to|` +
			`currently (?:do not|don't)) (?:currently |actually |directly )?` +
			`(?:have |get |access |provide |browse |search |check |look up |retrieve )?` +
			`(?:any |direct |live |up-to-date |up to date )*(?:access to )?(?:the )?` +
			`(?:real[- ]?time|live|current|up-to-date|latest|the internet|internet|web|online)\b`,
		`\b(?:don't|don’t|do not|lack|without|no) (?:have )?(?:the )?(?:ability|capability|access|tools?) to ` +
			`(?:browse|search the (?:web|internet)|access (?:the (?:web|internet)|real[- ]?time|live|current)|` +
			`check (?:live|current|real[- ]?time))`,
		`\b(?:can(?:not|'t|’t)|unable to|not able to) (?:browse|search the (?:web|internet)|` +
			`access the (?:web|internet)|look (?:it|that|this) up online)`,
		`\bas of my (?:last|latest|most recent) (?:update|training|knowledge)`,
		`\bmy (?:knowledge|training)(?: data)? (?:cut[- ]?off|(?:only )?(?:goes|extends|ends|stops)|` +
			`was last updated|is (?:limited|current) (?:to|as of))`,
		`\b(?:beyond|after) my (?:knowledge|training) cut[- ]?off`,
		`\bi(?:'m| am|’m) (?:not (?:aware of|up to date on) (?:any )?(?:current|recent|the latest) )`,
		// German
		`\b(?:ich )?(?:habe|verfüge über) (?:leider |derzeit |aktuell )*kein(?:en|e) ` +
			`(?:direkten |aktuellen )?(?:zugriff|zugang|echtzeit\S*) ?(?:auf|zu|zum)? ?` +
			`(?:echtzeit|aktuelle|live|das internet|internet|daten)?`,
		`\bmein (?:wissen(?:sstand)?|trainings\S*) (?:endet|reicht (?:nur )?bis|ist (?:auf dem )?stand)`,
		`\bkann (?:leider )?(?:nicht )?(?:im internet|das internet|das web) (?:nicht )?(?:suchen|durchsuchen|` +
			`zugreifen)`,
		// French
		`\bje n['’]ai pas (?:d['’])?acc[eè]s (?:à |aux |au )?(?:internet|informations? (?:en temps réel|actuelles)|` +
			`données (?:en temps réel|actuelles)|en temps réel)`,
		`\bma (?:dernière mise à jour|base de connaissances s['’]arrête)`,
		// Spanish, Portuguese, Italian
		`\bno tengo acceso a (?:internet|información (?:en tiempo real|actual\S*)|datos (?:en tiempo real|actual\S*))`,
		`\bmi (?:última actualización|conocimiento (?:llega|termina))`,
		`\bnão tenho acesso (?:à internet|a informações (?:em tempo real|atuais|atualizadas)|a dados em tempo real)`,
		`\bnon ho accesso (?:a internet|a informazioni (?:in tempo reale|aggiornate)|a dati in tempo reale)`,
	}, "|"))
})

// announcesAction reports whether the last sentence of a reply announces an action. Questions, offers ("shall I
// search?", "let me know"), empty replies and replies longer than 900 characters do not count.
func announcesAction(reply string) bool {
	s := normalizeApostrophes(reply)
	if s == "" || utf8.RuneCountInString(s) > 900 {
		return false
	}
	last := lastSentence(s)
	if strings.HasSuffix(last, "?") || !announcePrefilter.passes(last) || offerPattern().MatchString(last) {
		return false
	}
	return announcePattern().MatchString(last)
}

var announcePrefilter = prefilter{
	"i'll", "i will", "i am going to", "i'm going to", "i need to", "i should", "i shall", "let me",
	"let's", "moment", "hold on", "please wait", "searching", "looking up", "fetching", "checking", "querying",
	"calling",
	"running", "ich werde", "ich muss", "mich", "ich suche", "ich schaue", "ich prüfe", "ich recherchiere", "ich sehe",
	"je vais", "laisse", "permettez-moi", "voy a", "déjame", "dejame", "permíteme", "vou", "deixe-me", "deixa-me",
	"vado a", "lasciami", "fammi", "ora",
}

var announcePattern = sync.OnceValue(func() *regexp.Regexp {
	const verbs = `(?:search|look (?:it|this|that|up|for|into)|looking|check|fetch|find|retrieve|query|browse|call|` +
		`use the|` +
		`run|execute|read|open|list|get|gather|consult|verify|do (?:that|this|a|the)|start by|begin by|save|write|` +
		`create|` +
		`send|update|delete|download|inspect|see what|take a look)`
	return regexp.MustCompile(`(?i)^(?:` + strings.Join([]string{
		// English
		`(?:(?:ok(?:ay)?|sure|certainly|of course|alright|great|now|next|first|then|so|to (?:answer|do|find|get|` +
			`help)[^,]{0,80})[,.!: ]+)*` +
			`(?:i(?:'ll|’ll| will| am going to|'m going to|’m going to| need to| should| shall)|let me|let's|let’s)` +
			`(?: now| first| then| just| quickly| also| go ahead and| try to| have to| need to)* ` + verbs + `\b`,
		`(?:one moment|just a moment|give me a moment|hold on|please wait)\b.{0,80}(?:while i|as i|search|check|` +
			`look|fetch)`,
		`(?:searching|looking up|fetching|checking|querying|calling|running)\b.{0,120}(?:\.\.\.|…|:)$`,
		// German
		`(?:ok(?:ay)?|gut|nun|zuerst|dann|klar|gerne)?[,.!: ]*(?:ich werde|ich muss|lass(?:en sie)? mich|` +
			`lasst mich)\b.{0,160}` +
			`\b(?:such\S*|nachsehen|nachschauen|prüfen|überprüfen|abrufen|lesen|öffnen|ausführen|aufrufen|verwenden|` +
			`nutzen|` +
			`recherchieren|speichern|schreiben|erstellen|durchsuchen|nachschlagen)\b`,
		`ich (?:suche|schaue|prüfe|recherchiere|sehe) (?:jetzt|nun|das|kurz|schnell|einmal|mal)\b`,
		// French
		`(?:d['’]accord|bien sûr|d['’]abord)?[,.!: ]*(?:je vais|laisse(?:z)?-moi|permettez-moi de)\b.{0,40}` +
			`\b(?:rechercher|chercher|vérifier|consulter|lire|ouvrir|exécuter|utiliser|appeler|trouver|regarder)\b`,
		// Spanish, Portuguese, Italian
		`(?:claro|vale|primero)?[,.!: ]*(?:voy a|déjame|dejame|permíteme)\b.{0,40}` +
			`\b(?:buscar|revisar|comprobar|consultar|leer|abrir|ejecutar|usar|verificar|encontrar)\b`,
		`(?:claro|primeiro)?[,.!: ]*(?:vou|deixe-me|deixa-me)\b.{0,40}\b(?:pesquisar|buscar|procurar|verificar|` +
			`consultar|ler|abrir|executar|usar)\b`,
		`(?:certo|prima)?[,.!: ]*(?:vado a|lasciami|fammi|ora)\b.{0,40}\b(?:cercare|cerco|controllare|verificare|` +
			`consultare|leggere|aprire|eseguire)\b`,
	}, "|") + `)`)
})

// offerPattern matches offers and conditions: the model rightly waits for the user.
var offerPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`(?i)\blet me know\b|\bif you(?:'d| would)? (?:like|want|need|prefer|tell|share|give|provide|can)|` +
			`\b(?:would|do) you (?:like|want)|\bonce you|\bwhen you|\bas soon as you|\buntil you|\bhappy to\b|` +
			`\bglad to\b|` +
			`\bwenn sie|\bfalls (?:sie|du)|\bwenn du|\bsi (?:vous|tu)\b|\bsi (?:quieres|desea)|\bse (?:quiser|vuoi)`)
})

// claimsAction reports whether an answer claims that a tool was used, one of n or in general, or that something was
// done outside of the conversation. The caller asks only when no call ran, so the claim is false. Texts that a model
// can write by itself ("I have written a poem") are no claim. Of an answer longer than 2000 characters only the first
// 800 and the last 400 count.
func claimsAction(answer string, n toolNames) bool {
	s := normalizeApostrophes(answer)
	if utf8.RuneCountInString(s) > 2000 {
		s = firstRunes(s, 800) + "\n" + lastRunes(s, 400)
	}
	if !claimPrefilter.passes(s) {
		return false
	}
	if claimPattern().MatchString(s) {
		return true
	}
	for _, m := range usedToolPattern().FindAllStringSubmatch(s, 8) {
		if n.has(m[1]) {
			return true
		}
	}
	return false
}

// claimPrefilter is the prefilter of claimPattern and usedToolPattern.
var claimPrefilter = prefilter{
	" i ", " i've ", " successfully ", " erfolgreich ", " search", " ich habe ", " j'ai ",
	" he buscado", " he guardado", " he creado", " he enviado",
}

var usedToolPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?i)\\bi(?:'ve| have|’ve)? (?:just |already |now |successfully " +
		")?(?:used|called|ran|run|executed|invoked) (?:the )?[`\"'*]*([a-z0-9_.-]+)")
})

var claimPattern = sync.OnceValue(func() *regexp.Regexp {
	const i = `\bi(?:'ve| have|’ve)? (?:just |already |now |successfully |also )?`
	const lead = `(?:` + i + `|\b(?:successfully|erfolgreich) )`
	return regexp.MustCompile(`(?i)` + strings.Join([]string{
		i +
			`(?:searched|checked|browsed|looked (?:it |this |that )?(?:up )?(?:on|in|through)) ` +
			`(?:the |your |my )?(?:web|internet|online|memory|memories|files?|folder|knowledge graph)\b`,
		i +
			`(?:saved|stored|remembered|recorded|added) (?:it|this|that|your [a-z ]{1,40}|the [a-z ]{1,40}) ` +
			`(?:to|in|into) (?:the |your |my |long-term )?(?:memory|memories|file|disk|knowledge|database)\b`,
		lead +
			`(?:created|written|wrote|saved|deleted|removed|updated|edited|modified) ` +
			`(?:the |a |an |your )?(?:new )?(?:file|folder|directory)\b`,
		lead +
			`(?:sent|forwarded|scheduled) (?:the |an |your |a )?(?:e-?mail|message|invitation|meeting|notification|` +
			`reminder)\b`,
		lead + `(?:executed|ran|run) (?:the |your |this |that |a )?(?:command|script|code|program|tests?)\b`,
		lead +
			`(?:fetched|downloaded|opened|visited) (?:the |that |this |your )?(?:page|url|site|website|link|article)\b`,
		lead + `installed (?:the |your )?(?:package|module|library)`,
		`\b(?:based on|according to) (?:my|the) (?:web |internet |online )?search(?: results)?\b`,
		`\b(?:the|my) (?:web |internet )?search (?:results? )?(?:shows?|returned|found|revealed)\b`,
		// German
		`\bich habe (?:gerade |soeben |bereits )?(?:das internet|das web|im internet|im web|online|` +
			`im speicher)[^.]{0,40}(?:durchsucht|gesucht|nachgesehen|recherchiert)`,
		`\bich habe (?:die|eine|den|das|deine|ihre) (?:datei|ordner|e-?mail|nachricht)[^.]{0,60}(?:erstellt|` +
			`gespeichert|geschrieben|gelöscht|gesendet|verschickt|geändert)`,
		// French, Spanish
		`\bj['’]ai (?:effectué une recherche|recherché sur (?:le web|internet)|enregistré le fichier|` +
			`créé le fichier|envoyé (?:le|un) (?:e-?mail|message))`,
		`\bhe (?:buscado en (?:internet|la web)|guardado el archivo|creado el archivo|enviado (?:el|un) (?:correo|` +
			`mensaje))`,
	}, "|"))
})

// examplePattern matches the announcement of an example.
var examplePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`(?i)\bexamples?\b|\be\.g\.|\bfor instance\b|\bsample\b|\blooks? like\b|\bwould be\b|\bformat\b|` +
			`\byou (?:can|could|would|might)\b|\bbeispiel|\bz\. ?b\.|\bexemple|\bejemplo|\bexemplo|\besempio`)
})

// lastSentence is the last sentence of the last line of s, without the Markdown marks before it.
func lastSentence(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	end := len(strings.TrimRight(s, ".!?:… "))
	for _, sep := range []string{". ", "! ", "? "} {
		if i := strings.LastIndex(s[:end], sep); i >= 0 {
			s, end = s[i+len(sep):], end-i-len(sep)
		}
	}
	return strings.TrimLeft(s, "*_#>- ")
}

// normalizeApostrophes trims s and makes its apostrophes plain, so that the patterns stay short.
func normalizeApostrophes(s string) string {
	return strings.ReplaceAll(strings.TrimSpace(s), "’", "'")
}
