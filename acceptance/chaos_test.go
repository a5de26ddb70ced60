package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/programtest"
	"conclave/subjects"
)

// Tests of destruction. They run in a short form with all the others; with CONCLAVE_CHAOS=1 in the environment they run
// in the long one.

// The test binary plays the part of conclave when its environment asks for it.
const (
	playEnv   = "CONCLAVE_TEST_PLAY"   // the actors to run, joined by commas; "none" for the server alone
	dataEnv   = "CONCLAVE_TEST_DATA"   // the data folder
	listenEnv = "CONCLAVE_TEST_LISTEN" // where to listen
	flagsEnv  = "CONCLAVE_TEST_FLAGS"  // more settings, path=value, separated by spaces
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == mcp.ForwardArg {
		os.Exit(mcp.Forward(os.Args[2:]))
	}
	if os.Getenv(elicitEnv) != "" {
		serveElicitation()
		os.Exit(0)
	}
	if trick := os.Getenv(hostileEnv); trick != "" {
		serveHostile(trick)
		os.Exit(0)
	}
	if names := os.Getenv(playEnv); names != "" {
		os.Unsetenv("GOMEMLIMIT") // one system: it holds its own memory
		part := func() error { return runActors(names) }
		switch names {
		case generatorAlone:
			part = runGenerator
		case criticAlone:
			part = runCritic
		case orchestratorAlone:
			part = runOrchestrator
		}
		if err := part(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("CONCLAVE_TEST_SECRET", mcpCanary) // that no server may see
	_ = flag.Set("test.parallel", "6")           // they wait more than they compute
	// with several systems in the process, collecting garbage is a quarter of its processor time
	debug.SetGCPercent(400)
	// each system would set the limit of one for the process, which would collect garbage half of its time
	os.Setenv("GOMEMLIMIT", "off")
	os.Exit(m.Run())
}

// runActors runs the system, says where it is, and stops when its input ends: it does not outlive its parent.
func runActors(names string) error {
	c, err := config.Load("")
	if err != nil {
		return err
	}
	c.Models.Ollama.URL = noOllama
	flags := map[string]string{"system.listen": os.Getenv(listenEnv)}
	for _, f := range strings.Fields(os.Getenv(flagsEnv)) {
		name, value, _ := strings.Cut(f, "=")
		flags[name] = value
	}
	if err := c.Apply(flags); err != nil {
		return err
	}
	data := os.Getenv(dataEnv)
	var actors []string
	if names != "none" {
		actors = strings.Split(names, ",")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	r, err := c.Start(context.Background(), bus.Home{Data: data, Config: data + "-config"}, log, actors...)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, r.Bus.URL)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return r.Stop(context.Background())
}

// killedProcess is the other process. It is killed and started again on the same folder and the same port.
type killedProcess struct {
	t      *testing.T
	names  string
	flags  string // see flagsEnv
	home   bus.Home
	listen string

	cmd     *exec.Cmd
	stdin   io.WriteCloser
	url     chan string // where it is, once it says so
	isReady bool        // it has said so
	stderr  syncBuffer
}

func newKilledProcess(t *testing.T, names string) *killedProcess {
	t.Helper()
	v := &killedProcess{t: t, names: names, home: newHome(t), listen: bustest.ReservePort(t)}
	t.Cleanup(func() {
		if v.cmd != nil {
			v.kill()
		}
		if t.Failed() {
			t.Logf("the other process said:\n%s", v.stderr.String())
		}
	})
	return v
}

func (v *killedProcess) start() {
	v.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		v.t.Fatal(err)
	}
	v.cmd = exec.Command(exe)
	v.cmd.Env = append(os.Environ(), playEnv+"="+v.names, dataEnv+"="+v.home.Data, listenEnv+"="+v.listen,
		flagsEnv+"="+v.flags)
	v.cmd.Stderr = &v.stderr
	if v.stdin, err = v.cmd.StdinPipe(); err != nil {
		v.t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		v.t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	url := make(chan string, 1)
	v.url, v.isReady = url, false
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		url <- strings.TrimSpace(line)
	}()
}

// waitUntilReady waits until the process says where it is.
func (v *killedProcess) waitUntilReady() {
	v.t.Helper()
	if v.isReady {
		return
	}
	select {
	case url := <-v.url:
		if v.isReady = url == "nats://"+v.listen; !v.isReady {
			v.t.Fatalf("the other process did not start at %s, it says %q:\n%s", v.listen, url, v.stderr.String())
		}
	case <-time.After(testTimeout):
		v.t.Fatal("the other process is not ready")
	}
}

// kill is kill -9.
func (v *killedProcess) kill() {
	v.t.Helper()
	if err := v.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		v.t.Error(err)
	}
	_ = v.cmd.Wait() // it was killed: that is its error
	v.cmd = nil
}

