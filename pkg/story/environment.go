package story

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Web is the pages that the web tools of a story reach: web_fetch reads them, and web_search finds those with a
// snippet, whatever the query. No other page is reachable.
type Web struct {
	Pages []Page `yaml:"pages"`
}

// Page is one page.
type Page struct {
	URL     string        `yaml:"url"` // http only: there is no certificate
	Title   string        `yaml:"title"`
	Snippet string        `yaml:"snippet"` // in search results; "" = not found by a search
	Body    string        `yaml:"body"`    // HTML
	Status  int           `yaml:"status"`  // 0 = 200
	Delay   time.Duration `yaml:"slow"`    // delay of the reply
	// Requests is the expected number of requests for the page; nil = any.
	Requests *int `yaml:"asked"`
	// ScriptedOnly skips that number with a real model, which may read more pages than the script.
	ScriptedOnly bool `yaml:"scripted_only"`
}

// PageRequested is the subject of the live event for a request for a page. It does not exist on the bus.
const PageRequested = "story.page"

// hasPage reports whether the story has a page.
func (s *Story) hasPage(url string) bool {
	return s.Web != nil && slices.ContainsFunc(s.Web.Pages, func(p Page) bool { return p.URL == url })
}

// validateEnvironment returns the first error in manifest, credentials, server and web: empty or duplicate values,
// invalid names and pages, and a manifest that config sets too.
func (s *Story) validateEnvironment() error {
	switch m := s.Manifest.(type) {
	case nil:
	case string, map[string]any:
		if _, twice := s.Config["manifest"]; twice {
			return s.invalid("manifest", "is set under config too; use one of them")
		}
		if text, ok := m.(string); ok && strings.TrimSpace(text) == "" {
			return s.invalid("manifest", "is empty")
		}
	default:
		return s.invalid("manifest", "must be fields, or the text of a manifest")
	}
	for _, name := range strict.SortedKeys(s.Credentials) {
		path := strict.JoinPath("credentials", name)
		if subjects.CheckToken(name) != nil {
			return s.invalid(path, "is not a credential name")
		}
		if s.Credentials[name] == "" {
			return s.invalid(path, "is empty")
		}
	}
	if k := s.Server.Key; k != "" && subjects.CheckToken(k) != nil {
		return s.invalid("server.key", "is not a credential name: use letters, digits, - and _")
	}
	if s.Web == nil {
		return nil
	}
	if len(s.Web.Pages) == 0 {
		return s.invalid("web", "has no pages")
	}
	seen := map[string]bool{}
	for i, p := range s.Web.Pages {
		path := fmt.Sprintf("web.pages[%d]", i)
		if seen[p.URL] {
			return s.invalid(path+".url", "is duplicated")
		}
		seen[p.URL] = true
		if err := s.validatePage(path, p); err != nil {
			return err
		}
	}
	return nil
}

// validatePage returns the first error of the page at path in the story. It rejects URLs that are not http with a
// lower-case host and a path, a page without title or without body and status, and status, delay or requests out of
// range.
func (s *Story) validatePage(path string, p Page) error {
	u, err := url.Parse(p.URL)
	switch {
	case err != nil || u.Scheme != "http" || u.Host == "" || u.Port() != "" || u.User != nil || u.Path == "" ||
		u.Fragment != "" || u.Host != strings.ToLower(u.Host):
		return s.invalid(path+".url", "is not a page URL; write http://news.example.org/page")
	case strings.TrimSpace(p.Title) == "":
		return s.invalid(path+".title", "is required")
	case p.Body == "" && p.Status == 0:
		return s.invalid(path, "needs a body, or an error status")
	case p.Status != 0 && (p.Status < 200 || p.Status > 599):
		return s.invalid(path+".status", "%d is not an HTTP status", p.Status)
	case p.Delay < 0 || p.Delay > time.Minute:
		return s.invalid(path+".slow", "%s is not between 0s and 1m", strict.FormatDuration(p.Delay))
	case p.Requests != nil && *p.Requests < 0:
		return s.invalid(path+".asked", "must be 0 or more")
	}
	return nil
}

// validateUserActions checks override and approve of a turn. It rejects unknown values, an override without a setting,
// and remember for anything but approve.
func (s *Story) validateUserActions(path string, t Turn) error {
	if o := t.Override; o != nil {
		levels := []string{"", subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}
		switch {
		case !slices.Contains(levels, o.Level):
			return s.invalid(path+".override.level", "is not one of %s", strings.Join(levels[1:], ", "))
		case o.Level == "" && len(o.Disable)+len(o.Grant) == 0:
			return s.invalid(path+".override", "has no setting")
		}
	}
	if a := t.Approve; a != nil {
		switch {
		case !slices.Contains([]string{AnswerApprove, AnswerDeny, AnswerIgnore}, a.Answer):
			return s.invalid(path+".approve.answer", "is not one of %s, %s, %s", AnswerApprove, AnswerDeny,
				AnswerIgnore)
		case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, a.Remember):
			return s.invalid(path+".approve.remember", "is not one of %s, %s", subjects.RememberSession,
				subjects.RememberAlways)
		case a.Remember != "" && a.Answer != AnswerApprove:
			return s.invalid(path+".approve.remember", "only approve can be remembered")
		}
	}
	return nil
}
