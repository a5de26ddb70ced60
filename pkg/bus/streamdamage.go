package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"conclave/pkg/damage"
	"conclave/pkg/file"
	"conclave/subjects"
)

// FindDamagedStreams compares the files of the streams with the counts of the last run, which [Server.KeepCounts]
// wrote, and reads every message. Damaged files of streams outside the audit log are moved to a folder of damaged
// files, and their readable messages left in place, see [AuditFiles.SetDamageAside]. The server must be stopped: it
// drops the rest of a damaged block when it starts, or does not start the stream, or serves older values of a bucket.
func FindDamagedStreams(home Home) (found []damage.Report, err error) {
	now := time.Now()
	add := func(kept, stream, format string, v ...any) {
		found = append(found, damage.Report{
			Found: now, Kept: kept, Text: describeStream(stream) + ": " + fmt.Sprintf(format, v...),
		})
	}
	before, err := home.readCounts()
	if err != nil {
		found = append(found, damage.Report{Found: now, Text: "the counts of the streams (" + home.countsPath() +
			") cannot be read: whether messages are missing is not known"})
	}
	dirs, err := filepath.Glob(home.streamFolder("*", "*"))
	if err != nil {
		return found, err
	}
	folder := damage.Folder(home.Data, now)
	for _, dir := range dirs {
		f, err := OpenAuditFiles(dir)
		if err != nil {
			return found, err
		}
		account := filepath.Base(filepath.Dir(filepath.Dir(dir)))
		count, known := before[account+"/"+f.stream]
		delete(before, account+"/"+f.stream)
		missing := f.missingBlocks(count.Blocks)
		if known && len(f.blocks) == 0 { // an empty stream has one too
			missing = []string{"all"}
		}
		if len(missing) > 0 {
			add("", f.stream, "files of messages are missing or empty: %s", strings.Join(missing, ", "))
		}
		if count.Messages > 0 && f.last < count.Last {
			add("", f.stream, "messages %d to %d, the last ones, are missing", f.last+1, count.Last)
		}
		if len(f.damage) == 0 || account == subjects.Audit { // see auditlog.OpenFiles
			continue
		}
		kept := filepath.Join(folder, f.stream)
		if err := f.SetDamageAside(kept); err != nil {
			return found, err
		}
		bytes := int64(0)
		for _, d := range f.damage {
			bytes += d.Bytes
		}
		switch first := f.damage[0]; {
		case first.Tail && first.Zeros: // nothing acknowledged is lost, unless it was reported above
		case first.Tail:
			add(kept, f.stream, "its last %d bytes, after message %d, are no whole message, as a power failure leaves "+
				"one that was not acknowledged", bytes, first.After)
		default:
			add(kept, f.stream, "%d bytes in %d places of its files cannot be read, the first after message %d", bytes,
				len(f.damage), first.After)
		}
	}
	for name, count := range before {
		_, stream, _ := strings.Cut(name, "/")
		add("", stream, "it is missing, with %d messages or more", count.Messages)
	}
	return found, nil
}

// missingBlocks returns the names of the blocks that have no file, or an empty one.
func (f *AuditFiles) missingBlocks(blocks []int) (out []string) {
	for _, index := range blocks {
		if !slices.ContainsFunc(f.blocks, func(b blockFile) bool { return b.index == index && b.size > 0 }) {
			out = append(out, fmt.Sprintf("%d.blk", index))
		}
	}
	return out
}

// describeStream returns the name of a stream and the purpose that the table gives it.
func describeStream(name string) string {
	for _, st := range subjects.Table().Streams {
		if st.Name == name {
			return fmt.Sprintf("stream %s (%s)", name, st.Doc)
		}
	}
	return "stream " + name
}

// streamCount is the content of a stream at some time.
type streamCount struct {
	Last     uint64 `json:"last"` // sequence of the last message, which the stream has unless it is empty
	Messages uint64 `json:"messages"`
	Blocks   []int  `json:"blocks"` // indices of its block files with content
}

