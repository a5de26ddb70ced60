package bus_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// filledHomes returns the data folders of a system that was killed, and of one that was stopped: QUERIES has 40
// messages, some of them in a compressed block, and the bucket flow has 20 keys, each written twice.
func filledHomes(t *testing.T) (killed, stopped bus.Home) {
	t.Helper()
	b := startBus(t)
	for role, subject := range map[string]string{"user": "query.received", "broker": "core.API.$KV.flow.k%d"} {
		nc, err := b.Dial(role)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for i := range 40 {
			name := subject
			if strings.Contains(name, "%") {
				name = fmt.Sprintf(name, i%20)
			}
			text := bytes.Repeat([]byte{byte('a' + i%26)}, 300_000)
			m, err := nc.Request(name, text, testTimeout)
			if err != nil || !bytes.Contains(m.Data, []byte(`"seq"`)) {
				t.Fatalf("%s: %v, %s", name, err, m.Data)
			}
		}
	}
	running := bus.Home{Data: filepath.Dir(b.Keys.Dir)}
	ended, end := context.WithCancel(t.Context())
	end()
	b.Server.KeepCounts(ended, running)
	killed = copyStreams(t, running)
	b.Server.Stop(t.Context())
	return killed, copyStreams(t, running)
}

// copyStreams copies the streams and their counts into a new data folder, which gets keys of its own.
func copyStreams(t *testing.T, from bus.Home) bus.Home {
	t.Helper()
	home := bus.Home{Data: datatest.Dir(t)}
	if err := os.CopyFS(home.Store(), os.DirFS(from.Store())); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(from.Data, "streams.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(home.Data, "streams.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	lasting, _ := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	return home
}

// countServed starts a server and returns how many messages it has in a stream.
func countServed(t *testing.T, home bus.Home, stream string) uint64 {
	t.Helper()
	s, err := bus.StartServer(bus.ServerConfig{Store: home.Store()}, home.Keys(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(context.Background())
	if err := s.Provision(t.Context(), []byte("genesis")); err != nil {
		t.Fatal(err)
	}
	for _, st := range s.StreamSizes() {
		if st.Name == stream {
			return st.Messages
		}
	}
	return 0
}

// TestStreamDamageIsFound damages the files of streams as a disk or a hand can, and starts a server on them. Each loss
// is reported with the stream; a damage without a loss and no damage are not. The readable messages are served.
func TestStreamDamageIsFound(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	killed, stopped := filledHomes(t)
	const streams = "jetstream/jetstream/CORE/streams/"
	flip := func(at float64) func(path string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[int(at*float64(len(b)-1))] ^= 0x10
			return os.WriteFile(path, b, 0o600)
		}
	}
	cut := func(keep float64) func(path string) error {
		return func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, int64(keep*float64(info.Size())))
		}
	}
	cutLast := func(path string) error { // whole messages are left
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		last := 0
		for at := 0; at < len(b); at += int(binary.LittleEndian.Uint32(b[at:]) &^ (1 << 31)) {
			last = at
		}
		return os.Truncate(path, int64(last))
	}
	for _, tt := range []struct {
		name, file string
		damage     func(path string) error
		want       string // "" = nothing is lost
		served     uint64 // questions that the server has then; 0 = it is not started
	}{
		{"nothing", "", nil, "", 40},
		{"the index is gone", streams + "QUERIES/msgs/index.db", os.RemoveAll, "", 0},
		{"a byte of a message", streams + "QUERIES/msgs/2.blk", flip(0.4), "stream QUERIES", 39},
		{"a byte of a compressed block", streams + "QUERIES/msgs/1.blk", flip(0.5), "stream QUERIES", 23},
		{"a byte of a bucket", streams + "KV_flow/msgs/2.blk", flip(0.6), "stream KV_flow", 0},
		{"the end is cut off", streams + "QUERIES/msgs/2.blk", cut(0.7), "stream QUERIES", 0},
		{"the last message is cut off", streams + "QUERIES/msgs/2.blk", cutLast, "stream QUERIES", 39},
		{"an empty block", streams + "QUERIES/msgs/2.blk", cut(0), "stream QUERIES", 0},
		{"a block is gone", streams + "QUERIES/msgs/1.blk", os.Remove, "stream QUERIES", 0},
		{"the last block is gone", streams + "KV_flow/msgs/2.blk", os.Remove, "stream KV_flow", 0},
		{"the first block of a bucket is gone", streams + "KV_flow/msgs/1.blk", os.Remove, "stream KV_flow", 0},
		{"a stream is gone", streams + "QUERIES", os.RemoveAll, "stream QUERIES", 0},
		{"the file of an empty bucket is gone", streams + "KV_rules/msgs/1.blk", os.Remove, "stream KV_rules", 0},
		{"an empty bucket is gone", streams + "KV_rules", os.RemoveAll, "stream KV_rules", 0},
		{"a bucket is gone", streams + "KV_flow", os.RemoveAll, "stream KV_flow", 0},
		{"the settings of a stream are gone", streams + "QUERIES/meta.inf", os.Remove, "", 40},
		{"the settings of a stream are damaged", streams + "KV_flow/meta.inf", flip(0.5), "", 0},
		{
			"zeros at the end, as a power failure leaves them", streams + "QUERIES/msgs/2.blk",
			func(path string) error {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				end := append([]byte{42, 1, 0, 0, 41}, make([]byte, 442)...) // a part of a message too
				return os.WriteFile(path, append(b, end...), 0o600)
			}, "", 40,
		},
		{"the counts are damaged", "streams.json", flip(0.5), "the counts of the streams", 0},
	} {
		for after, from := range map[string]bus.Home{"killed": killed, "stopped": stopped} {
			t.Run(tt.name+", "+after, func(t *testing.T) {
				t.Parallel()
				home := copyStreams(t, from)
				if tt.damage != nil {
					if err := tt.damage(filepath.Join(home.Data, tt.file)); err != nil {
						t.Fatal(err)
					}
				}
				found, err := bus.FindDamagedStreams(home)
				if err != nil {
					t.Fatal(err)
				}
				if (len(found) > 0) != (tt.want != "") {
					t.Fatalf("found %v, want %q", found, tt.want)
				}
				for _, r := range found {
					if !strings.HasPrefix(r.Text, tt.want) {
						t.Errorf("found %v, want %q", r, tt.want)
					}
				}
				if reports, err := damage.Read(home.Data); err != nil || len(reports) > len(found) {
					t.Errorf("reported %v, %v: found %v", reports, err, found)
				}
				kept, err := filepath.Glob(filepath.Join(home.Data, "damaged", "*", "*", "*.blk"))
				if err != nil || strings.HasPrefix(tt.name, "a byte") && len(kept) != 1 {
					t.Errorf("the damaged files were not kept: %v, %v", kept, err)
				}
				if tt.served == 0 {
					return
				}
				if n := countServed(t, home, "QUERIES"); n != tt.served {
					t.Errorf("%d questions are served, want %d", n, tt.served)
				}
			})
		}
	}
}

