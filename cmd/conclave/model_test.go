package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// TestPullTerminal looks at the line that is drawn over, and at a pull that is broken off.
func TestPullTerminal(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	if err := c.models(t.Cleanup); err != nil {
		t.Fatal(err)
	}
	p := c.place(t)
	pull := p.onTerminal("model", "pull", "prometheus:7b")
	if code, err := pull.wait(); code != exitDone || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, pull.stdout)
	}
	got := pull.stdout.String()
	if !strings.HasPrefix(got, "\r\x1b[Kprometheus:7b: pulling manifest\r\x1b[Kprometheus:7b: pulling   0 %  0 B of 4 MB  [--------------------]\r\x1b[K") {
		t.Errorf("%q", got)
	}
	if !strings.HasSuffix(got, "\r\x1b[Kprometheus:7b is here\r\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("it leaves something behind: %q", got)
	}

	endless := p.begin("conclave", "model", "pull", "endless")
	p.must(endless.stderr, "^endless: pulling manifest")
	if code, err := endless.end(os.Interrupt); code != exitFailed || err != nil || !strings.Contains(endless.stderr.String(), "endless was not fetched: stopped: what is there is kept; pull again to go on") {
		t.Errorf("broken off: %d, %v, %s", code, err, endless.stderr)
	}
}

// TestProgress draws at most ten times a second, and says how fast it goes.
func TestProgress(t *testing.T) {
	t.Parallel()
	master, slave := terminalFor(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &progress{app: newApp(nil, io.Discard, slave), name: "m", layers: map[string]subjects.PullProgress{}, now: func() time.Time { return now }}
	layer := func(digest string, completed, total int64) {
		b.show(subjects.PullProgress{Status: "pulling " + digest, Digest: digest, Total: total, Completed: completed})
	}
	layer("a", 0, 100<<20)
	now = now.Add(50 * time.Millisecond)
	layer("a", 10<<20, 100<<20) // too soon to be drawn
	now = now.Add(1950 * time.Millisecond)
	layer("a", 20<<20, 100<<20)
	now = now.Add(time.Second)
	layer("b", -5, 100)           // makes no sense
	layer("a", 1000<<20, 100<<20) // nor this: there is no more than all
	b.clear()
	const mark = "\x04end"
	if _, err := slave.WriteString(mark); err != nil {
		t.Fatal(err)
	}
	var got []byte
	buf := make([]byte, 1024)
	for !bytes.HasSuffix(got, []byte(mark)) {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	want := []string{
		"m: pulling   0 %  0 B of 100 MB  [--------------------]",
		"m: pulling  20 %  20 MB of 100 MB  [####----------------]  10 MB/s",
		"m: pulling  20 %  20 MB of 100 MB  [####----------------]  6.67 MB/s",
		mark,
	}
	if drawn := regexp.MustCompile("\r\x1b\\[K").Split(string(got), -1)[1:]; strings.Join(drawn, "|") != strings.Join(want, "|") {
		t.Errorf("%q, want %q", drawn, want)
	}
}
