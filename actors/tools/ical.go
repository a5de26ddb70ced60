package tools

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Calendar files are iCalendar (RFC 5545). Only events are read; rules of repetition are shown and not expanded.

// icalEvent is an event of a calendar.
type icalEvent struct {
	title, place, details string
	start, end            time.Time // end is the zero time when the file has none
	wholeDay              bool
	rule                  string // of its repetition, "" = none
	until                 time.Time
}

// maxEvents bounds the events that are read of one file.
const maxEvents = 20_000

var errNotCalendar = errors.New("the file is not a calendar (.ics)")

// parseCalendar returns the events of a calendar. Events that cannot be read are counted in skipped. Times without a
// zone, and in a zone that is not known, are those of local.
func parseCalendar(data []byte, local *time.Location) (events []icalEvent, skipped int, err error) {
	lines := unfoldLines(data)
	if len(lines) == 0 || !strings.EqualFold(strings.TrimSpace(strings.TrimPrefix(lines[0], "\uFEFF")),
		"BEGIN:VCALENDAR") {
		return nil, 0, errNotCalendar
	}
	depth, bad := 0, false // depth counts components inside of an event, such as alarms
	var e *icalEvent
	for _, line := range lines {
		name, params, value, ok := splitProperty(line)
		upper := strings.ToUpper(value)
		switch {
		case !ok:
		case name == "BEGIN" && upper == "VEVENT" && e == nil:
			e, bad, depth = &icalEvent{}, false, 0
		case e == nil:
		case name == "BEGIN":
			depth++
		case name == "END" && depth > 0:
			depth--
		case name == "END":
			if bad || e.start.IsZero() || len(events) == maxEvents {
				skipped++
			} else {
				events = append(events, *e)
			}
			e = nil
		case depth == 0:
			bad = !e.set(name, params, value, local) || bad
		}
	}
	if e != nil {
		skipped++ // the file is cut off
	}
	return events, skipped, nil
}

// set sets a property of the event; unknown ones are ignored. It reports false for a time that cannot be read.
func (e *icalEvent) set(name string, params map[string]string, value string, local *time.Location) bool {
	ok := true
	switch name {
	case "SUMMARY":
		e.title = unescapeText(value)
	case "LOCATION":
		e.place = unescapeText(value)
	case "DESCRIPTION":
		e.details = unescapeText(value)
	case "DTSTART":
		e.start, e.wholeDay, ok = parseICalTime(value, params["TZID"], local)
	case "DTEND":
		e.end, _, ok = parseICalTime(value, params["TZID"], local)
	case "RRULE":
		e.rule = value
		for part := range strings.SplitSeq(value, ";") {
			if until, found := strings.CutPrefix(strings.ToUpper(part), "UNTIL="); found {
				e.until, _, _ = parseICalTime(until, "", local)
			}
		}
	}
	return ok
}

// overlaps reports whether the event, or a repetition of it, may be between two times.
func (e icalEvent) overlaps(from, to time.Time) bool {
	end := e.end
	if !end.After(e.start) {
		end = e.start.Add(time.Second)
		if e.wholeDay {
			end = e.start.AddDate(0, 0, 1)
		}
	}
	if e.rule != "" {
		return e.start.Before(to) && (e.until.IsZero() || !e.until.Before(from))
	}
	return e.start.Before(to) && end.After(from)
}

// folds are the line breaks inside of a content line.
var folds = strings.NewReplacer("\r\n ", "", "\r\n\t", "", "\n ", "", "\n\t", "")

// unfoldLines returns the content lines of a calendar: a line that begins with a blank or tab continues the one before.
func unfoldLines(data []byte) []string {
	text := folds.Replace(string(bytes.ToValidUTF8(data, []byte("\uFFFD"))))
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
}

// property matches a content line: name, parameters and value. A quoted parameter may hold ; and :.
var property = regexp.MustCompile(`^([^";:]*)((?:;(?:[^";:]|"[^"]*")*)*):(.*)$`)

// parameter matches one parameter of a content line.
var parameter = regexp.MustCompile(`;([^=;]*)=((?:[^";:]|"[^"]*")*)`)

