package policy

import (
	"strconv"
	"strings"

	"conclave/pkg/text"
)

// plainNumber matches a non-negative number with nothing around it.
var plainNumber = text.Pattern(`^\d+(?:[.,]\d+)*$`)

// parsePlainNumber returns the value of a non-negative number without sign, unit, exponent or multiplier; ok is false
// for any other text.
func parsePlainNumber(s string) (n float64, ok bool) {
	if !plainNumber().MatchString(s) {
		return 0, false
	}
	n, err := strconv.ParseFloat(normalizeNumber(s), 64)
	return n, err == nil
}

// normalizeNumber returns a number with a full stop as its decimal point. A comma before three digits separates
// thousands; any other is a decimal point.
func normalizeNumber(s string) string {
	parts := strings.Split(s, ",")
	for i := 1; i < len(parts); i++ {
		if len(strings.SplitN(parts[i], ".", 2)[0]) != 3 {
			return strings.ReplaceAll(s, ",", ".")
		}
	}
	return strings.Join(parts, "")
}
