// Package termtest opens pseudo-terminals for tests.
package termtest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Open opens a pseudo-terminal of 100 columns and 30 rows and returns both ends, which are closed with the test: slave
// is the stream of the command, master is the user's side.
func Open(t testing.TB) (master, slave *os.File) {
	t.Helper()
	return OpenSize(t, 100, 30)
}

// OpenSize is [Open] with another size.
func OpenSize(t testing.TB, columns, rows int) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// ReadAll returns everything that was written to slave since the last call, with plain line breaks. It does not wait
// for more.
func ReadAll(t testing.TB, master, slave *os.File) string {
	t.Helper()
	const mark = "\x04end" // a terminal has no end of file
	if _, err := slave.WriteString(mark); err != nil {
		t.Fatal(err)
	}
	var got []byte
	buf := make([]byte, 1024)
	for !bytes.HasSuffix(got, []byte(mark)) {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	return strings.TrimSuffix(strings.ReplaceAll(string(got), "\r\n", "\n"), mark)
}