// TestStreamIsRestored: a damaged stream has all messages again that a copy of it has, whatever the damage, and the
// server serves them. A copy that is damaged too, and one of another stream, change nothing.
func TestStreamIsRestored(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	killed, stopped := filledHomes(t)
	others, _ := filledHomes(t)
	const streams = "jetstream/jetstream/CORE/streams/"
	spoil := func(at float64) func(path string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i := range 20 {
				b[int(at*float64(len(b)-30))+i] ^= 0x55
			}
			return os.WriteFile(path, b, 0o600)
		}
	}
	for _, tt := range []struct {
		name, stream, file string
		damage             func(path string) error
		copied             bus.Home
		spoilCopy, refused bool
		served             uint64
	}{
		{"a message", "QUERIES", "msgs/2.blk", spoil(0.4), stopped, false, false, 40},
		{"a compressed block", "QUERIES", "msgs/1.blk", spoil(0.5), stopped, false, false, 40},
		{"a block is gone", "QUERIES", "msgs/1.blk", os.Remove, stopped, false, false, 40},
		{"the last block is gone", "QUERIES", "msgs/2.blk", os.Remove, stopped, false, false, 40},
		{"all blocks are gone", "QUERIES", "msgs", os.RemoveAll, stopped, false, false, 40},
		{"the stream is gone", "QUERIES", "", os.RemoveAll, stopped, false, false, 40},
		{"a bucket", "KV_flow", "msgs/2.blk", spoil(0.6), stopped, false, false, 20},
		{"the first block of a bucket", "KV_flow", "msgs/1.blk", os.Remove, killed, false, false, 20},
		{"a copy that is damaged too", "QUERIES", "msgs/2.blk", spoil(0.4), stopped, true, true, 39},
		{"a copy of another stream", "QUERIES", "msgs/2.blk", spoil(0.4), others, false, true, 39},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			home, copied := copyStreams(t, killed), copyStreams(t, tt.copied)
			if err := tt.damage(filepath.Join(home.Data, streams, tt.stream, tt.file)); err != nil {
				t.Fatal(err)
			}
			if tt.spoilCopy {
				if err := spoil(0.7)(filepath.Join(copied.Data, streams, tt.stream, tt.file)); err != nil {
					t.Fatal(err)
				}
			}
			found, err := bus.FindDamagedStreams(home)
			if err != nil || len(found) != 1 {
				t.Fatalf("found %v, %v", found, err)
			}
			n, err := found[0].Restore(home, copied)
			if errors.Is(err, bus.ErrDamagedCopy) != tt.refused || (err == nil) == tt.refused || (n > 0) == tt.refused {
				t.Errorf("restored %d, %v", n, err)
			}
			if found, err := bus.FindDamagedStreams(home); !tt.refused && (err != nil || len(found) > 0) {
				t.Errorf("after the restore: %v, %v", found, err)
			}
			if n := countServed(t, home, tt.stream); n != tt.served {
				t.Errorf("%d messages are served, want %d", n, tt.served)
			}
		})
	}
}

