package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed web_search.md
var webSearchText string

// WebSearch is the section web_search of the configuration.
type WebSearch struct {
	Provider string      `yaml:"provider"` // who searches: one of [Providers]
	Results  int         `yaml:"results"`  // how many results a search returns
	Language string      `yaml:"language"` // of the pages, such as en or de; "" = the provider's own choice
	Safe     string      `yaml:"safe"`     // off, moderate or strict; "" = moderate
	SearXNG  SearXNG     `yaml:"searxng"`
	Brave    Keyed       `yaml:"brave"`
	Tavily   Keyed       `yaml:"tavily"`
	Mock     []WebResult `yaml:"mock"` // what the provider mock finds, whatever is asked
}

// SearXNG is where the user's own search engine is.
type SearXNG struct {
	URL string `yaml:"url"`
}

// Keyed is a provider that wants a key.
type Keyed struct {
	Key string `yaml:"key"` // "{{secret name}}": which credential it is, never the value
}

// WebResult is one page that a search found.
type WebResult struct {
	Title   string `yaml:"title"`
	URL     string `yaml:"url"`
	Snippet string `yaml:"snippet"`
}

// Providers by name. "none" turns the tool off: it is neither started nor offered.
var Providers = []string{noProvider, "searxng", "brave", "tavily", "mock"}

const noProvider = "none"

// Limits of a search. Whatever a provider returns is cut to them.
const (
	searchTimeout = 15 * time.Second
	maxQuery      = 400 // characters; stands in the schema too
	maxResults    = 20
	maxTitle      = 200
	maxSnippet    = 600
	maxAddress    = 2000
)

var (
	// placeholder is the only thing that may stand where a credential goes.
	placeholder = regexp.MustCompile(`^\{\{secret ([A-Za-z0-9_-]{1,64})\}\}$`)
	language    = regexp.MustCompile(`^([a-z]{2,3}(-[A-Za-z]{2,4})?)?$`)
	safeLevels  = []string{"", "off", "moderate", "strict"}
)

// secret is the name of the credential, "" when the setting is no placeholder.
func (k Keyed) secret() string {
	if m := placeholder.FindStringSubmatch(k.Key); m != nil {
		return m[1]
	}
	return ""
}

// Validate reports everything wrong with c.
func (c WebSearch) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c. What stands where a placeholder belongs is not repeated: it may be the key itself.
func (c WebSearch) Problems() (out strict.Problems) {
	if !slices.Contains(Providers, c.Provider) {
		out.Add("provider", "%q is none of %s", text.Clip(c.Provider, 64), strings.Join(Providers, ", "))
	}
	if c.Results < 1 || c.Results > maxResults {
		out.Add("results", "%d is not between 1 and %d", c.Results, maxResults)
	}
	if !language.MatchString(c.Language) {
		out.Add("language", "%q is not a language; write en, de or pt-BR", text.Clip(c.Language, 64))
	}
	if !slices.Contains(safeLevels, c.Safe) {
		out.Add("safe", "%q is none of off, moderate, strict", text.Clip(c.Safe, 64))
	}
	if c.Provider == "searxng" || c.SearXNG.URL != "" {
		if _, err := endpointURL(c.SearXNG.URL); err != nil {
			out.Add("searxng.url", "%v; write http://localhost:8888", err)
		}
	}
	for _, k := range []struct {
		name  string
		keyed Keyed
	}{{"brave", c.Brave}, {"tavily", c.Tavily}} {
		if (c.Provider == k.name || k.keyed.Key != "") && k.keyed.secret() == "" {
			out.Add(k.name+".key", "is not a placeholder; write \"{{secret %s_api_key}}\" and store the value with: conclave secret set %s_api_key", k.name, k.name)
		}
	}
	for i, r := range c.Mock {
		if !webAddress(r.URL) {
			out.Add(fmt.Sprintf("mock[%d].url", i), "%q is not the address of a page; write https://example.org/page", text.Clip(r.URL, 64))
		}
		if strings.TrimSpace(r.Title) == "" {
			out.Add(fmt.Sprintf("mock[%d].title", i), "is empty")
		}
	}
	return out
}

// webSearch asks the provider. A query leaves the machine, and what comes back was written by strangers.
func webSearch(s *searcher) *Tool {
	facts := policy.Tool{
		Name: "web_search", Zone: "tools", Known: true, Query: "query",
		Standing: true, Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted), Timeout: searchTimeout + pagesTime,
	}
	if name := s.provider.secret(); name != "" {
		facts.Secrets = []string{name}
	}
	return &Tool{
		schema: subjects.ToolSchema{
			Name: "web_search", Version: Version, Description: strings.TrimSpace(webSearchText),
			Parameters: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,"maxLength":400,"description":"a few words to search for"}},"required":["query"],"additionalProperties":false}`),
		},
		facts: facts,
		run: func(ctx context.Context, c Call) (Output, error) {
			var a struct {
				Query string `json:"query"`
			}
			if err := args(c.Args, &a); err != nil {
				return Output{}, err
			}
			query := oneLine(a.Query, 4*maxQuery)
			if n := utf8.RuneCountInString(a.Query); n > maxQuery || query == "" {
				return Output{}, fmt.Errorf("%w: query must hold between 1 and %d characters", ErrArgs, maxQuery)
			}
			found, err := s.search(ctx, query, c)
			if err != nil {
				return Output{}, err
			}
			out, err := listing(c.Now, found, s.most)
			if err == nil && c.Mode == subjects.ModeStructured {
				out.Text += s.pages(ctx, out.Links, c)
			}
			return out, err
		},
	}
}

// listing is the result as the model reads it: today's date, then numbered pages, each on three lines. A page whose
// address is none is left out.
func listing(now time.Time, found []WebResult, most int) (out Output, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Today is %s.\n", now.Format("Monday, 2 January 2006"))
	n := 0
	for _, r := range found {
		address := r.URL
		if n == most || !webAddress(address) || slices.Contains(out.Links, address) {
			continue
		}
		n++
		out.Links = append(out.Links, address)
		title := oneLine(r.Title, maxTitle)
		if title == "" {
			title = address
		}
		fmt.Fprintf(&b, "\n%d. %s\n", n, title)
		if s := oneLine(r.Snippet, maxSnippet); s != "" {
			fmt.Fprintf(&b, "   %s\n", s)
		}
		fmt.Fprintf(&b, "   %s\n", address)
	}
	if n == 0 {
		return Output{}, Failure("no results")
	}
	out.Text = strings.TrimSuffix(b.String(), "\n")
	return out, nil
}

// webAddress reports whether s is the absolute address of a page, written so that a line can hold it unchanged.
func webAddress(s string) bool {
	if len(s) > maxAddress || s != oneLine(s, maxAddress) || strings.Contains(s, " ") {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
}

// oneLine is s without line breaks and control characters, so that no page can write a result of its own below its own,
// and not longer than most bytes.
func oneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !text.IsVisible(r), r == utf8.RuneError:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return text.Clip(strings.Join(strings.Fields(s), " "), most)
}
