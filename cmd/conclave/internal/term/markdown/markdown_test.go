package markdown_test

import (
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
)

// TestRender holds what each construct looks like without colours, at 40 columns.
func TestRender(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ source, want string }{
		"heading":       {"## Two words", "Two words"},
		"paragraph":     {"one **two** *three* `four`\nfive", "one two three four five"},
		"long line":     {strings.Repeat("word ", 12), "word word word word word word word word\nword word word word"},
		"link":          {"see [here](https://example.org)", "see here https://example.org"},
		"image":         {"![cat](http://x/y.png)", "[image: cat] http://x/y.png"},
		"list":          {"- a\n- b\n  - c", "• a\n• b\n  • c"},
		"numbers go on": {"3. c\n4. d", "3. c\n4. d"},
		"loose list":    {"1. a\n\n   more of a\n\n2. b", "1. a\n\n   more of a\n\n2. b"},
		"quote":         {"> so", "│ so"},
		"rule":          {"a\n\n---\n\nb", "a\n\n────────\n\nb"},
		"table":         {"| a | b |\n|---|---|\n| 1 | 22 |", " a │ b\n───┼────\n 1 │ 22"},
		"table of text": {
			"|a|b|\n|-|-:|\n|" + strings.Repeat("word ", 8) + "|1|",
			" a                                  │ b\n────────────────────────────────────┼───\n" +
				" word word word word word word word │ 1\n word                               │",
		},
		"table of words": {
			"|a|b|\n|-|-|\n|" + strings.Repeat("a", 20) + "|" + strings.Repeat("b", 20) + "|",
			"a: " + strings.Repeat("a", 20) + "\nb: " + strings.Repeat("b", 20),
		},
		"code":           {"```go\nif x {\n\ty()\n}\n```\nafter", "  if x {\n      y()\n  }\n\nafter"},
		"open fence":     {"```\nx := `1`", "  x := `1`"},
		"html is shown":  {"<b>bold</b> and `<i>`", "<b>bold</b> and <i>"},
		"html block":     {"<script>alert(1)</script>", "<script>alert(1)</script>"},
		"wide runes":     {strings.Repeat("漢字", 12), strings.Repeat("漢字", 10) + "\n" + strings.Repeat("漢字", 2)},
		"no entity":      {"a &amp; b &lt;c&gt;", "a & b <c>"},
		"escape":         {"a\x1b[31mb", "a\uFFFD[31mb"},
		"entity escape":  {"a&#27;[31mb &#x1b;1m", "a\uFFFD[31mb \uFFFD1m"},
		"bidi":           {"a\u202eb&#8238;c&rlm;d", "a\uFFFDb\uFFFDc\uFFFDd"},
		"entity in code": {"`&#27;[1m`", "&#27;[1m"},
		"line break":     {"a\\\nb \\*c\\*", "a\nb *c*"},
		"definition":     {"[1]: http://x", "[1]: http://x"},
		"code in a list": {"- a\n  ```\n  b\n\n  c\n  ```", "• a\n    b\n\n    c"},
		"long item": {
			"> - " + strings.Repeat("word ", 9),
			"│ • word word word word word word word\n│   word word",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(markdown.Format{Columns: 40}.RenderText(c.source), "\n"); got != c.want {
				t.Errorf("%q becomes\n%s\nwant\n%s", c.source, got, c.want)
			}
		})
	}
}

// TestStreamReturnsEachBlockOnce: however a text is cut into pieces, the blocks are the same.
func TestStreamReturnsEachBlockOnce(t *testing.T) {
	t.Parallel()
	const text = "# T\n\npara\nmore\n- x\n\n- y\n  z\n\n~~~\n```\ncode\n\n~~~\nend `a`\n```sh\nls"
	read := func(size int) (blocks []markdown.Block) {
		var s markdown.Stream
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			blocks = append(blocks, s.Write(rest[:n])...)
			rest = rest[n:]
		}
		return append(blocks, s.End()...)
	}
	want := read(len(text))
	if len(want) != 8 {
		t.Errorf("%d blocks: %+v", len(want), want)
	}
	for size := 1; size < 20; size++ {
		got := read(size)
		if len(got) != len(want) {
			t.Fatalf("in pieces of %d: %+v, want %+v", size, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("in pieces of %d: block %d is %+v, want %+v", size, i, got[i], want[i])
			}
		}
	}
}

// colour is the only sequence that rendered text contains.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// FuzzRender: no text brings anything but colours onto the terminal, and no line is too wide.
func FuzzRender(f *testing.F) {
	for _, s := range []string{
		"a\x1b]52;c;x\x07", "&#27;[2J", "| a |\n|---|\n| \x1b |", "- [x] &#x1b;",
		"<a href='&#27;'>", "[x](http://e/&#27;)", "```\n\x9b", "1. a\n\n    b\n\n2) c", "***\n__\n~~",
		"漢\u202e字\u200d",
	} {
		f.Add(s, 40)
	}
	f.Fuzz(func(t *testing.T, text string, columns int) {
		if len(text) > 4<<10 {
			return
		}
		columns = 20 + (columns%200+200)%200
		for _, l := range (markdown.Format{Columns: columns, Colour: true}).RenderText(text) {
			plain := colour.ReplaceAllString(l, "")
			if term.PlainText(plain) != plain || strings.Contains(plain, "\n") {
				t.Errorf("%q becomes %q", text, l)
			}
			if w := term.Width(plain); w > columns {
				t.Errorf("%q becomes a line of %d columns, more than %d: %q", text, w, columns, l)
			}
		}
	})
}
