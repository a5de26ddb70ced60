package tools

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

	"conclave/pkg/seal"
)

// redacted stands where a credential stood.
const redacted = "[redacted]"

// minRedacted is the shortest form that is looked for. What is shorter stands in every text.
const minRedacted = 4

// redactor returns what takes the credentials out of a text: as they are, in base64, in hex, escaped for an address,
// backwards, and in any of these ways inside something packed. A provider that repeats what it was sent must not tell a
// model.
func redactor(secrets map[string]seal.Secret) func(string) string {
	if len(secrets) == 0 {
		return func(s string) string { return s }
	}
	var list []string
	for _, s := range secrets {
		list = append(list, forms(s.Reveal())...)
		list = append(list, forms(bytes.TrimSpace(s.Reveal()))...)
	}
	// The longest first: a form may stand inside of another.
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, f := range slices.Compact(list) {
		pairs = append(pairs, f, redacted)
	}
	plain := strings.NewReplacer(pairs...).Replace
	return func(s string) string { return hidePacked(plain(s), plain) }
}

// packed is text that gzip made and base64 or hex wrote down.
var packed = regexp.MustCompile(`H4sI[A-Za-z0-9+/_-]{16,}={0,2}|1[fF]8[bB]08[0-9a-fA-F]{24,}`)

// maxUnpacked is how much is looked at of all that is packed in one text.
const maxUnpacked = 4 << 20

// hidePacked takes out what is packed and holds a credential. What cannot be looked at to its end is taken out too.
func hidePacked(s string, hide func(string) string) string {
	left := int64(maxUnpacked)
	return packed.ReplaceAllStringFunc(s, func(run string) string {
		text, ok := unpack(run, left)
		left -= int64(len(text))
		if !ok || left <= 0 || hide(text) != text {
			return redacted
		}
		return run
	})
}

// unpack reads as much of a packed run as can be read. It reports false when there may be more.
func unpack(run string, most int64) (string, bool) {
	data, err := hex.DecodeString(run[:len(run)&^1])
	if strings.HasPrefix(run, "H4sI") {
		run = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(run, "="))
		if len(run)%4 == 1 {
			run = run[:len(run)-1] // a letter that only stands beside it
		}
		data, err = base64.RawStdEncoding.DecodeString(run)
	}
	if err != nil {
		return "", true
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return "", true // it only looked so
	}
	text, _ := io.ReadAll(io.LimitReader(r, most))
	return string(text), int64(len(text)) < most
}

// forms are the ways in which a value is written.
func forms(value []byte) []string {
	if len(value) < minRedacted {
		return nil
	}
	back := slices.Clone(value)
	slices.Reverse(back)
	low := hex.EncodeToString(value)
	out := []string{
		string(value), string(back), low, strings.ToUpper(low), url.QueryEscape(string(value)), url.PathEscape(string(value)),
	}
	// Base64 depends on what stands before: three beginnings, without the characters that neighbours share.
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
