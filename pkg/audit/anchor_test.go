package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestReadHeads(t *testing.T) {
	head := subjects.AuditHead{Account: "BROKER", Chain: "b1", Seq: 7, Hash: Hash(nil)}
	older := head
	older.Seq = 6
	slot := func(h subjects.AuditHead) []byte {
		b, err := appendSlot(nil, h)
		must(t, err)
		return b
	}
	torn := append(bytes.Clone(slot(older)[:slotSize/8]), slot(head)[slotSize/8:]...)
	flipped := bytes.Replace(slot(head), []byte(" 7 "), []byte(" 9 "), 1)
	for _, tc := range []struct {
		name string
		file string
		data []byte
		want *subjects.AuditHead // nil: none
		bad  bool
	}{
		{"one slot", "BROKER.b1.head", slot(head), &head, false},
		{"two slots, newer first", "BROKER.b1.head", append(slot(head), slot(older)...), &head, false},
		{"two slots, newer second", "BROKER.b1.head", append(slot(older), slot(head)...), &head, false},
		{"newer torn", "BROKER.b1.head", append(slot(older), torn...), &older, false},
		{"newer cut short", "BROKER.b1.head", append(slot(older), slot(head)[:100]...), &older, false},
		{"newer only zeros", "BROKER.b1.head", append(slot(older), make([]byte, slotSize)...), &older, false},
		{"nothing sent yet", "BROKER.b1.head", nil, nil, false},
		{"not a head file", "README", []byte("hello"), nil, false},
		{"both torn", "BROKER.b1.head", append(torn, torn...), nil, true},
		{"sequence edited", "BROKER.b1.head", flipped, nil, true},
		{"renamed to another chain", "BROKER.b2.head", slot(head), nil, true},
		{"renamed to another account", "GATEWAY.b1.head", slot(head), nil, true},
		{"name without a chain", "BROKER.head", slot(head), nil, true},
		{"name with a token too many", "BROKER.b1.x.head", slot(head), nil, true},
		{"garbage", "BROKER.b1.head", []byte("garbage"), nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, tc.file), tc.data, 0o600))
			got, err := ReadHeads(dir)
			switch {
			case tc.bad:
				if err == nil || !strings.Contains(err.Error(), tc.file) {
					t.Fatalf("%+v, error %v does not name the file", got, err)
				}
			case err != nil:
				t.Fatal(err)
			case tc.want == nil && len(got) > 0, tc.want != nil && (len(got) != 1 || got[0] != *tc.want):
				t.Fatalf("got %+v, want %+v", got, tc.want)
			}
		})
	}
	if _, err := ReadHeads(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a folder that does not exist has no heads to trust")
	}
	link := t.TempDir()
	must(t, os.Symlink("/dev/null", filepath.Join(link, "BROKER.b1.head")))
	if _, err := ReadHeads(link); err == nil {
		t.Error("followed a link")
	}
}

func TestHeadFilesAreReadableByOwnerOnly(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "b1")
	must(t, w.Append(t.Context(), beforeRecord("a")))
	must(t, w.Close(t.Context()))
	for path, want := range map[string]os.FileMode{
		dir:                                  0o700,
		filepath.Join(dir, "BROKER.b1.head"): 0o600,
		filepath.Join(dir, headFileName(GenesisAccount, GenesisChain)): 0o600,
	} {
		info, err := os.Stat(path)
		must(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has %o, want %o", path, got, want)
		}
	}
}

func TestWriteHeadReplaces(t *testing.T) {
	dir := headsDir(t)
	h := subjects.AuditHead{Account: GenesisAccount, Chain: GenesisChain, Seq: 1, Hash: Hash(nil)}
	must(t, WriteHead(dir, h))
	h.Hash = Hash([]byte("another"))
	must(t, WriteHead(dir, h))
	if got := readHeads(t, dir); len(got) != 1 || got[0] != h {
		t.Fatalf("%+v", got)
	}
	if err := WriteHead(dir, subjects.AuditHead{Account: "../x", Chain: "c"}); err == nil {
		t.Fatal("left the folder")
	}
}

func BenchmarkAnchor(b *testing.B) {
	dir := b.TempDir()
	a, err := createAnchor(dir, "BROKER", "b1")
	must(b, err)
	defer a.file.Close()
	head := a.head
	head.Hash = Hash(nil)
	b.ReportAllocs()
	for b.Loop() {
		head.Seq++
		must(b, a.writeHead(head))
	}
}
