package tools

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
)

// Reading and adding are two tools, because the facts by which the broker judges a call belong to a tool.

var (
	//go:embed calendar_read.md
	calendarReadText string
	//go:embed calendar_add.md
	calendarAddText string
)

const (
	calendarExtension = ".ics"
	calendarDays      = 14 // that are listed without to
	maxCalendarEvents = 200
	dayForm           = "2006-01-02"
	timeForm          = "2006-01-02 15:04"
)

// calendarRead returns the tool calendar_read, under the path rules of the file tools. Events may come from others, by
// invitations.
func calendarRead() *Tool {
	return newTool("calendar_read", calendarReadText, `"from"`, `
		"from": {"type": "string", "maxLength": 10,
			"description": "first day: today, tomorrow, or such as 2026-12-24"},
		"to": {"type": "string", "maxLength": 10, "description": "last day"},
		"path": {"type": "string", "minLength": 1, "maxLength": 4096,
			"description": "an .ics file, or a folder of them, where there are several"}`,
		readFacts(policy.Args{
			"path": {Role: policy.RoleID}, "from": {Role: policy.RoleSetting}, "to": {Role: policy.RoleSetting},
		}, "calendar", "event", "appointment", "meeting"),
		withFiles("read", func(ctx context.Context, c Call, a struct {
			Path string `json:"path"`
			From string `json:"from"`
			To   string `json:"to"`
		},
		) (string, error) {
			now := c.Now.In(time.Local)
			from, err1 := parseDay(cmp.Or(a.From, "today"), now)
			to, err2 := parseDay(cmp.Or(a.To, from.AddDate(0, 0, calendarDays-1).Format(dayForm)), now)
			if err1 != nil || err2 != nil || to.Before(from) {
				return "", fmt.Errorf("%w: from and to must be today, tomorrow or days such as 2026-12-24, in "+
					"this order", actor.ErrArguments)
			}
			at, err := c.orDefaultFolder(a.Path)
			if err != nil {
				return "", err
			}
			return readCalendars(ctx, c, at, from, to.AddDate(0, 0, 1))
		}))
}

// parseDay reads a day: today, tomorrow, or a date.
func parseDay(s string, now time.Time) (time.Time, error) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "today":
		s = now.Format(dayForm)
	case "tomorrow":
		s = now.AddDate(0, 0, 1).Format(dayForm)
	}
	return time.ParseInLocation(dayForm, s, time.Local)
}

// readCalendars lists the events of a file, or of all files of a folder, between two times.
func readCalendars(ctx context.Context, c Call, at string, from, to time.Time) (string, error) {
	files := []string{at}
	entries, more, err := c.readFolder(at, maxListed)
	switch {
	case err == nil:
		files = nil
		for _, e := range entries {
			if e.Type().IsRegular() && isOfKind(e.Name(), calendarExtension) {
				files = append(files, path.Join(at, e.Name()))
			}
		}
	case !errors.Is(err, policy.ErrNotFolder):
		return "", err
	case !isOfKind(at, calendarExtension):
		return "", errNotCalendar
	}
	var events []icalEvent
	skipped := 0
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		data, err := readWhole(c, file)
		if err != nil {
			return "", err
		}
		found, bad, err := parseCalendar(data, time.Local)
		if err != nil && len(files) == 1 {
			return "", err
		}
		if err != nil {
			bad++
		}
		skipped += bad
		events = append(events, slices.DeleteFunc(found, func(e icalEvent) bool { return !e.overlaps(from, to) })...)
	}
	slices.SortStableFunc(events, func(a, b icalEvent) int { return a.start.Compare(b.start) })
	return renderEvents(events, skipped, more), nil
}

