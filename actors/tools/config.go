package tools

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/pkg/webclient"
)

// Config is the configuration of the tools of this machine. Its sections validate themselves. The zero value enables
// only the tools of [All].
type Config struct {
	WebSearch WebSearch
	WebFetch  WebFetch
	Workspace Workspace
	// UndoFolder is where the state of files before a change is kept; "" = nowhere.
	UndoFolder string
	Own        []netip.AddrPort  // endpoints of this system: no page is fetched from them
	Web        *webclient.Client // fetches pages; nil = a client made from WebFetch and Own
}

// WebSearch is the section web_search of the configuration.
type WebSearch struct {
	Provider string      `yaml:"provider"` // one of [Providers]
	Results  int         `yaml:"max_results"`
	Timeout  int         `yaml:"timeout_seconds"` // of a search; 0 = defaultSearchTimeout
	Language string      `yaml:"language"`        // of the pages, such as en or de; "" = the provider's own choice
	Safe     string      `yaml:"safe"`            // off, moderate or strict; "" = moderate
	SearXNG  SearXNG     `yaml:"searxng"`
	Brave    Keyed       `yaml:"brave"`
	Tavily   Keyed       `yaml:"tavily"`
	Academic Academic    `yaml:"academic"`
	Mock     []WebResult `yaml:"mock"` // results of the provider mock, whatever the query
}

// SearXNG is the address of the user's own search engine.
type SearXNG struct {
	URL string `yaml:"url"`
}

// Keyed is a provider with an API key.
type Keyed struct {
	Key string `yaml:"key"` // "{{secret name}}": the name of the credential, never its value
}

// WebResult is one page that a search found.
type WebResult struct {
	Title   string `yaml:"title" json:"title"`
	URL     string `yaml:"url" json:"url"`
	Snippet string `yaml:"snippet" json:"content"` // as SearXNG and Tavily name it
}

// Providers are the names of the search providers. "none" disables the tool.
var Providers = []string{noProvider, "searxng", "brave", "tavily", "wikipedia", "mock"}

const noProvider = "none"

var (
	// placeholder is the only valid form of a key in the configuration.
	placeholder = regexp.MustCompile(`^\{\{secret ([A-Za-z0-9_-]{1,64})\}\}$`)
	language    = regexp.MustCompile(`^([a-z]{2,3}(-[A-Za-z]{2,4})?)?$`)
	safeLevels  = []string{"off", "moderate", "strict"}
)

// secretName returns the name of the credential, "" when the setting is not a placeholder.
func (k Keyed) secretName() string {
	if m := placeholder.FindStringSubmatch(k.Key); m != nil {
		return m[1]
	}
	return ""
}

// Validate reports everything wrong with c.
func (c WebSearch) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c: an unknown provider or safe level, a number of results out of range, an
// invalid language or address, a key that is not a placeholder, and mock results without a title. Sections of other
// providers are checked only when they are set. An invalid placeholder is not quoted: it may be the key itself.
func (c WebSearch) Problems() (out strict.Problems) {
	if !slices.Contains(Providers, c.Provider) {
		out.Add("provider", "%q is not one of %s", text.Clip(c.Provider, 64), strings.Join(Providers, ", "))
	}
	out.CheckInt("max_results", c.Results, 1, maxResults)
	checkTimeout(&out, c.Timeout)
	if !language.MatchString(c.Language) {
		out.Add("language", "%q is not a language; write en, de or pt-BR", text.Clip(c.Language, 64))
	}
	if !slices.Contains(safeLevels, c.safeLevel()) {
		out.Add("safe", "%q is not one of off, moderate, strict", text.Clip(c.Safe, 64))
	}
	if c.Provider == "searxng" || c.SearXNG.URL != "" {
		if _, err := parseEndpoint(c.SearXNG.URL); err != nil {
			out.Add("searxng.url", "%v; write http://localhost:8888", err)
		}
	}
	for _, k := range []struct {
		name  string
		keyed Keyed
	}{{"brave", c.Brave}, {"tavily", c.Tavily}} {
		if (c.Provider == k.name || k.keyed.Key != "") && k.keyed.secretName() == "" {
			out.Add(k.name+".key", "is not a placeholder; write \"{{secret %s_api_key}}\" and store the value with: "+
				"conclave secret set %s_api_key", k.name, k.name)
		}
	}
	if c.Academic.Provider != "" && !slices.Contains(AcademicProviders, c.Academic.Provider) {
		out.Add("academic.provider", "%q is not one of %s", text.Clip(c.Academic.Provider, 64),
			strings.Join(AcademicProviders, ", "))
	}
	if c.Academic.Key != "" && (Keyed{c.Academic.Key}).secretName() == "" {
		out.Add("academic.key", "is not a placeholder; write \"{{secret semantic_scholar_api_key}}\" and store the "+
			"value with: conclave secret set semantic_scholar_api_key")
	}
	for i, r := range c.Mock {
		if !isWebAddress(r.URL) {
			out.Add(fmt.Sprintf("mock[%d].url", i), "%q is not the address of a page; write https://example.org/page",
				text.Clip(r.URL, 64))
		}
		if strings.TrimSpace(r.Title) == "" {
			out.Add(fmt.Sprintf("mock[%d].title", i), "is empty")
		}
	}
	return out
}

