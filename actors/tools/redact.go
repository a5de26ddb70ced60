package tools

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"conclave/pkg/seal"
)

// redacted stands where a credential stood.
const redacted = "[redacted]"

// minRedacted is the shortest form that is looked for. What is shorter stands in every text.
const minRedacted = 4

// redactor returns what takes the credentials out of a text: as they are, in base64, in hex, escaped for an address, and
// backwards. A provider that repeats what it was sent must not tell a model.
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
	return strings.NewReplacer(pairs...).Replace
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
