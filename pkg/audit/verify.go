package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"conclave/subjects"
)

// VerifyOptions say what an audit log may hold.
type VerifyOptions struct {
	Accounts    []string // the accounts that may write
	MaxProblems int      // how many problems to describe for each account, 100; all are counted
}

// Problem is one thing wrong with an audit log. A field that does not apply is empty.
type Problem struct {
	Stream  uint64 `json:"stream,omitempty"` // the stream's sequence: of the record, or of the missing message
	Account string `json:"account,omitempty"`
	Chain   string `json:"chain,omitempty"`
	Record  uint64 `json:"record,omitempty"` // the record's sequence in its chain
	Text    string `json:"text"`             // a sentence for a person
}

// String returns the sentence and where it belongs.
func (p Problem) String() string {
	s := p.Text
	if p.Chain != "" {
		s = fmt.Sprintf("%s, chain %s, record %d: %s", p.Account, p.Chain, p.Record, s)
	}
	if p.Stream > 0 {
		s = fmt.Sprintf("stream sequence %d: %s", p.Stream, s)
	}
	return s
}

// Report is what a walk through the audit log found. Problems are in the order of the stream; what only its end can tell,
// such as a lost tail, comes last.
type Report struct {
	OK         bool `json:"ok"`
	Messages   int  `json:"messages"`
	Records    int  `json:"records"`
	Chains     int  `json:"chains"`
	Unfinished int  `json:"unfinished"` // acts without an outcome in chains that have ended: a crash, not a fault
	Pending    int  `json:"pending"`    // acts without an outcome in chains that may go on
	// Unacknowledged counts the records after the last one that an anchor or a link knows. A crash leaves such records;
	// whoever can write the store can add them. Nobody acted on them, and nobody vouches for them.
	Unacknowledged int                    `json:"unacknowledged"`
	Bad            int                    `json:"bad"` // all problems, described or not
	Problems       []Problem              `json:"problems,omitempty"`
	First          *Problem               `json:"first,omitempty"`
	Genesis        *subjects.AuditGenesis `json:"genesis,omitempty"`      // how the audit log begins; nil unless its anchor vouches for it
	Predecessors   []Sealed               `json:"predecessors,omitempty"` // the sealed audit logs, newest first, where they were looked at
}

// Sealed is an earlier trail in its file, as the first record of its successor knows it.
type Sealed struct {
	File     string               `json:"file"` // the name alone
	SHA256   string               `json:"sha256"`
	By       string               `json:"by"` // whose first record that is: a file, or "" for the current trail
	OldHeads []subjects.AuditHead `json:"-"`
	Problem  string               `json:"problem,omitempty"` // what is wrong with the file
	Note     string               `json:"note,omitempty"`    // why nothing vouches for what was sealed before it
}

// AddProblem puts a problem that was found outside the stream behind the others.
func (r *Report) AddProblem(p Problem) {
	r.OK = false
	r.Bad++
	r.Problems = append(r.Problems, p)
	if r.First == nil {
		r.First = &p
	}
}

// Verify walks the audit log and compares it with the anchored heads, which must hold the head of its genesis. It returns an
// error when the audit log could not be read to its end; whatever is wrong with the audit log itself is in the report.
//
// It keeps 32 bytes for each record of a chain that no later chain has linked yet, 8 for each act that was not allowed,
// and little else.
func Verify(ctx context.Context, src Source, heads []subjects.AuditHead, opts VerifyOptions) (Report, error) {
	if opts.MaxProblems <= 0 {
		opts.MaxProblems = 100
	}
	v := &verifier{
		opts:          opts,
		described:     map[string]int{},
		chains:        map[string]*chain{},
		anchored:      map[string][]subjects.AuditHead{},
		oldHeads:      map[subjects.AuditHead]bool{},
		endedSubjects: map[string]bool{},
		linkedBy:      map[string][]*chain{},
		nextSeq:       1,
	}
	for _, h := range heads {
		v.anchored[h.Chain] = append(v.anchored[h.Chain], h)
	}
	if src.First > 1 {
		v.reportMissing(src.First)
	}
	if src.Messages != nil {
		for st, err := range src.Messages {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				v.finishReport()
				v.report.OK = false
				return v.report, fmt.Errorf("verify audit: %w", err)
			}
			v.verifyMessage(st)
		}
	}
	if v.nextSeq <= src.Last {
		v.reportMissing(src.Last + 1)
	}
	if v.nextSeq > src.Last+1 {
		v.addProblem(Problem{Stream: v.nextSeq - 1, Text: fmt.Sprintf("the stream says that it ends at %d, yet there is more", src.Last)})
	}
	v.verifyEnds(heads)
	v.finishReport()
	return v.report, nil
}

