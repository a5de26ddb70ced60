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

// Flow is the information-flow state of a session: the user's questions, the sources of untrusted content, and the values
// that came from trusted tools and searches. Taint and privacy are never removed. A Flow is immutable:
// [Flow.WithQuestion] and [Flow.WithResult] return a new one. The zero value is an empty, untainted session; nil is an
// unknown one, which counts as tainted and private.
type Flow struct {
	questions   []question
	lastTurn    uint64 // sequence of the last message of the session that was added
	sources     []subjects.Taint
	private     bool
	links       []string // URLs that a search returned
	values      []string // values that trusted tools listed, in lower case
	publicWords []string // words of public results
	untrusted   []string // hosts and addresses in untrusted results, in lower case

	userText      string          // all questions, one per line; derived by index
	userTextLower string          // userText in lower case
	userWords     map[string]bool // words of userTextLower
}

// question is one message of the user.
type question struct {
	Query string `json:"query"`
	Text  string `json:"text"`
}

// Limits of the stored state. The oldest entries are dropped first; a call that depends on a dropped entry asks. The fact
// that a session is tainted is never dropped.
const (
	maxQuestions      = 50
	maxQuestionBytes  = 16 << 10
	maxQuestionsBytes = 96 << 10 // sum over all questions
	maxTaintSources   = 20
	maxSearchLinks    = 400
	maxTrustedValues  = 800
	maxPublicWords    = 4000
	maxListBytes      = 64 << 10 // per list: the whole record must fit into a NATS message
	maxWordBytes      = 40       // longest public word
)

// flowRecord is the stored form of a Flow.
type flowRecord struct {
	Words   []question       `json:"words,omitempty"`
	Turn    uint64           `json:"turn,omitempty"`
	Sources []subjects.Taint `json:"sources,omitempty"`
	Private bool             `json:"private,omitempty"`
	Links   []string         `json:"links,omitempty"`
	Values  []string         `json:"values,omitempty"`
	Public  []string         `json:"public,omitempty"`
	Strange []string         `json:"strange,omitempty"`
}

// MarshalJSON implements [json.Marshaler] with the stored form.
func (f *Flow) MarshalJSON() ([]byte, error) {
	return json.Marshal(flowRecord{f.questions, f.lastTurn, f.sources, f.private, f.links, f.values, f.publicWords, f.untrusted})
}

// UnmarshalJSON implements [json.Unmarshaler]. It rejects unknown fields: a record of a newer version may mark taint in
// one. null decodes to an empty, untainted flow, so a caller must reject it before.
func (f *Flow) UnmarshalJSON(data []byte) error {
	var r flowRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return err
	}
	*f = Flow{questions: r.Words, lastTurn: r.Turn, sources: r.Sources, private: r.Private, links: r.Links, values: r.Values, publicWords: r.Public, untrusted: r.Strange}
	f.index()
	return nil
}

// index derives userText, userTextLower and userWords from the questions. It must be called after each change of them.
func (f *Flow) index() {
	var b strings.Builder
	for _, s := range f.questions {
		// A missing space after a full stop must not hide a name: "see example.org.Then ..." names example.org.
		b.WriteString(joinedSentence.ReplaceAllString(s.Text, "$1. $2"))
		b.WriteString("\n") // a value cannot span two questions
	}
	f.userText = b.String()
	f.userTextLower = strings.ToLower(f.userText)
	f.userWords = map[string]bool{}
	for _, w := range splitWords(f.userTextLower) {
		f.userWords[w] = true
	}
}

// joinedSentence matches a full stop without a space between two sentences.
var joinedSentence = regexp.MustCompile(`(\p{Ll})\.(\p{Lu}\p{Ll})`)

// HasQuestion reports whether the question with this query id is in the state.
func (f *Flow) HasQuestion(query string) bool {
	return f != nil && slices.ContainsFunc(f.questions, func(s question) bool { return s.Query == query })
}

