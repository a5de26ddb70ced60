package critic

import (
	"regexp"
	"strings"
	"sync"
)

// language is the rules for claims in one language.
type language struct {
	mayBe         func(low string) bool // quick test whether a clause may be in this language
	negation      *regexp.Regexp        // before or inside of the claim: it was not done, or is only possible
	otherTime     *regexp.Regexp        // anywhere in the clause: it was done at another time, or by others
	already       *regexp.Regexp        // a lasting effect may be of an earlier turn
	otherOccasion *regexp.Regexp        // before a passive: it is about another occasion
	rules         []rule
}

// rule is a pattern of a claim, and the tools one of which would have done it.
type rule struct {
	pattern *regexp.Regexp
	needs   []string
	lasts   bool // its effect persists in later turns
	passive bool
}

// Tools by what they do.
var (
	webTools    = []string{"web_search", "web_fetch"}
	pageTools   = []string{"web_fetch"}
	searchTools = []string{
		"web_search", "web_fetch", "search_memory", "search_knowledge_graph", "fs_search",
		"fs_list", "fs_read", "academic_search", "calendar_read", "notes_read",
	}
	recallTools  = []string{"search_memory", "search_knowledge_graph"}
	rememberTool = []string{"save_memory"}
	keepTools    = []string{"save_memory", "notes_add", "calendar_add", "fs_write", "run_code", "run_shell"}
	readTools    = []string{"notes_read", "calendar_read", "fs_read", "fs_list", "fs_search", "run_code", "run_shell"}
	writeTools   = []string{"notes_add", "calendar_add", "fs_write", "run_code", "run_shell"}
	runTools     = []string{"run_code", "run_shell"}
	installTools = []string{"package_install", "run_shell"}
	clockTools   = []string{"get_datetime", "run_code", "run_shell"}
)

// claimPattern compiles a pattern for lower-case text. Names in braces, such as {file}, stand for the alternatives
// below. It panics on an invalid pattern.
func claimPattern(pattern string) *regexp.Regexp {
	return regexp.MustCompile(strings.NewReplacer(
		"{I}",
		`\b(?:i|i've|i have)(?: (?:have|just|also|then|first|now|already|actually|really|quickly|successfully|briefly|carefully|indeed|even|went ahead and|did some|double|gone ahead and))*`,
		"{web}", `(?:the )?(?:web|internet|net|google|online sources)`,
		"{file}",
		`(?:(?:the|a|an|your|this|that|it|all|new|both|these|following|empty|whole|entire|existing) )*(?:(?:[\w-]+ ){0,2}(?:files?|folders?|director(?:y|ies)|spreadsheet|csv)\b|[\w./~-]*\w\.(?:txt|md|go|py|js|ts|json|ya?ml|csv|html|css|sh|pdf|docx?|xlsx?|toml|rs|java|c|cpp|log)\b)`,
		"{code}",
		`(?:(?:the|this|that|your|a|an|it|all|following|above|test|unit|whole|entire|python|shell|go) )*(?:(?:code|scripts?|programs?|commands?|snippets?|tests?|test suite|simulation|query|function|it)\b|§)`,
		"{page}",
		`(?:(?:the|this|that|your|a|an|its|their|official|linked|actual|full|whole|entire|web|home|wikipedia|news) )*(?:web ?pages?|pages?|web ?sites?|sites?|articles?|links?|urls?|blog posts?|homepage|wikipedia)\b`,
		"{that}",
		`(?:that|this|it|your \w+(?: \w+)?|the (?:information|fact|preference|note|details?|date|appointment|reminder)s?)`,
		"{Datei}",
		`(?:die|eine|deine|ihre|diese|alle|den|einen|das|ein)(?: \S+){0,2}? (?:datei(?:en)?|ordner|verzeichnis|dokument)|\S+\.(?:txt|md|go|py|json|csv)`,
		"{fichier}",
		`(?:le|un|ce|votre|ton|les|la|une)(?: \S+){0,2}? (?:fichiers?|dossiers?)|\S+\.(?:txt|md|go|py|json|csv)`,
		"{archivo}",
		`(?:el|un|este|tu|su|los|la|una)(?: \S+){0,2}? (?:archivos?|ficheros?|carpetas?)|\S+\.(?:txt|md|go|py|json|csv)`,
	).Replace(pattern))
}

