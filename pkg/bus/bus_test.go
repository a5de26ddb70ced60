package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestGeneratedFilesMatchTable checks that the generated files match the table.
func TestGeneratedFilesMatchTable(t *testing.T) {
	t.Parallel()
	l := subjects.Table()
	for name, want := range map[string]string{"nats.conf": l.Conf(), "docs/bus.md": l.Doc()} {
		got, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the table says: run go generate ./subjects", name)
		}
	}
}

func TestEnsureNeverRewritesKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "keys")
	k := bus.Keys{Dir: dir}
	roles := []string{"user", "broker"}
	if n, err := k.Ensure(roles); err != nil || n != 2 {
		t.Fatalf("Ensure = %d, %v", n, err)
	}
	checkMode(t, dir, 0o700)
	before := map[string]string{}
	for _, r := range roles {
		checkMode(t, k.Path(r), 0o600)
		before[r] = readAuditMessages(t, k.Path(r))
	}
	if before["user"] == before["broker"] {
		t.Error("two roles have one key")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	// Never rewritten, not even a damaged one: the user must decide.
	if err := os.WriteFile(k.Path("broker"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := k.Ensure(append(roles, "critic")); err != nil || n != 1 {
		t.Errorf("second Ensure = %d, %v, want the one that was missing", n, err)
	}
	if got := readAuditMessages(t, k.Path("user")); got != before["user"] {
		t.Error("an existing key was rewritten")
	}
	if got := readAuditMessages(t, k.Path("broker")); got != "broken" {
		t.Error("a damaged key was rewritten")
	}
	if _, err := k.Seed("broker"); err == nil || !strings.Contains(err.Error(), k.Path("broker")) ||
		!strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "broken") {
		t.Errorf("a damaged file: %v, want its name and not its content", err)
	}
	if _, err := k.Seed("nobody"); !errors.Is(err, bus.ErrMissingKey) ||
		!strings.Contains(err.Error(), k.Path("nobody")) {
		t.Errorf("a missing file: %v, want ErrMissingKey and its name", err)
	}
	pub, err := k.Public("user")
	if err != nil || !strings.HasPrefix(pub, "U") {
		t.Errorf("Public = %q, %v", pub, err)
	}
}

func TestSeedRejectsReadableKeyFile(t *testing.T) {
	t.Parallel()
	k := bus.Keys{Dir: t.TempDir()}
	if _, err := k.Ensure([]string{"user"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []fs.FileMode{0o640, 0o604, 0o620, 0o660, 0o666, 0o601} {
		if err := os.Chmod(k.Path("user"), m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Seed("user"); err == nil || !strings.Contains(err.Error(), "chmod 600") ||
			!strings.Contains(err.Error(), k.Path("user")) {
			t.Errorf("mode %o: %v, want a refusal that says what to do", m, err)
		}
	}
	for _, m := range []fs.FileMode{0o600, 0o400} { // the control
		if err := os.Chmod(k.Path("user"), m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Seed("user"); err != nil {
			t.Errorf("mode %o: %v", m, err)
		}
	}
}

// TestConcurrentEnsureSharesKeys: concurrent first starts end up with the same complete keys.
func TestConcurrentEnsureSharesKeys(t *testing.T) {
	t.Parallel()
	k := bus.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	lasting, _ := subjects.Table().Roles()
	const starts = 4
	seen := make([]map[string]string, starts)
	var wg sync.WaitGroup
	for i := range starts {
		wg.Go(func() {
			if _, err := k.Ensure(lasting); err != nil {
				t.Error(err)
				return
			}
			seen[i] = map[string]string{}
			for _, r := range lasting {
				pub, err := k.Public(r)
				if err != nil {
					t.Error(err)
				}
				seen[i][r] = pub
			}
		})
	}
	wg.Wait()
	for i := range starts {
		for _, r := range lasting {
			if seen[i][r] != seen[0][r] {
				t.Errorf("start %d has another key for %s", i, r)
			}
		}
	}
}

func checkMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %o, want %o", path, got, want)
	}
}

func readAuditMessages(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDialErrorsAreDistinct: each failure to connect has its own error, which names the role.
func TestDialErrorsAreDistinct(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	strange := bus.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	if _, err := strange.Ensure([]string{"generator"}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // an address at which nobody will answer
	if err != nil {
		t.Fatal(err)
	}
	dead := "nats://" + l.Addr().String()
	l.Close()
	for _, tt := range []struct {
		name string
		bus  *bus.Bus
		want error
	}{
		{
			"key of another installation", &bus.Bus{URL: b.URL, Keys: strange, Server: b.Server, TCP: true},
			bus.ErrKeyRejected,
		},
		{"nobody there", &bus.Bus{URL: dead, Keys: b.Keys}, bus.ErrUnreachable},
		{"no key file", &bus.Bus{URL: b.URL, Keys: bus.Keys{Dir: t.TempDir()}}, bus.ErrMissingKey},
	} {
		nc, err := tt.bus.Dial("generator")
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", tt.name)
			continue
		}
		for _, other := range []error{bus.ErrKeyRejected, bus.ErrUnreachable, bus.ErrMissingKey} {
			if errors.Is(err, other) != (other == tt.want) {
				t.Errorf("%s: %v: is %v = %v", tt.name, err, other, errors.Is(err, other))
			}
		}
		if !strings.Contains(err.Error(), "generator") {
			t.Errorf("%s: %v does not name the role", tt.name, err)
		}
	}
	nc, err := b.Dial("generator") // the control
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestStartServerReportsPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	keys := bus.Keys{Dir: filepath.Join(dir, "keys")}
	lasting, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(lasting); err != nil {
		t.Fatal(err)
	}
	_, err = bus.StartServer(bus.ServerConfig{Listen: l.Addr().String(), Store: filepath.Join(dir, "jetstream")}, keys,
		nil)
	if !errors.Is(err, bus.ErrPortTaken) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v, want ErrPortTaken and the address", err)
	}
}

// TestConfirmSubscriptionsReportsDenial: a denied subscription is reported before the actor is ready.
func TestConfirmSubscriptionsReportsDenial(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	troubles := make(chan bus.ConnError, 8)
	b.OnConnError = func(tr bus.ConnError) { troubles <- tr }
	nc, err := b.Dial("critic")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.SubscribeSync("tool.request.compare_answers"); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Errorf("its own tool: %v", err)
	}
	if _, err := nc.SubscribeSync("tool.request.run_shell"); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("another's tool: %v, want a permission violation", err)
	}
	select {
	case tr := <-troubles:
		if !tr.IsDenied() || tr.Role != "critic" {
			t.Errorf("heard of %+v, want a denial of critic", tr)
		}
	case <-time.After(testTimeout):
		t.Error("nobody heard of the violation")
	}
}

// TestRestartKeepsStreamsAndClients: port, streams, acknowledged messages and clients survive.
func TestRestartKeepsStreamsAndClients(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	url := b.Server.URL()
	type client struct {
		nc   *nats.Conn
		back chan struct{}
	}
	var clients []client
	for _, tcp := range []bool{false, true} {
		for _, role := range []string{"generator", "user"} {
			back := make(chan struct{}, 8)
			c := &bus.Bus{URL: b.URL, Keys: b.Keys, Server: b.Server, TCP: tcp}
			nc, err := c.Dial(role, nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			clients = append(clients, client{nc, back})
		}
	}
	sub, err := clients[3].nc.SubscribeSync("response.generation")
	if err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), clients[3].nc); err != nil {
		t.Fatal(err)
	}
	const acked = 50
	for i := range acked {
		if _, err := clients[0].nc.Request("response.generation", fmt.Appendf(nil, "%d", i), testTimeout); err != nil {
			t.Fatal(err)
		}
	}

	if err := b.Server.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := b.Server.URL(); got != url {
		t.Errorf("listens at %s, was %s", got, url)
	}
	for i, c := range clients {
		select {
		case <-c.back:
		case <-time.After(testTimeout):
			t.Fatalf("client %d does not come back: %v", i, c.nc.LastError())
		}
		if err := c.nc.FlushTimeout(testTimeout); err != nil { // its subscriptions are known to the new server too
			t.Fatal(err)
		}
	}
	js, err := bustest.CoreJetStream(clients[1].nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testTimeout); st.CachedInfo().State.Msgs < acked && time.Now().Before(end); {
		if _, err := st.Info(t.Context()); err != nil { // EVENTS continues to take the events of their author
			t.Fatal(err)
		}
	}
	if got := st.CachedInfo().State; got.Msgs != acked || got.LastSeq != acked {
		t.Errorf("%d messages up to %d, want the %d that were acknowledged", got.Msgs, got.LastSeq, acked)
	}
	m, err := st.GetMsg(t.Context(), acked)
	if err != nil || string(m.Data) != fmt.Sprint(acked-1) || m.Subject != "from.generator.response.generation" {
		t.Errorf("the last one is %v, %v", m, err)
	}
	// Both kinds of client publish and receive as before, with the same permissions.
	for i := range 2 {
		if _, err := clients[2*i].nc.Request("response.generation", []byte("after"), testTimeout); err != nil {
			t.Error(err)
		}
	}
	for heard := 0; heard < acked+2; heard++ {
		if _, err := sub.NextMsg(testTimeout); err != nil {
			t.Fatalf("heard %d: %v", heard, err)
		}
	}
	if err := b.Server.Provision(t.Context(), []byte("x")); err == nil {
		t.Error("a restart brought the provisioners' keys back")
	}
	b.Server.Stop(context.Background())
	if err := b.Server.Restart(); err == nil {
		t.Error("restarted after a stop for good")
	}
}

