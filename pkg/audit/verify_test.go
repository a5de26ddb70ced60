package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// fixture is a small intact audit log:
//
//	1  AUDIT    genesis
//	2  GATEWAY  g1: 1 open, 2 before a
//	3  BROKER   b1: 1 open, 2 before x
//	4  GATEWAY  g1: 3 after a
//	5  BROKER   b1: 3 after x
//	6  GATEWAY  g1: 4 before b
//	7  GATEWAY  g1: 5 after b
//	8  GATEWAY  g2: 1 open, links g1 at 5, 2 before c
//	9  GATEWAY  g2: 3 after c
//	10 BROKER   b1: 4 before y
type fixture struct {
	msgs  []Stored
	heads []subjects.AuditHead // of the genesis, b1 at 4, g2 at 3
}

func newFixture(t *testing.T) *fixture {
	dir := headsDir(t)
	s := newStream(t, dir)
	ctx := t.Context()
	g := openWriter(t, s, dir, "GATEWAY", "g1")
	b := openWriter(t, s, dir, "BROKER", "b1")
	must(t, g.Append(ctx, beforeRecord("a")))
	must(t, b.Append(ctx, beforeRecord("x")))
	must(t, g.Append(ctx, afterRecord("a")))
	must(t, b.Append(ctx, afterRecord("x")))
	must(t, g.Append(ctx, beforeRecord("b")))
	must(t, g.Append(ctx, afterRecord("b")))
	must(t, g.Close(ctx))
	g = openWriter(t, s, dir, "GATEWAY", "g2")
	must(t, g.Append(ctx, beforeRecord("c")))
	must(t, g.Append(ctx, afterRecord("c")))
	must(t, b.Append(ctx, beforeRecord("y")))
	must(t, g.Close(ctx))
	must(t, b.Close(ctx))
	return &fixture{msgs: s.msgs, heads: readHeads(t, dir)}
}

// drop removes the message; the others keep their sequences.
func (s *fixture) drop(seq uint64) {
	s.msgs = slices.DeleteFunc(s.msgs, func(st Stored) bool { return st.Seq == seq })
}

// renumber hides what was done to the stream's own sequences.
func (s *fixture) renumber() {
	for i := range s.msgs {
		s.msgs[i].Seq = uint64(i + 1)
	}
}

func (s *fixture) swap(a, b uint64) { s.msgs[a-1], s.msgs[b-1] = s.msgs[b-1], s.msgs[a-1] }

// edit changes the records of a message and encodes it properly again.
func (s *fixture) edit(t *testing.T, seq uint64, f func(recs []subjects.AuditRecord) []subjects.AuditRecord) {
	t.Helper()
	st := &s.msgs[seq-1]
	batch, err := DecodeBatch(st.Data)
	must(t, err)
	var recs []subjects.AuditRecord
	for _, d := range batch {
		recs = append(recs, d.Record)
	}
	st.Data, err = EncodeBatch(f(recs)...)
	must(t, err)
}

// forge appends a message with records of its own to the end.
func (s *fixture) forge(t *testing.T, subject string, recs ...subjects.AuditRecord) {
	t.Helper()
	for i := range recs {
		complete(&recs[i])
	}
	data, err := EncodeBatch(recs...)
	must(t, err)
	s.msgs = append(s.msgs, Stored{Seq: uint64(len(s.msgs) + 1), Subject: subject, Data: data})
}

// complete sets a time, and an action that the accounts of the tests may record unless the test chose one.
func complete(rec *subjects.AuditRecord) {
	rec.Time = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case rec.Action != "":
	case rec.Phase == subjects.AuditOpen:
		rec.Action = subjects.ActionOpenChain
	default:
		rec.Action = subjects.ActionToolCall
	}
}

// chainRecords numbers and chains records after a head.
func chainRecords(prev string, seq uint64, recs ...subjects.AuditRecord) []subjects.AuditRecord {
	b := newBatchEncoder()
	for i := range recs {
		recs[i].Seq, recs[i].Prev = seq+uint64(i), prev
		complete(&recs[i])
		prev, _ = b.addRecord(&recs[i])
	}
	return recs
}

func (s *fixture) hash(t *testing.T, seq uint64, i int) string {
	t.Helper()
	batch, err := DecodeBatch(s.msgs[seq-1].Data)
	must(t, err)
	return hexHash(batch[i].Hash)
}

func (s *fixture) dropHead(chain string) {
	s.heads = slices.DeleteFunc(s.heads, func(h subjects.AuditHead) bool { return h.Chain == chain })
}

