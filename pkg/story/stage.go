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

// Web is a web of the story's own. With one, web_fetch reads its pages and web_search finds those that have a snippet,
// whatever is asked for; nothing else can be reached, and nothing leaves the machine.
type Web struct {
	Pages []Page `yaml:"pages"`
}

// Page is one page of it.
type Page struct {
	URL     string        `yaml:"url"` // http: nobody has a certificate for it
	Title   string        `yaml:"title"`
	Snippet string        `yaml:"snippet"` // what a search says of it; "" = no search finds it
	Body    string        `yaml:"body"`    // HTML
	Status  int           `yaml:"status"`  // 0 = 200
	Delay   time.Duration `yaml:"slow"`    // until it answers
	// Requests is how often the page is asked for in the whole story; left out, it does not matter.
	Requests *int `yaml:"asked"`
}

// PageRequested is the subject under which a [System] tells live that somebody asks for a page. It is on no bus.
const PageRequested = "story.page"

// hasPage reports whether the story's web has a page.
func (s *Story) hasPage(url string) bool {
	return s.Web != nil && slices.ContainsFunc(s.Web.Pages, func(p Page) bool { return p.URL == url })
}

// validateEnvironment reports the first thing wrong with what the story wants around it.
func (s *Story) validateEnvironment() error {
	switch m := s.Manifest.(type) {
	case nil:
	case string, map[string]any:
		if _, twice := s.Config["manifest"]; twice {
			return s.invalid("manifest", "stands under config too; one of them is enough")
		}
		if text, ok := m.(string); ok && strings.TrimSpace(text) == "" {
			return s.invalid("manifest", "is empty")
		}
	default:
		return s.invalid("manifest", "must hold fields, or the text of a manifest")
	}
	for _, name := range strict.Keys(s.Credentials) {
		path := strict.Join("credentials", name)
		if subjects.CheckToken(name) != nil {
			return s.invalid(path, "is not the name of a credential")
		}
		if s.Credentials[name] == "" {
			return s.invalid(path, "is empty")
		}
	}
	if k := s.Server.Key; k != "" && subjects.CheckToken(k) != nil {
		return s.invalid("server.key", "is the name of a credential: letters, digits, - and _ only")
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
			return s.invalid(path+".url", "is there twice")
		}
		seen[p.URL] = true
		if err := s.validatePage(path, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Story) validatePage(path string, p Page) error {
	u, err := url.Parse(p.URL)
	switch {
	case err != nil || u.Scheme != "http" || u.Host == "" || u.Port() != "" || u.User != nil || u.Path == "" || u.Fragment != "" || u.Host != strings.ToLower(u.Host):
		return s.invalid(path+".url", "is not the address of a page; write http://news.example.org/page")
	case strings.TrimSpace(p.Title) == "":
		return s.invalid(path+".title", "must be there")
	case p.Body == "" && p.Status == 0:
		return s.invalid(path, "needs a body, or a status that says why there is none")
	case p.Status != 0 && (p.Status < 200 || p.Status > 599):
		return s.invalid(path+".status", "%d is not the status of an answer", p.Status)
	case p.Delay < 0 || p.Delay > time.Minute:
		return s.invalid(path+".slow", "%s is not between 0s and 1m", strict.Short(p.Delay))
	case p.Requests != nil && *p.Requests < 0:
		return s.invalid(path+".asked", "is how often: 0 or more")
	}
	return nil
}

// validateUserActions reports the first thing wrong with what the user does beside asking.
func (s *Story) validateUserActions(path string, t Turn) error {
	if o := t.Override; o != nil {
		levels := []string{"", subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}
		switch {
		case !slices.Contains(levels, o.Level):
			return s.invalid(path+".override.level", "is none of %s", strings.Join(levels[1:], ", "))
		case o.Level == "" && len(o.Disable)+len(o.Grant) == 0:
			return s.invalid(path+".override", "sets nothing")
		}
	}
	if a := t.Approve; a != nil {
		switch {
		case !slices.Contains([]string{AnswerApprove, AnswerDeny, AnswerIgnore}, a.Answer):
			return s.invalid(path+".approve.answer", "is none of %s, %s, %s", AnswerApprove, AnswerDeny, AnswerIgnore)
		case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, a.Remember):
			return s.invalid(path+".approve.remember", "is none of %s, %s", subjects.RememberSession, subjects.RememberAlways)
		case a.Remember != "" && a.Answer != AnswerApprove:
			return s.invalid(path+".approve.remember", "only a yes is remembered")
		}
	}
	return nil
}
