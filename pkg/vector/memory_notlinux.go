//go:build unix && !linux

package vector

// advise does nothing: only Linux has large pages on request.
func advise([]byte) {}
