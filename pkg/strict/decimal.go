package strict

import (
	"fmt"
	"strconv"

	"conclave/pkg/text"
)

// Decimal is a number with a fraction, as users write it: 0.7.
type Decimal float64

// maxDecimal is the largest accepted magnitude.
const maxDecimal = 1e6

// UnmarshalText implements [encoding.TextUnmarshaler]. It rejects NaN, infinities and magnitudes above maxDecimal.
func (d *Decimal) UnmarshalText(b []byte) error {
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || v != v || v > maxDecimal || v < -maxDecimal {
		return fmt.Errorf("%s is not a number; write 0.7", text.OneLine(string(b), 40))
	}
	*d = Decimal(v)
	return nil
}

// String is the shortest decimal form.
func (d Decimal) String() string { return strconv.FormatFloat(float64(d), 'g', -1, 64) }
