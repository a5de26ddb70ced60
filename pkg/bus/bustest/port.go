package bustest

import (
	"net"
	"strconv"
	"syscall"
	"testing"
)

// ReservePort returns an address of this machine, 127.0.0.1 with a free port, that is kept for the test: a server can
// listen on it, stop, and listen again. Between the two no other process gets the port when it asks for a free one, or
// for a connection of its own, and clients that dial it are not connected to themselves: a socket that is bound to the
// port, and does not listen, holds it.
func ReservePort(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	// as listeners of Go do: else the port could not be listened on
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*syscall.SockaddrInet4).Port))
}
