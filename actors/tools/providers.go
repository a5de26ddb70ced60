package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// searxng is the user's own SearXNG.
type searxng struct {
	at endpoint
	c  WebSearch
}

func (searxng) secretName() string { return "" }

// noJSONFailure is the failure of a SearXNG with its default settings.
const noJSONFailure = Failure("search failed: SearXNG does not answer in JSON; set search.formats: [html, json] in " +
	"its settings.yml")

// search queries SearXNG, which needs no key and decides the number of results itself. Search operators are removed
// from the query. It fails when the instance offers no JSON, asks for a login, or none of its engines answered.
func (p searxng) search(ctx context.Context, query string, _ int, _ []byte) ([]WebResult, error) {
	q := url.Values{
		"q": {stripSearchOperators(query)}, "format": {"json"},
		"safesearch": {strconv.Itoa(slices.Index(safeLevels, p.c.safeLevel()))},
	}
	if p.c.Language != "" {
		q.Set("language", p.c.Language)
	}
	a, err := p.at.send(ctx, "search", q, http.Header{}, nil)
	switch {
	case err == nil && (a.status == http.StatusForbidden || a.status == http.StatusOK && a.isHTML()):
		return nil, noJSONFailure
	case err == nil && a.status == http.StatusUnauthorized:
		return nil, Failure("search failed: SearXNG asks for a login, which is not supported")
	}
	var got struct {
		Results []WebResult `json:"results"`
		// Pairs of engine and reason; only their number is used.
		Unresponsive []any `json:"unresponsive_engines"`
	}
	if err := a.decode(err, "SearXNG", "SearXNG does not answer at "+p.at.base.String()+"; start it or set provider "+
		"in web_search.yaml", &got); err != nil {
		return nil, err
	}
	if len(got.Results) == 0 && len(got.Unresponsive) > 0 {
		return nil, Failure("search failed: no engine of SearXNG answered; try later")
	}
	return capResults(got.Results), nil
}

// stripSearchOperators removes the operators of SearXNG at the start of words: they select engines, languages and
// timeouts, or redirect to another site. The settings decide that, not a query.
func stripSearchOperators(query string) string {
	words := strings.Fields(query)
	for i, w := range words {
		words[i] = strings.TrimLeft(w, "!?:<")
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// brave is Brave's web search.
type brave struct {
	at endpoint
	c  WebSearch
}

func (p brave) secretName() string { return p.c.Brave.secretName() }

// maxBraveWords is the most words of a query that Brave accepts.
const maxBraveWords = 50

// search queries Brave with the first maxBraveWords words of the query for most results. A rejected key, which Brave
// reports as 422, fails like any other.
func (p brave) search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error) {
	words := strings.Fields(query)
	q := url.Values{
		"q": {strings.Join(words[:min(len(words), maxBraveWords)], " ")}, "count": {strconv.Itoa(most)},
		"safesearch": {p.c.safeLevel()}, "text_decorations": {"false"}, "result_filter": {"web"},
	}
	if p.c.Language != "" {
		q.Set("search_lang", strings.ToLower(p.c.Language))
	}
	a, err := p.at.send(ctx, "res/v1/web/search", q, http.Header{"X-Subscription-Token": {string(key)}}, nil)
	if err == nil && a.status == http.StatusUnprocessableEntity {
		var fault struct {
			Error struct {
				Code string `json:"code"`
			} `json:"error"`
		}
		if json.Unmarshal(a.body, &fault) == nil && strings.Contains(fault.Error.Code, "SUBSCRIPTION_TOKEN") {
			a.status = http.StatusUnauthorized
		}
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
	if err := a.decode(err, "Brave", "Brave cannot be reached", &got); err != nil {
		return nil, err
	}
	out := make([]WebResult, 0, len(got.Web.Results))
	for _, r := range got.Web.Results {
		out = append(out, WebResult{html.UnescapeString(r.Title), r.URL, html.UnescapeString(r.Description)})
	}
	return capResults(out), nil
}

// safeLevel is the level by the name that providers use.
func (c WebSearch) safeLevel() string { return cmp.Or(c.Safe, "moderate") }

// tavily asks Tavily. It knows neither languages nor levels of safety.
type tavily struct {
	at endpoint
	c  WebSearch
}

func (p tavily) secretName() string { return p.c.Tavily.secretName() }

// search queries Tavily for most results, without its generated answer, page contents and images.
func (p tavily) search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error) {
	a, err := p.at.send(ctx, "search", nil, http.Header{"Authorization": {"Bearer " + string(key)}}, map[string]any{
		"query": query, "max_results": most, "search_depth": "basic", "topic": "general", "include_answer": false,
		"include_raw_content": false, "include_images": false,
	})
	var got struct {
		Results []WebResult `json:"results"`
	}
	if err := a.decode(err, "Tavily", "Tavily cannot be reached", &got); err != nil {
		return nil, err
	}
	return capResults(got.Results), nil
}

// capResults drops results beyond what a listing can show after filtering.
func capResults(found []WebResult) []WebResult { return found[:min(len(found), 4*maxResults)] }

// wikipedia is the search of Wikipedia. It needs no key and no set-up, and finds articles only.
type wikipedia struct{ at endpoint }

func (wikipedia) secretName() string { return "" }

// markup matches the tags in a snippet of Wikipedia.
var markup = regexp.MustCompile(`<[^>]*>`)

// search queries the search of MediaWiki for most articles.
func (p wikipedia) search(ctx context.Context, query string, most int, _ []byte) ([]WebResult, error) {
	q := url.Values{
		"action": {"query"}, "list": {"search"}, "srsearch": {query}, "srlimit": {strconv.Itoa(most)},
		"format": {"json"}, "utf8": {"1"},
	}
	a, err := p.at.send(ctx, "w/api.php", q, http.Header{}, nil)
	var got struct {
		Query *struct {
			Search []struct {
				Title   string `json:"title"`
				Snippet string `json:"snippet"`
				PageID  int64  `json:"pageid"`
			} `json:"search"`
		} `json:"query"`
	}
	if err := a.decode(err, "Wikipedia", "Wikipedia cannot be reached", &got); err != nil {
		return nil, err
	}
	if got.Query == nil {
		return nil, newUnreadableFailure("Wikipedia")
	}
	var out []WebResult
	for _, r := range got.Query.Search {
		address := p.at.base.JoinPath("/")
		address.RawQuery = "curid=" + strconv.FormatInt(r.PageID, 10)
		out = append(out,
			WebResult{r.Title, address.String(), html.UnescapeString(markup.ReplaceAllString(r.Snippet, ""))})
	}
	return capResults(out), nil
}
