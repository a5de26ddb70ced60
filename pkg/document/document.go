// Package document reads files as text and splits the text into pieces that are small enough to be stored one by one.
// It reads Markdown, plain text in many forms, HTML, and PDF through the program pdftotext. Its errors say why a file
// cannot be read and do not name it: the caller knows the path.
package document

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/file"
	"conclave/pkg/text"
	"conclave/pkg/webclient/readable"
)

// Errors of [Read]. Each returned error wraps one of these and says what to do.
var (
	// ErrNotText means that the file holds something else than text.
	ErrNotText = errors.New("not a text file")
	// ErrTooLarge means that the file, or the text in it, is over the limit.
	ErrTooLarge = errors.New("too large")
	// ErrEmpty means that there is no text in the file.
	ErrEmpty = errors.New("no text in the file")
	// ErrNoPDFReader means that the program which reads PDF is not installed.
	ErrNoPDFReader = errors.New("pdftotext not found; install poppler-utils to read PDF")
	// ErrPDF means that the program could not make text of a PDF.
	ErrPDF = errors.New("reading PDF failed")
)

// MaxBytes is the default limit of a file, in bytes.
const MaxBytes = 20 << 20

// Kinds of documents.
const (
	Markdown = "markdown"
	Text     = "text"
	Code     = "code"  // its lines are not to be broken
	Table    = "table" // a row on each line, the first one names the columns
	HTML     = "html"  // its text is Markdown
	PDF      = "pdf"
)

// Options bound reading. The zero value uses the defaults.
type Options struct {
	MaxBytes  int64         // of the file, and of the text in it; 0 = [MaxBytes]
	PDFTime   time.Duration // how long pdftotext may take; 0 = a minute
	PDFToText string        // the program; "" = pdftotext, as found in PATH
}

// Doc is a file as text.
type Doc struct {
	Title    string
	Text     string // valid UTF-8, lines end with \n
	Kind     string
	Modified time.Time
	Hash     string   // of the text
	Notes    []string // for the user: what was left out or guessed
}

// maxTitle bounds a title, in bytes.
const maxTitle = 200

// Read reads the file at path and follows a link. It rejects folders, special files, binary files, files or text over
// o.MaxBytes (0 = [MaxBytes]), and with [ErrEmpty] those without text. Errors do not repeat the path. The title
// is the document's own, else the name of the file.
func Read(ctx context.Context, path string, o Options) (Doc, error) {
	o.MaxBytes = cmp.Or(o.MaxBytes, MaxBytes)
	if err := ctx.Err(); err != nil {
		return Doc{}, err
	}
	data, info, err := loadFile(path, o.MaxBytes)
	if err != nil {
		return Doc{}, err
	}
	d := Doc{Kind: kindOf(path, data), Modified: info.ModTime().UTC()}
	if err := d.extract(ctx, path, data, o); err != nil {
		return Doc{}, err
	}
	if d.Kind == Markdown {
		d.Title = markdownTitle(d.Text)
	}
	base := filepath.Base(path)
	d.Title = cmp.Or(text.OneLine(d.Title, maxTitle),
		text.OneLine(cmp.Or(strings.TrimSuffix(base, filepath.Ext(base)), base), maxTitle)) // .notes is a whole name
	return d, nil
}

// Load reads a regular file of at most most bytes, as [Read] does.
func Load(path string, most int64) ([]byte, error) {
	data, _, err := loadFile(path, most)
	return data, err
}

// Decode is [Read] for the content of a file whose name says nothing: only the content decides what it is. Title and
// Modified are those of the document itself, or zero.
func Decode(ctx context.Context, data []byte, o Options) (Doc, error) {
	o.MaxBytes = cmp.Or(o.MaxBytes, MaxBytes)
	switch {
	case int64(len(data)) > o.MaxBytes:
		return Doc{}, tooLargeError(o.MaxBytes)
	case len(data) == 0:
		return Doc{}, ErrEmpty
	}
	d := Doc{Kind: kindOf("", data)}
	path := ""
	if d.Kind == PDF { // pdftotext reads a file
		f, err := os.CreateTemp("", "conclave-*.pdf")
		if err != nil {
			return Doc{}, fmt.Errorf("storing the PDF for pdftotext: %w", readError(err))
		}
		path = f.Name()
		defer os.Remove(path)
		_, err = f.Write(data)
		if err = errors.Join(err, f.Close()); err != nil {
			return Doc{}, fmt.Errorf("storing the PDF for pdftotext: %w", readError(err))
		}
	}
	if err := d.extract(ctx, path, data, o); err != nil {
		return Doc{}, err
	}
	return d, nil
}

// extract sets text and hash of data, of the kind d.Kind. path is the file with the data of a PDF. It fails with
// [ErrEmpty] when there is no text.
func (d *Doc) extract(ctx context.Context, path string, data []byte, o Options) (err error) {
	switch d.Kind {
	case PDF:
		err = d.fromPDF(ctx, path, o)
	case HTML:
		err = d.fromHTML(data)
	default:
		err = d.fromText(data)
	}
	sum := sha256.Sum256([]byte(d.Text))
	d.Hash = hex.EncodeToString(sum[:])
	switch {
	case err != nil || strings.TrimSpace(d.Text) != "":
		return err
	case d.Kind == PDF:
		return fmt.Errorf("%w; if its pages are pictures, make text of them first (with ocrmypdf, say)", ErrEmpty)
	}
	return ErrEmpty
}

