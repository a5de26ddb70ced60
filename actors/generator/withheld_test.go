package generator

import (
	"slices"
	"testing"
)

func TestClockIsOfferedForWordsAboutTime(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]bool{
		"What time is it now in Nairobi?":                  true,
		"Which year do we have?":                           true,
		"How many days are left until New Year's Eve?":     true,
		"Is it already evening in Sydney?":                 true,
		"Wie spät ist es in Toronto?":                      true,
		"Welches Datum haben wir?":                         true,
		"¿Qué hora es en Tokio?":                           true,
		"¿En qué mes estamos?":                             true,
		"Quelle heure est-il ?":                            true,
		"東京は今何時ですか":                                        true,
		"Который час?":                                     true,
		"What is the boiling point of water at sea level?": false,
		"Wer hat die Relativitätstheorie aufgestellt?":     false,
		"¿Cuántos lados tiene un hexágono?":                false,
		"Good answer, thank you":                           false,
		"Who wrote Faust?":                                 false,
		"Summarize https://a.example/b for me":             false,
		"Remember that I have a cat.":                      false,
	} {
		if got := !slices.Contains(SelectWithheldTools(words), clockTool); got != want {
			t.Errorf("%q: offered %t, want %t", words, got, want)
		}
	}
}

func TestNothingIsStoredForQuestions(t *testing.T) {
	t.Parallel()
	for words, withheld := range map[string]bool{
		"Do I have a cat?": true, "¿Tengo un gato? ": true,
		`He asked "why?"`: true, "Remember that I have a cat.": false, "": false,
	} {
		if got := slices.Contains(SelectWithheldTools(words), saveTool); got != withheld {
			t.Errorf("%q: withheld %t, want %t", words, got, withheld)
		}
	}
}
