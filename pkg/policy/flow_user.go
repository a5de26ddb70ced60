package policy

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/date"
	"conclave/pkg/text"
	"conclave/subjects"
)

// index derives userText, userTextLower and userWords from the questions. It must be called after each change of them.
func (f *Flow) index() {
	var b strings.Builder
	for _, s := range f.questions {
		// A missing space after a full stop must not hide a name: "see example.org.Then ..." names example.org.
		b.WriteString(joinedSentence().ReplaceAllString(s.Text, "$1. $2"))
		b.WriteString("\n") // a value cannot span two questions
	}
	f.userText = b.String()
	f.userTextLower = strings.ToLower(f.userText)
	f.userTextIDs = &idText{}
	f.userWords = map[string]int{}
	for _, w := range splitWords(f.userTextLower) {
		f.userWords[w]++
		if name, isOwner := strings.CutSuffix(w, "'s"); isOwner {
			f.userWords[name]++
		}
	}
}

// idText is a text without dates and list numbers, whose digits are no ids. It is made when it is first read, because
// that takes longer than all else that is derived from the questions of a long session, and few calls have ids.
type idText struct {
	once sync.Once
	text string
}

// read returns the text of t, which is made of all, always the same.
func (t *idText) read(all string) string {
	if t == nil {
		return ""
	}
	t.once.Do(func() {
		_, t.text = date.FindDays(all)
		t.text = listNumber().ReplaceAllString(t.text, "$1 ")
	})
	return t.text
}

// listNumber matches the number of an item in a list, which names nothing.
var listNumber = text.Pattern(`(^|\s)\d{1,2}[.)]\s`)

// withPlanWords returns the flow by which a search or a fetch for a question is judged: f with the words of the
// question's plan among the user's. Once private data is in the session it is f itself, because the choice among the
// plan's words and addresses could tell something of it. f must not be nil.
func (f *Flow) withPlanWords(query string) *Flow {
	q := f.findQuestion(query)
	if q == nil || q.Plan == "" || f.private {
		return f
	}
	next := f.clone()
	next.questions = append(next.questions, question{Text: q.Plan})
	next.planText = q.Plan
	next.index()
	return next
}

// isUserValue reports whether the user wrote this value, ignoring case: the whole of it, and not as a part of a longer
// word, name or address. An empty value carries no data and counts as the user's.
func (f *Flow) isUserValue(value string) bool {
	return f != nil && containsWhole(strings.ToLower(strings.TrimSpace(value)), f.userTextLower)
}

// isUserID is [Flow.isUserValue] for ids: a number must stand in the user's text as such, and not as a part of a date.
func (f *Flow) isUserID(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	if strings.Trim(v, "0123456789") == "" {
		return containsWhole(v, f.userTextIDs.read(f.userTextLower))
	}
	return f.isUserValue(v)
}

// isUserText is [Flow.isUserValue] with exact case, for URLs, whose paths are case-sensitive.
func (f *Flow) isUserText(value string) bool { return f != nil && containsWhole(value, f.userText) }

// isTypedURL reports whether the user typed a URL in a question, or its plan, to have it read: not in a sentence with a
// refusal, and not in a text after a colon, which may be that of somebody else.
func (f *Flow) isTypedURL(query, address string) bool {
	q := f.findQuestion(query)
	if q == nil || !f.isUserText(address) {
		return false
	}
	if !containsWhole(address, q.Text) && slices.ContainsFunc(f.sources, func(t subjects.Taint) bool {
		return t.From == address // it was read for an earlier question
	}) {
		return true
	}
	isPlan, muted, typed := containsWhole(address, f.planText), -1, false
	n := 0
	sentences := readSentences(joinedSentence().ReplaceAllString(q.Text, "$1. $2"))
	isRequest := func(s []word) bool { return s[len(s)-1].asks || len(findOrders(s)) > 0 }
	for _, s := range sentences {
		isMention := len(s) > 3 && !isRequest(s) && slices.ContainsFunc(sentences, isRequest)
		refused := isMention || slices.ContainsFunc(s, func(w word) bool { return refusals[w.lower] && !w.quoted })
		for _, w := range s {
			n++
			if containsWhole(address, w.text) {
				if refused || muted >= 0 && n > muted+1 {
					return false
				}
				typed = true
			}
			if w.colon && muted < 0 {
				muted = n
			}
			if isListNumber(w) {
				muted = -1
			}
		}
	}
	return typed || isPlan
}

