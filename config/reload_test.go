package config_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/policy"
	"conclave/subjects"
)

const mine = "types:\n  assistant:\n    tools: [get_datetime]\naccounts:\n  generator: assistant\n"

// reload is a config folder whose manifest is watched. The test says when to look.
type reload struct {
	t    *testing.T
	dir  string
	last string // the copy of the manifest
	book *policy.ActiveRules
	*config.Reloader

	mu   sync.Mutex
	told []config.Reloaded
}

// newReload watches a folder that holds text as its manifest, none when it is "".
func newReload(t *testing.T, text string) *reload {
	t.Helper()
	r := &reload{t: t, dir: t.TempDir(), last: filepath.Join(t.TempDir(), "manifest.last.yaml")}
	if text != "" {
		r.write(text)
	}
	c, err := config.Load(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	env := policy.Env{Home: t.TempDir()}
	r.book = policy.NewActiveRules(policy.Rules{Manifest: c.Manifest, Chain: c.Manifest.Chain(env)})
	r.Reloader = config.NewReloader(r.dir, r.last, env, r.book, func(d config.Reloaded) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, d)
	})
	return r
}

func (r *reload) file() string { return filepath.Join(r.dir, "manifest.yaml") }

func (r *reload) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file(), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// look lets the reloader look n times, and waits until it has.
func (r *reload) look(n int) {
	ctx, cancel := context.WithCancel(r.t.Context())
	over := make(chan struct{})
	tick := make(chan time.Time)
	go func() {
		defer close(over)
		r.Run(ctx, tick)
	}()
	for range n {
		tick <- time.Time{} // taken when the look before is over
	}
	cancel()
	<-over
}

// since is what was told since the last look.
func (r *reload) since() []config.Reloaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

// may reports whether the whole chain lets the assistant use a tool.
func (r *reload) may(tool string) bool {
	return r.book.Load().Chain.Decide(r.t.Context(), policy.Call{
		Caller: subjects.Caller{Account: "generator"}, Type: "assistant", Schema: []byte(`{"type":"object"}`),
		Args: []byte(`{}`),
		Tool: policy.Tool{Name: tool, Known: true, Effects: policy.Declare()},
	}).Allowed()
}

func TestReload(t *testing.T) {
	r := newReload(t, mine)
	r.look(3)
	if got := r.since(); got != nil {
		t.Fatalf("nothing changed, and yet %+v", got)
	}
	r.write(strings.Replace(mine, "get_datetime", "search_memory", 1))
	r.look(1)
	if !r.may("get_datetime") {
		t.Error("taken in at first sight: it may be half a file")
	}
	r.look(3)
	if got := r.since(); len(got) != 1 || got[0].Err != nil || got[0].File != r.file() {
		t.Errorf("told %+v, want one change", got)
	}
	if r.may("get_datetime") || !r.may("search_memory") {
		t.Error("the new manifest does not hold, or the old one still does")
	}

	r.write("types:\n  assistant:\n    tools: ['*']\n")
	r.look(4)
	got := r.since()
	if len(got) != 1 || got[0].Err == nil ||
		!strings.Contains(got[0].Err.Error(), r.file()+":3: types.assistant.tools[0]") {
		t.Errorf("told %+v, want the error once, with file and line", got)
	}
	if !r.may("search_memory") {
		t.Error("a bad file took the rules away")
	}

	r.write(mine)
	r.look(3)
	if got := r.since(); len(got) != 1 || got[0].Err != nil || !r.may("get_datetime") || r.may("search_memory") {
		t.Errorf("told %+v, want that a valid file is in force again", got)
	}
}