// loadFile reads a regular file of at most most bytes, see [file.Open]. It rejects folders, other files that are not
// regular, larger ones, and with [ErrEmpty] a file without bytes.
func loadFile(path string, most int64) ([]byte, fs.FileInfo, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, nil, errors.New("is a folder; name the files in it")
	}
	f, err := file.Open(path)
	if err != nil {
		return nil, nil, readError(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, readError(err)
	case info.Size() > most:
		return nil, nil, tooLargeError(most)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1)) // it may grow
	switch {
	case err != nil:
		return nil, nil, readError(err)
	case int64(len(data)) > most:
		return nil, nil, tooLargeError(most)
	case len(data) == 0:
		return nil, nil, ErrEmpty
	}
	return data, info, nil
}

// readError returns an error of the system without the path, which the caller knows. Errors that have no path are
// returned unchanged.
func readError(err error) error {
	if errors.Is(err, file.ErrNotRegular) {
		return file.ErrNotRegular
	}
	var p *fs.PathError
	if !errors.As(err, &p) {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("not found: %w", p.Err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("permission denied: %w", p.Err)
	}
	return fmt.Errorf("reading failed: %w", p.Err)
}

func tooLargeError(most int64) error {
	return fmt.Errorf("%w: more than %d bytes; split it", ErrTooLarge, most)
}

// byExtension is the kind by file extension. For others, kindOf reads the content.
var byExtension = map[string]string{
	".md": Markdown, ".markdown": Markdown, ".mdown": Markdown, ".mkd": Markdown, ".mdx": Markdown, ".rmd": Markdown,
	".qmd":  Markdown,
	".html": HTML, ".htm": HTML, ".xhtml": HTML,
	".csv": Table, ".tsv": Table,
	".txt": Text, ".text": Text, ".org": Text, ".rst": Text, ".adoc": Text, ".tex": Text, ".log": Text, ".srt": Text,
	".vtt": Text, ".eml": Text,
	".json": Code, ".jsonl": Code, ".ndjson": Code, ".yaml": Code, ".yml": Code, ".toml": Code, ".ini": Code,
	".conf": Code, ".xml": Code, ".sql": Code,
	".go": Code, ".py": Code, ".js": Code, ".ts": Code, ".tsx": Code, ".jsx": Code, ".rs": Code, ".c": Code, ".h": Code,
	".cc": Code, ".cpp": Code, ".hpp": Code,
	".java": Code, ".kt": Code, ".rb": Code, ".php": Code, ".sh": Code, ".bash": Code, ".zsh": Code, ".lua": Code,
	".swift": Code, ".scala": Code, ".cs": Code,
	".css": Code, ".scss": Code, ".proto": Code, ".tf": Code, ".nix": Code, ".hs": Code, ".ml": Code, ".ex": Code,
	".erl": Code, ".clj": Code, ".r": Code, ".pl": Code,
}

// kindOf decides by the signature of PDF, then by the extension, then by a beginning like that of HTML; else it is
// [Text].
func kindOf(path string, data []byte) string {
	if bytes.HasPrefix(data, []byte("%PDF-")) {
		return PDF
	}
	if kind, ok := byExtension[strings.ToLower(filepath.Ext(path))]; ok {
		return kind
	}
	head := bytes.ToLower(bytes.TrimSpace(data[:min(len(data), 512)]))
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	for _, begin := range []string{"<!doctype html", "<html", "<head", "<body"} {
		if bytes.HasPrefix(head, []byte(begin)) {
			return HTML
		}
	}
	return Text
}

// fromText decodes text as it is.
func (d *Doc) fromText(data []byte) error {
	s, notes, err := decodeText(data)
	if err != nil {
		return err
	}
	d.Text, d.Notes = normalizeLines(s), notes
	return nil
}

// maxPage is how many bytes of a page [readable.HTML] reads.
const maxPage = 1 << 20

// fromHTML sets title and text to what a user would see on a page, with notes on parts that were left out. Only the
// first maxPage bytes are read. It fails for data that is no text.
func (d *Doc) fromHTML(data []byte) error {
	s, notes, err := decodeHTML(data)
	if err != nil {
		return err
	}
	page := readable.HTML(s, "")
	d.Title, d.Text, d.Notes = page.Title, normalizeLines(page.Text), notes
	if len(s) > maxPage {
		d.Notes = append(d.Notes, fmt.Sprintf("only the first %d KB of the page were read; split it", maxPage>>10))
	}
	if n := page.Removed.Parts(); n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%d parts that nobody sees on the page were left out", n))
	}
	return nil
}

// normalizeLines makes line breaks uniform and drops control characters except tabs, and byte order marks. A page break
// becomes the end of a paragraph.
func normalizeLines(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r == '\r', r == '\v', r == '\u2028':
			return '\n'
		case r == '\ufeff', unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.ReplaceAll(strings.ReplaceAll(s, "\f", "\n\n"), "\u2029", "\n\n"))
}

// markdownTitle returns the title in the front matter, or the first heading of level 1; "" when there is neither.
func markdownTitle(s string) string {
	blocks := markdownBlocks(s)
	if len(blocks) > 0 && blocks[0].kind == frontMatter {
		for l := range strings.Lines(blocks[0].text) {
			if v, ok := strings.CutPrefix(l, "title:"); ok {
				if v = strings.Trim(strings.TrimSpace(v), `"'`); v != "" {
					return v
				}
			}
		}
	}
	for _, b := range blocks {
		if b.kind == heading && b.level == 1 && b.title != "" {
			return b.title
		}
	}
	return ""
}