// splitProperty splits a content line into name, parameters and value. Names are in upper case.
func splitProperty(line string) (name string, params map[string]string, value string, ok bool) {
	m := property.FindStringSubmatch(line)
	if m == nil {
		return "", nil, "", false
	}
	params = map[string]string{}
	for _, p := range parameter.FindAllStringSubmatch(m[2], -1) {
		params[strings.ToUpper(p[1])] = strings.Trim(p[2], `"`)
	}
	return strings.ToUpper(m[1]), params, m[3], true
}

// parseICalTime reads a day, a time in UTC, or a time in a zone.
func parseICalTime(value, zone string, local *time.Location) (at time.Time, wholeDay, ok bool) {
	loc := local
	if isZoneName(zone) {
		if known, err := loadZone(zone); err == nil {
			loc = known
		}
	}
	for _, form := range []struct {
		layout   string
		wholeDay bool
		loc      *time.Location
	}{{"20060102T150405Z", false, time.UTC}, {"20060102T150405", false, loc}, {"20060102", true, local}} {
		if at, err := time.ParseInLocation(form.layout, strings.ToUpper(value), form.loc); err == nil {
			return at, form.wholeDay, true
		}
	}
	return time.Time{}, false, false
}

var (
	icalEscapes   = strings.NewReplacer(`\`, `\\`, ";", `\;`, ",", `\,`, "\r\n", `\n`, "\n", `\n`, "\r", `\n`)
	icalUnescapes = strings.NewReplacer(`\\`, `\`, `\;`, ";", `\,`, ",", `\n`, "\n", `\N`, "\n")
)

func unescapeText(s string) string { return icalUnescapes.Replace(s) }

// renderEvent returns an event as content lines, folded at 75 bytes.
func renderEvent(e icalEvent, uid string, now time.Time) string {
	var b strings.Builder
	line := func(name, value string) {
		rest, width := name+":"+value, 75
		for len(rest) > width {
			cut := width
			for !utf8.RuneStart(rest[cut]) {
				cut--
			}
			b.WriteString(rest[:cut] + "\r\n ")
			rest, width = rest[cut:], 74
		}
		b.WriteString(rest + "\r\n")
	}
	line("BEGIN", "VEVENT")
	line("UID", uid)
	line("DTSTAMP", now.UTC().Format("20060102T150405Z"))
	for _, t := range []struct {
		name string
		at   time.Time
	}{{"DTSTART", e.start}, {"DTEND", e.end}} {
		switch {
		case t.at.IsZero():
		case e.wholeDay:
			line(t.name+";VALUE=DATE", t.at.Format("20060102"))
		default:
			line(t.name, t.at.UTC().Format("20060102T150405Z"))
		}
	}
	for _, t := range []struct{ name, value string }{
		{"SUMMARY", e.title},
		{"LOCATION", e.place},
		{"DESCRIPTION", e.details},
	} {
		if t.value != "" {
			line(t.name, icalEscapes.Replace(t.value))
		}
	}
	line("END", "VEVENT")
	return b.String()
}

// insertEvent returns a calendar with an event added at its end, or a new calendar when old is empty. The rest stays as
// it is.
func insertEvent(old []byte, event string) ([]byte, error) {
	if len(bytes.TrimSpace(old)) == 0 {
		return fmt.Appendf(nil,
			"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//Conclave//Conclave//EN\r\n%sEND:VCALENDAR\r\n", event), nil
	}
	events, skipped, err := parseCalendar(old, time.UTC)
	if err != nil {
		return nil, err
	}
	at, found := endOfCalendar(old)
	if !found {
		return nil, errNotCalendar
	}
	out := bytes.Join([][]byte{old[:at], []byte(event), old[at:]}, nil)
	// In a damaged file the new event can become a part of an event that has no end.
	if after, skippedAfter, err := parseCalendar(out, time.UTC); err != nil || len(after)+skippedAfter != len(events)+
		skipped+1 {
		return nil, errNotCalendar
	}
	return out, nil
}

// endOfCalendar returns the index of the last line that ends a calendar.
func endOfCalendar(data []byte) (at int, found bool) {
	const end = "END:VCALENDAR"
	for rest := data; len(rest) > 0; rest = data[:max(at-1, 0)] {
		at = bytes.LastIndexByte(rest, '\n') + 1
		if line := rest[at:]; len(line) >= len(end) && strings.EqualFold(string(line[:len(end)]), end) {
			return at, true
		}
	}
	return 0, false
}
