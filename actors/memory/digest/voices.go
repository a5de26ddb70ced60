package digest

import (
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// voices splits a part by who speaks in it, so that "I" is never taken for somebody else: an attributed text, the lines
// of a transcript, and quotations in it. What cannot be attributed has no known speaker. The rules are those of
// ParseAttribution; behind the first attributed line of a transcript a line without a speaker belongs to nobody.
func (p part) voices() []part {
	if who, _, body, ok := ParseAttribution(p.text); ok {
		return splitQuotations(part{p.label, body, speaker(who)})
	}
	var out []part
	own := part{p.label, "", p.by}
	attributed := false
	for line := range strings.Lines(p.text) {
		who, _, body, ok := ParseAttribution(line)
		if label, rest, found := strings.Cut(line, ":"); !ok && found &&
			programNames(text.Fold(strings.TrimSpace(label))) {
			who, body, ok = string(byUnknown), rest, true
		}
		switch {
		case ok:
			out, attributed = append(out, splitQuotations(part{p.label, body, speaker(who)})...), true
		case attributed:
			out = append(out, part{p.label, line, byUnknown})
		default:
			own.text += line
		}
	}
	return append(splitQuotations(own), out...)
}

var (
	nameForm   = `((?:\p{Lu}[\p{L}'’-]*\.?)(?: (?:\p{Lu}[\p{L}'’-]*|de|da|van|von)){0,3})`
	saidBefore = text.Pattern(nameForm + `,? (?:just |also |once |always )?(?:` + saidForms +
		`|told (?:me|us|them|him|her))[,:]?\s*$`)
	saidAfter = text.Pattern(`^,? ?(?:` + saidForms + ` ` + nameForm + `|` + nameForm + ` ` + saidForms +
		`)\b`)
	selfSaid     = text.Pattern(`\bI (?:just |also |once |always )?` + saidForms + `[,:]?\s*$`)
	anyoneSaid   = text.Pattern(`\b` + saidForms + `[,:]?\s*$`)
	closingQuote = strings.NewReplacer("”", `"`, "“", `"`, "„", `"`, "«", `"`, "»", `"`)
)

// splitQuotations returns p with each quotation in which somebody speaks replaced by dots, then these quotations with
// their speakers, who are unknown unless p names them beside. Quotations such as titles stay in p. Everything behind a
// mark that is not closed has no known speaker.
func splitQuotations(p part) []part {
	s := closingQuote.Replace(p.text)
	if !strings.Contains(s, `"`) {
		return []part{p}
	}
	var outer strings.Builder
	var quoted []part
	for s != "" {
		before, rest, found := strings.Cut(s, `"`)
		outer.WriteString(before)
		if !found {
			break
		}
		inner, after, closed := strings.Cut(rest, `"`)
		s = after
		switch {
		case !closed:
			quoted = append(quoted, part{p.label, rest, byUnknown})
		case !speaksInPerson(inner) && !anyoneSaid().MatchString(before):
			outer.WriteString(`"` + inner + `"`)
		default:
			quoted = append(quoted, part{p.label, inner, quotedSpeaker(p.by, before, after)})
			outer.WriteString("… ")
		}
	}
	p.text = outer.String()
	return append([]part{p}, quoted...)
}

// quotedSpeaker returns who speaks in a quotation, from the texts of the speaker by directly before and after it. Only
// a name or "I" counts.
func quotedSpeaker(by speaker, before, after string) speaker {
	for len(before) > 200 {
		_, size := utf8.DecodeRuneInString(before[len(before)-200:])
		before = before[len(before)-200+size:]
	}
	if selfSaid().MatchString(before) {
		return by
	}
	for _, m := range [][]string{saidBefore().FindStringSubmatch(before), saidAfter().FindStringSubmatch(after)} {
		for i := 1; i < len(m); i++ {
			if isSpeakerName(m[i]) {
				return speaker(m[i])
			}
		}
	}
	return byUnknown
}
