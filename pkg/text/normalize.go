package text

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Normalize returns s as a model tends to read it, for comparison and not for display: NFKC, zero-width and bidi
// controls and combining accents removed, Unicode tag characters as the ASCII they mirror, look-alike letters as ASCII,
// runs of white space as one blank. It keeps the case. Normalizing twice changes nothing.
func Normalize(s string) string {
	// A pass may bring characters together that the next one composes.
	for range 8 {
		next := normalizeOnce(s)
		if next == s {
			break
		}
		s = next
	}
	return s
}

// normalizeOnce is one pass of [Normalize]. Invalid bytes become U+FFFD.
func normalizeOnce(s string) string {
	visible := strings.Map(func(r rune) rune {
		if IsTag(r) {
			return r - TagBase
		}
		if IsInvisible(r) || IsAccent(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	var b strings.Builder
	b.Grow(len(visible))
	blank := true // drops leading white space
	for _, r := range norm.NFKC.String(visible) {
		switch {
		case unicode.IsSpace(r):
			if !blank {
				b.WriteByte(' ')
			}
			blank = true
			continue
		case IsAccent(r) || IsInvisible(r):
			continue
		}
		if c, ok := Lookalike(r); ok {
			r = rune(c)
		}
		b.WriteRune(r)
		blank = false
	}
	return strings.TrimSuffix(b.String(), " ")
}

// TagBase is the first of the Unicode tag characters, which mirror ASCII and are never shown.
const TagBase = 0xE0000

// IsTag reports whether r is a tag character that mirrors a printable ASCII character.
func IsTag(r rune) bool { return r >= TagBase+' ' && r <= TagBase+'~' }

// IsAccent reports whether r is a combining mark of Latin, Greek or Cyrillic, which can be stacked on any letter.
func IsAccent(r rune) bool { return r >= 0x300 && r <= 0x36F }

// IsInvisible reports whether r takes part in no word and is not shown: control characters except white space,
// zero-width characters, bidi controls, fillers, variation selectors and tag characters.
func IsInvisible(r rune) bool {
	if r < 0x80 {
		return r < ' ' && r != '\n' && r != '\t' && r != '\r' && r != '\v' && r != '\f' || r == 0x7f
	}
	switch {
	case r == 0xAD, r == 0x34F, r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, r == 0x3164, r == 0xFFA0,
		r == 0xFEFF, r == 0x61C:
		return true
	case r >= 0x180B && r <= 0x180F, r >= 0x200B && r <= 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2060 && r <= 0x206F:
		return true
	}
	return r >= 0xFE00 && r <= 0xFE0F || r >= 0xFFF9 && r <= 0xFFFB || r >= 0x1D173 && r <= 0x1D17A || r >= TagBase &&
		r <= 0xE0FFF
}

// lookalikePairs lists letters of other scripts, each followed by the ASCII character that it is mistaken for.
const lookalikePairs = "аaеeоoрpсcуyхxіiјjѕsһhԁdԛqԝwɡgүyьbӏlАAВBЕEКKМMНHОOРPСCТTУYХXІIЈJЅSԌGԚQԜWҮY" +
	"αaοoνvρpτtυuιiκkχxγyωwϲcϳjΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧXϹC" +
	"ıiɑaɩiʟlɴnʀrʏyꜱsᴀaᴄcᴅdᴇeᴊjᴋkᴍmᴏoᴘpᴛtᴜuᴠvᴡwᴢzʙbɢgʜhɪiꞮIøoØOłlŁLđdĐDßsæaÆA" +
	"օoսuհhոnցgԱUՏSՕOᎪAᏴBᏟCᎠDᎬEᎻHᎫJᏦKᏞLᎷMΟOᏢPᏒRᏚSᎢTᏙVᏔWᏃZ‘'’'‚'‛'“\"”\"„\"«\"»\"–-—-‐-‑-‒-―-−-∕/⁄/"

var lookalikes = func() map[rune]byte {
	m := map[rune]byte{}
	pairs := []rune(lookalikePairs)
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = byte(pairs[i+1])
	}
	return m
}()

// Lookalike returns the ASCII character that r is mistaken for.
func Lookalike(r rune) (byte, bool) {
	if r < 0x80 || r > 0x2FFF && r < 0xA700 || r >= 0xAC00 {
		return 0, false
	}
	c, ok := lookalikes[r]
	return c, ok
}
