package auditlog

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

// HeadStore keeps heads of the audit log outside the data folder, so that a data folder that was restored from an older
// copy, or whose audit log and anchors were deleted together, does not verify.
type HeadStore interface {
	// Where names the store for the user.
	Where() string
	// Load returns the kept heads, none when nothing was kept yet.
	Load(ctx context.Context) ([]audit.LogHead, error)
	// Save keeps head beside the earlier ones or in their place; with accept Load returns no earlier one any more.
	Save(ctx context.Context, head audit.LogHead, accept bool) error
}

// LoadHeads returns the heads of all stores. The errors of stores that cannot be read are joined; the heads of the
// others are returned.
func LoadHeads(ctx context.Context, stores []HeadStore) (kept []audit.KeptHead, err error) {
	for _, s := range stores {
		heads, lerr := s.Load(ctx)
		if lerr != nil {
			err = errors.Join(err, fmt.Errorf("reading the head of the audit log from %s: %w", s.Where(), lerr))
		}
		for _, h := range heads {
			kept = append(kept, audit.KeptHead{LogHead: h, Where: s.Where()})
		}
	}
	return kept, err
}

// checkForeign looks for kept heads of other logs in the sealed predecessors, newest first, and returns a problem for
// each that does not match or that belongs to none of them.
func checkForeign(ctx context.Context, home bus.Home, foreign []audit.KeptHead, predecessors []audit.Sealed) (
	problems []audit.Problem, err error,
) {
	for _, s := range predecessors {
		if len(foreign) == 0 || s.Problem != "" {
			break
		}
		file, err := sealedPath(home, s.File)
		if err != nil {
			return problems, err
		}
		check := audit.NewHeadChecker(foreign)
		if err := readExport(file, func(src audit.Source) error {
			for m, err := range src.Messages {
				if err = errors.Join(err, ctx.Err()); err != nil {
					return err
				}
				check.Add(m)
			}
			return nil
		}); err != nil {
			return problems, err
		}
		var found []audit.Problem
		_, found, foreign = check.Finish()
		problems = append(problems, found...)
	}
	for _, k := range foreign {
		problems = append(problems, audit.Problem{Kept: k.Where, Text: fmt.Sprintf("the head that %s holds belongs to "+
			"the log %s, which is neither the current one nor a sealed one: the log was rolled back or replaced",
			k.Where, k.Log)})
	}
	return problems, nil
}

// headFile keeps heads in a file that the user chose: a line for each, with its time. Lines are only appended. A line
// with headReset before the head means that the lines before it no longer count.
type headFile struct{ path string }

const headReset = "accepted"

// NewHeadFile returns the store in a file, which should be on another disk or machine than the data folder.
func NewHeadFile(path string) HeadStore { return &headFile{path} }

// Where implements [HeadStore].
func (f *headFile) Where() string { return f.path }

// maxKeptHeads bounds the heads of a file that are compared, the last ones.
const maxKeptHeads = 1000

// Load implements [HeadStore]. It rejects a file with a line that is no head, unless the file was reset after it: a
// damaged file must not pass for an empty one. A last line without a line break, which a crash can leave, is ignored.
func (f *headFile) Load(context.Context) (heads []audit.LogHead, err error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := bufio.NewReader(file)
	var bad error
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case err != nil:
			return heads, bad
		}
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rest, reset := strings.CutPrefix(text, headReset+" "); reset {
			text, heads, bad = rest, nil, nil
		}
		h, err := audit.ParseLogHead(text)
		if err != nil {
			bad = errors.Join(bad, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		if heads = append(heads, h); len(heads) > maxKeptHeads {
			heads = heads[1:]
		}
	}
}

