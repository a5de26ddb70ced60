package audit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"conclave/pkg/file"
	"conclave/subjects"
)

// A head file anchors the head of one chain, as a line of text in each of two slots. The slots are written alternately,
// so a torn write leaves the older head readable. The writer of the chain holds a lock on the file. An empty file means
// that no message of the chain was sent; sequence 0 means that none was acknowledged.
const (
	headSuffix = ".head"
	headMagic  = "conclave-head/1"
	slotSize   = 512
)

var (
	errHeadLocked = errors.New("head file locked by a running writer")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// anchor is a chain's head file, open and locked.
type anchor struct {
	file   *os.File
	path   string
	head   subjects.AuditHead // as stored in the file
	marked bool               // the file is not empty
	slot   int64              // the slot to write next
	buf    []byte
}

// ReadHeads returns the anchored heads in dir, those of running writers included. It fails when dir does not exist, or
// a head file has a malformed name or no valid head, rather than leaving out an anchor. An empty head file, of a chain
// that never sent a message, has no head.
func ReadHeads(dir string) ([]subjects.AuditHead, error) {
	names, err := listHeadFiles(dir, "")
	if err != nil {
		return nil, fmt.Errorf("read audit heads: %w", err)
	}
	var heads []subjects.AuditHead
	for _, name := range names {
		var (
			head  subjects.AuditHead
			found bool
		)
		// The read is retried: a writer may be writing one slot while the other is stale.
		for range 5 {
			if head, found, err = readHeadFile(filepath.Join(dir, name)); err == nil {
				break
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since: a newer chain links it
		case err != nil:
			return nil, fmt.Errorf("read audit heads: %w", err)
		case found:
			heads = append(heads, head)
		}
	}
	return heads, nil
}

// WriteHead anchors head in dir, which is created if missing, and replaces an earlier anchor of its chain; the anchor
// is durable when it returns. It rejects an invalid head, and denies a folder that other users may write. It is for the
// genesis, which has no [Writer], and must not be used for the chain of one.
func WriteHead(dir string, head subjects.AuditHead) error {
	line, err := appendSlot(nil, head)
	if err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	if err := makeHeadsDir(dir); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	if err := file.Replace(filepath.Join(dir, headFileName(head.Account, head.Chain)), line); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	return nil
}

// createAnchor creates the empty head file of a new chain and locks it. It fails when the chain has a head file
// already. account and chain must be valid tokens, and the caller must hold the lock of dir.
func createAnchor(dir, account, chain string) (*anchor, error) {
	path := filepath.Join(dir, headFileName(account, chain))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close(), os.Remove(path))
	}
	return &anchor{file: f, path: path, head: subjects.AuditHead{Account: account, Chain: chain}}, nil
}

