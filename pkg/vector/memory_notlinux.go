//go:build unix && !linux

package vector

// adviseHugePages does nothing: only Linux has large pages on request.
func adviseHugePages([]byte) {}
