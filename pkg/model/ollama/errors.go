package ollama

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// connectionError returns the error for a request without any response: that of ctx if it ended, [model.ErrCut] when
// the server closed the connection, [model.ErrUnreachable] otherwise.
func (b *Backend) connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("requesting %s: %w", b.url, ctx.Err())
	}
	var op *net.OpError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op) && op.Op != "dial":
		return fmt.Errorf("%w: %s closed the connection before the response (%w)", model.ErrCut, b.url, err)
	case op != nil:
		return fmt.Errorf("%w: no connection to %s; start it with: ollama serve (%w)", model.ErrUnreachable, b.url, err)
	}
	return fmt.Errorf("%w: requesting %s: %w", model.ErrUnreachable, b.url, err)
}

// readError returns the error for a response that broke off while it was read: that of ctx if it ended,
// [model.ErrMalformed] for a line that is too long, [model.ErrCut] otherwise. [io.EOF] means that it ended without its
// last chunk.
func (b *Backend) readError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("requesting %s: %w", b.url, ctx.Err())
	case errors.Is(err, errLongLine):
		return fmt.Errorf("%w: %w", model.ErrMalformed, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s ended the reply without the last chunk", model.ErrCut, b.url)
	}
	return fmt.Errorf("%w: lost the connection to %s during the reply: %w", model.ErrCut, b.url, err)
}

// maxQuotedBytes bounds how much of a server's message an error quotes, in bytes.
const maxQuotedBytes = 300

// serverError classifies an error that the server reports as one of the sentinel errors of package model, or as none of
// them if it is unknown, and quotes the message truncated to one line. status 0 is an error inside a stream; a status
// that is not known, without a message, means that it is no Ollama server. Known phrases win over most statuses,
// because the server uses one status for many errors. name is the requested model.
func (b *Backend) serverError(status int, message, name string) error {
	message = text.OneLine(message, maxQuotedBytes)
	reason := cmp.Or(message, "no reason given")
	low := strings.ToLower(message)
	has := func(phrases ...string) bool {
		return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(low, p) })
	}
	switch {
	case has("model runner has unexpectedly stopped", "llama runner process"):
		return fmt.Errorf("%w: %s at %s; its log has the reason, most often too little memory: a smaller model or "+
			"window needs less (%s)", model.ErrRunner, name, b.url, message)
	case has("invalid json schema"):
		return fmt.Errorf("%w: %s: %s", model.ErrUnsupported, name, message)
	case has("does not support tools"):
		return fmt.Errorf("%w: %s (%s)", model.ErrNoTools, name, message)
	case has("does not support thinking"):
		return fmt.Errorf("%w: %s (%s)", model.ErrNoThinking, name, message)
	case has("does not support"):
		return fmt.Errorf("%w: %s: %s", model.ErrUnsupported, name, message)
	case has("exceeds the context", "exceeds maximum context", "exceed_context_size", "context size has been exceeded",
		"context length exceeded", "prompt too long", "prompt is too long"):
		return fmt.Errorf("%w: %s (%s)", model.ErrTooLong, name, message)
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests, has("server busy"):
		return fmt.Errorf("%w: %s; try again in a moment (%s)", model.ErrBusy, b.url, reason)
	case has("cloud is disabled", "cannot run this remote model"):
		return fmt.Errorf("%w: %s: %s", model.ErrRemote, name, message)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("%w: %s; for a cloud model: ollama signin (%s)", model.ErrUnauthorized, b.url, reason)
	case status == http.StatusNotFound && has("not found"), has("try pulling it first"),
		has("file does not exist") && has("pull model manifest"):
		return fmt.Errorf("%w: %s at %s; fetch it with: conclave model pull %s", model.ErrMissing, name, b.url, name)
	case message == "" && status != 0:
		return fmt.Errorf("%w: the server at %s responds with HTTP %d and is not an Ollama server; check the address",
			model.ErrUnreachable, b.url, status)
	case (status == 0 || status >= 500) && has(parserErrors...): // a 400 is about the request
		return fmt.Errorf("%w: %s", model.ErrMalformed, message)
	}
	return fmt.Errorf("the Ollama server at %s failed: %s", b.url, message)
}

// parserErrors are the phrases of the server's parsers for a tool call of the model that they cannot parse, in lower
// case.
var parserErrors = []string{
	"error parsing tool call", "failed to parse", "invalid tool call", "parsing tool call", "empty function name",
	"mismatched arg_key", "invalid function call", "invalid argument", "no tool call", "xml syntax error",
	"unexpected end of json", "invalid character", "unterminated string", "invalid format",
}
