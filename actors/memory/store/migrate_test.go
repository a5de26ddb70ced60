//go:build cgo

package store

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

// unpackFixture writes testdata/name.gz to path.
func unpackFixture(t *testing.T, name, path string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// graphLines returns every relation as "subject|predicate|object|tense", sorted.
func graphLines(t *testing.T, s *Store, q GraphQuery) (lines []string) {
	t.Helper()
	relations, err := s.Relations(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range relations {
		lines = append(lines, strings.Join([]string{r.Subject, r.Predicate, r.Object, r.Tense}, "|"))
	}
	slices.Sort(lines)
	return lines
}

// TestMigrateSchema1 opens files that the last build with schema 1 wrote: one that was closed, and one with a log that
// a crash left.
func TestMigrateSchema1(t *testing.T) {
	t.Parallel()
	graph := []string{
		"Ana|is sister of|the user|is", "the person next door|plays|piano|is", "the user's sister|lives in|Rome|is",
		"the user|drinks|coffee|is", "the user|lives in|Oslo|is",
		"the user|works as|nurse|is",
	}
	for _, tt := range []struct {
		name, file string
		log        bool
	}{{name: "closed", file: "schema1.duckdb"}, {name: "crashed", file: "schema1-crash.duckdb", log: true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(datatest.Dir(t), "memory.duckdb")
			unpackFixture(t, tt.file, path)
			if tt.log {
				unpackFixture(t, tt.file+walSuffix, path+walSuffix)
			}
			s := openStore(t, path)
			for range 2 { // migrated once, and the same when it is opened again
				if v, err := s.readMark(t.Context(), markSchema); err != nil || v != 4 {
					t.Errorf("schema is %d, %v; want 4", v, err)
				}
				if err := s.Verify(t.Context()); err != nil {
					t.Error(err)
				}
				checkMigrated(t, s)
				if got := graphLines(t, s, GraphQuery{}); !slices.Equal(got, graph) {
					t.Errorf("graph is %q, want %q", got, graph)
				}
				if got := graphLines(t, s, GraphQuery{Words: "Where does the user live?"}); !slices.Contains(got,
					"the user|lives in|Oslo|is") {
					t.Errorf("found by words: %q", got)
				}
				s = reopenStore(t, s)
			}
			// A relation that is stated again replaces the migrated one.
			again := line1("again", "fact-home", "the user", "lives in", "Oslo")
			if err := s.PutRelations(t.Context(), RelationWrite{Relation: again, Single: true}); err != nil {
				t.Fatal(err)
			}
			if got := graphLines(t, s, GraphQuery{}); !slices.Equal(got, graph) {
				t.Errorf("stated again, the graph is %q", got)
			}
		})
	}
}

// checkMigrated compares the entries of the fixture with what was written, and loads them as the index does.
func checkMigrated(t *testing.T, s *Store) {
	t.Helper()
	for id, want := range map[string]subjects.Source{
		"fact-home": subjects.SourceUser, "fact-sister": subjects.SourceUser, "fact-name": subjects.SourceUser,
		"fact-agent": subjects.SourceAgent,
		"fact-page":  subjects.SourceExternal, "answer-kept": subjects.SourceConversation,
		"piece-1": subjects.SourceDocument, "fact-late": subjects.SourceUser,
	} {
		if got := getEntry(t, s, id).Provenance.Source; got != want {
			t.Errorf("source of %s is %q, want %q", id, got, want)
		}
	}
	home := getEntry(t, s, "fact-home")
	if home.Corpus != "I live in Oslo." || !home.Pinned || !slices.Equal(home.Tags, []string{"home"}) ||
		!slices.Equal(home.Correlating, []string{"fact-sister"}) {
		t.Errorf("fact-home is %+v", home)
	}
	if g := getEntry(t, s, "answer-kept").Grades; g.Critic != 5 || g.Reward != 1 {
		t.Errorf("grades are %+v", g)
	}
	if _, state, err := s.FindAnswer(t.Context(), "q2", "generator"); err != nil || state != Forgotten {
		t.Errorf("the forgotten answer is %q, %v", state, err)
	}
	loaded := 0
	err := s.Load(t.Context(), "m", func(l IndexEntry) error {
		if l.Conversation != "" || l.Position != 0 || l.Speaker != "" || !l.Happened.IsZero() {
			return fmt.Errorf("%s has a context: %+v", l.ID, l)
		}
		v := l.Vectors
		if v != nil && v.Name != nil && v.Description != nil && l.Provenance.Source != "person" {
			loaded++
		}
		return nil
	})
	if err != nil || loaded != 8 {
		t.Errorf("loaded %d entries with vectors, %v; want 8", loaded, err)
	}
}

// TestMigrationDropsVectorsWithoutCorpus: such an entry of schema 2 is embedded again, the others keep their vectors.
func TestMigrationDropsVectorsWithoutCorpus(t *testing.T) {
	t.Parallel()
	path := filepath.Join(datatest.Dir(t), "memory.duckdb")
	unpackFixture(t, "schema1.duckdb", path)
	old, err := openWithSteps(t.Context(), path, Options{}, []string{steps[0], steps[1] + ";" + addChanges})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.db.Exec("DROP TABLE changes; " +
		"UPDATE vectors SET corpus = NULL WHERE row = (SELECT row FROM entries WHERE id = " +
		"'fact-home')"); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, path)
	all, err := s.Unembedded(t.Context(), "m", 10)
	if err != nil || ids(all) != "fact-home" {
		t.Errorf("without vectors are %q, %v; want fact-home", ids(all), err)
	}
	if n := queryCount(t, s,
		"SELECT count(*) FROM vectors WHERE name IS NOT NULL AND description IS NOT NULL"); n != 7 {
		t.Errorf("%d entries kept their vectors, want 7", n)
	}
}