// renderEvents returns one line for each event, with a note on what is left out.
func renderEvents(events []icalEvent, skipped int, more bool) string {
	var lines []string
	for _, e := range events[:min(len(events), maxCalendarEvents)] {
		when := e.start.In(time.Local).Format(timeForm)
		switch {
		case e.wholeDay:
			when = e.start.Format(dayForm)
			if last := e.end.AddDate(0, 0, -1); last.After(e.start) {
				when += " to " + last.Format(dayForm)
			}
		case e.end.After(e.start):
			when += " to " + e.end.In(time.Local).Format(timeForm)
		}
		line := when + "  " + text.OneLine(cmp.Or(e.title, "(no title)"), maxTitle)
		if e.place != "" {
			line += " (" + text.OneLine(e.place, maxTitle) + ")"
		}
		if e.rule != "" {
			line += " [repeats from then: " + text.OneLine(e.rule, maxTitle) + "]"
		}
		if e.details != "" {
			line += "\n    " + text.OneLine(e.details, maxSnippet)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = append(lines, "[no events]")
	}
	if n := len(events) - maxCalendarEvents; n > 0 {
		lines = append(lines, fmt.Sprintf("[%d more events; ask for fewer days]", n))
	}
	if more {
		lines = append(lines, "[the folder has more files]")
	}
	if skipped > 0 {
		lines = append(lines, fmt.Sprintf("[%d events or files could not be read]", skipped))
	}
	return strings.Join(lines, "\n")
}

// calendarAdd returns the tool calendar_add, under the path rules of the file tools. Its preview is the difference to
// the file as it is.
func calendarAdd() *Tool {
	return newTool("calendar_add", calendarAddText, `"title","start"`, `
		"title": {"type": "string", "minLength": 1, "maxLength": 200, "description": "what it is"},
		"start": {"type": "string", "maxLength": 16, "description": "such as 2026-12-24 18:00, or a day"},
		"end": {"type": "string", "maxLength": 16, "description": "in the same form; for days the last one"},
		"location": {"type": "string", "maxLength": 200, "description": "where it is"},
		"description": {"type": "string", "maxLength": 4000, "description": "more about it"},
		"path": {"type": "string", "minLength": 1, "maxLength": 4096,
			"description": "the .ics file, where there are several"}`,
		writeFacts(policy.ActCreate, policy.Args{
			"path": {Role: policy.RoleID}, "title": {Role: policy.RoleContent}, "start": {Role: policy.RoleTime},
			"end":      {Role: policy.RoleTime},
			"location": {Role: policy.RoleContent}, "description": {Role: policy.RoleContent},
		}, 32<<10),
		withArgs(func(_ context.Context, c Call, a struct {
			Path        string `json:"path"`
			Title       string `json:"title"`
			Start       string `json:"start"`
			End         string `json:"end"`
			Location    string `json:"location"`
			Description string `json:"description"`
		},
		) (Output, error) {
			e := icalEvent{
				title: oneLine(a.Title, maxTitle), place: oneLine(a.Location, maxTitle),
				details: strings.TrimSpace(a.Description),
			}
			if err := e.setTimes(a.Start, a.End); err != nil {
				return Output{}, err
			}
			event := renderEvent(e, rand.Text()+"@conclave", c.Now)
			return addToFile(c, a.Path, "calendar"+calendarExtension, errNotCalendar, func(old []byte) ([]byte, error) {
				return insertEvent(old, event)
			})
		}))
}

// setTimes sets start and end, times of the user's zone or whole days. Without an end a time lasts an hour.
func (e *icalEvent) setTimes(start, end string) error {
	invalid := fmt.Errorf("%w: start and end must be like 2026-12-24 18:00, or days like 2026-12-24, in this order",
		actor.ErrArguments)
	form := timeForm
	if len(start) == len(dayForm) {
		form, e.wholeDay = dayForm, true
	}
	parse := func(s string) (time.Time, error) {
		return time.ParseInLocation(form, strings.Replace(s, "T", " ", 1), time.Local)
	}
	var err error
	if e.start, err = parse(start); err != nil {
		return invalid
	}
	switch {
	case end == "" && !e.wholeDay:
		e.end = e.start.Add(time.Hour)
		return nil
	case end == "":
		end = start
	}
	if e.end, err = parse(end); err != nil || e.end.Before(e.start) {
		return invalid
	}
	if e.wholeDay {
		e.end = e.end.AddDate(0, 0, 1) // the file has the day after
	}
	return nil
}
