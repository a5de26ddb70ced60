package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/doctor"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// storedMessage identifies a message of a stream.
type storedMessage struct {
	stream, subject string
	sum             [sha256.Size]byte
}

// contents are what a data folder holds.
type contents struct {
	messages map[storedMessage]int           // of streams that keep every message
	last     map[[2]string]uint64            // of the others, the last sequence by stream and subject
	values   map[[2]string][sha256.Size]byte // and its message
	memories map[string]bool                 // texts, read from the running system
}

// readStreams reads the messages of a stopped system from its files.
func readStreams(t *testing.T, data string) contents {
	t.Helper()
	c := contents{map[storedMessage]int{}, map[[2]string]uint64{}, map[[2]string][sha256.Size]byte{}, nil}
	latest := map[string]bool{}
	for _, st := range subjects.Table().Streams {
		latest[st.Name] = st.Bucket != "" || st.KeepLast
	}
	dirs, err := filepath.Glob(filepath.Join(data, "jetstream", "jetstream", "*", "streams", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
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
			sum, key := sha256.Sum256(m.Data), [2]string{f.Stream(), m.Subject}
			if !latest[f.Stream()] {
				c.messages[storedMessage{f.Stream(), m.Subject, sum}]++
			} else if m.Seq >= c.last[key] {
				c.last[key], c.values[key] = m.Seq, sum
			}
		}
	}
	return c
}

// lostSince names a message or memory that before has and after does not, "" = none. A newer value of a subject is no
// loss.
func (after contents) lostSince(before contents) string {
	for m, n := range before.messages {
		if after.messages[m] < n {
			return "a message of " + m.stream + ", " + m.subject
		}
	}
	for key, seq := range before.last {
		if after.last[key] < seq || after.last[key] == seq && after.values[key] != before.values[key] {
			return fmt.Sprintf("the value of %s in %s", key[1], key[0])
		}
	}
	for text := range before.memories {
		if !after.memories[text] {
			return "the memory " + text
		}
	}
	return ""
}

// readMemories returns the texts of all memories; none when memory is unavailable.
func readMemories(t *testing.T, user *client.Client) map[string]bool {
	t.Helper()
	var b bytes.Buffer
	out := map[string]bool{}
	if _, err := user.ExportMemories(t.Context(), &b); err != nil {
		return out
	}
	for line := range strings.Lines(b.String()) {
		var e subjects.MemoryEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		out[e.Corpus] = true
	}
	return out
}

// fill asks questions and adds memories and a schedule, each acknowledged.
func fill(t *testing.T, p *installation, user *client.Client, n int) {
	t.Helper()
	for i := range n {
		q, err := user.Ask(t.Context(), client.Question{Session: fmt.Sprint("s", i%3), Text: fmt.Sprintf(
			"What time is it in Tokyo, question %d?", i)})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := q.Wait(); err != nil || res.Error != nil {
			t.Fatalf("%+v, %v", res.Error, err)
		}
		q.Close()
		if _, _, err := user.AddMemory(t.Context(), subjects.MemoryEntry{Corpus: fmt.Sprintf("My locker number %d is "+
			"at the station of town %d.", i, i)}, false); err != nil {
			t.Fatal(err)
		}
	}
	p.run(0, "conclave", "schedule", "add", "daily 8:00", "what is new", "--timezone", "UTC")
}

// waitForCounts waits until the counts of the streams have not changed for a second: what was stored later may be lost
// without a report.
func waitForCounts(t *testing.T, data string) {
	t.Helper()
	var last []byte
	same := 0
	for end := time.Now().Add(waitTimeout); same < 10; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the counts of the streams do not settle")
		}
		b, err := os.ReadFile(filepath.Join(data, "streams.json"))
		same++
		if err != nil || !bytes.Equal(b, last) {
			same, last = 0, b
		}
	}
}

