package document_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"conclave/pkg/document"
	"conclave/pkg/programtest"
)

func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// utf16le is s with a mark before it.
func utf16le(s string) string {
	b := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return string(b)
}

func utf16be(s string) string {
	b := []byte{0xfe, 0xff}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u>>8), byte(u))
	}
	return string(b)
}

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		name, file, content string
		kind, title, text   string
		note                string
	}{
		{
			"markdown", "a.md", "# The title #\n\nText.\n", document.Markdown, "The title", "# The title #\n\nText.\n",
			"",
		},
		{
			"a title in the front matter", "b.md", "---\ntitle: \"Given\"\n---\n# Other\n", document.Markdown, "Given",
			"---\ntitle: \"Given\"\n---\n# Other\n", "",
		},
		{"an underlined title", "c.MD", "Under\n=====\ntext", document.Markdown, "Under", "Under\n=====\ntext", ""},
		{
			"a heading of code is none", "d.md", "```\n# no\n```\n# Yes\n", document.Markdown, "Yes",
			"```\n# no\n```\n# Yes\n", "",
		},
		{"without a heading", "e.md", "only text", document.Markdown, "e", "only text", ""},
		{"plain text", "notes.txt", "one\ntwo", document.Text, "notes", "one\ntwo", ""},
		{"no extension", "README", "one", document.Text, "README", "one", ""},
		{"only an extension", ".profile", "one", document.Text, ".profile", "one", ""},
		{"code", "x.go", "package x\n", document.Code, "x", "package x\n", ""},
		{"a table", "x.csv", "a,b\n1,2\n", document.Table, "x", "a,b\n1,2\n", ""},
		{"HTML by its name", "p.html", "<title>Page</title><body><p>Hello <b>you</b></p><script>x</script><p " +
			"style='display:none'>ignore all</p>", document.HTML, "Page", "Hello **you**", "1 parts that nobody sees"},
		{"HTML by its look", "page", " <!DOCTYPE HTML><title>P</title><p>Hi</p>", document.HTML, "P", "Hi", ""},
		{
			"HTML that says its encoding", "q.htm", "<meta charset=koi8-r><p>\xf0\xd2\xc9\xd7\xc5\xd4</p>",
			document.HTML,
			"q", "Привет", "",
		},
		{
			"text that begins like a page, by its name", "r.txt", "<html> is a tag", document.Text, "r",
			"<html> is a tag",
			"",
		},
		{"CRLF", "crlf.txt", "a\r\nb\rc\r\n", document.Text, "crlf", "a\nb\nc\n", ""},
		{"a mark", "bom.txt", "\xef\xbb\xbfText", document.Text, "bom", "Text", ""},
		{"UTF-16, little end first", "le.txt", utf16le("Grüße 𝄞\r\n"), document.Text, "le", "Grüße 𝄞\n", ""},
		{"UTF-16, big end first", "be.md", utf16be("# Grüße"), document.Markdown, "Grüße", "# Grüße", ""},
		{
			"Windows-1252", "w.txt", "Gr\xfc\xdfe aus K\xf6ln, wie immer \x96 na ja", document.Text, "w",
			"Grüße aus Köln, wie immer – na ja", "read as Windows-1252",
		},
		{
			"UTF-8 with a broken byte", "broken.txt", "Grüße aus Köln, wie i\xffmmer", document.Text, "broken",
			"Grüße aus Köln, wie i\uFFFDmmer", "1 bytes of invalid UTF-8",
		},
		{
			"controls", "esc.log", "a\x1b[2Jb\x07\fnext page\u2028line", document.Text, "esc",
			"a[2Jb\n\nnext page\nline",
			"",
		},
		{
			"a title that steers", "t.md", "# Clear \x1b[2J\u202escreen\n", document.Markdown, "Clear [2J screen",
			"# Clear [2J\u202escreen\n", "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := write(t, dir, tt.file, tt.content)
			when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
			d, err := document.Read(t.Context(), path, document.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if d.Kind != tt.kind || d.Title != tt.title || d.Text != tt.text || !d.Modified.Equal(when) ||
				len(d.Hash) != 64 {
				t.Errorf("%+v", d)
			}
			if notes := strings.Join(d.Notes, "; "); (tt.note == "") != (notes == "") ||
				!strings.Contains(notes, tt.note) {
				t.Errorf("notes: %q", notes)
			}
		})
	}
}

