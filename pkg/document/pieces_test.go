package document_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"conclave/pkg/document"
)

// para is a paragraph of about n bytes.
func para(word string, n int) string {
	return strings.TrimSpace(strings.Repeat(word+" ", n/(len(word)+1)))
}

func TestPieces(t *testing.T) {
	t.Parallel()
	code := "```go\n" + strings.Repeat("line of code\n\n", 200) + "```"
	row := "| " + para("cell", 1500) + " |"
	for _, tt := range []struct {
		name, kind, text string
		headings         []string // of the pieces
		holds            []string // each whole in one piece
	}{
		{"nothing", document.Text, "", nil, nil},
		{"blank", document.Markdown, " \n\n\t", nil, nil},
		{"short", document.Text, "one\n\ntwo\n", []string{""}, []string{"one\n\ntwo"}},
		{
			"ways of headings", document.Markdown,
			"# A\n\n" + para("a", 900) + "\n## B\n" + para("b", 900) + "\n### C\n" + para("c", 900) + "\n## D\n" +
				para("d", 900) + "\n# E\n" + para("e", 900),
			[]string{"A", "A > B", "A > B > C", "A > D", "E"},
			[]string{"# A\n\na", "### C\n\nc", "# E\n\ne"},
		},
		{
			"small sections together, under what they have in common", document.Markdown, "# A\n## B\nb\n## C\nc\n",
			[]string{"A"},
			[]string{"## B\n\nb\n\n## C\n\nc"},
		},
		{
			"small sections of two chapters", document.Markdown, "# A\na\n# B\nb",
			[]string{""},
			[]string{"# A\n\na\n\n# B\n\nb"},
		},
		{
			"a level that is left out", document.Markdown, "### C\n" + para("c", 700) + "\n# A\n" + para("a", 700),
			[]string{"C", "A"},
			nil,
		},
		{
			"underlined headings", document.Markdown, "A\n==\nB\n==\n" + para("a", 700) + "\n\nC\n---\n" +
				para("c", 700),
			[]string{"B", "B > C"},
			[]string{"C\n---\n\nc"},
		},
		{
			"a heading over nothing", document.Markdown, para("a", 700) + "\n\n# End",
			[]string{"", "End"},
			[]string{"# End"},
		},
		{
			"paragraphs", document.Text, para("a", 900) + "\n\n" + para("b", 900) + "\n\n" + para("c", 900),
			[]string{"", ""},
			[]string{para("b", 900), para("c", 900)},
		},
		{"a small rest", document.Text, para("a", 1900) + "\n\n" + para("b", 200), []string{""}, nil},
		{"code stays together", document.Markdown, "# A\n\n" + para("a", 1200) + "\n\n" + code + "\n\n" +
			para("b", 1200), []string{"A", "A", "A"}, []string{code}},
		{
			"headings in code are none", document.Markdown, "# yes\n```\n# no\n````\n~~~\n# no\n",
			[]string{"yes"},
			[]string{"```\n# no\n````"},
		},
		{
			"rows stay whole", document.Markdown, "| a | b |\n|---|---|\n" + row + "\n" + row + "\n" + row,
			[]string{"", "", ""},
			[]string{row},
		},
		{
			"a line of code stays whole", document.Code, para("x", 2500) + "\n" + para("y", 2500),
			[]string{"", ""},
			[]string{para("x", 2500), para("y", 2500)},
		},
		{
			"columns of a table", document.Table, "name,age\n" + strings.Repeat("somebody,42\n", 300),
			[]string{"name,age", "name,age"},
			nil,
		},
		{
			"sentences", document.Text, para("This is a sentence.", 5000),
			[]string{"", "", ""},
			[]string{"This is a sentence."},
		},
		{
			"front matter is no heading", document.Markdown, "---\n# comment\ntitle: x\n---\n# A\ntext",
			[]string{""},
			[]string{"---\n# comment\ntitle: x\n---"},
		},
		{"a line across is no front matter", document.Markdown, "---\n\n# A\ntext", []string{""}, nil},
		{"trick: a word without end", document.Text, strings.Repeat("x", 9000), []string{"", "", "", "", ""}, nil},
		{
			"a long word fits", document.Text, para("a", 500) + " " + strings.Repeat("x", 3000) + " " + para("b", 500),
			[]string{"", ""},
			[]string{strings.Repeat("x", 3000)},
		},
		{
			"trick: a heading without end", document.Markdown, "# " + para("x", 9000) + "\ntext",
			[]string{clipped("x"), clipped("x"), clipped("x"), clipped("x"), clipped("x")},
			nil,
		},
		{
			"trick: a fence without end", document.Markdown, "```\n" + strings.Repeat("code\n", 2000),
			[]string{"", "", "", "", ""},
			nil,
		},
		{"trick: blanks without end", document.Text, strings.Repeat(" ", 9000) + "x" + strings.Repeat("\u3000", 5000) +
			"y", []string{""}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pieces := document.Pieces(document.Doc{Kind: tt.kind, Text: tt.text})
			var headings []string
			for _, p := range pieces {
				headings = append(headings, p.Heading)
			}
			if !slices.Equal(headings, tt.headings) {
				t.Errorf("headings %q, want %q", headings, tt.headings)
			}
			for _, h := range tt.holds {
				if !slices.ContainsFunc(pieces, func(p document.Piece) bool { return strings.Contains(p.Text, h) }) {
					t.Errorf("%.60q... is in no piece as a whole", h)
				}
			}
			whole(t, tt.text, pieces)
		})
	}
}

