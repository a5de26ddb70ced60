package date

import (
	"strconv"
	"strings"
	"time"

	"conclave/pkg/text"
)

// Range is the time that an expression such as "last May" means: from From until before Until.
type Range struct{ From, Until time.Time }

// maxRanges bounds the ranges of one question.
const maxRanges = 8

// FindRanges returns the dates and ranges that a question names, relative to now and in its location: the days of
// [FindDays], months, seasons, years, "yesterday", "last week", "two weeks ago", "last Tuesday". A date without a year
// is the latest that is not in the future. Weekdays, seasons and relative expressions are English, but for today and
// yesterday.
func FindRanges(question string, now time.Time) []Range {
	p := rangeParser{
		now: now, today: time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location()),
		words: text.Words(question), days: map[int]Day{},
	}
	days, _ := FindDays(question)
	for _, d := range days {
		p.days[d.From] = d
	}
	for i := 0; i < len(p.words) && len(p.found) < maxRanges; {
		n := 0
		for _, parse := range []func(int) (Range, int){
			p.parseAbsolute, p.parseAgo, p.parseNamedDay, p.parsePeriod,
		} {
			var r Range
			if r, n = parse(i); n > 0 {
				p.found = append(p.found, p.extendRange(r, i))
				break
			}
		}
		i += max(n, 1)
	}
	return p.found
}

// rangeParser finds dates in words. Its parse methods look at the words from i on and return a range with the number of
// words that mean it, 0 when no date begins there.
type rangeParser struct {
	now, today time.Time
	words      []text.Word
	days       map[int]Day // by where they begin
	found      []Range
}

// word returns the word at i, folded, "" when there is none.
func (p *rangeParser) word(i int) string {
	if i < 0 || i >= len(p.words) {
		return ""
	}
	return strings.TrimSuffix(p.words[i].Folded, "'s")
}

// number returns the number at i, as a numeral, an ordinal or a word; -1 when there is none.
func (p *rangeParser) number(i int) int {
	w := p.word(i)
	if n, ok := numberWords[w]; ok {
		return n
	}
	for _, end := range []string{"st", "nd", "rd", "th"} {
		w = strings.TrimSuffix(w, end)
	}
	if n, err := strconv.Atoi(w); err == nil && n >= 0 {
		return n
	}
	return -1
}

// year returns the year at i, 0 when the word is none.
func (p *rangeParser) year(i int) int {
	if n, err := strconv.Atoi(p.word(i)); err == nil && len(p.word(i)) == 4 && n >= 1900 && n <= 2100 {
		return n
	}
	return 0
}

// months returns the range of n months from the beginning of a month.
func (p *rangeParser) months(year int, month time.Month, n int) Range {
	from := time.Date(year, month, 1, 0, 0, 0, 0, p.now.Location())
	return Range{from, from.AddDate(0, n, 0)}
}

// parseAbsolute parses the days of [FindDays], 3 and 10 June 2023, May 2023, summer (of) 2022 and 2022. A month without
// a number is one only behind a word such as in or last: may and march are also verbs.
func (p *rangeParser) parseAbsolute(i int) (Range, int) {
	if r, n := p.parseDay(i); n > 0 {
		return r, n
	}
	if month, ok := monthNames()[p.word(i)]; ok {
		return p.parseMonth(i, month)
	}
	if first, ok := seasons[p.word(i)]; ok {
		n := 1
		if w := p.word(i + 1); w == "of" || w == "in" {
			n++
		}
		if year := p.year(i + n); year > 0 {
			return p.months(year, first, 3), n + 1
		}
	}
	if year := p.year(i); year > 0 {
		return p.months(year, time.January, 12), 1
	}
	return Range{}, 0
}

// dayAt returns the day that begins at word i and the number of its words, 0 when there is none.
func (p *rangeParser) dayAt(i int) (d Day, n int) {
	if i >= len(p.words) {
		return d, 0
	}
	d = p.days[p.words[i].From]
	for ; i+n < len(p.words) && p.words[i+n].From < d.To; n++ {
		if p.words[i+n].To > d.To {
			return d, 0 // the 1.2. of version 1.2.3
		}
	}
	return d, n
}

