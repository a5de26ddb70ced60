package tools

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/pkg/webclient"
)

// provider is a search provider. Its results are untrusted and may be of any length.
type provider interface {
	// secretName returns the name of the credential that it needs, "" for none.
	secretName() string
	// search returns up to about most results. key is the credential, and must not be retained.
	search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error)
}

// newProvider returns the configured provider, nil for "none" and an unknown name. at replaces its address in tests; ""
// = its own.
func (c WebSearch) newProvider(at string) provider {
	asks := func(own string) endpoint { return newEndpoint(cmp.Or(at, own)) }
	switch c.Provider {
	case "searxng":
		return searxng{asks(c.SearXNG.URL), c}
	case "brave":
		return brave{asks("https://api.search.brave.com"), c}
	case "tavily":
		return tavily{asks("https://api.tavily.com"), c}
	case "wikipedia":
		host, _, _ := strings.Cut(cmp.Or(c.Language, "en"), "-")
		return wikipedia{asks("https://" + host + ".wikipedia.org")}
	case "mock":
		return mock(c.Mock)
	}
	return nil
}

// mock returns the same results for every query. It uses no network.
type mock []WebResult

func (m mock) secretName() string { return "" }

func (m mock) search(_ context.Context, _ string, most int, _ []byte) ([]WebResult, error) {
	return m[:min(most, len(m))], nil
}

// providerRates are the rate limits of the providers: one request per interval, and a burst.
var providerRates = map[string]struct {
	every time.Duration
	burst int
}{
	"searxng": {500 * time.Millisecond, 5}, // it forwards to engines with strict limits
	"brave":   {time.Second, 1},            // the limit of its smallest plan
	"tavily":  {600 * time.Millisecond, 5},

	"wikipedia":        {500 * time.Millisecond, 3},
	"arxiv":            {3 * time.Second, 1}, // its terms of use
	"semantic_scholar": {time.Second, 1},
}

// Size and lifetime of the cache of results: long enough for a model that repeats a query.
const (
	searchCacheSize = 1 << 20
	searchTTL       = time.Minute
)

// searcher is a provider with its rate limit, a cache of results and the web client that reads pages.
type searcher struct {
	name     string
	provider provider
	limit    int
	timeout  time.Duration
	pace     *webclient.Pace // nil = no rate limit
	cache    *webclient.Cache[[]WebResult]
	web      *webclient.Client // nil = no pages are read
}

// newSearcher returns a searcher with the settings of c and the provider p, whose name is name.
func newSearcher(c WebSearch, name string, p provider, web *webclient.Client) *searcher {
	s := &searcher{
		name: name, provider: p, limit: c.Results, timeout: c.timeout(),
		cache: webclient.NewCache[[]WebResult](0, 0), web: web,
	}
	if pace, ok := providerRates[name]; ok {
		s.pace = webclient.NewPace(pace.every, pace.burst)
		s.cache = webclient.NewCache[[]WebResult](searchCacheSize, searchTTL)
	}
	return s
}

// search returns the results of a query from the cache or the provider, with titles and snippets cut. It takes at most
// s.timeout, including the wait for the provider's rate limit, and fails at once when that wait would be longer. Errors
// are a [Failure] that a model may see.
func (s *searcher) search(ctx context.Context, query string, c Call) ([]WebResult, error) {
	if found, ok := s.cache.Get(query, c.Now); ok {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if s.pace != nil {
		if err := s.pace.Wait(ctx, s.name, c.Now); err != nil {
			return nil, Failure("search failed: too many requests")
		}
	}
	found, err := s.provider.search(ctx, query, s.limit, bytes.TrimSpace(c.Secrets[s.provider.secretName()].Reveal()))
	if err != nil {
		return nil, err
	}
	size := 0
	for i := range found {
		found[i].Title, found[i].Snippet = oneLine(found[i].Title, maxTitle), oneLine(found[i].Snippet, maxSnippet)
		size += len(found[i].Title) + len(found[i].Snippet) + len(found[i].URL)
	}
	s.cache.Put(query, found, size, c.Now)
	return found, nil
}

// Limits of the pages that are read along with a structured search.
const (
	readPages    = 3
	pageChars    = 2500
	pagesTimeout = 8 * time.Second
)

// renderPages returns the text of the first readPages pages for a structured search, or the reason why a page could not
// be read, within pagesTimeout. It is "" when the caller may not read pages or web_fetch is off.
func (s *searcher) renderPages(ctx context.Context, links []string, c Call) string {
	if s.web == nil || !c.Pages {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, pagesTimeout)
	defer cancel()
	links = links[:min(len(links), readPages)]
	texts := make([]string, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() {
			t, err := readPage(ctx, s.web, l, pageChars, c.hostCheck())
			if err != nil {
				t = "fetch failed: " + err.Error()
			}
			texts[i] = t
		})
	}
	wg.Wait()
	var b strings.Builder
	for i, t := range texts {
		fmt.Fprintf(&b, "\n\n--- page %s: %s\n%s", strconv.Itoa(i+1), links[i], t)
	}
	return b.String()
}
