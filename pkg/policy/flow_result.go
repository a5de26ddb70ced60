package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
		next.addIDs(r.Query, l.Trust == subjects.Trusted, extractIDs(r.Tool.IDs, r.Text))
	}
	next.addFound(r)
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

// addIDs adds the ids of a result: those of a trusted one for the session, those of any other for its question. The ids
// of the oldest questions are dropped when all together exceed maxListBytes.
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

// isResultID reports whether an id is in a trusted result that some question pointed to, or in an untrusted result that
// this question points to.
func (f *Flow) isResultID(query, id string) bool {
	q := f.findQuestion(query)
	return slices.Contains(f.ids, id) || q != nil && slices.Contains(q.IDs, id)
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
	return slices.ContainsFunc(nouns, func(n string) bool {
		return slices.Contains(words, n) || slices.Contains(words, n+"s")
	})
}

// extractIDs returns the values of the given fields in a JSON text; none in any other text. Text inside of a string
// value is not parsed, so content cannot add an id.
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
// see [Grant.coversDestination].
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
