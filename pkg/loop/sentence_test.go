package loop

import "testing"

// An abbreviation does not cut the description that a small model reads.
func TestFirstSentenceKeepsAbbreviations(t *testing.T) {
	t.Parallel()
	if got := firstSentence(
		"IANA time zone, e.g. Europe/Berlin. Default: the machine's."); got != "IANA time zone, e.g. Europe/Berlin." {
		t.Error(got)
	}
}
