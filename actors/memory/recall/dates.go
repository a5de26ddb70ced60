package recall

import (
	"strconv"
	"strings"
	"time"

	"conclave/pkg/text"
)

// dateRange is the time that an expression such as "last May" means: from until before until.
type dateRange struct{ from, until time.Time }

// rateCloseness returns 1 for a time within one of the ranges, falling to 0 over dateSlack outside of them.
func rateCloseness(ranges []dateRange, at time.Time) (most float64) {
	for _, r := range ranges {
		gap := max(r.from.Sub(at), at.Sub(r.until), 0)
		most = max(most, 1-float64(gap)/float64(dateSlack))
	}
	return most
}

const (
	day = 24 * time.Hour
	// dateSlack is how far outside of a range a time still counts: people tell of things some days later.
	dateSlack = 7 * day
	// maxRanges bounds the ranges of one question.
	maxRanges = 8
)

// parseDates returns the dates and ranges that a question names, relative to now and in its location: days with and
// without a year, months, seasons, years, "yesterday", "last week", "two weeks ago", "last Tuesday". A date without a
// year is the latest that is not in the future. Month names are those of English, German, Spanish, French, Italian,
// Portuguese and Dutch; weekdays, seasons and relative expressions are English, but for today and yesterday.
//
// The dates are found here and not by a library: go-dateparser, which searches texts, takes 0.4 s and 95 MB when the
// process starts, in each process that links it.
func parseDates(question string, now time.Time) []dateRange {
	p := dateParser{now: now, today: time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())}
	for _, w := range text.Words(question[:min(len(question), maxQueryBytes)]) {
		p.words = append(p.words, strings.TrimSuffix(w.Folded, "'s"))
	}
	for i := 0; i < len(p.words) && len(p.found) < maxRanges; {
		n := 0
		for _, parse := range []func(int) (dateRange, int){
			p.parseAbsolute, p.parseAgo, p.parseNamedDay,
			p.parsePeriod,
		} {
			var r dateRange
			if r, n = parse(i); n > 0 {
				p.found = append(p.found, p.extendRange(r, i))
				break
			}
		}
		i += max(n, 1)
	}
	return p.found
}

// dateParser finds dates in words. Its parse methods look at the words from i on and return a range with the number of
// words that mean it, 0 when no date begins there.
type dateParser struct {
	now, today time.Time
	words      []string // folded
	found      []dateRange
}

// word returns the word at i, "" when there is none.
func (p *dateParser) word(i int) string {
	if i < 0 || i >= len(p.words) {
		return ""
	}
	return p.words[i]
}

