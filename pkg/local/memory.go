package local

import (
	"fmt"
	"os"
	"strings"
)

// AvailableMemory is the memory of this machine that is free for use, in bytes; 0 = unknown.
func AvailableMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
