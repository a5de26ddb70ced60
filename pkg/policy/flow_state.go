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
// it: [Flow.Hear] and [Flow.Learn] return another. The zero value knows an empty session.
type Flow struct {
	words   []spoken
	sources []subjects.Taint
	private bool
	links   []string // addresses that a search returned
	values  []string // what trusted tools listed
	public  []string // words of results that are nobody's secret
	strange []string // addresses that stood in what strangers could have written

	exact string          // the user's words, for looking up
	lower string          // the same in lower case
	vocab map[string]bool // the single words
}

// spoken is one question of the user.
type spoken struct {
	Query string `json:"query"`
	Text  string `json:"text"`
}

// Bounds of what is kept of a session. What no longer fits is forgotten, oldest first, and then asked about: never the
// taint itself.
const (
	maxSpoken  = 50
	maxText    = 16 << 10
	maxWords   = 96 << 10 // bytes of all questions
	maxSources = 20
	maxLinks   = 400
	maxListed  = 800
	maxPublic  = 4000
	maxBytes   = 64 << 10 // of each list: the whole record must fit into a message
	maxWord    = 40       // bytes of one public word
)

// flowRecord is a flow as it is stored.
type flowRecord struct {
	Words   []spoken         `json:"words,omitempty"`
	Sources []subjects.Taint `json:"sources,omitempty"`
	Private bool             `json:"private,omitempty"`
	Links   []string         `json:"links,omitempty"`
	Values  []string         `json:"values,omitempty"`
	Public  []string         `json:"public,omitempty"`
	Strange []string         `json:"strange,omitempty"`
}

// MarshalJSON implements [json.Marshaler].
func (f *Flow) MarshalJSON() ([]byte, error) {
	return json.Marshal(flowRecord{f.words, f.sources, f.private, f.links, f.values, f.public, f.strange})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (f *Flow) UnmarshalJSON(data []byte) error {
	var r flowRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // what nobody reads could be the taint
	if err := d.Decode(&r); err != nil {
		return err
	}
	*f = Flow{words: r.Words, sources: r.Sources, private: r.Private, links: r.Links, values: r.Values, public: r.Public, strange: r.Strange}
	f.index()
	return nil
}

// index prepares the user's words for looking up.
func (f *Flow) index() {
	var b strings.Builder
	for _, s := range f.words {
		// People forget the space after a full stop: "see example.org.Then ..." names example.org.
		b.WriteString(stuck.ReplaceAllString(s.Text, "$1. $2"))
		b.WriteString("\n") // no value stands in two questions at once
	}
	f.exact = b.String()
	f.lower = strings.ToLower(f.exact)
	f.vocab = map[string]bool{}
	for _, w := range inWords(f.lower) {
		f.vocab[w] = true
	}
}

// stuck is a sentence that begins right after another.
var stuck = regexp.MustCompile(`(\p{Ll})\.(\p{Lu}\p{Ll})`)

// Heard reports whether the words of a question are known.
func (f *Flow) Heard(query string) bool {
	return f != nil && slices.ContainsFunc(f.words, func(s spoken) bool { return s.Query == query })
}

// Hear is f with what the user said in one more question.
func (f *Flow) Hear(query, said string) *Flow {
	next := f.clone()
	if len(said) > maxText {
		end := maxText
		for !utf8.RuneStart(said[end]) {
			end--
		}
		said = said[:end]
	}
	next.words = last(append(next.words, spoken{query, said}), maxSpoken)
	for size := 0; ; size = 0 {
		for _, s := range next.words {
			size += len(s.Text)
		}
		if size <= maxWords || len(next.words) == 1 {
			break
		}
		next.words = next.words[1:]
	}
	next.index()
	return next
}

// Result is what came back from a tool.
type Result struct {
	Tool   Tool
	CallID string
	Query  string
	Args   json.RawMessage // of the call: what the caller said itself is no news
	From   string          // an address, when there is one
	Text   string
	Links  []string         // addresses that the tool lists, unchanged
	Flags  []string         // signs of injection that were found
	Said   *subjects.Labels // what a tool that grades its results said of this one
	Time   time.Time
}

// Labels say who could have written a result, and whom it belongs to. A tool whose results nobody else can write into is
// trusted as long as it lists names and numbers: one that speaks in sentences says what somebody wrote.
func (r Result) Labels() subjects.Labels {
	l := subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: slices.Clone(r.Flags)}
	if r.Tool.Has(ReadsPrivate) {
		l.Privacy = subjects.Private
	}
	if r.Tool.Graded && r.Tool.Known {
		if r.Said != nil && r.Said.Trust == subjects.Trusted && len(r.Flags) == 0 {
			l.Trust = subjects.Trusted // of its own entries only it knows whose they are
		}
		return l
	}
	harmless := r.Tool.Known && r.Tool.Effects == Declare() // it has nothing to tell that is not its own
	if !r.Tool.Has(ReadsUntrusted) && (harmless || len(r.Flags) == 0 && !prose(r.Text)) {
		l.Trust = subjects.Trusted
	}
	return l
}

