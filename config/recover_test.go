package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory"
	"conclave/actors/memory/store"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/datatest"
	"conclave/pkg/policy"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// recovery is an installation whose data is damaged between two starts.
type recovery struct {
	t    *testing.T
	c    config.Config
	home bus.Home
	r    *config.Instance
}

func newRecovery(t *testing.T) *recovery {
	t.Helper()
	dir := datatest.Dir(t)
	x := &recovery{t: t, home: bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}}
	var err error
	if x.c, err = config.Load(""); err == nil {
		err = x.c.Apply(map[string]string{"system.listen": "127.0.0.1:0", "system.sync": "10s"})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.stop)
	return x
}

func (x *recovery) start(more ...string) {
	x.t.Helper()
	var err error
	if x.r, err = x.c.Start(x.t.Context(), x.home, nil, append([]string{"broker"}, more...)...); err != nil {
		x.t.Fatal(err)
	}
}

func (x *recovery) stop() {
	if x.r == nil {
		return
	}
	if err := x.r.Stop(context.Background()); err != nil {
		x.t.Error(err)
	}
	x.r = nil
}

func (x *recovery) backUp() {
	x.t.Helper()
	path, err := x.r.MakeBackup(x.t.Context(), x.c, x.home)
	if err == nil { // older than one that is made in the same second
		err = os.Rename(path, filepath.Join(filepath.Dir(path), "conclave-20261101T000000Z.tar.gz"))
	}
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(path)) })
}

