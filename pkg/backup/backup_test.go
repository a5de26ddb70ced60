package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/subjects"
)

// newInstallation returns an installation with one file of each kind.
func newInstallation(t *testing.T) bus.Home {
	t.Helper()
	dir := t.TempDir()
	home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	for name, text := range map[string]string{
		"data/jetstream/a": "stream", "data/memory/memory.duckdb": "memory", "data/audit/heads/x.head": "anchor",
		"data/version.json": `{"version":1}`,
		"data/keys/user.nk": "seed", "data/http.token": "token", "data/unknown": "perhaps a key",
		"data/audit/keyring/head": "sealed", "data/run.json": "{}", "data/lock": "",
		"data/.tmp-1": "incomplete", "data/invitations.json": "{}", "data/http.logins": "{}",
		"config/system.yaml": "{}\n",
	} {
		writeTestFile(t, filepath.Join(dir, name), text)
	}
	return home
}

func writeTestFile(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// listFiles returns the files below dir, sorted.
func listFiles(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, name)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestContents(t *testing.T) {
	t.Parallel()
	plain := []string{
		"config/system.yaml", "data/audit/heads/x.head", "data/jetstream/a", "data/memory/memory.duckdb",
		"data/version.json", "manifest.json",
	}
	secrets := []string{"data/audit/keyring/head", "data/http.token", "data/keys/user.nk", "data/unknown"}
	for _, withKeys := range []bool{false, true} {
		for _, name := range []string{"folder", "file.tar", "file.tar.gz"} {
			t.Run(fmt.Sprint(name, withKeys), func(t *testing.T) {
				t.Parallel()
				home := newInstallation(t)
				dest := filepath.Join(t.TempDir(), name)
				m, err := Create(t.Context(), dest, Options{Home: home, WithKeys: withKeys})
				if err != nil {
					t.Fatal(err)
				}
				want := plain
				if withKeys {
					want = slices.Sorted(slices.Values(slices.Concat(plain, secrets)))
				} else if got := strings.Join(m.Omitted, " "); got != "audit/keyring http.token keys unknown" {
					t.Errorf("left out %s", got)
				}
				if name == "folder" {
					if got := listFiles(t, dest); !slices.Equal(got, want) {
						t.Errorf("the backup holds %v", got)
					}
				}
				info, err := os.Stat(dest)
				if err != nil || info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%v, %v: others may read it", info.Mode(), err)
				}
				to := bus.Home{
					Data:   filepath.Join(t.TempDir(), "new"),
					Config: filepath.Join(t.TempDir(), "deep", "config"),
				}
				r, err := Restore(t.Context(), dest, to, nil, nil)
				if err != nil || !r.Config {
					t.Fatal(r.Config, err)
				}
				for _, f := range want {
					part, rel, _ := strings.Cut(f, "/")
					if rel == "" {
						continue
					}
					before, err1 := os.ReadFile(filepath.Join(filepath.Dir(home.Data), f))
					after,
						err2 := os.ReadFile(filepath.Join(map[string]string{"data": to.Data, "config": to.Config}[part],
						rel))
					if err1 != nil || err2 != nil || string(before) != string(after) {
						t.Errorf("%s: %q is restored as %q: %v %v", f, before, after, err1, err2)
					}
				}
				if got := len(listFiles(t, to.Data)) + len(listFiles(t, to.Config)); got != len(want)-1 {
					t.Errorf("%d files are restored, %d are in the backup", got, len(want)-1)
				}
			})
		}
	}
}

// TestOneMoment backs up two files that a writer changes together, one after the other. Without the pause the copies
// differ.
func TestOneMoment(t *testing.T) {
	t.Parallel()
	home := newInstallation(t)
	first, second := filepath.Join(home.Data, "jetstream", "first"), filepath.Join(home.Data, "memory", "second")
	var pause sync.Mutex
	write := func(n int) {
		pause.Lock()
		defer pause.Unlock()
		for _, name := range []string{first, second} {
			if err := os.WriteFile(name, fmt.Appendf(nil, "%09d", n), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	write(0)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			write(n)
		}
	})
	defer writer.Wait()
	defer stop() // also when the test fails before it stops the writer
	pauses := 0
	o := Options{Home: home, Pause: func(context.Context) (func() bool, error) {
		pause.Lock()
		pauses++
		return func() bool {
			pause.Unlock()
			return pauses > 2 // the first ones expire: their copies are worth nothing
		}, nil
	}}
	dest := filepath.Join(t.TempDir(), "backup")
	if _, err := Create(t.Context(), dest, o); err != nil {
		t.Fatal(err)
	}
	a, err1 := os.ReadFile(filepath.Join(dest, "data", "jetstream", "first"))
	b, err2 := os.ReadFile(filepath.Join(dest, "data", "memory", "second"))
	if err1 != nil || err2 != nil || string(a) != string(b) || pauses != 3 {
		t.Errorf("%s and %s are of different moments, after %d pauses: %v %v", a, b, pauses, err1, err2)
	}
	stop()
	writer.Wait()
	o.rounds = 3
	o.Pause = func(context.Context) (func() bool, error) { return func() bool { return true }, nil } // pauses nothing
	n := 0
	// after each copied file: however slow the machine is, the files change in each round
	o.Progress = func(int64, int64) {
		n++
		write(n)
	}
	if _, err := Create(t.Context(), dest+"2", o); !errors.Is(err, ErrBusy) {
		t.Errorf("files that change during the pause: %v", err)
	}
	if _, err := os.Stat(dest + "2"); err == nil {
		t.Error("a failed backup left a folder under its name")
	}
}

func TestCreateLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"folder", "file.tar.gz"} {
		home, dir := newInstallation(t), t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Create(ctx, filepath.Join(dir, name), Options{Home: home, Progress: func(int64, int64) { cancel() }})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if got := listFiles(t, dir); len(got) > 0 {
			t.Errorf("an interrupted backup left %v", got)
		}
	}
}

func TestCreateRejects(t *testing.T) {
	t.Parallel()
	home := newInstallation(t)
	if err := os.Symlink("/etc/passwd", filepath.Join(home.Data, "jetstream", "link")); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(t.TempDir(), "backup")
	if _, err := Create(t.Context(), dest, Options{Home: home}); err == nil ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a symbolic link: %v", err)
	}
	writeTestFile(t, filepath.Join(home.Data, "version.json"), `{"version":99}`)
	if _, err := Create(t.Context(), dest, Options{Home: home}); !errors.Is(err, bus.ErrNewerData) {
		t.Errorf("newer data: %v", err)
	}
}

func TestRestoreRejects(t *testing.T) {
	t.Parallel()
	good := filepath.Join(t.TempDir(), "backup")
	if _, err := Create(t.Context(), good, Options{Home: newInstallation(t)}); err != nil {
		t.Fatal(err)
	}
	editManifest := func(edit func(m *Manifest)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			var m Manifest
			b, err := os.ReadFile(filepath.Join(dir, manifestFile))
			if err := errors.Join(err, json.Unmarshal(b, &m)); err != nil {
				t.Fatal(err)
			}
			edit(&m)
			if err := file.ReplaceJSON(filepath.Join(dir, manifestFile), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   error
	}{
		"changed byte": {func(t *testing.T, dir string) {
			writeTestFile(t, filepath.Join(dir, "data", "jetstream", "a"), "Stream")
		}, ErrUnreadable},
		"longer file": {func(t *testing.T, dir string) {
			writeTestFile(t, filepath.Join(dir, "data", "jetstream", "a"), "stream ")
		}, ErrUnreadable},
		"missing file": {func(t *testing.T, dir string) {
			os.Remove(filepath.Join(dir, "data", "jetstream", "a"))
		}, ErrUnreadable},
		"no manifest":  {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, manifestFile)) }, ErrUnreadable},
		"newer data":   {editManifest(func(m *Manifest) { m.DataVersion = bus.DataVersion + 1 }), bus.ErrNewerData},
		"newer format": {editManifest(func(m *Manifest) { m.Format++ }), ErrUnreadable},
		"path outside": {editManifest(func(m *Manifest) { m.Files[0].Path = "data/../../escaped" }), ErrUnreadable},
		"path around": {func(t *testing.T, dir string) {
			writeTestFile(t, filepath.Join(dir, "data", "keys", "user.nk"), "{}\n")
			editManifest(func(m *Manifest) { m.Files[0].Path = "data/jetstream/../keys/user.nk" })(t, dir)
		}, ErrUnreadable},
		"other folder": {editManifest(func(m *Manifest) { m.Files[0].Path = "elsewhere/file" }), ErrUnreadable},
		"twice":        {editManifest(func(m *Manifest) { m.Files = append(m.Files, m.Files[0]) }), ErrUnreadable},
		"symbolic link": {func(t *testing.T, dir string) {
			file := filepath.Join(dir, "data", "jetstream", "a")
			writeTestFile(t, filepath.Join(dir, "..", "outside"), "stream")
			if err := errors.Join(os.Remove(file), os.Symlink("../../../outside", file)); err != nil {
				t.Fatal(err)
			}
		}, nil}, // rejected by the file system
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "backup")
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			c.damage(t, dir)
			parent := t.TempDir()
			to := bus.Home{Data: filepath.Join(parent, "data"), Config: filepath.Join(parent, "config")}
			_, err := Restore(t.Context(), dir, to, nil, nil)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("restored: %v", err)
			}
			if got := listFiles(t, parent); len(got) > 0 {
				t.Errorf("it left %v", got)
			}
		})
	}
	t.Run("folder in use", func(t *testing.T) {
		t.Parallel()
		to := newInstallation(t)
		if _, err := Restore(t.Context(), good, to, nil, nil); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("restored: %v", err)
		}
	})
}

