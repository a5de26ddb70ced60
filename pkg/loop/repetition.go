package loop

import "bytes"

// A reply repeats itself when it ends in the same text of at least minRepeated bytes and minRepeatedWords words,
// maxRepeats times in a row. Small models fall into that at low temperatures, and go on to the limit of tokens: answers
// of 20 and 39 KB were seen. So many repetitions that a user hardly wants them.
const (
	minRepeated      = 80
	minRepeatedWords = 8
	maxRepeats       = 12
)

// cutRepetition returns text with what it repeats at its end once, and whether it repeats anything.
func cutRepetition(text []byte) ([]byte, bool) {
	for size := minRepeated; size*maxRepeats <= len(text); size++ {
		block := text[len(text)-size:]
		at := len(text) - size
		for at >= size && bytes.Equal(text[at-size:at], block) {
			at -= size
		}
		if len(text)-at >= size*maxRepeats && len(bytes.Fields(block)) >= minRepeatedWords {
			return text[:at+size], true
		}
	}
	return text, false
}
