// Package acceptance has tests only: each starts whole systems, as config composes them, and damages, stops, kills or
// asks them.
package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/datatest"
	"conclave/subjects"
)

// testTimeout is how long a test waits for what must come.
const testTimeout = time.Minute

// newHome is an installation of its own, without programs in the sandbox.
func newHome(t testing.TB) bus.Home {
	t.Helper()
	return homeIn(datatest.Dir(t))
}

// newProgramHome is an installation of its own whose MCP servers have their working folders beside its data folder.
func newProgramHome(t testing.TB) bus.Home {
	t.Helper()
	return homeIn(t.TempDir())
}

func homeIn(dir string) bus.Home {
	return bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
}

// noOllama is the address of no server, so that no test asks an Ollama that happens to run on this machine.
const noOllama = "http://127.0.0.1:1"

// settings are the shipped ones on a free port, with more flags laid over: path, value, path, value. No test cuts the
// power, so that nothing waits for the disk.
func settings(t testing.TB, more ...string) config.Config {
	t.Helper()
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	c.Models.Ollama.URL = noOllama
	flags := map[string]string{"system.listen": "127.0.0.1:0", "system.sync": "10s"}
	for i := 0; i < len(more); i += 2 {
		flags[more[i]] = more[i+1]
	}
	if err := c.Apply(flags); err != nil {
		t.Fatal(err)
	}
	return c
}

