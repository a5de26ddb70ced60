package tools

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/pkg/webclient"
)

// provider finds pages. What it returns is untrusted, and longer than it should be when it wants to.
type provider interface {
	// secret is the name of the credential it needs, "" when it needs none.
	secret() string
	// search asks. key is the credential, and must not be kept.
	search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error)
}

// provider is the one that c names, nil when there is none. at is another address than its own, for tests.
func (c WebSearch) provider(at string) provider {
	asks := func(own string) endpoint {
		if at != "" {
			own = at
		}
		return newEndpoint(own)
	}
	switch c.Provider {
	case "searxng":
		return searxng{asks(c.SearXNG.URL), c}
	case "brave":
		return brave{asks("https://api.search.brave.com"), c}
	case "tavily":
		return tavily{asks("https://api.tavily.com"), c}
	case "mock":
		return mock(c.Mock)
	}
	return nil
}

// mock finds the same pages whatever is asked. It reaches nothing.
type mock []WebResult

func (m mock) secret() string { return "" }

func (m mock) search(_ context.Context, _ string, most int, _ []byte) ([]WebResult, error) {
	return m[:min(most, len(m))], nil
}

// paces are how fast each provider may be asked: one more after every, so many at once.
var paces = map[string]struct {
	every time.Duration
	burst int
}{
	"searxng": {500 * time.Millisecond, 5}, // it asks others in turn, and they are strict
	"brave":   {time.Second, 1},            // what its smallest plan allows
	"tavily":  {600 * time.Millisecond, 5},
}

// What is kept of searches, and how long: long enough for a model that asks twice.
const (
	searchCache = 1 << 20
	searchTTL   = time.Minute
)

// searcher is a provider with what surrounds it: its pace, what was found lately, and who reads pages.
type searcher struct {
	name     string
	provider provider
	most     int
	pace     *webclient.Pace // nil = as fast as it likes
	found    *webclient.Cache[[]WebResult]
	web      *webclient.Client // nil = no pages are read
}

func newSearcher(c WebSearch, p provider, web *webclient.Client) *searcher {
	s := &searcher{name: c.Provider, provider: p, most: c.Results, found: webclient.NewCache[[]WebResult](0, 0), web: web}
	if pace, ok := paces[c.Provider]; ok {
		s.pace = webclient.NewPace(pace.every, pace.burst)
		s.found = webclient.NewCache[[]WebResult](searchCache, searchTTL)
	}
	return s
}

func (s *searcher) search(ctx context.Context, query string, c Call) ([]WebResult, error) {
	if found, ok := s.found.Get(query, c.Now); ok {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	if s.pace != nil {
		if err := s.pace.Wait(ctx, s.name, c.Now); err != nil {
			return nil, Failure("search failed: too many requests")
		}
	}
	found, err := s.provider.search(ctx, query, s.most, bytes.TrimSpace(c.Secrets[s.provider.secret()].Reveal()))
	if err != nil {
		return nil, err
	}
	size := 0
	for i := range found {
		// What is shown of a result is short; the rest need not be kept.
		found[i].Title, found[i].Snippet = oneLine(found[i].Title, maxTitle), oneLine(found[i].Snippet, maxSnippet)
		size += len(found[i].Title) + len(found[i].Snippet) + len(found[i].URL)
	}
	s.found.Put(query, found, size, c.Now)
	return found, nil
}

// Limits of the pages that are read along with a structured search.
const (
	readPages = 3
	pageChars = 2500
	pagesTime = 8 * time.Second
)

// pages is the text of the first pages, for whoever distills the search. A page that cannot be read says why.
func (s *searcher) pages(ctx context.Context, links []string, c Call) string {
	if s.web == nil || !c.Pages {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, pagesTime)
	defer cancel()
	links = links[:min(len(links), readPages)]
	texts := make([]string, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() {
			t, err := readPage(ctx, s.web, l, pageChars, c.within())
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
