package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"conclave/subjects"
)

// LogHead commits to every message of the broker's stream of an audit log up to a sequence, in their order; streams of other
// writers are not part of it. Unlike the anchors it can be kept anywhere: a client with an old head can tell whether the
// stream still holds everything that it held then.
type LogHead struct {
	Log  string `json:"log"`  // identifies the log: 16 hex digits of the hash of its first message
	Seq  uint64 `json:"seq"`  // stream sequence of the last message
	Hash string `json:"hash"` // 64 hex digits
}

// String returns the text form, <log>-<sequence>-<hash>.
func (h LogHead) String() string { return fmt.Sprintf("%s-%d-%s", h.Log, h.Seq, h.Hash) }

// ParseLogHead is the inverse of [LogHead.String]. It rejects every other text.
func ParseLogHead(s string) (LogHead, error) {
	parts := strings.Split(s, "-")
	if len(parts) == 3 {
		seq, err := strconv.ParseUint(parts[1], 10, 63)
		h := LogHead{Log: parts[0], Seq: seq, Hash: parts[2]}
		if err == nil && len(h.Log) == logIDSize && hasValidHash(subjects.AuditHead{Seq: seq, Hash: h.Hash}) && h.String() == s {
			return h, nil
		}
	}
	return LogHead{}, errors.New("not a head of an audit log: it has the form <log>-<sequence>-<hash>, as conclave audit verify prints it")
}

const logIDSize = 16

// HeadHasher computes the head of an audit log from its messages. The zero value is the head of no messages.
type HeadHasher struct {
	log string
	seq uint64
	sum [sha256.Size]byte
}

// Add appends a message, which must be the next one of the log.
func (h *HeadHasher) Add(st Stored) {
	d := sha256.New()
	d.Write(h.sum[:])
	var n [12]byte
	binary.BigEndian.PutUint64(n[:], st.Seq)
	binary.BigEndian.PutUint32(n[8:], uint32(len(st.Subject)))
	d.Write(n[:])
	d.Write([]byte(st.Subject))
	d.Write(st.Data)
	d.Sum(h.sum[:0])
	if h.seq = st.Seq; h.log == "" {
		h.log = hex.EncodeToString(h.sum[:])[:logIDSize]
	}
}

// Head returns the head after the messages so far, the zero head when there are none.
func (h *HeadHasher) Head() LogHead {
	if h.log == "" {
		return LogHead{}
	}
	return LogHead{h.log, h.seq, hex.EncodeToString(h.sum[:])}
}

// KeptHead is a head of an audit log that was kept outside the log.
type KeptHead struct {
	LogHead
	Where string // for the user, e.g. "the keyring"
}

// HeadChecker compares kept heads with a log while its messages are read. The zero value compares none.
type HeadChecker struct {
	hasher   HeadHasher
	kept     []KeptHead
	problems []Problem
}

// NewHeadChecker returns a checker for kept heads, of this or of other logs.
func NewHeadChecker(kept []KeptHead) *HeadChecker { return &HeadChecker{kept: kept} }

// Add compares the next message of the log.
func (c *HeadChecker) Add(st Stored) {
	c.hasher.Add(st)
	if len(c.kept) == 0 {
		return
	}
	now := c.hasher.Head()
	for _, k := range c.kept {
		if k.Log == now.Log && k.Seq == now.Seq && k.Hash != now.Hash {
			c.problems = append(c.problems, Problem{Stream: k.Seq, Text: fmt.Sprintf("the head that %s holds does not match: a message up to %d was changed, or the log was replaced", k.Where, k.Seq)})
		}
	}
}

// Finish returns the head of the log, the problems of the kept heads that belong to it, and those of other logs. It must be
// called after the last message.
func (c *HeadChecker) Finish() (head LogHead, problems []Problem, foreign []KeptHead) {
	head = c.hasher.Head()
	for _, k := range c.kept {
		switch {
		case k.Log != head.Log:
			foreign = append(foreign, k)
		case k.Seq > head.Seq:
			c.problems = append(c.problems, Problem{Stream: head.Seq, Text: fmt.Sprintf("the log was rolled back: it ends at message %d, and the head that %s holds is that of message %d", head.Seq, k.Where, k.Seq)})
		}
	}
	return head, c.problems, foreign
}
