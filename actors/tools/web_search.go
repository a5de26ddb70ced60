package tools

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed web_search.md
var webSearchText string

// Limits of a search; results are cut to them.
const (
	defaultSearchTimeout = 15  // seconds
	maxQuery             = 400 // characters; also in the schema
	maxResults           = 20
	maxTitle             = 200
	maxSnippet           = 600
	maxAddress           = 2000
)

// searchTool returns a tool that searches with s. Its query leaves the machine, and its results are untrusted. It
// rejects an empty query and one longer than maxQuery characters. A structured call also gets the text of the first
// pages.
func searchTool(name, description string, s *searcher) *Tool {
	facts := policy.Tool{
		Act: policy.ActSearch, Args: policy.Args{"query": {Role: policy.RoleQuery}}, Standing: name == "web_search",
		Effects: policy.Declare(policy.Egress, policy.ReadsUntrusted), Timeout: s.timeout + pagesTimeout,
	}
	if secret := s.provider.secretName(); secret != "" {
		facts.Secrets = []string{secret}
	}
	own, isOwn := s.provider.(searxng)
	facts.Backend = isOwn
	t := newTool(name, description, `"query"`, `
		"query": {"type": "string", "minLength": 1, "maxLength": 400,
			"description": "a few words to search for"}`, facts, withArgs(func(ctx context.Context, c Call, a struct {
		Query string `json:"query"`
	},
	) (Output, error) {
		query := oneLine(a.Query, 4*maxQuery)
		if n := utf8.RuneCountInString(a.Query); n > maxQuery || query == "" {
			return Output{}, fmt.Errorf("%w: query must hold between 1 and %d characters", actor.ErrArguments,
				maxQuery)
		}
		found, err := s.search(ctx, query, c)
		if err != nil {
			return Output{}, err
		}
		out, err := renderResults(c.Now, found, s.limit)
		if err == nil && c.Mode == subjects.ModeStructured {
			out.Text += s.renderPages(ctx, out.Links, c)
		}
		return out, err
	}))
	if isOwn {
		t.probe = func(ctx context.Context) string {
			what, fix := ProbeSearXNG(ctx, own.at.base.String(), probeTimeout)
			if what == "" {
				return ""
			}
			return what + "; " + fix
		}
	}
	return t
}

// renderResults returns the text for the model: the date, then at most most numbered pages of up to three lines. It
// skips duplicates and pages without a valid address; without a page it fails with "no results".
func renderResults(now time.Time, found []WebResult, most int) (out Output, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Today is %s.\n", now.Format("Monday, 2 January 2006"))
	n := 0
	for _, r := range found {
		address := r.URL
		if n == most || !isWebAddress(address) || slices.Contains(out.Links, address) {
			continue
		}
		n++
		out.Links = append(out.Links, address)
		fmt.Fprintf(&b, "\n%d. %s\n", n, cmp.Or(oneLine(r.Title, maxTitle), address))
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

// isWebAddress reports whether s is an absolute http(s) address without credentials that fits one line unchanged.
func isWebAddress(s string) bool {
	if len(s) > maxAddress || s != oneLine(s, maxAddress) || strings.ContainsFunc(s, func(r rune) bool {
		return r == ' ' || !text.IsVisible(r)
	}) {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
}

// oneLine returns s on one line without invisible characters, cut to most bytes: a page cannot forge another result.
func oneLine(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, ""), string(utf8.RuneError), "")
	s = text.ReplaceHidden(s, func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return -1
	})
	return text.Clip(strings.Join(strings.Fields(s), " "), most)
}
