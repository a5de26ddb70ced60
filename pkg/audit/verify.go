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

// VerifyOptions configures [Verify].
type VerifyOptions struct {
	Actions     map[string][]string // by account that may write: the actions that it may record
	MaxProblems int                 // problems to describe per account; 0 = 100. All are counted.
	Kept        []KeptHead          // heads that must be in the log; those of other logs are in Report.Foreign
}

// Problem is one defect of an audit log. A field that does not apply is empty.
type Problem struct {
	// name of the message that holds the record, or of the missing message: see [MessageName]
	Message string `json:"message,omitempty"`
	Account string `json:"account,omitempty"`
	Chain   string `json:"chain,omitempty"`
	Record  uint64 `json:"record,omitempty"` // sequence of the record in its chain
	Text    string `json:"text"`             // for the user
	Kept    string `json:"-"`                // where the kept head is that the log does not match
}

// newProblem returns the problem of a record.
func newProblem(message, account, chain string, record uint64, format string, args ...any) Problem {
	return Problem{
		Message: message, Account: account, Chain: chain, Record: record, Text: fmt.Sprintf(format, args...),
	}
}

// String returns the text with its position before it: message, account, chain and record, as far as known.
func (p Problem) String() string {
	s := p.Text
	if p.Chain != "" {
		s = fmt.Sprintf("%s, chain %s, record %d: %s", p.Account, p.Chain, p.Record, s)
	}
	if p.Message != "" {
		s = fmt.Sprintf("message %s: %s", p.Message, s)
	}
	return s
}

// Report is the result of [Verify]. Problems are in stream order; those that only the end of the stream shows, such as
// a lost tail, come last.
type Report struct {
	OK         bool `json:"ok"`
	Messages   int  `json:"messages"`
	Records    int  `json:"records"`
	Chains     int  `json:"chains"`
	Unfinished int  `json:"unfinished"` // acts without an outcome in chains that have ended: a crash, not a problem
	Pending    int  `json:"pending"`    // acts without an outcome in chains that may go on
	// Unacknowledged counts the records after the last anchored or linked one of their chain. A crash leaves such
	// records, and an attacker who can write the store can add them. No act depends on them.
	Unacknowledged int `json:"unacknowledged"`
	Bad            int `json:"bad"` // all problems, described or not
	// Unreadable counts the problems of Bad that are messages which are no records: an actor wrote them. The records
	// around them are complete.
	Unreadable int                    `json:"unreadable,omitempty"`
	Problems   []Problem              `json:"problems,omitempty"`
	First      *Problem               `json:"first,omitempty"`
	Genesis    *subjects.AuditGenesis `json:"genesis,omitempty"` // nil unless its anchor confirms it
	// sealed audit logs, newest first; empty when not checked
	Predecessors []Sealed   `json:"predecessors,omitempty"`
	Head         LogHead    `json:"head"` // of the log as it was read
	Foreign      []KeptHead `json:"-"`    // kept heads of other logs
	// of the files, now or at an earlier start; see [Damage.Tail]
	Damage []Damage `json:"damage,omitempty"`
}

// Sealed is an earlier audit log in its file, as the genesis of its successor names it.
type Sealed struct {
	File     string               `json:"file"` // base name
	SHA256   string               `json:"sha256"`
	By       string               `json:"by"` // file of the successor; "" for the current log
	OldHeads []subjects.AuditHead `json:"-"`
	Problem  string               `json:"problem,omitempty"` // the file is missing or altered
	Note     string               `json:"note,omitempty"`    // why the logs sealed before it are unconfirmed
}

// AddProblem appends a problem that was found outside the stream.
func (r *Report) AddProblem(p Problem) {
	r.OK = false
	r.Bad++
	r.Problems = append(r.Problems, p)
	if r.First == nil {
		r.First = &p
	}
}