// number returns the number at i, as a numeral, an ordinal or a word; -1 when there is none.
func (p *dateParser) number(i int) int {
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
func (p *dateParser) year(i int) int {
	if n, err := strconv.Atoi(p.word(i)); err == nil && len(p.word(i)) == 4 && n >= 1900 && n <= 2100 {
		return n
	}
	return 0
}

// days returns the range of n days from a date, nothing for a day that the month does not have.
func (p *dateParser) days(year int, month time.Month, d, n int) (dateRange, bool) {
	from := time.Date(year, month, d, 0, 0, 0, 0, p.now.Location())
	return dateRange{from, from.AddDate(0, 0, n)}, from.Month() == month && d >= 1
}

// months returns the range of n months from the beginning of a month.
func (p *dateParser) months(year int, month time.Month, n int) dateRange {
	from := time.Date(year, month, 1, 0, 0, 0, 0, p.now.Location())
	return dateRange{from, from.AddDate(0, n, 0)}
}

// parseAbsolute parses 2023-05-08, 8.5.2023, 8 May 2023, May 8 (2023), 3 and 10 June 2023, May 2023, summer (of) 2022
// and 2022. A month without a number is one only behind a word such as in or last: may and march are also verbs.
func (p *dateParser) parseAbsolute(i int) (dateRange, int) {
	for _, layout := range []string{time.DateOnly, "2.1.2006", "2006/1/2"} {
		if t, err := time.ParseInLocation(layout, p.word(i), p.now.Location()); err == nil {
			return dateRange{t, t.AddDate(0, 0, 1)}, 1
		}
	}
	if r, n := p.parseDayMonth(i); n > 0 {
		return r, n
	}
	if month, ok := monthNames[p.word(i)]; ok {
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
	return dateRange{}, 0
}

// parseDayMonth parses a day before its month, with or without a year, and two days before their month.
func (p *dateParser) parseDayMonth(i int) (r dateRange, n int) {
	first, at := p.number(i), i+1
	if first < 1 || first > 31 || numberWords[p.word(i)] > 0 {
		return r, 0
	}
	last := first
	if w := p.word(at); w == "and" || w == "to" || w == "until" {
		if last = p.number(at + 1); last <= first {
			return r, 0
		}
		at += 2
	}
	if p.word(at) == "of" {
		at++
	}
	month, ok := monthNames[p.word(at)]
	if !ok {
		return r, 0
	}
	year := p.year(at + 1)
	if at++; year > 0 {
		at++
	}
	if r, ok = p.days(p.latestYear(year, month, first), month, first, last-first+1); !ok {
		return r, 0
	}
	return r, at - i
}

// latestYear returns year, or when it is 0 the latest in which the date is not after now.
func (p *dateParser) latestYear(year int, month time.Month, d int) int {
	if year == 0 {
		if year = p.now.Year(); time.Date(year, month, d, 0, 0, 0, 0, p.now.Location()).After(p.now) {
			year--
		}
	}
	return year
}

// parseMonth parses a month at i with what follows it: a day, a year, both or neither.
func (p *dateParser) parseMonth(i int, month time.Month) (dateRange, int) {
	if year := p.year(i + 1); year > 0 {
		return p.months(year, month, 1), 2
	}
	if d := p.number(i + 1); d >= 1 && d <= 31 && numberWords[p.word(i+1)] == 0 {
		year, n := p.year(i+2), 2
		if year > 0 {
			n++
		}
		if r, ok := p.days(p.latestYear(year, month, d), month, d, 1); ok {
			return r, n
		}
		return dateRange{}, 0
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
	case monthPrepositions(before):
		return p.months(p.latestYear(0, month, 1), month, 1), 1
	}
	return dateRange{}, 0
}

// parseAgo parses "two weeks ago" and "two weeks before" a date, of which only the range up to that date is meant.
func (p *dateParser) parseAgo(i int) (dateRange, int) {
	n, at := p.number(i), i+1
	if p.word(i) == "couple" && p.word(at) == "of" {
		n, at = 2, at+1
	}
	unit := strings.TrimSuffix(p.word(at), "s")
	if n < 0 || n > 1000 {
		return dateRange{}, 0
	}
	end, words := p.today, at+2-i
	switch p.word(at + 1) {
	case "ago", "earlier":
	case "before":
		r, used := p.parseAbsolute(at + 2)
		if used == 0 {
			return dateRange{}, 0
		}
		end, words = r.from, words+used
	default:
		return dateRange{}, 0
	}
	r, ok := resolveAgo(end, n, unit)
	if ok && p.word(at+1) == "before" {
		r.until = end.AddDate(0, 0, 1) // it was told by then
	}
	if !ok {
		words = 0
	}
	return r, words
}

// resolveAgo returns the days that lie n units before a day. The larger the unit, the less exact the user is.
func resolveAgo(end time.Time, n int, unit string) (dateRange, bool) {
	switch unit {
	case "day":
		from := end.AddDate(0, 0, -n)
		return dateRange{from, from.AddDate(0, 0, 1)}, true
	case "week":
		from := end.AddDate(0, 0, -7*n)
		return dateRange{from.AddDate(0, 0, -3), from.AddDate(0, 0, 4)}, true
	case "month":
		from := end.AddDate(0, -n, 0)
		return dateRange{from.AddDate(0, 0, -15), from.AddDate(0, 0, 16)}, true
	case "year":
		from := time.Date(end.Year()-n, time.January, 1, 0, 0, 0, 0, end.Location())
		return dateRange{from, from.AddDate(1, 0, 0)}, true
	}
	return dateRange{}, false
}

// parseNamedDay parses today, yesterday and the day before it, tomorrow, and a weekday behind on, last or this: the
// latest one before today.
func (p *dateParser) parseNamedDay(i int) (dateRange, int) {
	if p.word(i) == "day" && p.word(i+1) == "before" && p.word(i+2) == "yesterday" {
		return dateRange{p.today.AddDate(0, 0, -2), p.today.AddDate(0, 0, -1)}, 3
	}
	if days, ok := namedDays[p.word(i)]; ok {
		return dateRange{p.today.AddDate(0, 0, days), p.today.AddDate(0, 0, days+1)}, 1
	}
	weekday, ok := weekdays[p.word(i)]
	if before := p.word(i - 1); !ok || before != "on" && before != "last" && before != "this" && before != "past" {
		return dateRange{}, 0
	}
	back := (int(p.today.Weekday())-weekday+6)%7 + 1
	return dateRange{p.today.AddDate(0, 0, -back), p.today.AddDate(0, 0, 1-back)}, 1
}

// parsePeriod parses last, past, this or next with week, weekend, month, year or a season, and "the week before" a
// date.
func (p *dateParser) parsePeriod(i int) (dateRange, int) {
	if w := p.word(i); (w == "week" || w == "weekend" || w == "month" || w == "year") && p.word(i+1) == "before" {
		if r, n := p.parseAbsolute(i + 2); n > 0 {
			from, _ := resolveAgo(r.from, 1, strings.TrimSuffix(w, "end"))
			return dateRange{from.from, r.until}, n + 2
		}
	}
	step, ok := map[string]int{"last": -1, "past": -1, "previous": -1, "this": 0, "current": 0, "next": 1}[p.word(i)]
	if !ok {
		return dateRange{}, 0
	}
	monday := p.today.AddDate(0, 0, -(int(p.today.Weekday())+6)%7)
	switch unit := p.word(i + 1); unit {
	case "week":
		from := monday.AddDate(0, 0, 7*step)
		return dateRange{from, from.AddDate(0, 0, 7)}, 2
	case "weekend":
		from := monday.AddDate(0, 0, 7*step+5)
		return dateRange{from, from.AddDate(0, 0, 2)}, 2
	case "month":
		return p.months(p.now.Year(), p.now.Month()+time.Month(step), 1), 2
	case "year":
		return p.months(p.now.Year()+step, time.January, 12), 2
	default:
		first, ok := seasons[unit]
		if !ok {
			return dateRange{}, 0
		}
		r := p.months(p.latestYear(0, first, 1), first, 3)
		if step == -1 && r.until.After(p.now) {
			r = dateRange{r.from.AddDate(-1, 0, 0), r.until.AddDate(-1, 0, 0)}
		} else if step == 1 {
			r = dateRange{r.from.AddDate(1, 0, 0), r.until.AddDate(1, 0, 0)}
		}
		return r, 2
	}
}

// extendRange returns the range of a date at word i with what the word before it says: since reaches until now.
func (p *dateParser) extendRange(r dateRange, i int) dateRange {
	if p.word(i-1) == "since" && r.until.Before(p.now) {
		r.until = p.now
	}
	return r
}

// Words of dates, folded. Of abbreviations only those that are no other words are listed.
var (
	monthNames = numberedWords(
		"january jan januar enero janvier gennaio janeiro januari",
		"february feb februar febrero fevrier febbraio fevereiro februari",
		"march marz maerz marzo mars marco maart", "april abril avril aprile", "may mai mayo maggio maio mei",
		"june juni junio juin giugno junho",
		"july juli julio juillet luglio julho", "august aug agosto aout augustus",
		"september sept sep septiembre septembre settembre setembro",
		"october oct oktober octubre octobre ottobre outubro", "november nov noviembre novembre novembro",
		"december dec dezember diciembre decembre dicembre dezembro",
	)
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

// numberedWords numbers the words of each list from 1.
func numberedWords(lists ...string) map[string]time.Month {
	all := map[string]time.Month{}
	for i, list := range lists {
		for _, w := range strings.Fields(list) {
			all[w] = time.Month(i + 1)
		}
	}
	return all
}
