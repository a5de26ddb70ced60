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

// Add puts a problem that was found outside the stream behind the others.
func (r *Report) Add(p Problem) {
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
		opts:      opts,
		described: map[string]int{},
		chains:    map[string]*chain{},
		anchored:  map[string][]subjects.AuditHead{},
		oldHeads:  map[subjects.AuditHead]bool{},
		ended:     map[string]bool{},
		linkers:   map[string][]*chain{},
		next:      1,
	}
	for _, h := range heads {
		v.anchored[h.Chain] = append(v.anchored[h.Chain], h)
	}
	if src.First > 1 {
		v.skipTo(src.First)
	}
	if src.Messages != nil {
		for st, err := range src.Messages {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				v.finish()
				v.report.OK = false
				return v.report, fmt.Errorf("verify audit: %w", err)
			}
			v.message(st)
		}
	}
	if v.next <= src.Last {
		v.skipTo(src.Last + 1)
	}
	if v.next > src.Last+1 {
		v.add(Problem{Stream: v.next - 1, Text: fmt.Sprintf("the stream says that it ends at %d, yet there is more", src.Last)})
	}
	v.end(heads)
	v.finish()
	return v.report, nil
}

type verifier struct {
	opts      VerifyOptions
	report    Report
	described map[string]int // problems by account
	next      uint64         // the stream's next sequence
	chains    map[string]*chain
	order     []*chain // as they began
	anchored  map[string][]subjects.AuditHead
	oldHeads  map[subjects.AuditHead]bool // from the anchored genesis: ends in the sealed predecessor
	ended     map[string]bool             // the subjects of those
	linkers   map[string][]*chain         // the chains that link this one
}

// chain is what is remembered of one chain.
type chain struct {
	account, id string
	stream      uint64 // where its last record stands
	seq         uint64 // its last record
	hash        [sha256.Size]byte
	gap         uint64 // the last record that is missing

	forgot uint64 // hashes of the records up to here are gone
	hashes []byte // of the records after that

	anchors []subjects.AuditHead
	linked  bool                 // a later chain says that it ended
	end     subjects.AuditHead   // and where
	links   []subjects.AuditHead // the ends it links itself
	acked   uint64               // the last record that somebody is known to have acted on

	messages int
	acts     *acts
	suspect  int // the problem about the last two records not fitting together, counted from 1
}

// acts holds the acts without an outcome yet, and the chain that announced each. Chains that link one another share
// it: when a writer has to change chains in the middle of an act, the outcome stands in the next chain.
type acts struct {
	joined *acts // what it became part of
	open   map[string]*chain
	barred map[uint64]bool // acts that were not allowed, by the hash of their id: it only chooses the words of a problem
}

func newActs() *acts { return &acts{open: map[string]*chain{}, barred: map[uint64]bool{}} }

var actSeed = maphash.MakeSeed()

func (a *acts) find() *acts {
	for a.joined != nil {
		a = a.joined
	}
	return a
}

func (a *acts) join(b *acts) {
	a, b = a.find(), b.find()
	if a == b {
		return
	}
	if len(a.open)+len(a.barred) > len(b.open)+len(b.barred) {
		a, b = b, a
	}
	maps.Copy(b.open, a.open)
	maps.Copy(b.barred, a.barred)
	a.joined, a.open, a.barred = b, nil, nil
}

