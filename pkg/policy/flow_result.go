package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
	"conclave/subjects"
)

// addUntrusted adds the addresses of an untrusted text to the guard list. When it overflows, no listing is trusted any
// more.
func (f *Flow) addUntrusted(s string) {
	names := extractNames(strings.ToLower(s))
	if f.untrusted = appendBounded(f.untrusted, maxUntrusted+1, names...); len(f.untrusted) > maxUntrusted ||
		listBytes(f.untrusted) > maxListBytes-2000 {
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

// WithTaint returns f after untrusted content of a source entered the session. An unknown session stays unknown.
func (f *Flow) WithTaint(t subjects.Taint) *Flow {
	if f == nil {
		return nil
	}
	next := f.clone()
	next.addSource(t)
	return next
}

// WithLost returns f after a part of its record, or all of it, was lost: what was read since then is unknown. The
// session counts as one that has read untrusted content, and private data that none of its questions asked for; no
// listing is trusted any more, and the grants of its questions may have been used. lastTurn is the sequence of the last
// message so far; those that f lacks are not added any more. An unknown session stays unknown.
func (f *Flow) WithLost(at time.Time, lastTurn uint64) *Flow {
	next := f.WithTaint(subjects.Taint{Tool: "(damaged record)", Time: at})
	if next == nil {
		return nil
	}
	next.lastTurn, next.private, next.dropped = lastTurn, true, true
	next.untrusted, next.overflow, next.listings, next.found = nil, true, nil, nil
	for i := range next.questions {
		q := &next.questions[i]
		q.Private, q.Unasked, q.Grants = true, true, nil
	}
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
// data, unless the text is that of [Tool.Empty]. It is trusted when an ungraded tool without effects returned it, when
// a graded tool declares it trusted, or when an ungraded tool that does not read untrusted content returns only names
// and numbers: prose in such a result has an author. Everything else, every result of an unknown tool included, is
// untrusted. Flags do not change the trust: they are a guess.
func (r Result) Labels() subjects.Labels {
	l := subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public, Flags: slices.Clone(r.Flags)}
	foundNothing := r.Tool.Known && r.Tool.Empty != "" && r.Text == r.Tool.Empty
	if r.Tool.Has(ReadsPrivate) && !foundNothing {
		l.Privacy = subjects.Private
	}
	if r.Tool.Graded && r.Tool.Known {
		if r.Declared != nil && r.Declared.Trust == subjects.Trusted {
			l.Trust = subjects.Trusted // only the tool knows the origin of its entries
		}
		return l
	}
	harmless := r.Tool.Known && r.Tool.Effects == Declare() // a tool without effects returns only what it computes
	if !r.Tool.Has(ReadsUntrusted) && (harmless || !isProse(r.Text)) {
		l.Trust = subjects.Trusted
	}
	return l
}

// WithResult returns f after a result entered the session. An untrusted one taints it, and adds its source and the
// words of a public one. The links of a search may be fetched. A trusted one adds a listing, except of a graded tool
// and without values that the arguments or untrusted content already held. Private data and ids are noted for the
// question of the call. An unknown session stays unknown.
func (f *Flow) WithResult(r Result) *Flow {
	if f == nil {
		return nil
	}
	next, l := f.clone(), r.Labels()
	asked := f.isAskedFor(r)
	next.private = next.private || l.Privacy == subjects.Private
	if i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == r.Query }); i >= 0 &&
		l.Privacy == subjects.Private {
		next.questions[i].Private = true
		next.questions[i].Unasked = next.questions[i].Unasked || !asked
	}
	if asked || actEffects[r.Tool.Act] != nil { // an act ran because the user wanted it
		next.addIDs(r, l.Trust == subjects.Trusted)
	}
	next.addFound(r)
	next.addLabels(r)
	next.noteQuery(r)
	next.noteOpened(r.Source)
	if r.Tool.Args.With(RoleQuery) != "" && len(r.Links) > 0 && len(r.Links) <= maxSearchLinks {
		next.searches = lastN(append(next.searches, searchLinks{Links: slices.Clone(r.Links)}), maxSearches)
	}
	if l.Trust == subjects.Trusted {
		next.addListing(f, r)
		return next
	}
	next.addUntrusted(r.Text)
	next.addSource(subjects.Taint{
		Tool: r.Tool.Name, CallID: r.CallID, QueryID: r.Query, From: r.Source,
		Flags: slices.Clone(r.Flags), Time: r.Time,
	})
	if l.Privacy == subjects.Public {
		next.publicWords = appendBounded(next.publicWords, maxPublicWords,
			slices.DeleteFunc(splitWords(r.Text), func(w string) bool {
				return len(w) > maxWordBytes || utf8.RuneCountInString(w) < 3 // single letters can spell any secret
			})...)
	}
	return next
}

