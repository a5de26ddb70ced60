package policy

import (
	"slices"
	"strings"

	"conclave/pkg/date"
)

// words returns the words of the clause.
func (g Grant) words() (out []word) {
	for _, s := range readSentences(g.Clause) {
		out = append(out, s...)
	}
	return out
}

// span is a part of the words of a clause.
type span struct{ from, to int }

// findValue returns where a value, in lower case, stands among words: as a whole quotation or as its words in their
// order, with only function words between.
func findValue(words []word, value string) (out []span) {
	parts := strings.Fields(value)
	for i, w := range words {
		if w.quoted && w.lower == value {
			return append(out, span{i, i + 1})
		}
	}
	for i := range words {
		k, j := 0, i
		for ; k < len(parts) && j < len(words) && !words[j].quoted; j++ {
			if strings.TrimLeft(words[j].lower, "#@") == strings.TrimLeft(parts[k], "#@") {
				k++
			} else if k == 0 || !functionWords[words[j].lower] || words[j-1].comma {
				break
			}
		}
		if k == len(parts) && k > 0 {
			out = append(out, span{i, j})
		}
	}
	return out
}

// namesDestination reports whether the clause names a destination, in lower case, as one: as a name or an address, or
// after "to" or "in", before the text of a message; not after "from" or "by", which name a source; and not beside
// another one, because what is meant for one could go to the other, unless the call has that one too (others).
func (g Grant) namesDestination(d string, others []string) bool {
	if d == "" || isStopWord(d) {
		return false
	}
	words := g.words()
	return slices.ContainsFunc(findValue(words, d), func(at span) bool {
		i := at.from
		if i == 0 || date.IsMonth(d) || isSource(words[:i]) || isListed(words, at, others) {
			return false
		}
		isAddress := strings.ContainsAny(d, "@#/")
		if !isAddress && isContent(words, []int{0}, i) {
			return false
		}
		return followsVerb(words, i, others) && isNameLike(words[i]) ||
			slices.ContainsFunc(words[max(0, i-3):i], func(w word) bool { return markers[w.lower] && !w.quoted })
	})
}

// followsVerb reports whether nothing stands between the verb of a clause, a colon or another destination of the call
// and the word at i but function words and numbers: "the mail rob@home.example sent" names no recipient.
func followsVerb(words []word, i int, others []string) bool {
	for j := i - 1; j > 0; j-- {
		w := words[j]
		_, isNumber := parsePlainNumber(strings.Trim(w.lower, "$€£¥"))
		switch {
		case w.colon, slices.Contains(others, w.lower):
			return true
		case w.quoted || !functionWords[w.lower] && !isNumber && !conjunctions[w.lower]:
			return false
		}
	}
	return true
}

// isSource reports whether the words before a name make it an origin or a topic: "from", "by the".
func isSource(before []word) bool {
	n := len(before)
	return n > 0 && sources[before[n-1].lower] || n > 1 && functionWords[before[n-1].lower] &&
		!markers[before[n-1].lower] && sources[before[n-2].lower]
}

// conjunctions join names.
var conjunctions = listWords("and und et y e or oder ou o &")

// isListed reports whether another name, address or number stands beside a part of a clause that is not among others:
// with a comma or a conjunction between, after the same word ("to Ana ... to Bob"), or as another address.
func isListed(words []word, at span, others []string) bool {
	isOther := func(w word) bool {
		return !slices.ContainsFunc(others, func(o string) bool {
			return o == w.lower || slices.Contains(strings.Fields(o), w.lower)
		})
	}
	joins := func(w word) bool { return conjunctions[w.lower] && !w.quoted }
	isName := func(i int) bool { return isNameLike(words[i]) && !words[i].quoted && isOther(words[i]) }
	i, end := at.from, at.to
	if end < len(words) && (joins(words[end]) && (end+1 == len(words) || isOther(words[end+1])) ||
		words[end-1].comma && isName(end)) {
		return true
	}
	if i > 1 && (joins(words[i-1]) && isOther(words[i-2]) || words[i-1].comma && isName(i-1)) {
		return true
	}
	for j := 1; j < len(words); j++ {
		if j >= i && j < end || !isName(j) || isSource(words[:j]) {
			continue
		}
		if strings.Contains(words[i].lower, "@") && strings.Contains(words[j].lower, "@") ||
			markers[words[i-1].lower] && !isTime(words[j]) && (words[j-1].lower == words[i-1].lower ||
				companionMarkers[words[i-1].lower] && (recipientMarkers[words[j-1].lower] ||
					followsVerb(words, j, others))) {
			return true
		}
	}
	return false
}

// isTime reports whether a word is a part of a date or time.
func isTime(w word) bool {
	days, _ := date.FindDays(w.text)
	return date.IsMonth(w.lower) || len(days) > 0 || strings.Trim(w.lower, "0123456789:.-apm") == ""
}

// names reports whether the clause names a value, in lower case, as what cannot be undone needs it: as a name or a
// whole quotation, or a number that is no part of a date. A stop word names nothing.
func (g Grant) names(v string) bool {
	if v == "" || isStopWord(v) {
		return false
	}
	if n, ok := parsePlainNumber(v); ok {
		return slices.Contains(g.numbers(), n)
	}
	words := g.words()
	return slices.ContainsFunc(findValue(words, v), func(at span) bool {
		return at.from > 0 && (isNameLike(words[at.from]) || at.to > at.from+1) && !isTime(words[at.from]) &&
			!isListed(words, at, nil)
	})
}

// numbers returns the numbers of the clause that are words of their own, with at most a currency sign, and no part of a
// date, a time or a quotation.
func (g Grant) numbers() (out []float64) {
	var plain strings.Builder
	for _, w := range g.words() {
		if !w.quoted {
			plain.WriteString(w.text + " ")
		}
	}
	_, rest := date.FindDays(plain.String())
	for f := range strings.FieldsSeq(date.RemoveClocks(rest)) {
		if n, ok := parsePlainNumber(strings.Trim(f, "$€£¥")); ok && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// hasWord reports whether the clause has a value as words of its own.
func (g Grant) hasWord(v string) bool {
	return len(findValue(g.words(), v)) > 0
}

// pointsBack reports whether the clause points to something named before: it, them, there.
func (g Grant) pointsBack() bool {
	return slices.ContainsFunc(g.words(), func(w word) bool { return backReferences[w.lower] && !w.quoted })
}

// backReferences point to something named before.
var backReferences = listWords("it that this them these those him her his their there same above " +
	"ihm ihr ihnen sie es das lui leur eux lo gli loro")