// containsWhole reports whether all contains v with a boundary on both sides, see [extendsBefore] and [extendsAfter].
// Case matters. An empty v is contained in every text, a v over maxQuestionBytes in none.
func containsWhole(v, all string) bool {
	if v == "" {
		return true
	}
	if len(v) > maxQuestionBytes {
		return false
	}
	for from := 0; ; {
		i := strings.Index(all[from:], v)
		if i < 0 {
			return false
		}
		i += from
		before, _ := utf8.DecodeLastRuneInString(all[:i])
		if !extendsBefore(before) && !extendsAfter(all[i+len(v):]) {
			return true
		}
		from = i + 1
	}
}

// extendsBefore reports whether the character before a value makes it a part of something longer. RuneError stands for
// the start of the text.
func extendsBefore(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_@/.-+=?&#%", r))
}

// extendsAfter reports whether the text after a value makes it a part of something longer. Punctuation extends it only
// when a letter or digit follows at once.
func extendsAfter(rest string) bool {
	r, n := utf8.DecodeRuneInString(rest)
	switch {
	case n == 0:
		return false
	case unicode.IsLetter(r), unicode.IsDigit(r), strings.ContainsRune("_@/-%", r):
		return true
	case strings.ContainsRune(".:?#&=", r):
		next, n := utf8.DecodeRuneInString(rest[n:])
		return n > 0 && (unicode.IsLetter(next) || unicode.IsDigit(next))
	}
	return false
}

// isUserQuery reports whether a query consists of the user's words, each no more often than the user wrote it, words of
// public results, stop words and the current year; true for an empty one. It is false with characters outside of
// letters, digits and common punctuation, or with more than 64 characters between words, which could encode data. Once
// private data is in the session, words of public results do not count, because a page could list enough words to spell
// it, nor do case and punctuation that the user did not type. f must not be nil.
func (f *Flow) isUserQuery(query string) bool {
	words := splitWords(query)
	inWords := 0
	for _, w := range words {
		inWords += utf8.RuneCountInString(w)
	}
	if utf8.RuneCountInString(query)-inWords > 64 {
		return false
	}
	for _, r := range query {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" -'\".,:;?!()/&+%$€£#@_’", r) {
			return false
		}
	}
	if f.private && !isPlainQuery(query, f.userText) {
		return false
	}
	used := map[string]int{}
	typed := false // stop words alone are no query of the user: their order could carry data
	for _, w := range words {
		typed = typed || f.userWords[w] > 0 && !isStopWord(w)
		used[w]++
		isFree := stopWords[w] || !f.private && slices.Contains(f.publicWords, w) || f.isCurrentYear(w)
		if used[w] > max(f.userWords[w], 1) || f.userWords[w] == 0 && !isFree {
			return false
		}
	}
	return typed || !f.private || query == ""
}

// isPlainQuery reports whether a query is words with one space between them, each in lower case and without
// punctuation, or as it stands in the user's text.
func isPlainQuery(query, userText string) bool {
	for _, w := range strings.Split(strings.TrimSuffix(query, "?"), " ") {
		plain := splitWords(w)
		if (len(plain) != 1 || plain[0] != w) && (w == "" || !containsWhole(w, userText)) {
			return query == ""
		}
	}
	return true
}

// isCurrentYear reports whether a word is the year in which the session last read something. Any other year is a number
// that could carry data.
func (f *Flow) isCurrentYear(w string) bool {
	return len(f.sources) > 0 && w == strconv.Itoa(f.sources[len(f.sources)-1].Time.Year())
}

// isMadeOfUserWords reports whether every word of a text is the user's, stop words not counted. It is false for a text
// of stop words alone.
func (f *Flow) isMadeOfUserWords(s string) bool {
	n := 0
	for _, w := range splitWords(s) {
		if f.userWords[w] > 0 && !isStopWord(w) {
			n++
		} else if !stopWords[w] && f.userWords[w] == 0 {
			return false
		}
	}
	return n > 0
}

// isUserDay reports whether the user named the date in value.
func (f *Flow) isUserDay(value string) bool {
	if days, _ := date.FindDays(value); len(days) == 0 {
		return false // before all questions are searched, which takes milliseconds in a long session
	}
	typed, _ := date.FindDays(f.userText)
	return areAmong(value, typed, date.Day.Matches)
}

// areAmong reports whether value has dates, and each of them is among typed.
func areAmong(value string, typed []date.Day, same func(a, b date.Day) bool) bool {
	days, _ := date.FindDays(value)
	return len(days) > 0 && !slices.ContainsFunc(days, func(d date.Day) bool {
		return !slices.ContainsFunc(typed, func(t date.Day) bool { return same(d, t) })
	})
}
