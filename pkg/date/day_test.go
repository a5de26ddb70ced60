package date

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestFindDays(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"on 2026-12-24, 2026/1/2 or 2026.1.3":       "2026-12-24 2026-1-2 2026-1-3",
		"am 24.12.2026 und am 3.1.":                 "2026-12-24 0-1-3",
		"May 5th, 2026 and Sept. 6":                 "2026-5-5 0-9-6",
		"the 1st of June 2026, 2 dec":               "2026-6-1 0-12-2",
		"5. März 2026, 6 de mayo de 2027, 1er août": "2026-3-5 2027-5-6 0-8-1",
		"3 fevrier, 4 FÉVRIER, 7 maart, 8 março":    "0-2-3 0-2-4 0-3-7 0-3-8",

		"February 31":                              "0-2-31",
		"room 12, 45.6 kg, May, 2026":              "",
		"13.13.2026, 2026-13-01, 0.1.2026, May 45": "",
		"a line ends with May\n5 begins the next":  "",
		"the mayor 5, octopus 7, 12 marches":       "",
	} {
		var got []string
		days, rest := FindDays(s)
		for _, d := range days {
			got = append(got, fmt.Sprintf("%d-%d-%d", d.Year, d.Month, d.Day))
			if blank := rest[d.From:d.To]; strings.Trim(blank, " ") != "" {
				t.Errorf("%q: %q is left in the rest", s, blank)
			}
		}
		slices.Sort(got)
		sorted := strings.Fields(want)
		slices.Sort(sorted)
		if !slices.Equal(got, sorted) || len(rest) != len(s) {
			t.Errorf("%q: %v, want %v", s, got, sorted)
		}
	}
}

func TestDaysMatch(t *testing.T) {
	t.Parallel()
	full, other, open := Day{Year: 2026, Month: 5, Day: 8}, Day{Year: 2025, Month: 5, Day: 8}, Day{Month: 5, Day: 8}
	if !full.Matches(open) || !open.Matches(other) || full.Matches(other) || !full.MatchesDay(other) {
		t.Error("a date without a year matches every year, and others only their own")
	}
	if next := (Day{Month: 5, Day: 9}); full.Matches(next) || full.MatchesDay(next) {
		t.Error("another day matches")
	}
}

func TestFindClocks(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][]int{
		"at 8:05, 3 pm and 12:30 a.m.":     {8*60 + 5, 15 * 60, 30},
		"2026-12-24T18:00:00, um 7 Uhr":    {18 * 60, 7 * 60},
		"25:00, 8:75, 12 people, room 101": nil,
	} {
		if got := FindClocks(s); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	if got, want := RemoveClocks("3 pm for 12 at 8:05"), "     for 12 at     "; strings.TrimRight(got, " ") !=
		strings.TrimRight(want, " ") {
		t.Errorf("%q is left", got)
	}
}
