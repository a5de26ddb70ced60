package recall

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"conclave/subjects"
)

const (
	pageBits = 12
	pageSize = 1 << pageBits
	maxKey   = 1 << 32 // keys are smaller
)

// table holds the rows by key. Readers take no lock; writers hold that of [Recall].
type table struct {
	pages    atomic.Pointer[[]*page]
	rows     atomic.Int64
	inactive atomic.Int64 // rows that are not active
	shifted  atomic.Int64 // rows with grades or a pin
}

// page is a range of keys. The marks are apart from the rows, because a search reads those of every row.
type page struct {
	marks [pageSize]atomic.Uint32
	rows  [pageSize]atomic.Pointer[record]
}

// Marks of a row. One of the kinds that are known is in two bits; any other kind is 0 there.
const (
	markThere  = 1 << 0
	markActive = 1 << 1
	markVector = 1 << 4
	markKind   = 3 << 2
	markEngram = 1 << 2
	markFact   = 2 << 2
	markPiece  = 3 << 2
	markTrust  = 1 << 5 // trusted
)

// kindMark returns the bits of a kind, 0 for one that is not known here.
func kindMark(kind string) uint32 {
	switch kind {
	case subjects.KindEngram:
		return markEngram
	case subjects.KindFact:
		return markFact
	case subjects.KindDocument:
		return markPiece
	}
	return 0
}

// page returns the page of a key, nil when no key of it was ever stored.
func (t *table) page(key uint64) *page {
	pages := t.pages.Load()
	if pages == nil || key>>pageBits >= uint64(len(*pages)) {
		return nil
	}
	return (*pages)[key>>pageBits]
}

// row returns the row with this key, nil when there is none.
func (t *table) row(key uint64) *record {
	if p := t.page(key); p != nil {
		return p.rows[key%pageSize].Load()
	}
	return nil
}

// marks returns the marks of the row with this key, 0 when there is none.
func (t *table) marks(key uint64) uint32 {
	if p := t.page(key); p != nil {
		return p.marks[key%pageSize].Load()
	}
	return 0
}

// keys returns the keys of all rows, ascending.
func (t *table) keys() []uint64 {
	pages := t.pages.Load()
	if pages == nil {
		return nil
	}
	keys := make([]uint64, 0, t.rows.Load())
	for i, p := range *pages {
		for j := range uint64(pageSize) {
			if p != nil && p.rows[j].Load() != nil {
				keys = append(keys, uint64(i)<<pageBits|j)
			}
		}
	}
	return keys
}

// set stores a row; nil removes it. The caller must hold the lock of [Recall], and key must be below maxKey.
func (t *table) set(key uint64, r *record) {
	p := t.page(key)
	if p == nil {
		if r == nil {
			return
		}
		p = t.grow(key)
	}
	old := p.rows[key%pageSize].Swap(r)
	p.marks[key%pageSize].Store(r.marks())
	t.rows.Add(r.count() - old.count())
	t.inactive.Add(r.countInactive() - old.countInactive())
	t.shifted.Add(r.countShifted() - old.countShifted())
}

// grow adds the page of key, which must not exist, and returns it. Readers continue with the list of pages that they
// have. The caller must hold the lock of [Recall].
func (t *table) grow(key uint64) *page {
	var pages []*page
	if old := t.pages.Load(); old != nil {
		pages = slices.Clone(*old)
	}
	if short := int(key>>pageBits) + 1 - len(pages); short > 0 {
		pages = append(pages, make([]*page, short)...)
	}
	p := new(page)
	pages[key>>pageBits] = p
	t.pages.Store(&pages)
	return p
}

// filter returns which keys a query admits by kind, state and trust, nil when it admits all. It is a hint for the
// search: rows may change meanwhile, see [Query.admits].
func (t *table) filter(q Query) func(key uint64) bool {
	kind := q.Kind
	if kind == "" && !q.Trusted && (q.All || t.inactive.Load() == 0) {
		return nil
	}
	mask, want := uint32(markThere), uint32(markThere)
	if !q.All {
		mask, want = mask|markActive, want|markActive
	}
	if q.Trusted {
		mask, want = mask|markTrust, want|markTrust
	}
	if kind == "" {
		return func(key uint64) bool { return t.marks(key)&mask == want }
	}
	mask, want = mask|markKind, want|kindMark(kind)
	if kindMark(kind) != 0 {
		return func(key uint64) bool { return t.marks(key)&mask == want }
	}
	return func(key uint64) bool { // a kind that is not known here: slower, and as right
		if t.marks(key)&mask != want {
			return false
		}
		r := t.row(key)
		return r != nil && r.labels.kind == kind
	}
}

// record is a row as it is stored: compact and immutable. A change replaces it by a copy.
type record struct {
	text         string // id, name, respondent, and then each tag behind its length
	ends         [3]uint32
	version      uint32 // of the text: it is another one when the row is put again
	labels       *labels
	grades       *grades       // nil = nobody said anything
	speaker      *speaker      // nil = not known
	conversation *conversation // nil = it has no neighbours
	conversed    string        // id of the conversation
	position     int32
	created      int64  // microseconds
	happened     int64  // microseconds; unknownTime = not known
	content      uint64 // hash of the folded text, 0 = not comparable
	sketch       sketch // of the corpus
	pinned       bool
	vectors      bool
}

