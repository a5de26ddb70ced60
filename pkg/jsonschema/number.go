package jsonschema

import (
	"cmp"
	"strconv"
	"strings"

	"conclave/pkg/strict"
)

// isNumber reports whether v is an integer or a number with a fraction.
func isNumber(v *strict.Value) bool { return v.Type&(strict.Integer|strict.Number) != 0 }

// compareNumbers returns -1, 0 or 1 as the number a is below, equal to or above the number b, without rounding. Both
// must be numbers.
func compareNumbers(a, b *strict.Value) int {
	if x, ok := shortFloat(a); ok {
		if y, ok := shortFloat(b); ok {
			return cmp.Compare(x, y)
		}
	}
	return a.Rat().Cmp(b.Rat())
}

// compareCost is the work of comparing v with a bound, in steps: exact arithmetic on long numbers costs hundreds of
// times as much as floats.
func compareCost(v *strict.Value) int {
	if _, ok := shortFloat(v); ok {
		return 1
	}
	return 64
}

// shortFloat returns the value of a number of at most 15 bytes and no exponent; ok is false for others. Such numbers
// compare as floats exactly as they compare as decimals, because no two of them round to the same float.
func shortFloat(v *strict.Value) (f float64, ok bool) {
	if len(v.Text) > 15 || strings.ContainsAny(v.Text, "eE") {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.Text, 64)
	return f, err == nil
}
