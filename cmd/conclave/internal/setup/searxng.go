package setup

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ProbeSearXNG returns what keeps the SearXNG at the URL at from being used, and how to solve that; "" when it can be
// searched. It waits at most timeout; no answer is a problem too. The request has a format and no query: SearXNG
// rejects it in the format it would answer in, and nothing leaves this machine.
func ProbeSearXNG(ctx context.Context, at string, timeout time.Duration) (what, fix string) {
	absent := "no SearXNG answers at " + at
	const start = "start it there, or set searxng.url or provider in web_search.yaml; provider: none switches the " +
		"tool off"
	u, err := url.Parse(at)
	if err != nil {
		return absent, start // the settings are valid
	}
	u = u.JoinPath("search")
	u.RawQuery = "format=json"
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return absent, start
	}
	req.Header.Set("Accept", "application/json")
	httpClient := &http.Client{ // as the tool connects: no proxy, no redirect
		Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return absent, start
	}
	resp.Body.Close()
	isJSON := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
	switch {
	case isJSON && (resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusOK):
		return "", ""
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusOK:
		return "SearXNG at " + at + " does not answer in JSON",
			"set search.formats: [html, json] in its settings.yml and restart it"
	case resp.StatusCode == http.StatusTooManyRequests:
		return "SearXNG at " + at + " limits the request rate",
			"set server.limiter: false in its settings.yml and restart it"
	}
	return fmt.Sprintf("%s is not a SearXNG (status %d)", at, resp.StatusCode), "correct searxng.url in web_search.yaml"
}