// killRepeatedly kills and restarts n times at random moments within the time it is left alone, some of them while it
// is still starting.
func (v *killedProcess) killRepeatedly(rng *rand.Rand, n int, alone time.Duration) {
	v.t.Helper()
	for range n {
		if rng.Intn(5) > 0 {
			v.waitUntilReady()
			v.stopWithin(time.Duration(rng.Int63n(int64(alone))))
		} else {
			v.stopWithin(time.Duration(rng.Int63n(int64(200 * time.Millisecond))))
		}
		v.kill()
		v.start()
	}
	v.waitUntilReady()
}

// stopWithin lets it work for a while. It is no synchronization: when the kill comes is meant to be chance.
func (v *killedProcess) stopWithin(d time.Duration) {
	select {
	case <-time.After(d):
	case <-v.t.Context().Done():
	}
}

// dialBus reaches the other process over TCP.
func (v *killedProcess) dialBus() *bus.Bus {
	return &bus.Bus{URL: "nats://" + v.listen, Keys: v.home.Keys(), OnConnError: func(bus.ConnError) {}}
}

// TestChaosKillServer kills the server under writers. What was acknowledged must be there afterwards, once.
func TestChaosKillServer(t *testing.T) {
	t.Parallel()
	kills, alone := 5, 400*time.Millisecond
	if full() {
		kills, alone = 100, 1500*time.Millisecond
	}
	seed := chaosSeed(7)
	rng := rand.New(rand.NewSource(seed))
	start := time.Now()
	v := newKilledProcess(t, "none")
	v.start()
	v.waitUntilReady()

	var mu sync.Mutex
	acked := map[string]bool{} // phase and id of every record that a writer was told is stored
	var uncertain atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		nc := bustest.Dial(t, v.dialBus(), "broker")
		w, err := audit.Open(t.Context(), audit.Options{
			Account: "broker", Dir: v.home.Heads(), Log: bus.NewAuditLog(nc),
			Timeout: 300 * time.Millisecond, Retry: 30 * time.Second, // the server is away for a moment, never for long
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		put := func(rec subjects.AuditRecord) bool {
			if err := w.Append(context.Background(), rec); err != nil {
				uncertain.Add(1)
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			acked[rec.Phase+rec.ID] = true
			return true
		}
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					rec := subjects.AuditRecord{
						ID: actor.NewID(), Action: "tool.call", Tool: "get_datetime",
						Phase: subjects.AuditBefore, Status: subjects.StatusAllowed,
					}
					if !put(rec) {
						continue
					}
					rec.Phase, rec.Status = subjects.AuditAfter, subjects.StatusOK
					put(rec)
				}
			})
		}
	}
	v.killRepeatedly(rng, kills, alone)
	close(stop)
	wg.Wait()

	seen := map[string]int{}
	for _, m := range bustest.ReadAuditLog(t, v.dialBus()) {
		for _, rec := range decoded(t, m) {
			if rec.Phase != subjects.AuditOpen {
				seen[rec.Phase+rec.ID]++
			}
		}
	}
	lost, twice := 0, 0
	for id := range acked {
		if seen[id] == 0 {
			lost++
		}
	}
	for _, n := range seen {
		if n > 1 {
			twice++
		}
	}
	rep := verified(t, v.home, v.dialBus())
	t.Logf("seed %d: %d kills in %s: %d records acknowledged, %d lost, %d twice, %d appends of unknown fate; %d "+
		"messages, %d chains",
		seed, kills, time.Since(start).Round(time.Millisecond), len(acked), lost, twice, uncertain.Load(), rep.Messages,
		rep.Chains)
	if lost > 0 || twice > 0 {
		t.Errorf("%d acknowledged records lost, %d stored twice", lost, twice)
	}
	if len(acked) < kills {
		t.Errorf("only %d records: nobody was at work", len(acked))
	}
}