// TestRestorePlantsNothing: files that conclave backup does not write into a backup of its kind are not restored,
// though the manifest lists them: keys in one without keys, and files of a running process, among them invitations, in
// any.
func TestRestorePlantsNothing(t *testing.T) {
	t.Parallel()
	planted := []string{"keys/user.nk", "http.token", "unknown", "audit/keyring/head", "Keys/user.nk"}
	always := []string{"invitations.json", "run.json", "nats.conf", ".hidden"}
	for _, withKeys := range []bool{false, true} {
		for _, name := range []string{"folder", "file.tar"} {
			t.Run(fmt.Sprint(name, withKeys), func(t *testing.T) {
				t.Parallel()
				home := newInstallation(t)
				for _, secret := range []string{"keys", "http.token", "unknown", "audit/keyring"} {
					if err := os.RemoveAll(filepath.Join(home.Data, secret)); err != nil {
						t.Fatal(err)
					}
				}
				dir := filepath.Join(t.TempDir(), "backup")
				m, err := Create(t.Context(), dir, Options{Home: home, WithKeys: withKeys})
				if err != nil {
					t.Fatal(err)
				}
				want := len(m.Files)
				paths := []string{}
				for _, f := range m.Files {
					paths = append(paths, f.Path)
				}
				for _, rel := range slices.Concat(planted, always) {
					writeTestFile(t, filepath.Join(dir, "data", rel), "planted")
					paths = append(paths, "data/"+rel)
				}
				m.Files, err = hashFiles(t.Context(), dir, paths)
				if err := errors.Join(err, file.ReplaceJSON(filepath.Join(dir, manifestFile), m)); err != nil {
					t.Fatal(err)
				}
				from := dir
				if name != "folder" {
					from = filepath.Join(t.TempDir(), name)
					if err := writeArchive(t.Context(), from, dir, m); err != nil {
						t.Fatal(err)
					}
				}
				to := bus.Home{Data: filepath.Join(t.TempDir(), "new"), Config: filepath.Join(t.TempDir(), "config")}
				r, err := Restore(t.Context(), from, to, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				rejected := always
				if withKeys { // its keys are the ones to use
					want += len(planted)
				} else {
					rejected = slices.Concat(planted, always)
				}
				if got := len(r.Manifest.Files); got != want || len(r.Rejected) != len(rejected) {
					t.Errorf("%d files are restored, want %d; rejected %q", got, want, r.Rejected)
				}
				for _, rel := range rejected {
					if _, err := os.Lstat(filepath.Join(to.Data, rel)); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s is restored: %v", rel, err)
					}
				}
			})
		}
	}
}

// TestRestoredPrincipalsAreWithheld: a restored system admits no principal of the backup.
func TestRestoredPrincipalsAreWithheld(t *testing.T) {
	t.Parallel()
	home := bus.Home{Data: t.TempDir()}
	if names, err := WithholdPrincipals(home); err != nil || names != nil {
		t.Errorf("without a list: %v, %v", names, err)
	}
	weather := subjects.Principal{
		Name: "weather", Kind: subjects.ToolPrincipal, Tools: []string{"forecast"},
		Keys: map[string]string{"weather": "U" + strings.Repeat("A", 55)},
	}
	if err := home.WritePrincipals([]subjects.Principal{weather}); err != nil {
		t.Fatal(err)
	}
	names, err := WithholdPrincipals(home)
	if err != nil || !slices.Equal(names, []string{"weather"}) {
		t.Errorf("%v, %v", names, err)
	}
	if list, err := home.ReadPrincipals(); err != nil || list != nil {
		t.Errorf("%v, %v", list, err)
	}
	if got := listFiles(t, home.Data); !slices.Equal(got, []string{"principals.restored.json"}) {
		t.Errorf("files: %q", got)
	}
	writeTestFile(t, filepath.Join(home.Data, "principals.json"), "damaged")
	if names, err := WithholdPrincipals(home); err != nil || len(names) != 1 {
		t.Errorf("an unreadable list: %v, %v", names, err)
	}
}

// TestCopiedFolderIsPrivate: a folder that is copied because it cannot be renamed is readable by its owner alone.
func TestCopiedFolderIsPrivate(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	writeTestFile(t, filepath.Join(from, "in", "system.yaml"), "{}")
	if err := errors.Join(os.Chmod(filepath.Join(from, "in"), 0o755), os.Chmod(filepath.Join(from, "in", "system.yaml"),
		0o644), os.Mkdir(to, 0o755), copyFolder(from, to)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "in": 0o700, "in/system.yaml": 0o600} {
		if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info.Mode(), err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(to, "in", "system.yaml")); err != nil || string(data) != "{}" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	if copyFolder(from, filepath.Join(t.TempDir(), "x")) == nil {
		t.Error("a symbolic link was copied")
	}
}
