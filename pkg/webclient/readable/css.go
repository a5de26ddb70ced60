package readable

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// maxDeclarations is how many bytes of a style attribute or of the body of a CSS rule are read.
const maxDeclarations = 64 << 10

// parseDeclarations parses a style attribute or the body of a CSS rule to values in lower case by property, as a
// browser does: the last declaration of a property counts, one that is !important before others, and one with an
// unknown value does not replace one that hides the element. A text over maxDeclarations bytes is not read and hides
// its element, because nobody can tell what it does. It is nil for an empty text.
func parseDeclarations(s string) map[string]string {
	if s == "" {
		return nil
	}
	if len(s) > maxDeclarations {
		return map[string]string{"display": "none"}
	}
	out := map[string]string{}
	important := map[string]bool{}
	for part := range strings.SplitSeq(resolveEscapes(stripComments(s)), ";") {
		k, v, ok := strings.Cut(part, ":")
		if !ok {
			continue
		}
		k, v = strings.ToLower(strings.TrimSpace(k)), strings.ToLower(strings.TrimSpace(v))
		v, isImportant := cutImportant(v)
		if important[k] && !isImportant || hidesElement(map[string]string{k: out[k]}) && !isShown(k, v) {
			continue
		}
		out[k] = v
		important[k] = important[k] || isImportant
	}
	return out
}

// cutImportant removes "!important", with or without blanks within, from the end of a value.
func cutImportant(v string) (value string, ok bool) {
	before, found := strings.CutSuffix(v, "important")
	before, mark := strings.CutSuffix(strings.TrimSpace(before), "!")
	if !found || !mark {
		return v, false
	}
	return strings.TrimSpace(before), true
}

// shownValue matches the values that browsers know for the properties of hidingStyles: a keyword of display, visibility
// or a length, a number with a unit, a color in hexadecimal or a function.
var shownValue = text.Pattern(
	`^(?:block|inline|flex|grid|contents|list-item|flow-root|(?:inline|table)(?:-[a-z]+)?|table|visible|auto|none|` +
		`normal|inherit|initial|unset|revert|` +
		`small|medium|large|smaller|larger|x+-(?:small|large)|black|white|red|green|blue|gray|grey|silver|navy|` +
		`orange|currentcolor|[+-]?[0-9.]+[a-z%]*|#[0-9a-f]{3,8}|[a-z-]+\(.+\))$`)

// isShown reports whether a browser takes a value of a property that hides nothing, so that it may replace one that
// does.
func isShown(property, value string) bool {
	return shownValue().MatchString(value) && !hidesElement(map[string]string{property: value})
}

// maxOffscreen is how many pixels outside of the window nobody scrolls to.
const maxOffscreen = 500

// hidingStyle is a rule about CSS properties: an element is not visible when the value of one of them matches.
type hidingStyle struct {
	properties []string
	hides      func(value string) bool
}

var hidingStyles = []hidingStyle{
	{[]string{"display"}, func(v string) bool { return v == "none" }},
	{[]string{"visibility"}, func(v string) bool { return v == "hidden" || v == "collapse" }},
	{[]string{"content-visibility"}, func(v string) bool { return v == "hidden" }},
	{[]string{"color", "-webkit-text-fill-color"}, isTransparent},
	{[]string{"filter"}, func(v string) bool { return hidingFilter().MatchString(v) }},
	{[]string{"font"}, func(v string) bool { return hidingFont().MatchString(v) }},
	{[]string{"scale", "zoom"}, ofNumber(func(n float64, _ string) bool { return n < 0.05 })},
	{[]string{"opacity"}, ofNumber(func(n float64, unit string) bool { return n < 0.05 || unit == "%" && n < 5 })},
	{[]string{"font-size"}, ofNumber(func(n float64, unit string) bool {
		return n <= 0 || n <= 1 && (unit == "px" || unit == "pt") || n < 0.1 && unit != "%" || n < 10 && unit == "%"
	})},
	{
		[]string{"left", "top", "right", "bottom", "inset", "translate", "text-indent", "margin-left", "margin-top"},
		ofNumber(isOffscreen),
	},
	{[]string{"clip"}, func(v string) bool {
		return strings.HasPrefix(v, "rect(") &&
			!strings.ContainsAny(strings.NewReplacer("1px", "", "0px", "").Replace(v), "23456789")
	}},
	{[]string{"clip-path"}, func(v string) bool {
		v = strings.ReplaceAll(v, " ", "")
		return strings.HasPrefix(v, "inset(50%") || strings.HasPrefix(v, "inset(100%") ||
			strings.HasPrefix(v, "circle(0")
	}},
	{[]string{"transform"}, func(v string) bool {
		v = strings.ReplaceAll(v, " ", "")
		if strings.Contains(v, "scale(0)") || strings.Contains(v, "scale(0,") {
			return true
		}
		_, distance, ok := strings.Cut(v, "translate")
		_, distance, _ = strings.Cut(distance, "(")
		distance, _, _ = strings.Cut(strings.TrimSuffix(distance, ")"), ",")
		n, unit, isNumber := parseNumber(distance)
		return ok && isNumber && isOffscreen(n, unit)
	}},
}

