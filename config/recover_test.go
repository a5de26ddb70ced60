package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory"
	"conclave/actors/memory/store"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/damage"
	"conclave/pkg/datatest"
	"conclave/pkg/policy"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(6)
	os.Setenv("GOMEMLIMIT", "off") // each system would set the limit of one for the process
	os.Exit(m.Run())
}

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
			err = conversation.EraseArchive(x.t.Context(), s, session, conversation.EveryDeletion)
		}
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

// flipEnd changes a bit near the end of the first file of a stream.
func (x *recovery) flipEnd(stream string) {
	x.t.Helper()
	path := x.streamFile(stream, "msgs/1.blk")
	b, err := os.ReadFile(path)
	if err != nil {
		x.t.Fatal(err)
	}
	b[len(b)-100] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// TestDamagedRecordsPermitNothing: in a damaged file the value of a record may be an earlier one, and when it is not
// known what was damaged, in any file. After a start on such files no standing rule and no override holds, disabled
// tools stay disabled, every session that is known counts as tainted, schedules are paused, and the definitions of
// added tools have to be accepted again, also those whose record is lost. A start without damage changes none of it.
func TestDamagedRecordsPermitNothing(t *testing.T) {
	t.Parallel()
	damageBlocks := func(x *recovery) {
		for _, stream := range []string{"KV_rules", "KV_session_config", "KV_flow", "KV_schemas", "SCHEDULES"} {
			x.flipEnd(stream)
		}
	}
	write := func(x *recovery, name, content string) {
		if err := os.WriteFile(filepath.Join(x.home.Data, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		damage func(x *recovery)
		report string
	}{
		"damaged files": {damageBlocks, "stream KV_rules ("},
		"a start that was killed": {func(x *recovery) {
			damageBlocks(x)
			if _, err := bus.FindDamagedStreams(x.home); err != nil {
				t.Fatal(err)
			}
		}, "stream KV_rules ("},
		"counts that cannot be read": {func(x *recovery) {
			write(x, "streams.json", "{")
		}, "whether messages are missing is not known"},
		"counts that are lost with the version": {func(x *recovery) {
			for _, name := range []string{"streams.json", "version.json"} {
				if err := os.Remove(filepath.Join(x.home.Data, name)); err != nil {
					t.Fatal(err)
				}
			}
		}, "whether messages are missing is not known"},
		"a list of damage that cannot be read": {func(x *recovery) {
			write(x, "damage.json", "[")
		}, "earlier reports of damage cannot be read"},
		"a list of damage that was accepted unread": {func(x *recovery) {
			write(x, "damage.json", "[")
			if _, err := damage.Accept(x.home.Data); err != nil {
				t.Fatal(err)
			}
		}, "earlier reports of damage cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newPermissions(t)
			x.start()
			x.checkPermissions(t, false)
			x.stop()
			tt.damage(x)
			for range 2 { // the second start has nothing to end
				x.start()
				x.checkPermissions(t, true)
				for _, part := range []string{
					tt.report, "rule was revoked (1)", "were lifted (1)", "nobody asked for (2)",
					"schedule was paused (", "added tools (2)",
				} {
					if strings.Count(x.reports(), part) != 1 {
						t.Errorf("the reports have %q not once: %s", part, x.reports())
					}
				}
				x.stop()
			}
		})
	}
}

// permissionRecords are, by bucket, the key and the value of a record that permits something.
var permissionRecords = map[string][2]string{
	"rules": {"assistant.web_fetch.r1", `{"id":"r1","type":"assistant","tool":"web_fetch","rule":"flow: x",` +
		`"sinks":["a.example"],"by":"user","made":"2026-11-01T00:00:00Z"}`},
	"session_config": {"s1", `{"all":{"level":"RELAX","disable":["run_shell"],"grant":["assistant:notes_add"]},` +
		`"once":{"set":{"level":"RELAX","disable":["web_fetch"]}}}`},
	"flow":    {"s1", `{}`},
	"schemas": {"weather.forecast", `{"pin":"p1","added":"2026-11-01T00:00:00Z"}`},
}

// newPermissions returns a stopped installation with permissionRecords, a schedule, and a session and a tool without a
// record. Behind each record is another one, which [TestDamagedRecordsPermitNothing] damages.
func newPermissions(t *testing.T) *recovery {
	t.Helper()
	x := newRecovery(t)
	bustest.AddPrincipals(t, x.home, subjects.Principal{
		Name: "weather", Kind: subjects.ToolPrincipal, Tools: []string{"forecast", "radar"},
		Added: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
	})
	x.start()
	x.as("broker", func(out actor.Out) (err error) {
		for bucket, r := range permissionRecords {
			for _, kv := range [][2]string{r, {"last", strings.Repeat("x", 500)}} {
				_, putErr := out.Store(bucket).Put(t.Context(), kv[0], []byte(kv[1]), 0)
				err = errors.Join(err, putErr)
			}
		}
		for _, id := range []string{"news", "other"} {
			topic, topicErr := subjects.ScheduleDefinition.With(id)
			err = errors.Join(err, topicErr, actor.EmitOnce(t.Context(), out, topic, id, subjects.Schedule{
				When: "daily 8:00", Zone: "UTC", Mode: "assistant", Since: time.Now(),
				Query: strings.Repeat("new ", 99),
			}))
		}
		return err
	})
	x.answer("s2", "a2")
	x.stop()
	return x
}

// checkPermissions compares the records with those that damage leaves, or with those of newPermissions.
func (x *recovery) checkPermissions(t *testing.T, damaged bool) {
	t.Helper()
	x.as("broker", func(out actor.Out) error {
		read := func(bucket, key string) string {
			data, _, err := out.Store(bucket).Get(t.Context(), key)
			if err != nil && !errors.Is(err, actor.ErrNotFound) {
				t.Error(err)
			}
			return string(data)
		}
		rule := read("rules", permissionRecords["rules"][0])
		if strings.Contains(rule, `"revoked_by":"damage"`) != damaged || rule == "" {
			t.Errorf("damaged %t: the rule %s", damaged, rule)
		}
		want := permissionRecords["session_config"][1]
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
		for _, tool := range []string{"forecast", "radar"} {
			if d := read("schemas", "weather."+tool); strings.Contains(d, `"pin":"damaged"`) != damaged {
				t.Errorf("damaged %t: the definition of %s %s", damaged, tool, d)
			}
		}
		m, err := actor.ReadStored(t.Context(), out, subjects.ScheduleDefinition.Stream,
			map[string]any{"last_by_subj": "schedule.definition.news"})
		if err != nil || m == nil || strings.Contains(string(m.Data), `"paused":true`) != damaged {
			t.Errorf("damaged %t: the schedule %+v, %v", damaged, m, err)
		}
		return err
	})
}

// TestNobodyConnectsBeforeTheDistrust: a broker in another process, which connects as soon as it can, finds that the
// damaged records permit nothing.
func TestNobodyConnectsBeforeTheDistrust(t *testing.T) {
	t.Parallel()
	x := newPermissions(t)
	l, err := net.Listen("tcp", "127.0.0.2:0") // where no other test takes the port
	if err == nil {
		err = errors.Join(x.c.Apply(map[string]string{"system.listen": l.Addr().String()}), l.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(x.home.Data, "streams.json")); err != nil {
		t.Fatal(err)
	}
	first := make(chan string, 1)
	go func() { // until it is connected
		for t.Context().Err() == nil {
			nc, err := x.home.Connect("nats://"+l.Addr().String(), nil).Dial("broker")
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			defer nc.Close()
			rule := ""
			out, err := actor.NewOut(nc)
			if err == nil {
				var data []byte
				data, _, err = out.Store("rules").Get(t.Context(), permissionRecords["rules"][0])
				rule = string(data)
			}
			if err != nil {
				t.Error(err)
			}
			first <- rule
			return
		}
	}()
	x.start()
	if rule := <-first; !strings.Contains(rule, `"revoked_by":"damage"`) {
		t.Errorf("a broker that connected first read %s", rule)
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

// TestForeignBackupIsNotUsed: a user who can write to the folder of the backups cannot put messages into a damaged
// stream.
func TestForeignBackupIsNotUsed(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	x.answer("s0", "a0")
	x.backUp()
	x.stop()
	folder := x.c.BackupFolder(x.home)
	own, err := backup.ListScheduled(folder)
	if err != nil || len(own) != 1 {
		t.Fatalf("%v, %v", own, err)
	}
	other, err := audit.LoadHasher(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]backup.Options{
		"conclave-20261102T000000Z.tar.gz": {Home: x.home},
		"conclave-20261103T000000Z.tar.gz": {Home: x.home, Key: other},
	} {
		if _, err := backup.Create(t.Context(), filepath.Join(folder, name), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []string{
		"came back from the backup of 2026-11-01 00:00:00", "so nothing came back from there",
	} {
		if err := os.RemoveAll(x.streamFile("KV_state_generator", "")); err != nil {
			t.Fatal(err)
		}
		x.start()
		if got := x.reports(); !strings.Contains(got, from) {
			t.Errorf("the reports lack %q: %s", from, got)
		}
		x.stop()
		if err := os.RemoveAll(own[0].Path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostCountsAreReported: without the counts of the last run a missing end of a stream is not noticed, so that is
// said, and a stream that is missing as a whole is.
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
	for _, part := range []string{"whether messages are missing is not known", "revoked): it is missing"} {
		if got := x.reports(); !strings.Contains(got, part) {
			t.Errorf("the reports lack %q: %s", part, got)
		}
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
	add("secret", "My password is in the blue book.")
	x.backUp()
	x.as("memory", func(out actor.Out) error { // entries that are forgotten after the backup
		return errors.Join(
			actor.Emit(t.Context(), out, subjects.MemoryStored, subjects.MemoryEvent{
				Action: memory.ActionForgotten, IDs: []string{"secret", "locker"},
			}),
			actor.Emit(t.Context(), out, subjects.MemoryStored, subjects.MemoryEvent{
				Action: "stored", IDs: []string{"locker", "secret"},
			}),
			actor.Emit(t.Context(), out, subjects.MemoryStored, subjects.MemoryEvent{
				Action: memory.ActionForgotten, IDs: []string{"secret"},
			}))
	})
	add("train", "My train is at nine.")
	x.as("broker", func(out actor.Out) error { // until EVENTS has them
		for last := uint64(0); ; {
			m, err := actor.ReadStored(t.Context(), out, "EVENTS",
				map[string]any{"seq": last + 1, "next_by_subj": subjects.MemoryStored.StoredBy("memory")})
			switch {
			case err != nil:
				return err
			case m == nil:
				time.Sleep(time.Millisecond)
			case last > 0 && strings.Contains(string(m.Data), memory.ActionForgotten):
				return nil
			default:
				last = m.Seq
			}
		}
	})
	x.stop()
	x.flipEnd("EVENTS_memory") // the last one is in EVENTS
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
