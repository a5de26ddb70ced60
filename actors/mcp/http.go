package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/webclient"
)

// maxBody bounds the body of one HTTP response that is not a stream of events, in bytes.
const maxBody = 8 << 20

var (
	errOtherHost = errors.New("the request is for another address than the url of the server")
	errAddress   = errors.New("the name of the server leads to an address that is not public; write the address " +
		"itself as the url, if it is yours")
)

// newHTTP returns the transport of a server at a URL. headers are sent to that URL only. The end of life ends all
// requests.
func newHTTP(life context.Context, endpoint *url.URL, headers map[string]string) sdk.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return errAddress
		}
		return checkAddress(endpoint.Hostname(), to.Addr())
	}}
	base := &http.Transport{
		Proxy: nil, DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           4, IdleConnTimeout: time.Minute,
	}
	return &sdk.StreamableClientTransport{
		Endpoint: endpoint.String(), MaxRetries: 1, MaxEventSize: maxMessage,
		HTTPClient: &http.Client{
			Transport: &ownOrigin{life: life, base: base, endpoint: endpoint, headers: headers},
			// an answer of status 3xx is an error
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// checkAddress denies an address that a host of the settings resolves to, see [webclient.IsAddrOf].
func checkAddress(host string, a netip.Addr) error {
	if !webclient.IsAddrOf(host, a) {
		return errAddress
	}
	return nil
}

// ownOrigin sends requests to one scheme and host only, with the headers of the settings, and bounds the responses.
type ownOrigin struct {
	life     context.Context // of the connection: requests of the SDK do not end with it
	base     http.RoundTripper
	endpoint *url.URL
	headers  map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (o *ownOrigin) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != o.endpoint.Scheme || r.URL.Host != o.endpoint.Host || r.URL.Path != o.endpoint.Path {
		return nil, errOtherHost
	}
	ctx, cancel := context.WithCancel(r.Context())
	release := context.AfterFunc(o.life, cancel)
	end := func() { release(); cancel() }
	r = r.Clone(ctx)
	for name, value := range o.headers {
		r.Header.Set(name, value)
	}
	resp, err := o.base.RoundTrip(r)
	if err != nil {
		end()
		return nil, fmt.Errorf("reaching %s: %w", o.endpoint.Host, err)
	}
	resp.Body = &endingBody{resp.Body, end}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		resp.Body = &floodGuard{from: resp.Body}
	} else {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxBody)
	}
	return resp, nil
}

// endingBody calls end when it is closed.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
