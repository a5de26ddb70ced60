package tools

import (
	"bytes"
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

// maxAnswer is how much of a provider's answer is read, in bytes.
const maxAnswer = 1 << 20

// endpoint is the one place a provider is asked at. Its client connects nowhere else, whatever a redirect, a proxy setting
// or a name in an answer says. The user chose the place, so it may be on this machine.
type endpoint struct {
	base *url.URL
	http *http.Client
}

// endpointURL reads the address of a provider: a plain one, with no part that a search would have to merge with its own.
func endpointURL(raw string) (*url.URL, error) {
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

// newEndpoint returns the endpoint at raw, which was validated. One that was not connects nowhere.
func newEndpoint(raw string) endpoint {
	u, err := endpointURL(raw)
	if err != nil {
		u = &url.URL{}
	}
	host := hostPort(u)
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
			DisableCompression:     true, // a search answer is small; none that is packed has to be trusted
			DisableKeepAlives:      true, // searches are rare, and an idle connection would outlive its tool
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// hostPort is where u is connected to.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Why a provider did not answer as it should. The text of a failure is made where the provider is known.
var (
	errSilent   = errors.New("no answer")
	errLate     = errors.New("too late")
	errTooLarge = errors.New("too large")
)

// answer is what a provider said.
type answer struct {
	status int
	body   []byte
}

// ask sends one request below the endpoint's path. payload nil means GET.
func (e endpoint) ask(ctx context.Context, path string, query url.Values, header http.Header, payload any) (answer, error) {
	u := e.base.JoinPath(path)
	u.RawQuery = query.Encode()
	method, body := http.MethodGet, []byte(nil)
	if payload != nil {
		var err error
		if body, err = json.Marshal(payload); err != nil {
			return answer{}, errSilent
		}
		method = http.MethodPost
		header.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, errSilent
	}
	header.Set("Accept", "application/json")
	header.Set("User-Agent", "Conclave/"+Version+" (+local assistant)")
	req.Header = header
	resp, err := e.http.Do(req)
	if err != nil {
		return answer{}, silence(ctx, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return answer{}, silence(ctx, err)
	case len(got) > maxAnswer:
		return answer{}, errTooLarge
	}
	return answer{resp.StatusCode, got}, nil
}

// silence tells a provider that is late from one that is not there. The error itself is dropped: it holds the address with
// the query in it.
func silence(ctx context.Context, err error) error {
	var timeout net.Error
	if ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return errLate
	}
	return errSilent
}

// read reads JSON. Fields that we do not know are the provider's business; a second value behind the first is not.
func (a answer) read(v any) bool { return json.Unmarshal(a.body, v) == nil }

// html reports whether the answer is a page for people.
func (a answer) html() bool {
	return strings.HasPrefix(http.DetectContentType(a.body), "text/html")
}

// failure is the short text for a provider that did not answer as it should; "" when the answer is fine.
func failure(name, absent string, a answer, err error) Failure {
	switch {
	case errors.Is(err, errLate):
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

// unreadable is an answer that is not what the provider documents.
func unreadable(name string) Failure {
	return Failure("search failed: the answer of " + name + " cannot be read")
}
