package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestGoroutinesAtStart bounds the goroutines of a system that does nothing, by the package that waits in them: workers
// start when there is work. The bounds have room for more streams and subscriptions of the same kind, which cost a few
// each.
func TestGoroutinesAtStart(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	up := p.begin("conclave", "up", "--pprof")
	var ready readiness
	if err := json.Unmarshal([]byte(p.must(up.stdout, `"pid"`)), &ready); err != nil {
		t.Fatal(err)
	}
	counts, err := countGoroutines(ready.Data)
	if err != nil {
		t.Fatal(err)
	}
	total, ours := 0, 0
	for name, n := range counts {
		total += n
		if strings.HasPrefix(name, "conclave/") {
			ours += n
		}
		if name == "conclave/pkg/actor" && n > 400 || strings.HasPrefix(name, "conclave/") &&
			name != "conclave/pkg/actor" && n > 50 {
			t.Errorf("%d goroutines wait in %s", n, name)
		}
	}
	if ours == 0 || total > 1500 {
		t.Errorf("%d goroutines, %d of them ours: %v", total, ours, counts)
	}
	t.Logf("%d goroutines, %d of them ours", total, ours)
}

// goroutineLine matches a frame of a goroutine profile, and captures the function.
var goroutineLine = regexp.MustCompile(`^#\s+0x[0-9a-f]+\s+(\S+)\+0x`)

// countGoroutines reads the goroutine profile through the socket in the data folder, and counts by the first package of
// a stack that is not Go's own.
func countGoroutines(data string) (map[string]int, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path.Join(data, "http.sock"))
	}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get("http://localhost/debug/pprof/goroutine?debug=1")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s, %w", res.Status, body, err)
	}
	counts := map[string]int{}
	n := 0
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		if number, _, ok := strings.Cut(lines.Text(), " @ "); ok {
			n, _ = strconv.Atoi(number)
		}
		m := goroutineLine.FindStringSubmatch(lines.Text())
		if m == nil || n == 0 {
			continue
		}
		name := path.Join(path.Dir(m[1]), strings.SplitN(path.Base(m[1]), ".", 2)[0])
		if strings.Contains(name, "/") &&
			(strings.HasPrefix(name, "conclave/") || strings.Contains(strings.SplitN(name, "/", 2)[0], ".")) {
			counts[name] += n
			n = 0
		}
	}
	return counts, nil
}
