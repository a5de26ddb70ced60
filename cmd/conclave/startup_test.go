package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
)

// programs are what tests build: the real conclave, where the test binary does not do, and the nats-server that this
// module depends on. Each is built once, at first use, without debug information.
var programs = map[string]func() (string, error){
	"conclave":    sync.OnceValues(func() (string, error) { return buildProgram("conclave/cmd/conclave") }),
	"nats-server": sync.OnceValues(func() (string, error) { return buildProgram("github.com/nats-io/nats-server/v2") }),
}

// builds is the folder of the programs, which is removed at the end.
var builds = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "conclave-programs-*") })

func buildProgram(pkg string) (string, error) {
	dir, err := builds()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", pkg).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", pkg, err, out)
	}
	return dir, nil
}

func built(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs[name]()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// TestPortTaken asks for a port that another program has.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newInstallation(t)
	up := p.begin("conclave", "up", "--listen", l.Addr().String())
	if code, err := up.wait(); code != cli.ExitFailed || err != nil ||
		!strings.Contains(up.stderr.String(), "address already in use: choose another with --listen") {
		t.Errorf("%d, %v, %s", code, err, up.stderr)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	up = p.begin("conclave", "up", "--api-port", port)
	if code, err := up.wait(); code != cli.ExitFailed || err != nil || !strings.Contains(up.stderr.String(),
		"conclave: starting gateway: listening on "+l.Addr().String()+": another program has this port; stop it, or "+
			"choose another with --api-port or gateway.listen (port 0 takes any that is free)\n") {
		t.Errorf("%d, %v, %s", code, err, up.stderr)
	}
}

// TestHangingSessionBus starts the program where the desktop's session bus takes connections and never answers. Nothing
// on the way to a running system may wait for it.
func TestHangingSessionBus(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	// the keyring as shipped
	if err := os.Remove(filepath.Join(p.dir, "config", "conclave", "secrets.yaml")); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(p.dir, "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close() // held open, never answered
		}
	}()
	p.env = append(p.env, "DBUS_SESSION_BUS_ADDRESS=unix:path="+socket)
	const bound = 15 * time.Second // far less than forever, and enough for a busy machine
	quickest := func(act func()) (took time.Duration) {
		for range 4 { // the machine may be busy
			begin := time.Now()
			act()
			if took = time.Since(begin); took <= bound {
				break
			}
		}
		return took
	}
	if took := quickest(func() { p.run(cli.ExitOK, "conclave", "version") }); took > bound {
		t.Errorf("version took %s", took)
	}
	var up *process
	var line string
	took := quickest(func() {
		if up != nil {
			up.kill()
		}
		up = p.begin("conclave", "up")
		line = p.must(up.stdout, `"pid"`)
	})
	var r readiness
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatal(err)
	}
	if took > bound {
		t.Errorf("ready after %s", took)
	}
	t.Logf("first start, ready: %s from outside, %d ms by its own measure", took, r.Millis)
	begin := time.Now()
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	t.Logf("first call: %s", time.Since(begin))
}

// TestMissing starts the program with settings that lack something, and looks at what it says of that. What it lacks is
// known before it says that it is ready.
func TestMissing(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	file := filepath.Join(p.dir, "config", "conclave", "web_search.yaml")
	said := func(search string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(search), 0o600); err != nil {
			t.Fatal(err)
		}
		up := p.begin("conclave", "up")
		p.must(up.stderr, `"msg":"ready"`)
		if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
			t.Fatalf("%d, %v: %s", code, err, up.stderr)
		}
		return up.stderr.String()
	}
	has := func(name, text, want string, wanted bool) {
		t.Helper()
		if strings.Contains(text, want) != wanted {
			t.Errorf("%s: %q: %v, want %v, in\n%s", name, want, !wanted, wanted, text)
		}
	}
	const engine, credential = `"what":"web_search: no SearXNG answers at http://127.0.0.1:1","fix":"start it there`,
		`"what":"secrets: not in the keyring: brave_api_key","fix":"conclave secret set brave_api_key"`
	none := said("provider: none\n")
	has("none", none, "web_search", false)
	has("none", none, `"secrets: `, false)
	gone := said("searxng: {url: http://127.0.0.1:1}\n")
	has("nobody there", gone, engine, true)
	has("nobody there", gone, `"secrets: `, false)
	brave := said("provider: brave\n")
	has("no key", brave, credential, true)
	has("no key", brave, "SearXNG", false)
	set := exec.Command("conclave", "secret", "set", "brave_api_key")
	set.Env, set.Stdin = p.env, strings.NewReader("canary-key")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kept := said("provider: brave\n")
	has("a key", kept, `"secrets: `, false)
	has("a key", kept, "canary", false)
}