// as runs f as an account of the bus.
func (x *recovery) as(account string, f func(out actor.Out) error) {
	x.t.Helper()
	nc, err := x.r.Bus.Dial(account)
	if err != nil {
		x.t.Fatal(err)
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err == nil {
		err = f(out)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// answer stores an answer as the generator does, in the conversation and as an event.
func (x *recovery) answer(session, query string) {
	x.t.Helper()
	x.as(subjects.Generator, func(out actor.Out) error {
		r := subjects.Response{
			SessionID: session, QueryID: query, Query: "question " + query, Answer: "answer " + query,
		}
		s := out.Store(subjects.StateBucket(subjects.Generator))
		c, rev, err := conversation.Read(x.t.Context(), s, session)
		if err != nil {
			return err
		}
		turn := conversation.NewTurn(r, time.Now().UTC())
		if _, _, _, err := conversation.Append(x.t.Context(), s, c, rev, func() subjects.Turn { return turn },
			50); err != nil {
			return err
		}
		return actor.Emit(x.t.Context(), out.WithIDs(session, query), subjects.ResponseGeneration, r)
	})
}

// deleteSession deletes a conversation as the generator does.
func (x *recovery) deleteSession(session string) {
	x.t.Helper()
	x.as(subjects.Generator, func(out actor.Out) error {
		s := out.Store(subjects.StateBucket(subjects.Generator))
		c, rev, err := conversation.Read(x.t.Context(), s, session)
		var data []byte
		if err == nil {
			data, err = conversation.Erase(c, time.Now().UTC())
		}
		if err == nil {
			_, err = s.Put(x.t.Context(), subjects.ConversationKey(session), data, rev)
		}
		if err != nil {
			return err
		}
		topic, err := subjects.AgentStateEvent.With(subjects.Generator)
		if err != nil {
			return err
		}
		return actor.Emit(x.t.Context(), out.WithIDs(session, ""), topic, subjects.AgentState{
			SessionID: session, To: "idle", Code: subjects.NoteDeleted,
		})
	})
}

// conversations returns the answered questions by session, or that a session is deleted.
func (x *recovery) conversations(sessions ...string) string {
	x.t.Helper()
	var out []string
	x.as(subjects.Generator, func(o actor.Out) error {
		for _, session := range sessions {
			c, _, err := conversation.Read(x.t.Context(), o.Store(subjects.StateBucket(subjects.Generator)), session)
			if err != nil {
				return err
			}
			line := session + ":"
			if c.Deleted {
				line += " deleted"
			}
			for _, t := range c.Turns {
				if line += " " + t.QueryID; t.Answer != "answer "+t.QueryID || t.Query != "question "+t.QueryID {
					line += " (wrong)"
				}
			}
			out = append(out, line)
		}
		return nil
	})
	return strings.Join(out, ", ")
}

// reports are the reports of damage as text.
func (x *recovery) reports() string {
	x.t.Helper()
	list, err := damage.Read(x.home.Data)
	if err != nil {
		x.t.Fatal(err)
	}
	var out []string
	for _, r := range list {
		out = append(out, r.String())
	}
	return strings.Join(out, "\n")
}

// streamFile is a file of a stream of the installation.
func (x *recovery) streamFile(stream, name string) string {
	return filepath.Join(x.home.Store(), "jetstream", subjects.Core, "streams", stream, name)
}

// TestDamagedStreamsAreRestored: a start takes back the messages of damaged files from the newest backup, conversations
// since then from EVENTS, keeps what is newer, and says what came back. What permits something does not come back.
func TestDamagedStreamsAreRestored(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	ask := func(first, last int) {
		nc, err := x.r.Bus.Dial("user")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for i := first; i < last; i++ {
			m, err := nc.Request("query.received", fmt.Appendf(nil, `{"query_id":"q%d"}`, i), 10*time.Second)
			if err != nil || !strings.Contains(string(m.Data), `"seq"`) {
				t.Fatalf("%v, %s", err, m.Data)
			}
		}
	}
	ask(0, 10)
	x.as("broker", func(out actor.Out) error {
		for _, bucket := range []string{"rules", "flow"} {
			if _, err := out.Store(bucket).Put(t.Context(), "k", []byte(`{}`), 0); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range 3 {
		x.answer(fmt.Sprint("s", i), fmt.Sprint("a", i))
	}
	x.backUp()
	ask(10, 14)
	x.answer("s0", "b0")
	x.answer("s9", "b9")
	x.answer("s8", "b8")
	x.deleteSession("s8")
	x.deleteSession("s1")
	x.stop()

	flip := func(path string, at float64) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[int(at*float64(len(b)))] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flip(x.streamFile("QUERIES", "msgs/1.blk"), 0.2)
	if err := os.Truncate(x.streamFile("KV_state_generator", "msgs/1.blk"), 60); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{"KV_rules", "KV_flow"} {
		if err := os.RemoveAll(x.streamFile(stream, "")); err != nil {
			t.Fatal(err)
		}
	}
	x.start()
	if got, want := x.conversations("s0", "s1", "s2", "s8", "s9"), "s0: a0 b0, s1: deleted, s2: a2, s8:, s9: b9"; got !=
		want {
		t.Errorf("conversations %q, want %q", got, want)
	}
	if n := messagesOf(t, x.home, "QUERIES"); n != 14 {
		t.Errorf("%d questions, want 14", n)
	}
	x.as("broker", func(out actor.Out) error {
		if _, _, err := out.Store("rules").Get(t.Context(), "k"); err == nil {
			t.Error("a standing rule came back from a backup")
		}
		_, _, err := out.Store("flow").Get(t.Context(), "k")
		return err
	})
	for _, part := range []string{
		"stream QUERIES (", "1 messages came back from the backup of 2026-11-01 00:00:00",
		"stream KV_rules (", "nothing is taken from a backup, because it may have been revoked since",
		"2 answers came back from EVENTS", "the damaged files are kept in ",
	} {
		if !strings.Contains(x.reports(), part) {
			t.Errorf("the reports lack %q: %s", part, x.reports())
		}
	}
	before := x.reports()
	x.stop()
	x.start()
	if x.reports() != before {
		t.Errorf("a second start reports more: %s", x.reports())
	}
	if got := x.conversations("s0", "s9"); got != "s0: a0 b0, s9: b9" {
		t.Errorf("after a second start: %q", got)
	}
}

// TestDamagedRecordsPermitNothing: in a damaged file the value of a record may be an earlier one. After a start on such
// files no standing rule and no override holds, disabled tools stay disabled, and every session that is known counts as
// tainted. A start without damage changes none of it.
func TestDamagedRecordsPermitNothing(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]bool{"one start": false, "a start that was killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDamagedRecords(t, killed)
		})
	}
}

// testDamagedRecords is the test with a start that was killed after it set the damaged files aside, or without it.
func testDamagedRecords(t *testing.T, killed bool) {
	x := newRecovery(t)
	x.start()
	records := map[string][2]string{ // by bucket: key and value
		"rules": {"assistant.web_fetch.r1", `{"id":"r1","type":"assistant","tool":"web_fetch","rule":"flow: x",` +
			`"sinks":["a.example"],"by":"user","made":"2026-11-01T00:00:00Z"}`},
		"session_config": {"s1", `{"all":{"level":"RELAX","disable":["run_shell"],"grant":["assistant:notes_add"]},` +
			`"once":{"set":{"level":"RELAX","disable":["web_fetch"]}}}`},
		"flow": {"s1", `{}`},
	}
	x.as("broker", func(out actor.Out) (err error) {
		for bucket, r := range records {
			for _, kv := range [][2]string{r, {"last", strings.Repeat("x", 500)}} { // of which the last one is damaged
				_, putErr := out.Store(bucket).Put(t.Context(), kv[0], []byte(kv[1]), 0)
				err = errors.Join(err, putErr)
			}
		}
		return err
	})
	x.answer("s2", "a2")
	check := func(damaged bool) {
		t.Helper()
		x.as("broker", func(out actor.Out) error {
			read := func(bucket, key string) string {
				data, _, err := out.Store(bucket).Get(t.Context(), key)
				if err != nil && !errors.Is(err, actor.ErrNotFound) {
					t.Error(err)
				}
				return string(data)
			}
			rule := read("rules", records["rules"][0])
			if strings.Contains(rule, `"revoked_by":"damage"`) != damaged || rule == "" {
				t.Errorf("damaged %t: the rule %s", damaged, rule)
			}
			want := records["session_config"][1]
			if damaged {
				want = `{"all":{"disable":["run_shell","web_fetch"]}}`
			}
			if s := read("session_config", "s1"); s != want {
				t.Errorf("damaged %t: overrides %s, want %s", damaged, s, want)
			}
			for _, session := range []string{"s1", "s2"} {
				var f policy.Flow
				if data := read("flow", session); data != "" {
					if err := f.UnmarshalJSON([]byte(data)); err != nil {
						t.Error(err)
					}
				}
				if len(f.Sources()) > 0 != damaged || f.HasPrivate() != damaged {
					t.Errorf("damaged %t: session %s has read %+v, private %t", damaged, session, f.Sources(),
						f.HasPrivate())
				}
			}
			return nil
		})
	}
	x.stop()
	x.start()
	check(false)
	x.stop()
	for bucket := range records {
		path := x.streamFile("KV_"+bucket, "msgs/1.blk")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-100] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if killed {
		if _, err := bus.FindDamagedStreams(x.home); err != nil {
			t.Fatal(err)
		}
	}
	x.start()
	check(true)
	for _, part := range []string{"rule was revoked (1)", "were lifted (1)", "private content (2)"} {
		if !strings.Contains(x.reports(), part) {
			t.Errorf("the reports lack %q: %s", part, x.reports())
		}
	}
}

// messagesOf returns the number of messages that the files of a stream have.
func messagesOf(t *testing.T, home bus.Home, stream string) (n int) {
	t.Helper()
	if err := home.EachStored(t.Context(), stream, func(string, time.Time, []byte) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDamageWithoutBackupIsRestoredFromEvents: without a backup conversations come back as far as EVENTS has them, and
// the report does not promise more.
func TestDamageWithoutBackupIsRestoredFromEvents(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	x.answer("s0", "a0")
	x.answer("s0", "b0")
	x.stop()
	if err := os.RemoveAll(x.streamFile("KV_state_generator", "")); err != nil {
		t.Fatal(err)
	}
	x.start()
	if got := x.conversations("s0"); got != "s0: a0 b0" {
		t.Errorf("conversations %q", got)
	}
	if got := x.reports(); !strings.Contains(got, "so nothing came back from there; 2 answers came back from EVENTS") {
		t.Errorf("reported %q", got)
	}
}

// TestLostCountsAreReported: without the counts of the last run a missing stream is not noticed, so that is said.
func TestLostCountsAreReported(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	x.stop()
	for _, name := range []string{x.streamFile("KV_rules", ""), filepath.Join(x.home.Data, "streams.json")} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	x.start()
	if got := x.reports(); !strings.Contains(got, "whether messages are missing is not known") {
		t.Errorf("reported %q", got)
	}
}

// TestDamagedMemoryIsRestored: a missing memory comes back from the newest undamaged backup at the next start, and a
// damaged one at the start after it was found; the memory that was there is kept, and the events since are read again.
func TestDamagedMemoryIsRestored(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	open := func(f func(db *store.Store) error) {
		t.Helper()
		db, err := store.Open(t.Context(), memory.DatabaseFile(x.home.Data), store.Options{Now: time.Now})
		if err == nil {
			err = f(db)
		}
		if err == nil {
			err = db.Close(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	entries := func() (n int) {
		t.Helper()
		open(func(db *store.Store) error {
			s, err := db.Stats(t.Context())
			n = s.Entries
			return err
		})
		return n
	}
	add := func(id, text string) {
		t.Helper()
		open(func(db *store.Store) error {
			_, err := db.Put(t.Context(), store.Item{Entry: subjects.MemoryEntry{
				ID: id, Kind: subjects.KindFact, State: subjects.MemoryActive, Name: id, Description: id, Corpus: text,
				Created: time.Now(), Updated: time.Now(),
				Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
			}})
			return err
		})
	}
	add("locker", "My locker is number 7.")
	x.backUp()
	add("train", "My train is at nine.")
	x.stop()
	if err := os.RemoveAll(filepath.Join(x.home.Data, "memory")); err != nil {
		t.Fatal(err)
	}
	x.start()
	if got := x.reports(); !strings.Contains(got, "memory was damaged or missing; it came back from the backup of ") {
		t.Errorf("reported %q", got)
	}
	if n := entries(); n != 1 {
		t.Errorf("%d entries after memory was missing, want 1", n)
	}
	x.stop()

	file := memory.DatabaseFile(x.home.Data)
	if err := os.Truncate(file, 5000); err != nil {
		t.Fatal(err)
	}
	x.start("memory")
	if got := x.reports(); !strings.Contains(got, "the next start takes it back") {
		t.Errorf("reported %q", got)
	}
	x.stop()
	x.start()
	if got := x.reports(); strings.Contains(got, "the next start takes it back") {
		t.Errorf("after the restore: %q", got)
	}
	if n := entries(); n != 1 {
		t.Errorf("%d entries after memory was damaged, want 1", n)
	}
	kept, err := filepath.Glob(filepath.Join(x.home.Data, "damaged", "*", "memory", "memory.duckdb"))
	if err != nil || len(kept) != 1 {
		t.Errorf("the damaged memory was not kept: %v, %v", kept, err)
	}
	var left []struct{ Part string }
	b, err := os.ReadFile(filepath.Join(x.home.Data, "damage.json"))
	if err != nil || json.Unmarshal(b, &left) != nil {
		t.Fatal(err)
	}
	for _, r := range left {
		if r.Part != "" {
			t.Errorf("memory still counts as damaged: %s", b)
		}
	}
}
