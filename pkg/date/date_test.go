package date

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	at := time.Date(2023, 5, 8, 13, 56, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2023-05-08T13:56:00Z": at, "2023-05-08T15:56:00.000+02:00": at, "2023-05-08T13:56": at, "2023-05-08 13:56": at,
		"2023-05-08, 13:56:00":   at,
		"1:56 pm on 8 May, 2023": at, "May 8th, 2023 at 1:56 P.M.": at, "8.5.2023 13:56": at,
		"8 May 2023": at.Truncate(24 * time.Hour),
		"05/08/2023": {}, "soon": {}, "": {}, "8 May 1823": {}, "2323-05-08": {}, strings.Repeat("8 May 2023 ", 20): {},
	} {
		if got, ok := Parse(s, time.UTC); !got.Equal(want) || ok == want.IsZero() {
			t.Errorf("%q: %v, %t", s, got, ok)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"2023-05-08 15:56", "2023-05-08T13:56:00Z"} {
		if got, ok := Parse(s, berlin); !ok || !got.Equal(at) || got.Location() != berlin {
			t.Errorf("%q in Berlin: %v, %t", s, got, ok)
		}
	}
}
