package digest

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Bounds of an attribution.
const (
	maxSpeaker      = 100 // bytes
	maxSpeakerWords = 4
	maxStamp        = 40 // bytes of a time in brackets
)

// ParseAttribution reads who said a text, and when, from its beginning:
//
//	(1:56 pm on 8 May, 2023) Caroline said, "Good to see you."
//	Caroline said, "Good to see you."
//	[2023-05-08 13:56] Caroline: Good to see you.
//	Caroline: It is good to see you.
//
// body is what was said, without the quotation marks around it. happened is in UTC, and zero when no time is given. It
// is not ok when anything is in doubt, and body is s then: a label such as "Note:", a colon in prose, a time that no
// layout fits, a name for the user or an assistant, text behind the closing quotation mark, a transcript of several
// speakers. A name with a colon and no time counts only when the body speaks of "I" or "you".
func ParseAttribution(s string) (speaker string, happened time.Time, body string, ok bool) {
	rest := strings.TrimSpace(s)
	happened, rest, stamped, valid := cutStamp(rest)
	if !valid {
		return "", time.Time{}, s, false
	}
	if speaker, body, ok = cutQuotedSpeech(rest); !ok {
		speaker, body, ok = cutSpeakerLabel(rest, stamped)
	}
	if !ok {
		return "", time.Time{}, s, false
	}
	return speaker, happened, body, true
}

// cutStamp returns the time in brackets at the beginning of s and the text behind it. Without brackets s is returned as
// it is, not stamped. It is not valid when the brackets hold no time.
func cutStamp(s string) (at time.Time, rest string, stamped, valid bool) {
	if s == "" || s[0] != '(' && s[0] != '[' {
		return at, s, false, true
	}
	end := strings.IndexByte(s, map[byte]byte{'(': ')', '[': ']'}[s[0]])
	if end < 0 || end > maxStamp {
		return at, s, false, false
	}
	at, ok := text.ParseTime(s[1:end])
	return at, strings.TrimSpace(s[end+1:]), ok, ok
}

var (
	saidForms    = `(?:said|says|wrote|writes|replied|replies|asked|asks|answered|added)`
	quotedSpeech = text.Pattern(`^([^"“”«»\n:]{1,100}?),? ` + saidForms + `(?:,|:)? ?(["“«])`)
	sentTail     = text.Pattern(`^,? (?:and|\(|\[) ?(?:shared|shares|sent|sends|attached) `)
)

// cutQuotedSpeech reads: Caroline said, "...". The quotation must reach to the end of s; only a note that something was
// shared may follow, which stays in the body.
func cutQuotedSpeech(s string) (speaker, body string, ok bool) {
	m := quotedSpeech().FindStringSubmatch(s)
	if m == nil || !isSpeakerName(m[1]) {
		return "", "", false
	}
	inner := s[len(m[0]):]
	end := strings.LastIndexAny(inner, `"”»`)
	if end < 0 {
		return "", "", false
	}
	_, size := utf8.DecodeRuneInString(inner[end:])
	tail := inner[end+size:]
	body = strings.TrimSpace(inner[:end])
	switch {
	case isBlank(body) || nextSpeech().MatchString(body):
		return "", "", false
	case strings.Trim(tail, " .") == "":
		return m[1], body, true
	case sentTail().MatchString(tail):
		return m[1], body + "\n(" + strings.Trim(tail, " ,.()[]") + ")", true
	}
	return "", "", false
}

// nextSpeech is the end of a quotation after which another one begins, by the same or another speaker.
var nextSpeech = text.Pattern(`["”»][^"“”«»]{0,60}\b` + saidForms + `\b[^"“”«»]{0,40}["“«]`)

