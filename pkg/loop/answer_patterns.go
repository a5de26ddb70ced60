package loop

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// The patterns in this file classify the text of an answer. Each prefers false negatives: a missed hedge costs one
// weaker answer, a false positive costs a search that nobody wanted. Patterns are compiled when they are first needed.

// isHedge reports whether an answer says that it cannot know current facts: no access to the web or to live data, or
// knowledge that ends at some date, in English. Other gaps ("I cannot know your name") are no hedge. Of an answer
// longer than 1200 characters only the first 300 and the last 200 count, so that a caveat in the middle is no hedge.
func isHedge(answer string) bool {
	s := normalizeApostrophes(answer)
	if utf8.RuneCountInString(s) > 1200 {
		s = firstRunes(s, 300) + "\n" + lastRunes(s, 200)
	}
	return hedgePattern().MatchString(s)
}

var hedgePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)` + strings.Join([]string{
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
	return !strings.HasSuffix(last, "?") && announcePattern().MatchString(last) && !offerPattern().MatchString(last)
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
