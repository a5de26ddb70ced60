package tools

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// searxng asks the user's own SearXNG.
type searxng struct {
	at endpoint
	c  WebSearch
}

func (searxng) secret() string { return "" }

// noJSON is what to do about a SearXNG as it is shipped.
const noJSON = Failure("search failed: SearXNG does not answer in JSON; set search.formats: [html, json] in its settings.yml")

func (p searxng) search(ctx context.Context, query string, _ int, _ []byte) ([]WebResult, error) {
	q := url.Values{"q": {plainWords(query)}, "format": {"json"}, "safesearch": {map[string]string{"off": "0", "strict": "2"}[p.c.Safe]}}
	if q.Get("safesearch") == "" {
		q.Set("safesearch", "1")
	}
	if p.c.Language != "" {
		q.Set("language", p.c.Language)
	}
	a, err := p.at.ask(ctx, "search", q, http.Header{}, nil)
	switch {
	case err == nil && (a.status == http.StatusForbidden || a.status == http.StatusOK && a.html()):
		return nil, noJSON
	case err == nil && a.status == http.StatusUnauthorized:
		return nil, Failure("search failed: SearXNG asks for a login, which is not supported")
	}
	if f := failure("SearXNG", "SearXNG does not answer at "+p.at.base.String()+"; start it or set provider in web_search.yaml", a, err); f != "" {
		return nil, f
	}
	var got struct {
		Results []struct {
			Title   string `json:"title"`
			URL     string `json:"url"`
			Content string `json:"content"`
		} `json:"results"`
		// Pairs of a name and what went wrong; only whether there are any is of use.
		Unresponsive []any `json:"unresponsive_engines"`
	}
	if !a.read(&got) {
		return nil, unreadable("SearXNG")
	}
	if len(got.Results) == 0 && len(got.Unresponsive) > 0 {
		return nil, Failure("search failed: no engine of SearXNG answered; try later")
	}
	out := make([]WebResult, 0, len(got.Results))
	for _, r := range got.Results {
		out = append(out, WebResult{r.Title, r.URL, r.Content})
	}
	return first(out), nil
}

// plainWords takes the marks off that SearXNG obeys at the beginning of a word: which engines to ask, in which language,
// how long, and to which site to send the caller instead. The settings say that, not a query.
func plainWords(query string) string {
	words := strings.Fields(query)
	for i, w := range words {
		words[i] = strings.TrimLeft(w, "!?:<")
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// brave asks Brave's web search.
type brave struct {
	at endpoint
	c  WebSearch
}

func (p brave) secret() string { return p.c.Brave.secret() }

// braveWords is how many words Brave takes.
const braveWords = 50

func (p brave) search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error) {
	words := strings.Fields(query)
	q := url.Values{
		"q": {strings.Join(words[:min(len(words), braveWords)], " ")}, "count": {strconv.Itoa(most)},
		"safesearch": {p.c.safe()}, "text_decorations": {"false"}, "result_filter": {"web"},
	}
	if p.c.Language != "" {
		q.Set("search_lang", strings.ToLower(p.c.Language))
	}
	a, err := p.at.ask(ctx, "res/v1/web/search", q, http.Header{"X-Subscription-Token": {string(key)}}, nil)
	if err == nil && a.status == http.StatusUnprocessableEntity {
		var fault struct {
			Error struct {
				Code string `json:"code"`
			} `json:"error"`
		}
		if a.read(&fault) && strings.Contains(fault.Error.Code, "SUBSCRIPTION_TOKEN") {
			a.status = http.StatusUnauthorized
		}
	}
	if f := failure("Brave", "Brave cannot be reached", a, err); f != "" {
		return nil, f
	}
	var got struct {
		Web struct {
			Results []struct {
				Title       string `json:"title"`
				URL         string `json:"url"`
				Description string `json:"description"`
			} `json:"results"`
		} `json:"web"`
	}
	if !a.read(&got) {
		return nil, unreadable("Brave")
	}
	out := make([]WebResult, 0, len(got.Web.Results))
	for _, r := range got.Web.Results {
		out = append(out, WebResult{html.UnescapeString(r.Title), r.URL, html.UnescapeString(r.Description)})
	}
	return first(out), nil
}

// safe is the level by the name that providers use.
func (c WebSearch) safe() string {
	if c.Safe == "" {
		return "moderate"
	}
	return c.Safe
}

// tavily asks Tavily. It knows neither languages nor levels of safety.
type tavily struct {
	at endpoint
	c  WebSearch
}

func (p tavily) secret() string { return p.c.Tavily.secret() }

func (p tavily) search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error) {
	a, err := p.at.ask(ctx, "search", nil, http.Header{"Authorization": {"Bearer " + string(key)}}, map[string]any{
		"query": query, "max_results": most, "search_depth": "basic", "topic": "general", "include_answer": false, "include_raw_content": false, "include_images": false,
	})
	if f := failure("Tavily", "Tavily cannot be reached", a, err); f != "" {
		return nil, f
	}
	var got struct {
		Results []struct {
			Title   string `json:"title"`
			URL     string `json:"url"`
			Content string `json:"content"`
		} `json:"results"`
	}
	if !a.read(&got) {
		return nil, unreadable("Tavily")
	}
	out := make([]WebResult, 0, len(got.Results))
	for _, r := range got.Results {
		out = append(out, WebResult{r.Title, r.URL, r.Content})
	}
	return first(out), nil
}

// first drops what no listing could hold.
func first(found []WebResult) []WebResult { return found[:min(len(found), 4*maxResults)] }
