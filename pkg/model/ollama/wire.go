package ollama

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"conclave/pkg/model"
)

// Bounds of what is kept. A line of a reply is at most maxLine; larger buffers are not kept for the next request.
const (
	maxLine   = 16 << 20
	keptBytes = 256 << 10
)

var errLine = errors.New("a line of the reply is longer than 16 MB")

// lines reads a reply line by line from a buffer that grows as it must.
type lines struct {
	r          io.Reader
	buf        []byte
	start, end int
	err        error // of the reader
}

var linesPool = sync.Pool{New: func() any { return &lines{buf: make([]byte, 8<<10)} }}

func newLines(r io.Reader) *lines {
	l := linesPool.Get().(*lines)
	l.r, l.start, l.end, l.err = r, 0, 0, nil
	return l
}

// free gives the buffer back. What next returned is gone.
func (l *lines) free() {
	l.r = nil
	if cap(l.buf) <= keptBytes {
		linesPool.Put(l)
	}
}

// next returns the next line that is not blank. It is valid until the next call. The end is io.EOF.
func (l *lines) next() ([]byte, error) {
	from := l.start
	for {
		if i := bytes.IndexByte(l.buf[from:l.end], '\n'); i >= 0 {
			line := bytes.TrimSpace(l.buf[l.start : from+i])
			l.start = from + i + 1
			from = l.start
			if len(line) > 0 {
				return line, nil
			}
			continue
		}
		from = l.end
		if l.err != nil {
			return l.rest()
		}
		if l.end-l.start >= maxLine {
			return nil, errLine
		}
		from -= l.makeRoom()
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		l.err = err
	}
}

// rest is what stands after the last line end. Servers that do not stream send none.
func (l *lines) rest() ([]byte, error) {
	line := bytes.TrimSpace(l.buf[l.start:l.end])
	l.start = l.end
	if len(line) > 0 && l.err == io.EOF {
		return line, nil
	}
	return nil, l.err
}

// makeRoom moves what is unread to the front, and grows the buffer when it is full. It returns how far it moved.
func (l *lines) makeRoom() int {
	moved := l.start
	if l.start > 0 {
		copy(l.buf, l.buf[l.start:l.end])
		l.start, l.end = 0, l.end-l.start
	}
	if l.end == len(l.buf) {
		bigger := make([]byte, 2*len(l.buf))
		copy(bigger, l.buf)
		l.buf = bigger
	}
	return moved
}

// drain reads the end of a reply, so that the connection can be used again. A server that goes on after it is done, or
// does not hang up, loses the connection instead.
func (l *lines) drain(body io.Closer) {
	if l.err != nil {
		return
	}
	late := time.AfterFunc(250*time.Millisecond, func() { _ = body.Close() })
	defer late.Stop()
	for range 4 {
		if _, l.err = l.r.Read(l.buf); l.err != nil {
			return
		}
	}
}

// outgoing is a request's body. net/http sends head and body in one write only from readers that it knows, and those do
// not say when they are done with: the transport may go on reading after the reply is there. So the hook for written
// requests says it, and a buffer that may still be read is left to the collector.
type outgoing struct {
	buf    []byte
	reader bytes.Reader
	body   io.ReadCloser // over reader
	trace  httptrace.ClientTrace
	wrote  atomic.Bool
	again  atomic.Bool // the transport wanted the body once more
}

var outgoingPool = sync.Pool{New: func() any {
	o := &outgoing{buf: make([]byte, 0, 4<<10)}
	o.body = io.NopCloser(&o.reader)
	o.trace.WroteRequest = func(httptrace.WroteRequestInfo) { o.wrote.Store(true) }
	return o
}}

func newOutgoing() *outgoing {
	o := outgoingPool.Get().(*outgoing)
	o.buf = o.buf[:0]
	o.wrote.Store(false)
	o.again.Store(false)
	return o
}

// request returns a copy of prepared that sends the buffer.
func (o *outgoing) request(ctx context.Context, prepared *http.Request) *http.Request {
	req := prepared.WithContext(httptrace.WithClientTrace(ctx, &o.trace))
	o.reader.Reset(o.buf)
	req.Body, req.ContentLength, req.GetBody = o.body, int64(len(o.buf)), o.rewind
	return req
}

func (o *outgoing) rewind() (io.ReadCloser, error) {
	o.again.Store(true)
	return io.NopCloser(bytes.NewReader(o.buf)), nil
}

// free gives the buffer back if nobody reads it any more.
func (o *outgoing) free() {
	if o.wrote.Load() && !o.again.Load() && cap(o.buf) <= keptBytes {
		outgoingPool.Put(o)
	}
}

