package tools

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"conclave/pkg/webclient"
)

// maxResponse bounds the response of a provider, in bytes.
const maxResponse = 1 << 20

// endpoint is the address of a provider. Its client connects to no other address, whatever a redirect, a proxy setting
// or a response says. The user configures it, so it may be on this machine.
type endpoint struct {
	base *url.URL
	http *http.Client
}

// parseEndpoint parses the address of a provider. It rejects other schemes than http and https, credentials, queries
// and fragments.
func parseEndpoint(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("is not an address of http or https")
	case u.User != nil:
		return nil, errors.New("holds a name or a password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("holds more than a host and a path")
	}
	return u, nil
}

// newEndpoint returns the endpoint at raw, whose client connects to that host alone, without proxy, redirects or
// compression. An invalid address gives an endpoint that connects nowhere.
func newEndpoint(raw string) endpoint {
	u, err := parseEndpoint(raw)
	if err != nil {
		u = &url.URL{}
	}
	host := dialAddress(u)
	dialer := net.Dialer{Timeout: 5 * time.Second}
	return endpoint{u, &http.Client{
		Transport: &http.Transport{
			Proxy: nil,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if address != host {
					return nil, errors.New("not the provider's address")
				}
				return dialer.DialContext(ctx, network, address)
			},
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    5 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // responses are small; no decompression bomb has to be handled
			DisableKeepAlives:      true, // searches are rare, and an idle connection would outlive its tool
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// dialAddress returns host and port of u.
func dialAddress(u *url.URL) string {
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return net.JoinHostPort(u.Hostname(), port)
}

// Reasons of a failed request. [providerFailure] makes the text.
var (
	errUnreachable = errors.New("no answer")
	errTimeout     = errors.New("too late")
	errTooLarge    = errors.New("too large")
)

// response is the response of a provider.
type response struct {
	status int
	kind   string // Content-Type
	body   []byte
}

// send sends one request to path below the endpoint: POST with payload as JSON, or GET when payload is nil. It writes
// to header, which must not be nil. Every status is a response; errors are errTooLarge for one beyond maxResponse
// bytes, and those of classifyError. Redirects are not followed.
func (e endpoint) send(ctx context.Context, path string, query url.Values, header http.Header, payload any) (response,
	error,
) {
	u := e.base.JoinPath(path)
	u.RawQuery = query.Encode()
	method, body := http.MethodGet, []byte(nil)
	if payload != nil {
		var err error
		if body, err = json.Marshal(payload); err != nil {
			return response{}, errUnreachable
		}
		method = http.MethodPost
		header.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return response{}, errUnreachable
	}
	header.Set("Accept", "application/json")
	header.Set("User-Agent", "Conclave/"+Version+" (+local assistant)")
	req.Header = header
	resp, err := e.http.Do(req)
	if err != nil {
		return response{}, classifyError(ctx, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	switch {
	case err != nil:
		return response{}, classifyError(ctx, err)
	case len(got) > maxResponse:
		return response{}, errTooLarge
	}
	return response{resp.StatusCode, resp.Header.Get("Content-Type"), got}, nil
}

// classifyError returns [errTimeout] or [errUnreachable]. The error itself is dropped: it quotes the address with the
// query.
func classifyError(ctx context.Context, err error) error {
	var timeout net.Error
	if ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return errTimeout
	}
	return errUnreachable
}

// decode decodes the JSON body of a reply of the provider name, whose request ended with err, into v. Unknown fields
// are allowed, trailing data is not. Its error is a [Failure], see [providerFailure].
func (a response) decode(err error, name, absent string, v any) error {
	if f := providerFailure(name, absent, a, err); f != "" {
		return f
	}
	if json.Unmarshal(a.body, v) != nil {
		return newUnreadableFailure(name)
	}
	return nil
}

// isHTML reports whether the body is an HTML page.
func (a response) isHTML() bool {
	return strings.HasPrefix(http.DetectContentType(a.body), "text/html")
}

// providerFailure returns the failure of a request to the provider name; "" when the status is 200. absent is the text
// for an unreachable provider. Texts of the provider and of err are not quoted.
func providerFailure(name, absent string, a response, err error) Failure {
	switch {
	case errors.Is(err, errTimeout):
		return Failure("search failed: " + string(webclient.ErrTimeout))
	case errors.Is(err, errTooLarge):
		return Failure("search failed: the answer of " + name + " is too large")
	case err != nil:
		return Failure("search failed: " + absent)
	}
	switch {
	case a.status == http.StatusOK:
		return ""
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return "search failed: the provider does not accept the key"
	case a.status == http.StatusTooManyRequests:
		return "search failed: too many requests"
	case a.status == http.StatusPaymentRequired, a.status == 432, a.status == 433:
		return "search failed: the plan of the provider's key is used up"
	case a.status == http.StatusBadRequest, a.status == http.StatusUnprocessableEntity:
		return "search failed: the provider does not accept the query; try other words"
	case a.status >= 300 && a.status < 400:
		return Failure("search failed: " + name + " redirects elsewhere, which is not followed")
	}
	return Failure("search failed: " + name + " answers " + webclient.Status(a.status).Error())
}

// newUnreadableFailure is the failure for a response of an undocumented form.
func newUnreadableFailure(name string) Failure {
	return Failure("search failed: the answer of " + name + " cannot be read")
}
