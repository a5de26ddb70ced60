package webclient

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
)

// minRatioBytes is the size from which on a body may not be too many times what came over the wire. Below it a ratio
// says nothing: a small page of blanks is no bomb.
const minRatioBytes = 64 << 10

// Types of pages, as [Page.Type] names them.
const (
	HTML     = "html"
	Text     = "text"
	Markdown = "markdown"
	JSON     = "json"
	XML      = "xml"
)

// readableTypes are the content types that are read, and how.
var readableTypes = map[string]string{
	"text/html": HTML, "application/xhtml+xml": HTML,
	"text/plain": Text, "text/markdown": Markdown, "text/x-markdown": Markdown, "application/json": JSON,
	"application/xml": XML, "text/xml": XML, "application/rss+xml": XML, "application/atom+xml": XML,
}

// contentKind returns how the Content-Type header says that the body is to be read, and the whole header. It rejects a
// missing or repeated header and every type that is not in readableTypes with [ErrType].
func contentKind(h http.Header) (kind, full string, err error) {
	values := h.Values("Content-Type")
	if len(values) != 1 {
		return "", "", ErrType
	}
	mt, _, err := mime.ParseMediaType(values[0])
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return "", "", ErrType
	}
	if kind = readableTypes[mt]; kind == "" {
		return "", "", ErrType
	}
	return kind, values[0], nil
}

// matchesSniffed reports whether the first bytes look like what the header says (kind). Text may look like HTML: many
// plain files begin with a tag. An empty body always matches, binary data never does.
func matchesSniffed(kind string, body []byte) bool {
	sniffed, _, err := mime.ParseMediaType(http.DetectContentType(body))
	if err != nil {
		return false
	}
	switch sniffed {
	case "text/plain":
		return true
	case "text/xml":
		return kind != JSON
	case "text/html":
		return kind != JSON && kind != XML
	}
	return len(bytes.TrimSpace(body)) == 0
}

// meteredReader counts the bytes of a response and fails with ErrLarge beyond limit. onData is called for every read
// that returned bytes.
type meteredReader struct {
	r      io.Reader
	read   int64
	limit  int64
	onData func()
}

// Read implements [io.Reader]. It counts the bytes and calls onData for each arrival; beyond limit it fails with
// [ErrLarge].
func (w *meteredReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.read += int64(n)
	if n > 0 {
		w.onData()
	}
	if w.read > w.limit {
		return n, ErrLarge
	}
	return n, err
}

// readBody decodes the content encoding. It rejects several encodings and any but gzip and deflate with [ErrEncoding],
// and with [ErrLarge] a body of more than most decoded bytes, or one that grows by more than ratio beyond
// minRatioBytes.
func readBody(encoding []string, in *meteredReader, most int64, ratio int64) ([]byte, error) {
	var r io.Reader = in
	var err error
	switch e := strings.ToLower(strings.TrimSpace(strings.Join(encoding, ","))); e {
	case "", "identity":
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(in)
	case "deflate":
		r, err = newDeflateReader(in)
	default:
		return nil, ErrEncoding
	}
	if err != nil {
		return nil, classifyDecodeError(err)
	}
	var out bytes.Buffer
	piece := make([]byte, 16<<10)
	for {
		n, err := r.Read(piece)
		out.Write(piece[:n])
		size := int64(out.Len())
		if size > most || size > minRatioBytes && size > in.read*ratio {
			return nil, ErrLarge
		}
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, classifyDecodeError(err)
		}
	}
}

// newDeflateReader reads deflate with its zlib header, as it should come, or without, as it often does. It fails for
// less than two bytes.
func newDeflateReader(in io.Reader) (io.Reader, error) {
	b := bufio.NewReader(in)
	head, err := b.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// classifyDecodeError returns ErrEncoding for corrupt data, and other errors unchanged.
func classifyDecodeError(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.As(err, &corrupt), errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err,
		zlib.ErrHeader),
		errors.Is(err, zlib.ErrChecksum), errors.Is(err, zlib.ErrDictionary):
		return ErrEncoding
	}
	return err
}

// decodeCharset returns the body as UTF-8 without a byte order mark; it never fails, invalid bytes become U+FFFD. A
// body without a charset is read as browsers do; JSON is always UTF-8. contentType is the whole header.
func decodeCharset(kind, contentType string, body []byte) string {
	if kind != JSON {
		e, _, _ := charset.DetermineEncoding(body, contentType)
		if plain, err := e.NewDecoder().Bytes(body); err == nil {
			body = plain
		}
	}
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	if utf8.Valid(body) {
		return string(body)
	}
	return strings.ToValidUTF8(string(body), "\ufffd")
}