// up starts the system, or only some actors of it, and stops it with the test at the latest.
func up(t testing.TB, c config.Config, home bus.Home, names ...string) *config.Instance {
	t.Helper()
	r, err := c.Start(t.Context(), home, nil, names...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	return r
}

func down(t testing.TB, r *config.Instance) {
	t.Helper()
	if err := r.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// busCaller is a connection of the operator.
type busCaller struct {
	out actor.Out
	nc  *nats.Conn
}

func dialOperator(t testing.TB, b *bus.Bus) busCaller {
	t.Helper()
	nc := bustest.Dial(t, b, "operator")
	out, err := actor.NewOut(nc)
	if err != nil {
		t.Fatal(err)
	}
	return busCaller{out, nc}
}

// callTool asks the broker for a tool. What the bus says instead of a result comes back as the result's error.
func (p busCaller) callTool(ctx context.Context, tool, id, args string) subjects.ToolResult {
	s, err := subjects.ToolRequestService.With(tool)
	if err != nil {
		return subjects.ToolResult{Error: subjects.Faultf(subjects.CodeSubject, "%v", err)}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, testTimeout)
		defer cancel()
	}
	res, err := actor.Ask(ctx, p.out, s, subjects.ToolRequest{CallID: id, Args: json.RawMessage(args)})
	var fault *subjects.Fault
	switch {
	case errors.As(err, &fault):
		res.Error = fault
	case err != nil:
		res.Error = subjects.Faultf(subjects.CodeUnavailable, "%v", err)
	}
	return res
}

const utc = `{"timezone":"UTC"}`

// calls makes n calls of the clock that must succeed.
func calls(t testing.TB, b *bus.Bus, n int) {
	t.Helper()
	p := dialOperator(t, b)
	for range n {
		if res := p.callTool(t.Context(), "get_datetime", actor.NewID(), utc); res.Error != nil {
			t.Fatalf("a good call: %v", res.Error)
		}
	}
}

// verifyLog checks the audit log on the bus against its anchors, with the auditor's key.
func verifyLog(t testing.TB, home bus.Home, b *bus.Bus) (audit.Report, error) {
	t.Helper()
	nc := bustest.Dial(t, b, "auditor")
	defer nc.Close()
	heads, err := audit.ReadHeads(home.Heads())
	if err != nil {
		return audit.Report{}, err
	}
	src, err := bus.NewAuditReader(nc).ReadAll(t.Context())
	if err != nil {
		return audit.Report{}, err
	}
	return auditlog.VerifySource(t.Context(), home, src, heads, nil)
}

// verified is the report on an audit log that must be whole.
func verified(t testing.TB, home bus.Home, b *bus.Bus) audit.Report {
	t.Helper()
	rep, err := verifyLog(t, home, b)
	if err != nil {
		t.Fatal(err)
	}
	if !rep.OK {
		t.Fatalf("%d problems, the first: %v", rep.Bad, rep.First)
	}
	return rep
}

// decoded are the records of a message.
func decoded(t testing.TB, st audit.Stored) []subjects.AuditRecord {
	t.Helper()
	batch, err := audit.DecodeBatch(st.Data)
	if err != nil {
		t.Fatal(err)
	}
	var out []subjects.AuditRecord
	for _, d := range batch {
		out = append(out, d.Record)
	}
	return out
}

// syncBuffer is a log that many write to.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func debugLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// full reports whether the long form of the tests of destruction was asked for.
func full() bool { return os.Getenv("CONCLAVE_CHAOS") != "" }

// chaosSeed is CONCLAVE_SEED, or the seed of the short form.
func chaosSeed(shipped int64) int64 {
	if seed, err := strconv.ParseInt(os.Getenv("CONCLAVE_SEED"), 10, 64); err == nil {
		return seed
	}
	return shipped
}

func TestStart(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	cfg := settings(t)
	keys := func() map[string]string {
		t.Helper()
		out := map[string]string{}
		entries, err := os.ReadDir(home.Keys().Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(home.Keys().Dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
		return out
	}

	start := time.Now()
	r := up(t, cfg, home, config.Actors...)
	first := time.Since(start)
	calls(t, r.Bus, 2)
	made := keys()
	lasting, boot := subjects.Table().Roles()
	if len(made) != len(lasting)+1 { // and the key of the hashes
		t.Errorf("%d keys for %d roles", len(made), len(lasting))
	}
	for _, role := range boot {
		if made[role+".nk"] != "" {
			t.Errorf("the key of %s is on the disk", role)
		}
	}

	// A second one on the same folder is told where the first one is.
	if _, err := cfg.Start(t.Context(), home, nil, config.Actors...); !errors.Is(err, bus.ErrInUse) ||
		!strings.Contains(err.Error(), r.Bus.URL) {
		t.Errorf("a second one: %v", err)
	}
	calls(t, r.Bus, 1) // and the first goes on

	if at, err := home.ReadRunning(); err != nil || at.URL != r.Bus.URL || at.PID != os.Getpid() {
		t.Errorf("it says it is at %+v, %v", at, err)
	}
	stop := time.Now()
	down(t, r)
	stopped := time.Since(stop)
	if _, err := home.ReadRunning(); !errors.Is(err, bus.ErrNotRunning) {
		t.Errorf("after the stop: %v", err)
	}

	start = time.Now()
	r = up(t, cfg, home, "broker", "tools") // the order of starting is not the order of writing
	again := time.Since(start)
	calls(t, r.Bus, 2)
	if rep := verified(t, home, r.Bus); rep.Chains != 3 || rep.Pending+rep.Unfinished != 0 {
		t.Errorf("%+v", rep)
	}
	if now := keys(); !maps.Equal(now, made) {
		t.Error("a restart made other keys")
	}
	t.Logf("first start %s, stop %s, second start %s", first, stopped, again)
	for what, d := range map[string]time.Duration{"first start": first, "stop": stopped, "second start": again} {
		if d > testTimeout {
			t.Errorf("%s took %s", what, d)
		}
	}
}

// One actor after the other, in either order: whoever comes later is found without a restart.
func TestRunOneByOne(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"broker", "tools"}, {"get_datetime", "broker"}} {
		t.Run(strings.Join(order, " then "), func(t *testing.T) {
			home, cfg := newHome(t), settings(t)
			r := up(t, cfg, home)
			p := dialOperator(t, r.Bus)
			if res := p.callTool(t.Context(), "get_datetime", "c0", utc); res.Error == nil ||
				res.Error.Code != subjects.CodeUnavailable {
				t.Fatalf("without actors: %+v", res)
			}
			for _, name := range order {
				if err := r.Run(t.Context(), cfg, home, nil, name); err != nil {
					t.Fatal(err)
				}
			}
			deadline := time.Now().Add(testTimeout)
			for {
				res := p.callTool(t.Context(), "get_datetime", actor.NewID(), utc)
				if res.Error == nil {
					break
				}
				if res.Error.Code != subjects.CodeUnknownTool || time.Now().After(deadline) {
					t.Fatal(res.Error)
				}
			}
			verified(t, home, r.Bus)
		})
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	cfg := settings(t)
	if _, err := cfg.Start(t.Context(), newHome(t), nil, "brocker"); err == nil ||
		!strings.Contains(err.Error(), `unknown actor "brocker"`) {
		t.Errorf("a misspelled actor: %v", err)
	}
	taken := up(t, cfg, newHome(t))
	other := settings(t, "system.listen", strings.TrimPrefix(taken.Bus.URL, "nats://"))
	home := newHome(t)
	if _, err := other.Start(t.Context(), home, nil); !errors.Is(err, bus.ErrPortTaken) {
		t.Errorf("a port that was asked for and is taken: %v", err)
	}
	up(t, cfg, home) // what failed has let go of the folder
}

// Actors may live in another process than the server; here both are this one, over TCP.
func TestJoin(t *testing.T) {
	t.Parallel()
	home, cfg := newHome(t), settings(t)
	r := up(t, cfg, home, "tools")
	far, err := cfg.Join(t.Context(), home, r.Bus.URL, nil, "broker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, far) })
	calls(t, far.Bus, 2)
	verified(t, home, r.Bus)
	if _, err := cfg.Join(t.Context(), home, "nats://127.0.0.1:1", nil, "broker"); !errors.Is(err, bus.ErrUnreachable) {
		t.Errorf("no server: %v", err)
	}
}

// TestStartWithoutLastManifestFails: a system that ran with the user's manifest does not start with the shipped one
// when the file is gone, and starts again when it is restored or the user gives it up.
func TestStartWithoutLastManifestFails(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	if err := os.MkdirAll(home.Config, 0o700); err != nil {
		t.Fatal(err)
	}
	const mine = "types:\n  assistant:\n    tools: [get_datetime]\naccounts:\n  generator: assistant\n"
	file, last := filepath.Join(home.Config, "manifest.yaml"), filepath.Join(home.Data, "manifest.last.yaml")
	start := func() error {
		c, err := config.Load(home.Config)
		if err != nil {
			return err
		}
		if err := c.Apply(map[string]string{"system.listen": "127.0.0.1:0"}); err != nil {
			return err
		}
		r, err := c.Start(t.Context(), home, nil, "broker")
		if err != nil {
			return err
		}
		r.Stop(context.WithoutCancel(t.Context()))
		return nil
	}
	if err := os.WriteFile(file, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := start(); err == nil || !strings.Contains(err.Error(), "manifest.yaml is gone: to restore it: cp "+last+
		" "+file) {
		t.Fatalf("with the manifest deleted: %v", err)
	}
	if err := os.Symlink("nowhere", file); err != nil {
		t.Fatal(err)
	}
	if err := start(); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("with a dangling link: %v", err)
	}
	data, err := os.ReadFile(last)
	if err != nil || string(data) != mine {
		t.Fatalf("the copy is %q, %v", data, err)
	}
	if err := errors.Join(os.Remove(file), os.WriteFile(file, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := start(); err != nil {
		t.Errorf("restored: %v", err)
	}
	if err := errors.Join(os.Remove(file), os.Remove(last)); err != nil {
		t.Fatal(err)
	}
	if err := start(); err != nil {
		t.Errorf("given up: %v", err)
	}
}