// cutSpeakerLabel reads "Caroline: ...". Without a time before it the body must speak of "I" or "you". It is not ok
// when another line has a speaker of its own.
func cutSpeakerLabel(s string, stamped bool) (speaker, body string, ok bool) {
	speaker, body, found := strings.Cut(s, ":")
	if !found || !isSpeakerName(speaker) || body == "" || !unicode.IsSpace(rune(body[0])) {
		return "", "", false
	}
	body = strings.TrimSpace(body)
	if isBlank(body) || !stamped && !speaksInPerson(body) {
		return "", "", false
	}
	_, lines, _ := strings.Cut(body, "\n")
	for line := range strings.Lines(lines) {
		if _, _, _, other := ParseAttribution(line); other {
			return "", "", false
		}
	}
	return speaker, body, true
}

// personWords tell that somebody speaks.
var personWords = text.WordSet(
	`i i'm i've i'd i'll me my mine myself you you're you've your yours we we're we've we'll our us let's`)

// speaksInPerson reports whether one of the first words of s is of the first or second person.
func speaksInPerson(s string) bool {
	for i, w := range text.Words(text.Cut(s, 400)) {
		if i == 40 {
			break
		}
		if personWords(w.Folded) {
			return true
		}
	}
	return false
}

// labelWords stand before a colon and name no speaker.
var labelWords = text.WordSet(`note notes recipe todo fixme question answer subject warning example summary remark reminder task tasks idea ideas title name date time place
	location address email mail phone url link links source sources reference references update edit fact facts tip tips hint important attention caution danger info information
	description definition conclusion result results step steps goal goals plan plans agenda topic topics problem solution issue error fix bug feature request response reply
	shopping groceries list lists ingredients directions instructions method todo's monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday january
	february march april may june july august september october november december morning afternoon evening night breakfast lunch dinner work home family friends health travel
	money budget finance car house garden school project projects meeting meetings call calls appointment appointments birthday birthdays password username login key keys version
	status priority deadline due tags tag category categories chapter section part page quote quotes lyrics song book books movie movies film films music poem story draft
	introduction background overview context abstract appendix contents ps nb re fwd fw cc bcc from to the a an this that these those my our your his her their it he she we they
	what who where when why how which yes no ok okay also and but or so then thus hence however therefore meanwhile finally first second third next last remember dear hello hi hey
	pros cons advantages disadvantages option options choice choices vote votes decision decisions diary journal log entry dream dreams thought thoughts memory memories wish wishes
	somebody someone everybody everyone nobody anyone anybody people http https ftp file mailto`)

// programNames are no speakers, and so are userNames: a text cannot say of itself that one of them wrote it.
var programNames = text.WordSet(
	`assistant system ai bot chatbot chatgpt model agent admin administrator operator tool developer human`)

// isSpeakerName reports whether s is a name of one to maxSpeakerWords words, each of letters and with a capital first
// one, and neither a label nor a name for the user or a program.
func isSpeakerName(s string) bool {
	words := strings.Split(s, " ")
	if len(s) > maxSpeaker || len(words) > maxSpeakerWords {
		return false
	}
	for i, w := range words {
		folded := text.Fold(w)
		if i > 0 && nameParticles(folded) && i < len(words)-1 {
			continue
		}
		if w != "" && strings.HasSuffix(w, ".") && utf8.RuneCountInString(w) <= 4 { // an initial, or Dr.
			w = w[:len(w)-1]
		}
		r, _ := utf8.DecodeRuneInString(w)
		other := strings.ContainsFunc(w, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsMark(r) && !strings.ContainsRune("-'’", r)
		})
		if other || !unicode.IsLetter(r) || unicode.IsLower(r) || labelWords(folded) || programNames(folded) ||
			isUser(folded) || personWords(folded) || functionWords(folded) || capitalizedWords(folded) &&
			!titleWords(folded) ||
			len(words) == 1 && (isAllCapitals(w) || hasNounEnding(folded)) {
			return false
		}
	}
	return true
}

// hasNounEnding reports whether a single word looks like a common noun, such as "shopping" or "decision".
func hasNounEnding(folded string) bool {
	for _, end := range []string{
		"ing", "tion", "sion", "ment", "ness", "ship", "ology", "ings", "tions", "sions",
		"ments",
	} {
		if len(folded) > len(end)+2 && strings.HasSuffix(folded, end) {
			return true
		}
	}
	return false
}