// addIDs adds the ids of a result to its question. Those of a trusted result that stand beside a value of the question
// are named by it.
func (f *Flow) addIDs(r Result, trusted bool) {
	i := slices.IndexFunc(f.questions, func(s question) bool { return s.Query == r.Query })
	if i < 0 || len(r.Tool.IDs) == 0 {
		return
	}
	q := &f.questions[i]
	q.Found = slices.Clone(q.Found)
	objects := listObjects(r.Text)
	for _, object := range objects[:min(len(objects), maxIDs+1)] {
		named := trusted && q.namesObject(r.Tool, object)
		for _, v := range object {
			id := foundID{Tool: r.Tool.Name, ID: v.text, Named: named}
			if slices.Contains(r.Tool.IDs, v.key) && len(v.text) <= 128 && !slices.Contains(q.Found, id) {
				q.Found = append(q.Found, id)
			}
		}
	}
	if len(q.Found) > maxIDs { // the choice is too large
		q.Found = nil
	}
}

// labelOf returns what an object of a result calls itself, and who sent it; "" without either.
func labelOf(object []leaf) string {
	var parts []string
	for _, keys := range [][]string{{"title", "subject", "name", "summary"}, {"from", "sender"}} {
		for _, key := range keys {
			if at := slices.IndexFunc(object, func(v leaf) bool { return strings.EqualFold(v.key, key) }); at >= 0 {
				parts = append(parts, quoteClipped(object[at].text, 60))
				break
			}
		}
	}
	return strings.Join(parts, " from ")
}

// addLabels adds what the objects of a result call their ids.
func (f *Flow) addLabels(r Result) {
	if len(r.Tool.IDs) == 0 {
		return
	}
	objects := listObjects(r.Text)
	for _, object := range objects[:min(len(objects), maxLabels)] {
		label := labelOf(object)
		for _, v := range object {
			l := idLabel{r.Tool.Name, v.text, label}
			if label != "" && slices.Contains(r.Tool.IDs, v.key) && len(v.text) <= 128 {
				others := slices.DeleteFunc(slices.Clone(f.labels), func(o idLabel) bool { return o == l })
				f.labels = lastN(append(others, l), maxLabels)
			}
		}
	}
}

// describeID says what a result called an id, to follow it; "" when none did, or results called it differently. f must
// not be nil.
func (f *Flow) describeID(id string) (out string) {
	label := ""
	for _, l := range f.labels {
		switch {
		case l.ID != id:
		case label != "" && l.Label != label:
			return ""
		default:
			label, out = l.Label, ", which "+l.Tool+" showed as "+l.Label+","
		}
	}
	return out
}

// namesObject reports whether the question has a value of an object that a tool returned, besides its id.
func (q *question) namesObject(t Tool, object []leaf) bool {
	return slices.ContainsFunc(object, func(v leaf) bool {
		return len(t.IDs) > 0 && len(v.text) <= 128 && !slices.Contains(t.IDs, v.key) && q.has(normalizeValue(v.text))
	})
}

// isFoundID reports whether a result that the question asked for has an id.
func (q *question) isFoundID(id string) bool {
	return slices.ContainsFunc(q.Found, func(own foundID) bool { return own.ID == id })
}

// isOnlyID reports whether an id leaves no choice: it is the only one that a tool returned for the question, or the
// only one of them that the question names.
func (q *question) isOnlyID(id string) bool {
	return slices.ContainsFunc(q.Found, func(own foundID) bool {
		return own.ID == id && !slices.ContainsFunc(q.Found, func(o foundID) bool {
			return o.Tool == own.Tool && o.ID != id && (o.Named || !own.Named)
		})
	})
}

