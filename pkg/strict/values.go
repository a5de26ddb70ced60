package strict

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseDuration parses a duration as users write it: 250ms, 10s, 1m30s. It rejects a minus sign and a number without a
// unit, which is too easily a wrong one.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || strings.HasPrefix(text, "-") || strings.Trim(text, "+0123456789.") == "" {
		return 0, fmt.Errorf("%s is not a duration; write 60s or 10m", quoteForError(text))
	}
	return d, nil
}

// FormatDuration formats d as users write it, without zero units at the end: 1m, not 1m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Size is a number of bytes as users write it: 512MB, 1GB. Each unit is 1024 of the one before.
type Size int64

// units from small to large.
var units = []string{"B", "KB", "MB", "GB", "TB"}

// UnmarshalText implements [encoding.TextUnmarshaler]: a whole number and one of the units B, KB, MB, GB, TB (powers of
// 1024), without space. A missing unit and a size that overflows are rejected.
func (s *Size) UnmarshalText(text []byte) error {
	in := string(text)
	digits := strings.TrimRight(in, "BKMGT")
	for i, unit := range units {
		if in != digits+unit {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if shift := 10 * i; err == nil && n == n<<shift>>shift && int64(n<<shift) >= 0 {
			*s = Size(n << shift)
			return nil
		}
	}
	return fmt.Errorf("%s is not a size; write 512MB or 1GB", quoteForError(in))
}

// String formats the size in the largest unit that is exact.
func (s Size) String() string {
	i := 0
	for s != 0 && s%1024 == 0 && i+1 < len(units) {
		s, i = s/1024, i+1
	}
	return strconv.FormatInt(int64(s), 10) + units[i]
}
