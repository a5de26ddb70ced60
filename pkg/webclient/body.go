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

// ratioFrom is the size from which on a body may not be too many times what came over the wire. Below it a ratio says
// nothing: a small page of blanks is no bomb.
const ratioFrom = 64 << 10

// Types of pages, as [Page.Type] names them.
const (
	HTML     = "html"
	Text     = "text"
	Markdown = "markdown"
	JSON     = "json"
	XML      = "xml"
)

// types are the content types that are read, and how.
var types = map[string]string{
	"text/html": HTML, "application/xhtml+xml": HTML,
	"text/plain": Text, "text/markdown": Markdown, "text/x-markdown": Markdown, "application/json": JSON,
	"application/xml": XML, "text/xml": XML, "application/rss+xml": XML, "application/atom+xml": XML,
}

// kind is how the header says that the body is to be read. A page that says it twice, or not at all, is none.
func kind(h http.Header) (kind, full string, err error) {
	values := h.Values("Content-Type")
	if len(values) != 1 {
		return "", "", ErrType
	}
	mt, _, err := mime.ParseMediaType(values[0])
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return "", "", ErrType
	}
	if kind = types[mt]; kind == "" {
		return "", "", ErrType
	}
	return kind, values[0], nil
}

// agrees reports whether the first bytes look like what the header says. Text may look like HTML: many a plain file
// begins with a tag.
func agrees(kind string, body []byte) bool {
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

// wire counts what comes over the wire and ends it where it becomes too much. Each piece that comes shows that the other
// side is alive.
type wire struct {
	r     io.Reader
	n     int64
	most  int64
	alive func()
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.n += int64(n)
	if n > 0 {
		w.alive()
	}
	if w.n > w.most {
		return n, ErrLarge
	}
	return n, err
}

// unpack reads a body as its encoding says. One encoding, and only what was asked for: whoever sends another one anyway,
// or several, is not read.
func unpack(encoding []string, in *wire, most int64, ratio int64) ([]byte, error) {
	var r io.Reader = in
	var err error
	switch e := strings.ToLower(strings.TrimSpace(strings.Join(encoding, ","))); e {
	case "", "identity":
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(in)
	case "deflate":
		r, err = inflate(in)
	default:
		return nil, ErrEncoding
	}
	if err != nil {
		return nil, broken(err)
	}
	var out bytes.Buffer
	piece := make([]byte, 16<<10)
	for {
		n, err := r.Read(piece)
		out.Write(piece[:n])
		size := int64(out.Len())
		if size > most || size > ratioFrom && size > in.n*ratio {
			return nil, ErrLarge
		}
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, broken(err)
		}
	}
}

// inflate reads deflate with its header, as it should come, or without, as it often does.
func inflate(in io.Reader) (io.Reader, error) {
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

// broken tells an encoding that is wrong from a connection that ended.
func broken(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.As(err, &corrupt), errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, zlib.ErrHeader),
		errors.Is(err, zlib.ErrChecksum), errors.Is(err, zlib.ErrDictionary):
		return ErrEncoding
	}
	return err
}

// decode is the body as UTF-8. What says no charset is read as browsers do. JSON has but one.
func decode(kind, contentType string, body []byte) string {
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
