package keyring

import (
	"errors"
	"syscall"
)

// expired reports whether the kernel has let a key go.
func expired(err error) bool {
	return errors.Is(err, syscall.EKEYEXPIRED) || errors.Is(err, syscall.EKEYREVOKED)
}
