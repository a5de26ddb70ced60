package policy

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Flow is the information-flow state of a session: the user's questions with their grants, the sources of untrusted content,
// and the values that came from trusted tools and searches. Taint and privacy are never removed. A Flow is immutable:
// [Flow.WithQuestion], [Flow.WithResult] and [Flow.ClaimGrant] return a new one. The zero value is an empty, untainted session;
// nil is an unknown one, which counts as tainted and private and stays unknown.
type Flow struct {
	questions   []question
	lastTurn    uint64 // sequence of the last message of the session that was added
	sources     []subjects.Taint
	private     bool
	searches    []searchLinks
	listings    []listing
	ids         []string // ids in trusted results that a question points to
	publicWords []string // words of public results
	untrusted   []string // hosts and addresses in untrusted results, in lower case
	overflow    bool     // untrusted is incomplete: no listing is trusted any more
	dropped     bool     // private data was read for a question that is no longer in the list

	userText      string         // all questions, one per line; derived by index
	userTextLower string         // userText in lower case
	userTextIDs   string         // userTextLower without dates and list numbers, whose digits are no ids
	userWords     map[string]int // words of userTextLower, with their number
}

// question is one message of the user, what it grants, and what was read for it.
type question struct {
	Query   string  `json:"query"`
	Text    string  `json:"text"`
	Grants  []Grant `json:"grants,omitempty"`
	Private bool    `json:"private,omitempty"` // private data was read for it
	Unasked bool    `json:"unasked,omitempty"` // private data was read that its words do not ask for
	// IDs are the ids in untrusted results that it points to. Untrusted content may choose among them for its own question only.
	IDs []string `json:"ids,omitempty"`
}

// searchLinks are the links of one search, in the order of the result. The first Opened of them were fetched.
type searchLinks struct {
	Links  []string `json:"links"`
	Opened int      `json:"opened,omitempty"`
}

// listing holds the values of a trusted result and the user's words that point to it.
type listing struct {
	Values []string `json:"values"`          // in lower case
	About  []string `json:"about,omitempty"` // what the tool lists, see [Tool].About
	Asked  []string `json:"asked,omitempty"` // arguments of the call that the user typed, in lower case
}

// Limits of the stored state. The oldest entries are dropped first; a call that depends on a dropped entry asks. The fact
// that a session is tainted is never dropped. The list of untrusted addresses is a guard: when it overflows, no listing is
// trusted any more.
const (
	maxQuestions      = 50
	maxQuestionBytes  = 16 << 10
	maxQuestionsBytes = 96 << 10 // sum over all questions
	maxTaintSources   = 20
	maxSearches       = 20
	maxSearchLinks    = 40 // of one search
	maxTrustedValues  = 400
	maxListings       = 40
	maxIDs            = 400
	maxUntrusted      = 2000
	maxPublicWords    = 4000
	maxListBytes      = 64 << 10 // per list: the whole record must fit into a NATS message
	maxWordBytes      = 40       // longest public word
)

// flowRecord is the stored form of a Flow.
type flowRecord struct {
	Words    []question       `json:"words,omitempty"`
	Turn     uint64           `json:"turn,omitempty"`
	Sources  []subjects.Taint `json:"sources,omitempty"`
	Private  bool             `json:"private,omitempty"`
	Searches []searchLinks    `json:"searches,omitempty"`
	Listings []listing        `json:"listings,omitempty"`
	IDs      []string         `json:"trusted_ids,omitempty"`
	Public   []string         `json:"public,omitempty"`
	Strange  []string         `json:"strange,omitempty"`
	Overflow bool             `json:"overflow,omitempty"`
	Dropped  bool             `json:"dropped_private,omitempty"`

	// Links, Values and OldIDs are in records of older versions. They permit nothing now.
	OldIDs []string `json:"ids,omitempty"`
	Links  []string `json:"links,omitempty"`
	Values []string `json:"values,omitempty"`
}

// MarshalJSON implements [json.Marshaler] with the stored form.
func (f *Flow) MarshalJSON() ([]byte, error) {
	return json.Marshal(flowRecord{
		Words: f.questions, Turn: f.lastTurn, Sources: f.sources, Private: f.private, Searches: f.searches, Listings: f.listings, IDs: f.ids,
		Public: f.publicWords, Strange: f.untrusted, Overflow: f.overflow, Dropped: f.dropped,
	})
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
	*f = Flow{
		questions: r.Words, lastTurn: r.Turn, sources: r.Sources, private: r.Private, searches: r.Searches, listings: r.Listings, ids: r.IDs,
		publicWords: r.Public, untrusted: r.Strange, overflow: r.Overflow, dropped: r.Dropped,
	}
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
	_, f.userTextIDs = extractDays(f.userTextLower)
	f.userTextIDs = listNumber.ReplaceAllString(f.userTextIDs, "$1 ")
	f.userWords = map[string]int{}
	for _, w := range splitWords(f.userTextLower) {
		f.userWords[w]++
	}
}