func (s *fixture) head(chain string) *subjects.AuditHead {
	i := slices.IndexFunc(s.heads, func(h subjects.AuditHead) bool { return h.Chain == chain })
	return &s.heads[i]
}

func TestVerify(t *testing.T) {
	type recs = []subjects.AuditRecord
	at := func(stream uint64, account, chain string, record uint64) Problem {
		message := ""
		if stream > 0 {
			message = MessageName("", stream)
		}
		return Problem{Message: message, Account: account, Chain: chain, Record: record}
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, s *fixture)
		want Problem // without Text
		text string
	}{
		{name: "intact", do: func(*testing.T, *fixture) {}},

		// a record
		{
			"flipped bit in a record", func(_ *testing.T, s *fixture) {
				d := s.msgs[3].Data
				i := strings.Index(string(d), subjects.StatusOK)
				d[i] ^= 1
			}, at(4, "GATEWAY", "g1", 3), "record 3 was altered",
		},
		{
			"flipped bit that breaks the encoding", func(_ *testing.T, s *fixture) { s.msgs[3].Data[0] ^= 0x40 },
			at(4, "GATEWAY", "g1", 3), "cannot be read",
		},
		{
			"status changed", func(t *testing.T, s *fixture) {
				s.edit(t, 4, func(r recs) recs { r[0].Status = subjects.StatusDenied; return r })
			}, at(4, "GATEWAY", "g1", 3), "record 3 was altered",
		},
		{
			"prev changed: the record itself is named, not the one before", func(t *testing.T, s *fixture) {
				s.edit(t, 6, func(r recs) recs { r[0].Prev = Hash(nil); return r })
			}, at(6, "GATEWAY", "g1", 4), "matches neither",
		},
		{
			"prev of the anchored record changed", func(t *testing.T, s *fixture) {
				s.edit(t, 9, func(r recs) recs { r[0].Prev = Hash(nil); return r })
			}, at(9, "GATEWAY", "g2", 3), "not the one that was anchored",
		},
		{
			"last record changed", func(t *testing.T, s *fixture) {
				s.edit(t, 10, func(r recs) recs { r[0].Tool = "run_shell"; return r })
			}, at(10, "BROKER", "b1", 4), "not the one that was anchored",
		},
		{
			"last record of a linked chain changed", func(t *testing.T, s *fixture) {
				s.edit(t, 7, func(r recs) recs { r[0].Tool = "run_shell"; return r })
			}, at(8, "GATEWAY", "g2", 1), "links to record 5 of chain g1 with a hash that the record does not have",
		},
		{
			"removed record", func(t *testing.T, s *fixture) {
				s.edit(t, 2, func(r recs) recs { return r[:1] })
			}, at(4, "GATEWAY", "g1", 2), "record 2 is missing",
		},
		{
			"removed record, the next renumbered", func(t *testing.T, s *fixture) {
				s.drop(6)
				s.renumber()
				s.edit(t, 6, func(r recs) recs { r[0].Seq = 4; return r })
			}, at(4, "GATEWAY", "g1", 3), "not the predecessor that record 4 names",
		},
		{
			"reordered records", func(t *testing.T, s *fixture) {
				s.edit(t, 2, func(r recs) recs { return recs{r[1], r[0]} })
			}, at(2, "GATEWAY", "g1", 1), "record 1 is missing",
		},
		{
			"repeated record", func(t *testing.T, s *fixture) {
				s.edit(t, 4, func(r recs) recs { return recs{r[0], r[0]} })
			}, at(4, "GATEWAY", "g1", 3), "is repeated",
		},
		{
			"no open record", func(t *testing.T, s *fixture) {
				s.edit(t, 3, func(r recs) recs { r[0].Phase = subjects.AuditBefore; return r })
			}, at(3, "BROKER", "b1", 1), "does not open the chain",
		},
		{
			"second open record", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", subjects.AuditRecord{
					Chain: "b1", Seq: 5, Prev: s.hash(t, 10, 0),
					Phase: subjects.AuditOpen, ID: "o",
				})
			}, at(11, "BROKER", "b1", 5), "is invalid here",
		},
		{
			"foreign chain", func(t *testing.T, s *fixture) {
				s.edit(t, 5, func(r recs) recs { r[0].Chain = "g1"; return r })
			}, at(5, "BROKER", "b1", 3), `belongs to chain "g1"`,
		},
		{
			"after without before", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", subjects.AuditRecord{
					Chain: "b1", Seq: 5, Prev: s.hash(t, 10, 0),
					Phase: subjects.AuditAfter, ID: "z",
				})
			}, at(11, "BROKER", "b1", 5), `outcome without an intent: "z"`,
		},
		{
			"after whose before is in another account's chain", func(t *testing.T, s *fixture) {
				h := s.head("g2")
				s.forge(t, "audit.GATEWAY.g2", subjects.AuditRecord{
					Chain: "g2", Seq: 4, Prev: h.Hash,
					Phase: subjects.AuditAfter, ID: "y",
				})
			}, at(11, "GATEWAY", "g2", 4), `outcome without an intent: "y"`,
		},
		{
			"an action of another account", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "d", Action: "secret.get",
						Status: subjects.StatusDenied,
					})...)
			}, at(11, "BROKER", "b1", 5), `may not record the action "secret.get"`,
		},
		{
			"trick: an action in the record that opens a chain", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen, ID: "b2", Action: subjects.ActionToolCall,
					Links: []subjects.AuditHead{*s.head("b1")},
				})
			}, at(11, "BROKER", "b2", 1), `first record of a chain may not record the action "tool.call"`,
		},
		{
			"denied and refused acts need no outcome", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "d",
						Status: subjects.StatusDenied,
					},
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "r",
						Status: subjects.StatusRefused,
					})...)
			}, Problem{}, "",
		},
		{
			"trick: outcome of a denied act", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "d",
						Status: subjects.StatusDenied,
					},
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditAfter, ID: "d",
						Status: subjects.StatusOK,
					})...)
			}, at(11, "BROKER", "b1", 6), `outcome of an act that was denied: "d"`,
		},
		{
			"trick: outcome of a refused act", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "r",
						Status: subjects.StatusRefused,
					},
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditAfter, ID: "r",
						Status: subjects.StatusOK,
					})...)
			}, at(11, "BROKER", "b1", 6), `outcome of an act that was denied: "r"`,
		},
		{
			"trick: outcome of a denied act in the next chain", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "d",
						Status: subjects.StatusDenied,
					})...)
				s.forge(t, "audit.BROKER.b2", chainRecords("", 1,
					subjects.AuditRecord{
						Chain: "b2", Phase: subjects.AuditOpen, ID: "b2",
						Links: []subjects.AuditHead{{Account: "BROKER", Chain: "b1", Seq: 5, Hash: s.hash(t, 11, 0)}},
					},
					subjects.AuditRecord{
						Chain: "b2", Phase: subjects.AuditAfter, ID: "d",
						Status: subjects.StatusOK,
					})...)
			}, at(12, "BROKER", "b2", 2), "outcome of an act that was denied",
		},
		{
			"trick: a denial under the id of an act that runs does not hide its outcome",
			func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5,
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditBefore, ID: "y",
						Status: subjects.StatusDenied,
					},
					subjects.AuditRecord{
						Chain: "b1", Phase: subjects.AuditAfter, ID: "y",
						Status: subjects.StatusOK,
					})...)
			},
			Problem{},
			"",
		},

		// a message
		{"removed message", func(_ *testing.T, s *fixture) {
			s.drop(5)
		}, at(5, "", "", 0), "message broker/5 is missing"},
		{"removed messages", func(_ *testing.T, s *fixture) {
			s.drop(5)
			s.drop(6)
		}, at(5, "", "", 0), "messages broker/5 to 6 are missing"},
		{
			"removed message, the stream renumbered", func(_ *testing.T, s *fixture) { s.drop(4); s.renumber() },
			at(5, "GATEWAY", "g1", 3), "record 3 is missing",
		},
		{"reordered messages", func(_ *testing.T, s *fixture) {
			s.swap(4, 6)
		}, at(4, "", "", 0), "messages broker/4 to 5 are missing"},
		{
			"reordered messages, the stream renumbered", func(_ *testing.T, s *fixture) { s.swap(4, 6); s.renumber() },
			at(4, "GATEWAY", "g1", 3), "record 3 is missing",
		},
		{
			"repeated message", func(_ *testing.T, s *fixture) { s.msgs = slices.Insert(s.msgs, 5, s.msgs[4]) },
			at(5, "", "", 0), "message broker/5 is repeated",
		},
		{"forged subject account", func(_ *testing.T, s *fixture) {
			s.msgs[4].Subject = "audit.GATEWAY.b1"
		}, at(5, "GATEWAY", "b1", 0), "belongs to the account BROKER"},
		{"unknown account", func(_ *testing.T, s *fixture) {
			s.msgs[4].Subject = "audit.MALLORY.b1"
		}, at(5, "MALLORY", "b1", 0), "no writer has the account MALLORY"},
		{"subject with a token too many", func(_ *testing.T, s *fixture) {
			s.msgs[4].Subject = "audit.BROKER.b1.x"
		}, at(5, "", "", 0), "is not audit.<account>.<chain>"},
		{"subject outside audit", func(_ *testing.T, s *fixture) {
			s.msgs[4].Subject = "tool.BROKER.b1"
		}, at(5, "", "", 0), "is not audit.<account>.<chain>"},
		{"subject with a wild token", func(_ *testing.T, s *fixture) {
			s.msgs[4].Subject = "audit.BROKER.*"
		}, at(5, "", "", 0), "is not audit.<account>.<chain>"},
		{"trailing byte", func(_ *testing.T, s *fixture) {
			s.msgs[4].Data = append(s.msgs[4].Data, 0)
		}, at(5, "BROKER", "b1", 3), "cannot be read"},

		// the ends
		{
			"lost tail", func(_ *testing.T, s *fixture) { s.drop(10) },
			at(5, "BROKER", "b1", 4), "lost tail: chain b1 is anchored at record 4, the stream ends at 3",
		},
		{
			"lost tail that the stream admits", func(_ *testing.T, s *fixture) { s.drop(9); s.drop(10) },
			at(5, "BROKER", "b1", 4), "lost tail",
		},
		{
			"lost tail of a linked chain", func(_ *testing.T, s *fixture) { s.drop(7); s.renumber() },
			at(7, "GATEWAY", "g2", 1), "links to record 5 of chain g1, which ends at 4 here",
		},
		{
			"lost whole chain", func(_ *testing.T, s *fixture) {
				s.drop(8)
				s.drop(9)
				s.renumber()
			}, at(0, "GATEWAY", "g2", 1), "lost chain: chain g2 is anchored at record 3",
		},
		{
			"lost whole chain that a later one links", func(_ *testing.T, s *fixture) {
				s.msgs = slices.DeleteFunc(s.msgs, func(st Stored) bool { return strings.HasSuffix(st.Subject, ".g1") })
				s.renumber()
			}, at(4, "GATEWAY", "g2", 1), "links to record 5 of chain g1, which is not in the stream",
		},
		{
			"everything lost", func(_ *testing.T, s *fixture) { s.msgs = nil },
			at(1, "", "", 0), "the audit log is empty",
		},
		{
			"head file missing", func(_ *testing.T, s *fixture) { s.dropHead("b1") },
			at(10, "BROKER", "b1", 4), "unconfirmed end of chain b1",
		},
		{
			"head of another account", func(_ *testing.T, s *fixture) { s.head("b1").Account = "GATEWAY" },
			at(10, "GATEWAY", "b1", 4), "anchored for GATEWAY, the stream has it from BROKER",
		},
		{
			"malformed head", func(_ *testing.T, s *fixture) { s.head("b1").Hash = "no" },
			at(10, "BROKER", "b1", 4), "not the one that was anchored",
		},
		{
			"records beyond the anchored head", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", subjects.AuditRecord{
					Chain: "b1", Seq: 5, Prev: s.hash(t, 10, 0),
					Phase: subjects.AuditAfter, ID: "y",
				})
			}, Problem{}, "",
		},
		{
			"records beyond the linked head", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g1",
					subjects.AuditRecord{
						Chain: "g1", Seq: 6, Prev: s.hash(t, 7, 0), Phase: subjects.AuditBefore,
						ID: "late",
					})
			}, Problem{}, "",
		},
		{
			"records beyond the linked head that do not follow", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g1",
					subjects.AuditRecord{Chain: "g1", Seq: 6, Prev: Hash(nil), Phase: subjects.AuditBefore, ID: "late"})
			}, at(7, "GATEWAY", "g1", 5), "record 5 was altered",
		},
		{
			"record forged into a linked chain", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g1",
					subjects.AuditRecord{
						Chain: "g1", Seq: 4, Prev: s.hash(t, 4, 0), Phase: subjects.AuditBefore,
						ID: "late",
					})
			}, at(11, "GATEWAY", "g1", 4), "is repeated or out of order",
		},

		// links
		{
			"link to a chain that does not exist", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen, ID: "b2",
					Links: []subjects.AuditHead{{Account: "BROKER", Chain: "b9", Seq: 3, Hash: Hash(nil)}},
				})
			}, at(11, "BROKER", "b2", 1), "links to record 3 of chain b9, which is not in the stream",
		},
		{
			"link past the end", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen, ID: "b2",
					Links: []subjects.AuditHead{{Account: "BROKER", Chain: "b1", Seq: 9, Hash: Hash(nil)}},
				})
			}, at(11, "BROKER", "b2", 1), "links to record 9 of chain b1, which ends at 4 here",
		},
		{
			"link to another account", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen, ID: "b2",
					Links: []subjects.AuditHead{*s.head("g2")},
				})
			}, at(11, "BROKER", "b2", 1), "invalid link",
		},
		{
			"link to itself", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen, ID: "b2",
					Links: []subjects.AuditHead{{Account: "BROKER", Chain: "b2"}},
				})
			}, at(11, "BROKER", "b2", 1), "invalid link",
		},
		{
			"link that goes back behind an earlier one", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g3", subjects.AuditRecord{
					Chain: "g3", Seq: 1, Phase: subjects.AuditOpen, ID: "g3",
					Links: []subjects.AuditHead{{Account: "GATEWAY", Chain: "g1", Seq: 3, Hash: s.hash(t, 4, 0)}},
				})
			}, at(11, "GATEWAY", "g3", 1), "was known to reach 5",
		},
		{
			"chain without anchor or link", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b2", subjects.AuditRecord{
					Chain: "b2", Seq: 1, Phase: subjects.AuditOpen,
					ID: "b2",
				})
			}, at(11, "BROKER", "b2", 1), "unconfirmed end of chain b2",
		},
		{
			"abandoned chain: an anchored chain repeats its links", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g9", subjects.AuditRecord{
					Chain: "g9", Seq: 1, Phase: subjects.AuditOpen, ID: "g9",
					Links: []subjects.AuditHead{{Account: "GATEWAY", Chain: "g1", Seq: 5, Hash: s.hash(t, 7, 0)}},
				})
			}, Problem{}, "",
		},
		{
			"abandoned chain with a second message", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.GATEWAY.g9", subjects.AuditRecord{
					Chain: "g9", Seq: 1, Phase: subjects.AuditOpen, ID: "g9",
					Links: []subjects.AuditHead{{Account: "GATEWAY", Chain: "g1", Seq: 5, Hash: s.hash(t, 7, 0)}},
				})
				s.forge(t, "audit.GATEWAY.g9", subjects.AuditRecord{
					Chain: "g9", Seq: 2, Prev: s.hash(t, 11, 0),
					Phase: subjects.AuditBefore, ID: "q",
				})
			}, at(12, "GATEWAY", "g9", 2), "unconfirmed end",
		},

		// the genesis
		{"genesis missing", func(_ *testing.T, s *fixture) {
			s.drop(1)
		}, at(1, "", "", 0), "message broker/1 is missing"},
		{
			"genesis missing, the stream renumbered", func(_ *testing.T, s *fixture) { s.drop(1); s.renumber() },
			at(1, "GATEWAY", "g1", 1), "does not begin with a genesis",
		},
		{
			"genesis altered", func(t *testing.T, s *fixture) {
				s.edit(t, 1, func(r recs) recs { r[0].Genesis.Sealed = "old.jsonl"; return r })
			}, at(1, "AUDIT", "genesis", 1), "not the one that was anchored",
		},
		{
			"genesis with a record too many", func(t *testing.T, s *fixture) {
				s.edit(t, 1, func(r recs) recs { return append(r, r[0]) })
			}, at(1, "AUDIT", "genesis", 1), "not one record that opens an audit log",
		},
		{
			"genesis not anchored", func(_ *testing.T, s *fixture) { s.dropHead(GenesisChain) },
			at(1, "AUDIT", "genesis", 1), "unconfirmed genesis",
		},
		{
			"genesis anchored before it was acknowledged", func(_ *testing.T, s *fixture) {
				s.head(GenesisChain).Seq, s.head(GenesisChain).Hash = 0, ""
			}, at(1, "AUDIT", "genesis", 1), "unconfirmed genesis",
		},
		{
			"trick: a genesis that excuses the anchors, and nothing else left", func(t *testing.T, s *fixture) {
				s.msgs = s.msgs[:1]
				s.edit(t, 1, func(r recs) recs { r[0].Genesis.OldHeads = s.heads; return r })
			}, at(1, "AUDIT", "genesis", 1), "not the one that was anchored",
		},
		{
			"trick: a genesis that excuses the anchors, and a record altered", func(t *testing.T, s *fixture) {
				s.edit(t, 1, func(r recs) recs { r[0].Genesis.OldHeads = s.heads; return r })
				s.edit(t, 10, func(r recs) recs { r[0].Tool = "run_shell"; return r })
			}, at(1, "AUDIT", "genesis", 1), "not the one that was anchored",
		},
		{
			"trick: a second anchor that fits a forged genesis", func(t *testing.T, s *fixture) {
				s.edit(t, 1, func(r recs) recs { r[0].Genesis.OldHeads = s.heads; return r })
				s.heads = append(s.heads, subjects.AuditHead{
					Account: GenesisAccount, Chain: GenesisChain, Seq: 1,
					Hash: s.hash(t, 1, 0),
				})
			}, at(1, "AUDIT", "genesis", 1), "not the one that was anchored",
		},
		{
			"second genesis", func(_ *testing.T, s *fixture) {
				s.msgs = append(s.msgs, Stored{Seq: 11, Subject: GenesisSubject, Data: s.msgs[0].Data})
			}, at(11, "AUDIT", "genesis", 1), "only the first message may be a genesis",
		},
		{
			"genesis hidden in another chain", func(t *testing.T, s *fixture) {
				s.forge(t, "audit.BROKER.b1", subjects.AuditRecord{
					Chain: "b1", Seq: 5, Prev: s.hash(t, 10, 0), Phase: subjects.AuditBefore, ID: "q",
					Genesis: &subjects.AuditGenesis{},
				})
			}, at(11, "BROKER", "b1", 5), "only the first message may hold a genesis",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newFixture(t)
			tc.do(t, s)
			r := verifySource(t, source(s.msgs), s.heads)
			if tc.text == "" {
				wantOK(t, r)
				return
			}
			if r.OK || r.First == nil {
				t.Fatal("problem not detected")
			}
			if say := r.First.String(); !strings.Contains(say, r.First.Text) || !strings.Contains(say, tc.want.Chain) {
				t.Errorf("says %q", say)
			}
			got := *r.First
			got.Text = ""
			if got != tc.want || !strings.Contains(r.First.Text, tc.text) {
				t.Fatalf("first problem is\n%v\nwant %+v with %q", *r.First, tc.want, tc.text)
			}
		})
	}
}

