package ollama

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

const (
	maxLine      = 16 << 20 // bytes of one line of a streamed reply
	maxReply     = 64 << 20 // bytes of a reply that is not streamed; a thousand vectors of 4096 numbers fit
	maxErrorBody = 64 << 10 // bytes of an error's body that are read
)

// requestHeader is the header of every request. Nothing changes it: a transport must not modify a request.
//
// The key without a value is not sent. It marks a POST as idempotent for net/http, which then retries when an idle
// connection turns out to be closed. No request of this package does harm when the server receives it twice.
var requestHeader = http.Header{
	"Content-Type":    {"application/json"},
	"Accept":          {"application/x-ndjson"},
	"User-Agent":      {"conclave"},
	"Idempotency-Key": nil,
}

// post sends body as JSON and returns the response when its status is 200; the caller must close it. Any other status,
// redirects included, is an error. name is the requested model.
func (b *Backend) post(ctx context.Context, path, name string, body any) (*http.Response, error) {
	encoded, err := encodeJSON(body)
	if err != nil {
		return nil, fmt.Errorf("encoding the request to %s: %w", b.url, err)
	}
	return b.send(ctx, http.MethodPost, path, name, encoded)
}

// send sends a request to a path of the API, without a body when body is nil, and returns the response when its status
// is 200; the caller must close it. Any other status, redirects included, is an error: see [Backend.serverError]. name
// is the requested model, "" = none.
func (b *Backend) send(ctx context.Context, method, path, name string, body []byte) (*http.Response, error) {
	resp, err := b.roundTrip(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && ctx.Err() != nil {
		return nil, b.readError(ctx, err)
	}
	var reply struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(raw, &reply) != nil {
		reply.Error = "" // not an Ollama server
	}
	return nil, b.serverError(resp.StatusCode, reply.Error, name)
}

// roundTrip sends a request and returns the response, whatever its status; the caller must close it. It follows no
// redirect. No response is an error: see [Backend.connectionError].
func (b *Backend) roundTrip(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("requesting %s: %w", b.url, err)
	}
	req.Header = requestHeader
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return nil, b.connectionError(ctx, err)
	}
	return resp, nil
}

// decodeReply reads resp, at most [maxReply] bytes, into the value that into points to, and closes it. A longer reply
// and one that is not the expected JSON are [model.ErrMalformed].
func (b *Backend) decodeReply(ctx context.Context, resp *http.Response, into any) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return b.readError(ctx, err)
	}
	if len(body) > maxReply {
		return fmt.Errorf("%w: the reply of %s is longer than %d MB", model.ErrMalformed, b.url, maxReply>>20)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%w: %s sent an invalid reply: %q", model.ErrMalformed, b.url,
			text.OneLine(string(body), maxQuotedBytes))
	}
	return nil
}

// encodeJSON encodes v without escaping <, > and &, which would only lengthen prompts.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

var errLongLine = fmt.Errorf("a line of the reply is longer than %d MB", maxLine>>20)

// lineReader splits a reply into lines.
type lineReader struct {
	r     *bufio.Reader
	ended *endReader
}

func newLineReader(r io.Reader) lineReader {
	ended := &endReader{Reader: r}
	return lineReader{bufio.NewReaderSize(ended, 1<<10), ended} // net/http has a larger buffer below it
}

// endReader knows whether its reader has reached the end, or failed.
type endReader struct {
	io.Reader
	ended bool
}

// Read implements [io.Reader].
func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	e.ended = e.ended || err != nil
	return n, err
}

// readLine returns the next line that is not blank, without surrounding space. The last line needs no terminator when
// the reply is complete; of a reply that broke off it is dropped. The end of the reply is [io.EOF], a line of more than
// [maxLine] bytes is errLongLine. The result is valid until the next call.
func (l lineReader) readLine() ([]byte, error) {
	var begin []byte // of a line that is longer than the buffer
	for {
		line, err := l.r.ReadSlice('\n')
		if len(begin)+len(line) > maxLine {
			return nil, errLongLine
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			begin = append(begin, line...)
			continue
		}
		if len(begin) > 0 {
			line = append(begin, line...)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 {
			return trimmed, nil
		}
		if err != nil {
			return nil, err
		}
		begin = nil
	}
}