// listNumber matches the number of an item in a list, which names nothing.
var listNumber = regexp.MustCompile(`(^|\s)\d{1,2}[.)]\s`)

// HasQuestion reports whether the question with this query id is in the state.
func (f *Flow) HasQuestion(query string) bool { return f.findQuestion(query) != nil }

// findQuestion returns the question with this query id; nil when the state does not have it, which grants nothing.
func (f *Flow) findQuestion(query string) *question {
	if f == nil {
		return nil
	}
	if i := slices.IndexFunc(f.questions, func(s question) bool { return s.Query == query }); i >= 0 {
		return &f.questions[i]
	}
	return nil
}

// Grants returns the grants of a question.
func (f *Flow) Grants(query string) []Grant {
	if q := f.findQuestion(query); q != nil {
		return slices.Clone(q.Grants)
	}
	return nil
}

// LastTurn returns the sequence of the last message of the session that was added by [Flow.WithTurn], 0 when none was.
func (f *Flow) LastTurn() uint64 {
	if f == nil {
		return 0
	}
	return f.lastTurn
}

// WithTurn returns f with the message at a sequence of the session's messages. A caller must add every message of the
// session in order, also one for which no tool was called. A query id that is in the state already keeps its first text and
// grants. See [Flow.WithQuestion] for content and grants.
func (f *Flow) WithTurn(seq uint64, query, content string, grants []Grant) *Flow {
	if f == nil {
		return nil
	}
	next := f.clone()
	if !f.HasQuestion(query) {
		next = f.WithQuestion(query, content, grants)
	}
	next.lastTurn = seq
	return next
}

// WithQuestion returns f with one more question of the user and its grants; query is its id. content and grants must come from
// the user's own words, never from a model or an attachment: see [DeriveGrants]. The text is clipped to maxQuestionBytes; the
// oldest questions are dropped beyond the limits; that private data was read for one of them stays in the state. An unknown session stays unknown.
func (f *Flow) WithQuestion(query, content string, grants []Grant) *Flow {
	if f == nil {
		return nil
	}
	next := f.clone()
	next.questions = append(next.questions, question{Query: query, Text: text.Cut(content, maxQuestionBytes), Grants: grants})
	for size := 0; ; size = 0 {
		for _, s := range next.questions {
			size += len(s.Text)
		}
		if size <= maxQuestionsBytes && len(next.questions) <= maxQuestions || len(next.questions) == 1 {
			break
		}
		next.dropped = next.dropped || next.questions[0].Private || next.questions[0].Unasked
		next.questions = next.questions[1:]
	}
	next.index()
	return next
}

// WithAttachments returns f after untrusted content came with a question: text from a pipe, a file or a paste, or an image. It
// taints the session, and counts as private data that the question asks for. After an image no listing is trusted any more. An
// unknown session stays unknown.
func (f *Flow) WithAttachments(query string, attached []subjects.Attachment, at time.Time) *Flow {
	if f == nil || len(attached) == 0 {
		return f
	}
	next := f.clone()
	next.private = true
	if i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == query }); i >= 0 {
		next.questions[i].Private = true
	}
	for _, a := range attached {
		if next.addUntrusted(a.Text); a.IsImage() { // the addresses in it cannot be read
			next.untrusted, next.overflow, next.listings = nil, true, nil
		}
		next.addSource(subjects.Taint{Tool: "attachment", QueryID: query, From: a.Describe(), Time: at})
	}
	return next
}

// addUntrusted adds the addresses of an untrusted text to the guard list. When it overflows, no listing is trusted any more.
func (f *Flow) addUntrusted(s string) {
	names := extractNames(strings.ToLower(s))
	if f.untrusted = appendBounded(f.untrusted, maxUntrusted+1, names...); len(f.untrusted) > maxUntrusted || listBytes(f.untrusted) > maxListBytes-2000 {
		f.untrusted, f.overflow, f.listings = nil, true, nil
	}
}

// addSource adds a source of untrusted content. It keeps the first source and the latest ones.
func (f *Flow) addSource(t subjects.Taint) {
	if len(t.From) > 300 {
		t.From = ""
	}
	if f.sources = append(f.sources, t); len(f.sources) > maxTaintSources {
		f.sources = slices.Delete(f.sources, 1, 2)
	}
}