// languages are the rules of all languages. They are compiled at first use: most commands never judge an answer.
var languages = sync.OnceValue(func() []language { return []language{english(), german(), french(), spanish()} })

func english() language {
	return language{
		mayBe: func(low string) bool {
			return strings.HasPrefix(low, "i ") || strings.HasPrefix(low, "i'") || strings.Contains(low, " i ") ||
				strings.Contains(low, " i'") ||
				strings.Contains(low, " been ") || strings.Contains(low, " search") ||
				strings.Contains(low, " successfully ") || strings.Contains(low, " now ")
		},
		negation: regexp.MustCompile(
			`n't\b|\b(?:not|never|cannot|without|nor|neither|hardly|unable|failed|tried|try|if|unless|whether|would|could|should|might|may|can|will|going to|plan|want|wanted|need|let me|wish|imagine|suppose|` +
				`as though|until|once|instead of|rather than|no one|nobody|example|e\.g\.|` +
				`(?:you|he|she|they|who|people|user|person|author|someone|somebody)(?:'ve| have| has)? (?:say|says|said|think|thinks|thought|ask|asks|asked|claim|claims|claimed|believe|believes|believed|assume|assumed|mean|meant|write|writes|wrote))\b|\b(?:i|you|he|she|it|they|we)'(?:ll|d)\b`),
		otherTime: regexp.MustCompile(
			`\b(?:earlier|previously|yesterday|last (?:time|week|month|year|night|session|conversation)|ago|in (?:our|an?|the) (?:previous|earlier|last) \w+|back then|as a (?:child|kid|student)|` +
				`(?:that |which )?you(?:'ve| have)? (?:just )?(?:attached|pasted|provided|sent|shared|uploaded|gave|given|included|posted|quoted)|you typed|above|in (?:19|20)\d\d)\b`),
		already: regexp.MustCompile(`\balready\b`),
		otherOccasion: regexp.MustCompile(
			`\b(?:if|when|whenever|once|after|until|before|unless|whether|ensure|make sure|check|verify|confirm|see|means|that|because|since|says?|assuming)\b`),
		rules: []rule{
			{
				pattern: claimPattern(
					`{I} (?:searched|checked|scoured|browsed|combed|looked (?:through|in|into|at)|gone through|went through|queried|consulted|did search) (?:through |in |into )?(?:my|the|our) (?:own |long-term |stored )?(?:memory|memories|knowledge graph)\b`), needs: recallTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:searched|browsed|scoured|checked|consulted|did search|surfed|combed|looked (?:on|through|it up on|this up on|that up on|up on)) (?:on |through )?{web}\b`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:searched|looked|checked|browsed|read|researched|did look)(?: \S+){0,6}? (?:online|on the (?:web|internet)|on google)\b`), needs: webTools,
			},
			{pattern: claimPattern(`{I} (?:googled|web-searched)\b`), needs: webTools},
			{
				pattern: claimPattern(
					`{I} (?:did|done|ran|run|performed|conducted|made|carried out)(?: (?:a|an|some|quick|brief|thorough|short|several|two|three|few|multiple|another|recent))* (?:web|online|internet|google) (?:search|searches|research|lookup)\b`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:did|done|ran|run|performed|conducted|made|carried out)(?: (?:a|an|some|quick|brief|thorough|short|several|two|three|few|multiple|another))* (?:search|searches|lookup)\b`), needs: searchTools,
			},
			{
				pattern: claimPattern(
					`\b(?:according to|based on|from|per) (?:my|the) (?:recent |latest |quick |own )?(?:web |online |internet |google )(?:search(?:es)?|research)\b`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`\b(?:according to|based on|from|per) (?:my (?:recent |latest |quick |own )?search(?:es)?|the search results)\b`), needs: searchTools,
			},
			{
				pattern: claimPattern(
					`\b(?:my|the) (?:web |online |internet |google )?search(?:es)? (?:results? )?(?:show|shows|showed|found|turned up|returned|revealed|indicate|indicates|brought up)\b`), needs: searchTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:visited|opened|fetched|loaded|accessed|browsed|downloaded|retrieved|pulled up|read|read through|checked|went to|looked at|scraped) {page}`), needs: pageTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:saved|stored|added|recorded|committed|put|noted|written|kept)(?: \S+){0,8}? (?:in|to|into) (?:my |the |your |our |long-term )*(?:memory|memories|knowledge graph)\b`), needs: rememberTool, lasts: true,
			},
			{
				pattern: claimPattern(
					`{I} (?:made|taken|took|left) (?:a |myself a )?notes? (?:of|that|about|to remember)\b`),
				needs: keepTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\b(?:i've|i have)(?: (?:just|now|also|already))* (?:noted|remembered|memorized|memorised|stored|recorded|written down) {that}(?: (?:down|for|in|as|so)\b.*)?$`), needs: keepTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`{I} (?:saved|stored|wrote|written|exported)(?: \S+){0,6}? (?:to|in|into|as|under|on) (?:{file}|disk\b)`), needs: writeTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`{I} (?:wrote|written|created|saved|updated|edited|modified|changed|deleted|removed|renamed|moved|overwrote|made|generated|appended to|set up) {file}`), needs: writeTools, lasts: true,
			},
			{pattern: claimPattern(`{I} (?:saved|stored) {that}\b`), needs: keepTools, lasts: true},
			{
				pattern: claimPattern(
					`{I} (?:read|opened|looked (?:at|through|into|in)|checked|inspected|examined|reviewed|scanned|listed|searched|searched through|gone through|went through) {file}`), needs: readTools,
			},
			{pattern: claimPattern(`{I} (?:ran|run|executed|compiled|tested|did run) {code}`), needs: runTools},
			{
				pattern: claimPattern(`{I} (?:installed|did install|pip installed) (?:the |a |all |your )?(?:\S+)`),
				needs:   installTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`{I} (?:checked|looked at|looked up|verified|read) (?:the |your |today's )?(?:current |system |exact |local )?(?:time|date|clock|date and time)\b`), needs: clockTools,
			},
			{
				pattern: claimPattern(
					`{I} (?:looked|did look) (?:it|this|that|them|these|everything) up\b|{I} looked up\b`),
				needs: searchTools,
			},
			{
				pattern: claimPattern(`{I} (?:searched|did search|conducted searches|was searching) (?:for|around)\b`),
				needs:   searchTools,
			},
			{
				pattern: claimPattern(
					`\b(?:the|your|a|all) (?:\S+ ){0,3}?(?:files?|folders?|director(?:y|ies)|documents?|spreadsheet|csv) (?:§ |\S+\.\w+ )?(?:has been|have been|was successfully|were successfully|is now|are now) (?:successfully |now )?(?:created|saved|written|updated|generated)\b`), needs: writeTools, lasts: true, passive: true,
			},
			{
				pattern: claimPattern(
					`(?:^|\b(?:and|the|this|that) )\S+\.(?:txt|md|go|py|js|json|ya?ml|csv|html|sh) (?:has been|was successfully|is now) (?:successfully |now )?(?:created|saved|written|updated)\b`), needs: writeTools, lasts: true, passive: true,
			},
			{
				pattern: claimPattern(
					`\b(?:this|that|it|your (?:\S+ ){0,3}?|the (?:note|information|fact|preference|reminder)) ?(?:has been|have been|was successfully) (?:successfully |now )?(?:saved|stored|remembered|memorized|noted)(?: (?:down|(?:for|to|in) (?:my|your|our|later|next|future|memory|the memory)\b.*))?$`), needs: keepTools, lasts: true, passive: true,
			},
			{
				pattern: claimPattern(
					`\b(?:the|your) (?:\S+ )?(?:code|script|program|command|tests?) (?:has been|have been|was successfully|were successfully) (?:successfully )?(?:run|executed|tested)\b`), needs: runTools, passive: true,
			},
			{
				pattern: claimPattern(
					`\b(?:the|your|all) (?:\S+ ){0,2}?(?:packages?|librar(?:y|ies)|dependenc(?:y|ies)|modules?) (?:has been|have been|was successfully|were successfully|is now|are now) (?:successfully |now )?installed\b`), needs: installTools, lasts: true, passive: true,
			},
		},
	}
}

