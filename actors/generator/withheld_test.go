package generator

import (
	"slices"
	"testing"
)

func TestNothingIsStoredForQuestions(t *testing.T) {
	t.Parallel()
	for words, withheld := range map[string]bool{
		"Do I have a cat?": true, "¿Tengo un gato? ": true,
		`He asked "why?"`: true, "Remember that I have a cat.": false, "": false, "私に猫はいますか？": true,
	} {
		if got := slices.Contains(SelectWithheldTools(words), saveTool); got != withheld {
			t.Errorf("%q: withheld %t, want %t", words, got, withheld)
		}
	}
}
