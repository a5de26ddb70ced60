package policy

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The tables below match the names of tools with the words of a request. They are coarse on purpose: a missing word costs
// one approval request, a superfluous one could let an unrequested call pass.

// requestVerbs maps verbs in tool names to the words by which users request them.
var requestVerbs = map[string][]string{
	"send":       {"send", "sending", "write", "reply", "respond", "forward", "tell", "notify", "message", "dm", "post"},
	"post":       {"post", "publish", "write", "put", "send", "reply"},
	"publish":    {"publish", "post", "release"},
	"reply":      {"reply", "answer", "respond", "write"},
	"forward":    {"forward", "send"},
	"create":     {"create", "add", "make", "schedule", "set", "plan", "new", "book", "write"},
	"make":       {"make", "create", "new"},
	"add":        {"add", "invite", "include", "put", "append"},
	"append":     {"append", "add", "write", "put"},
	"insert":     {"insert", "add", "put"},
	"save":       {"save", "keep", "store", "write", "remember", "note"},
	"remember":   {"remember", "save", "keep", "note"},
	"upload":     {"upload", "put", "save"},
	"share":      {"share"},
	"invite":     {"invite", "add"},
	"update":     {"update", "change", "modify", "adjust", "set", "edit", "correct"},
	"edit":       {"edit", "change", "update", "modify", "correct"},
	"set":        {"set", "change", "update"},
	"write":      {"write", "create", "save", "put", "add"},
	"reschedule": {"reschedule", "move", "postpone", "shift"},
	"schedule":   {"schedule", "plan", "set", "book"},
	"move":       {"move"},
	"rename":     {"rename"},
	"mark":       {"mark"},
	"archive":    {"archive"},
}

// vagueVerbs are the verbs that count as a request only when the user names the object too.
var vagueVerbs = map[string]bool{
	"send": true, "post": true, "create": true, "make": true, "add": true, "append": true, "insert": true, "update": true, "edit": true, "set": true, "write": true, "save": true, "upload": true, "share": true,
}

// nounSynonyms maps nouns in tool names to the words by which users name them; nil = the noun need not be named.
var nounSynonyms = map[string][]string{
	"email": {"email", "emails", "mail", "e-mail"}, "mail": {"email", "mail", "e-mail"},
	"message": nil, "direct": nil, "user": nil, "to": nil, "from": nil, "in": nil, "the": nil, "slack": nil, "info": nil, "new": nil, "sms": {"sms", "text", "message"},
	"calendar": nil,
	"event":    {"event", "calendar", "meeting", "appointment", "reminder", "lunch", "dinner"},
	"file":     {"file", "files", "document", "documents", "list", "note", "spreadsheet"},
	"webpage":  {"webpage", "website", "page", "site"}, "page": {"webpage", "website", "page", "site"},
	"participants": {"participants", "participant", "invite", "event"},
	"channel":      {"channel", "channels"},
	"note":         {"note", "notes"}, "memory": {"remember", "memory", "note"},
}

// isRequested reports whether the user's words request what a tool of this name does: its first known verb in a request,
// see [Flow.hasRequest], and after a vague verb also its nouns. A name without a known verb is never requested.
func isRequested(tool string, f *Flow) bool {
	parts := splitName(tool)
	at := slices.IndexFunc(parts, func(w string) bool { return requestVerbs[w] != nil })
	if at < 0 || !f.hasRequest(requestVerbs[parts[at]]) {
		return false
	}
	if !vagueVerbs[parts[at]] {
		return true
	}
	for _, noun := range parts[at+1:] {
		synonyms, listed := nounSynonyms[noun]
		if listed && synonyms == nil {
			continue
		}
		if !listed {
			synonyms = []string{noun, noun + "s", strings.TrimSuffix(noun, "s")}
		}
		if !f.hasWord(synonyms...) {
			return false
		}
	}
	return true
}

// splitName splits a tool name like send_email or GmailSendEmail into words, in lower case. A run of capitals is one
// word: HTTPGet is http and get.
func splitName(name string) (out []string) {
	start, runes := 0, []rune(name)
	cut := func(end int) {
		if end > start {
			out = append(out, strings.ToLower(string(runes[start:end])))
		}
	}
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			cut(i)
			start = i + 1
		case unicode.IsUpper(r) && i > start && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			cut(i)
			start = i
		}
	}
	cut(len(runes))
	return out
}

