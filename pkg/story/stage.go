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
	Slow    time.Duration `yaml:"slow"`    // until it answers
	// Asked is how often the page is asked for in the whole story; left out, it does not matter.
	Asked *int `yaml:"asked"`
}

// PageAsked is the subject under which a [World] tells live that somebody asks for a page. It is on no bus.
const PageAsked = "story.page"

// has reports whether the story's web has a page.
func (s *Story) has(url string) bool {
	return s.Web != nil && slices.ContainsFunc(s.Web.Pages, func(p Page) bool { return p.URL == url })
}

// validateStage reports the first thing wrong with what the story wants around it.
func (s *Story) validateStage() error {
	switch m := s.Manifest.(type) {
	case nil:
	case string, map[string]any:
		if _, twice := s.Config["manifest"]; twice {
			return s.wrong("manifest", "stands under config too; one of them is enough")
		}
		if text, ok := m.(string); ok && strings.TrimSpace(text) == "" {
			return s.wrong("manifest", "is empty")
		}
	default:
		return s.wrong("manifest", "must hold fields, or the text of a manifest")
	}
	for _, name := range strict.Keys(s.Credentials) {
		path := strict.Join("credentials", name)
		if subjects.CheckToken(name) != nil {
			return s.wrong(path, "is not the name of a credential")
		}
		if s.Credentials[name] == "" {
			return s.wrong(path, "is empty")
		}
	}
	if k := s.Server.Key; k != "" && subjects.CheckToken(k) != nil {
		return s.wrong("server.key", "is the name of a credential: letters, digits, - and _ only")
	}
	if s.Web == nil {
		return nil
	}
	if len(s.Web.Pages) == 0 {
		return s.wrong("web", "has no pages")
	}
	seen := map[string]bool{}
	for i, p := range s.Web.Pages {
		path := fmt.Sprintf("web.pages[%d]", i)
		if seen[p.URL] {
			return s.wrong(path+".url", "is there twice")
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
		return s.wrong(path+".url", "is not the address of a page; write http://news.example.org/page")
	case strings.TrimSpace(p.Title) == "":
		return s.wrong(path+".title", "must be there")
	case p.Body == "" && p.Status == 0:
		return s.wrong(path, "needs a body, or a status that says why there is none")
	case p.Status != 0 && (p.Status < 200 || p.Status > 599):
		return s.wrong(path+".status", "%d is not the status of an answer", p.Status)
	case p.Slow < 0 || p.Slow > time.Minute:
		return s.wrong(path+".slow", "%s is not between 0s and 1m", strict.Short(p.Slow))
	case p.Asked != nil && *p.Asked < 0:
		return s.wrong(path+".asked", "is how often: 0 or more")
	}
	return nil
}

// validatePerson reports the first thing wrong with what the user does beside asking.
func (s *Story) validatePerson(path string, t Turn) error {
	if o := t.Override; o != nil {
		levels := []string{"", subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}
		switch {
		case !slices.Contains(levels, o.Level):
			return s.wrong(path+".override.level", "is none of %s", strings.Join(levels[1:], ", "))
		case o.Level == "" && len(o.Disable)+len(o.Grant) == 0:
			return s.wrong(path+".override", "sets nothing")
		}
	}
	if a := t.Approve; a != nil {
		switch {
		case !slices.Contains([]string{Yes, No, Ignore}, a.Answer):
			return s.wrong(path+".approve.answer", "is none of %s, %s, %s", Yes, No, Ignore)
		case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, a.Remember):
			return s.wrong(path+".approve.remember", "is none of %s, %s", subjects.RememberSession, subjects.RememberAlways)
		case a.Remember != "" && a.Answer != Yes:
			return s.wrong(path+".approve.remember", "only a yes is remembered")
		}
	}
	return nil
}
