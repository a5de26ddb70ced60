package acceptance

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/datatest"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// headSettings are the settings of a system that keeps the head of its audit log in a file and not in the keyring.
func headSettings(t *testing.T, file string) config.Config {
	t.Helper()
	return settings(t, "system.audit_head.file", file, "system.audit_head.keyring", "false").WithWiring(
		config.Wiring{KeepHeads: true})
}

// verifyWithHeads verifies the log of a stopped system with the heads of the configured stores and the given ones.
func verifyWithHeads(t *testing.T, c config.Config, home bus.Home, given ...audit.KeptHead) audit.Report {
	t.Helper()
	stores, err := c.HeadStores(home)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := auditlog.LoadHeads(t.Context(), stores)
	if err != nil {
		t.Fatal(err)
	}
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		t.Fatal(err)
	}
	files, err := bus.OpenAuditLog(home)
	if err != nil {
		t.Fatal(err)
	}
	src, err := bus.ReadFiles(files).ReadAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rep, err := auditlog.VerifySource(t.Context(), home, src, heads, append(kept, given...))
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// runCalls runs the system for n calls and stops it.
func runCalls(t *testing.T, c config.Config, home bus.Home, n int) {
	t.Helper()
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	r := up(t, c, home, config.Actors...)
	calls(t, r.Bus, n)
	down(t, r)
}

func checkProblem(t *testing.T, rep audit.Report, text string) {
	t.Helper()
	if rep.OK || !slices.ContainsFunc(rep.Problems, func(p audit.Problem) bool {
		return strings.Contains(p.Text, text)
	}) {
		t.Errorf("ok %t, problems %v; want one with %q", rep.OK, rep.Problems, text)
	}
}

// makePrivate gives all files of a folder the modes of a data folder.
func makePrivate(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Chmod(path, 0o700)
		case d.Type().IsRegular():
			return os.Chmod(path, 0o600)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRollbackOfTheDataFolderIsFound puts an older copy of the whole data folder back, and then deletes audit log and
// anchors together. Both verify by themselves; the head in a file outside the folder tells. Starting does not replace
// that head, and a rotation accepts the loss.
func TestRollbackOfTheDataFolderIsFound(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "heads.txt")
	c := headSettings(t, outside)
	home := newHome(t)
	runCalls(t, c, home, 2)
	older := filepath.Join(datatest.Dir(t), "older")
	copyTree(t, home.Data, older)
	runCalls(t, c, home, 2)
	newest := verifyWithHeads(t, c, home)
	if !newest.OK || newest.Head.Seq == 0 {
		t.Fatalf("%+v", newest)
	}

	copyTree(t, older, home.Data)
	makePrivate(t, home.Data) // a copy of a tree does not keep the modes
	without := c
	without.System.AuditHead.File = ""
	if rep := verifyWithHeads(t, without, home); !rep.OK {
		t.Fatalf("the older copy does not verify by itself, so this test shows nothing: %v", rep.Problems)
	}
	checkProblem(t, verifyWithHeads(t, c, home), "the log was rolled back")
	checkProblem(t, verifyWithHeads(t, without, home, audit.KeptHead{LogHead: newest.Head, Where: "--head"}),
		"the head that --head holds is that of broker/")
	before, err := os.ReadFile(outside)
	if err != nil {
		t.Fatal(err)
	}
	runCalls(t, c, home, 5) // longer than the log was: the sequence alone would not tell
	checkProblem(t, verifyWithHeads(t, c, home), "does not match")
	if after, err := os.ReadFile(outside); err != nil || !bytes.Equal(after, before) {
		t.Errorf("a rolled back system wrote over the kept heads: %s, %v", after, err)
	}

	for _, dir := range []string{
		filepath.Join(home.Data, "audit"),
		filepath.Join(home.AuditStreams(), subjects.Audit),
	} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	runCalls(t, c, home, 1)
	checkProblem(t, verifyWithHeads(t, c, home), "neither the current one nor a sealed one")

	if _, err := auditlog.Rotate(t.Context(), home, c.ServerConfig(home), nil); err != nil {
		t.Fatal(err)
	}
	stores, err := c.HeadStores(home)
	if err != nil {
		t.Fatal(err)
	}
	if replaced, err := auditlog.AcceptHeads(t.Context(), home, c.ServerConfig(home), stores); err != nil ||
		len(replaced) != 2 {
		t.Errorf("replaced %v, %v", replaced, err)
	}
	runCalls(t, c, home, 1)
	if rep := verifyWithHeads(t, c, home); !rep.OK {
		t.Errorf("after the loss was accepted: %v", rep.Problems)
	}
}

