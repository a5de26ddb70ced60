package audit

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"conclave/subjects"
)

func anyRecord(rt *rapid.T) subjects.AuditRecord {
	s := rapid.String()
	rec := subjects.AuditRecord{
		Chain: strings.Repeat("c", 64), Seq: rapid.Uint64().Draw(rt, "seq"), Prev: Hash(nil),
		Time: time.Unix(rapid.Int64Range(0, 1<<35).Draw(rt, "sec"), rapid.Int64Range(0, 999_999_999).Draw(rt, "nsec")).
			UTC(),
		Phase: rapid.SampledFrom([]string{subjects.AuditBefore, subjects.AuditAfter}).Draw(rt, "phase"),
		ID:    s.Draw(rt, "id") + "i", AgentID: s.Draw(rt, "agent"), AgentType: s.Draw(rt, "type"),
		Action: s.Draw(rt, "action") + "a", Tool: s.Draw(rt, "tool"), ParamsHash: s.Draw(rt, "hash"),
		Status: s.Draw(rt, "status"), Reason: s.Draw(rt, "reason"), Session: s.Draw(rt, "session"), Query: s.Draw(rt,
			"query"),
	}
	if l := rapid.SliceOf(s).Draw(rt, "lineage"); len(l) > 0 {
		rec.Lineage = l
	}
	return rec
}

func TestBatchRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		recs := rapid.SliceOfN(rapid.Custom(anyRecord), 1, 40).Draw(rt, "records")
		data, err := EncodeBatch(recs...)
		must(t, err)
		batch, err := DecodeBatch(data)
		must(t, err)
		for i, d := range batch {
			one, err := EncodeBatch(recs[i])
			must(t, err)
			again, err := EncodeBatch(d.Record)
			must(t, err)
			if !bytes.Equal(one, again) || !d.Record.Time.Equal(recs[i].Time) {
				rt.Fatalf("record %d came back as %+v", i, d.Record)
			}
			bound, err := checkRecord("BROKER", &recs[i])
			if err == nil && len(one) > bound {
				rt.Fatalf("%d bytes, thought to be at most %d", len(one), bound)
			}
		}
	})
}

// The hash is what other programs must be able to compute; this pins it.
func TestHashCoversRecordBytes(t *testing.T) {
	rec := beforeRecord("a")
	rec.Time = time.Unix(1_700_000_000, 0).UTC()
	data, err := EncodeBatch(rec)
	must(t, err)
	var raws [][]byte
	must(t, msgpack.Unmarshal(data, &raws))
	batch, err := DecodeBatch(data)
	must(t, err)
	if len(raws) != 1 || Hash(raws[0]) != hexHash(batch[0].Hash) {
		t.Fatal("the hash is not over the bytes in the message")
	}
	const want = "88a5636861696ea0a373657100a470726576a0a474696d65d6ff6553f100a57068617365a66265666f7265" +
		"a26964a161a6616374696f6ea9746f6f6c2e63616c6ca6737461747573a7616c6c6f776564"
	if got := hex.EncodeToString(raws[0]); got != want {
		t.Fatalf("the encoding changed; old trails would not verify\n got %s\nwant %s", got, want)
	}
}

func TestDecodeBatchRejectsMalformed(t *testing.T) {
	good, err := EncodeBatch(beforeRecord("a"))
	must(t, err)
	raw := good[3:] // array of one, bin8, length
	wrap := func(raw []byte) []byte { return append([]byte{0x91, 0xc4, byte(len(raw))}, raw...) }
	pack := func(v any) []byte {
		var b bytes.Buffer
		enc := msgpack.NewEncoder(&b)
		enc.SetCustomStructTag("json")
		enc.UseCompactInts(true)
		must(t, enc.Encode(v))
		return b.Bytes()
	}
	for _, tc := range []struct {
		name string
		data []byte
	}{
		{"nothing", nil},
		{"nil", []byte{0xc0}},
		{"empty batch", []byte{0x90}},
		{"not an array", raw},
		{"cut short", good[:len(good)-1]},
		{"trailing byte", append(bytes.Clone(good), 0)},
		{"trailing byte inside a record", wrap(append(bytes.Clone(raw), 0))},
		{"record as a string", append([]byte{0x91, 0xd9, byte(len(raw))}, raw...)},
		{"long form of the array", append([]byte{0xdc, 0, 1}, good[1:]...)},
		{"long form of the length", append([]byte{0x91, 0xc5, 0, byte(len(raw))}, raw...)},
		{"unknown field", wrap(pack(map[string]any{"chain": "c", "params": "secret"}))},
		{"fields missing", wrap(pack(map[string]any{"chain": "c"}))},
		{
			"field twice",
			wrap(append([]byte{raw[0] + 1}, append(bytes.Clone(raw[1:]), pack("id")[0], 'i', 'd', 0xa1, 'b')...)),
		},
		{"record as an array", wrap(bytes.Repeat([]byte{0x90}, 3))},
		{"record is nil", wrap([]byte{0xc0})},
		{"four billion links", wrap([]byte("\x81\xa5links\xdd\xff\xff\xff\xff"))},
		{"four billion records", []byte{0xdd, 0xff, 0xff, 0xff, 0xff}},
		{"nested without end", bytes.Repeat([]byte{0x91}, 100_000)},
		{"too large", make([]byte, MaxMessage+1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if recs, err := DecodeBatch(tc.data); err == nil {
				t.Fatalf("accepted: %+v", recs)
			}
		})
	}
}

func FuzzDecodeBatch(f *testing.F) {
	rec := beforeRecord("a")
	rec.Lineage = []string{"x", "y"}
	for _, recs := range [][]subjects.AuditRecord{
		{rec},
		{rec, afterRecord("a")},
		{{
			Phase: subjects.AuditOpen,
			Links: []subjects.AuditHead{{Account: "A", Chain: "c", Seq: 1 << 40, Hash: Hash(nil)}},
		}},
		{{Time: time.Unix(1<<34, 5), Genesis: &subjects.AuditGenesis{OldHeads: make([]subjects.AuditHead, 2)}}},
	} {
		data, err := EncodeBatch(recs...)
		must(f, err)
		f.Add(data)
	}
	f.Add([]byte("\x91\xc4\x0b\x81\xa5links\xdd\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		batch, err := DecodeBatch(data)
		if err != nil {
			return
		}
		var recs []subjects.AuditRecord
		for _, d := range batch {
			recs = append(recs, d.Record)
		}
		again, err := EncodeBatch(recs...)
		must(t, err)
		if !bytes.Equal(again, data) {
			t.Fatalf("%x became %x", data, again)
		}
		second, err := DecodeBatch(again)
		must(t, err)
		for i := range second {
			if second[i].Hash != batch[i].Hash {
				t.Fatal("another hash")
			}
		}
	})
}