// clipped is how a long heading of one word stands in a way.
func clipped(word string) string { return strings.Repeat(word+" ", 60) + "..." }

// whole reports what is wrong with pieces whatever the text is.
func whole(t interface{ Errorf(string, ...any) }, text string, pieces []document.Piece) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	var all strings.Builder
	lines := map[string]bool{}
	for i, p := range pieces {
		if len(p.Text) > document.MaxPiece || strings.TrimSpace(p.Text) == "" || !utf8.ValidString(p.Text) ||
			!utf8.ValidString(p.Heading) || len(p.Heading) > 400 {
			t.Errorf("piece %d of %d bytes under %q: %.80q", i, len(p.Text), p.Heading, p.Text)
		}
		all.WriteString(p.Text)
		for l := range strings.SplitSeq(p.Text, "\n") {
			lines[strings.TrimSpace(l)] = true
		}
	}
	for l := range strings.SplitSeq(text, "\n") {
		if l = strings.TrimSpace(l); l != "" && len(l) <= 2000 && !lines[l] {
			t.Errorf("the line %.80q is in no piece", l)
		}
	}
	words := map[string]int{}
	for _, p := range pieces {
		for w := range strings.FieldsSeq(p.Text) {
			words[w]++
		}
	}
	for w := range strings.FieldsSeq(text) {
		// where these are, a sentence ends
		if words[w]--; words[w] < 0 && len(w) <= 2000 && !strings.ContainsAny(w, "。！？") {
			t.Errorf("the word %.80q is broken", w)
		}
	}
	if solid(all.String()) != solid(text) {
		t.Errorf("the pieces of %.200q do not hold it: %.200q", text, all.String())
	}
}

// solid is s without what is blank.
func solid(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

var kinds = []string{document.Markdown, document.Text, document.Code, document.Table, document.HTML, document.PDF}

// Whatever the document, nothing of it is lost or doubled, and what is not too long for a piece is not broken.
func TestPiecesHoldEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 40).Draw(r, "lines") {
			begin := rapid.SampledFrom([]string{
				"", "", "", "# ", "## ", "###### ", "```", "~~~~", "| ", "- ", "    ",
				"===", "---", "> ",
			}).Draw(r, "begin")
			word := rapid.SampledFrom([]string{"a", "word", "größer", "漢字。", "e\u0301\u0302", "👩\u200d🚀", "x. "}).
				Draw(r, "word")
			b.WriteString(begin + strings.Repeat(word+rapid.SampledFrom([]string{" ", ""}).Draw(r, "between"),
				rapid.SampledFrom([]int{0, 1, 3, 80, 700, 2500}).Draw(r, "times")) + "\n")
		}
		kind := rapid.SampledFrom(kinds).Draw(r, "kind")
		pieces := document.Pieces(document.Doc{Kind: kind, Text: b.String()})
		whole(r, b.String(), pieces)
		for _, p := range pieces {
			if first, _ := utf8.DecodeRuneInString(p.Text); unicode.Is(unicode.M, first) || first == '\u200d' {
				r.Errorf("a letter is broken: %.20q", p.Text)
			}
		}
	})
}

// Most pieces of a real text have the size that they should have.
func TestPiecesSize(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "%s %d.\n\n", para("A sentence of some words that says nothing.", 100+(i*37)%500), i)
	}
	pieces := document.Pieces(document.Doc{Kind: document.Text, Text: b.String()})
	good := 0
	for _, p := range pieces {
		if len(p.Text) >= 1200 && len(p.Text) <= 2000 {
			good++
		}
	}
	if 10*good < 9*len(pieces) {
		t.Errorf("%d of %d pieces have a good size", good, len(pieces))
	}
}

func FuzzPieces(f *testing.F) {
	for _, s := range []string{
		"", "# A\n\ntext\n## B\n```\ncode\n```\n", "A\n===\nB\n---\n| a |\n|---|\n| b |", "---\ntitle: x\n---\n",
		"\xff\xfe\x00", "````\n```\n# x\n", "#\n##\n# #\n",
		"a. b! c? 漢字。漢字", "e\u0301\u0301\u0301\u200d", "\u2028\u00a0\u3000\v\f\r\n", "~~~ ~~~\n\t```", "-\n--\n-",
	} {
		for i := range kinds {
			f.Add(s, uint8(i), uint16(1))
		}
		f.Add(s, uint8(0), uint16(1500))
	}
	f.Fuzz(func(t *testing.T, s string, kind uint8, times uint16) {
		s = s[:min(len(s), 2000)]
		if len(s) > 0 {
			s = strings.Repeat(s, 1+min(int(times), 12000/len(s)))
		}
		pieces := document.Pieces(document.Doc{Kind: kinds[int(kind)%len(kinds)], Text: s})
		whole(t, s, pieces)
	})
}
