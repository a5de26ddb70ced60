package ollama

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// maxFault bounds what is read of an error's body.
const maxFault = 64 << 10

// do sends a request copied from one that was prepared. A reply that is no success becomes an error. name is the model's.
func (b *Backend) do(ctx context.Context, prepared *http.Request, name string, write func([]byte) []byte) (*http.Response, error) {
	var req *http.Request
	if write == nil {
		req = prepared.WithContext(ctx)
	} else {
		out := newOutgoing()
		defer out.free()
		out.buf = write(out.buf)
		req = out.request(ctx, prepared)
	}
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return nil, b.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxFault))
	if err != nil && ctx.Err() != nil {
		return nil, b.broken(ctx, err)
	}
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &said) != nil {
		said.Error = "" // a page of somebody else
	}
	return nil, b.fault(resp.StatusCode, said.Error, name)
}

// unreachable is an error before any reply.
func (b *Backend) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("asking %s: %w", b.url, ctx.Err())
	}
	var op *net.OpError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op) && op.Op != "dial":
		return fmt.Errorf("%w: %s closed the connection before it answered (%w)", model.ErrCut, b.url, err)
	case op != nil:
		return fmt.Errorf("%w: no connection to %s; start it with: ollama serve (%w)", model.ErrUnreachable, b.url, err)
	}
	return fmt.Errorf("%w: asking %s: %w", model.ErrUnreachable, b.url, err)
}

// broken is an error in the middle of a reply.
func (b *Backend) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("asking %s: %w", b.url, ctx.Err())
	case errors.Is(err, errLine):
		return fmt.Errorf("%w: %w", model.ErrMalformed, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s stopped without saying that it is done", model.ErrCut, b.url)
	}
	return fmt.Errorf("%w: lost %s in the middle of the reply: %w", model.ErrCut, b.url, err)
}

// mostSaid is how much of a server's own words stands in an error, in bytes.
const mostSaid = 300

// fault makes an error of what the server said. status 0 is an error in mid-stream. The text decides where the status
// does not: the server sends the same ones for many things.
func (b *Backend) fault(status int, said, name string) error {
	said = text.OneLine(said, mostSaid)
	low := strings.ToLower(said)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(low, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("does not support tools"):
		return fmt.Errorf("%w: %s (%s)", model.ErrNoTools, name, said)
	case has("does not support thinking"):
		return fmt.Errorf("%w: %s (%s)", model.ErrNoThinking, name, said)
	case has("does not support"):
		return fmt.Errorf("%w: %s: %s", model.ErrUnsupported, name, said)
	case has("exceeds the context", "exceeds maximum context", "exceed_context_size", "context size has been exceeded",
		"context length exceeded", "prompt too long", "prompt is too long"):
		return fmt.Errorf("%w: %s (%s)", model.ErrTooLong, name, said)
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests, has("server busy"):
		return fmt.Errorf("%w: %s; try again in a moment (%s)", model.ErrBusy, b.url, or(said, "it gave no reason"))
	case has("cloud is disabled", "cannot run this remote model"):
		return fmt.Errorf("%w: %s: %s", model.ErrRemote, name, said)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("%w: %s; for a cloud model: ollama signin (%s)", model.ErrUnauthorized, b.url, or(said, "it gave no reason"))
	case status == http.StatusNotFound && has("not found"), has("try pulling it first"),
		has("file does not exist") && has("pull model manifest"):
		return fmt.Errorf("%w: %s at %s; fetch it with: conclave model pull %s", model.ErrMissing, name, b.url, name)
	case said == "" && status != 0:
		return fmt.Errorf("%w: what answers at %s with HTTP %d is no Ollama server; check the address",
			model.ErrUnreachable, b.url, status)
	case (status == 0 || status >= 500) && has(unparsed...): // a 400 is about what we sent
		return fmt.Errorf("%w: %s", model.ErrMalformed, said)
	}
	return fmt.Errorf("the Ollama server at %s failed: %s", b.url, said)
}

// unparsed are the words of the server's parsers when a model writes a call they cannot read.
var unparsed = []string{
	"error parsing tool call", "failed to parse", "invalid tool call", "parsing tool call", "empty function name",
	"mismatched arg_key", "invalid function call", "invalid argument", "no tool call", "xml syntax error",
	"unexpected end of json", "invalid character", "unterminated string", "invalid format",
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
