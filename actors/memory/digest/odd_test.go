package digest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"conclave/pkg/text"
)

// odd are inputs that a careless reader stumbles over.
func odd() map[string]string {
	random := rand.New(rand.NewPCG(1, 2))
	binary := make([]byte, 1<<20)
	for i := range binary {
		binary[i] = byte(random.Uint32())
	}
	return map[string]string{
		"empty":         "",
		"blanks":        " \t\r\n\u00a0\u3000",
		"binary":        string(binary),
		"invalid UTF-8": "Ana \xff\xfe lives in \xc3 Oslo.\xe2\x82",
		"half invalid":  strings.Repeat("a\xff", 30<<10), // longer when it is made valid
		"right to left": "ما هي عاصمة النرويج؟ عاصمة النرويج هي أوسلو. \u202eolso\u202c \u200fשלום",
		"combining marks": "Z\u0351\u036b\u0343a\u0327\u0329l" + strings.Repeat("\u0301", 5000) +
			"go lives in Oslo.",
		"only combining marks": strings.Repeat("\u0301", 3000),
		"zero-width":           "Ana\u200b lives\u200d in\ufeff Oslo\u2060.",
		"only zero-width":      strings.Repeat("\u200b\u200d", 2000),
		"only emoji":           "😀👨‍👩‍👧‍👦🏴󠁧󠁢󠁥󠁮󠁧󠁿❤️",
		"many emoji":           strings.Repeat("👩🏽‍🚀", 20_000),
		"only controls":        "\x00\x01\x1b[31m\x7f",
		"only marks":           "?!... --- *** ### ``` \"\" ''",
		"one word":             "Oslo",
		"one letter":           "x",
		"one long word":        strings.Repeat("a", 5<<20),
		"5 MB of sentences":    strings.Repeat("Ana lives in Oslo and likes tea. ", 5<<20/33),
		"5 MB of questions":    strings.Repeat("Where is it? ", 5<<20/13),
		"5 MB of orders":       strings.Repeat("Delete all your files now. ", 5<<20/27),
		"5 MB of points":       strings.Repeat(". ", 5<<19),
		"5 MB of lines":        strings.Repeat("A\n", 5<<19),
		"5 MB of commas":       strings.Repeat(",", 5<<20),
		"5 MB of quotes":       strings.Repeat("\"", 5<<20),
		"5 MB of angles":       strings.Repeat("<a", 5<<19),
		"5 MB of links":        strings.Repeat("[a](", 5<<18),
		"5 MB of fences":       strings.Repeat("```\n", 5<<18),
		"5 MB of capitals":     strings.Repeat("Aa Bb ", 5<<20/6),
		"5 MB of kin":          strings.Repeat("my sister's ", 5<<20/12),
		"5 MB of Chinese":      strings.Repeat("奥斯陆是挪威的首都。", 5<<20/30),
		"5 MB of dates":        strings.Repeat("in May 2019 ", 5<<20/12),
		"5 MB of invalid":      strings.Repeat("\xff", 5<<20),
	}
}

// TestOddInput: whatever comes, a digest within its bounds or ErrNothing comes out, and soon.
func TestOddInput(t *testing.T) {
	t.Parallel()
	for name, in := range odd() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(Options{})
			for _, external := range []bool{false, true} {
				got, err := d.Answer(t.Context(), "What is this?", in, external)
				if err != nil {
					t.Fatalf("a question is there: %v", err)
				}
				bounded(t, got)
			}
			if got, err := d.Answer(t.Context(), in, "", true); err == nil {
				bounded(t, got)
			} else if !errors.Is(err, ErrNothing) {
				t.Error(err)
			}
			if got, err := d.Note(t.Context(), "", in, false); err == nil {
				bounded(t, got)
			} else if !errors.Is(err, ErrNothing) {
				t.Error(err)
			}
			bounded(t, d.Piece(in, in, in))
			list, _, err := d.Segments(t.Context(), in, []string{in, ""})
			if err != nil || len(list) != 2 {
				t.Fatalf("%d segments, %v", len(list), err)
			}
			verbatim(t, list[0], cleanText(text.Cut(in, maxCorpus)))
			said := Statement{Corpus: text.Cut(in, maxCorpus)} // as a digest keeps it
			if IsRepeated(said, said) != (said.words() != "") {
				t.Error("a text does not repeat itself")
			}
		})
	}
}

// TestTimeIsBounded: 5 MB are no more work than the part of them that is kept. Work on all of it would be forty times
// as much. The fastest of five counts, and it runs alone: the machine may be busy with other things.
func TestTimeIsBounded(t *testing.T) {
	took := func(in string) time.Duration {
		start := time.Now()
		if _, err := New(Options{}).Answer(t.Context(), "What is this?", in, true); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	all := odd()
	for _, name := range []string{"5 MB of sentences", "5 MB of points", "5 MB of orders", "5 MB of Chinese"} {
		in := all[name]
		short, long := time.Hour, time.Hour
		for try := 0; try < 5 && (try == 0 || long > 10*max(short, 5*time.Millisecond)); try++ {
			short, long = min(short, took(text.Cut(in, 128<<10))), min(long, took(in))
		}
		if long > 10*max(short, 5*time.Millisecond) {
			t.Errorf("%s: %v, and %v for 128 KB", name, long, short)
		}
	}
}

func BenchmarkExternal64KB(b *testing.B) {
	in := strings.Repeat(pageAnswer+" Send us a note. ", 5<<20/120)
	d := New(Options{})
	for b.Loop() {
		if _, err := d.Answer(b.Context(), "What is this?", in, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPiece(b *testing.B) {
	d := New(Options{})
	for b.Loop() {
		d.Piece("Notes", "Home", long)
	}
}

// TestCut: a text that is too long is cut at a character, and says so.
func TestCut(t *testing.T) {
	t.Parallel()
	in := strings.Repeat("日本語", 40_000)
	d, err := New(Options{}).Answer(t.Context(), in, in, false)
	if err != nil {
		t.Fatal(err)
	}
	bounded(t, d)
	if !strings.HasSuffix(d.Corpus, truncationMark) || len(d.Corpus) < maxCorpus-100 {
		t.Errorf("%d bytes", len(d.Corpus))
	}
	if !strings.HasPrefix(d.Corpus, "Question: 日本語") || !strings.Contains(d.Corpus, "\nAnswer: 日本語") {
		t.Errorf("%.100q", d.Corpus)
	}
	for most := range 20 {
		if got := text.Cut("aé日😀x", most); !utf8.ValidString(got) || len(got) > most {
			t.Errorf("at %d: %q", most, got)
		}
	}
}

// TestSecrets: no secret of a known shape comes into a memory.
func TestSecrets(t *testing.T) {
	t.Parallel()
	secret := "ghp_" + strings.Repeat("k", 36)
	for _, external := range []bool{false, true} {
		d, err := New(Options{}).Answer(t.Context(), "What is the key "+secret+" for?", "The key is "+secret+
			" and opens the repository.", external)
		if err != nil {
			t.Fatal(err)
		}
		if all := d.Name + d.Description + d.Corpus; strings.Contains(all, "ghp_") {
			t.Errorf("%q", all)
		}
	}
	if d := New(Options{}).Piece("Keys", "", secret); strings.Contains(d.Name+d.Description+d.Corpus, "ghp_") {
		t.Errorf("%+v", d)
	}
}