func TestVerifyCounts(t *testing.T) {
	s := newFixture(t)
	r := verifySource(t, source(s.msgs), s.heads)
	if !r.OK || r.Messages != 10 || r.Records != 13 || r.Chains != 4 || r.Pending != 1 || r.Unfinished != 0 ||
		r.Genesis == nil {
		t.Fatalf("%+v", r)
	}
}

// A denied act has no outcome, also when its writer crashes after the record.
func TestDeniedActIsNotUnfinished(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "b1")
	for _, status := range []string{subjects.StatusDenied, subjects.StatusRefused, subjects.StatusAllowed} {
		rec := beforeRecord(status)
		rec.Status = status
		must(t, w.Append(t.Context(), rec))
	}
	r := verifySource(t, s.source(), readHeads(t, dir))
	if !r.OK || r.Pending != 1 || r.Unfinished != 0 {
		t.Fatalf("while it runs: %+v", r)
	}
	crashWriter(w)
	w = openWriter(t, s, dir, "BROKER", "b2")
	must(t, w.Append(t.Context(), beforeRecord("next")))
	must(t, w.Append(t.Context(), afterRecord("next")))
	must(t, w.Close(t.Context()))
	r = verifySource(t, s.source(), readHeads(t, dir))
	if !r.OK || r.Pending != 0 || r.Unfinished != 1 {
		t.Fatalf("after a crash: %+v", r)
	}
}

