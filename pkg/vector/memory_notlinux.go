//go:build unix && !linux

package vector

// advise is for Linux, which gives large pages to those who ask.
func advise([]byte) {}
