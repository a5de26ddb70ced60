package critic

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"conclave/subjects"
)

// A judge believes an answer that says "I searched the web" although nothing was searched. The rules of this file find
// what an answer says was done and compare it with the calls that ran. They prefer to miss a claim to reporting a false
// one.

// Bounds of the search for claims.
const (
	maxLooked   = 32 << 10 // bytes of an answer
	maxClaims   = 5
	maxSaid     = 200
	maxSentence = 600 // bytes; longer sentences are skipped
)

// findFalseClaims returns the actions that an answer claims although none of the tools in ran could have done them, at
// most maxClaims, nil when there are none. A question for a creative text or a translation has none: there "I" is not
// the assistant. Only the first maxLooked bytes of question and answer are read.
func findFalseClaims(question, answer string, ran []string) (out []subjects.Claim) {
	if creativeRequest.MatchString(question[:min(len(question), maxLooked)]) {
		return nil
	}
	answer = strings.ToValidUTF8(answer[:min(len(answer), maxLooked)], " ")
	for sentence := range statements(removeQuotes(answer)) {
		for _, clause := range splitClauses(sentence) {
			if len(out) == maxClaims {
				return out
			}
			needs := requiredTools(clause)
			if needs == nil || slices.ContainsFunc(needs, func(tool string) bool {
				return slices.Contains(ran, tool)
			}) {
				continue
			}
			said := oneLine(strings.TrimRight(strings.ReplaceAll(clause.said, quotePlaceholder, "..."), " :;,"),
				maxSaid)
			if !slices.ContainsFunc(out, func(c subjects.Claim) bool { return c.Said == said }) {
				out = append(out, subjects.Claim{Said: said, Needs: needs})
			}
		}
	}
	return out
}

// creativeRequest matches questions for a text in which "I" is the user or a fictional person.
var creativeRequest = regexp.MustCompile(
	`(?i)\b(?:write|tell|compose|draft|make up|invent|create|schreib\w*|erzähl\w*|verfass\w*|écri\w+|rédige\w*|raconte\w*|escrib\w+|redacta\w*|cuéntame|cuenta)\b.{0,60}\b` +
		`(?:e-?mails?|letter|message|poem|story|stories|essay|speech|dialog(?:ue)?|lyrics|song|diary|tweet|blog|novel|monologue|brief|gedicht|geschichte|aufsatz|rede|tagebuch|lettre|courriel|message|po[eè]me|histoire|récit|` +
		`carta|correo|poema|cuento|historia|mensaje)\b|\b(?:role-?play|pretend|translate|translation|rephrase|proofread|übersetze?|tradui[st]|traduire|traduce|traducir)\b`)

// clause is a part of a sentence with one subject.
type clause struct {
	said  string // as in the answer
	low   string // in lower case, apostrophes straight, blanks single
	joint bool   // the speaker is not the only subject
}

// requiredTools returns the tools one of which would have done what a clause says was done. It is nil when the clause
// makes no claim: also for a negated one, one about another time or occasion, and one whose subject is not the
// assistant alone.
func requiredTools(c clause) []string {
	if c.joint {
		return nil
	}
	for _, l := range languages() {
		if !l.mayBe(c.low) {
			continue
		}
		for _, r := range l.rules {
			at := r.pattern.FindStringIndex(c.low)
			if at == nil {
				continue
			}
			upTo := c.low[:at[1]]
			switch {
			case l.negation.MatchString(upTo), l.otherTime.MatchString(c.low), r.lasts && l.already.MatchString(c.low):
				return nil
			case r.passive && (l.otherOccasion.MatchString(c.low[:at[0]]) || byOthers.MatchString(c.low[at[1]:])):
				return nil
			}
			return r.needs
		}
	}
	return nil
}

// byOthers matches what follows a passive about an action of others.
var byOthers = regexp.MustCompile(`^ (?:by|or|von|oder|par|ou|por|o)\b`)

// quotePlaceholder replaces code and quotations in a sentence.
const quotePlaceholder = "§"

// fenced are code blocks, inline is code in a line.
var (
	fenced   = regexp.MustCompile("(?s)```.*?(?:```|$)|~~~.*?(?:~~~|$)")
	inline   = regexp.MustCompile("`[^`\n]{1,300}`")
	fileName = regexp.MustCompile(`^[\w./~-]{0,100}\w\.[a-z]{1,4}$`)
	quoted   = regexp.MustCompile(
		`"[^"\n]{1,400}"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|»[^«\n]{1,400}«|‘[^’\n]{1,400}’|\*[^*\n]{1,400}\*\s+(?:he|she|they)\b`)
)