// unknownTime stands for a time that is not known.
const unknownTime = math.MinInt64

// time returns when a row happened, or was stored where that is not known.
func (r *record) time() time.Time {
	if r.happened == unknownTime {
		return time.UnixMicro(r.created).UTC()
	}
	return time.UnixMicro(r.happened).UTC()
}

// turn returns the place of a row with this key in its conversation.
func (r *record) turn(key uint64) turn { return turn{r.position, uint32(key)} }

// labels are values that many rows share. Each combination is stored once.
type labels struct{ kind, state, trust, source string }

type grades struct {
	critic   int32
	rewards  int32
	reward   float64
	pairwise string
}

// packGrades returns grades in their stored form, clamped to their ranges (NaN becomes 0), without feedback; nil when
// there are none.
func packGrades(g subjects.Grades) *grades {
	kept := grades{
		critic: int32(min(max(g.Critic, 0), 5)), rewards: int32(min(max(g.Rewards, 0), math.MaxInt32)),
		pairwise: g.Pairwise,
	}
	if !math.IsNaN(g.Reward) {
		kept.reward = min(max(g.Reward, -1), 1)
	}
	if kept == (grades{}) {
		return nil
	}
	out := kept // a copy, so that only rows with grades cost memory
	out.pairwise = strings.Clone(g.Pairwise)
	return &out
}

// newRecord packs a row without its key and description. The caller sets labels, speaker and conversation. It shares no
// memory with row.
func newRecord(row Row) *record {
	size := len(row.ID) + len(row.Name) + len(row.Respondent)
	for _, tag := range row.Tags {
		size += binary.MaxVarintLen32 + len(tag)
	}
	r := &record{
		created: row.Created.UnixMicro(), happened: unknownTime, pinned: row.Pinned, grades: packGrades(row.Grades),
		position: int32(min(max(row.Position, 0), math.MaxInt32)), content: hashContent(row.Words),
	}
	if !row.Happened.IsZero() {
		r.happened = row.Happened.UnixMicro()
	}
	var b strings.Builder
	b.Grow(size)
	for i, s := range []string{row.ID, row.Name, row.Respondent} {
		b.WriteString(s)
		r.ends[i] = uint32(b.Len())
	}
	for _, tag := range row.Tags {
		var n [binary.MaxVarintLen64]byte
		b.Write(n[:binary.PutUvarint(n[:], uint64(len(tag)))])
		b.WriteString(tag)
	}
	r.text = b.String()
	return r
}

func (r *record) id() string         { return r.text[:r.ends[0]] }
func (r *record) name() string       { return r.text[r.ends[0]:r.ends[1]] }
func (r *record) respondent() string { return r.text[r.ends[1]:r.ends[2]] }

// tags returns the tags in their order, nil when there are none.
func (r *record) tags() (tags []string) {
	for rest := r.text[r.ends[2]:]; rest != ""; {
		var head [binary.MaxVarintLen64]byte
		n, used := binary.Uvarint(head[:copy(head[:], rest)])
		tags = append(tags, rest[used:used+int(n)])
		rest = rest[used+int(n):]
	}
	return tags
}

// row unpacks the record as the row with this key, without Description and Words. labels must be set.
func (r *record) row(key uint64) Row {
	row := Row{
		Key: key, ID: r.id(), Kind: r.labels.kind, State: r.labels.state, Trust: r.labels.trust,
		Source: r.labels.source,
		Name:   r.name(), Respondent: r.respondent(), Tags: r.tags(),
		Created: time.UnixMicro(r.created).UTC(), Pinned: r.pinned, Conversation: r.conversed,
		Position: int(r.position),
	}
	if r.speaker != nil {
		row.Speaker = r.speaker.name
	}
	if r.happened != unknownTime {
		row.Happened = r.time()
	}
	if g := r.grades; g != nil {
		row.Grades = subjects.Grades{
			Critic: int(g.critic), Pairwise: g.pairwise, Reward: g.reward,
			Rewards: int(g.rewards),
		}
	}
	return row
}

// marks returns the marks of the row, 0 for nil.
func (r *record) marks() uint32 {
	if r == nil {
		return 0
	}
	m := markThere | kindMark(r.labels.kind)
	if r.isRecallable() {
		m |= markActive
	}
	if r.vectors {
		m |= markVector
	}
	if r.isTrusted() {
		m |= markTrust
	}
	return m
}

// isRecallable reports whether a search that does not ask for all rows finds this one: active rows, and answers of
// respondent B only where they won the comparison, since the user has not seen them.
func (r *record) isRecallable() bool {
	won := r.grades != nil && r.grades.pairwise == subjects.RespondentB
	return r.labels.state == subjects.MemoryActive && (won || r.respondent() != subjects.RespondentB)
}

// isTrusted reports whether the row holds trusted content only.
func (r *record) isTrusted() bool { return r.labels.trust == subjects.Trusted }

func (r *record) count() int64 {
	if r == nil {
		return 0
	}
	return 1
}

func (r *record) countInactive() int64 {
	if r == nil || r.isRecallable() {
		return 0
	}
	return 1
}

func (r *record) countShifted() int64 {
	if r == nil || r.grades == nil && !r.pinned {
		return 0
	}
	return 1
}
