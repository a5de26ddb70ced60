package seal

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// removed replaces a credential in a text.
const removed = "[redacted]"

// minRedacted is the length of the shortest spelling that is replaced: shorter ones occur in every text.
const minRedacted = 4

// NewRedactor returns a function that replaces the credentials in a text: verbatim, in base64, in hex, URL-escaped,
// reversed, and in any of these spellings inside compressed data. A provider may echo what it was sent, and a model
// must not see it. Values shorter than minRedacted bytes are not replaced; without secrets texts stay as they are.
func NewRedactor(secrets ...[]byte) func(string) string {
	if len(secrets) == 0 {
		return func(s string) string { return s }
	}
	var list []string
	for _, s := range secrets {
		list = append(list, Spellings(s)...)
		list = append(list, Spellings(bytes.TrimSpace(s))...)
	}
	// The longest first: a spelling may contain another.
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, f := range slices.Compact(list) {
		pairs = append(pairs, f, removed)
	}
	plain := strings.NewReplacer(pairs...).Replace
	return func(s string) string { return redactCompressed(plain(s), plain) }
}

// compressedRun matches gzip data in base64 or hex.
var compressedRun = regexp.MustCompile(`H4sI[A-Za-z0-9+/_-]{16,}={0,2}|1[fF]8[bB]08[0-9a-fA-F]{24,}`)

// maxUnpacked bounds the decompressed bytes of one text.
const maxUnpacked = 4 << 20

// redactCompressed replaces gzip data in base64 or hex in which hide changes something, and data that is too long to be
// checked: maxUnpacked bytes over all of s.
func redactCompressed(s string, hide func(string) string) string {
	left := int64(maxUnpacked)
	return compressedRun.ReplaceAllStringFunc(s, func(run string) string {
		text, ok := decompress(run, left)
		left -= int64(len(text))
		if !ok || left <= 0 || hide(text) != text {
			return removed
		}
		return run
	})
}

// decompress returns up to most bytes of the gzip data that run holds in base64 or hex, "" for data that is not gzip.
// It reports false when there may be more.
func decompress(run string, most int64) (string, bool) {
	data, err := hex.DecodeString(run[:len(run)&^1])
	if strings.HasPrefix(run, "H4sI") {
		run = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(run, "="))
		if len(run)%4 == 1 {
			run = run[:len(run)-1] // an adjacent letter
		}
		data, err = base64.RawStdEncoding.DecodeString(run)
	}
	if err != nil {
		return "", true
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return "", true // not gzip
	}
	text, _ := io.ReadAll(io.LimitReader(r, most))
	return string(text), int64(len(text)) < most
}

// Spellings returns the spellings of a value that a redactor replaces. Those shorter than minRedacted are left out,
// and a value that is shorter has none.
func Spellings(value []byte) []string {
	if len(value) < minRedacted {
		return nil
	}
	back := slices.Clone(value)
	slices.Reverse(back)
	low := hex.EncodeToString(value)
	out := []string{
		string(value), string(back), low, strings.ToUpper(low), url.QueryEscape(string(value)),
		url.PathEscape(string(value)),
	}
	// Base64 depends on the alignment: three of them, without the characters that neighbours share.
	for shift := range 3 {
		padded := append(make([]byte, shift), value...)
		whole := len(padded) / 3 * 4
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			s := enc.EncodeToString(padded)
			if s = s[(shift*8+5)/6 : whole]; len(s) >= minRedacted {
				out = append(out, s)
			}
			if shift == 0 {
				out = append(out, enc.EncodeToString(value), strings.TrimRight(enc.EncodeToString(value), "="))
			}
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < minRedacted })
}
