package readable

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// declarations reads the value of a style attribute, or what stands between the braces of a rule. The last one of a name
// counts, as in a browser.
func declarations(s string) map[string]string {
	if s == "" || len(s) > 4096 {
		return nil
	}
	out := map[string]string{}
	for part := range strings.SplitSeq(unescape(uncomment(s)), ";") {
		k, v, ok := strings.Cut(part, ":")
		if !ok {
			continue
		}
		v = strings.ToLower(strings.TrimSpace(v))
		out[strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(strings.TrimSuffix(v, "!important"))
	}
	return out
}

// far is how many pixels outside of the window nobody scrolls to.
const far = 500

// hides reports whether an element with these declarations cannot be seen.
func hides(d map[string]string) bool {
	if len(d) == 0 {
		return false
	}
	switch {
	case d["display"] == "none",
		d["visibility"] == "hidden", d["visibility"] == "collapse",
		d["content-visibility"] == "hidden",
		transparent(d["color"]), transparent(d["-webkit-text-fill-color"]):
		return true
	}
	if n, unit, ok := number(d["opacity"]); ok && (n < 0.05 || unit == "%" && n < 5) {
		return true
	}
	if n, unit, ok := number(d["font-size"]); ok && (n <= 0 || n <= 1 && (unit == "px" || unit == "pt") || n < 0.1 && unit != "%" || n < 10 && unit == "%") {
		return true
	}
	for _, k := range []string{"left", "top", "right", "bottom", "text-indent", "margin-left", "margin-top"} {
		if n, unit, ok := number(d[k]); ok && (n <= -far || n <= -50 && unit != "px" && unit != "pt" && unit != "%" || n <= -100 && unit == "%") {
			return true
		}
	}
	if clip := d["clip"]; strings.HasPrefix(clip, "rect(") && !strings.ContainsAny(strings.NewReplacer("1px", "", "0px", "").Replace(clip), "23456789") {
		return true
	}
	if clip := strings.ReplaceAll(d["clip-path"], " ", ""); strings.HasPrefix(clip, "inset(50%") || strings.HasPrefix(clip, "inset(100%") || strings.HasPrefix(clip, "circle(0") {
		return true
	}
	if t := strings.ReplaceAll(d["transform"], " ", ""); strings.Contains(t, "scale(0)") || strings.Contains(t, "scale(0,") || strings.Contains(t, "(-9999") || strings.Contains(t, "(-10000") {
		return true
	}
	if strings.HasPrefix(d["overflow"], "hidden") || strings.HasPrefix(d["overflow"], "clip") {
		for _, k := range []string{"width", "height", "max-width", "max-height"} {
			if n, _, ok := number(d[k]); ok && n <= 1 {
				return true
			}
		}
	}
	return false
}

// number reads the number at the beginning of a value, and what follows it.
func number(v string) (n float64, unit string, ok bool) {
	i := 0
	for i < len(v) && (v[i] >= '0' && v[i] <= '9' || v[i] == '.' || i == 0 && (v[i] == '-' || v[i] == '+')) {
		i++
	}
	n, err := strconv.ParseFloat(v[:i], 64)
	return n, strings.TrimSpace(v[i:]), err == nil
}

// transparent reports whether text of this color is not there.
func transparent(v string) bool {
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
	n, _, ok := number(strings.TrimSuffix(last, ")"))
	return ok && n < 0.05
}

// colors are the names that are used to hide text; others are compared as they are written.
var colors = map[string]string{"white": "#ffffff", "black": "#000000", "snow": "#fffafa", "ivory": "#fffff0"}

// color is a color in one spelling, "" when it is none or says nothing.
func color(v string) string {
	v = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(v)), " ", "")
	if c := colors[v]; c != "" {
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

// simple is a selector that names one class or one id. Others depend on more than one element: they are not looked at.
var simple = regexp.MustCompile(`^[a-zA-Z0-9]*([.#][A-Za-z_][A-Za-z0-9_-]*)$`)

// hidingRules collects the classes and ids that a style sheet hides everywhere. Rules inside of @media and the like are
// left out: they hold for some windows only.
func hidingRules(css string, into map[string]bool) {
	css = uncomment(css)
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
		if hides(declarations(css[:end])) {
			for sel := range strings.SplitSeq(head, ",") {
				if m := simple.FindStringSubmatch(strings.TrimSpace(sel)); m != nil && len(into) < 10000 {
					into[m[1]] = true
				}
			}
		}
		css = css[min(end+1, len(css)):]
	}
}

// blockEnd is where the block ends that began before css.
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

// uncomment drops what stands between /* and */.
func uncomment(s string) string {
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

// unescape reads \64 and \d as the characters they stand for, so that nobody hides the word none.
func unescape(s string) string {
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
