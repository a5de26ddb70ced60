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
	maxHarmless  = 32       // sentences of a text that IsHarmless looks at
)

// stripOrders returns the sentences of untrusted content as plain lines, without tags and Markdown, links as their
// text, and how many it dropped: orders, words to an assistant, bare links that could carry data away, and what the
// firewall flags, also in the rest joined by blanks. All fenced code counts as one. Not counted are sentences without a
// word, and all after maxSentences or after the first that would exceed maxStripped kept bytes.
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
		case isHarmful(linkless) || firewall.Scan(linkless).Flagged, plain != linkless &&
			(isHarmful(plain) || firewall.Scan(line).Flagged):
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

// stripLinks replaces Markdown links by their text. Images and links with a blank in their address stay as they are: an
// image is a sign of exfiltration.
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

// stripTags replaces HTML tags by blanks. A < that begins no tag, or is never closed, stays.
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

// dropFlagged drops sentences until the firewall does not flag the rest, and adds their number to dropped. Signs that
// are weak in one sentence weigh more when they stand close together. The result may be empty.
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

// dropFound returns the sentences that hold none of the findings. found must be of the sentences joined by one blank
// each.
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

// largestUnflagged returns a large part, found by halving, that the firewall does not flag; nil when there is none.
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

// IsHarmless reports whether a short untrusted text, such as a name or a tag, holds nothing that could work as an order
// when it is recalled. A text of more than maxHarmless sentences is not short, and not harmless. "" is harmless.
func IsHarmless(s string) bool {
	sentences := text.Sentences(s, maxHarmless+1)
	if len(sentences) > maxHarmless || firewall.Scan(s).Flagged {
		return false
	}
	for _, p := range sentences {
		if isHarmful(s[p.From:p.To]) {
			return false
		}
	}
	return true
}

// isHarmful reports whether an untrusted sentence must not be kept: it is an instruction, or holds marks of chat
// templates or a link that could carry data away. It checks the sentence as written and with look-alike letters
// normalized.
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

// hasModelMarks reports whether s holds the marks of chat templates, HTML comments, Markdown images or script links.
func hasModelMarks(s string) bool {
	for _, mark := range []string{
		"<!--", "-->", "<|", "|>", "[INST", "[/INST", "<<SYS", "<</SYS", "![", "javascript:",
		"data:text",
	} {
		if strings.Contains(s, mark) {
			return true
		}
	}
	return false
}

// hasDataLink reports whether s holds a link, also without its scheme, that could carry data away: one with a query, a
// fragment with data, or an @. A plain link is none.
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

// cleanQuestion returns the user's question on one line, without the queries and fragments of its links and without
// flagged sentences, and how many sentences were dropped. The question may be an order: it is the user's own. At most
// 200 sentences are kept.
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
