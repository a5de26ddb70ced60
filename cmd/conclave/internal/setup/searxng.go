package setup

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Problem is something that is missing, and how to get it.
type Problem struct{ What, Fix string }

// ProbeSearXNG returns what keeps the SearXNG at the URL at from being used, nil when it can be searched. It waits at
// most timeout; no answer is a problem too. The request has a format and no query: SearXNG rejects it in the format it
// would answer in, and nothing leaves this machine.
func ProbeSearXNG(ctx context.Context, at string, timeout time.Duration) *Problem {
	absent := &Problem{"web_search: no SearXNG answers at " + at, "start it there, or set searxng.url or provider in " +
		"web_search.yaml; provider: none switches the tool off"}
	u, err := url.Parse(at)
	if err != nil {
		return absent // the settings are valid
	}
	u = u.JoinPath("search")
	u.RawQuery = "format=json"
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return absent
	}
	req.Header.Set("Accept", "application/json")
	httpClient := &http.Client{ // as the tool connects: no proxy, no redirect
		Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return absent
	}
	resp.Body.Close()
	isJSON := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
	switch {
	case isJSON && (resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusOK):
		return nil
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusOK:
		return &Problem{"web_search: SearXNG at " + at + " does not answer in JSON", "set search.formats: [html, " +
			"json] in its settings.yml and restart it"}
	case resp.StatusCode == http.StatusTooManyRequests:
		return &Problem{"web_search: SearXNG at " + at + " limits the request rate", "set server.limiter: false in " +
			"its settings.yml and restart it"}
	}
	return &Problem{
		fmt.Sprintf("web_search: %s is not a SearXNG (status %d)", at, resp.StatusCode),
		"correct searxng.url in web_search.yaml",
	}
}