// TestReloadTricks: each is a change that must not be taken in, or not be missed. All are looked at three times.
func TestReloadTricks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *reload)
		holds  bool   // the manifest from before
		told   string // "" = nothing
	}{
		{"trick: emptied by a writer that has not written yet", func(_ *testing.T, r *reload) {
			r.write("")
		}, true, "no agent types"},
		{"trick: the beginning of a file", func(_ *testing.T, r *reload) {
			r.write(mine[:30])
		}, true, "manifest.yaml:"},
		{"trick: too large to be one", func(_ *testing.T, r *reload) {
			r.write(strings.Repeat("#", 2<<20))
		}, true, "larger than"},
		{"trick: a folder of that name", func(t *testing.T, r *reload) {
			if err := errors.Join(os.Remove(r.file()), os.Mkdir(r.file(), 0o700)); err != nil {
				t.Fatal(err)
			}
		}, true, "the previous rules stay"},
		{"trick: deleted", func(t *testing.T, r *reload) {
			if err := os.Remove(r.file()); err != nil {
				t.Fatal(err)
			}
		}, true, "it was deleted; restore it, or write another one; the previous rules stay"},
		{"trick: a symbolic link without a target", func(t *testing.T, r *reload) {
			if err := errors.Join(os.Remove(r.file()), os.Symlink(filepath.Join(r.dir, "nowhere"),
				r.file())); err != nil {
				t.Fatal(err)
			}
		}, true, "is a symbolic link to a file that does not exist; the previous rules stay"},
		{"trick: a FIFO", func(t *testing.T, r *reload) {
			if err := errors.Join(os.Remove(r.file()), syscall.Mkfifo(r.file(), 0o600)); err != nil {
				t.Fatal(err)
			}
		}, true, "is not a regular file; the previous rules stay"},
		{"trick: a device", func(t *testing.T, r *reload) {
			if err := errors.Join(os.Remove(r.file()), os.Symlink("/dev/zero", r.file())); err != nil {
				t.Fatal(err)
			}
		}, true, "is not a regular file; the previous rules stay"},
		{"trick: the whole folder is gone", func(t *testing.T, r *reload) {
			if err := os.Rename(r.dir, r.dir+".away"); err != nil {
				t.Fatal(err)
			}
		}, true, "the previous rules stay"},
		{"trick: as long as before, at the same time as before", func(t *testing.T, r *reload) {
			info, err := os.Stat(r.file())
			if err != nil {
				t.Fatal(err)
			}
			r.write(strings.Replace(mine, "get_datetime", "fs_read, ab ", 1))
			if err := os.Chtimes(r.file(), info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, false, "unserved [ab]"},
		{"written again and the same", func(_ *testing.T, r *reload) { r.write(mine) }, true, ""},
		{"another file beside it", func(t *testing.T, r *reload) {
			if err := os.WriteFile(filepath.Join(r.dir, "manifest.yaml~"), []byte("types: {}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReload(t, mine)
			tt.change(t, r)
			r.look(3)
			if r.may("get_datetime") != tt.holds {
				t.Errorf("the old manifest holds: %v", !tt.holds)
			}
			var told []string
			for _, d := range r.since() {
				if d.Err != nil {
					told = append(told, d.Err.Error())
				} else {
					told = append(told, "unserved ["+strings.Join(d.Unserved, " ")+"]")
				}
			}
			if tt.told == "" && told != nil || tt.told != "" &&
				(len(told) != 1 || !strings.Contains(told[0], tt.told)) {
				t.Errorf("told %q, want %q once", told, tt.told)
			}
		})
	}
}

// TestReloadAtOnce: the user's word that the file is whole is enough, and a bad file is told each time it is asked for.
func TestReloadAtOnce(t *testing.T) {
	r := newReload(t, "")
	if err := r.Reload(); err != nil || r.since() != nil {
		t.Errorf("nothing there: %v", err)
	}
	r.write(mine)
	if err := r.Reload(); err != nil || !r.may("get_datetime") || r.may("search_memory") {
		t.Errorf("%v, %+v", err, r.book.Load().Manifest)
	}
	r.write("typos: {}\n")
	for range 2 {
		if err := r.Reload(); err == nil || !strings.Contains(err.Error(), "manifest.yaml:1: typos: unknown field") {
			t.Errorf("%v", err)
		}
	}
	if got := r.since(); len(got) != 2 { // the good one and the bad one
		t.Errorf("told %+v", got)
	}
	if !r.may("get_datetime") {
		t.Error("a bad file took the rules away")
	}
}

// TestReloadWithoutAFolder: most people have none, and then nothing is wrong. One that appears counts.
func TestReloadWithoutAFolder(t *testing.T) {
	r := newReload(t, "")
	if err := os.Remove(r.dir); err != nil {
		t.Fatal(err)
	}
	r.look(3)
	if got := r.since(); got != nil {
		t.Errorf("told %+v", got)
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r.write(mine)
	r.look(2)
	if got := r.since(); len(got) != 1 || got[0].Err != nil || r.may("search_memory") {
		t.Errorf("told %+v", got)
	}
}

// TestReloadAfterManifestIsRemoved: the rules stay until the copy is removed too, as doctor says; then the shipped ones
// are in force.
func TestReloadAfterManifestIsRemoved(t *testing.T) {
	r := newReload(t, mine)
	if err := os.WriteFile(r.last, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	r.look(1)
	if err := os.Remove(r.file()); err != nil {
		t.Fatal(err)
	}
	r.look(3)
	if got := r.since(); len(got) != 1 || got[0].Err == nil || r.may("web_search") {
		t.Errorf("told %+v after the manifest was removed", got)
	}
	data := filepath.Dir(r.last)
	if err := os.Rename(data, data+".unmounted"); err != nil {
		t.Fatal(err)
	}
	r.look(3)
	if got := r.since(); len(got) != 0 || r.may("web_search") {
		t.Errorf("told %+v after the data folder was unmounted", got)
	}
	if err := os.Rename(data+".unmounted", data); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.last); err != nil {
		t.Fatal(err)
	}
	r.look(3)
	if got := r.since(); len(got) != 1 || got[0].Err != nil || !r.may("web_search") {
		t.Errorf("told %+v after the copy was removed too", got)
	}
}

// TestReloadWhatChangedBeforeItBegan: between reading the configuration and watching it a user may save.
func TestReloadWhatChangedBeforeItBegan(t *testing.T) {
	r := newReload(t, mine)
	r.write(strings.Replace(mine, "get_datetime", "search_memory", 1))
	r.Reloader = config.NewReloader(r.dir, "", policy.Env{}, r.book, nil)
	r.look(2)
	if r.may("get_datetime") || !r.may("search_memory") {
		t.Error("the change from before was missed")
	}
}

// TestShippedSections: what stands in the shipped manifest is what holds for a file that leaves it out. The budgets are
// those of its own types.
func TestShippedSections(t *testing.T) {
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	bare, err := policy.ParseManifest([]byte(mine), "mine")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Manifest
	if len(got.Limits.Budgets) != 4 || len(bare.Limits.Budgets) != 0 {
		t.Errorf("budgets %v as shipped, %v without a word", got.Limits.Budgets, bare.Limits.Budgets)
	}
	got.Limits.Budgets, bare.Limits.Budgets = nil, nil
	for _, s := range []struct {
		name      string
		got, want any
	}{
		{"high_risk", got.HighRisk, bare.HighRisk},
		{"always_ask", got.AlwaysAsk, bare.AlwaysAsk},
		{"egress", got.Egress, bare.Egress},
		{"limits", got.Limits, bare.Limits},
		{"approvals", got.Approvals, bare.Approvals},
		{"reversible", got.Reversible(), bare.Reversible()},
		{"monitor_only", got.Monitored, bare.Monitored},
	} {
		if !reflect.DeepEqual(s.got, s.want) {
			t.Errorf("%s: %+v as shipped, %+v without a word", s.name, s.got, s.want)
		}
	}
	if want := []string{"calendar_add", "fs_write", "notes_add", "run_code", "run_shell"}; !slices.Equal(got.HighRisk,
		want) {
		t.Errorf("high risk %v, want %v", got.HighRisk, want)
	}
}
