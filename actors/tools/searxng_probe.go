package tools

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
// rejects it in the format it would answer in, and learns of no search.
func ProbeSearXNG(ctx context.Context, at string, timeout time.Duration) (what, fix string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a, err := newEndpoint(at).send(ctx, "search", url.Values{"format": {"json"}}, http.Header{}, nil)
	isJSON := strings.HasPrefix(a.kind, "application/json")
	switch {
	case err != nil:
		return "no SearXNG answers at " + at, "start it there, or set searxng.url or provider in web_search.yaml; " +
			"provider: none switches the tool off"
	case isJSON && (a.status == http.StatusBadRequest || a.status == http.StatusOK):
		return "", ""
	case a.status == http.StatusForbidden, a.status == http.StatusOK:
		return "SearXNG at " + at + " does not answer in JSON",
			"set search.formats: [html, json] in its settings.yml and restart it"
	case a.status == http.StatusTooManyRequests:
		return "SearXNG at " + at + " limits the request rate",
			"set server.limiter: false in its settings.yml and restart it"
	}
	return fmt.Sprintf("%s is not a SearXNG (status %d)", at, a.status), "correct searxng.url in web_search.yaml"
}
