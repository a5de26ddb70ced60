// Package embedhash makes vectors without a model: texts that share words and pieces of words lie near to one another.
// They do not reflect meaning. The built-in demo model and the test server use it.
package embedhash

import (
	"math"
	"strings"
	"unicode"
)

// Dimensions is the usual size of a vector.
const Dimensions = 768

// Embed returns the unit vector of text with dims numbers, at least 1. The same text has the same vector on every
// machine and in every release. A task prefix such as "search_query: " is ignored. A text without words has a fixed
// vector.
func Embed(text string, dims int) []float32 {
	v := make([]float32, dims)
	for word := range strings.FieldsFuncSeq(strings.ToLower(trimTaskPrefix(text)), isSeparator) {
		padded := []rune(" " + word + " ")
		weight := float32(1)
		if grammar[word] {
			weight = 0.2
		}
		addFeature(v, "w", word, 2*weight)
		for i := 0; i+3 <= len(padded); i++ {
			addFeature(v, "t", string(padded[i:i+3]), weight)
		}
	}
	return normalize(v)
}

// grammar are words that say little about the subject. Other languages do without.
var grammar = func() map[string]bool {
	all := make(map[string]bool)
	for word := range strings.FieldsSeq(`a an and are as at be by can did do does for from had has have he her his
	how i in is it its me my no not of on or our she so that the their them they this to was we were what when where
	which who why will with you your s t`) {
		all[word] = true
	}
	return all
}()

func isSeparator(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }

// trimTaskPrefix removes one of the known task prefixes with its colon. A text without one is unchanged.
func trimTaskPrefix(text string) string {
	task, rest, found := strings.Cut(text, ":")
	switch strings.TrimSpace(task) {
	case "search_query", "search_document", "clustering", "classification":
		if found {
			return rest
		}
	}
	return text
}

// addFeature adds a feature to the vector: its hash selects the dimension and the sign, so that collisions cancel out
// on average.
func addFeature(v []float32, kind, feature string, weight float32) {
	h := hashFeature(kind, feature)
	if h&1 != 0 {
		weight = -weight
	}
	v[(h>>1)%uint64(len(v))] += weight
}

// hashFeature is FNV-1a with a final mix, because the low bits of FNV-1a are not uniform.
func hashFeature(kind, feature string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{kind, feature} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// normalize scales v to length one, in place. A zero vector gets a fixed direction, because it has none.
func normalize(v []float32) []float32 {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		if len(v) > 0 {
			v[0] = 1
		}
		return v
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
	return v
}
