package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// stoppedAudit returns the folder of an audit stream with n messages of size bytes after the genesis, whose server has
// stopped, and the messages as the server returned them.
func stoppedAudit(t *testing.T, n, size int) (dir string, msgs []audit.Stored) {
	t.Helper()
	b := startBus(t)
	nc, err := b.Dial("broker")
	if err != nil {
		t.Fatal(err)
	}
	log := bus.NewAuditLog(nc)
	for i := range n {
		if _, err := log.Append(t.Context(), "chain", fmt.Sprint(i), bytes.Repeat([]byte{byte(i)}, size)); err != nil {
			t.Fatal(err)
		}
	}
	nc.Close()
	if nc, err = b.Dial("auditor"); err != nil {
		t.Fatal(err)
	}
	src, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	msgs = readAll(t, src)
	nc.Close()
	b.Server.Stop(context.Background())
	home := bus.Home{Data: filepath.Dir(b.Keys.Dir)}
	return filepath.Join(home.AuditStreams(), subjects.Audit), msgs
}

func readAll(t *testing.T, src audit.Source) (out []audit.Stored) {
	t.Helper()
	for m, err := range src.Messages {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func equalStored(a, b audit.Stored) bool {
	return a.Seq == b.Seq && a.Subject == b.Subject && bytes.Equal(a.Data, b.Data) && a.Time.Equal(b.Time)
}

func openFiles(t *testing.T, dir string) *bus.AuditFiles {
	t.Helper()
	f, err := bus.OpenAuditFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestAuditFilesReadLikeTheServer: the block files of a stopped server, several of them, hold the messages that it
// returned.
func TestAuditFilesReadLikeTheServer(t *testing.T) {
	t.Parallel()
	dir, msgs := stoppedAudit(t, 120, 100_000)
	if names, _ := filepath.Glob(filepath.Join(dir, "msgs", "*.blk")); len(names) < 2 {
		t.Fatalf("block files %v: the test needs several", names)
	}
	f := openFiles(t, dir)
	for _, after := range []uint64{0, 1, 60, 121, 500} {
		src, err := f.ReadAfter(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := readAll(t, src), msgs[min(int(after), len(msgs)):]; !slices.EqualFunc(got, want, equalStored) ||
			src.Last != 121 || len(src.Damage) > 0 {
			t.Errorf("after %d: %d messages, want %d; last %d, damage %v", after, len(got), len(want), src.Last,
				src.Damage)
		}
	}
	if _, err := bus.OpenAuditFiles(dir + "-none"); err == nil {
		t.Error("a missing folder was opened")
	}
}

// TestAuditFilesSkipDamage flips every byte of one record in turn. The other records stay readable, and reading changes
// nothing.
func TestAuditFilesSkipDamage(t *testing.T) {
	t.Parallel()
	dir, msgs := stoppedAudit(t, 9, 40)
	file := filepath.Join(dir, "msgs", "1.blk")
	intact, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin := bytes.Index(intact, []byte("audit.broker.chain")) - 22
	size := bytes.Index(intact[begin+40:], []byte("audit.broker.chain")) + 40 - 22
	for i := range size {
		damaged := slices.Clone(intact)
		damaged[begin+i] ^= 0x41
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		f := openFiles(t, dir)
		src, err := f.ReadAfter(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		// The lengths of subject and headers are outside the server's checksum: such a record is read, and is another
		// one.
		want := slices.Delete(slices.Clone(msgs), 1, 2)
		got := slices.DeleteFunc(readAll(t, src), func(m audit.Stored) bool {
			return m.Seq == 2 && !equalStored(m, msgs[1])
		})
		if !slices.EqualFunc(got, want, equalStored) {
			t.Errorf("byte %d: read %v", i, got)
		}
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, damaged) {
			t.Fatalf("byte %d: reading changed the file, %v", i, err)
		}
	}
}

// TestServerCutsDamagedBlocks is the reason to read block files here and not by a server on a copy of them: with the
// index of a regular stop its count hides a damaged message, and without one, as after a crash, all that follow it in
// the block are lost.
func TestServerCutsDamagedBlocks(t *testing.T) {
	t.Parallel()
	dir, msgs := stoppedAudit(t, 20, 1000)
	file := filepath.Join(dir, "msgs", "1.blk")
	damaged, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged[bytes.Index(damaged, bytes.Repeat([]byte{4}, 100))] ^= 1 // in the payload of the sixth message
	if err := os.WriteFile(file, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := openFiles(t, dir).ReadAfter(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(readAll(t, src)); got != len(msgs)-1 || len(src.Damage) != 1 {
		t.Errorf("from the files: %d of %d messages, damage %v", got, len(msgs), src.Damage)
	}
	for _, tt := range []struct {
		index    bool
		counted  int // by the server, in its description of the stream
		readable int
	}{{true, 21, 20}, {false, 5, 5}} {
		if !tt.index {
			if err := os.Remove(filepath.Join(dir, "msgs", "index.db")); err != nil {
				t.Fatal(err)
			}
		}
		data := filepath.Join(dir, "..", "..", "..", "..", "..")
		if counted, readable := serveAudit(t, data); counted != tt.counted || readable != tt.readable {
			t.Errorf("index %t: the server counts %d messages and returns %d, want %d and %d", tt.index, counted,
				readable, tt.counted, tt.readable)
		}
	}
}

// serveAudit starts a server on a data folder and returns how many messages it counts in the broker's audit stream, and
// how many it returns.
func serveAudit(t *testing.T, data string) (counted, readable int) {
	t.Helper()
	keys := bus.Keys{Dir: filepath.Join(data, "keys")}
	srv, err := bus.StartServer(bus.ServerConfig{Store: filepath.Join(data, "jetstream")}, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop(context.Background())
	nc, err := (&bus.Bus{URL: srv.URL(), Keys: keys, Server: srv}).Dial("auditor")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	m, err := nc.Request(bus.AuditAPI+".STREAM.INFO."+subjects.Audit, nil, testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ State struct{ Messages int } }
	if err := json.Unmarshal(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	src, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Messages, len(readAll(t, src))
}

// TestDamagedBlockIsSetAside: the damaged block is kept as it was, and the server goes on with the readable records.
func TestDamagedBlockIsSetAside(t *testing.T) {
	t.Parallel()
	dir, msgs := stoppedAudit(t, 9, 40)
	file := filepath.Join(dir, "msgs", "1.blk")
	damaged, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged[bytes.Index(damaged, []byte("audit.broker.chain"))-22] ^= 0x41
	if err := os.WriteFile(file, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(datatest.Dir(t), "damaged", "1") // on the same file system
	if err := openFiles(t, dir).SetDamageAside(aside); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(filepath.Join(aside, "1.blk")); err != nil || !bytes.Equal(kept, damaged) {
		t.Errorf("the damaged block was not kept: %v", err)
	}
	f := openFiles(t, dir)
	src, err := f.ReadAfter(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, src); len(f.Damage()) > 0 || !slices.EqualFunc(got, slices.Delete(slices.Clone(msgs), 1, 2),
		equalStored) {
		t.Errorf("the block in its place: %d messages, damage %v", len(got), f.Damage())
	}

	store := filepath.Join(dir, "..", "..", "..", "..")
	keys := bus.Keys{Dir: filepath.Join(store, "..", "keys")}
	srv, err := bus.StartServer(bus.ServerConfig{Store: store}, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop(context.Background())
	if err := srv.Provision(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	nc, err := (&bus.Bus{URL: srv.URL(), Keys: keys, Server: srv}).Dial("auditor")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	served, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, served); !slices.EqualFunc(got, slices.Delete(slices.Clone(msgs), 1, 2), equalStored) ||
		served.Last != 10 {
		t.Errorf("the server returns %d messages up to %d", len(got), served.Last)
	}
}
