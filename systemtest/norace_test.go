//go:build !race

package systemtest

const underRace = false
