package policy

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Flow is the information-flow state of a session: the user's questions with their grants, the sources of untrusted
// content, and the values that came from trusted tools and searches. Taint and privacy are never removed. A Flow is
// immutable: [Flow.WithQuestion], [Flow.WithResult] and [Flow.ClaimGrant] return a new one. The zero value is an empty,
// untainted session; nil is an unknown one, which counts as tainted and private and stays unknown.
type Flow struct {
	questions   []question
	lastTurn    uint64 // sequence of the last message of the session that was added
	sources     []subjects.Taint
	private     bool
	searches    []searchLinks
	listings    []listing
	publicWords []string  // words of public results
	untrusted   []string  // hosts and addresses in untrusted results, in lower case
	overflow    bool      // untrusted is incomplete: no listing is trusted any more
	found       []found   // people of objects that a question names
	dropped     bool      // private data was read for a question that is no longer in the list
	labels      []idLabel // titles and senders of ids, for reasons

	planText      string         // the plan of the question that is judged, see withPlanWords
	userText      string         // all questions, one per line; derived by index
	userTextLower string         // userText in lower case
	userTextIDs   *idText        // of userTextLower; nil = that is empty
	userWords     map[string]int // words of userTextLower, with their number
}

// question is one message of the user, what it grants, and what was read for it.
type question struct {
	Query   string  `json:"query"`
	Text    string  `json:"text"`
	Plan    string  `json:"plan,omitempty"` // words of a plan for it that count as the user's, see [Flow.WithPlan]
	Grants  []Grant `json:"orders,omitempty"`
	Private bool    `json:"private,omitempty"` // private data was read for it
	Unasked bool    `json:"unasked,omitempty"` // private data was read that its words do not ask for
	// Queries are the searches for it. Once private data is in the session, the choice among several could carry it.
	Queries []string `json:"queries,omitempty"`
	// Found are the ids in results that it asked for. Untrusted content may not choose among them.
	Found []foundID `json:"found,omitempty"`
	// OldGrants and OldIDs are in records of older versions. They permit nothing now.
	OldGrants json.RawMessage `json:"grants,omitempty"`
	OldIDs    []string        `json:"ids,omitempty"`
	// Respondent is the account that answers it; "" = the generator.
	Respondent string `json:"respondent,omitempty"`
	// Client is the run-time principal that asked it; "" = the user.
	Client string `json:"client,omitempty"`
	// Memory means that the answer to the client may use the user's memory.
	Memory bool `json:"memory,omitempty"`
}

// foundID is an id that a tool returned.
type foundID struct {
	Tool  string `json:"tool"`
	ID    string `json:"id"`
	Named bool   `json:"named,omitempty"` // in a trusted result, beside a value that the question has
}

// idLabel is what a result called an id. It is for reasons only: it may be a text of others, and decides nothing.
type idLabel struct {
	Tool  string `json:"tool"`
	ID    string `json:"id"`
	Label string `json:"label"`
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

// Limits of the stored state. The oldest entries are dropped first; a call that depends on a dropped entry asks. The
// fact that a session is tainted is never dropped. The list of untrusted addresses is a guard: when it overflows, no
// listing is trusted any more.
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
	maxLabels         = 100
	maxUntrusted      = 2000
	maxPublicWords    = 4000
	maxListBytes      = 64 << 10 // per list: the whole record must fit into a NATS message
	maxWordBytes      = 40       // longest public word
)

// HasQuestion reports whether the question with this query id is in the state.
func (f *Flow) HasQuestion(query string) bool { return f.findQuestion(query) != nil }

// Respondent returns the account that answers the question with this query id, "" when the state does not have it.
func (f *Flow) Respondent(query string) string {
	q := f.findQuestion(query)
	if q == nil {
		return ""
	}
	return cmp.Or(q.Respondent, subjects.Generator)
}

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
// session in order, also one for which no tool was called. respondent is the account that answers it. A query id that
// is in the state already keeps its first text, grants and respondent. See [Flow.WithQuestion] for content and grants.
func (f *Flow) WithTurn(seq uint64, query, respondent, content string, grants []Grant) *Flow {
	if f == nil {
		return nil
	}
	next := f.clone()
	if !f.HasQuestion(query) {
		next = f.WithQuestion(query, content, grants)
		if added := next.findQuestion(query); respondent != subjects.Generator {
			added.Respondent = respondent
		}
	}
	next.lastTurn = seq
	return next
}

// WithClientTurn is [Flow.WithTurn] for the message of a client, a run-time principal. Its text is not the user's: it
// grants nothing, holds no values of the user, and taints the session like a public result. memory says whether the
// answer may use the user's memory.
func (f *Flow) WithClientTurn(seq uint64, query, respondent, client, content string, memory bool, at time.Time) *Flow {
	if f == nil || f.HasQuestion(query) {
		return f.WithTurn(seq, query, respondent, "", nil)
	}
	next := f.WithTurn(seq, query, respondent, "", nil)
	q := next.findQuestion(query)
	q.Client, q.Memory = client, memory
	source := Tool{Name: "client", Known: true, Effects: Declare(ReadsUntrusted)}
	return next.WithResult(Result{
		Tool: source, Query: query, Source: "the question of client " + client, Text: content,
		Time: at,
	})
}

