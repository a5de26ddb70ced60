package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"conclave/subjects"
)

// LogHead commits to every message of all streams of an audit log up to a sequence in each, in their order. Unlike the
// anchors it can be kept anywhere: a client with an old head can tell whether the log still holds everything that it
// held then.
//
// With messages in the main stream alone, Hash is the hash of that stream; otherwise it is a hash over the streams,
// each with its last sequence and hash. Heads of builds that covered the main stream only are therefore heads of the
// first form.
type LogHead struct {
	// identifies the log: 16 hex digits of the hash of its first message
	Log string `json:"log"`
	Seq uint64 `json:"seq"` // sequence of the last message of the main stream
	// sequence of the last message of each other stream that has any, by its name
	Others map[string]uint64 `json:"others,omitempty"`
	Hash   string            `json:"hash"` // 64 hex digits
}

// String returns the text form, <log>-<sequence>-<hash>. The sequences of other streams follow the first, each as
// +<stream>.<sequence>.
func (h LogHead) String() string {
	seqs := strconv.FormatUint(h.Seq, 10)
	for _, stream := range slices.Sorted(maps.Keys(h.Others)) {
		seqs += "+" + stream + "." + strconv.FormatUint(h.Others[stream], 10)
	}
	return h.Log + "-" + seqs + "-" + h.Hash
}

// Equal reports whether h and o are the same head.
func (h LogHead) Equal(o LogHead) bool { return h.String() == o.String() }

// ParseLogHead is the inverse of [LogHead.String]. It rejects every other text.
func ParseLogHead(s string) (LogHead, error) {
	bad := errors.New("not a head of an audit log: it has the form <log>-<sequences>-<hash>, as conclave audit " +
		"verify prints it")
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return LogHead{}, bad
	}
	seqs := strings.Split(parts[1], "+")
	seq, err := strconv.ParseUint(seqs[0], 10, 63)
	h := LogHead{Log: parts[0], Seq: seq, Hash: parts[2]}
	for _, other := range seqs[1:] {
		stream, digits, _ := strings.Cut(other, ".")
		n, nerr := strconv.ParseUint(digits, 10, 63)
		if nerr != nil || n == 0 || !isToken(stream) || stream == MainStream {
			return LogHead{}, bad
		}
		if h.Others == nil {
			h.Others = map[string]uint64{}
		}
		h.Others[stream] = n
	}
	if err != nil || len(h.Log) != logIDSize || !hasValidHash(subjects.AuditHead{Seq: seq, Hash: h.Hash}) ||
		h.String() != s {
		return LogHead{}, bad
	}
	return h, nil
}

const logIDSize = 16

// streamHash is the running hash of one stream: of all its messages up to seq.
type streamHash struct {
	seq uint64
	sum [sha256.Size]byte
}

// add appends the next message of the stream.
func (h *streamHash) add(st Stored) {
	d := sha256.New()
	d.Write(h.sum[:])
	var n [12]byte
	binary.BigEndian.PutUint64(n[:], st.Seq)
	binary.BigEndian.PutUint32(n[8:], uint32(len(st.Subject)))
	d.Write(n[:])
	d.Write([]byte(st.Subject))
	d.Write(st.Data)
	d.Sum(h.sum[:0])
	h.seq = st.Seq
}

// joinHashes returns the hash over streams in the order of their names; "" is the main stream and must be among them.
func joinHashes(streams map[string]streamHash) string {
	if len(streams) == 1 {
		sum := streams[""].sum
		return hex.EncodeToString(sum[:])
	}
	d := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		h := streams[name]
		fmt.Fprintf(d, "%s\n%d\n%x\n", cmp.Or(name, MainStream), h.seq, h.sum)
	}
	return hex.EncodeToString(d.Sum(nil))
}

// HeadHasher computes the head of an audit log from its messages. The zero value is the head of no messages.
type HeadHasher struct {
	log     string
	streams map[string]streamHash // by [Stored.Stream]
}

// Add appends a message, which must be the next one of its stream. The order of the streams does not matter.
func (h *HeadHasher) Add(st Stored) {
	if h.streams == nil {
		h.streams = map[string]streamHash{}
	}
	s := h.streams[st.Stream]
	s.add(st)
	h.streams[st.Stream] = s
	if h.log == "" && st.Stream == "" {
		h.log = hex.EncodeToString(s.sum[:])[:logIDSize]
	}
}

