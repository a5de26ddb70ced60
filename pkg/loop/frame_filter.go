package loop

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// frameFilter removes copied frame lines from a reply as it comes. Small models repeat the markers around a result,
// "[TOOL_RESULT: UNTRUSTED 1f…]" and "[END OF TOOL_RESULT 1f…]", which say nothing to a user. Only the markers are
// removed: the text between them is the model's answer. It works on text behind the scanner, so that no removal can
// join two pieces to a call. The result does not depend on where the reply is split into pieces.
type frameFilter struct {
	held string // may begin a marker
}

// framePattern matches a marker with the line break behind it. A note has the nonce of its frame.
var framePattern = regexp.MustCompile(
	`\[(?:(?:TOOL_RESULT|ATTACHMENT): UNTRUSTED|END OF (?:TOOL_RESULT|ATTACHMENT)|note [0-9a-f]{16}:)` +
		`[^\]\n]{0,170}\]\n?`)

// frameStarts are the beginnings of markers.
var frameStarts = []string{"[TOOL_RESULT: ", "[END OF ", "[ATTACHMENT: ", "[note "}

// maxMarker bounds a marker, in characters: what is longer is text.
const maxMarker = 200

// strip returns the part of the reply up to the end of piece that is known to be text.
func (f *frameFilter) strip(piece string) string {
	s := f.held + piece
	at := strings.LastIndexByte(s, '[')
	if at < 0 || !mayBeMarker(s[at:]) {
		at = len(s)
	}
	f.held = s[at:]
	return stripFrames(s[:at])
}

// mayBeMarker reports whether s, which begins with a bracket, is the beginning of a marker, or one whose line break may
// still come.
func mayBeMarker(s string) bool {
	for _, start := range frameStarts {
		n := min(len(s), len(start))
		if s[:n] == start[:n] {
			return utf8.RuneCountInString(s) < maxMarker && !strings.ContainsAny(strings.TrimSuffix(s, "]"), "]\n")
		}
	}
	return false
}

// flush returns what is held back when nothing follows.
func (f *frameFilter) flush() string {
	held := f.held
	f.held = ""
	return stripFrames(held)
}

// stripFrames returns a whole text without the markers of frames.
func stripFrames(s string) string {
	if !strings.Contains(s, "[") {
		return s
	}
	return framePattern.ReplaceAllString(s, "")
}