// AddDamage adds damage of the stream's files. It is a problem unless a crash explains it, see [Damage].
func (r *Report) AddDamage(damage []Damage) {
	for _, d := range damage {
		r.Damage = append(r.Damage, d)
		if !d.Tail {
			r.AddProblem(Problem{Text: d.String()})
		}
	}
}

// Verify checks the audit log in src against the anchored heads, which must contain the head of its genesis and must
// have been read before src was opened. A record of an account or with an action that opts does not list is a problem.
// Defects of the log are in the report and no error: the error means that the log was not read to its end, and the
// report, never OK, covers the messages before.
//
// Memory: 32 bytes per record of a chain that no later chain has linked yet, 8 per denied act, and little else.
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
		lastSeq:       map[string]uint64{},
	}
	for _, h := range heads {
		v.anchored[h.Chain] = append(v.anchored[h.Chain], h)
	}
	kept := NewHeadChecker(opts.Kept)
	ranges := append([]StreamRange{src.StreamRange}, src.Others...)
	for _, r := range ranges {
		if r.First > 1 {
			v.reportMissing(r.Stream, r.First)
		}
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
			kept.Add(st)
			v.verifyMessage(st)
		}
	}
	v.verifyRanges(ranges)
	v.verifyEnds(heads)
	head, problems, foreign := kept.Finish()
	for _, p := range problems {
		v.addProblem(p)
	}
	v.finishReport()
	v.report.Head, v.report.Foreign = head, foreign
	v.report.AddDamage(src.Damage)
	return v.report, nil
}

type verifier struct {
	opts          VerifyOptions
	report        Report
	described     map[string]int    // problems described, by account
	lastSeq       map[string]uint64 // by stream: the last sequence that was read or reported as missing
	chains        map[string]*chain
	order         []*chain // in stream order of their first records
	anchored      map[string][]subjects.AuditHead
	oldHeads      map[subjects.AuditHead]bool // heads in the sealed predecessor, from the anchored genesis
	endedSubjects map[string]bool             // subjects of oldHeads
	linkedBy      map[string][]*chain         // by chain: the chains that link it
}

// chain is the state of one chain during verification.
type chain struct {
	account, id string
	message     string // name of the message of its last record
	lastSeq     uint64 // of its last record in the chain
	lastHash    [sha256.Size]byte
	lastMissing uint64 // last missing record; 0 = none

	hashBase uint64 // hashes holds those of the records after this one
	hashes   []byte // 32 bytes per record

	anchors  []subjects.AuditHead
	linked   bool                 // a later chain links it
	end      subjects.AuditHead   // the highest linked head
	links    []subjects.AuditHead // heads that it links itself
	ackedSeq uint64               // last record known to be acknowledged

	messages int
	acts     *actSet
	mismatch int // 1 + index of the problem that the last two records do not match; 0 = none
}

// actSet holds the acts without an outcome, and the chain that announced each. Chains that link one another share a
// set, because a writer that changes chains during an act stores the outcome in the next chain. The sets form a
// union-find forest.
type actSet struct {
	parent *actSet // the set that it was merged into
	open   map[string]*chain
	denied map[uint64]bool // denied acts by hash of their id; a collision only changes the text of a problem
}

func newActSet() *actSet { return &actSet{open: map[string]*chain{}, denied: map[uint64]bool{}} }

var actSeed = maphash.MakeSeed()

// root returns the set that a was merged into, or a.
func (a *actSet) root() *actSet {
	for a.parent != nil {
		a = a.parent
	}
	return a
}

// merge unites the sets of a and b, the smaller into the larger; afterwards both have the same root. Uniting a set with
// itself does nothing.
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

// addProblem counts p and describes it unless the account has reached MaxProblems, so that problems of one writer
// cannot hide those of another. Unknown accounts share one limit. It returns 1 + the index of p in the report, 0 when p
// is only counted.
func (v *verifier) addProblem(p Problem) int {
	v.report.Bad++
	who := p.Account
	if who != "" && who != GenesisAccount && !v.isWriter(who) {
		who = "?"
	}
	if v.described[who] == v.opts.MaxProblems {
		return 0
	}
	v.described[who]++
	v.report.Problems = append(v.report.Problems, p)
	return len(v.report.Problems)
}