func TestVerifyChecksStreamBounds(t *testing.T) {
	s := newFixture(t)
	for _, tc := range []struct {
		name        string
		first, last uint64
		stream      uint64
	}{
		{"purged front", 4, 10, 1},
		{"last is missing", 1, 12, 11},
		{"more than it says", 1, 9, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := source(s.msgs[tc.first-1:])
			src.First, src.Last = tc.first, tc.last
			r := verifySource(t, src, s.heads)
			if r.OK || r.First.Message != MessageName("", tc.stream) {
				t.Fatalf("first problem is %v", r.First)
			}
		})
	}
}

func TestVerifyCapsProblems(t *testing.T) {
	s := newFixture(t)
	for i := range s.msgs {
		s.msgs[i].Data = nil
	}
	r, err := Verify(t.Context(), source(s.msgs), nil, VerifyOptions{Actions: testOptions.Actions, MaxProblems: 2})
	if err != nil || len(r.Problems) != 1+2+2 || r.Bad != 10 || r.OK || r.First.Message != "broker/1" {
		t.Fatalf("%+v, %v", r, err)
	}
}

// The problems of one account do not hide those of another, and unknown accounts share one limit.
func TestVerifyCapsProblemsByAccount(t *testing.T) {
	s := newFixture(t)
	s.edit(t, 10, func(r []subjects.AuditRecord) []subjects.AuditRecord { r[0].Tool = "run_shell"; return r })
	last := s.msgs[9]
	s.msgs = s.msgs[:9]
	for i := range 150 {
		s.msgs = append(s.msgs, Stored{Subject: fmt.Sprintf("audit.GATEWAY.p%d", i), Data: []byte("rubbish")},
			Stored{Subject: fmt.Sprintf("audit.M%d.p", i), Data: []byte("rubbish")})
	}
	s.msgs = append(s.msgs, last)
	s.renumber()
	r := verifySource(t, source(s.msgs), s.heads)
	if r.Bad != 301 || len(r.Problems) != 201 || r.First.Message != "broker/10" {
		t.Fatalf("%d problems, %d described, first %v", r.Bad, len(r.Problems), r.First)
	}
	if p := r.Problems[200]; p.Account != "BROKER" || p.Record != 4 ||
		!strings.Contains(p.Text, "not the one that was anchored") {
		t.Errorf("the last is %v", p)
	}
}