// WebFetch is the section web_fetch of the configuration. The zero value disables the tool.
type WebFetch struct {
	Enabled bool          `yaml:"enabled"` // the tool is started and offered
	Ports   []int         `yaml:"ports"`   // allowed besides 80 and 443
	Cache   time.Duration `yaml:"cache"`   // of pages in memory; 0 = no cache
	Every   time.Duration `yaml:"every"`   // interval of requests to one host, after the first three
	// MaxChars is the length of a page's text when the model does not ask for another; 0 = defaultChars.
	MaxChars int `yaml:"max_chars"`
	Timeout  int `yaml:"timeout_seconds"` // of a fetch with its redirects; 0 = defaultFetchTimeout
}

// maxTimeout bounds the timeouts of the web tools, in seconds.
const maxTimeout = 120

// checkTimeout adds a problem with a timeout in seconds; 0 is the default.
func checkTimeout(out *strict.Problems, seconds int) {
	if seconds < 0 || seconds > maxTimeout {
		out.Add("timeout_seconds", "%d is not between 1 and %d", seconds, maxTimeout)
	}
}

// timeout returns the timeout of a search.
func (c WebSearch) timeout() time.Duration {
	return time.Duration(cmp.Or(c.Timeout, defaultSearchTimeout)) * time.Second
}

// timeout returns the timeout of a fetch.
func (c WebFetch) timeout() time.Duration {
	return time.Duration(cmp.Or(c.Timeout, defaultFetchTimeout)) * time.Second
}

// Validate reports everything wrong with c.
func (c WebFetch) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c: ports beyond 1 to 65535, a cache time beyond an hour, an interval every
// that is not 100ms to 1m, and a length or timeout out of bounds. An interval of 0 is the default of the web client.
func (c WebFetch) Problems() (out strict.Problems) {
	for i, p := range c.Ports {
		out.CheckInt(fmt.Sprintf("ports[%d]", i), p, 1, 65535)
	}
	out.CheckDuration("cache", c.Cache, 0, time.Hour)
	if c.Every != 0 { // else the default of the web client
		out.CheckDuration("every", c.Every, 100*time.Millisecond, time.Minute)
	}
	if c.MaxChars != 0 {
		out.CheckInt("max_chars", c.MaxChars, minChars, maxChars)
	}
	checkTimeout(&out, c.Timeout)
	return out
}

// clientConfig returns the configuration of the web client. own are endpoints of this system, which it refuses.
func (c WebFetch) clientConfig(own []netip.AddrPort) webclient.Config {
	return webclient.Config{
		Version: Version, Ports: slices.Clone(c.Ports), Own: own, Every: c.Every, CacheTTL: c.Cache,
		Total: max(c.timeout()-time.Second, c.timeout()/2),
	}
}