// isWriter reports whether the account may write.
func (v *verifier) isWriter(account string) bool {
	_, ok := v.opts.Actions[account]
	return ok
}

// reportMissing reports the messages of a stream before seq as missing.
func (v *verifier) reportMissing(stream string, seq uint64) {
	next := v.lastSeq[stream] + 1
	text := fmt.Sprintf("messages %s to %d are missing from the stream", MessageName(stream, next), seq-1)
	if next == seq-1 {
		text = fmt.Sprintf("message %s is missing from the stream", MessageName(stream, next))
	}
	v.addProblem(Problem{Message: MessageName(stream, next), Text: text})
	v.lastSeq[stream] = seq - 1
}

// verifyRanges compares the messages that were read with what the streams report. It must be called after the last
// message.
func (v *verifier) verifyRanges(ranges []StreamRange) {
	last := map[string]uint64{}
	for _, r := range ranges {
		last[r.Stream] = r.Last
		if v.lastSeq[r.Stream] < r.Last {
			v.reportMissing(r.Stream, r.Last+1)
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(v.lastSeq)) {
		if v.lastSeq[stream] > last[stream] {
			v.addProblem(Problem{
				Message: MessageName(stream, v.lastSeq[stream]),
				Text:    fmt.Sprintf("the stream reports %d as its last message and holds more", last[stream]),
			})
		}
	}
}

// verifyMessage checks the stream sequence and the subject of st, then each of its records, and reports problems. The
// records of a message are neither checked nor counted when it is malformed, has an account that no writer has or that
// writes to another stream, continues the chain of another account, or is a genesis after the first message.
func (v *verifier) verifyMessage(st Stored) {
	v.report.Messages++
	v.checkStreamSeq(st)
	genesis := st.Subject == GenesisSubject
	account, id, err := splitSubject(st.Subject)
	if err != nil {
		v.addProblem(Problem{Message: st.Name(), Text: err.Error()})
		return
	}
	first := st.Stream == "" && st.Seq == 1
	bad := func(record uint64, format string, args ...any) {
		v.addProblem(newProblem(st.Name(), account, id, record, format, args...))
	}
	switch {
	case genesis && !first:
		bad(1, "only the first message may be a genesis")
		return
	case first && !genesis:
		bad(1, "the audit log does not begin with a genesis")
	}
	c := v.chains[id]
	switch {
	case !genesis && !v.isWriter(account):
		bad(0, "no writer has the account %s", account)
		return
	case st.Stream != "" && account != st.Stream:
		// the main stream has records of all writers from builds with one stream
		bad(0, "the account %s does not write to this stream", account)
		return
	case c != nil && c.account != account:
		bad(0, "the chain belongs to the account %s", c.account)
		return
	}
	batch, err := DecodeBatch(st.Data)
	switch {
	case err != nil:
		next := uint64(1)
		if c != nil {
			next = c.lastSeq + 1
		}
		v.report.Unreadable++
		bad(next, "the message cannot be read: %v", err)
		return
	case genesis && !isGenesis(batch):
		bad(1, "the genesis is not one record that opens an audit log")
		return
	case genesis:
		v.acceptGenesis(st.Name(), batch[0])
	}
	if c == nil {
		if v.endedSubjects[st.Subject] {
			bad(batch[0].Record.Seq, "chain %s ended in the sealed audit log and is continued here", id)
		}
		c = v.beginChain(account, id)
	}
	c.messages++
	for _, d := range batch {
		v.report.Records++
		v.verifyRecord(c, st.Name(), genesis, d)
	}
}

// checkStreamSeq reports a message that is repeated or out of order, and the messages that are missing before it: a
// stream must have every sequence from 1 on.
func (v *verifier) checkStreamSeq(st Stored) {
	next := v.lastSeq[st.Stream] + 1
	if st.Seq < next {
		v.addProblem(newProblem(st.Name(), "", "", 0, "message %s is repeated or out of order, expected %d", st.Name(),
			next))
		return
	}
	if st.Seq > next {
		v.reportMissing(st.Stream, st.Seq)
	}
	v.lastSeq[st.Stream]++
}

// acceptGenesis uses the old heads of the genesis d only if d is the one anchored genesis: old heads excuse missing
// chains, so a forged genesis could excuse all. It reports a genesis without an anchor; that an anchored one is altered
// is reported by verifyRecord. d must have passed isGenesis.
func (v *verifier) acceptGenesis(message string, d Decoded) {
	match, known := matchGenesis(d, v.anchored[GenesisChain])
	if !known {
		v.addProblem(newProblem(message, GenesisAccount, GenesisChain, d.Record.Seq,
			"unconfirmed genesis: it is not anchored"))
	}
	if !match {
		return
	}
	v.report.Genesis = d.Record.Genesis
	for _, h := range d.Record.Genesis.OldHeads {
		if h.Account == GenesisAccount || h.Seq == 0 { // the anchor of the genesis itself is never excused
			continue
		}
		v.oldHeads[h] = true
		v.endedSubjects["audit."+h.Account+"."+h.Chain] = true
	}
}

// matchGenesis reports whether heads anchor a genesis (known), and whether d is the only one that they anchor (match).
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

// ReadGenesis decodes st, the first message of an audit log. It rejects a message that is no genesis, and one that
// heads do not anchor or that is not the only one they anchor; the error then wraps [ErrGenesisNotAnchored], and the
// genesis is nil.
func ReadGenesis(st Stored, heads []subjects.AuditHead) (*subjects.AuditGenesis, error) {
	batch, err := DecodeBatch(st.Data)
	if err != nil || st.Subject != GenesisSubject || !isGenesis(batch) {
		return nil, fmt.Errorf("%w: the first record is not a genesis", ErrGenesisNotAnchored)
	}
	switch match, known := matchGenesis(batch[0], heads); {
	case !known:
		return nil, fmt.Errorf("%w: no genesis is anchored", ErrGenesisNotAnchored)
	case !match:
		return nil, fmt.Errorf("%w: it is not the one that was anchored", ErrGenesisNotAnchored)
	}
	return batch[0].Record.Genesis, nil
}

// isGenesis reports whether batch is the content of a genesis message: one record with a genesis and without links.
func isGenesis(batch []Decoded) bool {
	return len(batch) == 1 && batch[0].Record.Genesis != nil && len(batch[0].Record.Links) == 0
}

// beginChain registers a chain at its first message, with its anchors except those that the genesis excuses, and
// returns it. The id must be new.
func (v *verifier) beginChain(account, id string) *chain {
	c := &chain{account: account, id: id, acts: newActSet()}
	for _, h := range v.anchored[id] {
		if h.Account == account && !v.oldHeads[h] {
			c.anchors = append(c.anchors, h)
		}
	}
	// A link to a chain without acknowledged records may be stored before the chain itself.
	for _, by := range v.linkedBy[id] {
		if by.account == account {
			c.markEnded(by, subjects.AuditHead{})
		}
	}
	v.chains[id] = c
	v.order = append(v.order, c)
	return c
}

// verifyRecord checks d as the next record of c and reports problems: chain, sequence, hash of the predecessor,
// anchors, phase, id and action. A record of another chain, or one that is repeated, is reported and otherwise ignored.
// message is the name of its message; genesis is set for the genesis message.
func (v *verifier) verifyRecord(c *chain, message string, genesis bool, d Decoded) {
	rec := d.Record
	bad := func(record uint64, format string, args ...any) {
		v.addProblem(newProblem(message, c.account, c.id, record, format, args...))
	}
	if rec.Chain != c.id {
		bad(rec.Seq, "the record belongs to chain %q", rec.Chain)
		return
	}
	switch next := c.lastSeq + 1; {
	case rec.Seq < next:
		bad(rec.Seq, "record %d is repeated or out of order, expected %d", rec.Seq, next)
		return
	case rec.Seq == next:
		v.checkPrev(c, rec)
	default:
		if next == rec.Seq-1 {
			bad(next, "record %d is missing", next)
		} else {
			bad(next, "records %d to %d are missing", next, rec.Seq-1)
		}
		c.mismatch = 0
		c.lastMissing, c.hashBase, c.hashes = rec.Seq-1, rec.Seq-1, nil
	}
	for _, h := range c.anchors {
		if h.Seq == rec.Seq && h.Hash != hexHash(d.Hash) {
			v.reportAltered(c, message, rec.Seq, "record %d is not the one that was anchored: it was altered", rec.Seq)
		}
	}

	c.message, c.lastSeq, c.lastHash = message, rec.Seq, d.Hash
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
		if rec.Action != subjects.ActionOpenChain && !genesis {
			bad(1, "the first record of a chain may not record the action %q", rec.Action)
		}
		for _, l := range rec.Links {
			v.verifyLink(c, message, l)
		}
	case len(rec.Links) > 0:
		bad(rec.Seq, "only the first record of a chain may link others")
	default:
		if text := c.trackAct(rec); text != "" {
			bad(rec.Seq, "%s", text)
		}
		if !slices.Contains(v.opts.Actions[c.account], rec.Action) {
			bad(rec.Seq, "the account %s may not record the action %q", c.account, rec.Action)
		}
	}
}

