package vector

import "golang.org/x/sys/unix"

// adviseHugePages requests large pages, which are scanned much faster. Errors are ignored: small pages work.
func adviseHugePages(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
