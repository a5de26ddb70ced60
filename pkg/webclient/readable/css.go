package readable

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseDeclarations parses a style attribute or the body of a CSS rule to values in lower case by property. The last
// declaration of a property counts, whether or not an earlier one is !important. It is nil for an empty text and for one
// longer than 4096 bytes, which is not read.
func parseDeclarations(s string) map[string]string {
	if s == "" || len(s) > 4096 {
		return nil
	}
	out := map[string]string{}
	for part := range strings.SplitSeq(resolveEscapes(stripComments(s)), ";") {
		k, v, ok := strings.Cut(part, ":")
		if !ok {
			continue
		}
		v = strings.ToLower(strings.TrimSpace(v))
		out[strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(strings.TrimSuffix(v, "!important"))
	}
	return out
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
	{[]string{"opacity"}, ofNumber(func(n float64, unit string) bool { return n < 0.05 || unit == "%" && n < 5 })},
	{[]string{"font-size"}, ofNumber(func(n float64, unit string) bool {
		return n <= 0 || n <= 1 && (unit == "px" || unit == "pt") || n < 0.1 && unit != "%" || n < 10 && unit == "%"
	})},
	{[]string{"left", "top", "right", "bottom", "text-indent", "margin-left", "margin-top"}, ofNumber(func(n float64, unit string) bool {
		return n <= -maxOffscreen || n <= -50 && unit != "px" && unit != "pt" && unit != "%" || n <= -100 && unit == "%"
	})},
	{[]string{"clip"}, func(v string) bool {
		return strings.HasPrefix(v, "rect(") && !strings.ContainsAny(strings.NewReplacer("1px", "", "0px", "").Replace(v), "23456789")
	}},
	{[]string{"clip-path"}, func(v string) bool {
		v = strings.ReplaceAll(v, " ", "")
		return strings.HasPrefix(v, "inset(50%") || strings.HasPrefix(v, "inset(100%") || strings.HasPrefix(v, "circle(0")
	}},
	{[]string{"transform"}, func(v string) bool {
		v = strings.ReplaceAll(v, " ", "")
		return strings.Contains(v, "scale(0)") || strings.Contains(v, "scale(0,") || strings.Contains(v, "(-9999") || strings.Contains(v, "(-10000")
	}},
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

// hidesElement reports whether an element with these declarations cannot be seen, by hidingStyles or by a clipped overflow.
// It knows nothing of inherited styles.
func hidesElement(declared map[string]string) bool {
	if len(declared) == 0 {
		return false
	}
	if slices.ContainsFunc(hidingStyles, func(h hidingStyle) bool { return h.matches(declared) }) {
		return true
	}
	overflow := declared["overflow"]
	return (strings.HasPrefix(overflow, "hidden") || strings.HasPrefix(overflow, "clip")) && overflowStyle.matches(declared)
}

// parseNumber parses the number at the beginning of a value and returns the unit after it.
func parseNumber(v string) (n float64, unit string, ok bool) {
	i := 0
	for i < len(v) && (v[i] >= '0' && v[i] <= '9' || v[i] == '.' || i == 0 && (v[i] == '-' || v[i] == '+')) {
		i++
	}
	n, err := strconv.ParseFloat(v[:i], 64)
	return n, strings.TrimSpace(v[i:]), err == nil
}

// isTransparent reports whether text of this color, in lower case, is invisible: transparent, or an alpha of less than 0.05
// in hexadecimal (00 only), rgba or hsla with commas. Other notations are false.
func isTransparent(v string) bool {
	v = strings.ReplaceAll(v, " ", "")
	if v == "transparent" {
		return true
	}
	if len(v) == 9 && v[0] == '#' && v[7:] == "00" || len(v) == 5 && v[0] == '#' && v[4] == '0' {
		return true
	}
	if !strings.HasPrefix(v, "rgba(") && !strings.HasPrefix(v, "hsla(") {
		return false
	}
	last := v[strings.LastIndexByte(v, ',')+1:]
	n, _, ok := parseNumber(strings.TrimSuffix(last, ")"))
	return ok && n < 0.05
}

// namedColors are color names that are used to hide text; others are compared as written.
var namedColors = map[string]string{"white": "#ffffff", "black": "#000000", "snow": "#fffafa", "ivory": "#fffff0"}

// normalizeColor returns a color in one spelling, "" when it is none, depends on the context or has a notation that is not
// read, such as hsl. Alpha is ignored.
func normalizeColor(v string) string {
	v = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(v)), " ", "")
	if c := namedColors[v]; c != "" {
		return c
	}
	switch {
	case len(v) == 4 && v[0] == '#':
		return string([]byte{'#', v[1], v[1], v[2], v[2], v[3], v[3]})
	case strings.HasPrefix(v, "rgb("), strings.HasPrefix(v, "rgba("):
		parts := strings.Split(strings.TrimSuffix(v[strings.IndexByte(v, '(')+1:], ")"), ",")
		if len(parts) < 3 {
			return ""
		}
		const hex = "0123456789abcdef"
		out := []byte{'#'}
		for _, p := range parts[:3] {
			n, err := strconv.ParseUint(p, 10, 8)
			if err != nil {
				return ""
			}
			out = append(out, hex[n>>4], hex[n&15])
		}
		return string(out)
	case v == "inherit", v == "initial", v == "currentcolor", v == "unset", v == "none", v == "transparent", strings.ContainsAny(v, "(,"):
		return ""
	}
	return v
}

// simpleSelector matches a selector of one class or one id. Others depend on more than one element and are ignored.
var simpleSelector = regexp.MustCompile(`^[a-zA-Z0-9]*([.#][A-Za-z_][A-Za-z0-9_-]*)$`)

// collectHidingRules adds the classes and ids that a style sheet hides to into, as ".name" and "#name", up to 10000. Rules
// inside of @media and the like are ignored: they hold for some windows only. So are selectors of more than one class or id.
func collectHidingRules(css string, into map[string]bool) {
	css = stripComments(css)
	for css != "" {
		open := strings.IndexByte(css, '{')
		if open < 0 {
			return
		}
		head := strings.TrimSpace(css[:open])
		if i := strings.LastIndexByte(head, ';'); i >= 0 {
			head = strings.TrimSpace(head[i+1:]) // behind @import and @charset
		}
		css = css[open+1:]
		if strings.HasPrefix(head, "@") {
			css = css[blockEnd(css):]
			continue
		}
		end := strings.IndexByte(css, '}')
		if end < 0 {
			end = len(css)
		}
		if hidesElement(parseDeclarations(css[:end])) {
			for sel := range strings.SplitSeq(head, ",") {
				if m := simpleSelector.FindStringSubmatch(strings.TrimSpace(sel)); m != nil && len(into) < 10000 {
					into[m[1]] = true
				}
			}
		}
		css = css[min(end+1, len(css)):]
	}
}

// blockEnd returns the offset after the brace that closes the block that began before css, the end of css when there is none.
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