// The old heads of a forged genesis are ignored: every anchor that it names is still reported.
func TestForgedGenesisExcusesNoAnchor(t *testing.T) {
	s := newFixture(t)
	s.msgs = s.msgs[:1]
	s.edit(t, 1, func(r []subjects.AuditRecord) []subjects.AuditRecord { r[0].Genesis.OldHeads = s.heads; return r })
	r := verifySource(t, source(s.msgs), s.heads)
	if r.Bad != 3 || r.Genesis != nil || !strings.Contains(r.Problems[1].Text, "lost chain") ||
		!strings.Contains(r.Problems[2].Text, "lost chain") {
		t.Fatalf("%v", r.Problems)
	}
}

// Unacknowledged records are counted and are not a problem: an attacker who can write the store can add them.
func TestVerifyCountsUnacknowledgedRecords(t *testing.T) {
	open := func(chain string, links ...subjects.AuditHead) subjects.AuditRecord {
		return subjects.AuditRecord{Chain: chain, Phase: subjects.AuditOpen, ID: chain, Links: links}
	}
	act := func(chain, id string) subjects.AuditRecord {
		return subjects.AuditRecord{Chain: chain, Phase: subjects.AuditBefore, ID: id}
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, s *fixture)
		want int
	}{
		{"intact", func(*testing.T, *fixture) {}, 0},
		{"after an anchor", func(t *testing.T, s *fixture) {
			s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5, act("b1", "p"), act("b1", "q"))...)
		}, 2},
		{"after a link", func(t *testing.T, s *fixture) {
			s.forge(t, "audit.GATEWAY.g1", chainRecords(s.hash(t, 7, 0), 6, act("g1", "p"))...)
		}, 1},
		{"a chain that came to nothing", func(t *testing.T, s *fixture) {
			s.forge(t, "audit.BROKER.b2", chainRecords("", 1, open("b2", *s.head("b1")), act("b2", "p"))...)
		}, 2},
		{"trick: an unconfirmed chain links added records", func(t *testing.T, s *fixture) {
			s.forge(t, "audit.BROKER.b1", chainRecords(s.head("b1").Hash, 5, act("b1", "p"))...)
			s.forge(t, "audit.BROKER.b2",
				chainRecords("", 1,
					open("b2", subjects.AuditHead{Account: "BROKER", Chain: "b1", Seq: 5, Hash: s.hash(t, 11, 0)}))...)
		}, 2},
		{"trick: a long chain, linked by a short one", func(t *testing.T, s *fixture) {
			s.forge(t, "audit.BROKER.b2", chainRecords("", 1, open("b2", *s.head("b1")), act("b2", "p"))...)
			s.forge(t, "audit.BROKER.b2", chainRecords(s.hash(t, 11, 1), 3, act("b2", "q"))...)
			s.forge(t, "audit.BROKER.b3",
				chainRecords("", 1,
					open("b3", *s.head("b1"), subjects.AuditHead{
						Account: "BROKER", Chain: "b2", Seq: 3,
						Hash: s.hash(t, 12, 0),
					}))...)
		}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newFixture(t)
			tc.do(t, s)
			r := verifySource(t, source(s.msgs), s.heads)
			wantOK(t, r)
			if r.Unacknowledged != tc.want {
				t.Errorf("%d unacknowledged, want %d", r.Unacknowledged, tc.want)
			}
		})
	}
}

