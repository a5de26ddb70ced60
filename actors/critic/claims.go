package critic

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"conclave/subjects"
)

// The second look: an answer that says "I searched the web" although nothing was searched is worth little, however well
// it reads, and a judge that sees only the answer believes it. Plain rules find what an answer says it did and hold it
// against the calls that ran. They would rather miss such a sentence than find one that is none.

// Bounds of the second look.
const (
	maxLooked   = 32 << 10 // bytes of an answer
	maxClaims   = 5
	maxSaid     = 200
	maxSentence = 600 // bytes; nobody says what he did in a longer one
)

// claims are the things that an answer says were done and that none of the tools that ran could have done.
func claims(question, answer string, ran []string) (out []subjects.Claim) {
	if writing.MatchString(question[:min(len(question), maxLooked)]) {
		return nil // it was asked for a text in which somebody else says "I"
	}
	answer = strings.ToValidUTF8(answer[:min(len(answer), maxLooked)], " ")
	for sentence := range sentences(unquoted(answer)) {
		for _, clause := range clauses(sentence) {
			if len(out) == maxClaims {
				return out
			}
			needs := claimed(clause)
			if needs == nil || slices.ContainsFunc(needs, func(tool string) bool { return slices.Contains(ran, tool) }) {
				continue
			}
			said := line(strings.TrimRight(strings.ReplaceAll(clause.said, object, "..."), " :;,"), maxSaid)
			if !slices.ContainsFunc(out, func(c subjects.Claim) bool { return c.Said == said }) {
				out = append(out, subjects.Claim{Said: said, Needs: needs})
			}
		}
	}
	return out
}

// writing are questions for a text in which "I" is somebody else: the user, or somebody who was made up.
var writing = regexp.MustCompile(`(?i)\b(?:write|tell|compose|draft|make up|invent|create|schreib\w*|erzähl\w*|verfass\w*|écri\w+|rédige\w*|raconte\w*|escrib\w+|redacta\w*|cuéntame|cuenta)\b.{0,60}\b` +
	`(?:e-?mails?|letter|message|poem|story|stories|essay|speech|dialog(?:ue)?|lyrics|song|diary|tweet|blog|novel|monologue|brief|gedicht|geschichte|aufsatz|rede|tagebuch|lettre|courriel|message|po[eè]me|histoire|récit|` +
	`carta|correo|poema|cuento|historia|mensaje)\b|\b(?:role-?play|pretend|translate|translation|rephrase|proofread|übersetze?|tradui[st]|traduire|traduce|traducir)\b`)

// clause is a part of a sentence with one who does something.
type clause struct {
	said  string // as it stands in the answer
	low   string // in lower case, apostrophes straight, blanks single
	joint bool   // somebody else is the subject too
}

// claimed are the tools one of which would have done what a clause says was done; nil when it says nothing of the kind.
func claimed(c clause) []string {
	if c.joint {
		return nil
	}
	for _, l := range languages {
		if !l.hint(c.low) {
			continue
		}
		for _, r := range l.rules {
			at := r.says.FindStringIndex(c.low)
			if at == nil {
				continue
			}
			upTo := c.low[:at[1]]
			switch {
			case l.not.MatchString(upTo), l.then.MatchString(c.low), r.lasts && l.already.MatchString(c.low):
				return nil
			case r.passive && (l.when.MatchString(c.low[:at[0]]) || others.MatchString(c.low[at[1]:])):
				return nil
			}
			return r.needs
		}
	}
	return nil
}

// others follow a passive that speaks of what somebody else did.
var others = regexp.MustCompile(`^ (?:by|or|von|oder|par|ou|por|o)\b`)

// object stands for a piece of code or a quotation in a sentence.
const object = "§"

// fenced are code blocks, inline is code in a line.
var (
	fenced = regexp.MustCompile("(?s)```.*?(?:```|$)|~~~.*?(?:~~~|$)")
	inline = regexp.MustCompile("`[^`\n]{1,300}`")
	named  = regexp.MustCompile(`^[\w./~-]{0,100}\w\.[a-z]{1,4}$`)
	quoted = regexp.MustCompile(`"[^"\n]{1,400}"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|»[^«\n]{1,400}«|‘[^’\n]{1,400}’|\*[^*\n]{1,400}\*\s+(?:he|she|they)\b`)
)