func german() language {
	return language{
		mayBe: func(low string) bool {
			return strings.Contains(low, "habe") || strings.Contains(low, "suche") || strings.Contains(low, "wurde")
		},
		negation: regexp.MustCompile(
			`\b(?:nicht|nie|niemals|kein|keine|keinen|keiner|ohne|wenn|falls|ob|bevor|sobald|hätte|könnte|würde|als ob|statt|angenommen|beispiel|sagst|sagtest|meinst|fragst)\b`),
		otherTime: regexp.MustCompile(
			`\b(?:gestern|früher|vorhin|damals|letzte[nsmr]? (?:woche|mal|monat|jahr)|vor (?:\S+ ){1,2}(?:tagen|wochen|monaten|jahren)|die du (?:mir )?(?:geschickt|gegeben|eingefügt)|von dir geschickte[ns]?)\b`),
		already:       regexp.MustCompile(`\b(?:bereits|schon)\b`),
		otherOccasion: regexp.MustCompile(`\b(?:wenn|falls|nachdem|sobald|bevor|ob|dass|weil|bis)\b`),
		rules: []rule{
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,6}? (?:gedächtnis|erinnerungen)(?: \S+){0,3}? (?:nachgesehen|nachgeschaut|gesucht|durchsucht|geprüft)\b`), needs: recallTools,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,6}? (?:im internet|im netz|im web|online|bei google|auf google)(?: \S+){0,6}? (?:gesucht|nachgesehen|nachgeschaut|recherchiert|nachgeschlagen|gelesen|gefunden)\b`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,4}? (?:das web|das internet|das netz) (?:durchsucht|abgesucht)\b|\b(?:ich habe|habe ich)(?: \S+){0,5}? gegoogelt\b|\b(?:ich habe|habe ich) (?:eine|noch eine) (?:websuche|internetsuche|online-suche|web-suche)(?: \S+){0,4}? (?:durchgeführt|gemacht)\b`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`\b(?:laut|nach) meiner (?:websuche|internetsuche|online-suche|internetrecherche)\b`),
				needs: webTools,
			},
			{
				pattern: claimPattern(
					`\b(?:laut|nach) meiner (?:suche|recherche)\b|\bmeine (?:suche|recherche) (?:ergab|zeigt|zeigte|hat ergeben)\b|\b(?:ich habe|habe ich)(?: \S+){0,4}? (?:nachgeschlagen|recherchiert)\b`), needs: searchTools,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,3}? (?:die|eine|diese|den|das) (?:\S+ ){0,2}?(?:seite|webseite|website|artikel|link)(?: \S+){0,4}? (?:geöffnet|abgerufen|gelesen|besucht|aufgerufen|geladen)\b`), needs: pageTools,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,3}? (?:{Datei})(?: \S+){0,5}? (?:erstellt|angelegt|gespeichert|geschrieben|geändert|gelöscht|aktualisiert|umbenannt|erzeugt)\b`), needs: writeTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,3}? (?:{Datei})(?: \S+){0,5}? (?:gelesen|geöffnet|angesehen|durchsucht|geprüft)\b`), needs: readTools,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: \S+){0,3}? (?:den|das|die) (?:\S+ )?(?:code|skript|programm|befehl|tests?)(?: \S+){0,4}? (?:ausgeführt|getestet|laufen lassen|kompiliert)\b`), needs: runTools,
			},
			{
				pattern: claimPattern(`\b(?:ich habe|habe ich)(?: \S+){0,6}? installiert\b`), needs: installTools,
				lasts: true,
			},
			{
				pattern: claimPattern(
					`\b(?:ich habe|habe ich)(?: mir)?(?: (?:das|es|dies|diese information|deine \S+))?(?: \S+){0,5}? (?:gespeichert|gemerkt|notiert|abgespeichert)\b`), needs: keepTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\b(?:die|deine|ihre) (?:\S+ )?datei(?:en)? (?:§ )?(?:wurden?|ist jetzt|ist nun) (?:\S+ ){0,3}?(?:erstellt|gespeichert|angelegt|geschrieben|gelöscht|aktualisiert)\b`), needs: writeTools, lasts: true, passive: true,
			},
		},
	}
}

