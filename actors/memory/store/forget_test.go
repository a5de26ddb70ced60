//go:build cgo

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

func TestForgetRemovesEverything(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	e := whole("a")
	e.Correlating = []string{"b"}
	putEntries(t, s, newFact("b"), e)
	if err := s.PutRelations(t.Context(),
		RelationWrite{Relation: line1("r1", "a", "Anna", "lives in", "Berlin")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Grade(t.Context(), Grade{
		Query: "q1", Respondent: "generator", Critic: ptr(3),
		Event: "1",
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Touch(t.Context(), testTime, "a"); err != nil {
		t.Fatal(err)
	}
	if gone := forgetEntries(t, s, "missing", "a"); fmt.Sprint(gone) != "[{a 2}]" {
		t.Errorf("gone are %v", gone)
	}
	for table, want := range map[string]int{
		"entries": 1, "vectors": 1, "tags": 0, "links": 0, "access": 0, "grades": 0,
		"relations": 0, "entities": 0, "answers": 1,
	} {
		if n := queryCount(t, s, "SELECT count(*) FROM "+table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	if id, state, err := s.FindAnswer(t.Context(), "q1", "generator"); id != "" || state != Forgotten || err != nil {
		t.Errorf("known as %q %q, %v", id, state, err)
	}
	// What is thought of it later is not kept, whether it is about one or about all.
	for i, g := range []Grade{
		{Query: "q1", Respondent: "generator", Critic: ptr(3)},
		{Query: "q1", Pairwise: ptr("generator")},
		{Query: "q1", Reward: ptr(1.0)},
	} {
		g.Event = fmt.Sprint("late", i)
		if all, err := s.Grade(t.Context(), g); err != nil || len(all) != 0 {
			t.Errorf("grade %d concerns %v, %v", i, all, err)
		}
	}
	if n := queryCount(t, s, "SELECT count(*) FROM grades"); n != 0 {
		t.Errorf("%d grades", n)
	}
	if gone := forgetEntries(t, s, "a"); len(gone) != 0 {
		t.Errorf("gone again: %v", gone)
	}
}

func TestForgetInheritsSuccessor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	for _, pair := range []string{"ba", "cb", "dc"} { // a <- b <- c <- d
		e := newFact(pair[:1])
		e.Supersedes = []string{pair[1:]}
		putEntries(t, s, e)
	}
	forgetEntries(t, s, "b", "c")
	if e := getEntry(t, s, "a"); e.State != subjects.MemorySuperseded || e.SupersededBy != "d" {
		t.Errorf("a is %s by %q, want by d", e.State, e.SupersededBy)
	}
	forgetEntries(t, s, "d")
	if e := getEntry(t, s, "a"); e.State != subjects.MemorySuperseded || e.SupersededBy != "" {
		t.Errorf("a is %s by %q, want by nobody", e.State, e.SupersededBy)
	}
}

func TestForgetOneOfTwoAnswers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newEngram("a", "q", "one"), newEngram("b", "q", "two"))
	for _, g := range []Grade{
		{Query: "q", Pairwise: ptr("two")},
		{Query: "q", Respondent: "one", Critic: ptr(2)},
		{Query: "q", Respondent: "two", Critic: ptr(5)},
	} {
		if _, err := s.Grade(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	forgetEntries(t, s, "a")
	if g := getEntry(t, s, "b").Grades; g.Pairwise != "two" || g.Critic != 5 {
		t.Errorf("b has %+v", g)
	}
	forgetEntries(t, s, "b")
	if n := queryCount(t, s, "SELECT count(*) FROM grades"); n != 0 {
		t.Errorf("%d grades are left", n)
	}
}

func TestForgetDocument(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	piece := func(id string, part int) subjects.MemoryEntry {
		e := newFact(id)
		e.Kind, e.Provenance = subjects.KindDocument, subjects.Provenance{
			Source: subjects.SourceDocument,
			Trust:  subjects.Trusted, From: "/a/b.md", Part: part,
		}
		return e
	}
	putEntries(t, s, piece("p2", 2), piece("p1", 1))
	d := Document{
		From: "/a/b.md", Title: "B", Hash: "h", Modified: testTime, Pieces: 2,
		Imported: testTime.Add(time.Hour),
	}
	for range 2 {
		if err := s.PutDocument(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	got, there, err := s.FindDocument(t.Context(), "/a/b.md")
	d.Modified, d.Imported = truncateTime(d.Modified), truncateTime(d.Imported)
	if err != nil || !there || got != d {
		t.Errorf("got %+v %v %v", got, there, err)
	}
	pieces, err := s.Pieces(t.Context(), "/a/b.md")
	if want := fmt.Sprint([]Piece{
		{"p1", 1},
		{"p2", 2},
	}); err != nil || fmt.Sprint(pieces) != want {
		t.Errorf("pieces are %v, %v; want %v", pieces, err, want)
	}
	if _, err := s.Update(t.Context(), "p2", subjects.MemoryEdit{Corpus: ptr("new")}, testTime); err != nil {
		t.Fatal(err)
	}
	if pieces, err = s.Pieces(t.Context(), "/a/b.md"); err != nil {
		t.Errorf("pieces are %v, %v", pieces, err)
	}
	forgetEntries(t, s, "p1")
	if _, there, err = s.FindDocument(t.Context(), "/a/b.md"); err != nil || !there {
		t.Errorf("the record of a document with a piece is missing, %v", err)
	}
	forgetEntries(t, s, "p2")
	if _, there, err = s.FindDocument(t.Context(), "/a/b.md"); err != nil || there {
		t.Errorf("the record of a document without pieces exists, %v", err)
	}
	if err := s.PutDocument(t.Context(), Document{}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// secret is looked for in the bytes of the files.
const secret = "Xylophone-Quartz-0815"

func holds(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			files = append(files, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestForgetLeavesNoBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "memory.duckdb")
	s := openStore(t, path)
	e := newFact("a")
	e.Name, e.Tags, e.Corpus = secret, []string{secret}, strings.Repeat(secret+" ", 50)
	putEntries(t, s, e, newFact("b"))
	rows := putEntries(t, s, newFact("c"))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := holds(t, dir); len(f) != 1 {
		t.Fatalf("the words are in %v; this test looks for nothing", f)
	}
	s = openStore(t, path)
	forgetEntries(t, s, "a")

	// No time to write the file anew: the next one does.
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Close(ended); err != nil {
		t.Fatal(err)
	}
	if f := holds(t, dir); len(f) != 1 {
		t.Errorf("the words are in %v: deleted rows are no longer kept, and Compact may be needless", f)
	}
	s = openStore(t, path)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := holds(t, dir); len(f) != 0 {
		t.Errorf("the words are in %v", f)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 { // the file and the count of its writes
		t.Errorf("in the folder are %v, %v", left, err)
	}
	s = openStore(t, path)
	if got := getEntry(t, s, "b"); got.Corpus != "what b says" {
		t.Errorf("b says %q", got.Corpus)
	}
	if r := putEntries(t, s, newFact("d")); r[0] <= rows[0] {
		t.Errorf("d has %d", r[0])
	}
	if forgot, err := s.readMark(t.Context(), markForgot); forgot != 0 || err != nil {
		t.Errorf("forgot is %d, %v", forgot, err)
	}
}

// compactFile claims a file and rewrites it, as closing does.
func compactFile(ctx context.Context, path string) error {
	full, free, err := claimPath(path)
	if err != nil {
		return err
	}
	defer free()
	return rewriteFile(ctx, full, Options{}.withDefaults(full))
}

func TestRewriteFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newEngram("b", "q", "g"))
	if err := compactFile(t.Context(), s.path); !errors.Is(err, ErrLocked) {
		t.Errorf("an open file: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := compactFile(ended, s.path); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if err := compactFile(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	s = openStore(t, s.path)
	if n := queryCount(t, s, "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'kept'"); n != len(tables)+1 {
		t.Errorf("the file has %d tables; those that are not in the list would be lost", n)
	}
	if getEntry(t, s, "a").Name != "name of a" || queryCount(t, s, "SELECT count(*) FROM vectors") != 2 {
		t.Error("something is missing")
	}
	if _, err := s.Put(t.Context(), Item{Entry: newFact("a")}); !errors.Is(err, ErrExists) {
		t.Errorf("the ids are no longer unique: %v", err)
	}
	// The rows of an unknown table are not lost.
	if _, err := s.db.Exec("CREATE TABLE more AS SELECT 7 AS a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := compactFile(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.path)
	if n := queryCount(t, s, "SELECT a FROM more"); n != 7 {
		t.Errorf("an unknown table has %d", n)
	}
	if n := queryCount(t, s, "SELECT count(*) FROM duckdb_indexes() WHERE index_name = 'vectors_row'"); n != 1 {
		t.Error("the index of the vectors is missing")
	}
	if n := queryCount(t, s, "SELECT count(*) FROM pragma_storage_info('vectors') WHERE column_name = 'corpus' AND "+
		"segment_type = 'BLOB' AND compression = 'Uncompressed'"); n == 0 {
		t.Error("the vectors are compressed")
	}
}