// unquoted is an answer without what it shows: code, quotations and lines that are quoted.
func unquoted(s string) string {
	s = fenced.ReplaceAllString(s, "\n")
	s = inline.ReplaceAllStringFunc(s, shown)
	s = quoted.ReplaceAllStringFunc(s, shown)
	s = singly(s)
	var b strings.Builder
	for l := range strings.Lines(s) {
		if t := strings.TrimLeft(l, " \t"); strings.HasPrefix(t, ">") || strings.HasPrefix(t, "|") {
			l = "\n"
		}
		b.WriteString(l)
	}
	return b.String()
}

// shown is what stays of something quoted: the name of a file is part of the sentence, all else only stands in it.
func shown(s string) string {
	if bare := strings.Trim(s, "`\"“”„«»‘’ "); named.MatchString(bare) {
		return " " + bare + " "
	}
	return " " + object + " "
}

// singly takes out what stands in single quotes. An apostrophe is none: letters stand on both sides of it.
func singly(s string) string {
	if !strings.Contains(s, "'") {
		return s
	}
	letter := func(i int) bool {
		return i >= 0 && i < len(s) && (s[i] >= 0x80 || unicode.IsLetter(rune(s[i])) || unicode.IsDigit(rune(s[i])))
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' && !letter(i-1) && letter(i+1) {
			end := -1
			for j := i + 1; j < len(s) && j < i+400 && s[j] != '\n'; j++ {
				if s[j] == '\'' && !letter(j+1) {
					end = j
					break
				}
			}
			if end > 0 {
				b.WriteString(shown(s[i+1 : end]))
				i = end
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// sentences are those of a text that are no questions.
func sentences(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		start := 0
		take := func(end int, question bool) bool {
			part := strings.TrimSpace(s[start:end])
			start = end
			return part == "" || question || strings.HasPrefix(part, "¿") || len(part) > maxSentence || yield(part)
		}
		for i, r := range s {
			switch {
			case i < start:
			case r == '\n':
				if !take(i, false) {
					return
				}
			case strings.ContainsRune(".;:?!…", r) && ends(s, i+len(string(r))):
				if !take(i+len(string(r)), r == '?') {
					return
				}
			}
		}
		take(len(s), false)
	}
}

// ends reports whether a sentence can end before i: names of files hold dots too.
func ends(s string, i int) bool {
	return i >= len(s) || strings.IndexByte(" \t\r\n)]*_\"", s[i]) >= 0
}

// breaks are the places where one clause ends and the next begins.
var breaks = regexp.MustCompile(`(?i),\s+(?:but|however|so|and|then|yet|aber|und|dann|mais|et|puis|pero|y|luego)\s+|\s+(?:but|aber|mais|pero|however)\s+|\s+and\s+(?:then\s+)?(i\s|i'|i’)|\s+und\s+(?:dann\s+)?(ich\s|habe\s)|\s+et\s+(j'|j’)|\s+y\s+(he\s)|\s+[–—]\s+|,\s+(i\s|i'|i’|ich\s|habe ich\s|j'|j’|he\s)`)

// clauses are the parts of a sentence, each with a subject of its own.
func clauses(sentence string) (out []clause) {
	add := func(s string, joint bool) {
		if s = strings.Trim(s, " \t\r\n-*_•#()[]"); s != "" {
			low := strings.TrimRight(strings.ToLower(strings.NewReplacer("’", "'", "*", "", "_", " ").Replace(s)), ".;:!… ")
			out = append(out, clause{said: s, low: strings.Join(strings.Fields(low), " "), joint: joint})
		}
	}
	from, joint := 0, false
	for _, at := range breaks.FindAllStringSubmatchIndex(sentence, -1) {
		next := at[1]
		for g := 2; g < len(at); g += 2 { // the next one's subject belongs to it
			if at[g] >= 0 {
				next = at[g]
			}
		}
		before := sentence[from:at[0]]
		add(before, joint)
		// "My sister and I": what stands before has nobody who does anything.
		joint = next < at[1] && len(strings.Fields(before)) <= 3 && !first.MatchString(before) && strings.ContainsAny(sentence[at[0]:at[1]], " ") && !strings.HasPrefix(sentence[at[0]:], ",")
		from = next
	}
	add(sentence[from:], joint)
	return out
}

// first is somebody who speaks of himself.
var first = regexp.MustCompile(`(?i)\b(?:i|ich|j'|j’|he|yes|no|ok|okay|sure|done)\b`)