// splitWords splits a text into words of letters and digits, in lower case. Hyphens, quotes and underscores stay inside
// of a word and are removed around it.
func splitWords(s string) (out []string) {
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '\'' && r != '_'
	}) {
		if w = strings.Trim(w, "-'_"); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// stopWords are words that carry no data by themselves.
var stopWords = map[string]bool{
	"a": true, "an": true, "and": true, "at": true, "by": true, "for": true, "from": true, "in": true, "is": true, "it": true, "of": true, "on": true, "or": true, "that": true,
	"the": true, "this": true, "to": true, "with": true, "what": true, "who": true, "when": true, "how": true, "my": true, "i": true, "me": true, "be": true, "are": true, "was": true,
	"latest": true, "news": true, "today": true, "current": true, "now": true, "price": true, "date": true, "time": true,
}

// datePattern matches an ISO date, a time, or both.
var datePattern = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})?)?|\d{2}:\d{2}(:\d{2})?)$`)

// isSmallValue reports whether a value is too small to carry data: a JSON number or boolean of at most 8 bytes, a
// string of at most 6 digits or 2 characters, an ISO date or time, or a value of the schema's enum. A declared sink is
// small only by the enum, because a number can be a recipient.
func isSmallValue(c Call, a argument) bool {
	if slices.Contains(enumValues(c.Schema, a.name), a.text) {
		return true
	}
	if slices.Contains(c.Tool.Sinks, a.name) {
		return false
	}
	switch {
	case a.isScalar && len(a.text) <= 8, utf8.RuneCountInString(a.text) <= 2, datePattern.MatchString(a.text):
		return true
	}
	return len(a.text) <= 6 && strings.Trim(a.text, "0123456789") == ""
}

// enumValues returns the string values of the enum of a top-level argument or of its items; none when the schema lists
// none or cannot be decoded.
func enumValues(schema json.RawMessage, name string) []string {
	if len(schema) == 0 {
		return nil
	}
	var s struct {
		Properties map[string]struct {
			Enum  []any `json:"enum"`
			Items struct {
				Enum []any `json:"enum"`
			} `json:"items"`
		} `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	var out []string
	p := s.Properties[name]
	for _, v := range append(p.Enum, p.Items.Enum...) {
		if text, ok := v.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// addressPattern matches what a recipient could act on: URLs, hosts, mail addresses, IP addresses, IBANs, phone numbers
// and long tokens such as wallet addresses.
var addressPattern = regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]{1,20}://[^\s"'<>]+|www\.[^\s"'<>]+|[\p{L}\p{N}._%+-]+@[\p{L}\p{N}.-]+|` +
	`(?:[\p{L}\p{N}-]+\.)+(?:\p{L}{2,12}|xn--[a-z0-9-]+)(?::\d+)?(?:/[^\s"'<>]*)?|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:/[^\s"'<>]*)?|` +
	`\b[a-z]{2}\d{2}[a-z0-9 ]{10,30}\b|\+?\d[\d ().-]{7,}\d|\b[a-z0-9]{20,}\b)`)

// dotReplacer maps the full stops of other scripts, which resolvers accept in hosts, to ASCII.
var dotReplacer = strings.NewReplacer("。", ".", "．", ".", "｡", ".")

// extractAddresses returns the matches of addressPattern in a text after NFKC normalization, without dates, file names and
// sentences.
func extractAddresses(s string) (out []string) {
	for _, m := range addressPattern.FindAllString(dotReplacer.Replace(norm.NFKC.String(s)), -1) {
		m = strings.TrimRight(m, ".,;:!?)]} ")
		if m == "" || datePattern.MatchString(m) || fileNamePattern.MatchString(m) || strings.Contains(m, ". ") && !strings.ContainsAny(m, "0123456789") {
			continue
		}
		out = append(out, m)
	}
	return out
}

// fileNamePattern matches file names whose extension is no top-level domain, which addressPattern takes for hosts.
var fileNamePattern = regexp.MustCompile(`(?i)^[\p{L}\p{N}_-]+\.(docx?|xlsx?|pptx?|pdf|txt|csv|png|jpe?g|ya?ml|json)$`)

// isProse reports whether a text contains a URL, minProseWords words in a row (one less with an @), or 8 characters of a
// script without spaces. A list of names and numbers is not prose, so a tool that returns one stays trusted.
func isProse(s string) bool {
	if strings.Contains(s, "://") || strings.Contains(s, "www.") {
		return true
	}
	run, wide, most := 0, 0, 0
	inWord := false
	end := func() {
		if inWord {
			run++
		}
		most, inWord = max(most, run), false
	}
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai):
			if wide++; wide >= 8 {
				return true
			}
			inWord = true
		case unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r) || inWord && (r == '\'' || r == '’' || r == '.' || r == '@'):
			inWord = true
		case strings.ContainsRune(" \t\n.!?-_;+", r): // word separators, also those used instead of spaces
			end()
		default: // commas, quotes and brackets of lists and objects end a run
			end()
			run, wide = 0, 0
		}
	}
	end()
	return most >= minProseWords || most >= minProseWords-1 && strings.Contains(s, "@")
}

// minProseWords is the number of consecutive words that counts as prose.
const minProseWords = 4
