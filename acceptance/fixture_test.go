package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// The files data_v<version>.tar.gz in testdata are backups of data folders, made by the last build that wrote this
// version with the test below. Each must be restored, opened and continued by every later build.

// fixtureEnv says that the test writes the fixture of the current version.
const fixtureEnv = "CONCLAVE_WRITE_FIXTURE"

const fixtureFact = "My sister Anna lives in Bremen."

func fixtureSettings(t *testing.T) config.Config {
	return settings(t, "memory.model", "false", "system.gateway.listen", "127.0.0.1:0")
}

// TestWriteFixture makes the fixture of the current version, when its environment says so and there is none.
func TestWriteFixture(t *testing.T) {
	file := filepath.Join("testdata", fmt.Sprintf("data_v%d.tar.gz", bus.DataVersion))
	if os.Getenv(fixtureEnv) == "" {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v: data of this version has no fixture; make it with %s=1 go test ./acceptance -run "+
				"TestWriteFixture", err, fixtureEnv)
		}
		return
	}
	home, c := newHome(t), fixtureSettings(t)
	// two runs, so two chains
	for _, question := range []string{"What is the capital of France?", "What time is it in Tokyo?"} {
		r, err := c.Start(t.Context(), home, nil, config.Actors...)
		if err != nil {
			t.Fatal(err)
		}
		user := dialUser(t, r.Bus)
		askInSession(t, user, "notes", question)
		if _, _, err := user.AddMemory(t.Context(), subjects.MemoryEntry{Corpus: fixtureFact}, false); err != nil {
			t.Fatal(err)
		}
		if _,
			err := user.SetSession(t.Context(),
			subjects.SessionConfig{SessionID: "notes", Override: subjects.OverrideRelax}); err != nil {
			t.Fatal(err)
		}
		calls(t, r.Bus, 1)
		down(t, r)
	}
	if _, err := backup.Create(t.Context(), file, backup.Options{Home: home, Build: "fixture"}); err != nil {
		t.Fatal(err)
	}
}

// askInSession asks and returns the answer.
func askInSession(t *testing.T, user *client.Client, session, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	q, err := user.Ask(ctx, client.Question{Session: session, Text: text})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	response, err := q.Wait()
	if err != nil || response.Error != nil {
		t.Fatal(response.Error, err)
	}
	return response.Answer
}

// TestDataOfEveryVersionIsRead restores every fixture and continues it.
func TestDataOfEveryVersionIsRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "data_v*.tar.gz"))
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			home := newHome(t)
			restored, err := backup.Restore(t.Context(), file, home, nil, func(restored bus.Home) error {
				rep, err := config.VerifyStopped(t.Context(), restored)
				if err == nil && !rep.OK {
					err = fmt.Errorf("the audit log has %d problems, the first: %v", rep.Bad, rep.First)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if v, err := home.ReadVersion(); err != nil || v != restored.Manifest.DataVersion {
				t.Errorf("version %d, %v", v, err)
			}
			var logged bytes.Buffer
			r, err := fixtureSettings(t).Start(t.Context(), home, slog.New(slog.NewTextHandler(&logged, nil)),
				config.Actors...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				down(t, r)
				isOlder := restored.Manifest.DataVersion < bus.DataVersion
				if strings.Contains(logged.String(), "the data folder was upgraded") != isOlder {
					t.Errorf("data of version %d; the log: %s", restored.Manifest.DataVersion, &logged)
				}
			})
			if v, err := home.ReadVersion(); err != nil || v != bus.DataVersion {
				t.Errorf("after the start it has version %d, %v", v, err)
			}
			user := dialUser(t, r.Bus)
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			conversation, err := user.Session(ctx, "notes")
			if err != nil || len(conversation.Turns) != 2 ||
				conversation.Turns[0].Query != "What is the capital of France?" {
				t.Errorf("%+v, %v", conversation.Turns, err)
			}
			set, err := user.SetSession(ctx, subjects.SessionConfig{SessionID: "notes", Show: true})
			if err != nil || set.Override != subjects.OverrideRelax {
				t.Errorf("the override is %+v, %v", set, err)
			}
			reply, err := user.SearchMemory(ctx, subjects.MemoryQuery{Query: "Where does Anna live?"})
			if err != nil || !slices.ContainsFunc(reply.Hits, func(h subjects.MemoryHit) bool {
				return h.Entry.Description == fixtureFact
			}) {
				t.Errorf("%+v, %v", reply.Hits, err)
			}
			before := verified(t, home, r.Bus).Records
			if answer := askInSession(t, user, "notes", "What did I ask before?"); !strings.Contains(answer, "Tokyo") {
				t.Errorf("it answers %q", answer)
			}
			if after := verified(t, home, r.Bus).Records; after <= before {
				t.Errorf("%d records after a question, %d before", after, before)
			}
		})
	}
}

// TestNewerDataIsRefused starts on data of a newer version: nothing is written.
func TestNewerDataIsRefused(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	if err := os.MkdirAll(home.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home.Data, "version.json")
	for text, want := range map[string]string{
		fmt.Sprintf(`{"version":%d}`, bus.DataVersion+1): "written by a newer version of conclave",
		`{"version":"1"}`: "holds no version",
		"":                "holds no version",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := settings(t).Start(t.Context(), home, nil, "tools", "broker")
		if err == nil {
			down(t, r)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		entries, err := os.ReadDir(filepath.Dir(home.Data))
		if err != nil || len(entries) != 1 {
			t.Errorf("%q: it made %v, %v", text, entries, err)
		}
		if entries, err = os.ReadDir(home.Data); err != nil || len(entries) != 1 {
			t.Errorf("%q: it wrote %v, %v", text, entries, err)
		}
	}
}
