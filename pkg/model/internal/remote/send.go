package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Send sends one request with the JSON body in, or without a body if in is nil. address must be on the client's server.
// The response it returns has status 200 and a size-limited body, which the caller must close; any other status is an
// error: see [Call.StatusError], for which a describes the request. No response is a [Call.TransportError].
func (c *Client) Send(ctx context.Context, method, address string, in []byte, a RequestInfo) (*http.Response, *Call,
	error,
) {
	kctx, call, err := c.BeginCall(ctx)
	if err != nil {
		return nil, nil, err
	}
	var body io.Reader
	if in != nil {
		body = bytes.NewReader(in)
	}
	req, err := http.NewRequestWithContext(kctx, method, address, body)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, call.TransportError(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, call, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxScannedBytes))
	if err != nil && len(text) == 0 {
		return nil, nil, call.TransportError(ctx, err)
	}
	return nil, nil, call.StatusError(resp.StatusCode, ErrorMessage(text), a)
}

// SendJSON is like [Client.Send] and decodes the JSON response into out. A response that is not JSON of that form is a
// [Call.ProtocolError].
func (c *Client) SendJSON(ctx context.Context, method, address string, in []byte, out any, a RequestInfo) error {
	resp, call, err := c.Send(ctx, method, address, in, a)
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