// TestChaosKillAll kills the whole of it: server, broker and tool in one process, while the user calls. Every call
// that was answered well has both its records.
func TestChaosKillAll(t *testing.T) {
	t.Parallel()
	kills, alone := 3, 700*time.Millisecond
	if full() {
		kills, alone = 20, 1500*time.Millisecond
	}
	seed := chaosSeed(11)
	rng := rand.New(rand.NewSource(seed))
	start := time.Now()
	v := newKilledProcess(t, strings.Join(config.Actors, ","))
	v.start()
	v.waitUntilReady()

	var mu sync.Mutex
	answered := map[string]bool{} // by query: the audit does not know call ids
	failures := map[string]int{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		p := dialOperator(t, v.dialBus())
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				query := actor.NewID()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				res := busCaller{out: p.out.WithIDs("", query)}.callTool(ctx, "get_datetime", query, utc)
				cancel()
				mu.Lock()
				if res.Error == nil {
					answered[query] = true
				} else {
					failures[res.Error.Code]++
				}
				mu.Unlock()
				_ = p.nc.FlushTimeout(time.Second) // while nobody is there, wait for somebody
			}
		})
	}
	v.killRepeatedly(rng, kills, alone)
	// Once more at peace: it works again by itself.
	p := dialOperator(t, v.dialBus())
	deadline := time.Now().Add(testTimeout)
	for p.callTool(t.Context(), "get_datetime", actor.NewID(), utc).Error != nil {
		if time.Now().After(deadline) {
			t.Fatal("it does not work again")
		}
	}
	close(stop)
	wg.Wait()

	before, after := map[string]int{}, map[string]int{}
	for _, m := range bustest.ReadAuditLog(t, v.dialBus()) {
		for _, rec := range decoded(t, m) {
			switch {
			case rec.Phase == subjects.AuditBefore && rec.Status == subjects.StatusAllowed:
				before[rec.Query]++
			case rec.Phase == subjects.AuditAfter && rec.Status == subjects.StatusOK:
				after[rec.Query]++
			}
		}
	}
	for query := range answered {
		if before[query] != 1 || after[query] != 1 {
			t.Errorf("an answered call has %d records before and %d after", before[query], after[query])
		}
	}
	rep := verified(t, v.home, v.dialBus())
	t.Logf("seed %d: %d kills in %s: %d calls answered, failures %v; %d records, %d chains, %d without an outcome",
		seed, kills, time.Since(start).Round(time.Millisecond), len(answered), failures, rep.Records, rep.Chains,
		rep.Unfinished+rep.Pending)
	if len(answered) < kills {
		t.Errorf("only %d calls: nobody was at work", len(answered))
	}
}

// diskEnv says that the test already runs in a namespace of its own.
const diskEnv = "CONCLAVE_TEST_DISK"

