package date

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/pkg/text"
)

// Day is a day that a text names, in its bytes From to To. Year is 0 when the text has none. A month need not have as
// many days.
type Day struct {
	Year     int
	Month    time.Month
	Day      int
	From, To int
}

// Matches reports whether two dates are the same day of a year, and of the same year unless one has none.
func (d Day) Matches(o Day) bool {
	return d.MatchesDay(o) && (d.Year == o.Year || d.Year == 0 || o.Year == 0)
}

// MatchesDay reports whether two dates are the same day of any year.
func (d Day) MatchesDay(o Day) bool { return d.Month == o.Month && d.Day == o.Day }

// monthLists are the names of each month, and those of its English abbreviations that are in use.
var monthLists = [12]string{
	"january jan januar enero janvier gennaio janeiro januari",
	"february feb februar febrero février febbraio fevereiro februari",
	"march mar märz maerz marzo mars março maart",
	"april apr abril avril aprile",
	"may mai mayo maggio maio mei",
	"june jun juni junio juin giugno junho",
	"july jul juli julio juillet luglio julho",
	"august aug agosto août augustus",
	"september sept sep septiembre septembre settembre setembro",
	"october oct oktober octubre octobre ottobre outubro",
	"november nov noviembre novembre novembro",
	"december dec dezember diciembre décembre dicembre dezembro",
}

// monthNames maps the names of [monthLists], as they are and folded, to the month.
var monthNames = sync.OnceValue(func() map[string]time.Month {
	all := map[string]time.Month{}
	for i, list := range monthLists {
		for _, w := range strings.Fields(list + " " + text.Fold(list)) {
			all[w] = time.Month(i + 1)
		}
	}
	return all
})

// IsMonth reports whether a word in lower case is the name of a month.
func IsMonth(w string) bool { return monthNames()[w] != 0 }

// dayPatterns match the forms of a date; the groups of each are named y, m (number), n (name) and d.
var dayPatterns = sync.OnceValue(func() []*regexp.Regexp {
	month := `(?P<n>` + strings.Join(slices.Sorted(maps.Keys(monthNames())), "|") + `)`
	return []*regexp.Regexp{
		regexp.MustCompile(`\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})`),
		regexp.MustCompile(`\b(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})?`),
		regexp.MustCompile(`(?i)\b` + month + `\.? (?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?\b(?:,? (?P<y>\d{4})\b)?`),
		regexp.MustCompile(`(?i)\b(?P<d>\d{1,2})(?:st|nd|rd|th|\.|er)? (?:of |de |di )?` + month +
			`\b(?:,? (?:de |del )?(?P<y>\d{4})\b)?`),
	}
})

// FindDays returns the days in a text, and the text with each replaced by as many spaces, so that their digits are not
// taken for numbers.
func FindDays(s string) (days []Day, rest string) {
	rest = s
	for _, p := range dayPatterns() {
		for _, m := range p.FindAllStringSubmatchIndex(rest, -1) {
			d := Day{From: m[0], To: m[1]}
			for i, name := range p.SubexpNames() {
				if m[2*i] < 0 {
					continue
				}
				v := rest[m[2*i]:m[2*i+1]]
				n, _ := strconv.Atoi(v)
				switch name {
				case "y":
					d.Year = n
				case "m":
					d.Month = time.Month(n)
				case "d":
					d.Day = n
				case "n":
					d.Month = monthNames()[strings.ToLower(v)]
				}
			}
			if d.Month >= time.January && d.Month <= time.December && d.Day >= 1 && d.Day <= 31 {
				days = append(days, d)
				rest = rest[:d.From] + strings.Repeat(" ", d.To-d.From) + rest[d.To:]
			}
		}
	}
	return days, rest
}

// clockPattern matches a time of day.
var clockPattern = text.Pattern(`(?i)\b(\d{1,2})(?::(\d{2}))?(?::\d{2})?(?:\s*([ap]\.m\.|(?:am|pm|uhr|h)\b)|\b)`)

// isoSeparator matches the T between date and time.
var isoSeparator = text.Pattern(`(\d)T(\d)`)

// FindClocks returns the times of day in a text, in minutes: with a colon, or with a word such as pm.
func FindClocks(s string) (out []int) {
	for _, m := range clockPattern().FindAllStringSubmatch(isoSeparator().ReplaceAllString(s, "$1 $2"), -1) {
		if m[2] == "" && m[3] == "" {
			continue
		}
		h, _ := strconv.Atoi(m[1])
		minutes, _ := strconv.Atoi(m[2])
		switch suffix := strings.ToLower(m[3]); {
		case strings.HasPrefix(suffix, "p") && h < 12:
			h += 12
		case strings.HasPrefix(suffix, "a") && h == 12:
			h = 0
		}
		if h < 24 && minutes < 60 {
			out = append(out, 60*h+minutes)
		}
	}
	return out
}

// RemoveClocks returns a text with each time of day replaced by spaces.
func RemoveClocks(s string) string {
	return clockPattern().ReplaceAllStringFunc(s, func(m string) string {
		if strings.Trim(m, "0123456789 ") == "" { // neither a colon nor a word such as pm
			return m
		}
		return strings.Repeat(" ", len(m))
	})
}
