// Package schedule reads the times of a schedule and computes its occurrences. It has no clock and no state.
//
// Forms: "every 2h", "every 30 minutes", "hourly", "daily 7:30", "every day 7:30", "every weekday 8:00", "every weekend
// 10:00", "every mon,thu 9:15", "2026-12-24 18:00", and the five fields of cron.
package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // the machine may have no zone files

	"conclave/pkg/date"
)

// MinInterval is the shortest interval.
const MinInterval = time.Minute

// Times are the occurrences of a schedule. The zero value has none.
type Times struct {
	loc      *time.Location
	once     time.Time     // a single time; zero = none
	interval time.Duration // of "every 2h"; 0 = by the clock
	fields   *fields       // by the clock of loc
}

// fields are the times of a clock at which a schedule occurs, as sets of bits.
type fields struct {
	minutes, hours, days, months, weekdays uint64
	anyDay, anyWeekday                     bool // the field is *
}

// Forms describes what [Parse] reads, for messages.
const Forms = `"every weekday 8:00", "every mon,thu 9:15", "daily 7:30", "every 2h", "2026-12-24 18:00", or cron ` +
	`such as "0 8 * * 1-5"`

var (
	clockForm    = regexp.MustCompile(`^(\d{1,2}):(\d{2})$`)
	intervalForm = regexp.MustCompile(`^(\d{1,4}) ?(m|min|minutes?|h|hours?|d|days?)$`)
	secondsForm  = regexp.MustCompile(`^every (\d+ ?)?(s|secs?|seconds?)$`)
	onceForm     = regexp.MustCompile(`^\d{4}-\d{2}-\d{2} \d{1,2}:\d{2}$`)
)

// Parse reads the times of a schedule in a time zone of the IANA database, such as Europe/Berlin. It ignores case and
// repeated blanks. It rejects any other form, an interval below [MinInterval], a date that does not exist, and cron
// fields that never occur.
func Parse(when, zone string) (Times, error) {
	loc, err := time.LoadLocation(zone)
	if zone == "" || zone == "Local" || err != nil {
		return Times{}, fmt.Errorf("there is no time zone %q; use a name such as Europe/Berlin or UTC", zone)
	}
	s := strings.Join(strings.Fields(strings.ToLower(when)), " ")
	t := Times{loc: loc}
	if onceForm.MatchString(s) {
		at, ok := date.Parse(s, loc)
		if !ok {
			return Times{}, fmt.Errorf("%q is not a valid date and time: %w", when, errTimes)
		}
		t.once = at
		return t, nil
	}
	switch s {
	case "hourly", "every hour":
		s = "every 1h"
	case "every minute":
		s = "every 1m"
	}
	if secondsForm.MatchString(s) {
		return Times{}, intervalError(when)
	}
	rest, isEvery := strings.CutPrefix(s, "every ")
	if m := intervalForm.FindStringSubmatch(rest); isEvery && m != nil {
		n, _ := strconv.Atoi(m[1])
		unit := map[byte]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[m[2][0]]
		if t.interval = time.Duration(n) * unit; t.interval < MinInterval {
			return Times{}, intervalError(when)
		}
		return t, nil
	}
	if t.fields, err = parseClock(s); err != nil {
		return Times{}, fmt.Errorf("%q is not a time of a schedule: %w", when, err)
	}
	if _, ok := t.Next(time.Time{}, time.Unix(0, 0)); !ok {
		return Times{}, fmt.Errorf("%q never occurs: %w", when, errTimes)
	}
	return t, nil
}

// errTimes ends every error of [Parse] about the times with the forms that it reads.
var errTimes = errors.New("write " + Forms)

// intervalError is the error of an interval below [MinInterval] or in seconds.
func intervalError(when string) error {
	return fmt.Errorf("%q: an interval is in minutes, hours or days, and the shortest is a minute: %w", when, errTimes)
}

// parseClock reads the forms by the clock: days with a time, or cron.
func parseClock(s string) (*fields, error) {
	words := strings.Split(s, " ")
	if len(words) == 5 && !strings.HasPrefix(s, "every ") {
		return parseCron(words)
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "at" })
	days := ""
	switch {
	case len(words) == 2 && words[0] == "daily":
		days = "*"
	case len(words) == 3 && (words[0] == "every" || words[0] == "weekly"):
		days = cmp.Or(map[string]string{"day": "*", "weekday": "1-5", "weekend": "0,6"}[words[1]], words[1])
	default:
		return nil, errTimes
	}
	m := clockForm.FindStringSubmatch(words[len(words)-1])
	if m == nil {
		return nil, errTimes
	}
	return parseCron([]string{m[2], m[1], "*", "*", days})
}