// parseDay parses a day with or without a year, and two days before their month.
func (p *rangeParser) parseDay(i int) (Range, int) {
	d, n := p.dayAt(i)
	first := d.Day
	if w := p.word(i + 1); n == 0 && p.words[i].IsNumber && (w == "and" || w == "to" || w == "until") {
		first = p.number(i)
		if d, n = p.dayAt(i + 2); n > 0 && p.words[i+2].IsNumber {
			n += 2
		} else {
			return Range{}, 0
		}
	}
	from := time.Date(p.latestYear(d.Year, d.Month, first), d.Month, first, 0, 0, 0, 0, p.now.Location())
	if n == 0 || first < 1 || first > d.Day || from.Month() != d.Month {
		return Range{}, 0
	}
	return Range{from, from.AddDate(0, 0, d.Day-first+1)}, n
}

// latestYear returns year, or when it is 0 the latest in which the date is not after now.
func (p *rangeParser) latestYear(year int, month time.Month, d int) int {
	if year == 0 {
		if year = p.now.Year(); time.Date(year, month, d, 0, 0, 0, 0, p.now.Location()).After(p.now) {
			year--
		}
	}
	return year
}

// parseMonth parses a month at i, with the year if one follows.
func (p *rangeParser) parseMonth(i int, month time.Month) (Range, int) {
	if year := p.year(i + 1); year > 0 {
		return p.months(year, month, 1), 2
	}
	switch before := p.word(i - 1); {
	case before == "next":
		year := p.now.Year()
		if month <= p.now.Month() {
			year++
		}
		return p.months(year, month, 1), 1
	case before == "last" && month == p.now.Month():
		return p.months(p.now.Year()-1, month, 1), 1
	case monthPrepositions(before) && p.word(i) != "mar": // the sea in Spanish and Portuguese
		return p.months(p.latestYear(0, month, 1), month, 1), 1
	}
	return Range{}, 0
}

// parseAgo parses "two weeks ago" and "two weeks before" a date, of which only the range up to that date is meant.
func (p *rangeParser) parseAgo(i int) (Range, int) {
	n, at := p.number(i), i+1
	if p.word(i) == "couple" && p.word(at) == "of" {
		n, at = 2, at+1
	}
	unit := strings.TrimSuffix(p.word(at), "s")
	if n < 0 || n > 1000 {
		return Range{}, 0
	}
	end, words := p.today, at+2-i
	switch p.word(at + 1) {
	case "ago", "earlier":
	case "before":
		r, used := p.parseAbsolute(at + 2)
		if used == 0 {
			return Range{}, 0
		}
		end, words = r.From, words+used
	default:
		return Range{}, 0
	}
	r, ok := resolveAgo(end, n, unit)
	if ok && p.word(at+1) == "before" {
		r.Until = end.AddDate(0, 0, 1) // it was told by then
	}
	if !ok {
		words = 0
	}
	return r, words
}

// resolveAgo returns the days that lie n units before a day. The larger the unit, the less exact the user is.
func resolveAgo(end time.Time, n int, unit string) (Range, bool) {
	switch unit {
	case "day":
		from := end.AddDate(0, 0, -n)
		return Range{from, from.AddDate(0, 0, 1)}, true
	case "week":
		from := end.AddDate(0, 0, -7*n)
		return Range{from.AddDate(0, 0, -3), from.AddDate(0, 0, 4)}, true
	case "month":
		from := end.AddDate(0, -n, 0)
		return Range{from.AddDate(0, 0, -15), from.AddDate(0, 0, 16)}, true
	case "year":
		from := time.Date(end.Year()-n, time.January, 1, 0, 0, 0, 0, end.Location())
		return Range{from, from.AddDate(1, 0, 0)}, true
	}
	return Range{}, false
}