// LastTurn returns the sequence of the last message of the session that was added by [Flow.WithTurn], 0 when none was.
func (f *Flow) LastTurn() uint64 {
	if f == nil {
		return 0
	}
	return f.lastTurn
}

// WithTurn returns f with the message at a sequence of the session's messages. A caller must add every message of the
// session in order, also one for which no tool was called: the age of a request is counted in messages. A query id that
// is in the state already keeps its first text. See [Flow.WithQuestion] for the content.
func (f *Flow) WithTurn(seq uint64, query, content string) *Flow {
	next := f.clone()
	if !f.HasQuestion(query) {
		next = f.WithQuestion(query, content)
	}
	next.lastTurn = seq
	return next
}

// WithAttachments returns f after untrusted content came with a question: text from a pipe, a file or a paste. It taints the
// session, and counts as private data. An unknown session stays unknown.
func (f *Flow) WithAttachments(query string, attached []subjects.Attachment, at time.Time) *Flow {
	if f == nil || len(attached) == 0 {
		return f
	}
	next := f.clone()
	next.private = true
	for _, a := range attached {
		next.untrusted = appendBounded(next.untrusted, maxTrustedValues, extractNames(strings.ToLower(a.Text))...)
		next.sources = append(next.sources, subjects.Taint{Tool: "attachment", QueryID: query, From: a.Describe(), Time: at})
	}
	if over := len(next.sources) - maxTaintSources; over > 0 { // keep the first source and the latest ones
		next.sources = slices.Delete(next.sources, 1, 1+over)
	}
	return next
}

// WithQuestion returns f with one more question of the user; query is its id. content must come from the user alone,
// never from a model. It is clipped to maxQuestionBytes; the oldest questions are dropped beyond the limits. A nil f
// counts as an empty session, so a caller must not pass an unknown one.
func (f *Flow) WithQuestion(query, content string) *Flow {
	next := f.clone()
	if len(content) > maxQuestionBytes {
		end := maxQuestionBytes
		for !utf8.RuneStart(content[end]) {
			end--
		}
		content = content[:end]
	}
	next.questions = lastN(append(next.questions, question{query, content}), maxQuestions)
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

// Result is the result of a tool call with the facts that decide its labels.
type Result struct {
	Tool     Tool
	CallID   string
	Query    string
	Args     json.RawMessage // of the call: values echoed from them do not become trusted
	Source   string          // URL or path the text came from, "" = unknown
	Text     string
	Links    []string         // URLs that the tool lists, verbatim
	Flags    []string         // techniques of injection that the firewall found
	Declared *subjects.Labels // labels set by a tool that grades its results, see Tool.Graded
	Time     time.Time
}

// Labels returns the trust and privacy of a result, with the flags of r. It is private when the tool reads private
// data. It is trusted when an ungraded tool without effects returned it, when a graded tool declares it trusted and it
// has no flags, or when an ungraded tool that does not read untrusted content returns only names and numbers without
// flags: prose in such a result was written by somebody. Everything else, every result of an unknown tool included, is
// untrusted.
func (r Result) Labels() subjects.Labels {
	l := subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: slices.Clone(r.Flags)}
	if r.Tool.Has(ReadsPrivate) {
		l.Privacy = subjects.Private
	}
	if r.Tool.Graded && r.Tool.Known {
		if r.Declared != nil && r.Declared.Trust == subjects.Trusted && len(r.Flags) == 0 {
			l.Trust = subjects.Trusted // only the tool knows the origin of its entries
		}
		return l
	}
	harmless := r.Tool.Known && r.Tool.Effects == Declare() // a tool without effects returns only what it computes
	if !r.Tool.Has(ReadsUntrusted) && (harmless || len(r.Flags) == 0 && !isProse(r.Text)) {
		l.Trust = subjects.Trusted
	}
	return l
}