type verifier struct {
	opts          VerifyOptions
	report        Report
	described     map[string]int // problems by account
	nextSeq       uint64         // the stream's next sequence
	chains        map[string]*chain
	order         []*chain // as they began
	anchored      map[string][]subjects.AuditHead
	oldHeads      map[subjects.AuditHead]bool // from the anchored genesis: ends in the sealed predecessor
	endedSubjects map[string]bool             // the subjects of those
	linkedBy      map[string][]*chain         // the chains that link this one
}

// chain is what is remembered of one chain.
type chain struct {
	account, id string
	streamSeq   uint64 // where its last record stands
	lastSeq     uint64 // its last record
	lastHash    [sha256.Size]byte
	lastMissing uint64 // the last record that is missing

	hashBase uint64 // hashes of the records up to here are gone
	hashes   []byte // of the records after that

	anchors  []subjects.AuditHead
	linked   bool                 // a later chain says that it ended
	end      subjects.AuditHead   // and where
	links    []subjects.AuditHead // the ends it links itself
	ackedSeq uint64               // the last record that somebody is known to have acted on

	messages int
	acts     *actSet
	mismatch int // the problem about the last two records not fitting together, counted from 1
}

// actSet holds the acts without an outcome yet, and the chain that announced each. Chains that link one another share
// it: when a writer has to change chains in the middle of an act, the outcome stands in the next chain.
type actSet struct {
	parent *actSet // what it became part of
	open   map[string]*chain
	denied map[uint64]bool // acts that were not allowed, by the hash of their id: it only chooses the words of a problem
}

func newActSet() *actSet { return &actSet{open: map[string]*chain{}, denied: map[uint64]bool{}} }

var actSeed = maphash.MakeSeed()

func (a *actSet) root() *actSet {
	for a.parent != nil {
		a = a.parent
	}
	return a
}

func (a *actSet) merge(b *actSet) {
	a, b = a.root(), b.root()
	if a == b {
		return
	}
	if len(a.open)+len(a.denied) > len(b.open)+len(b.denied) {
		a, b = b, a
	}
	maps.Copy(b.open, a.open)
	maps.Copy(b.denied, a.denied)
	a.parent, a.open, a.denied = b, nil, nil
}

// addProblem counts a problem and describes it, unless its account has filled its share: what one writer spoils must not hide
// what happened to another. Accounts that no writer has share one share.
func (v *verifier) addProblem(p Problem) int {
	v.report.Bad++
	who := p.Account
	if who != "" && who != GenesisAccount && !slices.Contains(v.opts.Accounts, who) {
		who = "?"
	}
	if v.described[who] == v.opts.MaxProblems {
		return 0
	}
	v.described[who]++
	v.report.Problems = append(v.report.Problems, p)
	return len(v.report.Problems)
}

// reportMissing reports the messages before seq as missing.
func (v *verifier) reportMissing(seq uint64) {
	text := fmt.Sprintf("messages %d to %d are missing from the stream", v.nextSeq, seq-1)
	if v.nextSeq == seq-1 {
		text = fmt.Sprintf("message %d is missing from the stream", v.nextSeq)
	}
	v.addProblem(Problem{Stream: v.nextSeq, Text: text})
	v.nextSeq = seq
}

