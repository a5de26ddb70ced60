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
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"conclave/pkg/audit"
	"conclave/pkg/damage"
	"conclave/pkg/file"
	"conclave/subjects"
)

// StreamDamage is the damage of a stream, or of the file of the counts.
type StreamDamage struct {
	damage.Report
	Account string
	Stream  string // "" = the counts
	blocks  []int  // indices of the damaged and missing blocks; those behind the last one are missing too; nil = all
}

// Folder is the folder of the stream in a data folder, with slashes.
func (d StreamDamage) Folder() string {
	return path.Join("jetstream", "jetstream", d.Account, "streams", d.Stream)
}

// AddTo adds the report to those of a data folder, in the place of what [FindDamagedStreams] reported before it moved
// files. What the records of the stream permitted is pending then, and without the counts those of any stream.
func (d StreamDamage) AddTo(data string) error {
	switch {
	case d.Stream != "":
		d.Part, d.Pending = d.Stream, true
	case d.Part == "":
		d.Part, d.Pending = damage.Unknown, true
		return damage.Add(data, d.Report)
	}
	return damage.Resolve(data, d.Part, d.Report)
}

// FindDamagedStreams compares the files of the streams with the counts of the last run, which [Server.KeepCounts]
// wrote, and reads every message. Damaged files of streams outside the audit log are moved to a folder of damaged
// files, and their readable messages left in place, see [AuditFiles.SetDamageAside]. The server must be stopped: it
// drops the rest of a damaged block when it starts, or does not start the stream, or serves older values of a bucket.
func FindDamagedStreams(home Home) (found []StreamDamage, err error) {
	now := time.Now()
	counted, err := home.readCounts()
	if err != nil {
		found = append(found, StreamDamage{Report: damage.Report{
			Found: now, Text: "the counts of the streams (" + home.countsPath() +
				") cannot be read: whether messages are missing is not known",
		}})
	}
	before := counted.Streams
	if err != nil { // what is missing as a whole is known from the table
		before = counts{}
		for _, st := range subjects.Table().Streams {
			before[st.Account+"/"+st.Name] = streamCount{}
		}
	}
	if counted.Memory && !home.hasMemory() {
		found = append(found, StreamDamage{Report: damage.Report{
			Found: now, Part: damage.Memory, Text: "memory: " + home.memoryPath() + " is missing",
		}})
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
		d := StreamDamage{Account: filepath.Base(filepath.Dir(filepath.Dir(dir))), Stream: f.stream}
		name := d.Account + "/" + d.Stream
		count, known := before[name]
		texts := d.compare(f, count, known)
		delete(before, name)
		isDamaged := len(f.damage) > 0 && d.Account != subjects.Audit // see auditlog.OpenFiles
		if isDamaged {
			d.Kept = filepath.Join(folder, f.stream)
			texts = append(texts, d.describeDamage(f)...)
		}
		if len(texts) > 0 {
			d.Found, d.Text = now, describeStream(f.stream)+": "+strings.Join(texts, "; ")
			if err := d.AddTo(home.Data); err != nil { // before the files are moved: the next start finds no damage
				return found, err
			}
			found = append(found, d)
		}
		if !isDamaged {
			continue
		}
		if err := f.SetDamageAside(filepath.Join(folder, f.stream)); err != nil {
			return found, err
		}
	}
	for name, count := range before {
		d := StreamDamage{}
		d.Account, d.Stream, _ = strings.Cut(name, "/")
		d.Found = now
		d.Text = fmt.Sprintf("%s: it is missing, with %d messages or more", describeStream(d.Stream), count.Messages)
		if err := d.AddTo(home.Data); err != nil { // before it comes back: the next start may find nothing
			return found, err
		}
		found = append(found, d)
	}
	return found, nil
}

// compare describes what f lacks of the content that the last run counted.
func (d *StreamDamage) compare(f *AuditFiles, count streamCount, known bool) (texts []string) {
	var missing []string
	for _, index := range count.Blocks {
		if !slices.ContainsFunc(f.blocks, func(b blockFile) bool { return b.index == index && b.size > 0 }) {
			missing, d.blocks = append(missing, fmt.Sprintf("%d.blk", index)), append(d.blocks, index)
		}
	}
	if known && len(f.blocks) == 0 { // an empty stream has one too
		missing, d.blocks = []string{"all"}, nil
	}
	if len(missing) > 0 {
		texts = append(texts, "files of messages are missing or empty: "+strings.Join(missing, ", "))
	}
	if count.Messages > 0 && f.last < count.Last {
		texts = append(texts, fmt.Sprintf("messages %d to %d, the last ones, are missing", f.last+1, count.Last))
		if len(f.blocks) > 0 {
			d.blocks = append(d.blocks, f.blocks[len(f.blocks)-1].index)
		}
	}
	return texts
}

