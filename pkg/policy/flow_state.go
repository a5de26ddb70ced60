package policy

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/subjects"
)

// Flow is what is known of the content of a session: what the user said in it, which strangers could have written into
// it, and which values came from where. It only ever learns; nothing makes it forget. Whoever holds one cannot change
// it: [Flow.WithQuestion] and [Flow.WithResult] return another. The zero value knows an empty session.
type Flow struct {
	questions   []question
	sources     []subjects.Taint
	private     bool
	links       []string // addresses that a search returned
	values      []string // what trusted tools listed
	publicWords []string // words of results that are nobody's secret
	untrusted   []string // addresses that stood in what strangers could have written

	userText      string          // the user's words, for looking up
	userTextLower string          // the same in lower case
	userWords     map[string]bool // the single words
}

// question is one question of the user.
type question struct {
	Query string `json:"query"`
	Text  string `json:"text"`
}

// Bounds of what is kept of a session. What no longer fits is forgotten, oldest first, and then asked about: never the
// taint itself.
const (
	maxQuestions      = 50
	maxQuestionBytes  = 16 << 10
	maxQuestionsBytes = 96 << 10 // bytes of all questions
	maxTaintSources   = 20
	maxSearchLinks    = 400
	maxTrustedValues  = 800
	maxPublicWords    = 4000
	maxListBytes      = 64 << 10 // of each list: the whole record must fit into a message
	maxWordBytes      = 40       // bytes of one public word
)

// flowRecord is a flow as it is stored.
type flowRecord struct {
	Words   []question       `json:"words,omitempty"`
	Sources []subjects.Taint `json:"sources,omitempty"`
	Private bool             `json:"private,omitempty"`
	Links   []string         `json:"links,omitempty"`
	Values  []string         `json:"values,omitempty"`
	Public  []string         `json:"public,omitempty"`
	Strange []string         `json:"strange,omitempty"`
}

// MarshalJSON implements [json.Marshaler].
func (f *Flow) MarshalJSON() ([]byte, error) {
	return json.Marshal(flowRecord{f.questions, f.sources, f.private, f.links, f.values, f.publicWords, f.untrusted})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (f *Flow) UnmarshalJSON(data []byte) error {
	var r flowRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // what nobody reads could be the taint
	if err := d.Decode(&r); err != nil {
		return err
	}
	*f = Flow{questions: r.Words, sources: r.Sources, private: r.Private, links: r.Links, values: r.Values, publicWords: r.Public, untrusted: r.Strange}
	f.index()
	return nil
}

// index prepares the user's words for looking up.
func (f *Flow) index() {
	var b strings.Builder
	for _, s := range f.questions {
		// People forget the space after a full stop: "see example.org.Then ..." names example.org.
		b.WriteString(joinedSentence.ReplaceAllString(s.Text, "$1. $2"))
		b.WriteString("\n") // no value stands in two questions at once
	}
	f.userText = b.String()
	f.userTextLower = strings.ToLower(f.userText)
	f.userWords = map[string]bool{}
	for _, w := range splitWords(f.userTextLower) {
		f.userWords[w] = true
	}
}

// joinedSentence is a sentence that begins right after another.
var joinedSentence = regexp.MustCompile(`(\p{Ll})\.(\p{Lu}\p{Ll})`)

// HasQuestion reports whether the words of a question are known.
func (f *Flow) HasQuestion(query string) bool {
	return f != nil && slices.ContainsFunc(f.questions, func(s question) bool { return s.Query == query })
}

// WithQuestion is f with what the user said in one more question.
func (f *Flow) WithQuestion(query, said string) *Flow {
	next := f.clone()
	if len(said) > maxQuestionBytes {
		end := maxQuestionBytes
		for !utf8.RuneStart(said[end]) {
			end--
		}
		said = said[:end]
	}
	next.questions = lastN(append(next.questions, question{query, said}), maxQuestions)
	for size := 0; ; size = 0 {
		for _, s := range next.questions {
			size += len(s.Text)
		}
		if size <= maxQuestionsBytes || len(next.questions) == 1 {
			break
		}
		next.questions = next.questions[1:]
	}
	next.index()
	return next
}

// Result is what came back from a tool.
type Result struct {
	Tool     Tool
	CallID   string
	Query    string
	Args     json.RawMessage // of the call: what the caller said itself is no news
	Source   string          // an address, when there is one
	Text     string
	Links    []string         // addresses that the tool lists, unchanged
	Flags    []string         // signs of injection that were found
	Declared *subjects.Labels // what a tool that grades its results said of this one
	Time     time.Time
}

// Labels say who could have written a result, and whom it belongs to. A tool whose results nobody else can write into is
// trusted as long as it lists names and numbers: one that speaks in sentences says what somebody wrote.
func (r Result) Labels() subjects.Labels {
	l := subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: slices.Clone(r.Flags)}
	if r.Tool.Has(ReadsPrivate) {
		l.Privacy = subjects.Private
	}
	if r.Tool.Graded && r.Tool.Known {
		if r.Declared != nil && r.Declared.Trust == subjects.Trusted && len(r.Flags) == 0 {
			l.Trust = subjects.Trusted // of its own entries only it knows whose they are
		}
		return l
	}
	harmless := r.Tool.Known && r.Tool.Effects == Declare() // it has nothing to tell that is not its own
	if !r.Tool.Has(ReadsUntrusted) && (harmless || len(r.Flags) == 0 && !isProse(r.Text)) {
		l.Trust = subjects.Trusted
	}
	return l
}

