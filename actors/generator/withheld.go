package generator

import "strings"

// SelectWithheldTools returns the tools that a constrained decision about the user's words may not choose. Nothing is
// stored for words that end with a question mark: the answer to them is remembered anyway.
func SelectWithheldTools(words string) (names []string) {
	words = strings.TrimRight(words, " \n\"')»”")
	for _, mark := range []string{"?", "？", "؟"} {
		if strings.HasSuffix(words, mark) {
			return []string{saveTool}
		}
	}
	return nil
}