var (
	hidingFilter = text.Pattern(`opacity\(\s*(?:0*\.?0[0-4]?[0-9]*|[0-4](?:\.[0-9]+)?%)\s*\)`)
	hidingFont   = text.Pattern(`(?:^|\s)[+]?0*(?:\.0[0-9]*)?0(?:px|pt|em|rem|%)?\s*(?:/|\s)`)
)

// isOffscreen reports whether a shift moves an element out of the window.
func isOffscreen(n float64, unit string) bool {
	unit, _, _ = strings.Cut(unit, " ")
	return n <= -maxOffscreen || n <= -50 && unit != "px" && unit != "pt" && unit != "%" || n <= -100 && unit == "%"
}

// overflowStyle hides the content of an element without width or height that clips its overflow.
var overflowStyle = hidingStyle{
	[]string{"width", "height", "max-width", "max-height"}, ofNumber(func(n float64, _ string) bool { return n <= 1 }),
}

// ofNumber applies a condition on a number and its unit to a value. A value that is no number does not match.
func ofNumber(holds func(n float64, unit string) bool) func(value string) bool {
	return func(value string) bool {
		n, unit, ok := parseNumber(value)
		return ok && holds(n, unit)
	}
}

func (h hidingStyle) matches(declared map[string]string) bool {
	return slices.ContainsFunc(h.properties, func(p string) bool { return declared[p] != "" && h.hides(declared[p]) })
}

// hidesElement reports whether an element with these declarations cannot be seen, by hidingStyles or by a clipped
// overflow. It knows nothing of inherited styles.
func hidesElement(declared map[string]string) bool {
	if len(declared) == 0 {
		return false
	}
	if slices.ContainsFunc(hidingStyles, func(h hidingStyle) bool { return h.matches(declared) }) {
		return true
	}
	background := cmp.Or(declared["background-color"], declared["background"])
	if ink := normalizeColor(declared["color"]); ink != "" && ink == normalizeColor(background) {
		return true
	}
	overflow := declared["overflow"]
	return (strings.HasPrefix(overflow, "hidden") || strings.HasPrefix(overflow, "clip")) &&
		overflowStyle.matches(declared)
}

// parseNumber parses the number at the beginning of a value, also inside of calc(), and returns the unit after it. A
// calculation that multiplies by 0 is 0.
func parseNumber(v string) (n float64, unit string, ok bool) {
	if inner, isCalc := strings.CutPrefix(v, "calc("); isCalc {
		inner = strings.TrimSpace(strings.TrimSuffix(inner, ")"))
		if timesZero().MatchString(inner) {
			return 0, "", true
		}
		if strings.ContainsAny(inner, "*/ ") {
			return 0, "", false
		}
		v = inner
	}
	i := 0
	for i < len(v) && (v[i] >= '0' && v[i] <= '9' || v[i] == '.' || i == 0 && (v[i] == '-' || v[i] == '+')) {
		i++
	}
	n, err := strconv.ParseFloat(v[:i], 64)
	return n, strings.TrimSpace(v[i:]), err == nil
}

var timesZero = text.Pattern(`(?:\*\s*[+-]?0(?:\.0*)?\s*$|^[+-]?0(?:\.0*)?\s*\*)`)