// WithResult is f after a result entered the session.
func (f *Flow) WithResult(r Result) *Flow {
	next, l := f.clone(), r.Labels()
	next.private = next.private || l.Privacy == subjects.Private
	if l.Trust == subjects.Trusted && r.Tool.Graded {
		return next // it tells what was said, not who is who: no word of it becomes a place that something may be sent to
	}
	if l.Trust == subjects.Trusted {
		// What the caller asked for, or what a stranger wrote before, does not become trusted by being repeated.
		asked := strings.ToLower(string(r.Args))
		next.values = appendBounded(next.values, maxTrustedValues, slices.DeleteFunc(splitItems(r.Text), func(item string) bool {
			return !f.isUserValue(item) && (strings.Contains(asked, item) || slices.Contains(next.untrusted, item))
		})...)
		return next
	}
	next.untrusted = appendBounded(next.untrusted, maxTrustedValues, extractNames(strings.ToLower(r.Text))...)
	from := r.Source
	if len(from) > 300 {
		from = ""
	}
	next.sources = append(next.sources, subjects.Taint{Tool: r.Tool.Name, CallID: r.CallID, QueryID: r.Query, From: from, Flags: slices.Clone(r.Flags), Time: r.Time})
	if len(next.sources) > maxTaintSources { // the first and the latest tell the most
		next.sources = slices.Delete(next.sources, 1, 2)
	}
	switch {
	case r.Tool.Query != "": // it searches: what it lists may be opened
		next.links = appendBounded(next.links, maxSearchLinks, r.Links...)
	case r.Tool.Graded: // what was once on a page: an address in it has been nobody's mail
	case l.Privacy == subjects.Private: // mail, chat: a plain address in it may be opened, it can carry nothing away
		next.links = appendBounded(next.links, maxSearchLinks, extractPlainLinks(r.Text)...)
	}
	if l.Privacy == subjects.Public {
		next.publicWords = appendBounded(next.publicWords, maxPublicWords, slices.DeleteFunc(splitWords(r.Text), func(w string) bool {
			return len(w) > maxWordBytes || utf8.RuneCountInString(w) < 3 // letters one by one spell anything
		})...)
	}
	return next
}

// extractNames are the words of a text that hold a dot or an @: hosts, addresses of pages and of people, and some that are
// neither. It is quicker than [extractAddresses] and finds no numbers.
func extractNames(s string) (out []string) {
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r) }) {
		if w = strings.Trim(w, ":.!?"); len(w) > 3 && len(w) < 2000 && strings.ContainsAny(w, ".@") {
			out = append(out, w)
		}
	}
	return out
}

