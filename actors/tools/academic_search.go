package tools

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

//go:embed academic_search.md
var academicSearchText string

// Academic is the setting academic of web_search. The zero value disables the tool academic_search.
type Academic struct {
	Provider string `yaml:"provider"` // one of [AcademicProviders]; "" = none
	Key      string `yaml:"key"`      // of Semantic Scholar, optional: "{{secret name}}"
}

// AcademicProviders are the names of the providers of papers. "none" disables the tool.
var AcademicProviders = []string{noProvider, "arxiv", "semantic_scholar", "mock"}

// newProvider returns the configured provider, nil for none. at replaces its address in tests.
func (c WebSearch) newAcademicProvider(at string) provider {
	asks := func(own string) endpoint { return newEndpoint(cmp.Or(at, own)) }
	switch c.Academic.Provider {
	case "arxiv":
		return arxiv{asks("https://export.arxiv.org")}
	case "semantic_scholar":
		return semanticScholar{asks("https://api.semanticscholar.org"), Keyed{c.Academic.Key}}
	case "mock":
		return mock(c.Mock)
	}
	return nil
}

// arxiv is the API of arXiv. It needs no key.
type arxiv struct{ at endpoint }

func (arxiv) secretName() string { return "" }

// search queries arXiv for papers with all words of the query, by relevance. Its answer is an Atom feed.
func (p arxiv) search(ctx context.Context, query string, most int, _ []byte) ([]WebResult, error) {
	var words []string
	for _, w := range strings.FieldsFunc(query, func(r rune) bool { return strings.ContainsRune(" \"():", r) }) {
		words = append(words, "all:"+w)
	}
	if len(words) == 0 {
		return nil, nil
	}
	q := url.Values{
		"search_query": {strings.Join(words, " AND ")}, "max_results": {strconv.Itoa(most)},
		"sortBy": {"relevance"},
	}
	a, err := p.at.send(ctx, "api/query", q, http.Header{}, nil)
	if f := providerFailure("arXiv", "arXiv cannot be reached", a, err); f != "" {
		return nil, f
	}
	var feed struct {
		XMLName xml.Name `xml:"http://www.w3.org/2005/Atom feed"`
		Entries []struct {
			ID        string   `xml:"id"`
			Title     string   `xml:"title"`
			Summary   string   `xml:"summary"`
			Published string   `xml:"published"`
			Authors   []string `xml:"author>name"`
		} `xml:"entry"`
	}
	if xml.Unmarshal(a.body, &feed) != nil {
		return nil, newUnreadableFailure("arXiv")
	}
	var out []WebResult
	for _, e := range feed.Entries {
		year, _, _ := strings.Cut(e.Published, "-")
		address := e.ID
		if id, ok := strings.CutPrefix(address, "http://arxiv.org/"); ok {
			address = "https://arxiv.org/" + id
		}
		out = append(out, newPaper(e.Title, e.Authors, year, address, e.Summary))
	}
	return capResults(out), nil
}

// semanticScholar is the API of Semantic Scholar. A key is optional and raises its limits.
type semanticScholar struct {
	at  endpoint
	key Keyed
}

func (p semanticScholar) secretName() string { return p.key.secretName() }

// search queries Semantic Scholar for most papers.
func (p semanticScholar) search(ctx context.Context, query string, most int, key []byte) ([]WebResult, error) {
	h := http.Header{}
	if len(key) > 0 {
		h.Set("X-Api-Key", string(key))
	}
	q := url.Values{"query": {query}, "limit": {strconv.Itoa(most)}, "fields": {"title,abstract,url,year,authors"}}
	a, err := p.at.send(ctx, "graph/v1/paper/search", q, h, nil)
	var got struct {
		Data []struct {
			Title    string `json:"title"`
			Abstract string `json:"abstract"`
			URL      string `json:"url"`
			Year     int    `json:"year"`
			Authors  []struct {
				Name string `json:"name"`
			} `json:"authors"`
		} `json:"data"`
	}
	if err := a.decode(err, "Semantic Scholar", "Semantic Scholar cannot be reached", &got); err != nil {
		return nil, err
	}
	var out []WebResult
	for _, d := range got.Data {
		var authors []string
		for _, n := range d.Authors {
			authors = append(authors, n.Name)
		}
		year := ""
		if d.Year > 0 {
			year = strconv.Itoa(d.Year)
		}
		out = append(out, newPaper(d.Title, authors, year, d.URL, d.Abstract))
	}
	return capResults(out), nil
}

// maxAuthors bounds the authors that a result names.
const maxAuthors = 3

// newPaper returns a paper as a result of a search.
func newPaper(title string, authors []string, year, address, abstract string) WebResult {
	who := strings.Join(authors[:min(len(authors), maxAuthors)], ", ")
	if len(authors) > maxAuthors {
		who += fmt.Sprintf(" and %d others", len(authors)-maxAuthors)
	}
	if by := strings.TrimSpace(who + " " + year); by != "" {
		title += " (" + by + ")"
	}
	return WebResult{title, address, abstract}
}
