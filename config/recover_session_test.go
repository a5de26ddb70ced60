package config_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestDeletedArchiveStaysDeleted: the archived turns of a conversation that the user deleted after the backup do not
// come back with it, whether the conversation is deleted, lost or went on.
func TestDeletedArchiveStaysDeleted(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	sessions := []string{"deleted", "continued", "kept"}
	for _, session := range sessions {
		for i := range 52 {
			x.answer(session, fmt.Sprint("a", i))
		}
	}
	x.backUp()
	for _, session := range sessions[:2] {
		x.deleteSession(session)
	}
	x.answer("continued", "b")
	check := func(name string) {
		t.Helper()
		x.as(subjects.Generator, func(out actor.Out) error {
			store := out.Store(subjects.StateBucket(subjects.Generator))
			for _, session := range sessions {
				keys, err := store.Keys(t.Context(), subjects.ArchivePrefix(session))
				if err != nil || len(keys) != 2 {
					t.Errorf("%s: %s has %q, %v", name, session, keys, err)
				}
				for _, key := range keys {
					data, _, err := store.Get(t.Context(), key)
					if err != nil || len(data) > 0 != (session == "kept") {
						t.Errorf("%s: the archive of %s has %s, %v", name, session, data, err)
					}
				}
			}
			return nil
		})
		if got := x.conversations("continued"); got != "continued: b" {
			t.Errorf("%s: %s", name, got)
		}
	}
	check("before")
	x.stop()
	if err := os.RemoveAll(x.streamFile("KV_state_generator", "")); err != nil {
		t.Fatal(err)
	}
	x.start()
	check("all is lost")
	x.as(subjects.Generator, func(out actor.Out) (err error) {
		store := out.Store(subjects.StateBucket(subjects.Generator))
		for _, session := range sessions[:2] { // as if only this had come back
			key := subjects.Conversation{SessionID: session}.ArchivedTurnKey(0)
			_, rev, getErr := store.Get(t.Context(), key)
			_, putErr := store.Put(t.Context(), key, []byte(`{"query_id":"a0","answer":"answer a0"}`), rev)
			err = errors.Join(err, getErr, putErr)
		}
		_, putErr := store.Put(t.Context(), "last", []byte(strings.Repeat("x", 500)), 0)
		return errors.Join(err, putErr)
	})
	x.stop()
	for _, stream := range []string{"EVENTS", "EVENTS_generator"} { // nothing tells of the deletions any more
		if err := os.RemoveAll(x.streamFile(stream, "")); err != nil {
			t.Fatal(err)
		}
	}
	x.flipEnd("KV_state_generator")
	x.start()
	check("the archive came back")
}

// TestEverySessionIsDistrusted: when the records of sessions are lost with their questions, each session that any other
// record names counts as tainted. What is no name of a session keeps nothing from starting.
func TestEverySessionIsDistrusted(t *testing.T) {
	t.Parallel()
	x := newRecovery(t)
	x.start()
	put := func(account, bucket, key, value string) {
		x.as(account, func(out actor.Out) error {
			_, err := out.Store(bucket).Put(t.Context(), key, []byte(value), 0)
			return err
		})
	}
	put(subjects.Orchestrator, "state_orchestrator", "task.t1", `{"session_id":"task"}`)
	put(subjects.Orchestrator, "state_orchestrator", "task.t2", `{"session_id":"no token"}`)
	put(subjects.Orchestrator, "state_orchestrator", "session.list", `{}`)
	put(subjects.Generator, "state_generator", "turn.running", `{}`)
	put(subjects.Generator, "state_generator", "past.archived.0", `{}`)
	put("broker", "session_config", "configured", `{}`)
	put("broker", "spawns", "generator.a1", `{"session":"spawned"}`)
	x.as(subjects.Generator, func(out actor.Out) error {
		return actor.Emit(t.Context(), out, subjects.ResponseGeneration, subjects.Response{
			SessionID: "event", QueryID: "q1",
		})
	})
	x.stop()
	for _, stream := range []string{"KV_flow", "TURNS"} {
		if err := os.RemoveAll(x.streamFile(stream, "")); err != nil {
			t.Fatal(err)
		}
	}
	x.start()
	x.as("broker", func(out actor.Out) error {
		for _, session := range []string{
			"task", "list", "running", "archived", "configured", "spawned", "event",
		} {
			var f policy.Flow
			data, _, err := out.Store("flow").Get(t.Context(), session)
			if err == nil {
				err = f.UnmarshalJSON(data)
			}
			if err != nil || !f.IsTainted() {
				t.Errorf("session %s: %s, %v", session, data, err)
			}
		}
		return nil
	})
}