// extractPlainLinks are the plain addresses in a text. Where it lists several of one host, choosing among them would say
// something to whoever owns it: then none counts.
func extractPlainLinks(s string) (out []string) {
	hosts := map[string]int{}
	all := extractNames(s)
	host := func(a string) string {
		_, rest, ok := strings.Cut(a, "://")
		if !ok {
			rest = a
		}
		name, _, _ := strings.Cut(strings.ToLower(rest), "/")
		return strings.TrimPrefix(name, "www.")
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, a := range all {
		hosts[host(a)]++
	}
	for _, a := range all {
		if isPlainAddress(a) && hosts[host(a)] == 1 {
			out = append(out, a)
		}
	}
	return out
}

// IsTainted reports whether text that a stranger could have written entered the session.
func (f *Flow) IsTainted() bool { return f == nil || len(f.sources) > 0 }

// HasPrivate reports whether something of the user's own was read into the session.
func (f *Flow) HasPrivate() bool { return f == nil || f.private }

// Sources tell where strangers could have written into the session.
func (f *Flow) Sources() []subjects.Taint {
	if f == nil {
		return nil
	}
	return slices.Clone(f.sources)
}

// describeTaint says what tainted the session last, for people.
func (f *Flow) describeTaint() string {
	if f == nil || len(f.sources) == 0 {
		return "something nobody knows"
	}
	s := f.sources[len(f.sources)-1]
	if s.From != "" {
		return "reading " + s.From
	}
	return "what " + s.Tool + " returned"
}

func (f *Flow) clone() *Flow {
	if f == nil {
		return &Flow{}
	}
	return &Flow{
		questions: slices.Clone(f.questions), sources: slices.Clone(f.sources), private: f.private,
		links: slices.Clone(f.links), values: slices.Clone(f.values), publicWords: slices.Clone(f.publicWords), untrusted: slices.Clone(f.untrusted),
		userText: f.userText, userTextLower: f.userTextLower, userWords: f.userWords,
	}
}

// appendBounded adds texts that are not there yet, and lets the oldest go.
func appendBounded(to []string, most int, texts ...string) []string {
	fresh := make(map[string]bool, len(texts)) // of the few new ones, not of the many known
	for _, t := range texts {
		fresh[t] = true
	}
	for _, t := range to {
		delete(fresh, t)
	}
	for _, t := range texts {
		if t != "" && len(t) <= 2000 && fresh[t] {
			delete(fresh, t)
			to = append(to, t)
		}
	}
	to = lastN(to, most)
	size := 0
	for i := len(to) - 1; i >= 0; i-- {
		if size += len(to[i]) + 3; size > maxListBytes {
			return to[i+1:]
		}
	}
	return to
}

// lastN is the end of a list.
func lastN[T any](list []T, most int) []T { return list[max(0, len(list)-most):] }

// hasWord reports whether the user used one of these words.
func (f *Flow) hasWord(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return f.userWords[w] })
}

// hasRequest reports whether the user asked for something by one of these verbs: in one of the latest questions, in a sentence
// that says no "not", and that is no mere question.
func (f *Flow) hasRequest(verbs []string) bool {
	for _, s := range lastN(f.questions, recentQuestions) {
		for _, sentence := range sentencePattern.FindAllString(strings.ToLower(joinedSentence.ReplaceAllString(s.Text, "$1. $2")), -1) {
			words := splitWords(sentence)
			has := func(list ...string) bool {
				return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(list, w) })
			}
			if has(verbs...) && !has(negations...) && (!strings.HasSuffix(sentence, "?") || has(requestWords...)) {
				return true
			}
		}
	}
	return false
}

// recentQuestions is how many questions back an order still stands.
const recentQuestions = 3

var (
	sentencePattern = regexp.MustCompile(`(?s)[^?!\n]*?(?:[.?!](?:\s|$)|[?!\n]|$)`)
	negations       = []string{"not", "don't", "dont", "never", "without", "no", "cannot", "can't", "didn't", "doesn't"}
	requestWords    = []string{"can", "could", "would", "will", "please", "should", "let"}
)