// parseCron reads the five fields minute, hour, day of the month, month and day of the week.
func parseCron(w []string) (*fields, error) {
	f := &fields{anyDay: w[2] == "*", anyWeekday: w[4] == "*"}
	var errs []error
	for i, set := range []struct {
		to       *uint64
		min, max int
		names    []string
	}{
		{&f.minutes, 0, 59, nil},
		{&f.hours, 0, 23, nil},
		{&f.days, 1, 31, nil},
		{&f.months, 1, 12, []string{
			"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov",
			"dec",
		}},
		{&f.weekdays, 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
	} {
		var err error
		*set.to, err = parseField(w[i], set.min, set.max, set.names)
		errs = append(errs, err)
	}
	if f.weekdays&(1<<7) != 0 { // cron writes Sunday as 0 or 7
		f.weekdays |= 1
	}
	return f, errors.Join(errs...)
}

// parseField reads one field of cron: *, numbers and names, ranges, steps, and lists of them.
func parseField(s string, low, high int, names []string) (set uint64, err error) {
	number := func(w string) (int, bool) {
		if len(w) >= 3 {
			for i, n := range names {
				if long := longNames[n]; w == n || w == long || w == long+"s" {
					return i + low, true
				}
			}
		}
		n, err := strconv.ParseUint(w, 10, 8)
		return int(n), err == nil && int(n) >= low && int(n) <= high
	}
	for part := range strings.SplitSeq(s, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		from, to, step := low, high, 1
		ok := true
		if span != "*" {
			first, last, isRange := strings.Cut(span, "-")
			from, ok = number(first)
			to = from
			if isRange && ok {
				to, ok = number(last)
			} else if stepped {
				to = high
			}
		}
		if stepped && ok {
			step, err = strconv.Atoi(stepText)
			ok = err == nil && step >= 1 && step <= high
		}
		if !ok || from > to {
			return 0, fmt.Errorf("%q is not %d to %d: %w", part, low, high, errTimes)
		}
		for n := from; n <= to; n += step {
			set |= 1 << n
		}
	}
	return set, nil
}

// longNames are the whole words of the days of the week.
var longNames = map[string]string{
	"sun": "sunday", "mon": "monday", "tue": "tuesday", "wed": "wednesday",
	"thu": "thursday", "fri": "friday", "sat": "saturday",
}

// searchDays bounds the search for the next occurrence: a 29 February may be eight years away.
const searchDays = 366*8 + 2

// Next returns the first occurrence after a time, false when there is none. since is when the schedule began: intervals
// count from it, and nothing occurs at or before it.
//
// By the clock: a time that the clock skips when it is put forward occurs as much later as it was put forward, and one
// that the clock shows twice occurs the first time only.
func (t Times) Next(since, after time.Time) (time.Time, bool) {
	if after.Before(since) {
		after = since
	}
	if t.interval > 0 {
		n := after.Sub(since)/t.interval + 1
		return since.Add(n * t.interval), true
	}
	return t.search(after, 1, func(at time.Time) bool { return at.After(after) })
}

// Last returns the last occurrence after a time and not after now, of a schedule that began at since; false when there
// is none.
func (t Times) Last(since, after, now time.Time) (time.Time, bool) {
	if after.Before(since) {
		after = since
	}
	if t.interval > 0 {
		last := since.Add(now.Sub(since) / t.interval * t.interval)
		return last, last.After(after)
	}
	at, ok := t.search(now, -1, func(at time.Time) bool { return !at.After(now) })
	return at, ok && at.After(after)
}

// search returns the occurrence by the clock that fits and is the nearest to from, forward with step 1 and backward
// with step -1.
func (t Times) search(from time.Time, step int, fits func(time.Time) bool) (time.Time, bool) {
	if !t.once.IsZero() {
		return t.once, fits(t.once)
	}
	if t.fields == nil {
		return time.Time{}, false
	}
	// one day more: a skipped time may occur on the next day
	year, month, day := from.In(t.loc).AddDate(0, 0, -step).Date()
	for i := range searchDays {
		all := t.occurrencesOn(time.Date(year, month, day+i*step, 12, 0, 0, 0, time.UTC))
		if step < 0 {
			slices.Reverse(all)
		}
		if at := slices.IndexFunc(all, fits); at >= 0 {
			return all[at], true
		}
	}
	return time.Time{}, false
}

// Occurs reports whether at is an occurrence of a schedule that began at since.
func (t Times) Occurs(since, at time.Time) bool {
	next, ok := t.Next(since, at.Add(-time.Nanosecond))
	return ok && next.Equal(at) && at.After(since)
}

// hasDay reports whether the schedule occurs on a day. As in cron, a day of the month and a day of the week that are
// both given are alternatives.
func (f *fields) hasDay(date time.Time) bool {
	day, weekday := f.days&(1<<date.Day()) != 0, f.weekdays&(1<<date.Weekday()) != 0
	if f.months&(1<<date.Month()) == 0 {
		return false
	}
	if f.anyDay || f.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// occurrencesOn returns the occurrences of a day in order.
func (t Times) occurrencesOn(date time.Time) (out []time.Time) {
	if !t.fields.hasDay(date) {
		return nil
	}
	for hour := range 24 {
		for minute := range 60 {
			if t.fields.hours&(1<<hour) != 0 && t.fields.minutes&(1<<minute) != 0 {
				out = append(out, resolveClock(date, hour, minute, t.loc))
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// resolveClock returns when the clocks of loc first show a time of a day; for a time that they skip, the time as much
// later as they are put forward.
func resolveClock(date time.Time, hour, minute int, loc *time.Location) (at time.Time) {
	wall := time.Date(date.Year(), date.Month(), date.Day(), hour, minute, 0, 0, time.UTC)
	_, before := wall.Add(-24 * time.Hour).In(loc).Zone()
	_, later := wall.Add(24 * time.Hour).In(loc).Zone()
	at = wall.Add(-time.Duration(before) * time.Second)
	for _, offset := range []int{later, before} {
		shown := wall.Add(-time.Duration(offset) * time.Second)
		if _, now := shown.In(loc).Zone(); now == offset && (shown.Before(at) || !clockShows(at, hour, minute, loc)) {
			at = shown
		}
	}
	return at
}

// clockShows reports whether the clocks of loc show a time at an instant.
func clockShows(at time.Time, hour, minute int, loc *time.Location) bool {
	local := at.In(loc)
	return local.Hour() == hour && local.Minute() == minute
}