// TestChaosDiskFull fills a real file system under the store: calls are denied and nothing runs unaudited. When there
// is room again the server is restarted by its own watch, and everything goes on.
//
// The file system is a tmpfs in a mount namespace of its own, so nothing outside is touched.
func TestChaosDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getenv(diskEnv) == "" {
		runInNamespace(t, diskEnv)
		return
	}
	home := newHome(t)
	if err := os.MkdirAll(home.Store(), 0o700); err != nil {
		t.Fatal(err)
	}
	// Nothing that happens here may travel back to the parent's mounts.
	err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("tmpfs", home.Store(), "tmpfs", 0, "size=56m")
	}
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skip("mounting is refused: the test that started this process tries again as root, or says how")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(home.Store(), 0); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	var log syncBuffer
	cfg := settings(t, "system.audit_max", "8MB", "system.event_max", "8MB", "system.actor.audit_timeout", "1s")
	r, err := cfg.Start(t.Context(), home, slog.New(slog.NewTextHandler(&log, nil)), config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	calls(t, r.Bus, 20)

	filler := filepath.Join(home.Store(), "filler")
	fillFile(t, filler)
	t.Logf("full after %s", time.Since(start).Round(time.Millisecond))

	p := dialOperator(t, r.Bus)
	codes := map[string]int{}
	ran, lost := 20, 0
	call := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		res := p.callTool(ctx, "get_datetime", actor.NewID(), utc)
		code := "ok"
		if res.Error != nil {
			code = res.Error.Code
		}
		codes[code]++
		switch code {
		case "ok", subjects.CodeUnrecorded: // it ran
			ran++
		case subjects.CodeNoAudit:
		case subjects.CodeTimeout, subjects.CodeUnavailable: // while the server is away; it may have run
			lost++
		default:
			t.Errorf("told %v", res.Error)
		}
		return code
	}
	// The last page of a file may still take a record or two. Then it is over, and stays so.
	deadline := time.Now().Add(testTimeout)
	for denied := 0; denied < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("calls go on with a full disk: %v", codes)
		}
		if call() == subjects.CodeNoAudit {
			denied++
		} else {
			denied = 0
		}
	}
	if runs := countRecords(t, r.Bus); runs != ran || lost > 0 {
		t.Errorf("%d runs, %d answered, %d without an answer: something ran unaudited", runs, ran, lost)
	}
	t.Logf("denied after %s: %v", time.Since(start).Round(time.Millisecond), codes)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	deadline = freed.Add(testTimeout)
	for call() != "ok" {
		if time.Now().After(deadline) {
			t.Fatalf("no call works again: %v\n%s", codes, log.String())
		}
	}
	healed := time.Since(freed)
	for range 10 {
		if code := call(); code != "ok" {
			t.Errorf("after it was mended: %s", code)
		}
	}
	rep := verified(t, home, r.Bus)
	runs, befores := countRecords(t, r.Bus), countAllowed(t, bustest.ReadAuditLog(t, r.Bus))
	if runs < ran || runs > ran+lost || befores < runs {
		t.Errorf("%d runs, %d answered, %d on record", runs, ran, befores)
	}
	if !strings.Contains(log.String(), "restarting the server") {
		t.Errorf("the watch did not do it:\n%s", log.String())
	}
	t.Logf("works again %s after there was room, %s in all: %v; %d runs, %d on record, %d chains",
		healed.Round(time.Millisecond), time.Since(start).Round(time.Millisecond), codes, runs, befores, rep.Chains)
}

// fillFile writes a file until the disk takes no more.
func fillFile(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(bytes.Repeat([]byte{1}, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
}

// runInNamespace runs the same test again where it may mount, with env in its environment.
func runInNamespace(t *testing.T, env string) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	run := func(attr *syscall.SysProcAttr) error {
		out.Reset()
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60m")
		cmd.Env = append(os.Environ(), env+"=1")
		cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = attr, &out, &out
		err := cmd.Run()
		if err == nil && strings.Contains(out.String(), "--- SKIP") {
			return errors.New("mounting is refused there")
		}
		return err
	}
	own := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	group := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	err = run(&syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: own,
		GidMappings: group,
	})
	if isNotPermitted(err) && os.Geteuid() == 0 {
		err = run(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	}
	if isNotPermitted(err) {
		programtest.SkipIf(t, fmt.Errorf("needs a mount namespace (%w): allow unprivileged user namespaces, or run as "+
			"root with CAP_SYS_ADMIN", err))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if text := strings.TrimSpace(line); strings.Contains(text, "s_test.go:") {
			t.Log(text)
		}
	}
}

// isNotPermitted tells that the process could not be started so, or could not mount. An error of the test inside is
// another thing.
func isNotPermitted(err error) bool {
	var exit *exec.ExitError
	return err != nil && !errors.As(err, &exit)
}