func (v *verifier) verifyMessage(st Stored) {
	v.report.Messages++
	switch {
	case st.Seq > v.nextSeq:
		v.reportMissing(st.Seq)
		v.nextSeq++
	case st.Seq < v.nextSeq:
		v.addProblem(Problem{Stream: st.Seq, Text: fmt.Sprintf("message %d comes again or too late, %d was next", st.Seq, v.nextSeq)})
	default:
		v.nextSeq++
	}

	genesis := st.Subject == GenesisSubject
	account, id, err := splitSubject(st.Subject)
	bad := func(record uint64, format string, args ...any) {
		v.addProblem(Problem{Stream: st.Seq, Account: account, Chain: id, Record: record, Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case err != nil:
		v.addProblem(Problem{Stream: st.Seq, Text: err.Error()})
		return
	case genesis && st.Seq != 1:
		bad(1, "only the first message may be a genesis")
		return
	case st.Seq == 1 && !genesis:
		bad(1, "the audit log does not begin with a genesis")
	}
	if !genesis && !slices.Contains(v.opts.Accounts, account) {
		bad(0, "no writer has the account %s", account)
		return
	}
	c := v.chains[id]
	if c != nil && c.account != account {
		bad(0, "the chain belongs to the account %s", c.account)
		return
	}
	batch, err := DecodeBatch(st.Data)
	if err != nil {
		next := uint64(1)
		if c != nil {
			next = c.lastSeq + 1
		}
		bad(next, "the message cannot be read: %v", err)
		return
	}
	if genesis {
		if !isGenesis(batch) {
			bad(1, "the genesis is not one record that opens an audit log")
			return
		}
		v.acceptGenesis(st.Seq, batch[0])
	}
	if c == nil {
		if v.endedSubjects[st.Subject] {
			bad(batch[0].Record.Seq, "chain %s ended in the sealed audit log, yet it is here", id)
		}
		c = v.beginChain(account, id)
	}
	c.messages++
	for _, d := range batch {
		v.report.Records++
		v.verifyRecord(c, st.Seq, genesis, d)
	}
}

// acceptGenesis believes the first record only if it is the one that was anchored. Its old heads excuse anchors, so a forged
// one could excuse them all; that it was altered is told where every record is held against its anchor.
func (v *verifier) acceptGenesis(stream uint64, d Decoded) {
	match, known := matchGenesis(d, v.anchored[GenesisChain])
	if !known {
		v.addProblem(Problem{
			Stream: stream, Account: GenesisAccount, Chain: GenesisChain, Record: d.Record.Seq,
			Text: "nobody vouches for the beginning: the genesis is not anchored",
		})
	}
	if !match {
		return
	}
	v.report.Genesis = d.Record.Genesis
	for _, h := range d.Record.Genesis.OldHeads {
		if h.Account == GenesisAccount || h.Seq == 0 { // nothing excuses the anchor of the genesis itself
			continue
		}
		v.oldHeads[h] = true
		v.endedSubjects["audit."+h.Account+"."+h.Chain] = true
	}
}

// matchGenesis reports whether the heads know a genesis, and whether d is the one and only that they know.
func matchGenesis(d Decoded, heads []subjects.AuditHead) (match, known bool) {
	match = true
	for _, h := range heads {
		if h.Account == GenesisAccount && h.Chain == GenesisChain && h.Seq > 0 {
			known = true
			match = match && h.Seq == d.Record.Seq && h.Hash == hexHash(d.Hash)
		}
	}
	return match && known, known
}

// ReadGenesis returns what the first message of an audit log says, but only if it is the one that heads anchor. Otherwise the
// error wraps [ErrGenesisNotAnchored]: nobody vouches for what it says.
func ReadGenesis(st Stored, heads []subjects.AuditHead) (*subjects.AuditGenesis, error) {
	batch, err := DecodeBatch(st.Data)
	if err != nil || st.Subject != GenesisSubject || !isGenesis(batch) {
		return nil, fmt.Errorf("%w: it is not a genesis", ErrGenesisNotAnchored)
	}
	switch match, known := matchGenesis(batch[0], heads); {
	case !known:
		return nil, fmt.Errorf("%w: no genesis is anchored", ErrGenesisNotAnchored)
	case !match:
		return nil, fmt.Errorf("%w: it is not the one that was anchored", ErrGenesisNotAnchored)
	}
	return batch[0].Record.Genesis, nil
}

func isGenesis(batch []Decoded) bool {
	return len(batch) == 1 && batch[0].Record.Genesis != nil && len(batch[0].Record.Links) == 0
}

// beginChain remembers a chain that was not seen before.
func (v *verifier) beginChain(account, id string) *chain {
	c := &chain{account: account, id: id, acts: newActSet()}
	for _, h := range v.anchored[id] {
		if h.Account == account && !v.oldHeads[h] {
			c.anchors = append(c.anchors, h)
		}
	}
	// A link to a chain of which nothing was acknowledged may overtake the chain itself.
	for _, by := range v.linkedBy[id] {
		if by.account == account {
			c.markEnded(by, subjects.AuditHead{})
		}
	}
	v.chains[id] = c
	v.order = append(v.order, c)
	return c
}

func (v *verifier) verifyRecord(c *chain, stream uint64, genesis bool, d Decoded) {
	rec := d.Record
	bad := func(record uint64, format string, args ...any) {
		v.addProblem(Problem{Stream: stream, Account: c.account, Chain: c.id, Record: record, Text: fmt.Sprintf(format, args...)})
	}
	if rec.Chain != c.id {
		bad(rec.Seq, "the record says that it belongs to chain %q", rec.Chain)
		return
	}
	if rec.Seq <= c.lastSeq {
		bad(rec.Seq, "record %d comes again or too late, %d was next", rec.Seq, c.lastSeq+1)
		return
	}
	if next := c.lastSeq + 1; rec.Seq > next {
		if next == rec.Seq-1 {
			bad(next, "record %d is missing", next)
		} else {
			bad(next, "records %d to %d are missing", next, rec.Seq-1)
		}
		c.mismatch = 0
		c.lastMissing, c.hashBase, c.hashes = rec.Seq-1, rec.Seq-1, nil
	} else {
		v.checkPrev(c, rec)
	}
	for _, h := range c.anchors {
		if h.Seq == rec.Seq && h.Hash != hexHash(d.Hash) {
			v.reportAltered(c, stream, rec.Seq, "record %d is not the one that was anchored: it was altered", rec.Seq)
		}
	}

	c.streamSeq, c.lastSeq, c.lastHash = stream, rec.Seq, d.Hash
	c.hashes = append(c.hashes, d.Hash[:]...)

	if rec.Genesis != nil && !genesis {
		bad(rec.Seq, "only the first message may hold a genesis")
	}
	if rec.ID == "" {
		bad(rec.Seq, "the record has no id")
	}
	switch {
	case rec.Seq == 1 && (rec.Phase != subjects.AuditOpen || rec.Prev != ""):
		bad(1, "the first record does not open the chain")
	case rec.Seq == 1:
		for _, l := range rec.Links {
			v.verifyLink(c, stream, l)
		}
	case len(rec.Links) > 0:
		bad(rec.Seq, "only the first record of a chain may link others")
	case rec.Phase == subjects.AuditBefore && subjects.NothingRan(rec.Status):
		// Nothing ran, so no outcome will come: the record says all there is to say.
		c.acts.root().denied[maphash.String(actSeed, rec.ID)] = true
	case rec.Phase == subjects.AuditBefore:
		c.acts.root().open[rec.ID] = c
	case rec.Phase == subjects.AuditAfter:
		acts := c.acts.root()
		switch {
		case acts.open[rec.ID] != nil:
			delete(acts.open, rec.ID)
		case acts.denied[maphash.String(actSeed, rec.ID)]:
			bad(rec.Seq, "the outcome of something that was not allowed: %q", rec.ID)
		default:
			bad(rec.Seq, "the outcome of %q has no record before it", rec.ID)
		}
	default:
		bad(rec.Seq, "phase %q is unknown here", rec.Phase)
	}
}

// checkPrev checks that rec holds the hash of the record before it. When two records do not fit, the earlier one is
// named, unless the later one fits its own follower or anchor neither: then it is the odd one out.
func (v *verifier) checkPrev(c *chain, rec subjects.AuditRecord) {
	if rec.Seq == 1 || rec.Prev == hexHash(c.lastHash) {
		c.mismatch = 0
		return
	}
	if c.mismatch > 0 {
		v.reportAltered(c, c.streamSeq, c.lastSeq, "record %d was altered: it fits neither the record before nor the one after it", c.lastSeq)
		return
	}
	c.mismatch = v.addProblem(Problem{
		Stream: c.streamSeq, Account: c.account, Chain: c.id, Record: c.lastSeq,
		Text: fmt.Sprintf("record %d was altered: it is not the one that record %d was written after", c.lastSeq, rec.Seq),
	})
}

// reportAltered reports a changed record, in place of the problem with the record before it if there is one.
func (v *verifier) reportAltered(c *chain, stream, record uint64, format string, args ...any) {
	p := Problem{Stream: stream, Account: c.account, Chain: c.id, Record: record, Text: fmt.Sprintf(format, args...)}
	if c.mismatch > 0 {
		v.report.Problems[c.mismatch-1] = p
		c.mismatch = 0
		return
	}
	v.addProblem(p)
}

// verifyLink checks one link of the open record of c and closes the chain it names.
func (v *verifier) verifyLink(c *chain, stream uint64, l subjects.AuditHead) {
	bad := func(format string, args ...any) {
		v.addProblem(Problem{Stream: stream, Account: c.account, Chain: c.id, Record: 1, Text: fmt.Sprintf(format, args...)})
	}
	if l.Account != c.account || l.Chain == c.id || !hasValidHash(l) {
		bad("the link to record %d of %s, chain %s is not one its writer makes", l.Seq, l.Account, l.Chain)
		return
	}
	target := v.chains[l.Chain]
	switch {
	case target != nil && target.account != l.Account:
		bad("links to chain %s, which belongs to the account %s", l.Chain, target.account)
		return
	case l.Seq == 0 || v.oldHeads[l]:
	case target == nil:
		bad("links to record %d of chain %s, which is not in the stream", l.Seq, l.Chain)
	case target.linked && target.end == l:
	case target.linked && l.Seq < target.end.Seq:
		bad("links to record %d of chain %s, which was known to reach %d", l.Seq, l.Chain, target.end.Seq)
	case l.Seq > target.lastSeq:
		bad("links to record %d of chain %s, which ends at %d here", l.Seq, l.Chain, target.lastSeq)
	case l.Seq <= target.hashBase || l.Hash != hex.EncodeToString(target.hashAt(l.Seq)):
		bad("links to record %d of chain %s with a hash that the record does not have", l.Seq, l.Chain)
	}
	if before := v.linkedBy[l.Chain]; len(before) > 0 {
		before[len(before)-1].acts.merge(c.acts)
	}
	v.linkedBy[l.Chain] = append(v.linkedBy[l.Chain], c)
	c.links = append(c.links, l)
	if target != nil {
		target.markEnded(c, l)
	}
}

// hashAt returns the hash of a record that is not forgotten.
func (c *chain) hashAt(seq uint64) []byte {
	i := (seq - c.hashBase - 1) * sha256.Size
	return c.hashes[i : i+sha256.Size]
}

// markEnded notes that c ended at end, as the chain by says.
func (c *chain) markEnded(by *chain, end subjects.AuditHead) {
	c.linked = true
	if end.Seq >= c.end.Seq {
		c.end = end
	}
	if end.Seq > c.hashBase && end.Seq <= c.lastSeq {
		c.hashes = slices.Clone(c.hashes[(end.Seq-c.hashBase)*sha256.Size:])
		c.hashBase = end.Seq
	}
	c.acts.merge(by.acts)
}

// isEndConfirmed reports whether somebody knows where c ended.
func (v *verifier) isEndConfirmed(c *chain) bool {
	if c.linked || len(c.anchors) > 0 || c.account == GenesisAccount && c.id == GenesisChain {
		return true
	}
	// A writer drops the old heads once its open record is acknowledged. If a head that this chain links is still
	// anchored, or is linked again by a chain that is vouched for, then the first message of this one was never
	// acknowledged and it came to nothing.
	if c.messages > 1 {
		return false
	}
	for _, l := range c.links {
		if slices.ContainsFunc(v.anchored[l.Chain], func(h subjects.AuditHead) bool { return h.Account == c.account }) {
			return true
		}
		for _, other := range v.linkedBy[l.Chain] {
			if other.linked || len(other.anchors) > 0 {
				return true
			}
		}
	}
	return false
}

// verifyEnds checks what only the whole trail can tell: that every anchored record is there, and that somebody vouches for
// the end of every chain.
func (v *verifier) verifyEnds(heads []subjects.AuditHead) {
	if v.report.Genesis == nil && v.report.Messages == 0 {
		v.addProblem(Problem{Stream: 1, Text: "the audit log is empty: not even its genesis is there"})
	}
	for _, h := range heads {
		c := v.chains[h.Chain]
		bad := func(stream, record uint64, format string, args ...any) {
			v.addProblem(Problem{Stream: stream, Account: h.Account, Chain: h.Chain, Record: record, Text: fmt.Sprintf(format, args...)})
		}
		switch {
		case !hasValidHash(h):
			bad(0, h.Seq, "the anchored head is malformed")
		case h.Seq == 0 || v.oldHeads[h]:
		case c == nil:
			bad(0, 1, "lost chain: chain %s is anchored at record %d, the stream holds none of it", h.Chain, h.Seq)
		case c.account != h.Account:
			bad(c.streamSeq, h.Seq, "the chain is anchored for %s, the stream has it from %s", h.Account, c.account)
		case c.lastSeq < h.Seq:
			bad(c.streamSeq, c.lastSeq+1, "lost tail: chain %s is anchored at record %d, the stream ends at %d", h.Chain, h.Seq, c.lastSeq)
		}
	}
	for _, c := range v.order {
		if !v.isEndConfirmed(c) {
			v.addProblem(Problem{
				Stream: c.streamSeq, Account: c.account, Chain: c.id, Record: c.lastSeq,
				Text: fmt.Sprintf("nobody vouches for the end of chain %s: it is neither anchored nor linked by a later chain", c.id),
			})
		}
	}
}

// countUnacknowledged finds how far each chain is known to have been acknowledged: to its anchor, or to where a later chain
// links it. A link counts only if it was acknowledged itself, so the walk goes from the last chain to the first.
func (v *verifier) countUnacknowledged() {
	for _, c := range slices.Backward(v.order) {
		for _, h := range c.anchors {
			c.ackedSeq = max(c.ackedSeq, h.Seq)
		}
		for _, l := range c.links {
			if target := v.chains[l.Chain]; c.ackedSeq > 0 && target != nil {
				target.ackedSeq = max(target.ackedSeq, l.Seq)
			}
		}
		if from := max(c.ackedSeq, c.lastMissing); c.lastSeq > from {
			v.report.Unacknowledged += int(c.lastSeq - from)
		}
	}
}

func (v *verifier) finishReport() {
	v.countUnacknowledged()
	r := &v.report
	r.Chains = len(v.order)
	for _, c := range v.order {
		for _, by := range c.acts.open { // nil where it was joined to another's
			if by.linked || len(by.anchors) == 0 {
				r.Unfinished++
			} else {
				r.Pending++
			}
		}
	}
	r.OK = r.Bad == 0
	if len(r.Problems) > 0 {
		first := r.Problems[0]
		r.First = &first
	}
}
