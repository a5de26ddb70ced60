package vector

import "golang.org/x/sys/unix"

// advise asks for large pages. They are read much faster from end to end. A system that has none still works.
func advise(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
