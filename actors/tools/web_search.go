package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
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
	Mock     []WebResult `yaml:"mock"`     // what the provider mock finds, whatever is asked
}

// WebResult is one page that a search found.
type WebResult struct {
	Title   string `yaml:"title"`
	URL     string `yaml:"url"`
	Snippet string `yaml:"snippet"`
}

// Providers by name. "none" turns the tool off: it is neither started nor offered.
var Providers = []string{noProvider, "mock"}

const noProvider = "none"

// Limits of a search. Whatever a provider returns is cut to them.
const (
	maxQuery   = 400 // characters; stands in the schema too
	maxResults = 20
	maxTitle   = 200
	maxSnippet = 600
	maxAddress = 2000
)

// Validate reports everything wrong with c.
func (c WebSearch) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c.
func (c WebSearch) Problems() (out strict.Problems) {
	if !slices.Contains(Providers, c.Provider) {
		out.Add("provider", "%q is none of %s", text.Clip(c.Provider, 64), strings.Join(Providers, ", "))
	}
	if c.Results < 1 || c.Results > maxResults {
		out.Add("results", "%d is not between 1 and %d", c.Results, maxResults)
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

// provider finds pages. What it returns is untrusted, and longer than it should be when it wants to.
type provider interface {
	search(ctx context.Context, query string, most int) ([]WebResult, error)
}

// provider is the one that c names, nil when there is none.
func (c WebSearch) provider() provider {
	if c.Provider == "mock" {
		return mock(c.Mock)
	}
	return nil
}

// mock finds the same pages whatever is asked. It reaches nothing.
type mock []WebResult

func (m mock) search(_ context.Context, _ string, most int) ([]WebResult, error) {
	return m[:min(most, len(m))], nil
}

// webSearch asks p. A query leaves the machine, and what comes back was written by strangers.
func webSearch(p provider, most int) *Tool {
	return &Tool{
		schema: subjects.ToolSchema{
			Name: "web_search", Version: Version, Description: strings.TrimSpace(webSearchText),
			Parameters: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,"maxLength":400,"description":"a few words to search for"}},"required":["query"],"additionalProperties":false}`),
		},
		facts: policy.Tool{
			Name: "web_search", Zone: "tools", Known: true,
			Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted), Timeout: 15 * time.Second,
		},
		run: func(ctx context.Context, c Call) (string, error) {
			var a struct {
				Query string `json:"query"`
			}
			if err := args(c.Args, &a); err != nil {
				return "", err
			}
			if n := utf8.RuneCountInString(a.Query); n > maxQuery || strings.TrimSpace(a.Query) == "" {
				return "", fmt.Errorf("%w: query must hold between 1 and %d characters", ErrArgs, maxQuery)
			}
			found, err := p.search(ctx, a.Query, most)
			if err != nil {
				return "", err
			}
			return listing(c.Now, found, most)
		},
	}
}

// listing is the result as the model reads it: today's date, then numbered pages, each on three lines. A page whose
// address is none is left out.
func listing(now time.Time, found []WebResult, most int) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Today is %s.\n", now.Format("Monday, 2 January 2006"))
	n := 0
	for _, r := range found {
		address := oneLine(r.URL, maxAddress)
		if n == most || !webAddress(address) {
			continue
		}
		n++
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
		return "", Failure("no results")
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// webAddress reports whether s is the absolute address of a page.
func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && len(s) <= maxAddress
}

// oneLine is s without line breaks and control characters, so that no page can write a result of its own below its own,
// and not longer than most bytes.
func oneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), r == utf8.RuneError:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return text.Clip(strings.Join(strings.Fields(s), " "), most)
}