// Save implements [HeadStore]: it appends a line with the time and the head, which is on disk when it returns.
func (f *headFile) Save(_ context.Context, head audit.LogHead, accept bool) error {
	text := head.String()
	if accept {
		text = headReset + " " + text
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s %s\n", time.Now().UTC().Format(time.RFC3339), text)
	return errors.Join(err, file.Sync(), file.Close())
}

// headKeyring keeps the last head in the system keyring, under a name of its own for each data folder. It must not be
// used concurrently.
type headKeyring struct {
	open func(ctx context.Context) (keyring.Ring, error)
	ring keyring.Ring
	name string
}

// NewHeadKeyring returns the store in the keyring that open returns, for the log in data. open is called at the first
// use; a nil keyring means that this system has none: the store is then always empty.
func NewHeadKeyring(open func(ctx context.Context) (keyring.Ring, error), data string) HeadStore {
	sum := sha256.Sum256([]byte(filepath.Clean(data)))
	return &headKeyring{open: open, name: "audit_head_" + hex.EncodeToString(sum[:8])}
}

// OpenSystemKeyring opens the system keyring for heads, nil when there is none. The encrypted files are none: they are
// in the data folder. With [keyring.Auto] it is one that the desktop unlocks at login. Heads are apart from the user's
// credentials.
func OpenSystemKeyring(ctx context.Context, backend string, home bus.Home) (keyring.Ring, error) {
	backends := []string{backend}
	switch backend {
	case keyring.Auto:
		backends = []string{keyring.SecretService, keyring.KWallet}
	case keyring.File:
		return nil, nil
	}
	for _, b := range backends {
		ring, _, err := keyring.Open(ctx, keyring.Config{
			Backend: b, Dir: filepath.Join(home.Data, "audit", "keyring"), Key: filepath.Join(home.Data, "keys",
				"keyring.key"), Service: "conclave-audit",
		})
		if err == nil {
			return ring, nil
		}
		if backend != keyring.Auto {
			return nil, err
		}
	}
	return nil, nil
}

// openRing opens the keyring once.
func (k *headKeyring) openRing(ctx context.Context) (err error) {
	if k.ring == nil {
		k.ring, err = k.open(ctx)
	}
	return err
}

// Where implements [HeadStore].
func (k *headKeyring) Where() string { return "the keyring" }

// Load implements [HeadStore].
func (k *headKeyring) Load(ctx context.Context) ([]audit.LogHead, error) {
	if err := k.openRing(ctx); err != nil || k.ring == nil {
		return nil, err
	}
	value, err := k.ring.Get(ctx, k.name)
	if errors.Is(err, keyring.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer value.Wipe()
	h, err := audit.ParseLogHead(string(value.Reveal()))
	if err != nil {
		return nil, err
	}
	return []audit.LogHead{h}, nil
}

// Save implements [HeadStore].
func (k *headKeyring) Save(ctx context.Context, head audit.LogHead, _ bool) error {
	if err := k.openRing(ctx); err != nil || k.ring == nil {
		return err
	}
	return k.ring.Set(ctx, k.name, seal.NewSecret([]byte(head.String())))
}

// headEvents keeps heads in the event log, which is in the data folder but not in the audit log: it shows that the
// audit log was rolled back or deleted alone.
type headEvents struct{ reader, writer *nats.Conn }

// NewHeadEvents returns the store in the event log, read with the user's connection and written with the auditor's,
// which may be nil for a store that is only read. Both stay the caller's to close.
func NewHeadEvents(reader, writer *nats.Conn) HeadStore { return &headEvents{reader, writer} }

// Where implements [HeadStore].
func (e *headEvents) Where() string { return "the event log" }

// Load implements [HeadStore]. It returns the last head.
func (e *headEvents) Load(ctx context.Context) ([]audit.LogHead, error) {
	c, err := client.New(e.reader)
	if err != nil {
		return nil, err
	}
	for event, err := range c.EventsBack(ctx, "from.auditor.auditlog.head") {
		if err != nil {
			return nil, err
		}
		var body subjects.AuditLogHead
		if !event.Decode(&body) {
			return nil, fmt.Errorf("event %d is not a head", event.Seq)
		}
		h, err := audit.ParseLogHead(body.Head)
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", event.Seq, err)
		}
		return []audit.LogHead{h}, nil
	}
	return nil, nil
}

// Save implements [HeadStore].
func (e *headEvents) Save(ctx context.Context, head audit.LogHead, _ bool) error {
	out, err := actor.NewOut(e.writer)
	if err != nil {
		return err
	}
	return actor.Emit(ctx, out, subjects.AuditLogHeadEvent, subjects.AuditLogHead{Head: head.String()})
}

// AcceptHeads replaces the heads of every store, and of the event log, that the log of a stopped system does not match,
// and returns the names of these stores: after a rotation the loss is accepted, and recorded in the report of the
// rotation. It fails when another process uses the data folder.
func AcceptHeads(ctx context.Context, home bus.Home, server bus.ServerConfig, stores []HeadStore) (replaced []string,
	err error,
) {
	unlock, err := home.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = WithServer(home, server, nil, func(_ *bus.Server, b *bus.Bus) error {
		user, err := b.Dial("user")
		if err != nil {
			return err
		}
		defer user.Close()
		auditor, err := b.Dial("auditor")
		if err != nil {
			return err
		}
		defer auditor.Close()
		replaced, err = acceptHeads(ctx, home, append(slices.Clone(stores), NewHeadEvents(user, auditor)))
		return err
	})
	return replaced, err
}

// acceptHeads is [AcceptHeads] for open stores.
func acceptHeads(ctx context.Context, home bus.Home, stores []HeadStore) (replaced []string, err error) {
	files, err := bus.OpenAuditLog(home)
	if err != nil {
		return nil, err
	}
	k := HeadKeeper{Home: home, Stores: stores}
	if err := k.compareHeads(ctx, bus.ReadFiles(files)); err != nil {
		return nil, err
	}
	for _, s := range stores {
		if slices.Contains(k.Stores, s) {
			continue
		}
		if err := s.Save(ctx, k.hasher.Head(), true); err != nil {
			return replaced, fmt.Errorf("keeping the head of the audit log in %s: %w", s.Where(), err)
		}
		replaced = append(replaced, s.Where())
	}
	return replaced, nil
}

// HeadKeeper saves the head of the audit log of a running system to its stores: at the start, every interval and at the
// end. A store whose heads the log does not match is not written to, so that a rolled back log does not replace the
// evidence; a rotation accepts the loss. The head of an interval is saved one interval later: until then a power
// failure could lose messages of it.
type HeadKeeper struct {
	Stores   []HeadStore
	Home     bus.Home
	Interval time.Duration
	Log      *slog.Logger // may be nil

	hasher audit.HeadHasher
	saved  audit.LogHead
}

// storeTimeout bounds one access to a store: a keyring may wait for the user to unlock it.
const storeTimeout = 10 * time.Second

// Run compares the kept heads with files, the log as it was when the server started, and then saves the head of the
// messages that r reads, until ctx ends and once after that. files is empty when the log is new. It returns at once
// without stores.
func (k *HeadKeeper) Run(ctx context.Context, files, r bus.AuditReaders) {
	if len(k.Stores) == 0 {
		return
	}
	if err := k.compareHeads(ctx, files); err != nil {
		if ctx.Err() == nil {
			k.warn("comparing the kept heads of the audit log failed", err)
		}
		return
	}
	ripe := k.hasher.Head() // on disk before the server started
	tick := time.NewTicker(k.Interval)
	defer tick.Stop()
	for {
		k.save(ctx, ripe)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
			defer cancel()
			if k.extend(last, r) {
				k.save(last, k.hasher.Head())
			}
			return
		case <-tick.C:
		}
		ripe = k.hasher.Head()
		k.extend(ctx, r)
	}
}

