package digest

import (
	"strings"

	"conclave/pkg/firewall"
	"conclave/pkg/text"
)

// Bounds of the stripper.
const (
	maxStripped  = 16 << 10 // bytes that it keeps
	maxSentences = 1500     // that it looks at
)

// stripOrders leaves out of what strangers wrote every sentence that tells somebody to do something, that speaks to an
// assistant, that holds a link which could carry data away, or that the firewall flags, and tells how many that were.
// What it returns, joined by blanks, is not flagged. Code in fences is left out whole: it is for a machine to follow.
func stripOrders(raw string) (kept []string, dropped int) {
	raw = strings.ReplaceAll(visibleText(raw), `\n`, "\n") // line breaks as programs write them
	body := stripMarkdown(raw)
	if strings.Contains(raw, "```") || strings.Contains(raw, "~~~") {
		dropped++
	}
	size := 0
	for _, p := range text.Sentences(body, maxSentences) {
		linkless := stripLinks(body[p.From:p.To])
		plain := stripTags(linkless)
		line := strings.Join(strings.Fields(plain), " ")
		switch {
		case isHarmful(linkless) || firewall.Scan(linkless).Flagged, plain != linkless && (isHarmful(plain) || firewall.Scan(line).Flagged):
			dropped++
		case !strings.ContainsFunc(line, text.IsWordRune): // a bullet, a rule
		case size+len(line) > maxStripped:
			return dropFlagged(kept, &dropped), dropped
		default:
			kept = append(kept, line)
			size += len(line) + 1
		}
	}
	return dropFlagged(kept, &dropped), dropped
}

// stripLinks is s with the words of its Markdown links and without where they lead. Images stay as they are: they are a sign.
func stripLinks(s string) string {
	var b strings.Builder
	for {
		mid := strings.Index(s, "](")
		if mid < 0 {
			break
		}
		end := strings.IndexAny(s[mid:], ") \n")
		open := strings.LastIndexByte(s[:mid], '[')
		if end < 0 || s[mid+end] != ')' || open < 0 || open > 0 && s[open-1] == '!' {
			b.WriteString(s[:mid+2])
			s = s[mid+2:]
			continue
		}
		b.WriteString(s[:open] + s[open+1:mid])
		s = s[mid+end+1:]
	}
	b.WriteString(s)
	return b.String()
}

// stripTags is s without the tags of HTML.
func stripTags(s string) string {
	if !strings.Contains(s, "<") {
		return s
	}
	var b strings.Builder
	for {
		open := strings.IndexByte(s, '<')
		if open < 0 || open+1 == len(s) {
			break
		}
		end := strings.IndexByte(s[open:], '>')
		c := s[open+1]
		if end < 0 || c != '/' && c|0x20 < 'a' || c|0x20 > 'z' {
			b.WriteString(s[:open+1])
			s = s[open+1:]
			continue
		}
		b.WriteString(s[:open] + " ")
		s = s[open+end+1:]
	}
	b.WriteString(s)
	return b.String()
}

// dropFlagged leaves sentences out until the firewall does not flag what is left. Signs that are weak in one sentence weigh more
// when they stand close together.
func dropFlagged(kept []string, dropped *int) []string {
	for range 8 {
		r := firewall.Scan(strings.Join(kept, " "))
		if !r.Flagged {
			return kept
		}
		next := dropFound(kept, r.Findings)
		*dropped += len(kept) - len(next)
		if len(next) == len(kept) { // a sign without a place: decoded, or spread over several
			break
		}
		kept = next
	}
	next := largestUnflagged(kept)
	*dropped += len(kept) - len(next)
	return next
}

// dropFound leaves out the sentences in which something was found.
func dropFound(kept []string, found []firewall.Finding) []string {
	var out []string
	at := 0
	for _, s := range kept {
		end := at + len(s) + 1
		hit := false
		for _, f := range found {
			hit = hit || f.At >= at && f.At < end
		}
		if !hit {
			out = append(out, s)
		}
		at = end
	}
	return out
}

// largestUnflagged is the longest part that it finds, half by half, which is not flagged.
func largestUnflagged(kept []string) []string {
	if !firewall.Scan(strings.Join(kept, " ")).Flagged {
		return kept
	}
	if len(kept) < 2 {
		return nil
	}
	half := len(kept) / 2
	first, second := largestUnflagged(kept[:half]), largestUnflagged(kept[half:])
	both := append(first[:len(first):len(first)], second...)
	switch {
	case !firewall.Scan(strings.Join(both, " ")).Flagged:
		return both
	case len(first) > 0:
		return first
	}
	return second
}

// IsHarmless tells whether a short text that a stranger may have written, a name or a tag, holds nothing that could work as
// an order when it is recalled.
func IsHarmless(s string) bool {
	if firewall.Scan(s).Flagged {
		return false
	}
	for _, p := range text.Sentences(s, 32) {
		if isHarmful(s[p.From:p.To]) {
			return false
		}
	}
	return true
}

// isHarmful tells whether a sentence by a stranger must not be kept. It is looked at as it is written and as a model reads
// it, where letters that only look alike are the same.
func isHarmful(sentence string) bool {
	if isHarmfulAs(sentence) {
		return true
	}
	for i := range len(sentence) {
		if sentence[i] >= 0x80 {
			return isHarmfulAs(text.Normalize(sentence))
		}
	}
	return false
}

func isHarmfulAs(sentence string) bool {
	return hasModelMarks(sentence) || hasDataLink(sentence) || isInstruction(text.Words(sentence), sentence)
}

// hasModelMarks tells whether s holds the marks by which a program talks to a model, or what a page hides.
func hasModelMarks(s string) bool {
	for _, mark := range []string{"<!--", "-->", "<|", "|>", "[INST", "[/INST", "<<SYS", "<</SYS", "![", "javascript:", "data:text"} {
		if strings.Contains(s, mark) {
			return true
		}
	}
	return false
}

// hasDataLink tells whether s holds a link that could carry something away: one with a query, a fragment full of data, or a
// name and password in it.
func hasDataLink(s string) bool {
	for field := range strings.FieldsSeq(s) {
		at := strings.Index(field, "://")
		if at < 0 {
			// an address without its scheme: example.org/path?q=
			slash := strings.IndexByte(field, '/')
			if slash <= 0 || !strings.Contains(field[:slash], ".") {
				continue
			}
			at = 0
		}
		link := strings.TrimRight(field[at:], ".,;:!?)\"'”")
		if strings.ContainsAny(link, "?@") || strings.Contains(link, "#") && strings.ContainsAny(link, "=&{<$") {
			return true
		}
	}
	return false
}

// cleanQuestion is a question of the user without the queries of its links and without what the firewall flags. A question may
// be an order: it is the user's own.
func cleanQuestion(question string) (kept string, dropped int) {
	fields := strings.Fields(visibleText(question))
	for i, f := range fields {
		if at := strings.Index(f, "://"); at >= 0 {
			if q := strings.IndexAny(f[at:], "?#"); q >= 0 {
				fields[i] = f[:at+q]
			}
		}
	}
	var list []string
	for _, s := range text.SentenceTexts(strings.Join(fields, " "), 200) {
		if hasModelMarks(s) || firewall.Scan(s).Flagged {
			dropped++
			continue
		}
		list = append(list, s)
	}
	list = dropFlagged(list, &dropped)
	return strings.Join(list, " "), dropped
}
