package tools

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/webclient"
	"conclave/pkg/webclient/readable"
	"conclave/subjects"
)

//go:embed web_fetch.md
var webFetchText string

// Limits of a fetch.
const (
	defaultFetchTimeout = 20  // seconds
	minChars            = 200 // also in the schema, like maxChars
	maxChars            = 20000
	defaultChars        = 3000
	structuredChars     = 8000 // for structured mode, where the text is condensed first
)

// webFetch returns the tool web_fetch. The address leaves the machine, and the page is untrusted. It rejects a URL that
// is empty or too long and max_chars out of range; a structured call always gets structuredChars.
func webFetch(cfg WebFetch, web *webclient.Client) *Tool {
	usual := cmp.Or(cfg.MaxChars, defaultChars)
	return newTool("web_fetch", webFetchText, `"url"`, fmt.Sprintf(`
		"url": {"type": "string", "minLength": 1, "maxLength": 2000,
			"description": "address of the page, with http:// or https://"},
		"max_chars": {"type": "integer", "minimum": 200, "maximum": 20000,
			"description": "how many characters of the page's text to return; %d when left out"}`, usual), policy.Tool{
		Act:     policy.ActFetch,
		Args:    policy.Args{"url": {Role: policy.RoleURL}, "max_chars": {Role: policy.RoleSetting}},
		About:   []string{"article", "link", "page", "site", "website", "webpage", "blog"},
		Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted), Timeout: cfg.timeout(),
	}, withArgs(func(ctx context.Context, c Call, a struct {
		URL      string `json:"url"`
		MaxChars *int   `json:"max_chars"`
	},
	) (Output, error) {
		most := usual
		switch {
		case a.URL == "" || len(a.URL) > webclient.MaxURL:
			return Output{}, fmt.Errorf("%w: url must be an address of at most %d characters", actor.ErrArguments,
				webclient.MaxURL)
		case a.MaxChars != nil && (*a.MaxChars < minChars || *a.MaxChars > maxChars):
			return Output{}, fmt.Errorf("%w: max_chars must be between %d and %d", actor.ErrArguments, minChars,
				maxChars)
		case c.Mode == subjects.ModeStructured:
			most = structuredChars
		case a.MaxChars != nil:
			most = *a.MaxChars
		}
		s, err := readPage(ctx, web, a.URL, most, c.hostCheck())
		if err != nil {
			return Output{}, Failure("fetch failed: " + err.Error())
		}
		return Output{Text: s}, nil
	}))
}

// errNoText means that a page has no text without its scripts.
var errNoText = errors.New("the page has no readable text")

// readPage fetches a page and returns its title, final address, up to most characters of text and a note on what was
// left out. within denies addresses, also of redirects, nil = no restriction. A page without text is errNoText. Errors
// are short and fit for a model.
func readPage(ctx context.Context, web *webclient.Client, address string, most int, within func(string) error) (string,
	error,
) {
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
	short, all := cutChars(doc.Text, most)
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

// cutChars returns the first most characters (not bytes) of s, and the number of all.
func cutChars(s string, most int) (short string, all int) {
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