// parseNamedDay parses today, yesterday and the day before it, tomorrow, and a weekday behind on, last or this: the
// latest one before today.
func (p *rangeParser) parseNamedDay(i int) (Range, int) {
	if p.word(i) == "day" && p.word(i+1) == "before" && p.word(i+2) == "yesterday" {
		return Range{p.today.AddDate(0, 0, -2), p.today.AddDate(0, 0, -1)}, 3
	}
	if days, ok := namedDays[p.word(i)]; ok {
		return Range{p.today.AddDate(0, 0, days), p.today.AddDate(0, 0, days+1)}, 1
	}
	weekday, ok := weekdays[p.word(i)]
	if before := p.word(i - 1); !ok || before != "on" && before != "last" && before != "this" && before != "past" {
		return Range{}, 0
	}
	back := (int(p.today.Weekday())-weekday+6)%7 + 1
	return Range{p.today.AddDate(0, 0, -back), p.today.AddDate(0, 0, 1-back)}, 1
}

// parsePeriod parses last, past, this or next with week, weekend, month, year or a season, and "the week before" a
// date.
func (p *rangeParser) parsePeriod(i int) (Range, int) {
	if w := p.word(i); (w == "week" || w == "weekend" || w == "month" || w == "year") && p.word(i+1) == "before" {
		if r, n := p.parseAbsolute(i + 2); n > 0 {
			from, _ := resolveAgo(r.From, 1, strings.TrimSuffix(w, "end"))
			return Range{from.From, r.Until}, n + 2
		}
	}
	step, ok := map[string]int{"last": -1, "past": -1, "previous": -1, "this": 0, "current": 0, "next": 1}[p.word(i)]
	if !ok {
		return Range{}, 0
	}
	monday := p.today.AddDate(0, 0, -(int(p.today.Weekday())+6)%7)
	switch unit := p.word(i + 1); unit {
	case "week":
		from := monday.AddDate(0, 0, 7*step)
		return Range{from, from.AddDate(0, 0, 7)}, 2
	case "weekend":
		from := monday.AddDate(0, 0, 7*step+5)
		return Range{from, from.AddDate(0, 0, 2)}, 2
	case "month":
		return p.months(p.now.Year(), p.now.Month()+time.Month(step), 1), 2
	case "year":
		return p.months(p.now.Year()+step, time.January, 12), 2
	default:
		first, ok := seasons[unit]
		if !ok {
			return Range{}, 0
		}
		r := p.months(p.latestYear(0, first, 1), first, 3)
		if step == -1 && r.Until.After(p.now) {
			r = Range{r.From.AddDate(-1, 0, 0), r.Until.AddDate(-1, 0, 0)}
		} else if step == 1 {
			r = Range{r.From.AddDate(1, 0, 0), r.Until.AddDate(1, 0, 0)}
		}
		return r, 2
	}
}

// extendRange returns the range of a date at word i with what the word before it says: since reaches until now.
func (p *rangeParser) extendRange(r Range, i int) Range {
	if p.word(i-1) == "since" && r.Until.Before(p.now) {
		r.Until = p.now
	}
	return r
}

// Words of dates, folded.
var (
	weekdays = map[string]int{
		"sunday": 0, "monday": 1, "tuesday": 2, "wednesday": 3, "thursday": 4, "friday": 5,
		"saturday": 6,
	}
	seasons = map[string]time.Month{
		"spring": time.March, "summer": time.June, "autumn": time.September,
		"fall": time.September, "winter": time.December,
	}

	namedDays = map[string]int{
		"today": 0, "heute": 0, "hoy": 0, "oggi": 0, "hoje": 0, "vandaag": 0, "tomorrow": 1,
		"yesterday": -1, "gestern": -1, "ayer": -1, "hier": -1, "ieri": -1, "ontem": -1, "gisteren": -1,
	}
	numberWords = map[string]int{
		"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
		"nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
	}
	monthPrepositions = text.WordSet("in last this of during since until by from late early mid around before after " +
		"im en em nel a di de")
)