func TestWriteContextsKeepsOtherInstallation(t *testing.T) {
	t.Parallel()
	config := t.TempDir()
	mine, other := bus.Keys{Dir: t.TempDir()}, bus.Keys{Dir: t.TempDir()}
	for _, k := range []bus.Keys{mine, other} {
		if _, err := k.Ensure([]string{"user", "auditor"}); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := bus.WriteContexts(config, mine, "nats://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); !errors.Is(err, bus.ErrOtherContext) {
		t.Errorf("another installation's contexts were taken over: %v", err)
	}
	// Neither is written when only the second is another's.
	first := filepath.Join(folder, "conclave.json")
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); !errors.Is(err, bus.ErrOtherContext) {
		t.Errorf("another installation's audit context was taken over: %v", err)
	}
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one of two contexts was written before the other was found to be foreign: %v", err)
	}
	if _, err := bus.WriteContexts(config, mine, "nats://127.0.0.1:3", ""); err != nil {
		t.Errorf("one's own contexts cannot be moved to a new address: %v", err)
	}
	if err := os.RemoveAll(mine.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", ""); err != nil {
		t.Errorf("contexts whose installation is gone stay for ever: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(folder, "conclave-audit.json"))
	if err != nil || !strings.Contains(string(b), `"jetstream_api_prefix": "auditlog.API"`) {
		t.Errorf("the audit's context is %s, %v", b, err)
	}
	// A context of the user's own is kept, however it authenticates.
	for _, own := range []string{
		`{"description":"mine","url":"nats://elsewhere","user":"me"}`,
		`{"url":"nats://elsewhere","creds":"/a.creds"}`, `{"description":"Conclave's audit, read only","token":"x"}`,
		"not JSON", "",
	} {
		if err := os.WriteFile(filepath.Join(folder, "conclave-audit.json"), []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := bus.WriteContexts(config, other, "nats://127.0.0.1:2", "")
		if b, _ := os.ReadFile(filepath.Join(folder, "conclave-audit.json")); !errors.Is(err, bus.ErrOtherContext) ||
			string(b) != own {
			t.Errorf("the user's context %s became %s, %v", own, b, err)
		}
	}
}

// Only the default data folder has contexts in the user's home.
func TestNATSConfigOfTemporaryData(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	usual, err := bus.DefaultHome()
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{usual.Data: filepath.Join(dir, "config"), "/tmp/x": "/tmp/x"} {
		if got, err := (bus.Home{Data: data}).NATSConfig(); got != want || err != nil {
			t.Errorf("%s: %s, %v", data, got, err)
		}
	}
}

func TestCreateFoldersRejectsWritableFolder(t *testing.T) {
	for _, which := range []string{"data", "config"} {
		dir := t.TempDir()
		home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
		if err := home.CreateFolders(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, which), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := home.CreateFolders(); !errors.Is(err, bus.ErrFolderWritable) ||
			!strings.Contains(err.Error(), "chmod 700") {
			t.Errorf("%s: %v", which, err)
		}
	}
}

// TestEnvIsSafeToSource has a data folder whose name would run a command if the file were quoted carelessly.
func TestEnvIsSafeToSource(t *testing.T) {
	dir := t.TempDir()
	home := bus.Home{Data: filepath.Join(dir, "a'; touch marker; '"), Config: filepath.Join(dir, "c")}
	if err := home.CreateFolders(); err != nil {
		t.Fatal(err)
	}
	lasting, boot := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(append(lasting, boot...)); err != nil {
		t.Fatal(err)
	}
	if err := home.WriteEnv(bus.ServerConfig{Store: home.Store()}); err != nil {
		t.Fatal(err)
	}
	sh := exec.Command("sh", "-c", `. "$0" && printf %s "$CONCLAVE_STORE"`, home.Env())
	sh.Dir = dir
	out, err := sh.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := strconv.Quote(home.Store()); string(out) != want {
		t.Errorf("CONCLAVE_STORE is %s, want %s", out, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "marker")); err == nil {
		t.Error("sourcing the file ran a command")
	}
}
