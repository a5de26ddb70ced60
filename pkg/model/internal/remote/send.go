package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Send sends one request with a JSON body, or none when in is nil. What it returns has status 200, and its body is
// bounded.
func (c *Client) Send(ctx context.Context, method, address string, in []byte, a Asked) (*http.Response, *Call, error) {
	kctx, call, err := c.Begin(ctx)
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
		return nil, nil, call.Failed(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, call, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostRead))
	if err != nil && len(text) == 0 {
		return nil, nil, call.Failed(ctx, err)
	}
	return nil, nil, call.Refused(resp.StatusCode, Message(text), a)
}

// Ask is like Send and decodes a JSON answer into out.
func (c *Client) Ask(ctx context.Context, method, address string, in []byte, out any, a Asked) error {
	resp, call, err := c.Send(ctx, method, address, in, a)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return call.Failed(ctx, err)
	}
	if json.Unmarshal(body, out) != nil {
		return call.Unreadable("answers with something that is not the JSON expected")
	}
	return nil
}
