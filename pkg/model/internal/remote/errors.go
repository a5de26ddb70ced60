package remote

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// RequestInfo holds the parts of a request that decide how an error status is classified.
type RequestInfo struct {
	Model string
	Tools bool
	Think bool
}

// InfoOf returns the [RequestInfo] of r.
func InfoOf(r model.Request) RequestInfo {
	return RequestInfo{Model: r.Model, Tools: len(r.Tools) > 0, Think: r.Think != nil && *r.Think}
}

// StatusError classifies an HTTP error status as one of the sentinel errors of package model, or as none of them if it
// is unknown. text is the server's message; it is quoted redacted and truncated. Known phrases in it win over most
// statuses, because some servers use one status for every error. Missing tools or thinking are recognized only if the
// request asked for them.
func (c *Call) StatusError(status int, text string) error {
	a := c.info
	said := c.Redact(text)
	host := c.client.Host()
	low := strings.ToLower(text)
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, containsAny(low, badKey):
		return fmt.Errorf("%w: %s rejected the key: %q; check the key configured for it", model.ErrUnauthorized, host,
			said)
	case status == http.StatusRequestEntityTooLarge, containsAny(low, tooLong):
		return fmt.Errorf("%w: %s says %q", model.ErrTooLong, host, said)
	case a.Tools && containsAny(low, noTools):
		return fmt.Errorf("%w: %s says %q of %s", model.ErrNoTools, host, said, a.Model)
	case a.Think && containsAny(low, noThinking):
		return fmt.Errorf("%w: %s says %q of %s", model.ErrNoThinking, host, said, a.Model)
	case status == http.StatusNotFound, containsAny(low, missing):
		return fmt.Errorf("%w: %s says %q of %s; check the model's name and the server's address",
			model.ErrMissing, host, said, a.Model)
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == 529:
		return fmt.Errorf("%w: %s says %q", model.ErrBusy, host, said)
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return fmt.Errorf("%w: the proxy in front of %s responded %q", model.ErrUnreachable, host, said)
	case containsAny(low, badSchema):
		return fmt.Errorf("%w: %s says %q of the JSON schema", model.ErrUnsupported, host, said)
	case status >= 500 && containsAny(low, malformed):
		return fmt.Errorf("%w: %s says %q", model.ErrMalformed, host, said)
	}
	return fmt.Errorf("%s responded with status %d: %q", host, status, said)
}

// Phrases of server messages, in lower case, for errors that the status alone does not identify.
var (
	badKey  = []string{"invalid_api_key", "api key not valid", "api_key_invalid", "authentication_error"}
	tooLong = []string{
		"context length", "context_length", "context size", "context window", "maximum context", "exceed_context",
		"prompt is too long", "input is too long", "exceed context limit", "maximum model length", "input token count",
	}
	noTools = []string{
		"not support tool", "not support function", "tools are not supported", "tool use is not supported",
		"function calling is not", "requires --jinja", "--enable-auto-tool-choice", "tool calling is not",
	}
	noThinking = []string{
		"not support thinking", "thinking is not supported", "not support reasoning", "reasoning is not supported",
		"thinking_config is not", "not support setting thinking", "unsupported thinking",
	}
	badSchema = []string{"failed to parse grammar", "schema conversion failed", "grammar error"}
	missing   = []string{"model_not_found", "model not found", "no such model", "could not find model"}
	malformed = []string{"failed to parse", "error parsing tool call", "invalid tool call", "parse error"}
)

// errorStatus is the HTTP status of an error type that arrives in a stream, after status 200.
var errorStatus = map[string]int{
	"invalid_request_error": http.StatusBadRequest,
	"authentication_error":  http.StatusUnauthorized,
	"permission_error":      http.StatusForbidden,
	"billing_error":         http.StatusForbidden,
	"not_found_error":       http.StatusNotFound,
	"rate_limit_error":      http.StatusTooManyRequests,
	"rate_limit_exceeded":   http.StatusTooManyRequests,
	"overloaded_error":      http.StatusServiceUnavailable,
	"unavailable_error":     http.StatusServiceUnavailable,
	"timeout_error":         http.StatusGatewayTimeout,
}

