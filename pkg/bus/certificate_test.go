package bus_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// The certificate is created once; every later start uses the same key, so that the pins of machines stay valid. Only
// the owner may read it.
func TestCertificateIsCreatedOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	var pins []bus.Pin
	for range 2 {
		c, err := bus.EnsureCertificate(dir)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := c.Load()
		if err != nil {
			t.Fatal(err)
		}
		pin, err := bus.PinOf(pair)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := bus.ParsePin(pin.String()); err != nil || again != pin {
			t.Errorf("%v: %v", pin, err)
		}
		pins = append(pins, pin)
		for _, f := range []string{c.Cert, c.Key} {
			if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v", f, info, err)
			}
		}
	}
	if pins[0] != pins[1] {
		t.Error("the second start made another key")
	}
}

// A crash between the two files leaves a key without a certificate: the next start makes one for the same key. The
// certificate of a server of a cluster whose key was replaced without it is made anew, and an authority that lost its
// key says so.
func TestCertificateAfterCrash(t *testing.T) {
	t.Parallel()
	c, err := bus.EnsureCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	mustRemove(t, c.Cert)
	if _, err := bus.EnsureCertificate(filepath.Dir(c.Key)); err != nil {
		t.Errorf("a key without a certificate: %v", err)
	}
	if after, err := os.ReadFile(c.Key); err != nil || !bytes.Equal(key, after) {
		t.Errorf("the key changed: %v", err)
	}

	home := bus.Home{Data: t.TempDir()}
	lasting, boot := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(append(lasting, boot...)); err != nil {
		t.Fatal(err)
	}
	write := func() ([]bus.ClusterServer, error) {
		return home.WriteCluster(bus.ServerConfig{}, []string{"127.0.0.1:4222", "127.0.0.2:4222", "127.0.0.3:4222"})
	}
	if _, err := write(); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(home.ClusterFolder(), "ca.pem")
	mustRemove(t, ca)
	servers, err := write()
	if err != nil {
		t.Fatalf("an authority without a certificate: %v", err)
	}
	own := bus.Certificate{
		Cert: filepath.Join(servers[0].Folder, "cert.pem"),
		Key:  filepath.Join(servers[0].Folder, "key.pem"),
	}
	if err := os.WriteFile(own.Key, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := write(); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Load(); err != nil {
		t.Errorf("a server with a key of another certificate: %v", err)
	}
	mustRemove(t, filepath.Join(home.ClusterFolder(), "ca.key"))
	if _, err := write(); err == nil || !strings.Contains(err.Error(), "restore the file") ||
		strings.Contains(err.Error(), "nil") {
		t.Errorf("an authority without its key: %v", err)
	}
}

func mustRemove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// A certificate that cannot be used is explained, and no server starts with it.
func TestUnusableCertificateIsExplained(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, path, text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, own, other bus.Certificate)
		want   string
	}{
		"key of another certificate": {func(t *testing.T, own, other bus.Certificate) {
			b, err := os.ReadFile(other.Key)
			if err != nil {
				t.Fatal(err)
			}
			write(t, own.Key, string(b), 0o600)
		}, "the key that of the certificate"},
		"not PEM": {func(t *testing.T, own, _ bus.Certificate) {
			write(t, own.Cert, "no certificate", 0o600)
		}, "must be PEM files"},
		"missing key": {func(t *testing.T, own, _ bus.Certificate) { os.Remove(own.Key) }, "no such file"},
		"key readable by others": {func(t *testing.T, own, _ bus.Certificate) {
			if err := os.Chmod(own.Key, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, err := bus.EnsureCertificate(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			other, err := bus.EnsureCertificate(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			c.damage(t, own, other)
			if _, err := own.Load(); !errors.Is(err, bus.ErrCertificate) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			lasting, _ := subjects.Table().Roles()
			keys := bus.Keys{Dir: t.TempDir()}
			if _, err := keys.Ensure(lasting); err != nil {
				t.Fatal(err)
			}
			srv, err := bus.StartServer(bus.ServerConfig{Store: t.TempDir(), Certificate: own}, keys, nil)
			if err == nil {
				srv.Stop(t.Context())
				t.Error("a server started with it")
			}
		})
	}
}

// A client with the pin connects to the hub with this key, and to no other; the zero pin accepts none.
func TestPinAcceptsOneKeyOnly(t *testing.T) {
	t.Parallel()
	serve := func() (string, bus.Pin) {
		c, err := bus.EnsureCertificate(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := c.Load()
		if err != nil {
			t.Fatal(err)
		}
		pin, err := bus.PinOf(pair)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func(c net.Conn) { _ = c.(*tls.Conn).Handshake() }(conn)
			}
		}()
		return l.Addr().String(), pin
	}
	hub, pin := serve()
	stranger, _ := serve()
	dial := func(address string, p bus.Pin) error {
		conn, err := tls.Dial("tcp", address, p.ClientTLS())
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := dial(hub, pin); err != nil {
		t.Errorf("the hub itself: %v", err)
	}
	if err := dial(stranger, pin); !errors.Is(err, bus.ErrPin) {
		t.Errorf("another server: %v", err)
	}
	if err := dial(hub, bus.Pin{}); !errors.Is(err, bus.ErrPin) {
		t.Errorf("the zero pin: %v", err)
	}
}

// Leaf nodes have a port of their own from the start, and TLS with the key of the certificate from the first byte.
func TestLeafNodesListenWithTLS(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c, err := bus.EnsureCertificate(filepath.Join(b.Dir, "tls"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := c.Load()
	if err != nil {
		t.Fatal(err)
	}
	pin, err := bus.PinOf(pair)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", b.Server.LeafAddress(), pin.ClientTLS())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
		t.Errorf("%q: %v", line, err)
	}
}