// Seq returns the sequence of the last message of a stream, 0 for none. "" is the main stream.
func (h *HeadHasher) Seq(stream string) uint64 { return h.streams[stream].seq }

// Head returns the head after the messages so far, the zero head when the main stream has none.
func (h *HeadHasher) Head() LogHead {
	if h.log == "" {
		return LogHead{}
	}
	head := LogHead{Log: h.log, Seq: h.streams[""].seq, Hash: joinHashes(h.streams)}
	for name, s := range h.streams {
		if name == "" {
			continue
		}
		if head.Others == nil {
			head.Others = map[string]uint64{}
		}
		head.Others[name] = s.seq
	}
	return head
}

// KeptHead is a head of an audit log that was kept outside the log.
type KeptHead struct {
	LogHead
	Where string // for the user, e.g. "the keyring"
}

// HeadChecker compares kept heads with a log while its messages are read. The zero value compares none.
type HeadChecker struct {
	hasher HeadHasher
	kept   []KeptHead
	// by stream: sequences of kept heads that the stream has not passed yet, ascending
	open   map[string][]uint64
	passed map[string]map[uint64]streamHash // by stream and sequence of a kept head: the hash of the messages up to it
}

// NewHeadChecker returns a checker for kept heads, of this or of other logs.
func NewHeadChecker(kept []KeptHead) *HeadChecker {
	c := &HeadChecker{kept: kept, open: map[string][]uint64{}, passed: map[string]map[uint64]streamHash{}}
	for _, k := range kept {
		c.open[""] = append(c.open[""], k.Seq)
		for stream, seq := range k.Others {
			c.open[stream] = append(c.open[stream], seq)
		}
	}
	for stream, seqs := range c.open {
		slices.Sort(seqs)
		c.open[stream], c.passed[stream] = slices.Compact(seqs), map[uint64]streamHash{}
	}
	return c
}

// Add compares the next message of its stream.
func (c *HeadChecker) Add(st Stored) {
	c.pass(st.Stream, st.Seq-1)
	c.hasher.Add(st)
	c.pass(st.Stream, st.Seq)
}

// pass notes the present hash of a stream for the sequences of kept heads up to seq. A message at a kept sequence that
// is missing has the hash of the ones before it, which then does not match.
func (c *HeadChecker) pass(stream string, seq uint64) {
	open := c.open[stream]
	for ; len(open) > 0 && open[0] <= seq; open = open[1:] {
		h := c.hasher.streams[stream]
		h.seq = open[0]
		c.passed[stream][open[0]] = h
	}
	if c.open != nil {
		c.open[stream] = open
	}
}

// Hasher returns the hasher of the messages so far.
func (c *HeadChecker) Hasher() HeadHasher { return c.hasher }

// Finish returns the head of the log, the problems of the kept heads that belong to it, and those of other logs. It
// must be called after the last message.
func (c *HeadChecker) Finish() (head LogHead, problems []Problem, foreign []KeptHead) {
	head = c.hasher.Head()
	for _, k := range c.kept {
		if k.Log != head.Log {
			foreign = append(foreign, k)
			continue
		}
		covered, short := map[string]streamHash{}, false
		for _, stream := range append([]string{""}, slices.Sorted(maps.Keys(k.Others))...) {
			want, end := k.Others[stream], c.hasher.Seq(stream)
			if stream == "" {
				want = k.Seq
			}
			covered[stream], short = c.passed[stream][want], short || want > end
			if want > end {
				problems = append(problems, Problem{Kept: k.Where, Message: MessageName(stream, end), Text: fmt.Sprintf(
					"the log was rolled back: it ends at %s, and the head that %s holds is that of %s",
					MessageName(stream, end), k.Where, MessageName(stream, want))})
			}
		}
		if !short && joinHashes(covered) != k.Hash {
			problems = append(problems, Problem{Kept: k.Where, Message: MessageName("", k.Seq), Text: fmt.Sprintf(
				"the head that %s holds does not match: a message up to %s was changed, or the log was replaced",
				k.Where, k.position())})
		}
	}
	return head, problems, foreign
}

// position names the last message of each stream that h covers.
func (h LogHead) position() string {
	names := []string{MessageName("", h.Seq)}
	for _, stream := range slices.Sorted(maps.Keys(h.Others)) {
		names = append(names, MessageName(stream, h.Others[stream]))
	}
	return strings.Join(names, ", ")
}