// counts are the contents of all streams, by account/name.
type counts map[string]streamCount

// countsFile is the content of the file of the counts.
type countsFile struct {
	Streams counts `json:"streams"`
	SHA256  string `json:"sha256"` // of Streams in JSON
}

// countsPath is the file beside the streams with their counts, by which a start finds lost messages.
func (h Home) countsPath() string { return filepath.Join(h.Data, "streams.json") }

// readCounts reads the counts of the last run, none without a file.
func (h Home) readCounts() (counts, error) {
	b, err := os.ReadFile(h.countsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f countsFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err == nil && f.Streams.sum() != f.SHA256 {
		err = errors.New("wrong checksum")
	}
	if err != nil {
		return nil, err
	}
	return f.Streams, nil
}

func (c counts) sum() string {
	b, _ := json.Marshal(c) // numbers only
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// writeCounts replaces the counts; they are on disk when it returns.
func (h Home) writeCounts(c counts) error {
	b, err := json.Marshal(countsFile{c, c.sum()})
	if err == nil {
		err = file.Replace(h.countsPath(), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing the counts of the streams: %w", err)
	}
	return nil
}

// ForgetAuditCounts removes the counts of the audit log, which begins again when it is rotated. The server must be
// stopped.
func (h Home) ForgetAuditCounts() error {
	kept, err := h.readCounts()
	if err != nil || kept == nil { // the next start reports it
		return nil
	}
	for name := range kept {
		if strings.HasPrefix(name, subjects.Audit+"/") {
			delete(kept, name)
		}
	}
	return h.writeCounts(kept)
}

// countStreams returns the counts of all streams, none while the server is down.
func (s *Server) countStreams(home Home) counts {
	out := counts{}
	s.eachStream(func(account string, st server.StreamDetail) {
		blocks := listBlocks(home.streamFolder(account, st.Name))
		out[account+"/"+st.Name] = streamCount{st.State.LastSeq, st.State.Msgs, blocks}
	})
	return out
}

// streamFolder is where the server keeps a stream of an account.
func (h Home) streamFolder(account, stream string) string {
	return filepath.Join(h.Store(), "jetstream", account, "streams", stream)
}

// listBlocks returns the indices of the block files of a stream that are not empty.
func listBlocks(dir string) (out []int) {
	files, _ := os.ReadDir(filepath.Join(dir, "msgs")) // one that cannot be read is not checked
	for _, e := range files {
		index, err := strconv.Atoi(strings.TrimSuffix(e.Name(), ".blk"))
		if info, ierr := e.Info(); err == nil && ierr == nil && info.Size() > 0 {
			out = append(out, index)
		}
	}
	slices.Sort(out)
	return out
}

// Intervals at which the counts of the streams are compared: by totals, and each stream after so many of these.
// A loss of later messages can only be found by the damage that caused it.
const (
	countInterval = 200 * time.Millisecond
	countAllAfter = 5
)

// KeepCounts writes the counts of the streams when they change, within countInterval as a rule, until ctx ends, and
// then once more. Of consecutive errors the first is logged.
func (s *Server) KeepCounts(ctx context.Context, home Home) {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	var written counts
	var totals [2]int64
	failed := false
	for n, ended := 0, false; !ended; n++ {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		}
		c := s.Counters()
		before := totals
		totals = [2]int64{c["stored_messages"], c["stored_bytes"]}
		if totals == before && n%countAllAfter > 0 && !ended {
			continue
		}
		current := s.countStreams(home)
		if len(current) == 0 || reflect.DeepEqual(current, written) {
			continue
		}
		err := home.writeCounts(current)
		if err != nil && !failed {
			s.logWarning("a loss of messages may not be found", "err", err)
		}
		if failed = err != nil; !failed {
			written = current
		}
	}
}