// Learn is f after a result entered the session.
func (f *Flow) Learn(r Result) *Flow {
	next, l := f.clone(), r.Labels()
	next.private = next.private || l.Privacy == subjects.Private
	if l.Trust == subjects.Trusted && r.Tool.Graded {
		return next // it tells what was said, not who is who: no word of it becomes a place that something may be sent to
	}
	if l.Trust == subjects.Trusted {
		// What the caller asked for, or what a stranger wrote before, does not become trusted by being repeated.
		asked := strings.ToLower(string(r.Args))
		next.values = remember(next.values, maxListed, slices.DeleteFunc(items(r.Text), func(item string) bool {
			return !f.typed(item) && (strings.Contains(asked, item) || slices.Contains(next.strange, item))
		})...)
		return next
	}
	next.strange = remember(next.strange, maxListed, names(strings.ToLower(r.Text))...)
	from := r.From
	if len(from) > 300 {
		from = ""
	}
	next.sources = append(next.sources, subjects.Taint{Tool: r.Tool.Name, CallID: r.CallID, QueryID: r.Query, From: from, Flags: slices.Clone(r.Flags), Time: r.Time})
	if len(next.sources) > maxSources { // the first and the latest tell the most
		next.sources = slices.Delete(next.sources, 1, 2)
	}
	switch {
	case r.Tool.Query != "": // it searches: what it lists may be opened
		next.links = remember(next.links, maxLinks, r.Links...)
	case r.Tool.Graded: // what was once on a page: an address in it has been nobody's mail
	case l.Privacy == subjects.Private: // mail, chat: a plain address in it may be opened, it can carry nothing away
		next.links = remember(next.links, maxLinks, plainLinks(r.Text)...)
	}
	if l.Privacy == subjects.Public {
		next.public = remember(next.public, maxPublic, slices.DeleteFunc(inWords(r.Text), func(w string) bool {
			return len(w) > maxWord || utf8.RuneCountInString(w) < 3 // letters one by one spell anything
		})...)
	}
	return next
}

// names are the words of a text that hold a dot or an @: hosts, addresses of pages and of people, and some that are
// neither. It is quicker than [addresses] and finds no numbers.
func names(s string) (out []string) {
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r) }) {
		if w = strings.Trim(w, ":.!?"); len(w) > 3 && len(w) < 2000 && strings.ContainsAny(w, ".@") {
			out = append(out, w)
		}
	}
	return out
}

// plainLinks are the plain addresses in a text. Where it lists several of one host, choosing among them would say
// something to whoever owns it: then none counts.
func plainLinks(s string) (out []string) {
	hosts := map[string]int{}
	all := names(s)
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
		if plainAddress(a) && hosts[host(a)] == 1 {
			out = append(out, a)
		}
	}
	return out
}

// Tainted reports whether text that a stranger could have written entered the session.
func (f *Flow) Tainted() bool { return f == nil || len(f.sources) > 0 }

// Private reports whether something of the user's own was read into the session.
func (f *Flow) Private() bool { return f == nil || f.private }

// Sources tell where strangers could have written into the session.
func (f *Flow) Sources() []subjects.Taint {
	if f == nil {
		return nil
	}
	return slices.Clone(f.sources)
}

// since says what tainted the session last, for people.
func (f *Flow) since() string {
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
		words: slices.Clone(f.words), sources: slices.Clone(f.sources), private: f.private,
		links: slices.Clone(f.links), values: slices.Clone(f.values), public: slices.Clone(f.public), strange: slices.Clone(f.strange),
		exact: f.exact, lower: f.lower, vocab: f.vocab,
	}
}

// remember adds texts that are not there yet, and lets the oldest go.
func remember(to []string, most int, texts ...string) []string {
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
	to = last(to, most)
	size := 0
	for i := len(to) - 1; i >= 0; i-- {
		if size += len(to[i]) + 3; size > maxBytes {
			return to[i+1:]
		}
	}
	return to
}

// last is the end of a list.
func last[T any](list []T, most int) []T { return list[max(0, len(list)-most):] }

// has reports whether the user used one of these words.
func (f *Flow) has(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return f.vocab[w] })
}

