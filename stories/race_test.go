//go:build race

package stories_test

// side: under the race detector stories work more than they wait, and each would only be slower.
const side = "4"
