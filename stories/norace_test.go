//go:build !race

package stories_test

// side is how many stories run side by side unless -parallel says otherwise: they wait more than they work.
const side = "12"