// WithResult returns f after a result entered the session: an untrusted one taints it, adds its source, the links of a
// search or plain links of private data as URLs that may be fetched, and the words of a public one; a trusted one adds
// its values as permitted destinations, except those of graded tools and those that the arguments or untrusted content
// already held. A nil f counts as an empty session, so a caller must not pass an unknown one.
func (f *Flow) WithResult(r Result) *Flow {
	next, l := f.clone(), r.Labels()
	next.private = next.private || l.Privacy == subjects.Private
	if l.Trust == subjects.Trusted && r.Tool.Graded {
		return next // recalled content repeats earlier text, so its values are never permitted destinations
	}
	if l.Trust == subjects.Trusted {
		// A value from the arguments or from untrusted content does not become trusted by being echoed.
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
	if len(next.sources) > maxTaintSources { // keep the first source and the latest ones
		next.sources = slices.Delete(next.sources, 1, 2)
	}
	switch {
	case r.Tool.Query != "": // a search: its links may be fetched
		next.links = appendBounded(next.links, maxSearchLinks, r.Links...)
	case r.Tool.Graded: // recalled content may come from a page, so its links may not be fetched
	case l.Privacy == subjects.Private: // mail, chat: a plain link carries no data and may be fetched
		next.links = appendBounded(next.links, maxSearchLinks, extractPlainLinks(r.Text)...)
	}
	if l.Privacy == subjects.Public {
		next.publicWords = appendBounded(next.publicWords, maxPublicWords, slices.DeleteFunc(splitWords(r.Text), func(w string) bool {
			return len(w) > maxWordBytes || utf8.RuneCountInString(w) < 3 // single letters can spell any secret
		})...)
	}
	return next
}

// extractNames returns the words of 4 to 1999 bytes that contain a dot or an @: hosts, URLs, mail addresses, and some
// false positives. Case and repetitions are kept. It is faster than [extractAddresses] and finds no numbers.
func extractNames(s string) (out []string) {
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r) }) {
		if w = strings.Trim(w, ":.!?"); len(w) > 3 && len(w) < 2000 && strings.ContainsAny(w, ".@") {
			out = append(out, w)
		}
	}
	return out
}

// extractPlainLinks returns the plain links in a text, see [isPlainAddress]. Of a host with several links it returns none:
// the choice among them would carry data to the owner of the host.
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

// IsTainted reports whether untrusted content entered the session; true for nil.
func (f *Flow) IsTainted() bool { return f == nil || len(f.sources) > 0 }

// HasPrivate reports whether private data of the user entered the session; true for nil.
func (f *Flow) HasPrivate() bool { return f == nil || f.private }

// Sources returns where untrusted content came from, oldest first.
func (f *Flow) Sources() []subjects.Taint {
	if f == nil {
		return nil
	}
	return slices.Clone(f.sources)
}

// describeTaint names the latest source of untrusted content in words that follow "after": "reading <source>", "a
// result of <tool>", or "reading an unknown source" when f is nil or untainted.
func (f *Flow) describeTaint() string {
	if f == nil || len(f.sources) == 0 {
		return "reading an unknown source"
	}
	s := f.sources[len(f.sources)-1]
	if s.From != "" {
		return "reading " + s.From
	}
	return "a result of " + s.Tool
}

// clone returns a copy whose lists can be appended to; the zero Flow for nil.
func (f *Flow) clone() *Flow {
	if f == nil {
		return &Flow{}
	}
	return &Flow{
		questions: slices.Clone(f.questions), lastTurn: f.lastTurn, sources: slices.Clone(f.sources), private: f.private,
		links: slices.Clone(f.links), values: slices.Clone(f.values), publicWords: slices.Clone(f.publicWords), untrusted: slices.Clone(f.untrusted),
		userText: f.userText, userTextLower: f.userTextLower, userWords: f.userWords,
	}
}

// appendBounded appends the texts that are not in the list yet and drops the oldest beyond maxItems or maxListBytes. It
// ignores empty texts and texts over 2000 bytes. It may write to the memory of to.
func appendBounded(to []string, maxItems int, texts ...string) []string {
	fresh := make(map[string]bool, len(texts)) // a set of the new texts, because the list is much longer
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
	to = lastN(to, maxItems)
	size := 0
	for i := len(to) - 1; i >= 0; i-- {
		if size += len(to[i]) + 3; size > maxListBytes {
			return to[i+1:]
		}
	}
	return to
}

