package text_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"conclave/pkg/text"
)

const maxTerm = 48

// splitTerms joins the terms of in; a * follows a single character that is also part of a pair.
func splitTerms(in string) string {
	var s text.TermSplitter
	var out []string
	s.Each(in, func(w []byte, single bool) {
		word := string(w)
		if single {
			word += "*"
		}
		out = append(out, word)
	})
	return strings.Join(out, " ")
}

func TestSplitTerms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"signs", "?! — … ☕ 🙂", ""},
		{"plain", "Hello, World", "hello world"},
		{"digits", "B12 at 10:30, 3.14", "b12 at 10 30 3 14"},
		{"joined", "save_memory re-read a/b foo.bar@example.org", "save memory re read a b foo bar example org"},
		{"apostrophes", "Anna's dogs' don't l'eau O'Brien rock'n'roll", "anna dogs don eau brien rock roll"},
		{"curly apostrophes", "Anna’s l’eau", "anna eau"},
		{"one letter", "vitamin D", "vitamin d"},
		{"accents", "Éclair naïve Ångström façade", "eclair naive angstrom facade"},
		{"accents on their own", "cafe\u0301 n\u0303", "cafe n"},
		{"letters that are not taken apart", "Straße Łódź Ørsted Þór Æther œuvre ıI", "strasse lodz orsted thor " +
			"aether oeuvre ii"},
		{"Turkish", "İstanbul", "istanbul"},
		{"Greek", "ΣΊΣΥΦΟΣ Σίσυφος", "σισυφοσ σισυφοσ"},
		{"Russian", "ёлка Йод", "елка иод"},
		{"full width and ligatures", "ＡＢＣ１２ ﬁsh ½ ²", "abc12 fish 1 2 2"},
		{"Arabic with and without vowels", "مُحَمَّد محمد", "محمد محمد"},
		{"Hebrew with points", "שָׁלוֹם", "שלום"},
		{"Hindi keeps its vowels", "हिन्दी में", "हिन्दी में"},
		{"Chinese", "黑咖啡", "黑* 黑咖 咖* 咖啡 啡*"},
		{"one Chinese character", "猫 と", "猫 と"},
		{"Japanese", "コーヒーが好き", "コー ーヒ ヒー ーが が好 好* 好き"},
		{"voiced kana are letters", "がか", "がか"},
		{"half width kana", "ｶﾞ", "ガ"},
		{"Korean", "커피를", "커* 커피 피* 피를 를*"},
		{"Korean taken apart", "\u110f\u1165\u1111\u1175", "커* 커피 피*"},
		{"Thai", "กาแฟ", "กา าแ แฟ"},
		{"mixed scripts", "iPhone15を買う", "iphone15 を買 買* 買う"},
		{"invisible", "cof\u200bfee c\u00ado\u2060ffee \ufeffcoffee co\u202effee", "coffee coffee coffee coffee"},
		{"variation selectors", "a\ufe0fb", "ab"},
		{"no text", "a\xff\xfeb \xc3", "a b"},
		{"very long", strings.Repeat("x", 100), strings.Repeat("x", maxTerm)},
		{"very long, in characters of three bytes", strings.Repeat("ꭰ", 100), strings.Repeat("ꭰ", maxTerm/3)},
		{"a mark alone", "\u0301 \u093f x", "x"},
	} {
		if got := splitTerms(tt.in); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestStemPlural(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "s": "s", "as": "as", "bus": "bus", "dogs": "dog", "glass": "glass", "glasses": "glass",
		"tennis": "tennis", "bonus": "bonus", "stories": "story",
		"ties": "tie", "boxes": "box", "dishes": "dish", "churches": "church", "houses": "house", "clothes": "clothe",
		"b12s": "b12s", "иs": "иs", "cafes": "cafe", "ssss": "ssss",
	} {
		if got := string(text.StemPlural([]byte(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// FuzzSplitTerms checks that terms are short, valid, folded, and the same for a folded text.
func FuzzSplitTerms(f *testing.F) {
	for _, s := range []string{
		"", "Hello, World's", "黑咖啡 café", "커피를", "\xff\xfe a", "a\u0301\u0301", "ﷺ ﷺ",
		"İstanbul ẞ", "กาแฟ", "\u1100\u1161\u11a8", "e\u0345", "ǅ ŉ ΐ",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		in = in[:min(len(in), 400)]
		folded := text.Fold(in)
		if again := text.Fold(folded); again != folded {
			t.Errorf("folding %q twice: %q and %q", in, folded, again)
		}
		var s text.TermSplitter
		var words [][]byte
		s.Each(in, func(w []byte, single bool) {
			if len(w) == 0 || len(w) > maxTerm || !utf8.Valid(w) || single && utf8.RuneCount(w) != 1 {
				t.Errorf("%q has the term %q", in, w)
			}
			words = append(words, bytes.Clone(w))
			if st := text.StemPlural(w); len(st) == 0 || len(st) > len(w) {
				t.Errorf("the stem of %q is %q", w, st)
			}
		})
		i := 0
		s.Each(folded, func(w []byte, _ bool) {
			if i >= len(words) || !bytes.Equal(w, words[i]) {
				t.Errorf("%q folded has other words: %q", in, w)
			}
			i++
		})
		if i != len(words) {
			t.Errorf("%q folded has %d words instead of %d", in, i, len(words))
		}
	})
}
