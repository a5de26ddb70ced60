//go:build unix

package vector

import "golang.org/x/sys/unix"

// reserve takes memory from the system, zeroed, and only as it is used: the collector neither counts nor reads it.
func reserve(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil && size >= largeMemory {
		advise(b)
	}
	return b, err
}

// giveBack returns what reserve took. Nothing may point into it any more.
func giveBack(b []byte) error { return unix.Munmap(b) }