// describeDamage describes the parts of f that cannot be read.
func (d *StreamDamage) describeDamage(f *AuditFiles) []string {
	bytes := int64(0)
	for _, part := range f.damage {
		bytes += part.Bytes
	}
	for _, b := range f.blocks {
		if slices.ContainsFunc(f.damage, func(part audit.Damage) bool { return part.File == f.nameOf(b) }) {
			d.blocks = append(d.blocks, b.index)
		}
	}
	switch first := f.damage[0]; {
	case first.Tail && first.Zeros: // nothing acknowledged is lost, unless the counts say so
		return nil
	case first.Tail:
		return []string{fmt.Sprintf("its last %d bytes, after message %d, are no whole message, as a power failure "+
			"leaves one that was not acknowledged", bytes, first.After)}
	default:
		return []string{fmt.Sprintf("%d bytes in %d places of its files cannot be read, the first after message %d",
			bytes, len(f.damage), first.After)}
	}
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
	Memory  bool   `json:"memory"` // there is a database of memory
	SHA256  string `json:"sha256"` // of Streams in JSON
}

// firstCounted is the first version of the data folder with counts.
const firstCounted = 3

// countsPath is the file beside the streams with their counts, by which a start finds lost messages.
func (h Home) countsPath() string { return filepath.Join(h.Data, "streams.json") }

// memoryPath is the database of memory.
func (h Home) memoryPath() string { return filepath.Join(h.Data, "memory", "memory.duckdb") }

func (h Home) hasMemory() bool {
	_, err := os.Lstat(h.memoryPath())
	return err == nil
}

// newStreams are some streams that data without a version, of the first builds, does not have.
var newStreams = []string{
	subjects.AttachmentPiece.Stream, subjects.ScheduleDefinition.Stream, subjects.ScheduleDue.Stream,
}

// expectsCounts reports whether a build with counts wrote the data folder. The version file may be missing too.
func (h Home) expectsCounts() bool {
	version, err := h.ReadVersion()
	return err != nil || version >= firstCounted || version == 0 &&
		slices.ContainsFunc(newStreams, func(name string) bool {
			_, err := os.Lstat(h.streamFolder(subjects.Core, name))
			return err == nil
		})
}

// readCounts reads the counts of the last run. A data folder of a build that has counts has them.
func (h Home) readCounts() (f countsFile, err error) {
	b, err := os.ReadFile(h.countsPath())
	if errors.Is(err, fs.ErrNotExist) && !h.expectsCounts() {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err == nil && f.Streams.sum() != f.SHA256 {
		err = errors.New("wrong checksum")
	}
	if err != nil {
		return countsFile{}, err
	}
	return f, nil
}

func (c counts) sum() string {
	b, _ := json.Marshal(c) // numbers only
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// writeCounts replaces the counts; they are on disk when it returns.
func (h Home) writeCounts(f countsFile) error {
	f.SHA256 = f.Streams.sum()
	b, err := json.Marshal(f)
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
	if err != nil || kept.Streams == nil { // the next start reports it
		return nil
	}
	for name := range kept.Streams {
		if strings.HasPrefix(name, subjects.Audit+"/") {
			delete(kept.Streams, name)
		}
	}
	return h.writeCounts(kept)
}

// countStreams returns the counts of all streams, none while the server is down.
func (s *Server) countStreams(home Home) countsFile {
	out := counts{}
	s.eachStream(func(account string, st server.StreamDetail) {
		blocks := listBlocks(home.streamFolder(account, st.Name))
		out[account+"/"+st.Name] = streamCount{st.State.LastSeq, st.State.Msgs, blocks}
	})
	return countsFile{Streams: out, Memory: home.hasMemory()}
}

// WriteCounts writes the counts of the streams now.
func (s *Server) WriteCounts(home Home) error { return home.writeCounts(s.countStreams(home)) }

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
	var written countsFile
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
		if len(current.Streams) == 0 || reflect.DeepEqual(current, written) {
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
