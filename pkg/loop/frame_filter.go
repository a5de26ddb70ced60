package loop

import "strings"

// frameFilter removes copied frame lines from a reply as it comes. Small models repeat the markers around a result,
// "[TOOL_RESULT: UNTRUSTED 1f…]" and "[END OF TOOL_RESULT 1f…]", which say nothing to a user. Only the markers are
// removed: the text between them is the model's answer. It works on text behind the scanner, so that no removal can
// join two pieces to a call. The result does not depend on where the reply is split into pieces.
type frameFilter struct {
	held     string // may begin a marker
	skipLine bool   // a line break directly after a marker is removed with it
}

// frameMarkers are the beginnings of all markers but notes, whose beginning is usual in text.
var frameMarkers = []string{
	"[TOOL_RESULT: UNTRUSTED", "[END OF TOOL_RESULT", "[ATTACHMENT: UNTRUSTED",
	"[END OF ATTACHMENT",
}

// maxMarker bounds a marker in bytes: what is longer is text.
const maxMarker = 200

// strip returns the part of the reply up to the end of piece that is known to be text.
func (f *frameFilter) strip(piece string) string {
	rest := f.held + piece
	f.held = ""
	var out strings.Builder
	for rest != "" {
		if f.skipLine {
			f.skipLine = false
			if rest = strings.TrimPrefix(rest, "\n"); rest == "" {
				break
			}
		}
		at := strings.IndexByte(rest, '[')
		if at < 0 {
			out.WriteString(rest)
			break
		}
		out.WriteString(rest[:at])
		rest = rest[at:]
		size, undecided := measureMarker(rest)
		switch {
		case undecided:
			f.held = rest
			return out.String()
		case size == 0:
			out.WriteByte('[')
			rest = rest[1:]
		default:
			rest, f.skipLine = rest[size:], true
		}
	}
	return out.String()
}

// flush returns what is held back when nothing follows.
func (f *frameFilter) flush() string {
	held := f.held
	f.held = ""
	return held
}

// stripFrames returns a whole text without the markers of frames.
func stripFrames(s string) string {
	var f frameFilter
	return f.strip(s) + f.flush()
}

// measureMarker returns the size of the marker at the beginning of s, 0 = there is none. It is undecided while more
// text can make s a marker.
func measureMarker(s string) (size int, undecided bool) {
	known := false
	for _, m := range frameMarkers {
		if strings.HasPrefix(m, s) {
			return 0, true
		}
		known = known || strings.HasPrefix(s, m)
	}
	if !known {
		complete, possible := matchNote(s)
		if !complete {
			return 0, possible
		}
	}
	end := strings.IndexAny(s, "]\n")
	switch {
	case end >= 0 && end < maxMarker && s[end] == ']':
		return end + 1, false
	case end < 0 && len(s) < maxMarker:
		return 0, true
	}
	return 0, false
}

// noteStart is the beginning of a note in a frame; the nonce follows, and a colon.
const noteStart = "[note "

// nonceSize is the length of a frame's nonce, in hexadecimal digits.
const nonceSize = 16

// matchNote reports whether s begins a note of a frame: complete up to the colon after the nonce, or possible with more
// text.
func matchNote(s string) (complete, possible bool) {
	if len(s) <= len(noteStart) {
		return false, strings.HasPrefix(noteStart, s)
	}
	nonce, ok := strings.CutPrefix(s, noteStart)
	if !ok {
		return false, false
	}
	for i := range min(len(nonce), nonceSize) {
		if !strings.ContainsRune("0123456789abcdef", rune(nonce[i])) {
			return false, false
		}
	}
	if len(nonce) <= nonceSize {
		return false, true
	}
	return nonce[nonceSize] == ':', false
}