// isUserValue reports whether the user wrote this value: the whole of it, and not as a part of a longer word, name or
// address. An empty value says nothing and counts as typed.
func (f *Flow) isUserValue(value string) bool {
	return f != nil && containsWhole(strings.ToLower(strings.TrimSpace(value)), f.userTextLower)
}

// isUserText is typed to the letter: in an address, capitals can mean something.
func (f *Flow) isUserText(value string) bool { return f != nil && containsWhole(value, f.userText) }

// containsWhole reports whether a value stands in a text as a whole.
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

// extendsBefore reports whether a character before a value makes it a part of something longer.
func extendsBefore(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_@/.-+=?&#%", r))
}

// extendsAfter reports whether a value goes on: a full stop ends a sentence, unless something follows it at once.
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

// isTrustedValue reports whether a trusted tool listed this value.
func (f *Flow) isTrustedValue(value string) bool {
	return slices.Contains(f.values, strings.ToLower(strings.TrimSpace(value)))
}

// isSearchResult reports whether a search returned exactly this address.
func (f *Flow) isSearchResult(address string) bool { return slices.Contains(f.links, address) }

// isUserQuery reports whether a query is made of the user's own words, of words that are in public results anyway, and of
// words that say nothing.
//
// Words of public results do not count once something private is in the session: a page can list words enough to spell
// it.
func (f *Flow) isUserQuery(query string) bool {
	for _, r := range query {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" -'\".,:;?!()/&+%$€£#@_’", r) {
			return false // what is no letter can carry anything
		}
	}
	if strings.Count(query, "")-len(strings.Join(splitWords(query), ""))-1 > 64 {
		return false
	}
	for _, w := range splitWords(query) {
		if !stopWords[w] && !f.userWords[w] && (f.private || !slices.Contains(f.publicWords, w)) && !isYear(w) {
			return false
		}
	}
	return true
}

// isYear reports whether a word is one of this century: searches are full of them.
func isYear(w string) bool {
	return len(w) == 4 && strings.HasPrefix(w, "20") && strings.Trim(w, "0123456789") == ""
}

// isMostlyUserWords reports whether at least half of the words that say something are the user's.
func (f *Flow) isMostlyUserWords(s string) bool {
	n, hit := 0, 0
	for _, w := range splitWords(s) {
		if stopWords[w] {
			continue
		}
		n++
		if f.userWords[w] {
			hit++
		}
	}
	return n > 0 && 2*hit >= n
}

// isUserDate reports whether the user named this date or number.
func (f *Flow) isUserDate(value string) bool {
	day, _, _ := strings.Cut(strings.ReplaceAll(value, "T", " "), " ")
	return len(value) > 2 && (f.isUserValue(value) || len(day) == 10 && f.isUserValue(day))
}

// splitItems are the values that a list holds, in lower case.
func splitItems(s string) (out []string) {
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r)
	}) {
		if w = strings.Trim(w, ":."); len(w) > 2 && len(w) <= 128 {
			out = append(out, w)
		}
	}
	return out
}

// isPlainAddress reports whether an address can carry nothing but itself: a host and a short path, no query, no fragment,
// nothing that could be a key.
func isPlainAddress(s string) bool {
	if strings.ContainsAny(s, "?#@%") || len(s) > 100 {
		return false
	}
	full := s
	if !strings.Contains(full, "://") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return false
	}
	for _, part := range strings.FieldsFunc(u.Host+u.Path, func(r rune) bool { return r == '/' || r == '.' || r == '-' || r == '_' }) {
		digits := strings.Count(part, "") - 1 - len(strings.Trim(part, "0123456789"))
		if len(part) > 20 || digits > 4 || isMixed(part) {
			return false
		}
	}
	return true
}

// isMixed reports whether a word goes back and forth between letters and digits, as keys do and words do not.
func isMixed(s string) bool {
	changes, was := 0, false
	for i, r := range s {
		is := unicode.IsDigit(r)
		if i > 0 && is != was {
			changes++
		}
		was = is
	}
	return changes > 2
}