// appendChat writes the body of a chat. truncate and shift are off: a prompt that is too long is to fail, and not to lose
// its beginning.
func (b *Backend) appendChat(dst []byte, r model.Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, r.Model)
	dst = append(dst, `,"messages":[`...)
	for i := range r.Messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendMessage(dst, &r.Messages[i])
	}
	dst = append(dst, `],"stream":`...)
	dst = strconv.AppendBool(dst, r.Stream)
	if len(r.Tools) > 0 {
		dst = append(dst, `,"tools":[`...)
		for i := range r.Tools {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendTool(dst, &r.Tools[i])
		}
		dst = append(dst, ']')
	}
	if len(r.Format) > 0 {
		dst = append(append(dst, `,"format":`...), r.Format...)
	}
	if r.Think != nil {
		dst = strconv.AppendBool(append(dst, `,"think":`...), *r.Think)
	}
	dst = b.appendKeepAlive(dst, r.Options.KeepAlive)
	dst = append(dst, `,"truncate":false,"shift":false,"options":`...)
	return append(b.appendOptions(dst, r.Options), '}')
}

func (b *Backend) appendOptions(dst []byte, o model.Options) []byte {
	if o.Window == 0 {
		o.Window = b.cfg.Window
	}
	if o.Predict == 0 {
		o.Predict = b.cfg.Predict
	}
	dst = strconv.AppendInt(append(dst, `{"num_ctx":`...), int64(o.Window), 10)
	dst = strconv.AppendInt(append(dst, `,"num_predict":`...), int64(o.Predict), 10)
	if o.Temperature != nil {
		dst = strconv.AppendFloat(append(dst, `,"temperature":`...), *o.Temperature, 'g', -1, 64)
	}
	if o.Seed != nil {
		dst = strconv.AppendInt(append(dst, `,"seed":`...), int64(*o.Seed), 10)
	}
	if len(o.Stop) > 0 {
		dst = appendStrings(append(dst, `,"stop":`...), o.Stop)
	}
	return append(dst, '}')
}

// appendKeepAlive writes a number as a number: the server takes no "-1".
func (b *Backend) appendKeepAlive(dst []byte, s string) []byte {
	if s == "" {
		s = b.cfg.KeepAlive
	}
	if s == "" {
		return dst
	}
	dst = append(dst, `,"keep_alive":`...)
	if n, err := strconv.Atoi(s); err == nil {
		return strconv.AppendInt(dst, int64(n), 10)
	}
	return appendString(dst, s)
}

func appendMessage(dst []byte, m *model.Message) []byte {
	dst = appendString(append(dst, `{"role":`...), m.Role)
	dst = appendString(append(dst, `,"content":`...), m.Content)
	if m.Thinking != "" {
		dst = appendString(append(dst, `,"thinking":`...), m.Thinking)
	}
	if len(m.Calls) > 0 {
		dst = append(dst, `,"tool_calls":[`...)
		for i := range m.Calls {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCall(dst, &m.Calls[i], i)
		}
		dst = append(dst, ']')
	}
	if m.ToolName != "" {
		dst = appendString(append(dst, `,"tool_name":`...), m.ToolName)
	}
	if m.CallID != "" {
		dst = appendString(append(dst, `,"tool_call_id":`...), m.CallID)
	}
	return append(dst, '}')
}

// appendCall writes a call's arguments as the model wrote them. What is no JSON object becomes an empty one: the server
// would refuse the whole conversation for it, from now on.
func appendCall(dst []byte, c *model.Call, i int) []byte {
	dst = append(dst, '{')
	if c.ID != "" {
		dst = append(appendString(append(dst, `"id":`...), c.ID), ',')
	}
	dst = strconv.AppendInt(append(dst, `"function":{"index":`...), int64(i), 10)
	dst = appendString(append(dst, `,"name":`...), c.Name)
	dst = append(dst, `,"arguments":`...)
	if args := bytes.TrimSpace(c.Arguments); len(args) > 0 && args[0] == '{' && json.Valid(args) {
		dst = append(dst, args...)
	} else {
		dst = append(dst, `{}`...)
	}
	return append(dst, `}}`...)
}

func appendTool(dst []byte, t *model.Tool) []byte {
	dst = appendString(append(dst, `{"type":"function","function":{"name":`...), t.Name)
	dst = appendString(append(dst, `,"description":`...), t.Description)
	dst = append(dst, `,"parameters":`...)
	if len(t.Parameters) == 0 {
		dst = append(dst, `{"type":"object","properties":{}}`...)
	} else {
		dst = append(dst, t.Parameters...)
	}
	return append(dst, `}}`...)
}

func appendStrings(dst []byte, all []string) []byte {
	dst = append(dst, '[')
	for i, s := range all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}

// plainWord reports whether eight bytes need no escape. It may say no where they need none, next to one that does.
func plainWord(s string) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	quote, slash := x^ones*'"', x^ones*'\\'
	return (x|(x-ones*' ')|(quote-ones)&^quote|(slash-ones)&^slash)&highs == 0
}

const hex = "0123456789abcdef"

// appendString writes s as JSON. Bytes that are no UTF-8 become U+FFFD, as encoding/json does.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		for i+8 <= len(s) && plainWord(s[i:i+8]) {
			i += 8
		}
		if i == len(s) {
			break
		}
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, size := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		dst = append(dst, s[from:i]...)
		switch {
		case c >= utf8.RuneSelf:
			dst = append(dst, "\uFFFD"...)
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}
