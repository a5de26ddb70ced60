//go:build race

package model_test

// raced says that the race detector slows everything down: figures are then held to less.
const raced = true
