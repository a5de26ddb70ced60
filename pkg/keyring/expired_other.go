//go:build !linux

package keyring

// expired reports whether the kernel has let a key go. Only Linux keeps keys.
func expired(error) bool { return false }
