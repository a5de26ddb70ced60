package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/programtest"
	"conclave/subjects"
)

// cutDisk is an ext4 file system in a file. Only what was synced, or what the kernel has written by itself, is in the
// file: a copy of it is the disk after a power failure.
type cutDisk struct {
	t     *testing.T
	image string
	mount string
}

// mountDisk makes a file system and mounts it. The test is skipped where it cannot.
func mountDisk(t *testing.T, mount string) *cutDisk {
	t.Helper()
	programtest.Require(t, "apt-get install e2fsprogs", "mkfs.ext4")
	dir := t.TempDir()
	if d, err := os.MkdirTemp("/dev/shm", "conclave-cut-"); err == nil {
		dir = d
		t.Cleanup(func() { _ = os.RemoveAll(d) })
	}
	d := &cutDisk{t, filepath.Join(dir, "0.img"), mount}
	if err := os.MkdirAll(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, 512<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0",
		d.image).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := d.attach(); err != nil {
		programtest.SkipIf(t, fmt.Errorf("a file system in a file cannot be mounted (%w): run as root where there are "+
			"loop devices", err))
	}
	t.Cleanup(func() { _ = exec.Command("umount", mount).Run() })
	return d
}

// attach mounts the image. The kernel writes as late as it can.
func (d *cutDisk) attach() error {
	out, err := exec.Command("mount", "-o", "loop,noauto_da_alloc,commit=300", d.image, d.mount).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// cutPower replaces the mounted file system by what is on the disk now. Its processes must have been killed.
func (d *cutDisk) cutPower(n int) {
	d.t.Helper()
	next := filepath.Join(filepath.Dir(d.image), fmt.Sprint(n, ".img"))
	for _, v := range [][]string{{"cp", "--sparse=always", d.image, next}, {"umount", d.mount}, {"rm", d.image}} {
		if out, err := exec.Command(v[0], v[1:]...).CombinedOutput(); err != nil {
			d.t.Fatalf("%v: %v: %s", v, err, out)
		}
	}
	d.image = next
	if err := d.attach(); err != nil {
		d.t.Fatal(err)
	}
}

// acknowledgements are what clients were told is done.
type acknowledgements struct {
	mu        sync.Mutex
	questions map[string]bool   // texts
	memories  map[string]bool   // texts
	calls     map[string]string // files by the id of the call that wrote it
}

func (a *acknowledgements) add(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// load asks, remembers and writes files until the system is gone, and notes what was acknowledged.
func (a *acknowledgements) load(ctx context.Context, p *installation, b *bus.Bus, round int) (stopped func()) {
	p.t.Helper()
	user, err := client.New(p.as(b, "user"))
	if err != nil {
		p.t.Fatal(err)
	}
	operator, err := actor.NewOut(p.as(b, "operator"))
	if err != nil {
		p.t.Fatal(err)
	}
	write, err := subjects.ToolRequestService.With("fs_write")
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	var running sync.WaitGroup
	repeat := func(act func(name string) error) {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := act(fmt.Sprintf("%d-%d", round, n)); err != nil {
					return
				}
			}
		})
	}
	repeat(func(name string) error {
		text := "What time is it in Tokyo, question " + name + "?"
		q, err := user.Ask(ctx, client.Question{Session: "s" + name, Text: text})
		if err == nil {
			a.add(func() { a.questions[text] = true })
			q.Close()
		}
		return err
	})
	repeat(func(name string) error {
		text := "My locker number " + name + " is at the station."
		_, _, err := user.AddMemory(ctx, subjects.MemoryEntry{Corpus: text}, false)
		if err == nil {
			a.add(func() { a.memories[text] = true })
		}
		return err
	})
	repeat(func(name string) error {
		path := filepath.Join(filepath.Dir(p.data), "effects", name+".txt")
		args, _ := json.Marshal(map[string]string{"path": path, "content": name})
		id := operator.NewID()
		res, err := actor.Ask(ctx, operator.WithIDs("effects", id), write, subjects.ToolRequest{CallID: id, Args: args})
		if err == nil && res.Error != nil {
			err = res.Error
		}
		if err == nil {
			a.add(func() { a.calls[id] = path })
		}
		return err
	})
	return func() { cancel(); running.Wait() }
}

