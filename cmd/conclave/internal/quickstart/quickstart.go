// Package quickstart lets a process collect less garbage at first. Making the tables and patterns of all packages fills
// the heap once, and most commands end before they have garbage worth collecting: a fifth of their processor time is
// saved. The path of this package sorts before most of those that fill the heap, so it is initialized before them.
package quickstart

import (
	"os"
	"runtime/debug"
	"time"
)

// Percent of the live heap by which it may grow before garbage is collected: at the beginning, and the default.
const (
	firstPercent   = 400
	defaultPercent = 100
)

// period is the beginning. A process that lives longer is a system, a chat or a watch, whose memory counts.
const period = 3 * time.Second

// percent is the setting before this package: -1 when the user has chosen one in GOGC.
var percent = setFirst()

func setFirst() int {
	if os.Getenv("GOGC") != "" {
		return -1
	}
	return debug.SetGCPercent(firstPercent)
}

// EndLater goes back to the default when the beginning is over. The program calls it once.
func EndLater() {
	if percent == defaultPercent {
		time.AfterFunc(period, func() { debug.SetGCPercent(percent) })
	}
}