// asks reports whether the user asked for something by one of these verbs: in one of the latest questions, in a sentence
// that says no "not", and that is no mere question.
func (f *Flow) asks(verbs []string) bool {
	for _, s := range last(f.words, latest) {
		for _, sentence := range sentences.FindAllString(strings.ToLower(stuck.ReplaceAllString(s.Text, "$1. $2")), -1) {
			words := inWords(sentence)
			has := func(list ...string) bool {
				return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(list, w) })
			}
			if has(verbs...) && !has(negations...) && (!strings.HasSuffix(sentence, "?") || has(polite...)) {
				return true
			}
		}
	}
	return false
}

// latest is how many questions back an order still stands.
const latest = 3

var (
	sentences = regexp.MustCompile(`(?s)[^?!\n]*?(?:[.?!](?:\s|$)|[?!\n]|$)`)
	negations = []string{"not", "don't", "dont", "never", "without", "no", "cannot", "can't", "didn't", "doesn't"}
	polite    = []string{"can", "could", "would", "will", "please", "should", "let"}
)

// typed reports whether the user wrote this value: the whole of it, and not as a part of a longer word, name or
// address. An empty value says nothing and counts as typed.
func (f *Flow) typed(value string) bool {
	return f != nil && standsIn(strings.ToLower(strings.TrimSpace(value)), f.lower)
}

// wrote is typed to the letter: in an address, capitals can mean something.
func (f *Flow) wrote(value string) bool { return f != nil && standsIn(value, f.exact) }

// standsIn reports whether a value stands in a text as a whole.
func standsIn(v, all string) bool {
	if v == "" {
		return true
	}
	if len(v) > maxText {
		return false
	}
	for from := 0; ; {
		i := strings.Index(all[from:], v)
		if i < 0 {
			return false
		}
		i += from
		before, _ := utf8.DecodeLastRuneInString(all[:i])
		if !joins(before) && !continues(all[i+len(v):]) {
			return true
		}
		from = i + 1
	}
}

// joins reports whether a character before a value makes it a part of something longer.
func joins(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_@/.-+=?&#%", r))
}

// continues reports whether a value goes on: a full stop ends a sentence, unless something follows it at once.
func continues(rest string) bool {
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

// known reports whether a trusted tool listed this value.
func (f *Flow) known(value string) bool {
	return slices.Contains(f.values, strings.ToLower(strings.TrimSpace(value)))
}

// listed reports whether a search returned exactly this address.
func (f *Flow) listed(address string) bool { return slices.Contains(f.links, address) }

// said reports whether a query is made of the user's own words, of words that are in public results anyway, and of
// words that say nothing.
//
// Words of public results do not count once something private is in the session: a page can list words enough to spell
// it.
func (f *Flow) said(query string) bool {
	for _, r := range query {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" -'\".,:;?!()/&+%$€£#@_’", r) {
			return false // what is no letter can carry anything
		}
	}
	if strings.Count(query, "")-len(strings.Join(inWords(query), ""))-1 > 64 {
		return false
	}
	for _, w := range inWords(query) {
		if !small[w] && !f.vocab[w] && (f.private || !slices.Contains(f.public, w)) && !year(w) {
			return false
		}
	}
	return true
}

// year reports whether a word is one of this century: searches are full of them.
func year(w string) bool {
	return len(w) == 4 && strings.HasPrefix(w, "20") && strings.Trim(w, "0123456789") == ""
}

// mostly reports whether at least half of the words that say something are the user's.
func (f *Flow) mostly(s string) bool {
	n, hit := 0, 0
	for _, w := range inWords(s) {
		if small[w] {
			continue
		}
		n++
		if f.vocab[w] {
			hit++
		}
	}
	return n > 0 && 2*hit >= n
}

// dated reports whether the user named this date or number.
func (f *Flow) dated(value string) bool {
	day, _, _ := strings.Cut(strings.ReplaceAll(value, "T", " "), " ")
	return len(value) > 2 && (f.typed(value) || len(day) == 10 && f.typed(day))
}

// items are the values that a list holds, in lower case.
func items(s string) (out []string) {
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r)
	}) {
		if w = strings.Trim(w, ":."); len(w) > 2 && len(w) <= 128 {
			out = append(out, w)
		}
	}
	return out
}

// plainAddress reports whether an address can carry nothing but itself: a host and a short path, no query, no fragment,
// nothing that could be a key.
func plainAddress(s string) bool {
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
		if len(part) > 20 || digits > 4 || mixed(part) {
			return false
		}
	}
	return true
}

// mixed reports whether a word goes back and forth between letters and digits, as keys do and words do not.
func mixed(s string) bool {
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