// addListing adds the values of a trusted result. before is the state in which the call was made. Recalled content
// repeats earlier text, so its values are never destinations; nor is a value that the arguments or untrusted content
// held before.
func (f *Flow) addListing(before *Flow, r Result) {
	if r.Tool.Graded || f.overflow {
		return
	}
	args := strings.ToLower(string(r.Args))
	values := slices.DeleteFunc(extractValues(r.Text), func(v string) bool {
		return !before.isUserValue(v) &&
			(strings.Contains(args, v) || slices.ContainsFunc(f.untrusted, func(u string) bool {
				return u == v || strings.Contains(u, v)
			}))
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

// noteQuery stores the first queries of a search for a question.
func (f *Flow) noteQuery(r Result) {
	i := slices.IndexFunc(f.questions, func(s question) bool { return s.Query == r.Query })
	args, err := flattenArguments(Call{Tool: r.Tool, Args: r.Args})
	if i < 0 || err != nil || r.Tool.Args.With(RoleQuery) == "" {
		return
	}
	q := &f.questions[i]
	for _, a := range args {
		if a.role == RoleQuery && len(q.Queries) < 2 && !slices.Contains(q.Queries, a.text) {
			q.Queries = append(slices.Clone(q.Queries), text.Cut(a.text, maxQuoteText))
		}
	}
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

// isAskedFor reports whether the words of a result's question ask for this read: its arguments are the user's words or
// values of trusted listings, and one of them is the user's, or the question names what the tool reads. Arguments
// without a meaning for the data, settings and options, do not count; one with [RoleUnasked] makes it a read that
// nobody asked for, whatever its value.
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
		case a.role == RoleUnasked:
			return false
		case a.role == RoleSetting, a.role == RoleOption && slices.Contains(a.values, a.text), a.text == "":
		case f.isUserValue(a.text) && !isStopWord(a.text), f.isUserDay(a.text), f.isMadeOfUserWords(a.text):
			if q.hasName(a.text) || len(slices.DeleteFunc(splitWords(a.text), isStopWord)) > 1 {
				typed++
			}
		case a.role == RoleTime:
		case f.isListed(a.text):
			if f.isListedAs(a.text, q.Text) {
				typed++
			}
		default:
			return false
		}
	}
	if typed > 0 || namesAny(q.Text, r.Tool.About) {
		return true
	}
	objects := listObjects(r.Text)
	return r.Labels().Trust == subjects.Trusted && len(objects) <= maxIDs &&
		slices.ContainsFunc(objects, func(o []leaf) bool { return q.namesObject(r.Tool, o) })
}

// hasName reports whether a word of a value is a name in the question: capitalized inside of a sentence, quoted, or
// with a digit or an @. A common word, as "summary", could look up anything.
func (q *question) hasName(value string) bool {
	words := splitWords(value)
	for _, s := range readSentences(q.Text) {
		for i, w := range s {
			isOwn := slices.ContainsFunc(splitWords(w.lower), func(p string) bool {
				return slices.Contains(words, strings.TrimSuffix(p, "'s"))
			})
			if isOwn && isNameLike(w) && (i > 0 || !isCapitalized(w.text) || w.quoted) {
				return true
			}
		}
	}
	return false
}

// namesAny reports whether a text has one of the nouns, also in the plural.
func namesAny(s string, nouns []string) bool {
	words := splitWords(s)
	return slices.ContainsFunc(nouns, func(n string) bool {
		return slices.Contains(words, n) || slices.Contains(words, n+"s")
	})
}

// leaf is a text or number of a JSON text with the key that it stands under.
type leaf struct{ key, text string }

// listObjects returns the leaves of each object of a JSON text, without those of objects inside of it; none of any
// other text. Text inside of a string is not parsed, so content cannot add an object.
func listObjects(s string) (out [][]leaf) {
	var top any
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if d.Decode(&top) != nil {
		return nil
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			var object []leaf
			for key, x := range v {
				switch x := x.(type) {
				case string:
					object = append(object, leaf{key, x})
				case json.Number:
					object = append(object, leaf{key, x.String()})
				default:
					walk(x)
				}
			}
			out = append(out, object)
		}
	}
	walk(top)
	return out
}

// extractValues returns the values of a list or JSON text, in lower case, of at most 128 bytes: the leaves of JSON, the
// items of any other text.
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

// walkJSON calls leaf for each string and number of a JSON text with the key that it stands under; false when s is no
// JSON object or list.
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
	for _, w := range strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`,;|"'[]{}()<>`, r)
	}) {
		if w = strings.Trim(w, ":.!?"); len(w) > 3 && len(w) < 2000 && strings.ContainsAny(w, ".@") {
			out = append(out, w)
		}
	}
	return out
}

// isListed reports whether a trusted tool listed this value, ignoring case. It does not make the value a destination:
// see [act.coversDestination].
func (f *Flow) isListed(value string) bool {
	v := strings.ToLower(strings.TrimSpace(value))
	return slices.ContainsFunc(f.listings, func(l listing) bool { return slices.Contains(l.Values, v) })
}

// isSearchResult reports whether exactly this URL may be fetched because a search returned it. Once private data is in
// the session, the choice of a link could carry it to the owner of the page: then only the links that were opened, and
// the next one in the order of the result.
func (f *Flow) isSearchResult(address string) bool {
	return slices.ContainsFunc(f.searches, func(s searchLinks) bool {
		i := slices.Index(s.Links, address)
		return i >= 0 && (!f.private || i <= s.Opened)
	})
}

// isListedAs reports whether a trusted tool listed a value as something that a question names.
func (f *Flow) isListedAs(value, question string) bool {
	v := normalizeValue(value)
	return slices.ContainsFunc(f.listings, func(l listing) bool {
		return slices.Contains(l.Values, v) && namesAny(question, l.About)
	})
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
