//go:build cgo

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestOpenCreatesPrivateFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := openStore(t, filepath.Join(dir, "memory.duckdb"))
	putEntries(t, s, newFact("a"))
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Dir(dir): 0o700, s.path: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if s.Size() == 0 {
		t.Error("the file has no size")
	}
	s = reopenStore(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.path, 0o644); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.path)
	for path, want := range map[string]os.FileMode{dir: 0o700, s.path: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("opened again, %s has %v, %v", path, info.Mode(), err)
		}
	}
}

func TestOpenPathsWithSpecialCharacters(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"it's 100% \u00fcber; -- x", "%zz [a] {x} #1", "~ a:b \"c\""} {
		s := openStore(t, filepath.Join(t.TempDir(), name, name+".duckdb"))
		putEntries(t, s, newFact("a"))
		if _, err := os.Stat(s.path); err != nil || filepath.Base(s.path) != name+".duckdb" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpenRejectsUnsafePaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"who?", "a*"} {
		dir := filepath.Join(t.TempDir(), name)
		if _, err := Open(t.Context(), filepath.Join(dir, "memory.duckdb"), Options{}); err == nil ||
			!strings.Contains(err.Error(), "without ? and *") {
			t.Error(err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s was made", dir)
		}
	}
	dir := t.TempDir() // with something in it, and open to others
	if err := os.WriteFile(filepath.Join(dir, "else"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "memory.duckdb"), Options{}); err == nil ||
		!strings.Contains(err.Error(), "folder of its own") {
		t.Error(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder has %v, %v", info.Mode(), err)
	}
	if _, err := Open(t.Context(), t.TempDir(), Options{}); err == nil ||
		!strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(s.path), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.path, filepath.Join(link, "memory.duckdb"), filepath.Dir(s.path) +
		"/../memory/memory.duckdb"} {
		if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", path, err)
		}
	}
	putEntries(t, s, newFact("a"))
	s = reopenStore(t, s)
	getEntry(t, s, "a")
}

func TestOpenLockedByAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.duckdb")
	o := startChild(t, "hold", path)
	o.line(t)
	before := files(t, filepath.Dir(path))
	_, err := Open(t.Context(), path, Options{})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", o.cmd.Process.Pid)) {
		t.Errorf("got %v, want the process %d", err, o.cmd.Process.Pid)
	}
	if err := compactFile(t.Context(), path); !errors.Is(err, ErrLocked) {
		t.Errorf("compact: %v", err)
	}
	if after := files(t, filepath.Dir(path)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("files were %v and are %v", before, after)
	}
	if err := o.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	openStore(t, path)
}

// files are the names in a folder.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if !strings.HasSuffix(f.Name(), countSuffix) {
			names = append(names, f.Name())
		}
	}
	return names
}

// closedFile is the file of a memory with one entry, and its bytes.
func closedFile(t *testing.T) (path string, data []byte) {
	t.Helper()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	return s.path, data
}

func TestOpenDamaged(t *testing.T) {
	t.Parallel()
	path, whole := closedFile(t)
	flip := func(at int) []byte {
		b := bytes.Clone(whole)
		b[at] ^= 0x55
		return b
	}
	foreign := filepath.Join(t.TempDir(), "foreign")
	e, err := openEngine(t.Context(), foreign, Options{}.withDefaults(foreign))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.db.Exec("CREATE TABLE t (a INTEGER); CHECKPOINT kept"); err != nil {
		t.Fatal(err)
	}
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, ErrDamaged},
		{"text", []byte("hello, this is no database"), ErrDamaged},
		{"zeros", make([]byte, len(whole)), ErrDamaged},
		{"another database", other, ErrDamaged},
		{"SQLite", append([]byte("SQLite format 3\x00"), make([]byte, 8192)...), ErrDamaged},
		{"cut in the first header", whole[:100], ErrDamaged},
		{"cut in the second header", whole[:5000], ErrDamaged},
		{"cut behind the headers", whole[:12288], ErrDamaged},
		{"cut in the first block", whole[:13000], ErrDamaged},
		{"a byte of the checksum", flip(0), ErrDamaged},
		{"a byte of the magic word", flip(8), ErrDamaged},
		{"a byte of the version", flip(12), ErrDamaged},
		{"a byte of the first header", flip(4100), ErrDamaged},
		{"a byte of the second header", flip(8200), ErrDamaged},
		{"a byte of the first block", flip(12300), ErrDamaged},
		{"a newer format", version(t, whole, 200), ErrNewer},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(t.Context(), path, Options{})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err != nil && (!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error does not name the file in one line: %q", err)
			}
			after, rerr := os.ReadFile(path)
			if rerr != nil || !bytes.Equal(after, c.data) {
				t.Errorf("the file was changed, %v", rerr)
			}
			if names := files(t, filepath.Dir(path)); len(names) != 1 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

// version is a file that says to be of another format. The header is signed with DuckDB's checksum.
func version(t *testing.T, file []byte, n byte) []byte {
	t.Helper()
	sum := func(b []byte) uint64 {
		s := uint64(5381)
		for i := 8; i < 4096; i += 8 {
			s ^= binary.LittleEndian.Uint64(b[i:]) * 0xbf58476d1ce4e5b9
		}
		return s
	}
	b := bytes.Clone(file)
	if sum(b) != binary.LittleEndian.Uint64(b) {
		t.Fatal("the checksum of the header is made otherwise now")
	}
	b[12] = n
	binary.LittleEndian.PutUint64(b, sum(b))
	return b
}

func TestOpenNewerSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.duckdb")
	s, err := openWithSteps(t.Context(), path, Options{},
		append(steps[:len(steps):len(steps)], "CREATE TABLE tomorrow (a INTEGER)"))
	if err != nil {
		t.Fatal(err)
	}
	putEntries(t, s, newFact("a"))
	// As a crash leaves it, with something in the log.
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(path + walSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{path: whole, path + walSuffix: log} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("got %v", err)
	}
	for name, data := range map[string][]byte{path: whole, path + walSuffix: log} {
		if after, err := os.ReadFile(name); err != nil || !bytes.Equal(after, data) {
			t.Errorf("%s was changed, %v", name, err)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	more := append(steps[:len(steps):len(steps)], "ALTER TABLE documents ADD COLUMN author VARCHAR; UPDATE entries "+
		"SET intent = 'migrated'")
	broken := append(more[:len(more):len(more)], "CREATE TABLE half (a INTEGER); CREATE TABLE entries (a INTEGER)")
	if _, err := openWithSteps(t.Context(), s.path, Options{}, broken); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint("to schema ", len(broken))) {
		t.Errorf("a step that fails: %v", err)
	}
	// The good step was taken, and nothing of the bad one.
	next, err := openWithSteps(t.Context(), s.path, Options{}, more)
	if err != nil {
		t.Fatal(err)
	}
	if e := getEntry(t, next, "a"); e.Intent != "migrated" {
		t.Errorf("the intent is %q", e.Intent)
	}
	if n := queryCount(t, next, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'half'"); n != 0 {
		t.Error("half a step was taken")
	}
	if v, err := next.readMark(t.Context(), markSchema); v != int64(len(more)) || err != nil {
		t.Errorf("the schema is %d, %v", v, err)
	}
	forgetEntries(t, next, "a") // so closing rewrites the file
	if err := next.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRemovesIncompleteFiles(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{newSuffix, newSuffix + "-123", newSuffix + walSuffix} {
		if err := os.WriteFile(s.path+suffix, []byte("half a file"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, s.path)
	if names := files(t, filepath.Dir(s.path)); len(names) != 1 {
		t.Errorf("left are %v", names)
	}
	getEntry(t, s, "a")
}

func TestOpenLogWithoutFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.duckdb")
	if err := os.WriteFile(path+walSuffix, []byte("log"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
	if names := files(t, filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left are %v", names)
	}
}

// TestSQLHasNoExternalAccess: SQL can reach nothing outside of the file.
func TestSQLHasNoExternalAccess(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	for name, q := range map[string]string{
		"install":           "INSTALL vss",
		"load":              "LOAD vss",
		"load a file":       "LOAD '" + filepath.Join(dir, "x.duckdb_extension") + "'",
		"read a file":       "SELECT * FROM read_text('/etc/hostname')",
		"read the network":  "SELECT * FROM read_text('http://127.0.0.1:1/x')",
		"write a file":      "COPY entries TO '" + filepath.Join(dir, "x.csv") + "'",
		"attach a file":     "ATTACH '" + filepath.Join(dir, "x.duckdb") + "' AS x",
		"export":            "EXPORT DATABASE '" + filepath.Join(dir, "x") + "'",
		"open the doors":    "SET enable_external_access = true",
		"switch back":       "SET autoload_known_extensions = true",
		"unlock":            "SET lock_configuration = false",
		"keep a secret":     "CREATE PERSISTENT SECRET x (TYPE http, BEARER_TOKEN 'y')",
		"another directory": "SET temp_directory = '" + dir + "'",
	} {
		if _, err := s.db.ExecContext(t.Context(), q); err == nil {
			t.Errorf("%s: %s went through", name, q)
		}
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("there are %v", names)
	}
	for _, set := range []string{
		"autoinstall_known_extensions", "autoload_known_extensions",
		"allow_community_extensions", "allow_unsigned_extensions", "enable_external_access",
	} {
		if n := queryCount(t, s, "SELECT count(*) FROM duckdb_settings() WHERE name = ? AND value = 'false'",
			set); n != 1 {
			t.Errorf("%s is on", set)
		}
	}
	// And it works on: what does not fit into memory goes into the folder of the file.
	putEntries(t, s, newFact("a"))
	if n := queryCount(t, s, "SELECT count(*) FROM duckdb_settings() WHERE name = 'temp_directory' AND "+
		"starts_with(value, ?)", filepath.Dir(s.path)); n != 1 {
		t.Error("what does not fit into memory goes elsewhere")
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	b := newEngram("b", "q", "g")
	b.State = subjects.MemoryCandidate
	putEntries(t, s, newFact("a"), b)
	st, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Entries != 2 || st.Kinds["fact"] != 1 || st.Kinds["engram"] != 1 || st.States["candidate"] != 1 ||
		st.Schema != len(steps) || st.Model != "m" || st.Dims != 4 ||
		st.Vectors["m"] != 2 || !strings.HasPrefix(st.DuckDB, "v") {
		t.Errorf("stats are %+v", st)
	}
}
