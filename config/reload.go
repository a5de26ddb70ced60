package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/pkg/policy"
)

// reloadInterval is the time between two checks of a [Reloader].
const reloadInterval = 2 * time.Second

// Reloaded is the result of a change of the manifest.
type Reloaded struct {
	File     string   // the user's manifest
	Unserved []string // tools that it names and no actor serves, perhaps misspelled
	Err      error    // why it was rejected, with file and line; the previous rules stay
}

// Reloader updates a rule book from the manifest of a config folder. A manifest is applied completely or not at all.
//
// A change is applied when two consecutive checks see the same bytes: a file that is still being written may be valid
// and incomplete.
type Reloader struct {
	dir    string
	last   string // the copy of the user's manifest, see lastManifest; "" = none
	env    policy.Env
	book   *policy.ActiveRules
	notify func(Reloaded)

	mu      sync.Mutex
	copied  bool   // last existed at an earlier check
	seen    string // fingerprint at the last check
	handled string // fingerprint last applied or rejected; it is reported once
}

// NewReloader returns a reloader of dir's manifest.yaml into book, whose rules were made with env; dir "" has none.
// last is the copy of the user's manifest: a user who removes both chooses the shipped one. notify, when not nil, is
// called once for each change, applied or rejected, by the goroutine that found it. A file that says what the book
// holds already is no change.
func NewReloader(dir, last string, env policy.Env, book *policy.ActiveRules, notify func(Reloaded)) *Reloader {
	r := &Reloader{dir: dir, last: last, env: env, book: book, notify: notify}
	data, ok, err := r.readManifest()
	if err != nil {
		return r
	}
	if m, err := r.parseManifest(data, ok); err == nil && reflect.DeepEqual(m, book.LoadBase().Manifest) {
		r.handled = fingerprint(data, ok, nil)
	}
	return r
}

// Run checks at each tick until ctx ends, and applies a change at the second tick in a row that sees it: the file may
// still be written at the first. With a nil tick it checks every [reloadInterval]. tick must not be closed.
func (r *Reloader) Run(ctx context.Context, tick <-chan time.Time) {
	if tick == nil {
		t := time.NewTicker(reloadInterval)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			r.check(true)
		}
	}
}

// check applies a change and calls notify, which must not check. An unreadable or invalid file is an error and keeps
// the rules. With settled, a file that was handled already, or that the previous check did not see, is not judged: no
// error then.
func (r *Reloader) check(settled bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, ok, err := r.readManifest()
	key := fingerprint(data, ok, err)
	was := r.seen
	r.seen = key
	if settled && (key == r.handled || key != was) {
		return nil
	}
	isNew := key != r.handled
	r.handled = key
	done := Reloaded{File: filepath.Join(r.dir, "manifest.yaml")}
	var m policy.Manifest
	if err != nil {
		done.Err = fmt.Errorf("reading the manifest: %w; the previous rules stay", err)
	} else if m, done.Err = r.parseManifest(data, ok); done.Err == nil {
		done.Unserved = m.UnservedTools()
	}
	if isNew && done.Err == nil {
		r.book.Replace(policy.Rules{Manifest: m, Chain: m.Chain(r.env)})
	}
	if isNew && r.notify != nil {
		r.notify(done)
	}
	return done.Err
}

// readManifest returns the user's manifest, and false when there is none and the shipped one is in force. That the
// user's manifest, or its folder, is gone is an error: its disk may be unmounted, or a tool may have deleted it, and
// neither may allow what the manifest denies. It is none when the copy was there and is removed too, from a data folder
// that is still there.
func (r *Reloader) readManifest() ([]byte, bool, error) {
	if r.dir == "" {
		return nil, false, nil
	}
	_, lastErr := os.Lstat(r.last)
	r.copied = r.copied || lastErr == nil
	_, folderErr := os.Stat(filepath.Dir(r.last))
	isRemoved := r.copied && errors.Is(lastErr, fs.ErrNotExist) && folderErr == nil
	data, ok, err := readFile(r.dir, "manifest.yaml")
	if err == nil && !ok && !isRemoved && !r.isShipped() {
		err = errors.New("it was deleted; restore it, or write another one")
	}
	return data, ok, err
}

// isShipped reports whether the book has the shipped manifest.
func (r *Reloader) isShipped() bool {
	m, err := r.parseManifest(nil, false)
	return err == nil && reflect.DeepEqual(m, r.book.LoadBase().Manifest)
}

// parseManifest parses the user's manifest, or the shipped one when ok is false.
func (r *Reloader) parseManifest(data []byte, ok bool) (policy.Manifest, error) {
	if ok {
		return policy.ParseManifest(data, filepath.Join(r.dir, "manifest.yaml"))
	}
	data, err := shipped.ReadFile("manifest.yaml")
	if err != nil {
		return policy.Manifest{}, err
	}
	return policy.ParseManifest(data, "manifest.yaml")
}

// fingerprint identifies a state of the file by its bytes: its modification time would miss changes.
func fingerprint(data []byte, ok bool, err error) string {
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !ok:
		return "none"
	}
	sum := sha256.Sum256(data)
	return "file: " + string(sum[:])
}

// lastManifest is the copy of the user's manifest that was in force last. It tells a manifest that is gone from one
// that the user never had.
func lastManifest(home bus.Home) string { return filepath.Join(home.Data, "manifest.last.yaml") }

// MissingManifest reports that the user's manifest was in force before and is gone; nil otherwise. Starting with the
// shipped manifest then could allow what the user's own denies.
func MissingManifest(home bus.Home) error {
	last, file := lastManifest(home), filepath.Join(home.Config, "manifest.yaml")
	if _, err := os.Lstat(last); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("your manifest %s is gone: to restore it: cp %s %s ; to use the shipped rules: rm %s", file, last,
		file, last)
}

// keepManifest copies the user's manifest, so that a later start notices when it is gone, and fails when it is gone
// now. A manifest from outside the user's folder is not copied.
func (c Config) keepManifest(home bus.Home) error {
	if c.manifest != "" && c.manifest != filepath.Join(home.Config, "manifest.yaml") {
		return nil
	}
	if err := MissingManifest(home); err != nil {
		return err
	}
	return copyManifest(home)
}

// copyManifest replaces the copy of the user's manifest, if there is a manifest. The data folder must exist.
func copyManifest(home bus.Home) error {
	data, ok, err := readFile(home.Config, "manifest.yaml")
	if err == nil && ok {
		err = file.Replace(lastManifest(home), data)
	}
	if err != nil {
		return fmt.Errorf("copying the manifest: %w", err)
	}
	return nil
}
