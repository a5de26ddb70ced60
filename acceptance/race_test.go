//go:build race

package acceptance

// underRace says that the race detector is on, which multiplies the memory that a process uses.
const underRace = true