// splitColor returns the parts of a color function, such as rgb(0 0 0 / 0), with its alpha last and apart; nil when v
// is no function. alpha is "" when the color has none. Commas and blanks divide alike.
func splitColor(v string) (parts []string, alpha string) {
	open := strings.IndexByte(v, '(')
	if open <= 0 {
		return nil, ""
	}
	body, alpha, hasSlash := strings.Cut(strings.TrimSuffix(strings.TrimSpace(v[open+1:]), ")"), "/")
	parts = strings.FieldsFunc(body, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
	if name := strings.TrimSpace(v[:open]); !hasSlash && len(parts) == 4 && name != "color" {
		parts, alpha = parts[:3], parts[3]
	}
	return parts, strings.TrimSpace(alpha)
}

// isTransparent reports whether text of this color, in lower case, is invisible: transparent, or an alpha of less than
// 0.05 in hexadecimal or in a color function of any notation.
func isTransparent(v string) bool {
	v = strings.TrimSpace(v)
	if v == "transparent" {
		return true
	}
	if strings.HasPrefix(v, "#") {
		return len(v) == 9 && v[7] == '0' || len(v) == 5 && v[4] == '0' // less than 16 of 255
	}
	_, alpha := splitColor(v)
	n, unit, ok := parseNumber(alpha)
	return ok && (n < 0.05 || unit == "%" && n < 5) || alpha == "none"
}

// namedColors are color names that are used to hide text; others are compared as written.
var namedColors = map[string]string{"white": "#ffffff", "black": "#000000", "snow": "#fffafa", "ivory": "#fffff0"}

// normalizeColor returns a color in one spelling, "" when it is none, depends on the context or has a notation that is
// not read. Alpha is ignored. Of hsl and the like only white and black are read.
func normalizeColor(v string) string {
	v = strings.ToLower(strings.TrimSpace(v))
	if c := namedColors[v]; c != "" {
		return c
	}
	switch {
	case (len(v) == 4 || len(v) == 5) && v[0] == '#':
		return string([]byte{'#', v[1], v[1], v[2], v[2], v[3], v[3]})
	case len(v) == 9 && v[0] == '#':
		return v[:7]
	case strings.HasPrefix(v, "rgb"):
		return normalizeRGB(v)
	case strings.HasPrefix(v, "hsl"):
		if parts, _ := splitColor(v); len(parts) == 3 {
			return map[string]string{"100%": "#ffffff", "100": "#ffffff", "0%": "#000000", "0": "#000000"}[parts[2]]
		}
		return ""
	case v == "inherit", v == "initial", v == "currentcolor", v == "unset", v == "none", v == "transparent",
		strings.ContainsAny(v, "(, "):
		return ""
	}
	return v
}

// normalizeRGB returns the color rgb(255, 255, 255), also with percentages or blanks, as #ffffff; "" when v is no such
// color.
func normalizeRGB(v string) string {
	parts, _ := splitColor(v)
	if len(parts) != 3 {
		return ""
	}
	const hex = "0123456789abcdef"
	out := []byte{'#'}
	for _, p := range parts {
		n, unit, ok := parseNumber(p)
		if unit == "%" {
			n *= 2.55
		}
		if !ok || n < 0 || unit != "" && unit != "%" {
			return ""
		}
		c := uint8(min(n+0.5, 255))
		out = append(out, hex[c>>4], hex[c&15])
	}
	return string(out)
}

// blockEnd returns the offset after the brace that closes the block that began before css, the end of css when there is
// none.
func blockEnd(css string) int {
	depth := 1
	for i := range len(css) {
		switch css[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(css)
}

// stripComments removes CSS comments; an unclosed one reaches to the end.
func stripComments(s string) string {
	if !strings.Contains(s, "/*") {
		return s
	}
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, "/*")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		_, s, _ = strings.Cut(after, "*/")
	}
}

// resolveEscapes resolves CSS escapes such as \64, so that they cannot hide a keyword. Of other escapes it drops the
// backslash.
func resolveEscapes(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		j := i + 1
		for j < len(s) && j < i+7 && strings.IndexByte("0123456789abcdefABCDEF", s[j]) >= 0 {
			j++
		}
		if n, err := strconv.ParseUint(s[i+1:j], 16, 32); err == nil && utf8.ValidRune(rune(n)) {
			b.WriteRune(rune(n))
			if j < len(s) && s[j] == ' ' {
				j++
			}
			i = j - 1
		}
	}
	return b.String()
}
