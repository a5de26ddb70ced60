package generator

import "strings"

// SelectWithheldTools returns the tools that a constrained decision about the user's words may not choose. Nothing is
// stored for words that end with a question mark: the answer to them is remembered anyway.
func SelectWithheldTools(words string) (names []string) {
	words = strings.TrimRight(words, " \n\"')»”")
	if strings.HasSuffix(words, "?") || strings.HasSuffix(words, "？") || strings.HasSuffix(words, "؟") {
		return []string{saveTool}
	}
	return nil
}
