package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"conclave/pkg/policy"
)

// reloadInterval is how often a [Reloader] looks for a change.
const reloadInterval = 2 * time.Second

// Reloaded is what came of a change of the manifest.
type Reloaded struct {
	File     string   // the user's manifest
	Shipped  bool     // the file is gone: the manifest as shipped holds again
	Unserved []string // tools that it names and nobody serves: a misspelled name is found here
	Err      error    // why it was refused, with file and line; the rules before it stay
}

// Reloader keeps the rules of a book as the manifest of a config folder says. A manifest is taken in whole or not at all.
//
// A look takes a change in when the look before saw the same bytes: a file that somebody is still writing may be
// readable, and say less than it will.
type Reloader struct {
	dir    string
	env    policy.Env
	book   *policy.ActiveRules
	notify func(Reloaded)

	mu      sync.Mutex
	seen    string // by the last look
	handled string // what was last taken in or refused: nobody is told twice of the same bytes
}

// NewReloader returns a reloader of dir's manifest.yaml into book, whose rules were made with env. tell hears of each
// change once, from the goroutine that found it. A file that says what the book holds already is no change.
func NewReloader(dir string, env policy.Env, book *policy.ActiveRules, notify func(Reloaded)) *Reloader {
	r := &Reloader{dir: dir, env: env, book: book, notify: notify}
	data, ok, err := r.readManifest()
	if err != nil {
		return r
	}
	if m, err := r.parseManifest(data, ok); err == nil && reflect.DeepEqual(m, book.Load().Manifest) {
		r.handled = fingerprint(data, ok, nil)
	}
	return r
}

// logTo tells the user of it.
func (n Reloaded) logTo(log *slog.Logger) {
	switch {
	case n.Err != nil:
		log.Error("the manifest was changed and is wrong: the rules before it stay", "file", n.File, "err", n.Err)
	case n.Shipped:
		log.Warn("the manifest is gone: the one that comes with conclave holds again", "file", n.File)
	default:
		log.Info("the manifest was changed and holds from now on", "file", n.File)
	}
	if len(n.Unserved) > 0 {
		log.Warn("the manifest names tools that nobody serves", "tools", n.Unserved)
	}
}

// Run looks at each tick until ctx ends. Without a tick it looks each [reloadInterval].
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

// Reload takes a change in at once: the user says that the file is whole. The error is that of the file as it is now.
func (r *Reloader) Reload() error { return r.check(false) }

// check takes in what has changed. With settled it waits until two looks saw the same.
func (r *Reloader) check(settled bool) error {
	done, news := r.update(settled)
	if news && r.notify != nil {
		r.notify(done)
	}
	return done.Err
}

// update is look without telling, so that whoever is told may look too. news says that there is something to tell.
func (r *Reloader) update(settled bool) (done Reloaded, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done = Reloaded{File: filepath.Join(r.dir, "manifest.yaml")}
	data, ok, err := r.readManifest()
	key := fingerprint(data, ok, err)
	was := r.seen
	r.seen = key
	if settled && (key == r.handled || key != was) {
		return done, false
	}
	news = key != r.handled
	r.handled = key
	if err != nil {
		done.Err = fmt.Errorf("reading the manifest: %w; the rules stay as they are", err)
		return done, news
	}
	m, err := r.parseManifest(data, ok)
	if err != nil {
		done.Err = err
		return done, news
	}
	done.Shipped, done.Unserved = !ok, m.UnservedTools()
	if news {
		r.book.Replace(policy.Rules{Manifest: m, Chain: m.Chain(r.env)})
	}
	return done, news
}

// readManifest returns the user's manifest, and false when there is none. A folder that is gone is not a file that was taken
// away: it may be on a disk that is not there right now, and what it forbade must not become allowed by that.
func (r *Reloader) readManifest() ([]byte, bool, error) {
	if r.dir == "" {
		return nil, false, nil
	}
	data, ok, err := readFile(os.DirFS(r.dir), "manifest.yaml")
	if err != nil || ok {
		return data, ok, err
	}
	if _, err := os.Stat(r.dir); err != nil && !(errors.Is(err, fs.ErrNotExist) && r.isShipped()) {
		return nil, false, err
	}
	return nil, false, nil
}

// isShipped reports whether the book holds the manifest as shipped.
func (r *Reloader) isShipped() bool {
	m, err := r.parseManifest(nil, false)
	return err == nil && reflect.DeepEqual(m, r.book.Load().Manifest)
}

// parseManifest reads a manifest: the user's, or the shipped one when there is none.
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

// fingerprint tells one state of the file from another. The bytes are compared and not the time of the file: a file of a
// few kilobytes is read faster than somebody finds out why a change was missed.
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
