package recall

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGuard: the words by which two questions are told apart.
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"plain", "tell me about coffee", ""},
		{"the first word", "coffee with milk", "coffee with"},
		{"the first word with a capital", "Coffee with milk", "coffee with"},
		{"a name", "tell me about Anna", "anna"},
		{"a name with 's", "tell me Anna's and O'Brien's age", "anna and o'brien"},
		{"curly apostrophe", "tell me Anna’s age", "anna"},
		{"question words", "what's new, who is there", "what new who"},
		{"pronouns", "tell me what I'm doing, you'll see", "what i you"},
		{"negation", "tell me what isn't, wasn’t, cannot be, and never was", "what not not not and not was"},
		{"negation in other languages", "das ist nicht, sans, sin", "das not not not"},
		{"past and present", "where does it live", "where"},
		{"past", "where did it live", "where was"},
		{"numbers", "about room 12b, 3.5", "12b 3 5"},
		{"other digits", "about room ٣", "٣"},
		{"signs", "about c++ and c#, 5% & $3", "+ + and # 5 % & $ 3"},
		{
			"quoted", `about "Blue  Moon" and 'the end' and “so so” «là» 「猫」`,
			`"blue moon" and "the end" and "so so" "la" "猫"`,
		},
		{"quoted with an apostrophe", "about 'Anna's end' there", `"anna's end"`},
		{"a plural's apostrophe", "about the dogs' and cats' food", "and"},
		{"not closed", `about "blue moon`, ""},
		{"Chinese", "我不喜欢", "我不喜欢"},
		{"capitals in the middle", "about mySQL", "mysql"},
		{"all capitals", "TELL ME ABOUT COFFEE", "coffee"},
		{"trick: something invisible in a word", "about A\u200bnna not n\u200bot", "anna not not"},
		{"trick: no text", "about \xff\xfe Anna\xff", "\ufffd \ufffd anna \ufffd"},
	} {
		if got := guardWords(tt.in); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	long := strings.Repeat("very long ", 1000)
	if guardWords(long+"a") == guardWords(long+"b") {
		t.Error("what differs at the end of a long text is not seen")
	}
}

// FuzzGuard: whatever comes, it ends, gives text, and takes blanks and the case of the first letter for nothing.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{
		"", "what's Anna's 'age'", "«x» “y", "c++ 100%", "don't 'n' roll'", "我不\xff",
		"a\u0301'b", "'''", "Ǆ ß'",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text[:min(len(text), 300)], "")
		got := guardWords(text)
		if !utf8.ValidString(got) || guardWords(" "+text+" ") != got {
			t.Errorf("%q: %q, with blanks %q", text, got, guardWords(" "+text+" "))
		}
	})
}
