package keyring

import (
	"errors"
	"syscall"
)

// isExpiredKey reports whether err means that a key in the kernel's keyring expired or was revoked.
func isExpiredKey(err error) bool {
	return errors.Is(err, syscall.EKEYEXPIRED) || errors.Is(err, syscall.EKEYREVOKED)
}