// compareHeads reads all of the log in files, none = a new log, into k.hasher and compares it with the heads of each
// store. One that does not match, or cannot be read, is dropped from k.Stores and logged, which is no error. An error
// means that the log or its sealed predecessors cannot be read: nothing is decided then, and k must not be used.
func (k *HeadKeeper) compareHeads(ctx context.Context, files bus.AuditReaders) error {
	src, err := files.ReadAll(ctx)
	if err != nil {
		return err
	}
	var usable []HeadStore
	var kept []audit.KeptHead
	for _, s := range k.Stores {
		limited, cancel := context.WithTimeout(ctx, storeTimeout)
		heads, err := LoadHeads(limited, []HeadStore{s})
		cancel()
		if err != nil {
			k.warn("the head of the audit log is not kept", err)
			continue
		}
		usable, kept = append(usable, s), append(kept, heads...)
	}
	check := audit.NewHeadChecker(kept)
	if err := eachMessage(src, check.Add); err != nil {
		return err
	}
	_, problems, foreign := check.Finish()
	if len(foreign) > 0 {
		more, err := k.checkSealed(ctx, files, foreign)
		if err != nil {
			return err
		}
		problems = append(problems, more...)
	}
	k.hasher = check.Hasher()
	k.Stores = slices.DeleteFunc(usable, func(s HeadStore) bool {
		return slices.ContainsFunc(problems, func(p audit.Problem) bool { return p.Kept == s.Where() })
	})
	for _, p := range problems {
		k.warn("the audit log is not the one that was kept: see conclave audit verify", errors.New(p.Text))
	}
	return nil
}

