package story

import (
	"slices"
	"time"
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
