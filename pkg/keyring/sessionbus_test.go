package keyring_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	session "github.com/godbus/dbus"
	"github.com/godbus/dbus/v5"

	"conclave/pkg/keyring"
)

const (
	busVariable   = "DBUS_SESSION_BUS_ADDRESS"
	childVariable = "CONCLAVE_KEYRING_CHILD"
)

// childReport is what the child process of startChild observed.
type childReport struct {
	Env   string       `json:"env"`
	Set   bool         `json:"set"`
	Info  keyring.Info `json:"info"`
	Error string       `json:"error"`
}

// TestMain runs the test binary as a child process when [childVariable] names a folder: with the argument "open" it
// opens a keyring there, else it only starts.
func TestMain(m *testing.M) {
	dir := os.Getenv(childVariable)
	if dir == "" { // neither the desktop nor the pass of the user who runs the tests
		os.Setenv("PASSWORD_STORE_DIR", "/nonexistent")
		os.Setenv(busVariable, "unix:path=/nonexistent/bus")
		os.Exit(m.Run())
	}
	var report childReport
	if slices.Contains(os.Args, "open") {
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		_, info, err := keyring.Open(ctx, keyring.Config{
			Backend: keyring.Auto, Dir: filepath.Join(dir, "ring"),
			Key: filepath.Join(dir, "key"),
		})
		report.Info = info
		if err != nil {
			report.Error = err.Error()
		}
	}
	report.Env, report.Set = os.LookupEnv(busVariable)
	_ = json.NewEncoder(os.Stdout).Encode(report)
	os.Exit(0)
}

// startChild runs the test binary as a child process. It fails the test if the child starts dbus-launch.
func startChild(t *testing.T, env []string, args ...string) childReport {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "dbus-launch"), []byte("#!/bin/sh\necho started > "+dir+"/launched\n"),
		0o700))
	cmd := exec.Command(exe, args...)
	cmd.Env = append(env, childVariable+"="+dir, "HOME="+dir, "PATH="+dir, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	var report childReport
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "launched")); err == nil {
		t.Errorf("the process started dbus-launch")
	}
	return report
}

// fakeBus is a session bus with a Secret Service that has one collection at most.
type fakeBus struct {
	socket      string
	fault       busFault
	connections atomic.Int32
	calls       atomic.Int32 // method calls after Hello

	mu         sync.Mutex
	open       []net.Conn
	collection bool
	items      map[string][]byte // value by label
}

// busFault is the point at which a fakeBus stops to answer.
type busFault int

const (
	noFault         busFault = iota
	silent                   // accepts connections and never answers
	rejectsUser              // refuses the authentication
	silentOnHello            // authenticates, then does not answer
	notABus                  // answers Hello with another protocol
	noSecretService          // answers Hello, then nothing
)

// startBus listens on a socket until the test ends.
func startBus(t *testing.T, fault busFault) *fakeBus {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus-*") // a D-Bus address must not contain the commas of a test's name
	must(t, err)
	b := &fakeBus{socket: filepath.Join(dir, "bus"), fault: fault, items: map[string][]byte{}}
	l, err := net.Listen("unix", b.socket)
	must(t, err)
	t.Cleanup(func() { l.Close(); b.closeConnections(); os.RemoveAll(dir) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.connections.Add(1)
			b.mu.Lock()
			b.open = append(b.open, c)
			b.mu.Unlock()
			go b.serve(c)
		}
	}()
	return b
}

func (b *fakeBus) closeConnections() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.open {
		c.Close()
	}
	b.open = nil
}

// serve authenticates the client and then answers its method calls.
func (b *fakeBus) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for b.fault != silent {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch line = strings.TrimLeft(strings.TrimSpace(line), "\x00"); {
		case line == "BEGIN":
			b.answerCalls(c, in)
			return
		case b.fault == rejectsUser || line == "AUTH":
			_, _ = io.WriteString(c, "REJECTED EXTERNAL\r\n")
		default:
			_, _ = io.WriteString(c, "OK 1234deadbeef\r\n")
		}
	}
	_, _ = io.Copy(io.Discard, in)
}

func (b *fakeBus) answerCalls(c net.Conn, in io.Reader) {
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		method := call.Headers[dbus.FieldMember].Value().(string)
		switch {
		case method != "Hello":
			b.calls.Add(1)
			if b.fault == noSecretService {
				continue
			}
		case b.fault == silentOnHello:
			continue
		case b.fault == notABus:
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			continue
		}
		body := b.answer(method, string(call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)), call.Body)
		reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
			dbus.FieldSender:      dbus.MakeVariant("org.freedesktop.DBus"),
		}, Body: body}
		if len(body) > 0 {
			reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
		}
		_ = reply.EncodeTo(c, binary.LittleEndian)
	}
}

const (
	collectionPath = "/org/freedesktop/secrets/collection/conclave"
	noPrompt       = dbus.ObjectPath("/")
)

// fakeSecret is a secret of the Secret Service specification.
type fakeSecret struct {
	Session     dbus.ObjectPath
	Parameters  []byte
	Value       []byte
	ContentType string
}