// EventError returns the error that a response of status 200 reports in its field "error", nil for none. The status by
// which it is classified is the code of the error if that is one of 400 to 599, else that of its type, else 500.
func (c *Call) EventError(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var e struct {
		Code json.RawMessage `json:"code"`
		Type string          `json:"type"`
	}
	_ = json.Unmarshal(raw, &e) // it may be a text
	status, err := strconv.Atoi(strings.Trim(string(e.Code), `"`))
	if err != nil || status < 400 || status > 599 {
		status = errorStatus[e.Type]
	}
	return c.StatusError(cmp.Or(status, http.StatusInternalServerError), errorText(raw))
}

func containsAny(text string, all []string) bool {
	return slices.ContainsFunc(all, func(s string) bool { return strings.Contains(text, s) })
}

// TransportError returns the error for a request without a complete response: that of ctx if it ended,
// [model.ErrUnreachable] when no response began, [model.ErrMalformed] when it is too large, [model.ErrCut] when it
// broke off. err may be nil when the response ended early.
func (c *Call) TransportError(ctx context.Context, err error) error {
	host := c.client.Host()
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("asking %s: %w", host, ctx.Err())
	case tooLarge:
		return fmt.Errorf("%w: %s sends more than %d bytes in one response", model.ErrMalformed, host,
			c.client.cfg.Limit)
	case !c.answered:
		return fmt.Errorf("%w at %s: %s; is it running, and is its address right?", model.ErrUnreachable, host,
			c.Redact(transportMessage(err)))
	}
	return fmt.Errorf("%w by %s: %s", model.ErrCut, host, c.Redact(transportMessage(err)))
}

// ProtocolError returns the error for a response that violates the protocol. why must not contain response text that
// has not passed [Call.Redact].
func (c *Call) ProtocolError(why string) error {
	return fmt.Errorf("%w: %s %s", model.ErrMalformed, c.client.Host(), why)
}

// transportMessage returns err without the URL that net/http puts in front of it.
func transportMessage(err error) string {
	if err == nil {
		return "the response ended too soon"
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err.Error()
	}
	return err.Error()
}

const (
	maxMessageBytes = 500 // bytes of a server's message that an error quotes
	maxScannedBytes = 64 << 10
	minKeyPiece     = 8 // shortest run of key bytes that is masked
)

// Redact returns a server's message for use in an error: the key and pieces of it masked, plain, URL-escaped and
// base64; valid UTF-8, one line, at most maxMessageBytes.
func (c *Call) Redact(said string) string {
	if len(said) > maxScannedBytes {
		said = said[:maxScannedBytes]
	}
	if c.key != "" {
		said = maskKey(said, c.key)
		said = maskKey(said, url.QueryEscape(c.key))
		said = maskKey(said, base64.StdEncoding.EncodeToString([]byte(c.key)))
	}
	return text.OneLine(said, maxMessageBytes)
}

// maskKey replaces each substring of text that is also a substring of key, not empty, and at least [minKeyPiece] bytes
// long (or all of a shorter key), because servers quote keys in part.
func maskKey(text, key string) string {
	least := min(minKeyPiece, len(key))
	var out strings.Builder
	for i := 0; i < len(text); {
		n := least
		if i+n > len(text) || !strings.Contains(key, text[i:i+n]) {
			out.WriteByte(text[i])
			i++
			continue
		}
		for i+n < len(text) && strings.Contains(key, text[i:i+n+1]) {
			n++
		}
		out.WriteString("[key]")
		i += n
	}
	return out.String()
}

// ErrorMessage extracts the message from an error body: {"error": {"message": ...}}, {"error": "..."}, {"message": ...}
// or {"detail": ...}, with the type and code appended. Any other body is returned unchanged.
func ErrorMessage(body []byte) string {
	var whole struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &whole) != nil {
		return string(body)
	}
	var detail string
	_ = json.Unmarshal(whole.Detail, &detail) // it may be an object
	return cmp.Or(errorText(whole.Error), whole.Message, detail, string(body))
}

// errorText returns the message in an error, which is a text or an object; any other value is returned as it is.
func errorText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var e struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Status  string          `json:"status"`
		Code    json.RawMessage `json:"code"`
	}
	if json.Unmarshal(raw, &e) != nil || e.Message == "" && e.Type == "" {
		return string(raw)
	}
	_ = json.Unmarshal(e.Code, &text) // a numeric code repeats the status
	return strings.TrimSpace(strings.Join([]string{e.Message, e.Type, e.Status, text}, " "))
}
