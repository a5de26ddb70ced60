package loop

import (
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// prefilters are the prefilters and their patterns.
var prefilters = map[string]struct {
	prefilter prefilter
	patterns  []func() *regexp.Regexp
}{
	"hedges":    {hedgePrefilter, []func() *regexp.Regexp{hedgePattern}},
	"announces": {announcePrefilter, []func() *regexp.Regexp{announcePattern}},
}

// A prefilter passes every text that its pattern matches. Texts are generated from the patterns, in every branch.
func TestPrefiltersPassEveryMatch(t *testing.T) {
	t.Parallel()
	for name, s := range prefilters {
		for _, pattern := range s.patterns {
			re := pattern()
			tree, err := syntax.Parse(re.String(), syntax.Perl)
			if err != nil {
				t.Fatal(err)
			}
			m := textGenerator{rand.New(rand.NewPCG(1, 2))}
			asked, matched := 0, 0
			for i := range 8_000 {
				text := normalizeApostrophes(m.pick("", "", "Well, ", "ok", "é", "x ") + m.text(tree) +
					m.pick("", ".", " and so on", "s"))
				passes := s.prefilter.passes(text)
				if passes && i%64 != 0 { // patterns are slow: of those that pass a sample is enough
					continue
				}
				asked++
				if !re.MatchString(text) {
					continue
				}
				matched++
				if !passes {
					t.Errorf("%s: %q matches, but the prefilter does not pass it", name, text)
				}
			}
			if matched < asked/20 || matched < 10 {
				t.Errorf("%s: only %d of %d texts match: the test tries too little", name, matched, asked)
			}
		}
	}
}

// textGenerator generates texts that a pattern probably matches; word boundaries are ignored.
type textGenerator struct{ *rand.Rand }

func (m textGenerator) pick(of ...string) string { return of[m.IntN(len(of))] }

func (m textGenerator) text(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		return m.anyCase(re.Rune)
	case syntax.OpCharClass:
		i := m.IntN(len(re.Rune)/2) * 2
		return string(re.Rune[i] + m.Int32N(min(re.Rune[i+1]-re.Rune[i], 127)+1))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return m.pick("a", " ", "é", ".", "I")
	case syntax.OpCapture:
		return m.text(re.Sub[0])
	case syntax.OpQuest:
		return m.times(re, 0, 1)
	case syntax.OpStar:
		return m.times(re, 0, 3)
	case syntax.OpPlus:
		return m.times(re, 1, 3)
	case syntax.OpRepeat:
		return m.times(re, re.Min, min(re.Max, re.Min+4))
	case syntax.OpConcat:
		var b strings.Builder
		for _, sub := range re.Sub {
			b.WriteString(m.text(sub))
		}
		return b.String()
	case syntax.OpAlternate:
		return m.text(re.Sub[m.IntN(len(re.Sub))])
	}
	return "" // borders, the beginning, the end
}

func (m textGenerator) times(re *syntax.Regexp, least, most int) string {
	var b strings.Builder
	for range least + m.IntN(most-least+1) {
		b.WriteString(m.text(re.Sub[0]))
	}
	return b.String()
}

// anyCase writes letters in any case that patterns take for the same.
func (m textGenerator) anyCase(of []rune) string {
	var b strings.Builder
	for _, r := range of {
		for m.IntN(8) == 0 {
			r = unicode.SimpleFold(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// A prefilter finds its texts in any case, and those of words at the beginning of a word only.
func TestPrefilter(t *testing.T) {
	t.Parallel()
	s := prefilter{"let me", " i ", "permíteme"}
	for text, want := range map[string]bool{
		"LET ME see": true, "outlet me": true, "I am": true, "so I am": true, "so,i am": true, "Fiji am": false,
		"i":         false,
		"PERMÍTEME": true, "nothing of it": false, "": false, "le": false, "maſt": true, "\u212a": true, "’": false,
		"\xe2": false,
	} {
		if s.passes(text) != want {
			t.Errorf("%q passes: %t, want %t", text, !want, want)
		}
	}
}

// Ordinary answers are not matched against the patterns.
func TestOrdinaryAnswersDoNotPass(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"The answer is 42, as looked up.", "Bern has 21 degrees and sunshine today.",
		"Water boils at 100 °C at sea level. On a mountain it boils earlier, because the pressure is lower.",
	} {
		for name, s := range prefilters {
			if s.prefilter.passes(text) {
				t.Errorf("%s: the prefilter passes %q", name, text)
			}
		}
	}
}

func FuzzPrefilters(f *testing.F) {
	for _, s := range slices.Concat(hedging, notHedging, announcing, notAnnouncing) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = normalizeApostrophes(text)
		for name, s := range prefilters {
			if s.prefilter.passes(text) {
				continue
			}
			for _, pattern := range s.patterns {
				if pattern().MatchString(text) {
					t.Errorf("%s: %q matches, but the prefilter does not pass it", name, text)
				}
			}
		}
	})
}
