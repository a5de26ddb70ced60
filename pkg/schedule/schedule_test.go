package schedule

import (
	"strings"
	"testing"
	"time"
)

func at(t testing.TB, s string) time.Time {
	t.Helper()
	out, err := time.Parse("2006-01-02 15:04 -0700", s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNext: the first occurrences after a time, in a zone with summer time: on 2026-03-29 the clock of Berlin skips
// from 2:00 to 3:00, on 2026-10-25 it shows 2:00 to 3:00 twice.
func TestNext(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, when, after string
		want              []string
	}{
		{
			"weekdays", "every weekday 8:00", "2026-11-13 08:00 +0100",
			[]string{"2026-11-16 08:00 +0100", "2026-11-17 08:00 +0100"},
		},
		{
			"weekend", "Every  Weekend at 10:00", "2026-11-13 08:00 +0100",
			[]string{"2026-11-14 10:00 +0100", "2026-11-15 10:00 +0100", "2026-11-21 10:00 +0100"},
		},
		{
			"days", "every mon,thursday 9:15", "2026-11-13 08:00 +0100",
			[]string{"2026-11-16 09:15 +0100", "2026-11-19 09:15 +0100"},
		},
		{"daily", "daily 7:30", "2026-11-13 07:29 +0100", []string{"2026-11-13 07:30 +0100", "2026-11-14 07:30 +0100"}},
		{"every day", "every day 7:30", "2026-11-13 07:30 +0100", []string{"2026-11-14 07:30 +0100"}},
		{
			"interval", "every 2h", "2026-11-13 07:31 +0100",
			[]string{"2026-11-13 09:31 +0100", "2026-11-13 11:31 +0100"},
		},
		{"interval in words", "every 90 minutes", "2026-11-13 07:31 +0100", []string{"2026-11-13 09:01 +0100"}},
		{"hourly", "hourly", "2026-11-13 07:31 +0100", []string{"2026-11-13 08:31 +0100"}},
		{"every hour", "every hour", "2026-11-13 07:31 +0100", []string{"2026-11-13 08:31 +0100"}},
		{"every minute", "every minute", "2026-11-13 07:31 +0100", []string{"2026-11-13 07:32 +0100"}},
		{
			"an interval ignores the clock change", "every 1d", "2026-03-28 12:00 +0100",
			[]string{"2026-03-29 13:00 +0200"},
		},
		{"once", "2026-12-24 18:00", "2026-11-13 07:31 +0100", []string{"2026-12-24 18:00 +0100"}},
		{"once, over", "2026-12-24 18:00", "2026-12-24 18:00 +0100", nil},
		{"cron", "0 8 * * 1-5", "2026-11-13 08:00 +0100", []string{"2026-11-16 08:00 +0100"}},
		{
			"cron, steps", "*/20 6-7 * * *", "2026-11-13 06:20 +0100",
			[]string{"2026-11-13 06:40 +0100", "2026-11-13 07:00 +0100"},
		},
		{
			"cron, names", "5 0 1 jan,jul *", "2026-11-13 06:20 +0100",
			[]string{"2027-01-01 00:05 +0100", "2027-07-01 00:05 +0200"},
		},
		{"cron, Sunday as 7", "0 12 * * 7", "2026-11-13 06:20 +0100", []string{"2026-11-15 12:00 +0100"}},
		{
			"cron, either day", "0 0 13 * fri", "2026-11-13 06:20 +0100",
			[]string{
				"2026-11-20 00:00 +0100", "2026-11-27 00:00 +0100", "2026-12-04 00:00 +0100",
				"2026-12-11 00:00 +0100", "2026-12-13 00:00 +0100",
			},
		},
		{"leap day", "0 0 29 2 *", "2026-11-13 06:20 +0100", []string{"2028-02-29 00:00 +0100"}},
		{
			"a skipped time is later", "daily 2:30", "2026-03-28 12:00 +0100",
			[]string{"2026-03-29 03:30 +0200", "2026-03-30 02:30 +0200"},
		},
		{
			"a repeated time occurs once", "daily 2:30", "2026-10-24 12:00 +0200",
			[]string{"2026-10-25 02:30 +0200", "2026-10-26 02:30 +0100"},
		},
		{
			"the clock changes before the time", "daily 8:00", "2026-10-24 12:00 +0200",
			[]string{"2026-10-25 08:00 +0100"},
		},
	} {
		times, err := Parse(tt.when, "Europe/Berlin")
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		since := at(t, tt.after)
		after := since
		for _, want := range tt.want {
			got, ok := times.Next(since, after)
			if !ok || !got.Equal(at(t, want)) {
				t.Errorf("%s: %v %t, want %s", tt.name, got.In(times.loc), ok, want)
				break
			}
			if !times.Occurs(since, got) || times.Occurs(since, got.Add(time.Second)) || times.Occurs(got, got) {
				t.Errorf("%s: Occurs disagrees about %v", tt.name, got)
			}
			if last, ok := times.Last(since, after, got.Add(time.Second)); !ok || !last.Equal(got) {
				t.Errorf("%s: the last is %v %t, want %v", tt.name, last, ok, got)
			}
			after = got
		}
		if got, ok := times.Next(since, after); len(tt.want) == 0 && ok {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestLast: after a downtime there is one last occurrence, however many were missed, and none before the schedule
// began.
func TestLast(t *testing.T) {
	t.Parallel()
	since := at(t, "2026-01-05 09:00 +0100")
	for _, tt := range []struct{ when, after, now, want string }{
		{"daily 8:00", "2026-01-05 09:00 +0100", "2026-11-13 07:59 +0100", "2026-11-12 08:00 +0100"},
		{"daily 8:00", "2026-11-12 08:00 +0100", "2026-11-13 07:59 +0100", ""},
		{"daily 8:00", "2020-01-01 08:00 +0100", "2026-01-06 07:00 +0100", ""},
		{"every 2h", "2026-01-05 09:00 +0100", "2026-01-09 12:00 +0100", "2026-01-09 11:00 +0100"},
		{"every 2h", "2026-01-05 09:00 +0100", "2026-01-05 10:00 +0100", ""},
		{"0 0 1 7 *", "2026-01-05 09:00 +0100", "2027-06-30 12:00 +0200", "2026-07-01 00:00 +0200"},
		{"2026-02-01 12:00", "2026-01-05 09:00 +0100", "2027-01-01 00:00 +0100", "2026-02-01 12:00 +0100"},
		{"2026-02-01 12:00", "2026-02-01 12:00 +0100", "2027-01-01 00:00 +0100", ""},
	} {
		times, err := Parse(tt.when, "Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		got, ok := times.Last(since, at(t, tt.after), at(t, tt.now))
		if ok != (tt.want != "") || ok && !got.Equal(at(t, tt.want)) {
			t.Errorf("%s after %s: %v %t, want %s", tt.when, tt.after, got.In(times.loc), ok, tt.want)
		}
	}
}

func TestParseRejects(t *testing.T) {
	t.Parallel()
	for _, when := range []string{
		"", "soon", "every", "every 8:00", "every 0m", "every 30s", "every 99999h", "daily", "daily 24:00",
		"daily 7:60", "every someday 8:00", "every weekday", "2026-13-01 08:00", "2026-02-30 08:00",
		"* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *",
		"5-2 * * * *", "a * * * *", "0 0 30 2 *", "every -2h", "1,, * * * *", "*/x * * * *",
	} {
		if got, err := Parse(when, "UTC"); err == nil {
			next, _ := got.Next(time.Time{}, time.Unix(0, 0))
			t.Errorf("%q is accepted: %v", when, next)
		}
	}
	for _, zone := range []string{"", "Local", "Mars/Olympus", "../etc/passwd"} {
		if _, err := Parse("daily 7:30", zone); err == nil {
			t.Errorf("zone %q is accepted", zone)
		}
	}
}

// TestParseNamesShortestInterval: a user who asks for seconds learns the shortest interval, and not only the forms.
func TestParseNamesShortestInterval(t *testing.T) {
	t.Parallel()
	for _, when := range []string{
		"every 10 seconds", "every 30s", "every 90 sec", "every second", "Every 1 Second",
		"every 0m", "every 0 hours",
	} {
		if _, err := Parse(when, "UTC"); err == nil || !strings.Contains(err.Error(), "the shortest is a minute") {
			t.Errorf("%q: %v", when, err)
		}
	}
	for _, when := range []string{"soon", "every weekday", "every seconds hand 8:00"} {
		if _, err := Parse(when, "UTC"); err == nil || strings.Contains(err.Error(), "the shortest") {
			t.Errorf("%q: %v", when, err)
		}
	}
}

// FuzzParse: whatever is accepted has occurrences that follow one another and agree with Occurs and Last.
func FuzzParse(f *testing.F) {
	for _, when := range []string{
		"every weekday 8:00", "every 2h", "daily 2:30", "2026-12-24 18:00", "*/20 6-7 * * *",
		"0 0 29 2 *", "0 0 13 * fri",
	} {
		f.Add(when, int64(1774735200))
	}
	f.Fuzz(func(t *testing.T, when string, unix int64) {
		times, err := Parse(when, "Europe/Berlin")
		if err != nil {
			return
		}
		since := time.Unix(unix%(1<<32), 0)
		after := since
		for range 3 {
			next, ok := times.Next(since, after)
			if !ok {
				return
			}
			if !next.After(after) || !times.Occurs(since, next) {
				t.Fatalf("%q: %v after %v", when, next, after)
			}
			if last, ok := times.Last(since, after, next); !ok || !last.Equal(next) {
				t.Fatalf("%q: the last at %v is %v %t", when, next, last, ok)
			}
			after = next
		}
	})
}
