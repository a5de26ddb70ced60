package digest

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Bounds of what is made, in bytes.
const (
	maxCorpus      = 64 << 10
	maxQuestion    = 8 << 10
	maxName        = 120
	maxNameWords   = 8
	maxDescription = 400
	maxMaterial    = 12 << 10 // of all texts in one question to the model
)

// What stands around the texts in a corpus.
const (
	questionLabel  = "Question: "
	answerLabel    = "Answer: "
	sourcesLabel   = "Sources say: "
	truncationMark = "\n[... the rest was left out]"
)

// speaker is the author of a text, which decides whom "I" and "you" mean in it: one of these, or a name, whom "I" means
// then.
type speaker string

const (
	byUnknown   speaker = ""         // nobody that we know: "I" and "you" mean nothing
	byUser      speaker = UserEntity // "I" is the user
	byAssistant speaker = "the assistant"
)

// namedSpeaker returns the speaker of a text of which the caller knows the name, "" when nobody is named; by is the
// speaker then. A name for the user is the user's only in a text that counts as the user's.
func namedSpeaker(name string, by speaker) speaker {
	switch name = shortLine(name, maxSpeaker); {
	case name == "" || isUser(text.NameKey(name)):
		return by
	case IsReservedName(name):
		return byUnknown
	}
	return speaker(name)
}

// IsReservedName reports whether a name means the user or a program, so that no other speaker can have it, however it
// is written. The graph compares names in the same form.
func IsReservedName(name string) bool {
	return isUser(text.NameKey(name)) || IsProgramName(name)
}

// IsProgramName reports whether a name means a program, such as an assistant.
func IsProgramName(name string) bool {
	return programNames(text.NameKey(name)) || programNames(text.Fold(name))
}

// part is one text that a digest is made of.
type part struct {
	label string // as the model sees it
	text  string
	by    speaker
}

type material []part

// question returns the user's question, "" when there is none.
func (m material) question() string {
	if len(m) > 1 {
		return m[0].text
	}
	return ""
}

// content returns the answer or the note.
func (m material) content() string { return m[len(m)-1].text }

// said returns the text with its speaker in front when that is somebody with a name.
func (p part) said() string {
	if p.by == byUnknown || p.by == byUser || p.by == byAssistant {
		return p.text
	}
	return string(p.by) + " said: " + p.text
}

// allText joins all texts, with their speakers.
func (m material) allText() string {
	all := make([]string, len(m))
	for i, p := range m {
		all[i] = p.said()
	}
	return strings.Join(all, "\n")
}

// trustedText joins what the user and the assistant say themselves, without the words of others that they quote; ""
// when there is nothing.
func (m material) trustedText() string {
	var b strings.Builder
	for _, p := range m {
		if p.by == byUser || p.by == byAssistant {
			b.WriteString(firstPerson(p.text) + "\n")
		}
	}
	return b.String()
}

// fences returns the texts as the model gets them, cut to most bytes together. Each but the last gets at most a quarter
// of the bytes that are left.
func (m material) fences(most int) []fence {
	out := make([]fence, len(m))
	for i, p := range m {
		room := most / 4
		if i == len(m)-1 {
			room = most
		}
		out[i] = fence{p.label, text.Cut(p.said(), room)}
		most -= len(out[i].text)
	}
	return out
}

// cleanText returns s as valid UTF-8 with plain line breaks, trimmed. It drops control characters, bidi overrides and
// Unicode tag characters; invalid bytes become U+FFFD.
func cleanText(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r >= ' ' && r < 0x7f || r == '\n':
			return r
		case r == '\r' || r == '\v' || r == '\f' || r == 0x85 || r == 0x2028 || r == 0x2029:
			return '\n'
		case unicode.IsControl(r), r >= 0xE0000 && r <= 0xE0FFF, r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// shortLine returns s on one line, cut between words to at most most bytes including the dots that mark a cut.
func shortLine(s string, most int) string {
	s = text.Cut(s, max(4*most, 4<<10)) // most of what is longer is not looked at
	s = text.OneLine(s, 4*len(s))       // only on one line: it is cut below, between words
	if len(s) <= most {
		return s
	}
	return text.CutWords(s, most-3) + "..."
}

// isBlank reports whether s holds no visible character.
func isBlank(s string) bool {
	for _, r := range s {
		if r != utf8.RuneError && !unicode.IsSpace(r) && text.IsVisible(r) {
			return false
		}
	}
	return true
}

// stripMarkdown drops the marks of Markdown and fenced code with its content; a fence that is never closed reaches to
// the end. The result is for analysis and is not stored.
func stripMarkdown(s string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(s) {
		plain := strings.TrimSpace(line)
		if strings.HasPrefix(plain, "```") || strings.HasPrefix(plain, "~~~") {
			code = !code
			b.WriteByte('\n')
			continue
		}
		if code {
			continue
		}
		if strings.Trim(plain, "-=*_| :") == "" { // a rule, or the line below the head of a table
			b.WriteByte('\n')
			continue
		}
		head := strings.TrimLeft(plain, "#>")
		if len(head) < len(plain) && strings.HasPrefix(head, " ") {
			plain = head[1:]
		}
		b.WriteString(markdownMarks.Replace(plain))
		b.WriteByte('\n')
	}
	return b.String()
}

var markdownMarks = strings.NewReplacer("**", "", "__", "", "`", "")