// ClaimGrant returns f after a call of t for a question used one of its grants. call identifies the call: a repeated claim uses
// nothing more. ok is false, and f is returned, when the call needs a grant and none that covers it is left. An untainted
// session needs none, and a call without an act claims none.
func (f *Flow) ClaimGrant(c Call, call string) (next *Flow, ok bool) {
	if f == nil || !c.Tool.UsesGrants() {
		return f, f != nil
	}
	q := f.findQuestion(c.Query)
	if q == nil {
		return f, !f.IsTainted()
	}
	for _, g := range q.Grants {
		if slices.Contains(g.Used, call) {
			return f, true
		}
	}
	c.Flow = f
	args, err := flattenArguments(c)
	if err != nil {
		return f, false
	}
	if !c.Tool.needsGrant() { // no grant covers a URL: see [judgeFetch]
		return f, true
	}
	at, _ := chooseGrant(c, q.Grants, args)
	if at < 0 {
		return f, !f.IsTainted()
	}
	next = f.clone()
	i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == c.Query })
	grants := slices.Clone(next.questions[i].Grants)
	grants[at].Used = append(slices.Clone(grants[at].Used), call)
	next.questions[i].Grants = grants
	return next, true
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
// flags: prose in such a result has an author. Everything else, every result of an unknown tool included, is
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

// WithResult returns f after a result entered the session. An untrusted one taints it, and adds its source and the words of a
// public one. The links of a search may be fetched. A trusted one adds a listing, except of a graded tool and without values
// that the arguments or untrusted content already held. Private data and ids are noted for the question of the call. An
// unknown session stays unknown.
func (f *Flow) WithResult(r Result) *Flow {
	if f == nil {
		return nil
	}
	next, l := f.clone(), r.Labels()
	asked := f.isAskedFor(r)
	next.private = next.private || l.Privacy == subjects.Private
	if i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == r.Query }); i >= 0 && l.Privacy == subjects.Private {
		next.questions[i].Private = true
		next.questions[i].Unasked = next.questions[i].Unasked || !asked
	}
	if asked || actEffects[r.Tool.Act] != nil { // an act ran because the user wanted it
		next.addIDs(r.Query, l.Trust == subjects.Trusted, extractIDs(r.Tool.IDs, r.Text))
	}
	next.noteOpened(r.Source)
	if r.Tool.Args.With(RoleQuery) != "" && len(r.Links) > 0 && len(r.Links) <= maxSearchLinks {
		next.searches = lastN(append(next.searches, searchLinks{Links: slices.Clone(r.Links)}), maxSearches)
	}
	if l.Trust == subjects.Trusted {
		next.addListing(f, r)
		return next
	}
	next.addUntrusted(r.Text)
	next.addSource(subjects.Taint{Tool: r.Tool.Name, CallID: r.CallID, QueryID: r.Query, From: r.Source, Flags: slices.Clone(r.Flags), Time: r.Time})
	if l.Privacy == subjects.Public {
		next.publicWords = appendBounded(next.publicWords, maxPublicWords, slices.DeleteFunc(splitWords(r.Text), func(w string) bool {
			return len(w) > maxWordBytes || utf8.RuneCountInString(w) < 3 // single letters can spell any secret
		})...)
	}
	return next
}

// addIDs adds the ids of a result: those of a trusted one for the session, those of any other for its question. The ids of the oldest
// questions are dropped when all together exceed maxListBytes.
func (f *Flow) addIDs(query string, trusted bool, ids []string) {
	if trusted {
		f.ids = appendBounded(f.ids, maxIDs, ids...)
		return
	}
	size := 0
	for i := len(f.questions) - 1; i >= 0; i-- {
		q := &f.questions[i]
		if q.Query == query {
			q.IDs = appendBounded(slices.Clone(q.IDs), maxIDs, ids...)
		}
		if size += listBytes(q.IDs); size > maxListBytes {
			q.IDs = nil
		}
	}
}

// isResultID reports whether an id is in a trusted result that some question pointed to, or in an untrusted result that this question
// points to.
func (f *Flow) isResultID(query, id string) bool {
	q := f.findQuestion(query)
	return slices.Contains(f.ids, id) || q != nil && slices.Contains(q.IDs, id)
}