// answer returns the body of the reply to a method call of the Secret Service, of its objects or of the bus.
func (b *fakeBus) answer(method, path string, args []any) []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	label := unescapeLabel(strings.TrimPrefix(path, collectionPath+"/"))
	switch method {
	case "Hello":
		return []any{":1.7"}
	case "OpenSession":
		return []any{dbus.MakeVariant(""), dbus.ObjectPath("/org/freedesktop/secrets/session/s1")}
	case "CreateCollection":
		b.collection = true
		return []any{dbus.ObjectPath(collectionPath), noPrompt}
	case "Unlock":
		return []any{args[0], noPrompt}
	case "SearchItems":
		found := []dbus.ObjectPath{}
		if want := args[0].(map[string]string)["profile"]; b.items[want] != nil {
			found = append(found, itemPath(want))
		}
		return []any{found}
	case "CreateItem":
		label := args[0].(map[string]dbus.Variant)["org.freedesktop.Secret.Item.Label"].Value().(string)
		b.items[label] = args[1].([]any)[2].([]byte)
		return []any{itemPath(label), noPrompt}
	case "GetSecret":
		return []any{fakeSecret{
			Session: args[0].(dbus.ObjectPath), Value: b.items[label],
			ContentType: "application/json",
		}}
	case "Delete":
		delete(b.items, label)
		return []any{noPrompt}
	case "Get":
		return []any{b.property(args[1].(string), label)}
	}
	return nil
}

// property returns a property of the service, of the collection or of the item label.
func (b *fakeBus) property(name, label string) dbus.Variant {
	paths := []dbus.ObjectPath{}
	switch name {
	case "Collections":
		if b.collection {
			paths = append(paths, collectionPath)
		}
	case "Items":
		for label := range b.items {
			paths = append(paths, itemPath(label))
		}
	case "Label":
		return dbus.MakeVariant(label)
	case "Locked":
		return dbus.MakeVariant(false)
	}
	return dbus.MakeVariant(paths)
}

// itemPath returns the object path of an item: a dash cannot stand in a path.
func itemPath(label string) dbus.ObjectPath {
	return dbus.ObjectPath(collectionPath + "/" + strings.ReplaceAll(label, "-", "_2d"))
}

func unescapeLabel(element string) string { return strings.ReplaceAll(element, "_2d", "-") }

// A process that links the library neither dials the session bus nor changes its environment when it starts.
func TestStartDoesNotUseSessionBus(t *testing.T) {
	t.Parallel()
	b := startBus(t, silent)
	for _, env := range [][]string{
		nil,
		{busVariable + "="},
		{busVariable + "=autolaunch:"},
		{busVariable + "=unix:path=" + b.socket},
	} {
		report := startChild(t, env)
		if set := len(env) > 0; report.Set != set || set && busVariable+"="+report.Env != env[0] {
			t.Errorf("%v: the environment has %q", env, report.Env)
		}
	}
	if n := b.connections.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// With auto, a session bus that does not work is skipped in time, and the reason is reported.
func TestOpenSkipsSessionBus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		fault  busFault
		reason string
	}{
		{"silent", silent, "authenticating: timeout"},
		{"another user's", rejectsUser, "authenticating: "},
		{"trick: silent after the authentication", silentOnHello, "greeting: timeout"},
		{"trick: another protocol", notABus, "greeting: "},
		{"without a Secret Service", noSecretService, "timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := startBus(t, tt.fault)
			env := busVariable + "=unix:path=" + b.socket
			report := startChild(t, []string{env}, "open")
			if !report.Set || busVariable+"="+report.Env != env {
				t.Errorf("the environment has %q", report.Env)
			}
			if report.Error != "" || report.Info.Backend != keyring.File || len(report.Info.Skipped) != 3 ||
				!strings.Contains(report.Info.Skipped[0].Reason, tt.reason) {
				t.Errorf("%+v %s", report.Info, report.Error)
			}
			if b.connections.Load() == 0 || tt.fault == noSecretService && b.calls.Load() == 0 {
				t.Error("the bus was not tried")
			}
		})
	}
}

// An address without a unix socket is not dialed, no program is started, and the environment stays as it is.
func TestInvalidSessionBusAddress(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/run/user/" + strconv.Itoa(os.Getuid()) + "/bus"); err == nil {
		t.Log("this machine has a desktop: only the rows with an address show something")
	}
	for _, tt := range []struct {
		name, address, reason string
	}{
		{"gone", "unix:path=/nonexistent/bus", "no such file"},
		{"trick: a program", "unixexec:path=/bin/sh", "no unix socket"},
		{"trick: another machine", "tcp:host=192.0.2.1,port=1", "no unix socket"},
		{"trick: two kinds of path", "unix:path=/a,abstract=b", "no unix socket"},
		{"trick: no path", ";;:;unix:;unix:abstract=", "no unix socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			report := startChild(t, []string{busVariable + "=" + tt.address}, "open")
			if report.Env != tt.address || report.Info.Backend != keyring.File ||
				!strings.Contains(report.Info.Skipped[0].Reason, tt.reason) {
				t.Errorf("%+v", report)
			}
		})
	}
}

// The library stores credentials in a Secret Service through the replaced D-Bus module, also after a lost connection.
func TestSecretServiceBackend(t *testing.T) {
	b := startBus(t, noFault)
	t.Setenv(busVariable, "unix:path="+b.socket)
	t.Cleanup(func() { waitDisconnected(t) }) // the connection belongs to the process, and other tests expect none
	t.Cleanup(b.closeConnections)
	cfg := newConfig(t, keyring.SecretService)
	r, info := open(t, cfg)
	if info.Backend != keyring.SecretService {
		t.Fatalf("%+v", info)
	}
	testRing(t, r, func() keyring.Ring { r, _ := open(t, cfg); return r })

	b.closeConnections()
	waitDisconnected(t)
	if _, err := r.Get(t.Context(), "bytes"); err != nil {
		t.Errorf("after a lost connection: %v", err)
	}
	b.closeConnections()
	waitDisconnected(t)
	t.Setenv(busVariable, "unix:path=/nonexistent/bus")
	if _, err := r.Get(t.Context(), "bytes"); !errors.Is(err, keyring.ErrUnavailable) ||
		!strings.Contains(err.Error(), "session bus") {
		t.Errorf("without a session bus: %v", err)
	}
}

func waitDisconnected(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testTimeout); session.Connected(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still connected")
		}
	}
}
