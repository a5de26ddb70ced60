package text

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Visible returns text on one line with nothing hidden: every character that is not [IsVisible] is escaped as in JSON.
func Visible(s string) string { return escapeHidden(s, "") }

// VisibleJSON lays a JSON value out on lines that begin with indent, except the first: complete, and with hidden
// characters escaped. It is still the same value. Invalid JSON is returned on one line as [Visible] returns it.
func VisibleJSON(raw []byte, indent string) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, indent, "  ") != nil {
		return Visible(string(raw))
	}
	return EscapeJSON(b.String())
}

// EscapeJSON escapes the hidden characters of encoded JSON, which stays the same value. JSON strings have no raw line
// breaks: those that are there are layout and stay.
func EscapeJSON(encoded string) string { return escapeHidden(encoded, "\n") }

// escapeHidden writes every rune that is not visible and not in keep as \uXXXX, one above U+FFFF as a surrogate pair.
func escapeHidden(s, keep string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case IsVisible(r), strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r > 0xFFFF:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
