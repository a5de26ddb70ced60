package generator

import (
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// SelectWithheldTools returns the tools that a constrained decision about the user's words may not choose, because they
// do not fit them: small models choose some tool for a question that needs none. Nothing is stored for words that end
// with a question mark (the answer to them is remembered anyway), and the clock is not read for words without one about
// time. Words in another script than Latin are not judged.
func SelectWithheldTools(words string) (names []string) {
	if strings.HasSuffix(strings.TrimRight(words, " \n\"')»”"), "?") {
		names = append(names, saveTool)
	}
	if !mentionsTime(words) {
		names = append(names, clockTool)
	}
	return names
}

// timeWords are words of questions that the clock can answer, folded, in the languages of the shipped examples and
// their neighbours. A word too many leaves the decision to the model; a missing one takes the clock away, so that lists
// are generous.
var timeWords = text.WordSet(`
	time times clock oclock date day days today tonight now hour hours minute minutes second seconds week weeks weekend weekday month months
	year years morning evening afternoon noon midnight tomorrow yesterday until till ago late timezone birthday anniversary christmas easter
	monday tuesday wednesday thursday friday saturday sunday
	january february march april may june july august september october november december
	uhr uhrzeit zeit spat datum tag tage tagen wochentag heute jetzt stunde stunden minute minuten woche wochen wochenende monat monate monaten
	jahr jahre jahren morgen gestern abend nachmittag mittag mitternacht bis geburtstag weihnachten ostern silvester neujahr
	montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag januar februar marz mai juni juli oktober dezember
	hora horas fecha dia dias hoy ahora minuto minutos semana semanas mes meses ano anos manana ayer tarde noche mediodia medianoche faltan falta
	cumpleanos navidad lunes martes miercoles jueves viernes sabado domingo
	enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
	heure heures jour jours aujourd aujourdhui maintenant demain hier semaine semaines mois annee annees noel minuit midi soir matin
	ora ore giorno giorni oggi adesso domani ieri settimana settimane mese mesi anno anni natale
	hoje agora amanha ontem mes natal tijd dag dagen vandaag nu gisteren week weken maand maanden jaar jaren uur kerst`)

// mentionsTime reports whether a text has a word about time, or a letter of another script than Latin.
func mentionsTime(s string) bool {
	for _, r := range s {
		if unicode.IsLetter(r) && !unicode.Is(unicode.Latin, r) {
			return true
		}
	}
	for w := range strings.FieldsFuncSeq(text.Fold(s), func(r rune) bool { return !unicode.IsLetter(r) }) {
		if timeWords[w] {
			return true
		}
	}
	return false
}