// addListing adds the values of a trusted result. before is the state in which the call was made. Recalled content repeats
// earlier text, so its values are never destinations; nor is a value that the arguments or untrusted content held before.
func (f *Flow) addListing(before *Flow, r Result) {
	if r.Tool.Graded || f.overflow {
		return
	}
	args := strings.ToLower(string(r.Args))
	values := slices.DeleteFunc(extractValues(r.Text), func(v string) bool {
		return !before.isUserValue(v) && (strings.Contains(args, v) || slices.ContainsFunc(f.untrusted, func(u string) bool { return u == v || strings.Contains(u, v) }))
	})
	if len(values) == 0 || len(values) > maxTrustedValues {
		return
	}
	l := listing{Values: values, About: r.Tool.About, Asked: before.listTyped(r.Args)}
	f.listings = lastN(append(f.listings, l), maxListings)
	for n := 0; len(f.listings) > 1; n = 0 {
		for _, l := range f.listings {
			n += listBytes(l.Values) + listBytes(l.Asked) + listBytes(l.About)
		}
		if n <= maxListBytes {
			break
		}
		f.listings = f.listings[1:]
	}
}

// listTyped returns the values of arguments that the user typed, in lower case.
func (f *Flow) listTyped(args json.RawMessage) (out []string) {
	for _, v := range extractValues(string(args)) {
		if f.isUserValue(v) {
			out = append(out, v)
		}
	}
	return out
}

// noteOpened marks a fetched URL as opened where it is the next link of a search.
func (f *Flow) noteOpened(url string) {
	f.searches = slices.Clone(f.searches)
	for i := range f.searches {
		if s := &f.searches[i]; url != "" && s.Opened < len(s.Links) && s.Links[s.Opened] == url {
			s.Opened++
		}
	}
}

// isAskedFor reports whether the words of a result's question ask for this read: its arguments are the user's words or values
// of trusted listings, and one of them is the user's, or the question names what the tool reads. Arguments without a meaning
// for the data, settings and options, do not count.
func (f *Flow) isAskedFor(r Result) bool {
	q := f.findQuestion(r.Query)
	if len(r.Args) == 0 {
		r.Args = json.RawMessage("{}")
	}
	args, err := flattenArguments(Call{Tool: r.Tool, Args: r.Args})
	if q == nil || err != nil {
		return false
	}
	typed := 0
	for _, a := range args {
		switch {
		case a.role == RoleSetting, a.role == RoleOption && slices.Contains(a.values, a.text), a.text == "":
		case f.isUserValue(a.text), f.isUserDay(a.text), f.isMadeOfUserWords(a.text):
			typed++
		case a.role == RoleTime, f.isListed(a.text):
		default:
			return false
		}
	}
	return typed > 0 || namesAny(q.Text, r.Tool.About)
}

// namesAny reports whether a text has one of the nouns, also in the plural.
func namesAny(s string, nouns []string) bool {
	words := splitWords(s)
	return slices.ContainsFunc(nouns, func(n string) bool { return slices.Contains(words, n) || slices.Contains(words, n+"s") })
}

// extractIDs returns the values of the given fields in a JSON text; none in any other text. Text inside of a string value is
// not parsed, so content cannot add an id.
func extractIDs(fields []string, s string) (out []string) {
	if len(fields) == 0 {
		return nil
	}
	walkJSON(s, func(key, value string) {
		if slices.Contains(fields, key) {
			out = append(out, value)
		}
	})
	return out
}

// extractValues returns the values of a list or JSON text, in lower case, of at most 128 bytes: the leaves of JSON, the items
// of any other text.
func extractValues(s string) (out []string) {
	isJSON := walkJSON(s, func(_, value string) {
		if v := strings.ToLower(strings.TrimSpace(value)); len(v) > 1 && len(v) <= 128 {
			out = append(out, v)
		}
	})
	if isJSON {
		return out
	}
	return splitItems(s)
}

// walkJSON calls leaf for each string and number of a JSON text with the key that it stands under; false when s is no JSON
// object or list.
func walkJSON(s string, leaf func(key, value string)) bool {
	var v any
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return false
	}
	var walk func(key string, v any)
	walk = func(key string, v any) {
		switch v := v.(type) {
		case string:
			leaf(key, v)
		case json.Number:
			leaf(key, v.String())
		case []any:
			for _, x := range v {
				walk(key, x)
			}
		case map[string]any:
			for k, x := range v {
				walk(k, x)
			}
		}
	}
	walk("", v)
	switch v.(type) {
	case []any, map[string]any:
		return true
	}
	return false
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