// add counts a problem and describes it, unless its account has filled its share: what one writer spoils must not hide
// what happened to another. Accounts that no writer has share one share.
func (v *verifier) add(p Problem) int {
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

// skipTo reports the messages before seq as missing.
func (v *verifier) skipTo(seq uint64) {
	text := fmt.Sprintf("messages %d to %d are missing from the stream", v.next, seq-1)
	if v.next == seq-1 {
		text = fmt.Sprintf("message %d is missing from the stream", v.next)
	}
	v.add(Problem{Stream: v.next, Text: text})
	v.next = seq
}

func (v *verifier) message(st Stored) {
	v.report.Messages++
	switch {
	case st.Seq > v.next:
		v.skipTo(st.Seq)
		v.next++
	case st.Seq < v.next:
		v.add(Problem{Stream: st.Seq, Text: fmt.Sprintf("message %d comes again or too late, %d was next", st.Seq, v.next)})
	default:
		v.next++
	}

	genesis := st.Subject == GenesisSubject
	account, id, err := splitSubject(st.Subject)
	bad := func(record uint64, format string, args ...any) {
		v.add(Problem{Stream: st.Seq, Account: account, Chain: id, Record: record, Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case err != nil:
		v.add(Problem{Stream: st.Seq, Text: err.Error()})
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
			next = c.seq + 1
		}
		bad(next, "the message cannot be read: %v", err)
		return
	}
	if genesis {
		if !isGenesis(batch) {
			bad(1, "the genesis is not one record that opens an audit log")
			return
		}
		v.genesis(st.Seq, batch[0])
	}
	if c == nil {
		if v.ended[st.Subject] {
			bad(batch[0].Record.Seq, "chain %s ended in the sealed audit log, yet it is here", id)
		}
		c = v.begin(account, id)
	}
	c.messages++
	for _, d := range batch {
		v.report.Records++
		v.record(c, st.Seq, genesis, d)
	}
}

// genesis believes the first record only if it is the one that was anchored. Its old heads excuse anchors, so a forged
// one could excuse them all; that it was altered is told where every record is held against its anchor.
func (v *verifier) genesis(stream uint64, d Decoded) {
	match, known := anchored(d, v.anchored[GenesisChain])
	if !known {
		v.add(Problem{
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
		v.ended["audit."+h.Account+"."+h.Chain] = true
	}
}

// anchored reports whether the heads know a genesis, and whether d is the one and only that they know.
func anchored(d Decoded, heads []subjects.AuditHead) (match, known bool) {
	match = true
	for _, h := range heads {
		if h.Account == GenesisAccount && h.Chain == GenesisChain && h.Seq > 0 {
			known = true
			match = match && h.Seq == d.Record.Seq && h.Hash == hexHash(d.Hash)
		}
	}
	return match && known, known
}

// Beginning returns what the first message of an audit log says, but only if it is the one that heads anchor. Otherwise the
// error wraps [ErrBeginning]: nobody vouches for what it says.
func Beginning(st Stored, heads []subjects.AuditHead) (*subjects.AuditGenesis, error) {
	batch, err := DecodeBatch(st.Data)
	if err != nil || st.Subject != GenesisSubject || !isGenesis(batch) {
		return nil, fmt.Errorf("%w: it is not a genesis", ErrBeginning)
	}
	switch match, known := anchored(batch[0], heads); {
	case !known:
		return nil, fmt.Errorf("%w: no genesis is anchored", ErrBeginning)
	case !match:
		return nil, fmt.Errorf("%w: it is not the one that was anchored", ErrBeginning)
	}
	return batch[0].Record.Genesis, nil
}

func isGenesis(batch []Decoded) bool {
	return len(batch) == 1 && batch[0].Record.Genesis != nil && len(batch[0].Record.Links) == 0
}

// begin remembers a chain that was not seen before.
func (v *verifier) begin(account, id string) *chain {
	c := &chain{account: account, id: id, acts: newActs()}
	for _, h := range v.anchored[id] {
		if h.Account == account && !v.oldHeads[h] {
			c.anchors = append(c.anchors, h)
		}
	}
	// A link to a chain of which nothing was acknowledged may overtake the chain itself.
	for _, by := range v.linkers[id] {
		if by.account == account {
			c.close(by, subjects.AuditHead{})
		}
	}
	v.chains[id] = c
	v.order = append(v.order, c)
	return c
}

func (v *verifier) record(c *chain, stream uint64, genesis bool, d Decoded) {
	rec := d.Record
	bad := func(record uint64, format string, args ...any) {
		v.add(Problem{Stream: stream, Account: c.account, Chain: c.id, Record: record, Text: fmt.Sprintf(format, args...)})
	}
	if rec.Chain != c.id {
		bad(rec.Seq, "the record says that it belongs to chain %q", rec.Chain)
		return
	}
	if rec.Seq <= c.seq {
		bad(rec.Seq, "record %d comes again or too late, %d was next", rec.Seq, c.seq+1)
		return
	}
	if next := c.seq + 1; rec.Seq > next {
		if next == rec.Seq-1 {
			bad(next, "record %d is missing", next)
		} else {
			bad(next, "records %d to %d are missing", next, rec.Seq-1)
		}
		c.suspect = 0
		c.gap, c.forgot, c.hashes = rec.Seq-1, rec.Seq-1, nil
	} else {
		v.follow(c, rec)
	}
	for _, h := range c.anchors {
		if h.Seq == rec.Seq && h.Hash != hexHash(d.Hash) {
			v.altered(c, stream, rec.Seq, "record %d is not the one that was anchored: it was altered", rec.Seq)
		}
	}

	c.stream, c.seq, c.hash = stream, rec.Seq, d.Hash
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
			v.link(c, stream, l)
		}
	case len(rec.Links) > 0:
		bad(rec.Seq, "only the first record of a chain may link others")
	case rec.Phase == subjects.AuditBefore && subjects.NothingRan(rec.Status):
		// Nothing ran, so no outcome will come: the record says all there is to say.
		c.acts.find().barred[maphash.String(actSeed, rec.ID)] = true
	case rec.Phase == subjects.AuditBefore:
		c.acts.find().open[rec.ID] = c
	case rec.Phase == subjects.AuditAfter:
		acts := c.acts.find()
		switch {
		case acts.open[rec.ID] != nil:
			delete(acts.open, rec.ID)
		case acts.barred[maphash.String(actSeed, rec.ID)]:
			bad(rec.Seq, "the outcome of something that was not allowed: %q", rec.ID)
		default:
			bad(rec.Seq, "the outcome of %q has no record before it", rec.ID)
		}
	default:
		bad(rec.Seq, "phase %q is unknown here", rec.Phase)
	}
}

// follow checks that rec holds the hash of the record before it. When two records do not fit, the earlier one is
// named, unless the later one fits its own follower or anchor neither: then it is the odd one out.
func (v *verifier) follow(c *chain, rec subjects.AuditRecord) {
	if rec.Seq == 1 || rec.Prev == hexHash(c.hash) {
		c.suspect = 0
		return
	}
	if c.suspect > 0 {
		v.altered(c, c.stream, c.seq, "record %d was altered: it fits neither the record before nor the one after it", c.seq)
		return
	}
	c.suspect = v.add(Problem{
		Stream: c.stream, Account: c.account, Chain: c.id, Record: c.seq,
		Text: fmt.Sprintf("record %d was altered: it is not the one that record %d was written after", c.seq, rec.Seq),
	})
}

// altered reports a changed record, in place of the problem with the record before it if there is one.
func (v *verifier) altered(c *chain, stream, record uint64, format string, args ...any) {
	p := Problem{Stream: stream, Account: c.account, Chain: c.id, Record: record, Text: fmt.Sprintf(format, args...)}
	if c.suspect > 0 {
		v.report.Problems[c.suspect-1] = p
		c.suspect = 0
		return
	}
	v.add(p)
}

// link checks one link of the open record of c and closes the chain it names.
func (v *verifier) link(c *chain, stream uint64, l subjects.AuditHead) {
	bad := func(format string, args ...any) {
		v.add(Problem{Stream: stream, Account: c.account, Chain: c.id, Record: 1, Text: fmt.Sprintf(format, args...)})
	}
	if l.Account != c.account || l.Chain == c.id || !validHash(l) {
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
	case l.Seq > target.seq:
		bad("links to record %d of chain %s, which ends at %d here", l.Seq, l.Chain, target.seq)
	case l.Seq <= target.forgot || l.Hash != hex.EncodeToString(target.at(l.Seq)):
		bad("links to record %d of chain %s with a hash that the record does not have", l.Seq, l.Chain)
	}
	if before := v.linkers[l.Chain]; len(before) > 0 {
		before[len(before)-1].acts.join(c.acts)
	}
	v.linkers[l.Chain] = append(v.linkers[l.Chain], c)
	c.links = append(c.links, l)
	if target != nil {
		target.close(c, l)
	}
}

// at returns the hash of a record that is not forgotten.
func (c *chain) at(seq uint64) []byte {
	i := (seq - c.forgot - 1) * sha256.Size
	return c.hashes[i : i+sha256.Size]
}

// close notes that c ended at end, as the chain by says.
func (c *chain) close(by *chain, end subjects.AuditHead) {
	c.linked = true
	if end.Seq >= c.end.Seq {
		c.end = end
	}
	if end.Seq > c.forgot && end.Seq <= c.seq {
		c.hashes = slices.Clone(c.hashes[(end.Seq-c.forgot)*sha256.Size:])
		c.forgot = end.Seq
	}
	c.acts.join(by.acts)
}

// vouched reports whether somebody knows where c ended.
func (v *verifier) vouched(c *chain) bool {
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
		for _, other := range v.linkers[l.Chain] {
			if other.linked || len(other.anchors) > 0 {
				return true
			}
		}
	}
	return false
}

// end checks what only the whole trail can tell: that every anchored record is there, and that somebody vouches for
// the end of every chain.
func (v *verifier) end(heads []subjects.AuditHead) {
	if v.report.Genesis == nil && v.report.Messages == 0 {
		v.add(Problem{Stream: 1, Text: "the audit log is empty: not even its genesis is there"})
	}
	for _, h := range heads {
		c := v.chains[h.Chain]
		bad := func(stream, record uint64, format string, args ...any) {
			v.add(Problem{Stream: stream, Account: h.Account, Chain: h.Chain, Record: record, Text: fmt.Sprintf(format, args...)})
		}
		switch {
		case !validHash(h):
			bad(0, h.Seq, "the anchored head is malformed")
		case h.Seq == 0 || v.oldHeads[h]:
		case c == nil:
			bad(0, 1, "lost chain: chain %s is anchored at record %d, the stream holds none of it", h.Chain, h.Seq)
		case c.account != h.Account:
			bad(c.stream, h.Seq, "the chain is anchored for %s, the stream has it from %s", h.Account, c.account)
		case c.seq < h.Seq:
			bad(c.stream, c.seq+1, "lost tail: chain %s is anchored at record %d, the stream ends at %d", h.Chain, h.Seq, c.seq)
		}
	}
	for _, c := range v.order {
		if !v.vouched(c) {
			v.add(Problem{
				Stream: c.stream, Account: c.account, Chain: c.id, Record: c.seq,
				Text: fmt.Sprintf("nobody vouches for the end of chain %s: it is neither anchored nor linked by a later chain", c.id),
			})
		}
	}
}

// acknowledge finds how far each chain is known to have been acknowledged: to its anchor, or to where a later chain
// links it. A link counts only if it was acknowledged itself, so the walk goes from the last chain to the first.
func (v *verifier) acknowledge() {
	for _, c := range slices.Backward(v.order) {
		for _, h := range c.anchors {
			c.acked = max(c.acked, h.Seq)
		}
		for _, l := range c.links {
			if target := v.chains[l.Chain]; c.acked > 0 && target != nil {
				target.acked = max(target.acked, l.Seq)
			}
		}
		if from := max(c.acked, c.gap); c.seq > from {
			v.report.Unacknowledged += int(c.seq - from)
		}
	}
}

func (v *verifier) finish() {
	v.acknowledge()
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
