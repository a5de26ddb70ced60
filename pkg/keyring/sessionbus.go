package keyring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	session "github.com/godbus/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	// sessionBusVariable holds the address of the session bus.
	sessionBusVariable = "DBUS_SESSION_BUS_ADDRESS"
	// sessionBusTimeout bounds dialing and greeting one address. A session bus is a process on this machine.
	sessionBusTimeout = 500 * time.Millisecond
)

// connectSessionBus makes sure that the library has an open connection to the desktop's session bus, waiting at most
// sessionBusTimeout per address. It starts no bus, changes no environment variable, and dials unix sockets only: an
// address that names a program or another machine is skipped. The error wraps [ErrUnavailable] and says why there is no
// connection.
func connectSessionBus(ctx context.Context) error {
	if session.Connected() {
		return nil
	}
	address := os.Getenv(sessionBusVariable)
	if address == "" || address == "autolaunch:" {
		runtimeDir := "/run/user/" + strconv.Itoa(os.Getuid())
		if address = discoverSessionBus(runtimeDir); address == "" {
			return fmt.Errorf("%w: there is no session bus: %s is not set, and %s/bus does not exist", ErrUnavailable,
				sessionBusVariable, runtimeDir)
		}
	}
	reason := errors.New("its address has no unix socket")
	for entry := range strings.SplitSeq(address, ";") {
		socket := parseUnixSocket(entry)
		if socket == "" {
			continue
		}
		conn, err := dialSessionBus(ctx, socket)
		if err == nil {
			session.Use(conn)
			return nil
		}
		reason = fmt.Errorf("at %s: %w", socket, err)
	}
	return fmt.Errorf("%w: the session bus does not answer: %w", ErrUnavailable, reason)
}

// discoverSessionBus returns the address of the session bus that a desktop left in runtimeDir, as the socket bus or in
// the file dbus-session, "" if there is none. The address is not validated.
func discoverSessionBus(runtimeDir string) string {
	if _, err := os.Stat(runtimeDir + "/bus"); err == nil {
		return "unix:path=" + runtimeDir + "/bus"
	}
	f, err := os.Open(runtimeDir + "/dbus-session")
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	address, _ := strings.CutPrefix(strings.TrimSpace(line), sessionBusVariable+"=")
	return strings.Trim(address, `'"`)
}

// parseUnixSocket returns the unix socket of one D-Bus address, with @ before the name of an abstract one. It returns
// "" for an address of another transport, and for one with no socket or with both kinds.
func parseUnixSocket(address string) string {
	keys, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return ""
	}
	var path, abstract string
	for pair := range strings.SplitSeq(keys, ",") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "path":
			path = value
		case "abstract":
			abstract = "@" + value
		}
	}
	if path != "" && abstract != "" {
		return ""
	}
	return strings.TrimSuffix(path+abstract, "@")
}

// dialSessionBus connects to the bus at socket (a path, or @ and an abstract name), authenticates as this user and
// waits for its greeting, for at most [sessionBusTimeout]. The caller must close the connection; after an error it is
// closed.
func dialSessionBus(ctx context.Context, socket string) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionBusTimeout)
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, shortenNetError(err)
	}
	conn, err := dbus.NewConn(raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if err := greetSessionBus(ctx, raw, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// greetSessionBus authenticates conn, whose socket is raw, as this user and asks for its unique name. ctx must have a
// deadline, which ends it; afterwards the socket has none.
func greetSessionBus(ctx context.Context, raw net.Conn, conn *dbus.Conn) error {
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		return err
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		return fmt.Errorf("authenticating: %w", shortenNetError(err))
	}
	if err := conn.Hello(); err != nil {
		return fmt.Errorf("greeting: %w", shortenNetError(err))
	}
	return raw.SetDeadline(time.Time{})
}

// shortenNetError returns "timeout" for a timeout and otherwise the cause of a network error, without operation and
// address. Other errors are returned unchanged.
func shortenNetError(err error) error {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return errors.New("timeout")
	}
	if inner := new(net.OpError); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
