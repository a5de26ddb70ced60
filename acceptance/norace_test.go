//go:build !race

package acceptance

const underRace = false
