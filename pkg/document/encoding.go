package document

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/text/encoding/charmap"
	uni "golang.org/x/text/encoding/unicode"
)

// signatures are the first bytes of common files that are no text, and what to do with them.
var signatures = []struct{ begin, what string }{
	{"PK\x03\x04", "a zip archive, or an office document or book that is one; save it as PDF or text"},
	{"\xd0\xcf\x11\xe0", "an old office document; save it as PDF or text"},
	{"{\\rtf", "RTF; save it as PDF or text"},
	{"\x1f\x8b", "compressed with gzip; unpack it"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it"},
	{"\x89PNG", "a picture"},
	{"\xff\xd8\xff", "a picture"},
	{"GIF8", "a picture"},
	{"\x7fELF", "a program"},
	{"SQLite format 3\x00", "a database"},
}

// decodeText decodes text to UTF-8, with notes for the user. Invalid bytes in text that is mostly UTF-8 become U+FFFD.
// Text that is neither UTF-8 nor UTF-16 with a byte order mark is read as Windows-1252. It rejects binary data, and
// other text of which more than a quarter of the bytes is not UTF-8, with [ErrNotText].
func decodeText(data []byte) (string, []string, error) {
	if err := checkSignature(data); err != nil {
		return "", nil, err
	}
	if s, ok, err := decodeMarked(data); ok || err != nil {
		if err == nil {
			err = checkText(s)
		}
		return s, nil, err
	}
	s := string(data)
	if utf8.Valid(data) {
		return s, nil, checkText(s)
	}
	good, bad := sequences(data)
	if good > bad { // UTF-8 with some damage
		s = strings.ToValidUTF8(s, "\uFFFD")
		return s, []string{fmt.Sprintf("%d bytes of invalid UTF-8 were left out", bad)}, checkText(s)
	}
	// Western text has few letters beyond ASCII. What has many of them is in some other encoding, or is no text.
	if 4*bad > len(data) {
		return "", nil, fmt.Errorf("%w, or in an unknown encoding; save it as UTF-8", ErrNotText)
	}
	out, err := charmap.Windows1252.NewDecoder().Bytes(data)
	if err != nil {
		return "", nil, fmt.Errorf("%w, or in an unknown encoding; save it as UTF-8", ErrNotText)
	}
	s = string(out)
	return s, []string{"not UTF-8, read as Windows-1252; save it as UTF-8 if letters look wrong"}, checkText(s)
}

// decodeHTML decodes a page to UTF-8 by the charset that it declares. A page that is UTF-8 or UTF-16, declares none, or
// cannot be decoded by it is decoded like other text. It rejects binary data.
func decodeHTML(data []byte) (string, []string, error) {
	if utf8.Valid(data) || bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return decodeText(data)
	}
	if err := checkSignature(data); err != nil {
		return "", nil, err
	}
	e, name, _ := charset.DetermineEncoding(data, "")
	if name == "utf-8" || name == "windows-1252" { // the latter also when the page does not say
		return decodeText(data)
	}
	out, err := e.NewDecoder().Bytes(data)
	if err != nil {
		return decodeText(data)
	}
	return string(out), nil, checkText(string(out))
}

func checkSignature(data []byte) error {
	for _, s := range signatures {
		if bytes.HasPrefix(data, []byte(s.begin)) {
			return fmt.Errorf("%w: %s", ErrNotText, s.what)
		}
	}
	return nil
}

// decodeMarked decodes UTF-8 or UTF-16 that begins with a byte order mark, and removes the mark. It is not ok when
// there is none, or when what follows the mark of UTF-8 is not valid. Invalid UTF-16 is an error.
func decodeMarked(data []byte) (string, bool, error) {
	if rest, ok := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); ok && utf8.Valid(rest) {
		return string(rest), true, nil
	}
	for mark, order := range map[string]uni.Endianness{"\xff\xfe": uni.LittleEndian, "\xfe\xff": uni.BigEndian} {
		if !bytes.HasPrefix(data, []byte(mark)) {
			continue
		}
		out, err := uni.UTF16(order, uni.ExpectBOM).NewDecoder().Bytes(data)
		if err != nil {
			return "", false, fmt.Errorf("%w: invalid UTF-16", ErrNotText)
		}
		return string(out), true, nil
	}
	return "", false, nil
}

// sequences counts the multi-byte UTF-8 characters (good) and the bytes that belong to no character (bad). ASCII counts
// as neither.
func sequences(data []byte) (good, bad int) {
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1:
			bad++
		case n > 1:
			good++
		}
		data = data[n:]
	}
	return good, bad
}

// checkText rejects decoded data that is no text with [ErrNotText]: a zero byte, or more than four control or invalid
// characters that are over two percent of all. nil means that it looks like text.
func checkText(s string) error {
	odd, all := 0, 0
	for _, r := range s {
		all++
		switch {
		case r == 0:
			return fmt.Errorf("%w: it holds zero bytes", ErrNotText)
		case r == utf8.RuneError, unicode.IsControl(r) && !strings.ContainsRune("\t\n\v\f\r\b\x1b", r):
			odd++
		}
	}
	if odd > 4 && 50*odd > all {
		return fmt.Errorf("%w: %d of its %d characters are control characters or invalid", ErrNotText, odd, all)
	}
	return nil
}
