//go:build !cgo

package vector

// compiled is empty: without a C compiler there is only Go.
func compiled() []kernels { return nil }