// clone returns a copy whose lists can be appended to and whose questions can be changed. f must not be nil.
func (f *Flow) clone() *Flow {
	next := *f
	next.questions, next.sources = slices.Clone(f.questions), slices.Clone(f.sources)
	next.searches, next.listings = slices.Clone(f.searches), slices.Clone(f.listings)
	next.ids, next.publicWords, next.untrusted = slices.Clone(f.ids), slices.Clone(f.publicWords), slices.Clone(f.untrusted)
	return &next
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

// listBytes is the size of a list in the stored record.
func listBytes(list []string) (n int) {
	for _, t := range list {
		n += len(t) + 3
	}
	return n
}

// lastN returns the last n elements of a list, or all of it when it is shorter.
func lastN[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// isUserValue reports whether the user wrote this value, ignoring case: the whole of it, and not as a part of a longer
// word, name or address. An empty value carries no data and counts as the user's.
func (f *Flow) isUserValue(value string) bool {
	return f != nil && containsWhole(strings.ToLower(strings.TrimSpace(value)), f.userTextLower)
}

// isUserID is [Flow.isUserValue] for ids: a number must stand in the user's text as such, and not as a part of a date.
func (f *Flow) isUserID(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	if strings.Trim(v, "0123456789") == "" {
		return containsWhole(v, f.userTextIDs)
	}
	return f.isUserValue(v)
}

// isUserNumber reports whether the user typed this number: a plain one in any notation, or any other value, such as one with a sign
// or a unit, exactly as it is.
func (f *Flow) isUserNumber(value string) bool {
	n, ok := parsePlainNumber(strings.TrimSpace(value))
	if !ok {
		return f.isUserValue(value)
	}
	return slices.Contains(extractNumbers(f.userTextIDs), n)
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

// isListed reports whether a trusted tool listed this value, ignoring case. It does not make the value a destination: see
// [Grant.coversDestination].
func (f *Flow) isListed(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	return slices.ContainsFunc(f.listings, func(l listing) bool { return slices.Contains(l.Values, v) })
}

// isSearchResult reports whether exactly this URL may be fetched because a search returned it. Once private data is in the
// session, the choice of a link could carry it to the owner of the page: then only the links that were opened, and the next
// one in the order of the result.
func (f *Flow) isSearchResult(address string) bool {
	return slices.ContainsFunc(f.searches, func(s searchLinks) bool {
		i := slices.Index(s.Links, address)
		return i >= 0 && (!f.private || i <= s.Opened)
	})
}

// isUserQuery reports whether a query consists of the user's words, each no more often than the user wrote it, words of public
// results, stop words and the current year; true for an empty one. It is false with characters outside of letters, digits
// and common punctuation, or with more than 64 characters between words, which could encode data. Once private data is in the
// session, words of public results do not count, because a page could list enough words to spell it, nor do case and
// punctuation that the user did not type. f must not be nil.
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
	for _, w := range words {
		used[w]++
		isFree := stopWords[w] || !f.private && slices.Contains(f.publicWords, w) || f.isCurrentYear(w)
		if used[w] > max(f.userWords[w], 1) || f.userWords[w] == 0 && !isFree {
			return false
		}
	}
	return true
}

// isPlainQuery reports whether a query is words with one space between them, each in lower case and without punctuation, or as it
// stands in the user's text.
func isPlainQuery(query, userText string) bool {
	for _, w := range strings.Split(strings.TrimSuffix(query, "?"), " ") {
		plain := splitWords(w)
		if (len(plain) != 1 || plain[0] != w) && (w == "" || !containsWhole(w, userText)) {
			return query == ""
		}
	}
	return true
}

// isCurrentYear reports whether a word is the year in which the session last read something. Any other year is a number that
// could carry data.
func (f *Flow) isCurrentYear(w string) bool {
	return len(f.sources) > 0 && w == strconv.Itoa(f.sources[len(f.sources)-1].Time.Year())
}

// isMadeOfUserWords reports whether every word of a text is the user's, stop words not counted. It is false for a text of stop
// words alone.
func (f *Flow) isMadeOfUserWords(s string) bool {
	n := 0
	for _, w := range splitWords(s) {
		if f.userWords[w] > 0 {
			n++
		} else if !stopWords[w] {
			return false
		}
	}
	return n > 0
}

// isUserDay reports whether the user named the date in value.
func (f *Flow) isUserDay(value string) bool {
	typed, _ := extractDays(f.userText)
	return areAmong(value, typed, day.matches)
}

// areAmong reports whether value has dates, and each of them is among typed.
func areAmong(value string, typed []day, same func(day, day) bool) bool {
	days, _ := extractDays(value)
	return len(days) > 0 && !slices.ContainsFunc(days, func(d day) bool { return !slices.ContainsFunc(typed, func(t day) bool { return same(d, t) }) })
}

// splitItems returns the items of a list, in lower case: words of 3 to 128 bytes.
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