// trackAct notes the act that rec announces or ends, and returns the text of a problem or "". A denied act needs no
// outcome; an outcome of a denied act, one without an intent and any other phase are problems. Linked chains share
// their acts.
func (c *chain) trackAct(rec subjects.AuditRecord) (problem string) {
	acts := c.acts.root()
	id := maphash.String(actSeed, rec.ID)
	switch {
	case rec.Phase == subjects.AuditBefore && subjects.NothingRan(rec.Status):
		acts.denied[id] = true
	case rec.Phase == subjects.AuditBefore:
		acts.open[rec.ID] = c
	case rec.Phase != subjects.AuditAfter:
		return fmt.Sprintf("phase %q is invalid here", rec.Phase)
	case acts.open[rec.ID] != nil:
		delete(acts.open, rec.ID)
	case acts.denied[id]:
		return fmt.Sprintf("outcome of an act that was denied: %q", rec.ID)
	default:
		return fmt.Sprintf("outcome without an intent: %q", rec.ID)
	}
	return ""
}

// checkPrev checks that rec, the direct successor of c's last record, holds its hash. Of two records that do not match,
// the earlier one is reported, unless the later one matches neither its own successor nor its anchor: then the later
// one is.
func (v *verifier) checkPrev(c *chain, rec subjects.AuditRecord) {
	if rec.Seq == 1 || rec.Prev == hexHash(c.lastHash) {
		c.mismatch = 0
		return
	}
	if c.mismatch > 0 {
		v.reportAltered(c, c.message, c.lastSeq, "record %d was altered: it matches neither its predecessor nor its "+
			"successor", c.lastSeq)
		return
	}
	c.mismatch = v.addProblem(newProblem(c.message, c.account, c.id, c.lastSeq,
		"record %d was altered: it is not the predecessor that record %d names", c.lastSeq, rec.Seq))
}

