package audit

import (
	"bytes"
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

	"conclave/subjects"
)

// A head file holds where one chain ended, as a line of text in each of two slots. The slots are written in turn, so a
// torn write leaves the older head readable. Its writer holds a lock on it while it lives. An empty file belongs to a
// chain of which nothing was sent; sequence 0 to one of which nothing was acknowledged.
const (
	headSuffix = ".head"
	headMagic  = "conclave-head/1"
	slotSize   = 512
)

var (
	errHeadLocked = errors.New("a live writer holds the lock")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// anchor is a chain's head file, open and locked.
type anchor struct {
	file   *os.File
	path   string
	head   subjects.AuditHead // what the file says
	marked bool               // the file is no longer empty
	slot   int64              // the one to write next
	buf    []byte
}

// ReadHeads returns the head that each file in dir holds, live chains included. A file that cannot be read is an error.
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
		// The writer may be busy with one slot while the other is read: look again before giving up.
		for range 5 {
			if head, found, err = readHeadFile(filepath.Join(dir, name)); err == nil {
				break
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // linked by a newer chain in the meantime
		case err != nil:
			return nil, fmt.Errorf("read audit heads: %w", err)
		case found:
			heads = append(heads, head)
		}
	}
	return heads, nil
}

// WriteHead anchors a head that no writer keeps: the genesis. It replaces what was there.
func WriteHead(dir string, head subjects.AuditHead) error {
	line, err := appendSlot(nil, head)
	if err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	if err := makeHeadsDir(dir); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".head-*")
	if err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(line)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, headFileName(head.Account, head.Chain)))
	}
	if err = errors.Join(err, syncDir(dir)); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	return nil
}

// createAnchor makes the empty head file of a new chain and locks it. The folder must be locked.
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

// openAnchor locks the head file of an earlier chain. It returns errLive when its writer is still there.
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

// markUsed makes the file known before the chain's first message leaves: from here on the chain may exist in the stream.
func (a *anchor) markUsed() error {
	if a.marked {
		return nil
	}
	if err := a.writeHead(a.head); err != nil {
		return err
	}
	a.marked = false // until it is durable
	if err := errors.Join(a.file.Sync(), syncDir(filepath.Dir(a.path))); err != nil {
		return fmt.Errorf("write audit head: %w", err)
	}
	a.marked = true
	return nil
}

// writeHead moves the anchor to head. It does not wait for the disk: a crash of the process loses nothing, and after a
// crash of the machine an older head is still true.
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

// removeFile deletes the file and lets go of it. A file that stays behind is no harm: what it says is still true, and the
// next chain links it once more.
func (a *anchor) removeFile() {
	_ = os.Remove(a.path)
	_ = a.file.Close()
}

func headFileName(account, chain string) string { return account + "." + chain + headSuffix }

// listHeadFiles lists the head files in dir, of one account or of all, in order of name.
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

func parseHeadFileName(name string) (account, chain string, err error) {
	account, chain, ok := strings.Cut(strings.TrimSuffix(name, headSuffix), ".")
	if !ok || !isToken(account) || !isToken(chain) {
		return "", "", errors.New("the name is not <account>.<chain>.head")
	}
	return account, chain, nil
}

func readHeadFile(path string) (subjects.AuditHead, bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return subjects.AuditHead{}, false, err
	}
	defer f.Close()
	return parseSlots(f, path)
}

// parseSlots returns the newer of the two slots. It reports false for an empty file.
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
		return head, false, fmt.Errorf("%s holds no readable head of its chain", path)
	}
	return head, true, nil
}

// appendSlot appends the slot for head to b: the line, spaces up to the size of a slot, a line end.
func appendSlot(b []byte, head subjects.AuditHead) ([]byte, error) {
	if !isToken(head.Account) || !isToken(head.Chain) || !hasValidHash(head) {
		return nil, fmt.Errorf("%s, chain %s, record %d is no head", head.Account, head.Chain, head.Seq)
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

// parseSlot is the inverse of formatHead; anything formatHead would not write is not a head.
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

// hasValidHash reports whether the hash of head has the right form for its sequence.
func hasValidHash(head subjects.AuditHead) bool {
	if head.Seq == 0 {
		return head.Hash == ""
	}
	if len(head.Hash) != 64 {
		return false
	}
	for i := range len(head.Hash) {
		if c := head.Hash[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// makeHeadsDir makes the heads folder. One that others may write to is refused: they could cut a chain and its anchor alike.
func makeHeadsDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written by others: chmod 700 %s", dir, dir)
	}
	return nil
}

// lockHeadsDir keeps other writers from looking at the folder while this one looks for old heads and makes its own.
func lockHeadsDir(dir string) (unlock func() error, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return d.Close, nil
}

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

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
