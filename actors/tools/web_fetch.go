package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/pkg/webclient"
	"conclave/pkg/webclient/readable"
	"conclave/subjects"
)

//go:embed web_fetch.md
var webFetchText string

// WebFetch is the section web_fetch of the configuration. The zero value turns the tool off.
type WebFetch struct {
	Enabled bool          `yaml:"enabled"` // whether the tool is started and offered
	Ports   []int         `yaml:"ports"`   // allowed besides 80 and 443
	Cache   time.Duration `yaml:"cache"`   // how long a page is kept in memory; 0 = not at all
	Every   time.Duration `yaml:"every"`   // one request to the same host, after the first three
}

// Validate reports everything wrong with c.
func (c WebFetch) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c.
func (c WebFetch) Problems() (out strict.Problems) {
	for i, p := range c.Ports {
		if p < 1 || p > 65535 {
			out.Add(fmt.Sprintf("ports[%d]", i), "%d is not between 1 and 65535", p)
		}
	}
	if c.Cache < 0 || c.Cache > time.Hour {
		out.Add("cache", "%s is not between 0s and 1h", c.Cache)
	}
	// 0 would be the client's own second; a file that says nothing at all is fine.
	if c.Every < 0 || c.Every > time.Minute || c.Every > 0 && c.Every < 100*time.Millisecond {
		out.Add("every", "%s is not between 100ms and 1m", c.Every)
	}
	return out
}

// client is how pages are fetched under c.
func (c WebFetch) client(own []netip.AddrPort) webclient.Config {
	return webclient.Config{Version: Version, Ports: slices.Clone(c.Ports), Own: own, Every: c.Every, CacheTTL: c.Cache, Total: fetchTimeout - time.Second}
}

// Limits of a fetch.
const (
	fetchTimeout    = 20 * time.Second
	minChars        = 200 // these stand in the schema too
	maxChars        = 20000
	defaultChars    = 3000
	structuredChars = 8000 // what is distilled before anyone reads it
)

// webFetch reads a page. Its address is what leaves the machine, and what comes back was written by a stranger.
func webFetch(web *webclient.Client) *Tool {
	return &Tool{
		schema: subjects.ToolSchema{
			Name: "web_fetch", Version: Version, Description: strings.TrimSpace(webFetchText),
			Parameters: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string","minLength":1,"maxLength":2000,"description":"address of the page, with http:// or https://"},"max_chars":{"type":"integer","minimum":200,"maximum":20000,"description":"how many characters of the page's text to return; 3000 when left out"}},"required":["url"],"additionalProperties":false}`),
		},
		facts: policy.Tool{
			Name: "web_fetch", Zone: "tools", Known: true, URL: "url",
			Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted), Timeout: fetchTimeout,
		},
		run: func(ctx context.Context, c Call) (Output, error) {
			var a struct {
				URL      string `json:"url"`
				MaxChars *int   `json:"max_chars"`
			}
			if err := args(c.Args, &a); err != nil {
				return Output{}, err
			}
			most := defaultChars
			switch {
			case a.URL == "" || len(a.URL) > webclient.MaxURL:
				return Output{}, fmt.Errorf("%w: url must be an address of at most %d characters", ErrArgs, webclient.MaxURL)
			case a.MaxChars != nil && (*a.MaxChars < minChars || *a.MaxChars > maxChars):
				return Output{}, fmt.Errorf("%w: max_chars must be between %d and %d", ErrArgs, minChars, maxChars)
			case c.Mode == subjects.ModeStructured:
				most = structuredChars
			case a.MaxChars != nil:
				most = *a.MaxChars
			}
			s, err := readPage(ctx, web, a.URL, most, c.within())
			if err != nil {
				return Output{}, Failure("fetch failed: " + err.Error())
			}
			return Output{Text: s}, nil
		},
	}
}

// errNoText is a page that shows nothing without its scripts.
var errNoText = errors.New("the page has no readable text")

// readPage is a page as a model reads it: title, where it was found, at most most characters of text, and what was left
// out. Its errors are a few words, fit for a model.
func readPage(ctx context.Context, web *webclient.Client, address string, most int, within func(string) error) (string, error) {
	page, err := web.GetWithin(ctx, address, within)
	if err != nil {
		return "", err
	}
	var doc readable.Doc
	switch page.Type {
	case webclient.HTML:
		doc = readable.HTML(page.Body, page.URL)
	case webclient.Markdown, webclient.XML:
		doc = readable.Markup(page.Body)
	default:
		doc = readable.Plain(page.Body)
	}
	if doc.Text == "" {
		return "", errNoText
	}
	var b strings.Builder
	if doc.Title != "" {
		b.WriteString(doc.Title + "\n")
	}
	b.WriteString(page.URL + "\n\n")
	short, all := firstChars(doc.Text, most)
	b.WriteString(short)
	if len(short) < len(doc.Text) {
		fmt.Fprintf(&b, "\n[cut: %d of %d characters]", most, all)
	}
	switch n := doc.Removed.Parts(); {
	case n == 1:
		b.WriteString("\n[1 hidden part removed]")
	case n > 1:
		fmt.Fprintf(&b, "\n[%d hidden parts removed]", n)
	}
	return b.String(), nil
}

// firstChars is the first most characters of s, and how many there are.
func firstChars(s string, most int) (short string, all int) {
	all = utf8.RuneCountInString(s)
	if all <= most {
		return s, all
	}
	n := 0
	for i := range s {
		if n == most {
			return s[:i], all
		}
		n++
	}
	return s, all
}