// removeQuotes removes fenced code, quoted lines and table rows, and replaces inline code and quotations by a
// placeholder. File names in quotes stay.
func removeQuotes(s string) string {
	s = fenced.ReplaceAllString(s, "\n")
	s = inline.ReplaceAllStringFunc(s, replaceQuote)
	s = quoted.ReplaceAllStringFunc(s, replaceQuote)
	s = removeSingleQuotes(s)
	var b strings.Builder
	for l := range strings.Lines(s) {
		if t := strings.TrimLeft(l, " \t"); strings.HasPrefix(t, ">") || strings.HasPrefix(t, "|") {
			l = "\n"
		}
		b.WriteString(l)
	}
	return b.String()
}

// replaceQuote returns the replacement of a quotation: a file name is kept, all else becomes [quotePlaceholder].
func replaceQuote(s string) string {
	if bare := strings.Trim(s, "`\"“”„«»‘’ "); fileName.MatchString(bare) {
		return " " + bare + " "
	}
	return " " + quotePlaceholder + " "
}

// removeSingleQuotes replaces text in single quotes on one line, up to 400 bytes. An apostrophe, with letters on both
// sides, is no quote; an unclosed quote stays.
func removeSingleQuotes(s string) string {
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
				b.WriteString(replaceQuote(s[i+1 : end]))
				i = end
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// statements iterates over the sentences and lines of a text, trimmed. It leaves out questions, empty ones and those
// longer than [maxSentence] bytes.
func statements(s string) func(func(string) bool) {
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
			case strings.ContainsRune(".;:?!…", r) && canEndAt(s, i+len(string(r))):
				if !take(i+len(string(r)), r == '?') {
					return
				}
			}
		}
		take(len(s), false)
	}
}

// canEndAt reports whether a sentence can end before i: file names contain dots too.
func canEndAt(s string, i int) bool {
	return i >= len(s) || strings.IndexByte(" \t\r\n)]*_\"", s[i]) >= 0
}

// clauseBreaks matches the boundaries of clauses.
var clauseBreaks = regexp.MustCompile(
	`(?i),\s+(?:but|however|so|and|then|yet|aber|und|dann|mais|et|puis|pero|y|luego)\s+|\s+(?:but|aber|mais|pero|however)\s+|\s+and\s+(?:then\s+)?(i\s|i'|i’)|\s+und\s+(?:dann\s+)?(ich\s|habe\s)|\s+et\s+(j'|j’)|\s+y\s+(he\s)|\s+[–—]\s+|,\s+(i\s|i'|i’|ich\s|habe ich\s|j'|j’|he\s)`)

// splitClauses splits a sentence at the conjunctions, commas and dashes of clauseBreaks. A clause is joint when the
// part before it is too short to have a verb, as in "My sister and I". Empty clauses are left out.
func splitClauses(sentence string) (out []clause) {
	add := func(s string, joint bool) {
		if s = strings.Trim(s, " \t\r\n-*_•#()[]"); s != "" {
			low := strings.TrimRight(strings.ToLower(strings.NewReplacer("’", "'", "*", "", "_", " ").Replace(s)),
				".;:!… ")
			out = append(out, clause{said: s, low: strings.Join(strings.Fields(low), " "), joint: joint})
		}
	}
	from, joint := 0, false
	for _, at := range clauseBreaks.FindAllStringSubmatchIndex(sentence, -1) {
		next := at[1]
		for g := 2; g < len(at); g += 2 { // the subject belongs to the next clause
			if at[g] >= 0 {
				next = at[g]
			}
		}
		before := sentence[from:at[0]]
		add(before, joint)
		// "My sister and I": the part before has no verb.
		joint = next < at[1] && len(strings.Fields(before)) <= 3 && !firstPerson.MatchString(before) &&
			strings.ContainsAny(sentence[at[0]:at[1]], " ") && !strings.HasPrefix(sentence[at[0]:], ",")
		from = next
	}
	add(sentence[from:], joint)
	return out
}

// firstPerson matches a speaker, or a short confirmation.
var firstPerson = regexp.MustCompile(`(?i)\b(?:i|ich|j'|j’|he|yes|no|ok|okay|sure|done)\b`)