func TestReadHash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hash := func(name, content string) string {
		d, err := document.Read(t.Context(), write(t, dir, name, content), document.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d.Hash
	}
	if hash("a.txt", "same\r\n") != hash("b.txt", "\xef\xbb\xbfsame\n") {
		t.Error("the same text has two hashes")
	}
	if hash("a.txt", "same") == hash("b.txt", "Same") {
		t.Error("two texts have one hash")
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	russian := "\xf0\xd2\xc9\xd7\xc5\xd4 \xcd\xc9\xd2, \xcb\xc1\xcb \xc4\xc5\xcc\xc1"
	for _, tt := range []struct {
		name, path string
		o          document.Options
		is         error
		says       string
	}{
		{"not there", filepath.Join(dir, "nothing"), document.Options{}, fs.ErrNotExist, "not found"},
		{"a folder", dir, document.Options{}, nil, "is a folder"},
		{"trick: a pipe that nobody writes to", pipe, document.Options{}, nil, "not a regular file"},
		{"trick: a device without end", "/dev/zero", document.Options{}, nil, "not a regular file"},
		{"empty", write(t, dir, "empty", ""), document.Options{}, document.ErrEmpty, "no text"},
		{"blank", write(t, dir, "blank.md", " \r\n\t\n\ufeff"), document.Options{}, document.ErrEmpty, "no text"},
		{
			"a page without words", write(t, dir, "blank.html", "<script>x</script>"),
			document.Options{},
			document.ErrEmpty, "no text",
		},
		{
			"too large", write(t, dir, "large", strings.Repeat("x", 11)),
			document.Options{MaxBytes: 10},
			document.ErrTooLarge, "more than 10 bytes; split it",
		},
		{"zeros", write(t, dir, "zero.txt", "text\x00text"), document.Options{}, document.ErrNotText, "zero bytes"},
		{
			"trick: zeros in UTF-16", write(t, dir, "zero16.txt", utf16le("text\x00")),
			document.Options{},
			document.ErrNotText, "zero bytes",
		},
		{
			"trick: UTF-32", write(t, dir, "utf32.txt", "\xff\xfe\x00\x00a\x00\x00\x00"),
			document.Options{},
			document.ErrNotText, "zero bytes",
		},
		{
			"controls", write(t, dir, "ctl.txt", strings.Repeat("\x01\x02ab", 20)),
			document.Options{},
			document.ErrNotText, "control characters",
		},
		{
			"an unknown encoding", write(t, dir, "koi8.txt", russian),
			document.Options{},
			document.ErrNotText,
			"save it as UTF-8",
		},
		{
			"trick: a picture called text", write(t, dir, "p.txt", "\x89PNG\r\n\x1a\n"),
			document.Options{},
			document.ErrNotText, "a picture",
		},
		{
			"an office document", write(t, dir, "a.docx", "PK\x03\x04abc"),
			document.Options{},
			document.ErrNotText,
			"save it as PDF or text",
		},
		{
			"trick: an archive called page", write(t, dir, "a.html", "PK\x03\x04\xff\xfe\xfd"),
			document.Options{},
			document.ErrNotText, "zip",
		},
		{"compressed", write(t, dir, "a.txt.gz", "\x1f\x8b\x08"), document.Options{}, document.ErrNotText, "unpack it"},
		{
			"PDF without a reader", write(t, dir, "a.pdf", "%PDF-1.4\n"),
			document.Options{PDFToText: filepath.Join(dir, "gone")},
			document.ErrNoPDFReader, "install poppler-utils",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, err := document.Read(t.Context(), tt.path, tt.o)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) ||
				strings.Contains(err.Error(), dir) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func TestReadStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := document.Read(ctx, write(t, t.TempDir(), "a", "a"), document.Options{}); !errors.Is(err,
		context.Canceled) {
		t.Error(err)
	}
}

// requirePDFReader skips a test on a machine without the program that reads PDF, and fails it in CI.
func requirePDFReader(t *testing.T) {
	t.Helper()
	programtest.Require(t, "apt-get install poppler-utils", "pdftotext")
}

// makePDF is a PDF with a page for each text, written by hand.
func makePDF(pages ...string) string {
	var b strings.Builder
	var at []int
	object := func(format string, v ...any) {
		at = append(at, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(at), fmt.Sprintf(format, v...))
	}
	b.WriteString("%PDF-1.4\n")
	object("<< /Type /Catalog /Pages 2 0 R >>")
	var kids []string
	for i := range pages {
		kids = append(kids, fmt.Sprintf("%d 0 R", 4+2*i))
	}
	object("<< /Type /Pages /Kids [%s] /Count %d >>", strings.Join(kids, " "), len(pages))
	object("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
	for i, p := range pages {
		object("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "+
			"/Contents %d 0 R >>", 5+2*i)
		stream := ""
		if p != "" {
			stream = fmt.Sprintf("BT /F1 24 Tf 72 700 Td (%s) Tj ET", p)
		}
		object("<< /Length %d >>\nstream\n%s\nendstream", len(stream), stream)
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, n := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", n)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, start)
	return b.String()
}

func TestReadPDF(t *testing.T) {
	t.Parallel()
	requirePDFReader(t)
	dir := t.TempDir()
	for _, tt := range []struct{ name, file string }{
		{"by its name", "report.pdf"},
		{"by its look", "report.txt"},
		{"trick: a name that is an option", "-opw.pdf"},
		{"trick: a name with the shell in it", "a; touch b $(touch c) 'd.pdf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, err := document.Read(t.Context(), write(t, dir, tt.file, makePDF("The first page", "The second page")),
				document.Options{})
			if err != nil || d.Kind != document.PDF ||
				strings.Join(strings.Fields(d.Text), " ") != "The first page The second page" {
				t.Fatalf("%+v, %v", d, err)
			}
			if p := document.Pieces(d); len(p) != 1 || !strings.Contains(p[0].Text, "page\n\nThe second") {
				t.Errorf("pages are not apart: %q", p)
			}
		})
	}
	for _, tt := range []struct {
		name, content string
		o             document.Options
		is            error
		says          string
	}{
		{"pages that are pictures", makePDF(""), document.Options{}, document.ErrEmpty, "ocrmypdf"},
		{"trick: a PDF in name only", "%PDF-1.4\nnothing", document.Options{}, document.ErrPDF, "pdftotext: "},
		{
			"trick: a page that never ends", makePDF(strings.Repeat("words ", 500)),
			document.Options{MaxBytes: 2000},
			document.ErrTooLarge, "split it",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := strings.Map(func(r rune) rune {
				if r == ' ' || r == ':' {
					return '_'
				}
				return r
			}, tt.name) + ".pdf"
			if _, err := document.Read(t.Context(), write(t, t.TempDir(), file, tt.content), tt.o); !errors.Is(err,
				tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Error(err)
			}
		})
	}
}

// program writes a script that can be run. Nobody forks meanwhile: the child would hold the file open for writing, and
// what is written cannot be run.
func program(t *testing.T, dir, script string) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	path := write(t, dir, "reader", "#!/bin/sh\n"+script+"\n")
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPDFProgram is about a program that does not behave: it is another in its place.
func TestPDFProgram(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		o            document.Options
		is           error
		says         string // the path is at the place of PATH
	}{
		{
			"trick: it hangs", "exec sleep 60",
			document.Options{PDFTime: 50 * time.Millisecond},
			document.ErrPDF,
			"timeout after 50ms",
		},
		{
			"trick: it writes without end", "while :; do echo words words words words; done",
			document.Options{MaxBytes: 20000},
			document.ErrTooLarge, "more than 20000 bytes of text",
		},
		{"trick: it complains without end", "i=0; while [ $i -lt 3000 ]; do echo 'Syntax Error: bad' >&2; " +
			"i=$((i+1)); done; exit 1", document.Options{}, document.ErrPDF, "pdftotext: Syntax Error"},
		{
			"trick: it complains with controls", `printf 'a\033[2Jb' >&2; exit 1`,
			document.Options{},
			document.ErrPDF,
			"pdftotext: a [2Jb",
		},
		{
			"a password", "echo 'Command Line Error: Incorrect password' >&2; exit 1",
			document.Options{},
			document.ErrPDF,
			"needs a password",
		},
		{"no permission", "exit 3", document.Options{}, document.ErrPDF, "does not permit"},
		{"it fails silently", "exit 99", document.Options{}, document.ErrPDF, "exit status 99"},
		{"trick: it writes what is no text", `printf 'ok \377\376 end'`, document.Options{}, nil, "ok \uFFFD end"},
		{"it gets nothing of our environment", `echo "home=$HOME ci=$CI"`, document.Options{}, nil, "home= ci="},
		{"it gets an absolute path", `echo "$@"`, document.Options{}, nil, "-enc UTF-8 -eol unix PATH -"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			tt.o.PDFToText = program(t, work, tt.script)
			path := write(t, work, "a.pdf", "%PDF-1.4\n")
			tt.says = strings.ReplaceAll(tt.says, "PATH", path)
			d, err := document.Read(t.Context(), path, tt.o)
			if tt.is != nil {
				if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 300 {
					t.Errorf("%q, %v", d.Text, err)
				}
				return
			}
			if err != nil || !strings.Contains(d.Text, tt.says) {
				t.Errorf("%q, %v", d.Text, err)
			}
		})
	}
}
