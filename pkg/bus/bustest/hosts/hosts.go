// Package hosts stands in for several machines in a test: network namespaces with addresses of their own, joined by a
// switch. A test cuts and heals their links and makes them lossy. Nothing of the machine's own network is touched, and
// the namespaces disappear with the test, also when it is killed.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"conclave/pkg/programtest"
)

// Host is a machine of the test.
type Host struct {
	Name string
	Addr netip.Addr

	t    testing.TB
	net  *network
	port string // of the switch
	id   int    // process that keeps the namespace
}

// network is the switch between the hosts, in a namespace of its own.
type network struct {
	t  testing.TB
	id int
}

// Start returns a host for each name, all of which reach one another and nothing else. They end with the test. Without
// the right to make namespaces, or without the programs ip, nft, nsenter and sleep, the test says so: it is skipped,
// and fails in CI.
func Start(t testing.TB, names ...string) []*Host {
	t.Helper()
	for _, program := range []string{"ip", "nft", "nsenter", "sleep"} {
		programtest.Require(t, "apt-get install iproute2 nftables util-linux coreutils", program)
	}
	id, err := startNamespace(t)
	if err != nil {
		programtest.SkipIf(t, fmt.Errorf("network namespaces are not permitted (%w): run the test as root, with "+
			"CAP_NET_ADMIN and CAP_SYS_ADMIN", err))
	}
	n := &network{t: t, id: id}
	if out, err := n.run(id, "ip", "link", "add", "switch", "type", "bridge"); err != nil {
		programtest.SkipIf(t, fmt.Errorf("a network namespace cannot be configured: %s", out))
	}
	n.must(id, "ip", "link", "set", "switch", "up")
	var all []*Host
	addr := netip.MustParseAddr("10.77.0.1")
	for i, name := range names {
		if id, err = startNamespace(t); err != nil {
			t.Fatal(err)
		}
		h := &Host{Name: name, Addr: addr, t: t, net: n, port: "port" + strconv.Itoa(i), id: id}
		n.must(n.id, "ip", "link", "add", h.port, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(id))
		n.must(n.id, "ip", "link", "set", h.port, "master", "switch", "up")
		n.must(id, "ip", "addr", "add", addr.String()+"/24", "dev", "eth0")
		n.must(id, "ip", "link", "set", "eth0", "up")
		n.must(id, "ip", "link", "set", "lo", "up")
		all = append(all, h)
		addr = addr.Next()
	}
	return all
}

// startNamespace starts a process that keeps a network namespace until the test ends.
func startNamespace(t testing.TB) (int, error) {
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, nil
}

// run runs a program in the namespace of a process and returns its output.
func (n *network) run(id int, program string, args ...string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"--net=/proc/" + strconv.Itoa(id) + "/ns/net", "--", program},
		args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (n *network) must(id int, program string, args ...string) {
	n.t.Helper()
	if out, err := n.run(id, program, args...); err != nil {
		n.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// Command returns a command that runs a program on the host. It is killed when ctx ends or the test process dies.
func (h *Host) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=/proc/" + strconv.Itoa(h.id) + "/ns/net", "--", program}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Run runs f on a thread that is on the host: a socket that f opens belongs to the host for as long as it is open. f
// must use literal addresses and open its sockets itself, not in goroutines.
func (h *Host) Run(f func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	there, err := os.Open("/proc/" + strconv.Itoa(h.id) + "/ns/net")
	if err == nil {
		err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
		there.Close()
	}
	if err == nil {
		err = f()
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, so that nothing else runs on the host
	}
	runtime.UnlockOSThread() // the thread must not end: the processes that it started would be killed with it
	return err
}

// Dial connects from the host, for [nats.SetCustomDialer].
func (h *Host) Dial(network, address string) (conn net.Conn, err error) {
	err = h.Run(func() (err error) {
		conn, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	})
	return conn, err
}

// Reset ends every connection of the host and each new one with a TCP reset until Heal: both ends are told.
func (h *Host) Reset() {
	h.t.Helper()
	h.addRules("meta l4proto tcp reject with tcp reset")
}

// Cut takes the link of the host down until Heal: nothing arrives, and neither end of a connection is told.
func (h *Host) Cut() {
	h.t.Helper()
	h.net.must(h.net.id, "ip", "link", "set", h.port, "down")
}

// Heal ends a cut, a reset and losses.
func (h *Host) Heal() {
	h.t.Helper()
	h.net.must(h.id, "nft", "flush", "ruleset")
	h.net.must(h.net.id, "ip", "link", "set", h.port, "up")
}

// SetLoss drops packets of the host from now on, in each direction with this probability; 1 drops all, 0 none.
func (h *Host) SetLoss(probability float64) {
	h.t.Helper()
	h.net.must(h.id, "nft", "flush", "ruleset")
	switch {
	case probability <= 0:
		return
	case probability >= 1:
		h.addRules("drop")
		return
	}
	h.addRules(fmt.Sprintf("numgen random mod 1000 < %d drop", int(probability*1000)))
}

// addRules adds a rule of nftables for what the host receives and sends.
func (h *Host) addRules(rule string) {
	h.t.Helper()
	h.net.must(h.id, "nft", "add table inet loss"+
		"; add chain inet loss received { type filter hook input priority 0; }; add rule inet loss received iifname "+
		"eth0 "+rule+
		"; add chain inet loss sent { type filter hook output priority 0; }; add rule inet loss sent oifname eth0 "+
		rule)
}