// IsClientQuestion reports whether a client asked the question with this query id, and not the user.
func (f *Flow) IsClientQuestion(query string) bool {
	q := f.findQuestion(query)
	return q != nil && q.Client != ""
}

// isWithoutMemory reports whether a client asked the question that may not use the user's memory.
func (f *Flow) isWithoutMemory(query string) bool {
	q := f.findQuestion(query)
	return q != nil && q.Client != "" && !q.Memory
}

// WithQuestion returns f with one more question of the user and its grants; query is its id. content and grants must
// come from the user's own words, never from a model or an attachment: see [DeriveGrants]. The text is clipped to
// maxQuestionBytes; the oldest questions are dropped beyond the limits; that private data was read for one of them
// stays in the state. An unknown session stays unknown.
func (f *Flow) WithQuestion(query, content string, grants []Grant) *Flow {
	if f == nil {
		return nil
	}
	next := f.clone()
	next.questions = append(next.questions, question{
		Query: query, Text: text.Cut(content, maxQuestionBytes),
		Grants: grants,
	})
	for size := 0; ; size = 0 {
		for _, s := range next.questions {
			size += len(s.Text) + len(s.Plan)
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

// WithPlan returns f with the words of a plan that a model made for a question. They count as the user's own where
// agents search and fetch for that question, see [Flow.withPlanWords], when nothing untrusted or private has entered
// the session: the model that planned had nothing but the user's words then. Otherwise, and for a question that is
// unknown or has a plan, f is returned.
func (f *Flow) WithPlan(query, plan string) *Flow {
	q := f.findQuestion(query)
	if q == nil || q.Plan != "" || q.Client != "" || f.IsTainted() || f.HasPrivate() {
		return f
	}
	next := f.clone()
	i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == query })
	next.questions[i].Plan = text.Cut(plan, maxQuestionBytes)
	return next
}

// WithAttachments returns f after untrusted content came with a question: text from a pipe, a file or a paste, or an
// image. It taints the session, and counts as private data that the question asks for. After an image no listing is
// trusted any more. An unknown session stays unknown.
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

// ClaimGrant returns f after a call of t for a question used one of its grants. call identifies the call: a repeated
// claim uses nothing more. ok is false, and f is returned, when the call needs a grant and none that covers it is left.
// An untainted session needs none, and a call without an act claims none.
func (f *Flow) ClaimGrant(c Call, call string) (next *Flow, ok bool) {
	if f == nil || !c.Tool.UsesGrants() {
		return f, f != nil
	}
	q := f.findQuestion(c.Query)
	if q == nil {
		return f, !f.IsTainted() && !c.Foreign
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
		return f, !f.IsTainted() && !c.Foreign
	}
	next = f.clone()
	i := slices.IndexFunc(next.questions, func(s question) bool { return s.Query == c.Query })
	grants := slices.Clone(next.questions[i].Grants)
	grants[at].Used = append(slices.Clone(grants[at].Used), call)
	next.questions[i].Grants = grants
	return next, true
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

// After is the beginning of a reason of the flow layer: what the model has read that others wrote.
func (c Call) After() string { return "after " + c.describeTaint() + ", " }

// describeTaint names what the model has read that others wrote, in words that follow "after".
func (c Call) describeTaint() string {
	if c.Foreign && c.Flow != nil && !c.Flow.IsTainted() {
		return "reading the descriptions of tools that you added"
	}
	return c.Flow.describeTaint()
}

// describeTaint names the latest source of untrusted content in words that follow "after": "reading <source>",
// "reading what <tool> returned", or "reading an unknown source" when f is nil or untainted.
func (f *Flow) describeTaint() string {
	if f == nil || len(f.sources) == 0 {
		return "reading an unknown source"
	}
	s := f.sources[len(f.sources)-1]
	if s.From != "" {
		return "reading " + quote(s.From)
	}
	return "reading what " + s.Tool + " returned"
}

// clone returns a copy whose lists can be appended to and whose questions can be changed. f must not be nil.
func (f *Flow) clone() *Flow {
	next := *f
	next.questions, next.sources = slices.Clone(f.questions), slices.Clone(f.sources)
	next.searches, next.listings, next.found = slices.Clone(f.searches), slices.Clone(f.listings), slices.Clone(f.found)
	next.publicWords, next.untrusted = slices.Clone(f.publicWords), slices.Clone(f.untrusted)
	return &next
}

// appendBounded appends the texts that are not in the list yet and drops the oldest beyond maxItems or maxListBytes. It
// ignores empty texts and texts over 2000 bytes. It may write to the memory of to.
func appendBounded(to []string, maxItems int, texts ...string) []string {
	fresh := make(map[string]bool, len(texts)) // a set of the new texts, because the list is much longer
	// lengths and first bytes in fresh: most texts of the list have another one
	var shapes [64]uint64
	for _, t := range texts {
		if t != "" {
			fresh[t] = true
			shapes[len(t)%64] |= 1 << (t[0] % 64)
		}
	}
	for _, t := range to {
		if t != "" && shapes[len(t)%64]&(1<<(t[0]%64)) != 0 {
			delete(fresh, t)
		}
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