// checkSealed compares heads of other logs with the sealed predecessors of the log in files.
func (k *HeadKeeper) checkSealed(ctx context.Context, files bus.AuditReaders,
	foreign []audit.KeptHead,
) ([]audit.Problem, error) {
	var predecessors []audit.Sealed
	if len(files) > 0 {
		heads, err := audit.ReadHeads(k.Home.Heads())
		if err != nil {
			return nil, err
		}
		if first, err := bus.ReadFirstAuditMessage(ctx, files); err == nil {
			if g, err := audit.ReadGenesis(first, heads); err == nil {
				if predecessors, err = ListPredecessors(ctx, k.Home, g); err != nil {
					return nil, err
				}
			}
		}
	}
	return checkForeign(ctx, k.Home, foreign, predecessors)
}

// extend adds the messages that were stored since, and reports whether all were read.
func (k *HeadKeeper) extend(ctx context.Context, r bus.AuditReaders) bool {
	for _, stream := range r {
		src, err := stream.ReadAfter(ctx, k.hasher.Seq(stream.Owner()))
		if err == nil {
			err = eachMessage(src, k.hasher.Add)
		}
		if err != nil {
			if ctx.Err() == nil {
				k.warn("reading the head of the audit log failed", err)
			}
			return false
		}
	}
	return true
}

// eachMessage calls f with every message of src, until one cannot be read.
func eachMessage(src audit.Source, f func(audit.Stored)) error {
	for m, err := range src.Messages {
		if err != nil {
			return err
		}
		f(m)
	}
	return nil
}

// save writes head to every store, each within storeTimeout, unless every store has it or the broker's stream has no
// messages. A failure is logged, unless ctx has ended, does not stop the others, and is tried again with the next head
// or at the end.
func (k *HeadKeeper) save(ctx context.Context, head audit.LogHead) {
	if head.Equal(k.saved) || head.Seq == 0 {
		return
	}
	everywhere := true
	for _, s := range k.Stores {
		limited, cancel := context.WithTimeout(ctx, storeTimeout)
		err := s.Save(limited, head, false)
		cancel()
		everywhere = everywhere && err == nil
		if err != nil && ctx.Err() == nil {
			k.warn("the head of the audit log was not kept", fmt.Errorf("%s: %w", s.Where(), err))
		}
	}
	if everywhere {
		k.saved = head
	}
}

func (k *HeadKeeper) warn(msg string, err error) {
	if k.Log != nil {
		k.Log.Warn(msg, "err", err)
	}
}
