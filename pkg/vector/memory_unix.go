//go:build unix

package vector

import "golang.org/x/sys/unix"

// allocateMemory maps zeroed memory, which the system provides as it is used and the garbage collector ignores.
func allocateMemory(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil && size >= largeMemory {
		adviseHugePages(b)
	}
	return b, err
}

// releaseMemory unmaps memory of allocateMemory. Nothing may point into it any more.
func releaseMemory(b []byte) error { return unix.Munmap(b) }
