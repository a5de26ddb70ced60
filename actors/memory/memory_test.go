package memory

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/damage"
	"conclave/pkg/strict"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(8)
	goleak.VerifyTestMain(m)
}

// heard is what an actor listens to.
func heard(a actor.Actor) (out []string) {
	for _, r := range a.Routes() {
		out = append(out, r.Spec().Subscription())
	}
	slices.Sort(out)
	return out
}

var (
	forPeople = []string{"ctl.*.memory.admin", "ctl.*.memory.correlated", "ctl.*.memory.query", "ctl.*.memory.write"}
	forTools  = []string{
		"tool.request.save_memory", "tool.request.search_knowledge_graph",
		"tool.request.search_memory",
	}
	forEvents = []string{
		"from.*.critique.result", "from.*.pairwise.result", "from.*.response.generation",
		"from.*.reward.event",
	}
)

// TestLifecycle: routes, start events, and that a restart finds what was stored.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	want := slices.Concat(forPeople, forTools, forEvents)
	slices.Sort(want)
	if got := heard(w.m); !slices.Equal(got, want) {
		t.Errorf("it listens to %q, want %q", got, want)
	}
	if err := w.m.Start(t.Context(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	described := w.m.Describe()
	said := w.rec.Published()
	for i, tool := range Tools() {
		its := tool.Schema.Name
		if said[i].Subject != "tool.schema."+its || !strings.Contains(said[i].Body, `"name":"`+its+`"`) {
			t.Errorf("it announces %+v", said[i])
		}
		var s subjects.ToolSchema
		if err := json.Unmarshal([]byte(described["definition."+its]), &s); err != nil || s.Name != its ||
			!bytes.Equal(s.Parameters, tool.Schema.Parameters) {
			t.Errorf("discovery shows %q, %v", described["definition."+its], err)
		}
		if !tool.Facts.Known || !tool.Facts.Graded || tool.Facts.Zone != name || tool.Facts.Name != its {
			t.Errorf("the broker is told %+v", tool.Facts)
		}
	}
	if len(said) != 3 || len(described) != 3 {
		t.Errorf("it said %d things and describes %d", len(said), len(described))
	}
	id := w.storeFact("The bicycle stands in the cellar.")
	w.restart()
	if got := w.recallIDs("where is the bicycle"); !slices.Equal(got, []string{id}) {
		t.Errorf("after a restart it recalls %v, want %s", got, id)
	}
}

// TestUnavailableMemory: a memory that cannot be opened replies with the reason and the remedy, consumes no event,
// offers no tool and leaves the file unchanged. A disabled one replies too, but drops events.
func TestUnavailableMemory(t *testing.T) {
	t.Parallel()
	file := func(t *testing.T, data string, content []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(DatabaseFile(data)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(DatabaseFile(data), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(t *testing.T, data string) *store.Store {
		t.Helper()
		db, err := store.Open(t.Context(), DatabaseFile(data), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, data string, c *Config)
		says  []string
	}{
		{"switched off", func(_ *testing.T, _ string, c *Config) {
			c.Enabled = false
		}, []string{"switched off", "memory.yaml"}},
		{"damaged", func(t *testing.T, data string, _ *Config) {
			file(t, data, bytes.Repeat([]byte("this is no database. "), 1000))
		}, []string{"damaged", "move it away"}},
		{"trick: empty", func(t *testing.T, data string, _ *Config) {
			file(t, data, nil)
		}, []string{"damaged", "it is empty"}},
		{"trick: a folder at its path", func(t *testing.T, data string, _ *Config) {
			if err := os.MkdirAll(DatabaseFile(data), 0o700); err != nil {
				t.Fatal(err)
			}
		}, []string{"not a regular file", "move it away"}},
		{"cut in half", func(t *testing.T, data string, _ *Config) {
			if err := open(t, data).Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(DatabaseFile(data))
			if err != nil {
				t.Fatal(err)
			}
			file(t, data, whole[:len(whole)/2])
		}, []string{"damaged", "move it away"}},
		{"a newer schema", func(t *testing.T, data string, _ *Config) {
			if err := open(t, data).Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("duckdb", DatabaseFile(data))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), "UPDATE meta SET value = 99 WHERE name = 'schema'"); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}, []string{"newer version", "schema 99", "use the version that wrote it"}},
		{"trick: open elsewhere", func(t *testing.T, data string, _ *Config) {
			db := open(t, data)
			t.Cleanup(func() {
				if err := db.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}, []string{"open elsewhere"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data, cfg := t.TempDir(), plainConfig()
			tt.setup(t, data, &cfg)
			before, _ := os.ReadFile(DatabaseFile(data))
			w := &fixture{t: t, now: noon}
			w.rec.Time = noon
			w.m = Open(t.Context(), cfg, data, w, nil)
			want := forPeople // what there is to be remembered waits in the stream
			if !cfg.Enabled { // the user does not want it, now or later
				want = slices.Sorted(slices.Values(slices.Concat(forPeople, forEvents)))
				if err := w.deliverAnswer("generator", answer1()); err != nil {
					t.Errorf("an answer: %v", err)
				}
			}
			if got := heard(w.m); !slices.Equal(got, want) {
				t.Errorf("it listens to %q", got)
			}
			for subject, body := range map[string]any{
				"query": subjects.MemoryQuery{Query: "x"}, "write": subjects.MemoryWriteRequest{},
				"admin":      subjects.MemoryAdminRequest{Op: "status"},
				"correlated": subjects.MemoryIDs{IDs: []string{"abcdef"}},
			} {
				_, err := deliver[any](w, "ctl.user.memory."+subject, "", "", body)
				if actortest.Code(err) != subjects.CodeUnavailable {
					t.Errorf("memory.%s: %v", subject, err)
				}
				for _, part := range append(tt.says, "memory is unavailable") {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("memory.%s tells %v, without %q", subject, err, part)
					}
				}
			}
			if err := w.m.Start(t.Context(), w.rec.Out()); err != nil || len(w.rec.Published()) > 0 {
				t.Errorf("it starts with %+v, %v", w.rec.Published(), err)
			}
			described := w.m.Describe()
			if delete(described, damage.NoticeKey); len(described) > 0 {
				t.Errorf("it describes %v", described)
			}
			if err := w.m.Close(t.Context()); err != nil || !w.closed {
				t.Errorf("closing: %v, the audit closed: %t", err, w.closed)
			}
			if after, _ := os.ReadFile(DatabaseFile(data)); !bytes.Equal(before, after) {
				t.Errorf("the file was changed: %d bytes before and %d after", len(before), len(after))
			}
		})
	}
}

// TestOpen: a new file is accessible to the user only, and a second start opens it.
func TestOpen(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for range 2 {
		w := &fixture{t: t, now: noon}
		m := Open(t.Context(), plainConfig(), data, w, nil)
		if m.unavailable != nil {
			t.Fatal(m.unavailable)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]os.FileMode{DatabaseFile(data): 0o600, filepath.Dir(DatabaseFile(data)): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has %v, %v", path, info.Mode(), err)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := plainConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		path   string
	}{
		"nothing":             {func(c *Config) { *c = Config{} }, "n_results"},
		"no names":            {func(c *Config) { c.Results = 0 }, "n_results"},
		"too many names":      {func(c *Config) { c.Results = 201 }, "n_results"},
		"none at the end":     {func(c *Config) { c.Top = 0 }, "top_k"},
		"more at the end":     {func(c *Config) { c.Results, c.Top = 3, 4 }, "top_k"},
		"too many at the end": {func(c *Config) { c.Top = 21 }, "top_k"},
		"a weight above 1": {func(c *Config) {
			c.Weights = recall.DefaultWeights()
			c.Weights.Words = 1.5
		}, "weights.words"},
		"a hashed weight of 0": {func(c *Config) {
			c.Weights = recall.DefaultWeights()
			c.Weights.Hashed = 0
		}, "weights.hashed"},
		"a weight below 0": {func(c *Config) {
			c.Weights = recall.DefaultWeights()
			c.Weights.Speaker = -0.1
		}, "weights.speaker"},
		"answers never age": {func(c *Config) {
			c.Weights = recall.DefaultWeights()
			c.Weights.HalfLife = 0
		}, "weights.half_life"},
		"a small database": {func(c *Config) { c.Limit = 1 << 20 }, "memory_limit"},
	} {
		c := plainConfig()
		tt.change(&c)
		if err := c.Validate(); !slices.ContainsFunc(c.Problems(), func(p strict.Problem) bool {
			return p.Path == tt.path
		}) {
			t.Errorf("%s: %v says nothing of %s", name, err, tt.path)
		}
	}
}