// TestCountsAreWritten: the counts follow the streams, so that a loss is found without a clean stop, and a rotation
// makes them forget the audit log.
func TestCountsAreWritten(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	home := bus.Home{Data: filepath.Dir(b.Keys.Dir)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Server.KeepCounts(ctx, home)
	}()
	t.Cleanup(func() { cancel(); <-done })
	nc, err := b.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("query.received", []byte("hello"), testTimeout); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home.Data, "streams.json")
	holds := func(text string) bool {
		data, err := os.ReadFile(path)
		return err == nil && bytes.Contains(data, []byte(text))
	}
	for end := time.Now().Add(testTimeout); !holds(`"CORE/QUERIES":{"last":1,"messages":1,"blocks":[1]}`); {
		if time.Now().After(end) {
			t.Fatal("the counts do not follow")
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	<-done
	if !holds(`"AUDIT/AUDIT":{"last":1`) {
		t.Error("the audit log is not counted")
	}
	if err := home.ForgetAuditCounts(); err != nil || holds("AUDIT/AUDIT") || !holds("CORE/QUERIES") {
		t.Errorf("after a rotation: %v", err)
	}
}

// TestRepair: a server that amends damaged data can be reached in this process only, and full streams take more; the
// next server keeps that, and takes no more.
func TestRepair(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	home := bus.Home{Data: filepath.Dir(b.Keys.Dir)}
	store := func(server *bus.Server) (stored int, err error) {
		nc, err := (&bus.Bus{URL: server.URL(), Keys: b.Keys, Server: server}).Dial("broker")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for text := make([]byte, 1_000_000); ; stored++ {
			subject := fmt.Sprintf("schedule.definition.s%d", time.Now().UnixNano())
			m, err := nc.Request(subject, text, testTimeout)
			if err != nil {
				return stored, err
			}
			if bytes.Contains(m.Data, []byte(`"error"`)) {
				return stored, errors.New(string(m.Data))
			}
		}
	}
	size := func(server *bus.Server, stream string) bus.StreamSize {
		for _, st := range server.StreamSizes() {
			if st.Name == stream {
				return st
			}
		}
		return bus.StreamSize{}
	}
	before, _ := store(b.Server)
	limit := size(b.Server, "KV_flow").MaxBytes
	b.Server.Stop(t.Context())
	for _, repair := range []bool{true, false} {
		server, err := bus.StartServer(bus.ServerConfig{Store: home.Store(), Repair: repair}, b.Keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Stop(context.Background())
		if err := server.Provision(t.Context(), []byte("genesis")); err != nil {
			t.Fatal(err)
		}
		nc, err := (&bus.Bus{URL: server.URL(), Keys: b.Keys, TCP: true}).Dial("user")
		if (err != nil) != repair || server.LeafAddress() == "" != repair {
			t.Errorf("repair %t: over TCP: %v, leaf nodes at %q", repair, err, server.LeafAddress())
		}
		if err == nil {
			nc.Close()
		}
		added, err := store(server)
		if added > 0 != repair || err == nil {
			t.Errorf("repair %t: %d messages and %d more, %v", repair, before, added, err)
		}
		before += added
		if st := size(server, "SCHEDULES"); st.Messages != uint64(before) {
			t.Errorf("repair %t: %d of %d messages are there", repair, st.Messages, before)
		}
		if got := size(server, "KV_flow").MaxBytes; got > limit != repair || got < limit {
			t.Errorf("repair %t: a bucket has %d bytes, %d before", repair, got, limit)
		}
		server.Stop(t.Context())
	}
}