func TestReadGenesis(t *testing.T) {
	s := newFixture(t)
	if g, err := ReadGenesis(s.msgs[0], s.heads); err != nil || g == nil {
		t.Fatalf("%v, %v", g, err)
	}
	forged, other, err := EncodeGenesis(time.Now(), subjects.AuditGenesis{OldHeads: s.heads})
	must(t, err)
	for _, tc := range []struct {
		name  string
		st    Stored
		heads []subjects.AuditHead
	}{
		{"nothing", Stored{}, s.heads},
		{"not a genesis", s.msgs[1], s.heads},
		{"on another subject", Stored{Subject: "audit.BROKER.genesis", Data: s.msgs[0].Data}, s.heads},
		{"forged", Stored{Subject: GenesisSubject, Data: forged}, s.heads},
		{
			"trick: one of two anchors fits",
			Stored{Subject: GenesisSubject, Data: forged},
			append(slices.Clone(s.heads), other),
		},
		{"no anchors", s.msgs[0], nil},
		{"anchors of other chains", s.msgs[0], []subjects.AuditHead{*s.head("b1")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if g, err := ReadGenesis(tc.st, tc.heads); !errors.Is(err, ErrGenesisNotAnchored) || g != nil {
				t.Errorf("%v, %v", g, err)
			}
		})
	}
}