// TestRollbackOfOneWritersStreamIsFound puts an older copy of one writer's stream and anchors back, and then deletes
// both. The rest of the log is the newest, and the writer's chains agree with its anchors, so only a head that covers
// every stream tells.
func TestRollbackOfOneWritersStreamIsFound(t *testing.T) {
	t.Parallel()
	c := headSettings(t, filepath.Join(t.TempDir(), "heads.txt"))
	home := newHome(t)
	const writer = "memory"
	stream := filepath.Join(home.AuditStreams(), subjects.AuditStream(writer))
	search := func() {
		t.Helper()
		r := up(t, c, home, config.Actors...)
		operator := dialOperator(t, r.Bus)
		call := func() subjects.ToolResult {
			return operator.callTool(t.Context(), "search_memory", actor.NewID(), `{"query":"tea"}`)
		}
		res := call()
		for deadline := time.Now().Add(testTimeout); res.Error != nil && res.Error.Code == subjects.CodeUnknownTool &&
			time.Now().Before(deadline); {
			res = call() // the announcement of the tool is still on its way to the broker
		}
		if res.Error != nil {
			t.Fatal(res.Error)
		}
		down(t, r)
	}
	search()
	older := filepath.Join(datatest.Dir(t), "older")
	copyTree(t, stream, filepath.Join(older, "stream"))
	copyTree(t, home.Heads(), filepath.Join(older, "heads"))
	search()
	if rep := verifyWithHeads(t, c, home); !rep.OK || rep.Head.Others[writer] < 2 {
		t.Fatalf("head %s, problems %v", rep.Head, rep.Problems)
	}
	// replaceAnchors replaces the anchors of the writer by those in from; "" has none.
	replaceAnchors := func(from string) {
		t.Helper()
		for _, dir := range []string{home.Heads(), from} {
			files, err := filepath.Glob(filepath.Join(dir, writer+".*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if dir == home.Heads() {
					err = os.Remove(f)
				} else if data, rerr := os.ReadFile(f); rerr == nil {
					writeFile(t, filepath.Join(home.Heads(), filepath.Base(f)), data)
				} else {
					err = rerr
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	without := c
	without.System.AuditHead.File = ""
	copyTree(t, filepath.Join(older, "stream"), stream)
	replaceAnchors(filepath.Join(older, "heads"))
	makePrivate(t, home.Data)
	if rep := verifyWithHeads(t, without, home); !rep.OK {
		t.Fatalf("the older stream does not verify by itself, so this test shows nothing: %v", rep.Problems)
	}
	checkProblem(t, verifyWithHeads(t, c, home), "the log was rolled back")

	if err := os.RemoveAll(stream); err != nil {
		t.Fatal(err)
	}
	replaceAnchors("")
	if rep := verifyWithHeads(t, without, home); !rep.OK {
		t.Fatalf("the log without the stream does not verify by itself, so this test shows nothing: %v", rep.Problems)
	}
	checkProblem(t, verifyWithHeads(t, c, home), "the log was rolled back")
}

// TestDeletedAuditLogIsFoundByTheEventLog: audit log and anchors are deleted together, and nothing is kept outside the
// data folder.
func TestDeletedAuditLogIsFoundByTheEventLog(t *testing.T) {
	t.Parallel()
	c := headSettings(t, "")
	home := newHome(t)
	runCalls(t, c, home, 1)
	for _, dir := range []string{
		filepath.Join(home.Data, "audit"),
		filepath.Join(home.AuditStreams(), subjects.Audit),
	} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	r := up(t, c, home, config.Actors...)
	user := bustest.Dial(t, r.Bus, "user")
	kept, err := auditlog.LoadHeads(t.Context(), []auditlog.HeadStore{auditlog.NewHeadEvents(user, nil)})
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept heads %v, %v", kept, err)
	}
	down(t, r)
	checkProblem(t, verifyWithHeads(t, c, home, kept...), "the head that the event log holds belongs to the log")
}

// TestHeadOfSealedLogIsFound: a head from before a rotation is in the sealed log, and a rotation replaces no kept head
// then.
func TestHeadOfSealedLogIsFound(t *testing.T) {
	t.Parallel()
	c := headSettings(t, filepath.Join(t.TempDir(), "heads.txt"))
	home := newHome(t)
	runCalls(t, c, home, 1)
	old := verifyWithHeads(t, c, home).Head
	if _, err := auditlog.Rotate(t.Context(), home, c.ServerConfig(home), nil); err != nil {
		t.Fatal(err)
	}
	stores, err := c.HeadStores(home)
	if err != nil {
		t.Fatal(err)
	}
	if replaced, err := auditlog.AcceptHeads(t.Context(), home, c.ServerConfig(home), stores); err != nil ||
		len(replaced) != 0 {
		t.Errorf("replaced %v, %v", replaced, err)
	}
	if rep := verifyWithHeads(t, c, home, audit.KeptHead{LogHead: old, Where: "--head"}); !rep.OK ||
		rep.Head.Log == old.Log {
		t.Errorf("%+v", rep)
	}
	old.Hash = strings.Repeat("0", 64)
	checkProblem(t, verifyWithHeads(t, c, home, audit.KeptHead{LogHead: old, Where: "--head"}), "does not match")
}

// TestHeadFileInsideTheDataFolderIsRejected: it would be rolled back with the log.
func TestHeadFileInsideTheDataFolderIsRejected(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	c := headSettings(t, filepath.Join(home.Data, "heads.txt"))
	if _, err := c.Start(t.Context(), home, nil); err == nil ||
		!strings.Contains(err.Error(), "outside the data folder") {
		t.Errorf("started: %v", err)
	}
}

// memoryRing is a keyring in memory.
type memoryRing map[string]string

func (r memoryRing) Get(_ context.Context, name string) (keyring.Secret, error) {
	if v, ok := r[name]; ok {
		return seal.NewSecret([]byte(v)), nil
	}
	return keyring.Secret{}, keyring.ErrNotFound
}

func (r memoryRing) Set(_ context.Context, name string, v keyring.Secret) error {
	r[name] = string(v.Reveal())
	return nil
}

func (r memoryRing) Remove(_ context.Context, name string) error {
	delete(r, name)
	return nil
}

func (r memoryRing) Names(context.Context) ([]string, error) { return nil, nil }

// TestHeadIsKeptInTheKeyring: one entry for each data folder, replaced by the newest head.
func TestHeadIsKeptInTheKeyring(t *testing.T) {
	t.Parallel()
	ring := memoryRing{}
	store := auditlog.NewHeadKeyring(func(context.Context) (keyring.Ring, error) { return ring, nil }, "/data/a")
	none := auditlog.NewHeadKeyring(func(context.Context) (keyring.Ring, error) { return nil, nil }, "/data/a")
	for seq := range uint64(3) {
		h := audit.LogHead{
			Log: "0123456789abcdef", Seq: seq + 1,
			Others: map[string]uint64{"memory": 2, "model": seq + 7}, Hash: strings.Repeat("ab", 32),
		}
		for _, s := range []auditlog.HeadStore{store, none} {
			if err := s.Save(t.Context(), h, false); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := store.Load(t.Context()); err != nil ||
			!slices.EqualFunc(got, []audit.LogHead{h}, audit.LogHead.Equal) || len(ring) != 1 {
			t.Errorf("%v, %v, %v", got, ring, err)
		}
	}
	if got, err := none.Load(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("without a keyring: %v, %v", got, err)
	}
	other := auditlog.NewHeadKeyring(func(context.Context) (keyring.Ring, error) { return ring, nil }, "/data/b")
	if got, err := other.Load(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("another data folder: %v, %v", got, err)
	}
}
