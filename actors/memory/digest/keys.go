package digest

import (
	"unicode/utf8"

	"conclave/pkg/text"
)

// contentKeys returns the stemmed words of s without function words, in order and with repetitions. Characters of
// unspaced scripts come in pairs. A text of nothing but function words keeps them, unstemmed.
func contentKeys(s string) []string {
	all := text.Words(s)
	out := make([]string, 0, len(all))
	for i, w := range all {
		r, size := utf8.DecodeRuneInString(w.Folded)
		if text.IsUnspaced(r) && size == len(w.Folded) {
			if i+1 < len(all) && all[i+1].Gap == 0 && all[i+1].From == w.To {
				out = append(out, w.Folded+all[i+1].Folded)
			}
			continue
		}
		if !functionWords(w.Folded) {
			out = append(out, text.Stem(w.Folded))
		}
	}
	if len(out) == 0 {
		for _, w := range all {
			out = append(out, w.Folded)
		}
	}
	return out
}

// functionWords are too common to tell texts apart.
var functionWords = text.WordSet(`a an the and or but of in on at to for from by with as is are was were be
	been being am i you he she it we they me him her
	us them my your his its our their mine yours this that these those there here what which who whom whose
	when where why how do does did
	done have has had having can could will would shall should may might must not no nor so if then than
	too very just about into over under
	also any some all each both more most such only own same other it's i'm i've don't what's please tell
	der die das den dem des ein eine einer einem einen und oder aber von in im am an auf zu zum zur fur mit
	ist sind war waren sein ich du er
	sie es wir ihr mein dein was wer wo wann wie warum nicht kein auch
	le la les un une des du de et ou mais dans sur pour par avec est sont etait je tu il elle nous vous mon
	ma mes ton ce cette que qui quoi
	el los las una y o pero en con por para es son era yo tu mi su que quien como donde cuando
	il lo gli i di e ma con per sono che chi come dove
	o os as um uma e mas em no na com por eu ele ela meu minha
	и в на с по к у за из от не что кто где когда как это он она они я ты мы вы`)
