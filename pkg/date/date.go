// Package date reads the dates and times that people write: [Parse] a value that is a time, [FindDays] and [FindClocks]
// the days and times of day in a text, [FindRanges] also what a question says about time, such as "last May".
//
// Months are named in English, German, Spanish, French, Italian, Portuguese and Dutch. What is found was not measured
// on data of its own. The tuning of recall, of whose score [FindRanges] is a part, and the rules of the broker, which
// compare the result of [FindDays], were measured as a whole: docs/bench.md, docs/policy.md.
//
// No library does it: go-dateparser, which searches texts, takes 0.4 s and 95 MB at the start of each process that
// links it, and araddon/dateparse reads values only.
package date

import (
	"regexp"
	"strings"
	"time"
)

// maxTime is the length of the longest text that [Parse] reads, in bytes.
const maxTime = 64

// timeLayouts are the forms of a time. Forms in which day and month cannot be told apart are missing.
var timeLayouts = func() []string {
	out := []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04"}
	for _, day := range []string{
		"2006-01-02", "2 January 2006", "2 Jan 2006", "January 2 2006", "Jan 2 2006",
		"2006/01/02", "2.1.2006",
	} {
		out = append(out, day)
		for _, clock := range []string{"15:04", "15:04:05", "3:04 pm", "3 pm"} {
			out = append(out, day+" "+clock, clock+" on "+day, clock+" "+day)
		}
	}
	return out
}()

var (
	ordinals    = regexp.MustCompile(`\b(\d{1,2})(?:st|nd|rd|th)\b`)
	clockSuffix = regexp.MustCompile(`(?i)\b(\d{1,2}(?::\d\d)?) ?([ap])\.?m\b\.?`)
)

// Parse parses a date with or without a time of day as people and programs write it: RFC 3339, 2023-05-08 13:56, 8 May
// 2023, 1:56 pm on May 8th, 2023, with or without commas and "at". It is a time of loc unless it names an offset, and
// is returned in loc. Not ok are times of other forms, before 1900 and after 2199.
func Parse(s string, loc *time.Location) (at time.Time, ok bool) {
	if len(s) > maxTime {
		return at, false
	}
	s = ordinals.ReplaceAllString(strings.ReplaceAll(s, ",", " "), "$1")
	s = clockSuffix.ReplaceAllStringFunc(s, func(m string) string {
		p := clockSuffix.FindStringSubmatch(m)
		return p[1] + " " + strings.ToLower(p[2]) + "m"
	})
	words := strings.Fields(s)
	for i := len(words) - 1; i > 0; i-- {
		if strings.EqualFold(words[i], "at") {
			words = append(words[:i], words[i+1:]...)
		}
	}
	s = strings.Join(words, " ")
	for _, layout := range timeLayouts {
		if at, err := time.ParseInLocation(layout, s, loc); err == nil && at.Year() >= 1900 && at.Year() < 2200 {
			return at.In(loc), true
		}
	}
	return time.Time{}, false
}
