package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// Asked is what was asked for, as far as an error depends on it.
type Asked struct {
	Model string
	Tools bool
	Think bool
}

// Of tells what r asked for.
func Of(r model.Request) Asked {
	return Asked{Model: r.Model, Tools: len(r.Tools) > 0, Think: r.Think != nil && *r.Think}
}

// Refused is the error for an HTTP status, or for an error event in mid-stream, where status is the nearest one. text is
// what the server said; it is shown without the key, and cut.
func (c *Call) Refused(status int, text string, a Asked) error {
	said := c.Clean(text)
	host := c.client.Host()
	// Some servers give every error the same status: what they say is then the better witness.
	low := strings.ToLower(text)
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, has(low, badKey):
		return fmt.Errorf("%w: %s says %q; check the key that is set for it", model.ErrUnauthorized, host, said)
	case status == http.StatusRequestEntityTooLarge, has(low, tooLong):
		return fmt.Errorf("%w: %s says %q", model.ErrTooLong, host, said)
	case a.Tools && has(low, noTools):
		return fmt.Errorf("%w: %s says %q of %s", model.ErrNoTools, host, said, a.Model)
	case a.Think && has(low, noThinking):
		return fmt.Errorf("%w: %s says %q of %s", model.ErrNoThinking, host, said, a.Model)
	case status == http.StatusNotFound, has(low, missing):
		return fmt.Errorf("%w: %s says %q of %s; check the model's name and the server's address",
			model.ErrMissing, host, said, a.Model)
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == 529:
		return fmt.Errorf("%w: %s says %q", model.ErrBusy, host, said)
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return fmt.Errorf("%w: what stands before %s says %q", model.ErrUnreachable, host, said)
	case status >= 500 && has(low, malformed):
		return fmt.Errorf("%w: %s says %q", model.ErrMalformed, host, said)
	}
	return fmt.Errorf("%s answers with status %d: %q", host, status, said)
}

// What servers write, in lower case. The status alone does not tell these apart.
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
	missing   = []string{"model_not_found", "model not found", "no such model", "could not find model"}
	malformed = []string{"failed to parse", "error parsing tool call", "invalid tool call", "parse error"}
)

func has(text string, any []string) bool {
	for _, s := range any {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// Failed is the error for a request that got no whole response. err may be nil when the response merely ended too soon.
func (c *Call) Failed(ctx context.Context, err error) error {
	host := c.client.Host()
	if broken := c.Broken(); broken != nil {
		err = broken
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("asking %s: %w", host, ctx.Err())
	case errors.Is(err, errRedirect):
		return fmt.Errorf("%w at %s: %w; set its address to where it really is", model.ErrUnreachable, host, errRedirect)
	case errors.Is(err, errElsewhere):
		return fmt.Errorf("asking %s: %w", host, errElsewhere)
	case errors.Is(err, errTooBig):
		return fmt.Errorf("%w: %s sends more than %d bytes in one response", model.ErrMalformed, host, c.client.cfg.Limit)
	case c.Status() == 0:
		return fmt.Errorf("%w at %s: %s; is it running, and is its address right?", model.ErrUnreachable, host, c.Clean(plain(err)))
	}
	return fmt.Errorf("%w by %s: %s", model.ErrCut, host, c.Clean(plain(err)))
}

// Unreadable is the error for a response that does not follow the protocol. why must hold nothing of the response but
// what [Call.Clean] has seen.
func (c *Call) Unreadable(why string) error {
	return fmt.Errorf("%w: %s %s", model.ErrMalformed, c.client.Host(), why)
}

// Fault is the error for what a library makes of a response: that it broke off, where it did, and otherwise that it does
// not follow the protocol. The library's own words are left out; they may quote anything.
func (c *Call) Fault(ctx context.Context, err error) error {
	if ctx.Err() != nil || c.Broken() != nil || c.Status() == 0 {
		return c.Failed(ctx, err)
	}
	return c.Unreadable("sends something that does not follow its protocol")
}

// errPanic stands for what a library did not survive.
var errPanic = errors.New("the library gave up")

// Guarded runs a call into a library. Some panic over responses that are not as they expect; that becomes an error.
func Guarded(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return f()
}

// plain leaves out the address that net/http puts before its errors: we name the host ourselves.
func plain(err error) string {
	if err == nil {
		return "the response ended too soon"
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err.Error()
	}
	return err.Error()
}

const (
	mostSaid = 500 // bytes of a server's text that an error shows
	mostRead = 64 << 10
	shared   = 8 // bytes in a row that a text may not share with the key
)

// Clean returns a server's text for use in an error: without the key or a long enough piece of it, in valid UTF-8, on
// one line, and cut.
func (c *Call) Clean(said string) string {
	if len(said) > mostRead {
		said = said[:mostRead]
	}
	if c.key != "" {
		said = mask(said, c.key)
		said = mask(said, url.QueryEscape(c.key))
		said = mask(said, base64.StdEncoding.EncodeToString([]byte(c.key)))
	}
	return text.OneLine(said, mostSaid)
}

// mask replaces each piece of text that is also a piece of key and at least [shared] bytes long: servers like to quote a
// key in part.
func mask(text, key string) string {
	least := min(shared, len(key))
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

// Message finds what a user can read in the body of an error: {"error": {"message": ...}}, {"error": "..."},
// {"message": ...} or {"detail": ...}, with the type and code beside it. Anything else is returned as it is.
func Message(body []byte) string {
	type said struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Status  string          `json:"status"`
		Code    json.RawMessage `json:"code"`
	}
	var whole struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &whole) != nil {
		return string(body)
	}
	var inner said
	var text string
	switch {
	case json.Unmarshal(whole.Error, &text) == nil && text != "":
		return text
	case json.Unmarshal(whole.Error, &inner) == nil && (inner.Message != "" || inner.Type != ""):
		var code string
		_ = json.Unmarshal(inner.Code, &code) // a number says no more than the status does
		return strings.TrimSpace(strings.Join([]string{inner.Message, inner.Type, inner.Status, code}, " "))
	case whole.Message != "":
		return whole.Message
	case json.Unmarshal(whole.Detail, &text) == nil && text != "":
		return text
	}
	return string(body)
}