// lastN returns the last n elements of a list, or all of it when it is shorter.
func lastN[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// hasWord reports whether the user used one of these words in any question. words are in lower case.
func (f *Flow) hasWord(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return f.userWords[w] })
}

// hasRequest reports whether the user requested an action by one of these verbs, in lower case: in one of the last
// recentQuestions questions, in a sentence without a negation, and not in a plain question like "did Ana send it?",
// which has none of requestWords.
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

// recentQuestions is the number of latest questions in which a request still counts.
const recentQuestions = 3

var (
	sentencePattern = regexp.MustCompile(`(?s)[^?!\n]*?(?:[.?!](?:\s|$)|[?!\n]|$)`)
	negations       = []string{"not", "don't", "dont", "never", "without", "no", "cannot", "can't", "didn't", "doesn't"}
	requestWords    = []string{"can", "could", "would", "will", "please", "should", "let"}
)

// isUserValue reports whether the user wrote this value, ignoring case: the whole of it, and not as a part of a longer
// word, name or address. An empty value carries no data and counts as the user's.
func (f *Flow) isUserValue(value string) bool {
	return f != nil && containsWhole(strings.ToLower(strings.TrimSpace(value)), f.userTextLower)
}

// isUserText is [Flow.isUserValue] with exact case, for URLs, whose paths are case-sensitive.
func (f *Flow) isUserText(value string) bool { return f != nil && containsWhole(value, f.userText) }

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

// isTrustedValue reports whether a trusted tool listed this value, ignoring case.
func (f *Flow) isTrustedValue(value string) bool {
	return slices.Contains(f.values, strings.ToLower(strings.TrimSpace(value)))
}

// isSearchResult reports whether exactly this URL may be fetched: returned by a search, or a plain link in private data.
func (f *Flow) isSearchResult(address string) bool { return slices.Contains(f.links, address) }

// isUserQuery reports whether a query consists of the user's words, words of public results, stop words and years; true
// for an empty one. It is false with characters outside of letters, digits and common punctuation, or with more than
// about 64 characters between words, both of which could encode data. Words of public results do not count once private
// data is in the session: a page could list enough words to spell it. f must not be nil.
func (f *Flow) isUserQuery(query string) bool {
	for _, r := range query {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" -'\".,:;?!()/&+%$€£#@_’", r) {
			return false
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

// isYear reports whether a word is a year from 2000 to 2099, which searches often contain.
func isYear(w string) bool {
	return len(w) == 4 && strings.HasPrefix(w, "20") && strings.Trim(w, "0123456789") == ""
}

// isMostlyUserWords reports whether at least half of the words are the user's, stop words not counted. It is false for a
// text of stop words alone.
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

// isUserDate reports whether the user named this date or number; of a date with a time, the date is enough.
func (f *Flow) isUserDate(value string) bool {
	day, _, _ := strings.Cut(strings.ReplaceAll(value, "T", " "), " ")
	return len(value) > 2 && (f.isUserValue(value) || len(day) == 10 && f.isUserValue(day))
}

// splitItems returns the items of a list or JSON text, in lower case: words of 3 to 128 bytes.
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

// isPlainAddress reports whether a link can carry no data: http, https or no scheme, at most 100 bytes, no query,
// fragment, user info or escape, and no part of host and path that could be a key or token: over 20 bytes, with more
// than 4 digits at its ends, or alternating between letters and digits.
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
		if len(part) > 20 || digits > 4 || alternatesDigits(part) {
			return false
		}
	}
	return true
}

// alternatesDigits reports whether a word alternates between letters and digits more than twice, as keys do.
func alternatesDigits(s string) bool {
	changes, wasDigit := 0, false
	for i, r := range s {
		isDigit := unicode.IsDigit(r)
		if i > 0 && isDigit != wasDigit {
			changes++
		}
		wasDigit = isDigit
	}
	return changes > 2
}