// missing lists what was acknowledged and is not on the disk of a stopped system.
func (a *acknowledgements) missing(t *testing.T, data string) (out []string) {
	t.Helper()
	var questions strings.Builder
	recorded := map[string]bool{}
	dirs, err := filepath.Glob(filepath.Join(data, "jetstream", "jetstream", "*", "streams", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		isAudit := filepath.Base(dir) == subjects.Audit
		if !isAudit && filepath.Base(dir) != "QUERIES" {
			continue
		}
		f, err := bus.OpenAuditFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		src, err := f.ReadAfter(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for m, err := range src.Messages {
			if err != nil {
				t.Fatal(err)
			}
			if !isAudit {
				questions.Write(m.Data)
				continue
			}
			if m.Subject == audit.GenesisSubject {
				continue
			}
			batch, err := audit.DecodeBatch(m.Data)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range batch {
				recorded[d.Record.Query+" "+d.Record.Phase] = true
			}
		}
	}
	for text := range a.questions {
		if !strings.Contains(questions.String(), text) {
			out = append(out, "question "+text)
		}
	}
	for id, path := range a.calls {
		if b, err := os.ReadFile(path); err != nil || string(b)+".txt" != filepath.Base(path) {
			out = append(out, fmt.Sprintf("effect %s: %q, %v", path, b, err))
		}
		if !recorded[id+" before"] || !recorded[id+" after"] {
			out = append(out, "a record of call "+id)
		}
	}
	return out
}

// TestChaosPowerCut cuts the power of a busy system at random moments: nothing that was acknowledged is lost.
// CONCLAVE_CUTS sets how often, CONCLAVE_SEED where it begins.
func TestChaosPowerCut(t *testing.T) {
	if os.Getenv("CONCLAVE_CHAOS") == "" {
		t.Skip("takes minutes: set CONCLAVE_CHAOS=1")
	}
	cuts, seed := 10, int64(29)
	if n, err := strconv.Atoi(os.Getenv("CONCLAVE_CUTS")); err == nil {
		cuts = n
	}
	if n, err := strconv.ParseInt(os.Getenv("CONCLAVE_SEED"), 10, 64); err == nil {
		seed = n
	}
	rng := rand.New(rand.NewSource(seed))
	p := newInstallation(t)
	disk := mountDisk(t, filepath.Join(p.dir, "disk"))
	p.data = filepath.Join(disk.mount, "conclave")
	p.env = append(p.env, "XDG_DATA_HOME="+disk.mount)
	effects := filepath.Join(disk.mount, "effects")
	if err := os.Mkdir(effects, 0o700); err != nil {
		t.Fatal(err)
	}
	acked := &acknowledgements{
		questions: map[string]bool{}, memories: map[string]bool{}, calls: map[string]string{},
	}
	reports := 0
	for n := range cuts + 1 {
		up := p.begin("conclave", "up")
		var r readiness
		line, err := up.stdout.wait(`"pid"`)
		if err == nil {
			err = json.Unmarshal([]byte(line), &r)
		}
		if err != nil {
			t.Fatalf("seed %d, cut %d: the start: %v: %s", seed, n, err, up.stderr)
		}
		b := &bus.Bus{URL: r.URL, Keys: bus.Keys{Dir: filepath.Join(p.data, "keys")}}
		user, err := client.New(p.as(b, "user"))
		if err != nil {
			t.Fatal(err)
		}
		memories := readMemories(t, user)
		for text := range acked.memories {
			if !memories[text] {
				t.Errorf("seed %d, cut %d: lost memory %s", seed, n, text)
			}
		}
		for line := range strings.Lines(up.stderr.String()) {
			if strings.Contains(line, "damage: ") {
				t.Log(line)
				reports++
			}
		}
		if n == cuts || t.Failed() {
			p.run(0, "conclave", "audit", "verify")
			break
		}
		stopped := acked.load(t.Context(), p, b, n)
		time.Sleep(time.Duration(200+rng.Intn(800)) * time.Millisecond) // the moment of the cut
		unsynced := filepath.Join(effects, fmt.Sprint("unsynced-", n))
		if err := os.WriteFile(unsynced, []byte("never on the disk"), 0o600); err != nil {
			t.Fatal(err)
		}
		up.kill()
		stopped()
		disk.cutPower(n + 1)
		if _, err := os.Stat(unsynced); err == nil {
			if b, err := os.ReadFile(unsynced); err != nil || len(b) > 0 {
				t.Errorf("cut %d: an unsynced write survived: the test shows nothing", n)
			}
		} else if !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, what := range acked.missing(t, p.data) {
			t.Errorf("seed %d, cut %d: lost %s", seed, n, what)
		}
	}
	if cuts > 0 && (len(acked.questions) == 0 || len(acked.memories) == 0 || len(acked.calls) == 0) {
		t.Error("something was never acknowledged")
	}
	t.Logf("seed %d: %d power cuts, %d questions, %d memories, %d effects with their records, %d reports of damage",
		seed, cuts, len(acked.questions), len(acked.memories), len(acked.calls), reports)
}