// dataFiles lists the files of streams and memory, relative to the data folder.
func dataFiles(t *testing.T, data string) (blocks, others, memory []string) {
	t.Helper()
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(data, path)
		info, ierr := d.Info()
		switch {
		case ierr != nil || info.Size() == 0:
		case strings.HasPrefix(rel, "memory"):
			memory = append(memory, rel)
		case strings.HasPrefix(rel, "jetstream") && strings.HasSuffix(rel, ".blk"):
			blocks = append(blocks, rel)
		case strings.HasPrefix(rel, "jetstream"):
			others = append(others, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return blocks, others, memory
}

// damageRandomly does something to a file of the data folder, and says what.
func damageRandomly(t *testing.T, rng *rand.Rand, data string) string {
	t.Helper()
	blocks, others, memory := dataFiles(t, data)
	from := [][]string{blocks, blocks, others, memory}[rng.Intn(4)]
	name := from[rng.Intn(len(from))]
	path := filepath.Join(data, name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch kind := rng.Intn(8); {
	case kind < 4:
		at := rng.Intn(len(b))
		b[at] ^= 1 << rng.Intn(8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("flipped byte %d of %d in %s", at, len(b), name)
	case kind < 6:
		at := rng.Intn(len(b))
		if err := os.Truncate(path, int64(at)); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("cut %s from %d to %d bytes", name, len(b), at)
	case kind == 6 || len(memory) > 0 && slices.Contains(memory, name):
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "deleted " + name
	}
	dir := filepath.Join(data, strings.Join(strings.Split(name, "/")[:5], "/")) // of the stream
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return "deleted " + dir
}

// isDamageReported starts the system on damaged data and says where the damage is reported: the log, /health and
// doctor, or the error of a start that fails.
func isDamageReported(t *testing.T, p *installation) (where []string, after contents) {
	t.Helper()
	up := p.begin("conclave", "up")
	line, err := up.stdout.wait(`"pid"`)
	if err != nil {
		if code, err := up.wait(); code == 0 || err != nil || up.stderr.String() == "" {
			t.Fatalf("it ended with %d, %v: %s", code, err, up.stderr)
		}
		return []string{"log", "health", "doctor"}, after // nothing is served, and the user is told why
	}
	var r readiness
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatal(err)
	}
	user, err := client.New(p.as(&bus.Bus{URL: r.URL, Keys: bus.Keys{Dir: filepath.Join(p.data, "keys")}}, "user"))
	if err != nil {
		t.Fatal(err)
	}
	memories := readMemories(t, user)
	var health struct {
		Degraded []string `json:"degraded"`
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.data, "http.sock"))
	}
	web := http.Client{Transport: &http.Transport{DialContext: dial}}
	res, err := web.Get("http://localhost/health")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&health); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(health.Degraded, func(s string) bool { return strings.HasPrefix(s, "data: ") }) {
		where = append(where, "health")
	}
	if strings.Contains(up.stderr.String(), "damage: ") {
		where = append(where, "log")
	}
	examined := p.begin("conclave", "doctor", "--json")
	if _, err := examined.wait(); err != nil {
		t.Fatal(err)
	}
	var rep struct{ Checks []doctor.Check }
	if err := json.Unmarshal([]byte(examined.stdout.String()), &rep); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(rep.Checks, func(c doctor.Check) bool {
		return c.Name == "data" && c.Level == doctor.LevelFail
	}) {
		where = append(where, "doctor")
	}
	up.kill()
	after = readStreams(t, p.data)
	after.memories = memories
	return where, after
}

// TestChaosDamage kills a system, damages a file of it and starts it again: it has all that was stored, or the log,
// /health and doctor report the damage. CONCLAVE_DAMAGES sets how often, CONCLAVE_SEED where it begins.
func TestChaosDamage(t *testing.T) {
	t.Parallel()
	rounds, seed := 2, int64(29)
	if os.Getenv("CONCLAVE_CHAOS") != "" {
		rounds = 20
	}
	for name, value := range map[string]func(int64){
		"CONCLAVE_DAMAGES": func(n int64) { rounds = int(n) }, "CONCLAVE_SEED": func(n int64) { seed = n },
	} {
		if n, err := strconv.ParseInt(os.Getenv(name), 10, 64); err == nil {
			value(n)
		}
	}
	p := newInstallation(t)
	up := p.begin("conclave", "up")
	var r readiness
	if err := json.Unmarshal([]byte(p.must(up.stdout, `"pid"`)), &r); err != nil {
		t.Fatal(err)
	}
	user, err := client.New(p.as(&bus.Bus{URL: r.URL, Keys: bus.Keys{Dir: filepath.Join(p.data, "keys")}}, "user"))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, p, user, 6)
	memories := readMemories(t, user)
	if len(memories) < 6 {
		t.Fatalf("memories %v", slices.Collect(maps.Keys(memories)))
	}
	waitForCounts(t, p.data)
	up.kill()
	before := readStreams(t, p.data)
	before.memories = memories
	killed := p.data + ".killed"
	if err := os.Rename(p.data, killed); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewSource(seed))
	harmless, reported, alarms := 0, 0, 0
	for i := range rounds + 1 {
		if err := os.RemoveAll(p.data); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-a", killed, p.data).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		what := "nothing"
		if i > 0 {
			what = damageRandomly(t, rng, p.data)
		}
		where, after := isDamageReported(t, p)
		lost := after.lostSince(before)
		if after.messages == nil {
			lost = "nothing is served"
		}
		switch {
		case i == 0 && (lost != "" || len(where) > 0):
			t.Fatalf("without damage: lost %q, reported in %v", lost, where)
		case lost != "" && len(where) < 3:
			t.Errorf("seed %d, round %d, %s: lost %s, reported only in %v", seed, i, what, lost, where)
		case lost != "":
			reported++
		case len(where) > 0:
			alarms++
		default:
			harmless++
		}
		t.Logf("%s: lost %q, reported in %v", what, lost, where)
	}
	t.Logf("seed %d: of %d damages %d lost data and were reported, %d lost nothing and were reported, %d harmless",
		seed, rounds, reported, alarms, harmless-1)
}