// openAnchor opens and locks the head file of an earlier chain. It returns errHeadLocked while the writer of the chain
// runs, and rejects a symbolic link and a file without a valid head. An empty file is no error: the anchor is then not
// marked.
func openAnchor(path string) (*anchor, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	a := &anchor{file: f, path: path}
	if err = lockFile(f); err == nil {
		a.head, a.marked, err = parseSlots(f, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

// markUsed makes the file durable and not empty, once. It must be called before the first message of the chain is sent,
// because from then on the chain may exist in the stream; after an error no message may be sent.
func (a *anchor) markUsed() error {
	if a.marked {
		return nil
	}
	if err := a.writeHead(a.head); err != nil {
		return err
	}
	a.marked = false // until the sync succeeds
	if err := errors.Join(a.file.Sync(), file.Sync(filepath.Dir(a.path))); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	a.marked = true
	return nil
}

// writeHead moves the anchor to head, in the slot that does not hold the current one, without syncing: a crash of the
// process loses nothing, and after a crash of the machine the file holds an older head, which is still a record of the
// chain. It rejects an invalid head.
func (a *anchor) writeHead(head subjects.AuditHead) error {
	var err error
	if a.buf, err = appendSlot(a.buf[:0], head); err != nil {
		return err
	}
	if _, err := a.file.WriteAt(a.buf, a.slot*slotSize); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	a.head, a.marked = head, true
	a.slot = 1 - a.slot
	return nil
}

// removeFile deletes the file and releases its lock. Errors are ignored: a remaining file holds a valid head, and the
// next chain links it again.
func (a *anchor) removeFile() {
	_ = os.Remove(a.path)
	_ = a.file.Close()
}

func headFileName(account, chain string) string { return account + "." + chain + headSuffix }

// listHeadFiles returns the names of the head files in dir, sorted, of one account or with account "" of all. Files
// without the suffix of a head file are skipped; one with the suffix and a malformed name is an error.
func listHeadFiles(dir, account string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, headSuffix) {
			continue
		}
		owner, _, err := parseHeadFileName(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		if account == "" || owner == account {
			names = append(names, name)
		}
	}
	return names, nil
}

// parseHeadFileName parses <account>.<chain>.head.
func parseHeadFileName(name string) (account, chain string, err error) {
	account, chain, ok := strings.Cut(strings.TrimSuffix(name, headSuffix), ".")
	if !ok || !isToken(account) || !isToken(chain) {
		return "", "", errors.New("file name is not <account>.<chain>.head")
	}
	return account, chain, nil
}

// readHeadFile reads a head file without locking it; found is false for an empty one. It does not follow symbolic
// links.
func readHeadFile(path string) (head subjects.AuditHead, found bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return subjects.AuditHead{}, false, err
	}
	defer f.Close()
	return parseSlots(f, path)
}

// parseSlots returns the head with the higher sequence of the two slots, and false for an empty file. It rejects a file
// without a valid slot of the account and chain that path names; one damaged slot is ignored.
func parseSlots(f io.ReaderAt, path string) (subjects.AuditHead, bool, error) {
	account, chain, err := parseHeadFileName(filepath.Base(path))
	head := subjects.AuditHead{Account: account, Chain: chain}
	if err != nil {
		return head, false, fmt.Errorf("%s: %w", path, err)
	}
	b := make([]byte, 2*slotSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return head, false, fmt.Errorf("%s: %w", path, err)
	}
	if n == 0 {
		return head, false, nil
	}
	found := false
	for slot := b[:n]; len(slot) >= slotSize; slot = slot[slotSize:] {
		h, ok := parseSlot(slot[:slotSize])
		if ok && h.Account == account && h.Chain == chain && (!found || h.Seq > head.Seq) {
			head, found = h, true
		}
	}
	if !found {
		return head, false, fmt.Errorf("%s holds no valid head of its chain", path)
	}
	return head, true, nil
}

// appendSlot appends the slot of head to b: the line with its checksum, padded with spaces to slotSize, and a newline.
// It rejects a head whose account or chain is no token, or whose hash is malformed.
func appendSlot(b []byte, head subjects.AuditHead) ([]byte, error) {
	if !isToken(head.Account) || !isToken(head.Chain) || !hasValidHash(head) {
		return nil, fmt.Errorf("invalid head: %s, chain %s, record %d", head.Account, head.Chain, head.Seq)
	}
	from := len(b)
	b = append(append(append(b, headMagic...), ' '), head.Account...)
	b = append(append(b, ' '), head.Chain...)
	b = strconv.AppendUint(append(b, ' '), head.Seq, 10)
	b = append(b, ' ')
	if head.Seq == 0 {
		b = append(b, '-')
	} else {
		b = append(b, head.Hash...)
	}
	b = strconv.AppendUint(append(b, ' '), uint64(crc32.Checksum(b[from:], castagnoli)), 10)
	for len(b)-from < slotSize-1 {
		b = append(b, ' ')
	}
	return append(b, '\n'), nil
}

// parseSlot is the inverse of appendSlot. It reports false, and the head must not be used, for every slot that
// appendSlot would not have written.
func parseSlot(slot []byte) (subjects.AuditHead, bool) {
	fields := strings.Fields(string(slot))
	if len(fields) != 6 {
		return subjects.AuditHead{}, false
	}
	seq, err := strconv.ParseUint(fields[3], 10, 64)
	if err != nil {
		return subjects.AuditHead{}, false
	}
	head := subjects.AuditHead{Account: fields[1], Chain: fields[2], Seq: seq}
	if seq > 0 {
		head.Hash = fields[4]
	}
	same, err := appendSlot(nil, head)
	return head, err == nil && bytes.Equal(same, slot)
}

// hasValidHash reports whether the hash of head is well-formed: empty at sequence 0, otherwise a SHA-256 in lower-case
// hex.
func hasValidHash(head subjects.AuditHead) bool {
	if head.Seq == 0 {
		return head.Hash == ""
	}
	_, err := hex.DecodeString(head.Hash)
	return err == nil && len(head.Hash) == 64 && head.Hash == strings.ToLower(head.Hash)
}

// makeHeadsDir creates the heads folder with mode 0700 unless it exists. It denies a folder that its group or other
// users may write: they could truncate a chain and its anchor together.
func makeHeadsDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is writable by other users: chmod 700 %s", dir, dir)
	}
	return nil
}

// lockFile takes the exclusive lock of f without waiting, and returns errHeadLocked when another process holds it.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errHeadLocked
		default:
			return err
		}
	}
}