// reportAltered reports an altered record of c. It replaces the pending mismatch problem about its predecessor, if any,
// so that one alteration is one problem.
func (v *verifier) reportAltered(c *chain, message string, record uint64, format string, args ...any) {
	p := newProblem(message, c.account, c.id, record, format, args...)
	if c.mismatch > 0 {
		v.report.Problems[c.mismatch-1] = p
		c.mismatch = 0
		return
	}
	v.addProblem(p)
}

// verifyLink checks the link l in the open record of c and marks the linked chain as ended. It reports a link to
// another account or to c itself, to a record that the stream does not have or that has another hash, and to an earlier
// end than one already linked. A link at sequence 0, to a chain without acknowledged records, and one that the genesis
// excuses need no record.
func (v *verifier) verifyLink(c *chain, message string, l subjects.AuditHead) {
	bad := func(format string, args ...any) {
		v.addProblem(newProblem(message, c.account, c.id, 1, format, args...))
	}
	if l.Account != c.account || l.Chain == c.id || !hasValidHash(l) {
		bad("invalid link to record %d of %s, chain %s", l.Seq, l.Account, l.Chain)
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

// hashAt returns the hash of a record after hashBase.
func (c *chain) hashAt(seq uint64) []byte {
	i := (seq - c.hashBase - 1) * sha256.Size
	return c.hashes[i : i+sha256.Size]
}

// markEnded notes that the chain by links c at end; sequence 0 means without an acknowledged record. Hashes up to end
// are dropped, and the two chains share their acts.
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

// isEndConfirmed reports whether an anchor or a later chain confirms where c ended, or c is the genesis or a chain
// whose only message was never acknowledged. False means that c may be truncated or forged.
func (v *verifier) isEndConfirmed(c *chain) bool {
	if c.linked || len(c.anchors) > 0 || c.account == GenesisAccount && c.id == GenesisChain {
		return true
	}
	// A writer removes the old heads once its open record is acknowledged. If a head that this chain links is still
	// anchored, or is linked again by a confirmed chain, then the first message of this one was never acknowledged.
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

// verifyEnds reports an empty log, every anchored record that the log does not hold, and every chain whose end is not
// confirmed. It must be called after the last message. Heads at sequence 0 and those that the genesis excuses need no
// record.
func (v *verifier) verifyEnds(heads []subjects.AuditHead) {
	if v.report.Genesis == nil && v.report.Messages == 0 {
		v.addProblem(Problem{Message: MessageName("", 1), Text: "the audit log is empty: its genesis is missing"})
	}
	for _, h := range heads {
		c := v.chains[h.Chain]
		bad := func(message string, record uint64, format string, args ...any) {
			v.addProblem(newProblem(message, h.Account, h.Chain, record, format, args...))
		}
		switch {
		case !hasValidHash(h):
			bad("", h.Seq, "the anchored head is malformed")
		case h.Seq == 0 || v.oldHeads[h]:
		case c == nil:
			bad("", 1, "lost chain: chain %s is anchored at record %d, the stream holds none of it", h.Chain, h.Seq)
		case c.account != h.Account:
			bad(c.message, h.Seq, "the chain is anchored for %s, the stream has it from %s", h.Account, c.account)
		case c.lastSeq < h.Seq:
			bad(c.message, c.lastSeq+1, "lost tail: chain %s is anchored at record %d, the stream ends at %d", h.Chain,
				h.Seq, c.lastSeq)
		}
	}
	for _, c := range v.order {
		if !v.isEndConfirmed(c) {
			v.addProblem(newProblem(c.message, c.account, c.id, c.lastSeq,
				"unconfirmed end of chain %s: it is neither anchored nor linked by a later chain", c.id))
		}
	}
}

// countUnacknowledged finds the last acknowledged record of each chain, the anchored or linked one, and counts the
// records after it. A link counts only if it was acknowledged itself, so the loop goes from the last chain to the
// first.
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

// finishReport fills the totals, OK and First of the report. It must be called once, after the last problem.
func (v *verifier) finishReport() {
	v.countUnacknowledged()
	r := &v.report
	r.Chains = len(v.order)
	for _, c := range v.order {
		for _, by := range c.acts.open { // nil in a set that was merged into another
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