func TestVerifyReturnsSourceError(t *testing.T) {
	s := newFixture(t)
	broken := errors.New("connection lost")
	src := source(s.msgs)
	src.Messages = func(yield func(Stored, error) bool) {
		if yield(s.msgs[0], nil) {
			yield(Stored{}, broken)
		}
	}
	if r, err := Verify(t.Context(), src, s.heads, testOptions); !errors.Is(err, broken) || r.OK {
		t.Fatalf("OK %t, %v", r.OK, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Verify(ctx, source(s.msgs), s.heads, testOptions); !errors.Is(err, context.Canceled) || r.OK {
		t.Fatalf("OK %t, %v", r.OK, err)
	}
}

// After a rotation the heads in the folder still name chains of the sealed audit log.
func TestVerifyAfterRotation(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "b1")
	must(t, w.Append(t.Context(), beforeRecord("x")))
	must(t, w.Close(t.Context()))
	// A message beyond the anchor: the end of the chain and its anchor differ.
	last := recordsOf(t, s.msgs, "BROKER")[1]
	b := newBatchEncoder()
	hash, err := b.addRecord(&last)
	must(t, err)
	extra, err := EncodeBatch(subjects.AuditRecord{
		Chain: "b1", Seq: 3, Prev: hash, Time: last.Time,
		Phase: subjects.AuditBefore, ID: "q", Action: subjects.ActionToolCall,
	})
	must(t, err)
	s.storeMessage("audit.BROKER.b1", "extra", extra)
	wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))

	var file strings.Builder
	sum, err := Export(t.Context(), s.source(), &file)
	must(t, err)
	data, head, err := EncodeGenesis(time.Now(), subjects.AuditGenesis{
		Sealed: "audit-1.jsonl", SHA256: sum.SHA256, LastSeq: uint64(sum.Messages), OldHeads: MergeHeads(sum.Heads,
			readHeads(t, dir)),
	})
	must(t, err)
	must(t, WriteHead(dir, head))
	next := &stream{ids: map[string]int{}, acked: map[int]bool{}, tried: map[string]bool{}}
	next.storeMessage(GenesisSubject, "genesis", data)
	wantOK(t, verifySource(t, next.source(), readHeads(t, dir)))

	w = openWriter(t, next, dir, "BROKER", "b2")
	must(t, w.Append(t.Context(), beforeRecord("z")))
	must(t, w.Close(t.Context()))
	wantOK(t, verifySource(t, next.source(), readHeads(t, dir)))
	if links := recordsOf(t, next.msgs, "BROKER")[0].Links; len(links) != 1 || links[0].Chain != "b1" ||
		links[0].Seq != 2 {
		t.Fatalf("links %+v", links)
	}

	// A chain that ended in the sealed audit log is not continued in the new one, although an anchor may still name it.
	again := &fixture{msgs: slices.Clone(next.msgs[:1]), heads: readHeads(t, dir)}
	again.heads = append(again.heads, subjects.AuditHead{Account: "BROKER", Chain: "b1", Seq: 2, Hash: hash})
	again.msgs = append(append(again.msgs, s.msgs[1:]...), next.msgs[1:]...)
	again.renumber()
	if r := verifySource(t, source(again.msgs), again.heads); r.OK ||
		!strings.Contains(r.First.Text, "chain b1 ended in the sealed audit log") {
		t.Errorf("a replayed chain: %v", r.First)
	}

	// The genesis of the successor confirms the sealed file.
	src, err := OpenExport(strings.NewReader(file.String()))
	must(t, err)
	got := verifySource(t, next.source(), readHeads(t, dir))
	wantOK(t, verifySource(t, src, got.Genesis.OldHeads))
}
