package recall

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"
	"unique"

	"conclave/pkg/text"
	"conclave/subjects"
)

const (
	pageSize = 1 << 12
	maxKey   = 1 << 32 // keys are smaller
)

// paged maps keys to values in pages, since keys may begin anywhere. A missing key has the zero value.
type paged[T any] []*[pageSize]T

func (p paged[T]) get(key uint64) (v T) {
	if page := key / pageSize; page < uint64(len(p)) && p[page] != nil {
		return p[page][key%pageSize]
	}
	return v
}

func (p *paged[T]) set(key uint64, v T) {
	page := int(key / pageSize)
	if page >= len(*p) {
		*p = append(*p, make(paged[T], page+1-len(*p))...)
	}
	if (*p)[page] == nil {
		(*p)[page] = new([pageSize]T)
	}
	(*p)[page][key%pageSize] = v
}

// record is an entry as it is kept: what scores it and what the first stage of a recall shows, without its texts.
type record struct {
	key                        uint64
	id, name, respondent       string
	kind, state, trust, source string // shared by many records, like conversation
	tags                       []string
	created                    time.Time
	happened                   time.Time // zero = not known
	conversation               string
	position                   int
	pinned                     bool
	vectors                    bool
	grades                     *subjects.Grades // without the critic's words; nil = nobody said anything
	content                    uint64           // hash of the text as duplicates are compared, 0 = not comparable
	number                     uint32           // in the index of words; 0 = not indexed
	speaker                    *speaker         // nil = not known
	beside                     *conversation    // nil = it has no neighbours
}

// newRecord returns the record of an entry. The caller sets number, speaker, beside and vectors.
func newRecord(key uint64, e subjects.MemoryEntry) *record {
	return &record{
		key: key, id: strings.Clone(e.ID), name: strings.Clone(e.Name), respondent: intern(e.Respondent),
		kind: intern(e.Kind), state: intern(e.State), trust: intern(e.Provenance.Trust),
		source: intern(string(e.Provenance.Source)), tags: slices.Clone(e.Tags), created: e.Created,
		happened: e.Happened, conversation: intern(e.Conversation), position: e.Position, pinned: e.Pinned,
		grades: keepGrades(e.Grades), content: hashContent(e.Corpus),
	}
}

// intern returns the one shared copy of a value that many records have.
func intern(s string) string { return unique.Make(s).Value() }

// keepGrades returns what a record keeps of grades, in their ranges (NaN is 0); nil when there are none.
func keepGrades(g subjects.Grades) *subjects.Grades {
	g = subjects.Grades{
		Critic: min(max(g.Critic, 0), 5), Pairwise: intern(g.Pairwise), Reward: min(max(g.Reward, -1), 1),
		Rewards: g.Rewards,
	}
	if math.IsNaN(g.Reward) {
		g.Reward = 0
	}
	if g == (subjects.Grades{}) {
		return nil
	}
	return &g
}

// entry returns the record as an entry without its texts.
func (r *record) entry() subjects.MemoryEntry {
	e := subjects.MemoryEntry{
		ID: r.id, Kind: r.kind, State: r.state, Name: r.name, Respondent: r.respondent, Tags: slices.Clone(r.tags),
		Created: r.created, Pinned: r.pinned, Conversation: r.conversation, Position: r.position,
		Happened: r.happened, Provenance: subjects.Provenance{Source: subjects.Source(r.source), Trust: r.trust},
	}
	if r.speaker != nil {
		e.Speaker = r.speaker.name
	}
	if r.grades != nil {
		e.Grades = *r.grades
	}
	return e
}

// time returns when an entry happened, or was stored where that is not known.
func (r *record) time() time.Time {
	if r.happened.IsZero() {
		return r.created
	}
	return r.happened
}

// turn returns the place of a row in its conversation.
func (r *record) turn() turn { return turn{r.position, r.key} }

// isRecallable reports whether a search that does not ask for all rows finds this one: active rows, and answers of
// respondent B only where they won the comparison, since the user has not seen them.
func (r *record) isRecallable() bool {
	won := r.grades != nil && r.grades.Pairwise == subjects.RespondentB
	return r.state == subjects.MemoryActive && (won || r.respondent != subjects.RespondentB)
}

// isTrusted reports whether the row holds trusted content only.
func (r *record) isTrusted() bool { return r.trust == subjects.Trusted }

// sameContent is the cosine of two corpora above which only the better row is shown.
const sameContent = 0.97

// selectTop returns the first top rows that are not below the floor and, unless withDuplicates is set, no duplicates of
// a better one. list must be sorted, best first. The result is nil when none is left.
func (r *Recall) selectTop(list []*candidate, top int, withDuplicates bool) (chosen []*candidate) {
	for _, c := range list {
		if len(chosen) == top {
			break
		}
		if !r.isBelowFloor(c) && (withDuplicates || !slices.ContainsFunc(chosen, func(better *candidate) bool {
			return r.isDuplicate(c.rec, better.rec)
		})) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// isDuplicate reports whether two rows have the same content: the same text, or vectors of the corpus with a cosine
// above sameContent. The name does not count. Rows of different speakers or days are no duplicates, except
// untrusted rows with the same text: repeated, it would fill a result. Rows of different states are none, because a
// search for superseded rows shows them beside their successors; nor are rows of different trust, because untrusted
// content must not hide the user's own.
func (r *Recall) isDuplicate(a, b *record) bool {
	if a.state != b.state || a.trust != b.trust {
		return false
	}
	sameText := a.content != 0 && a.content == b.content
	if a.speaker != b.speaker || !a.happened.Truncate(day).Equal(b.happened.Truncate(day)) {
		return sameText && a.trust == subjects.Untrusted
	}
	return sameText || r.vectors[ofCorpus].Similarity(a.key, b.key) > sameContent
}

// contentSeed is the seed of hashContent for this process.
var contentSeed = maphash.MakeSeed()

// hashContent returns a hash of a text as duplicates are compared: folded, with single blanks. It is 0 for an empty
// text and for one that may be only the beginning of a longer one.
func hashContent(s string) uint64 {
	if s == "" || len(s) >= maxTextBytes {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(contentSeed)
	for word := range strings.FieldsSeq(text.Fold(s)) {
		_, _ = h.WriteString(word) // never fails
		_ = h.WriteByte(' ')
	}
	return h.Sum64() | 1
}
