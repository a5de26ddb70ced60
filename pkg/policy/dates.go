package policy

import (
	"regexp"
	"strconv"
	"strings"

	"conclave/pkg/text"
)

// day is a date that the user typed. year is 0 when the user left it out, and then matches every year.
type day struct{ year, month, day int }

// matches reports whether two dates are the same day of a year, and of the same year unless one has none.
func (d day) matches(o day) bool {
	return d.matchesDay(o) && (d.year == o.year || d.year == 0 || o.year == 0)
}

// matchesDay reports whether two dates are the same day of any year.
func (d day) matchesDay(o day) bool { return d.month == o.month && d.day == o.day }

// monthNames maps the first letters of month names in English, German, French, Spanish and Italian to the month.
var monthNames = []struct {
	prefix string
	month  int
}{
	{"jan", 1},
	{"gen", 1},
	{"ene", 1},
	{"feb", 2},
	{"fév", 2},
	{"mar", 3},
	{"mär", 3},
	{"apr", 4},
	{"avr", 4},
	{"abr", 4},
	{"may", 5},
	{"mai", 5},
	{"mag", 5},
	{"jun", 6},
	{"juin", 6},
	{"giu", 6},
	{"jul", 7},
	{"juil", 7},
	{"lug", 7},
	{"aug", 8},
	{"aoû", 8},
	{"ago", 8},
	{"sep", 9},
	{"set", 9},
	{"oct", 10},
	{"okt", 10},
	{"ott", 10},
	{"nov", 11},
	{"dec", 12},
	{"dez", 12},
	{"déc", 12},
	{"dic", 12},
}

const monthPattern = `(jan(?:uary|uar|vier)?|gennaio|enero|feb(?:ruary|ruar|brero|braio)?|février|mar(?:ch|s|zo)?|märz|apr(?:il|ile)?|avril|abril|may|mai|mayo|maggio|june?|juin|junio|juni|giugno|july?|juillet|julio|juli|luglio|aug(?:ust)?|août|agosto|sept?(?:ember|embre|iembre|tembre)?|settembre|oct(?:ober|obre|ubre)?|oktober|ottobre|nov(?:ember|embre|iembre)?|dec(?:ember)?|dezember|décembre|diciembre|dicembre)`

// datePatterns match the forms of a date; the groups of each are named y, m (number), n (name) and d.
var datePatterns = []func() *regexp.Regexp{
	text.Pattern(`\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})`),
	text.Pattern(`\b(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})?`),
	text.Pattern(`(?i)\b(?P<n>` + monthPattern +
		`)\.? (?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?\b(?:,? (?P<y>\d{4})\b)?`),
	text.Pattern(`(?i)\b(?P<d>\d{1,2})(?:st|nd|rd|th|\.|er)? (?:of |de |di )?(?P<n>` + monthPattern +
		`)\b(?:,? (?:de |del )?(?P<y>\d{4})\b)?`),
}

// extractDays returns the dates in a text, and the text with each replaced by spaces, so that their digits are not
// taken for numbers.
func extractDays(s string) (days []day, rest string) {
	rest = s
	for _, pattern := range datePatterns {
		p := pattern()
		for _, m := range p.FindAllStringSubmatchIndex(rest, -1) {
			var d day
			for i, name := range p.SubexpNames() {
				if m[2*i] < 0 {
					continue
				}
				v := strings.ToLower(rest[m[2*i]:m[2*i+1]])
				switch name {
				case "y":
					d.year, _ = strconv.Atoi(v)
				case "m":
					d.month, _ = strconv.Atoi(v)
				case "d":
					d.day, _ = strconv.Atoi(v)
				case "n":
					d.month = parseMonth(v)
				}
			}
			if d.month >= 1 && d.month <= 12 && d.day >= 1 && d.day <= 31 {
				days = append(days, d)
				rest = rest[:m[0]] + strings.Repeat(" ", m[1]-m[0]) + rest[m[1]:]
			}
		}
	}
	return days, rest
}

// parseMonth returns the month of a name in lower case, 0 when it is none. Longer prefixes win.
func parseMonth(name string) (month int) {
	longest := 0
	for _, m := range monthNames {
		if strings.HasPrefix(name, m.prefix) && len(m.prefix) > longest {
			month, longest = m.month, len(m.prefix)
		}
	}
	return month
}

// clockPattern matches a time of day.
var clockPattern = text.Pattern(`(?i)\b(\d{1,2})(?::(\d{2}))?(?::\d{2})?\s*(am|pm|a\.m\.|p\.m\.|uhr|h)?\b`)

// isoSeparator matches the T between date and time.
var isoSeparator = text.Pattern(`(\d)T(\d)`)

// extractClocks returns the times of day in a text, in minutes: with a colon, or with a word such as pm.
func extractClocks(s string) (out []int) {
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

// removeClocks returns a text with each time of day replaced by spaces.
func removeClocks(s string) string {
	return clockPattern().ReplaceAllStringFunc(s, func(m string) string {
		if strings.Trim(m, "0123456789 ") == "" { // neither a colon nor a word such as pm
			return m
		}
		return strings.Repeat(" ", len(m))
	})
}

// plainNumber matches a non-negative number with nothing around it.
var plainNumber = text.Pattern(`^\d+(?:[.,]\d+)*$`)

// parsePlainNumber returns the value of a non-negative number without sign, unit, exponent or multiplier; ok is false
// for any other text.
func parsePlainNumber(s string) (n float64, ok bool) {
	if !plainNumber().MatchString(s) {
		return 0, false
	}
	n, err := strconv.ParseFloat(normalizeNumber(s), 64)
	return n, err == nil
}

// numberPattern matches a number with its separators.
var numberPattern = text.Pattern(`\d+(?:[.,]\d+)*`)

// extractNumbers returns the numbers in a text. A comma before three digits separates thousands; any other is a decimal
// point.
func extractNumbers(s string) (out []float64) {
	for _, m := range numberPattern().FindAllString(s, -1) {
		if f, err := strconv.ParseFloat(normalizeNumber(m), 64); err == nil {
			out = append(out, f)
		}
	}
	return out
}

func normalizeNumber(s string) string {
	parts := strings.Split(s, ",")
	for i := 1; i < len(parts); i++ {
		if len(strings.SplitN(parts[i], ".", 2)[0]) != 3 {
			return strings.ReplaceAll(s, ",", ".")
		}
	}
	return strings.Join(parts, "")
}