func french() language {
	return language{
		mayBe: func(low string) bool {
			return strings.Contains(low, "j'ai") || strings.Contains(low, "recherche") ||
				strings.Contains(low, "fichier")
		},
		negation: regexp.MustCompile(
			`\b(?:pas|jamais|sans|si|quand|lorsque|aurais|pourrais|voudrais|avant de|dès que|exemple|comme si|n'ai)\b`),
		otherTime: regexp.MustCompile(
			`\b(?:hier|auparavant|la (?:dernière|semaine dernière)|il y a|(?:que )?(?:tu|vous) (?:m'as|m'avez|as|avez) (?:envoyé|fourni|collé|donné))\b`),
		already:       regexp.MustCompile(`\bdéjà\b|déjà`),
		otherOccasion: regexp.MustCompile(`\b(?:si|quand|lorsque|une fois|après|avant|que)\b`),
		rules: []rule{
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:consulté|vérifié|parcouru|cherché dans|fouillé) (?:dans )?(?:ma mémoire|mes souvenirs)`), needs: recallTools,
			},
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:cherché|recherché|regardé|vérifié|trouvé)(?: \S+){0,6}? (?:sur internet|sur le web|sur le net|en ligne|sur google)\b|\bj'ai (?:\S+ ){0,2}?(?:effectué|fait|lancé) une recherche (?:web|internet|en ligne|sur internet|sur le web)\b`), needs: webTools,
			},
			{
				pattern: claimPattern(`\b(?:d'après|selon|suite à) ma recherche (?:web|internet|en ligne)\b`),
				needs:   webTools,
			},
			{
				pattern: claimPattern(
					`\b(?:d'après|selon|suite à) (?:ma recherche|mes recherches)\b|\bj'ai (?:\S+ ){0,2}?(?:effectué|fait|lancé) (?:une|quelques|des) (?:\S+ )?recherches?\b`), needs: searchTools,
			},
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:ouvert|visité|consulté|lu|chargé) (?:la|une|cette|le|l'|un|cet) ?(?:\S+ ){0,2}?(?:page|site|article|lien)`), needs: pageTools,
			},
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:créé|écrit|enregistré|sauvegardé|modifié|supprimé|mis à jour|généré) (?:{fichier})`), needs: writeTools, lasts: true,
			},
			{
				pattern: claimPattern(`\bj'ai (?:\S+ ){0,2}?(?:lu|ouvert|consulté|examiné|parcouru) (?:{fichier})`),
				needs:   readTools,
			},
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:exécuté|lancé|testé|compilé) (?:le|ce|votre|ton|la|les) (?:\S+ )?(?:code|script|programme|commande|tests?)\b`), needs: runTools,
			},
			{
				pattern: claimPattern(`\bj'ai (?:\S+ ){0,2}?installé\b|\bj'ai (?:\S+ ){0,2}?installé `),
				needs:   installTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\bj'ai (?:\S+ ){0,2}?(?:enregistré|mémorisé|sauvegardé|noté) (?:cela|ça|ceci|cette|ces|votre|vos|ton|tes|l'information|que)`), needs: keepTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\ble fichier (?:§ )?a (?:bien )?été (?:\S+ )?(?:créé|enregistré|sauvegardé|modifié|supprimé|mis à jour)`), needs: writeTools, lasts: true, passive: true,
			},
		},
	}
}

func spanish() language {
	return language{
		mayBe: func(low string) bool {
			for _, w := range []string{
				" he ", "busqué", "guardé", "ejecuté", "leí", "creé", "instalé", "abrí",
				"búsqueda", "archivo", "consulté", "escribí",
			} {
				if strings.Contains(low, w) {
					return true
				}
			}
			return strings.HasPrefix(low, "he ")
		},
		negation: regexp.MustCompile(
			`\b(?:no|nunca|jamás|sin|si|cuando|hubiera|habría|podría|antes de|ejemplo|como si)\b`),
		otherTime: regexp.MustCompile(
			`\b(?:ayer|antes|anteriormente|la (?:semana pasada|última vez)|hace (?:\S+ ){1,2}(?:días|semanas|meses|años)|que (?:me )?(?:enviaste|diste|pegaste|has enviado))\b`),
		already:       regexp.MustCompile(`\bya\b`),
		otherOccasion: regexp.MustCompile(`\b(?:si|cuando|una vez|después|antes|que)\b`),
		rules: []rule{
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:consultado|revisado|buscado en)|consulté|revisé|busqué en) (?:mi memoria|mis recuerdos)\b`), needs: recallTools,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:buscado|consultado|encontrado|mirado)|busqué|consulté)(?: \S+){0,6}? (?:en internet|en la web|en línea|en google|por internet)(?:\s|$|,)`), needs: webTools,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:hecho|realizado)|realicé|hice) una búsqueda (?:web|en internet|en línea|en la web)`), needs: webTools,
			},
			{
				pattern: claimPattern(`\bsegún (?:mi búsqueda|mis búsquedas|los resultados de (?:mi|la) búsqueda)`),
				needs:   searchTools,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:abierto|visitado|leído|cargado)|abrí|visité|leí) (?:la|una|esa|esta|el|un) (?:\S+ ){0,2}?(?:página|sitio|artículo|enlace)`), needs: pageTools,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:creado|escrito|guardado|modificado|eliminado|actualizado|borrado)|creé|escribí|guardé) (?:{archivo})`), needs: writeTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:leído|abierto|revisado|examinado)|leí|abrí|revisé) (?:{archivo})`),
				needs: readTools,
			},
			{
				pattern: claimPattern(
					`(?:\bhe (?:\S+ )?(?:ejecutado|probado|compilado)|ejecuté|probé) (?:el|este|tu|su|la|los) (?:\S+ )?(?:código|script|programa|comando|pruebas?)`), needs: runTools,
			},
			{pattern: claimPattern(`(?:\bhe (?:\S+ )?instalado|instalé)\s`), needs: installTools, lasts: true},
			{
				pattern: claimPattern(
					`(?:\blo he|\bla he|\bhe (?:\S+ )?) ?(?:guardado|memorizado|anotado)(?: (?:eso|esto|esa|esta|tu|su|la información)|$|\s*en mi memoria)|(?:lo |la )?guardé (?:eso|esto|esa|en mi memoria)`), needs: keepTools, lasts: true,
			},
			{
				pattern: claimPattern(
					`\bel archivo (?:§ )?(?:ha sido|se ha|fue) (?:\S+ )?(?:creado|guardado|escrito|modificado|eliminado|actualizado)`), needs: writeTools, lasts: true, passive: true,
			},
		},
	}
}
