package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"conclave/pkg/model"
)

// Call is one request, for the errors that follow from its response.
type Call struct {
	client   *Client
	key      string
	info     RequestInfo
	answered bool // a response began
}

// Send sends one request: GET, or POST with the JSON body in if it is not nil. path is appended to the server's
// address and must begin with a slash. The response has status 200 and a body of limited size, which the caller must
// close; any other status is an error: see [Call.StatusError], for which info describes the request. A redirect is
// [model.ErrUnreachable], no response a [Call.TransportError]. The key is obtained for this request, which fails when
// there is none to be had or it has a line break or NUL. An empty key is not sent.
func (c *Client) Send(ctx context.Context, path string, in any, info RequestInfo) (*http.Response, *Call, error) {
	call := &Call{client: c, info: info}
	req, err := c.newRequest(ctx, path, in)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the request: %w", err)
	}
	if err := call.addKey(ctx, req); err != nil {
		return nil, nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, call.TransportError(ctx, err)
	}
	call.answered = true
	resp.Body = http.MaxBytesReader(nil, resp.Body, c.cfg.Limit)
	if resp.StatusCode == http.StatusOK {
		return resp, call, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return nil, nil, fmt.Errorf("%w at %s: it responded with a redirect, which is not followed because the key "+
			"would be sent along; set its address to where it really is", model.ErrUnreachable, c.Host())
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxScannedBytes))
	if err != nil && len(text) == 0 {
		return nil, nil, call.TransportError(ctx, err)
	}
	return nil, nil, call.StatusError(resp.StatusCode, ErrorMessage(text))
}

func (c *Client) newRequest(ctx context.Context, path string, in any) (*http.Request, error) {
	if !strings.HasPrefix(path, "/") { // it would become part of the host
		return nil, fmt.Errorf("path %q does not begin with a slash", path)
	}
	method, body := http.MethodGet, io.Reader(nil)
	if in != nil {
		data, err := encodeJSON(in)
		if err != nil {
			return nil, err
		}
		method, body = http.MethodPost, bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "conclave")
	for name, value := range c.cfg.Extra {
		req.Header.Set(name, value)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// addKey obtains the key and adds it to the request.
func (c *Call) addKey(ctx context.Context, req *http.Request) (err error) {
	cfg := c.client.cfg
	if cfg.Key == nil {
		return nil
	}
	if c.key, err = cfg.Key(ctx); err != nil {
		return fmt.Errorf("getting the key of %s: %w", c.client.Host(), err)
	}
	if strings.ContainsAny(c.key, "\r\n\x00") {
		return fmt.Errorf("the key of %s contains a line break: set it again", c.client.Host())
	}
	if c.key != "" {
		req.Header.Set(cfg.Header, cfg.Prefix+c.key)
	}
	return nil
}

// SendJSON is like [Client.Send] and decodes the JSON response into out. A response that is not JSON of that form is a
// [Call.ProtocolError].
func (c *Client) SendJSON(ctx context.Context, path string, in, out any, info RequestInfo) error {
	resp, call, err := c.Send(ctx, path, in, info)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return call.TransportError(ctx, err)
	}
	if json.Unmarshal(body, out) != nil {
		return call.ProtocolError("answers with something that is not the JSON expected")
	}
	return nil
}

// encodeJSON is [json.Marshal] without HTML escaping, because models read the text.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
