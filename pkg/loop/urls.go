package loop

import (
	"regexp"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/strict"
)

// inventedURL is the first argument of c that is an address and that the model made up: the address stands in no
// message of the user, no tool result and no summary. "" = there is none. An address counts as known without its
// scheme, a leading "www." and a final slash, in any case, because users write it so.
func (t *turn) inventedURL(c *model.Call) string {
	v, err := strict.Parse(c.Arguments)
	if err != nil {
		return ""
	}
	for _, m := range v.Members {
		if url := m.Value.Text; m.Value.Type == strict.String && isURL(url) && !t.isKnownURL(url) {
			return url
		}
	}
	return ""
}

// isURL reports whether s as a whole is an address of the web.
func isURL(s string) bool {
	lower := strings.ToLower(s)
	return (strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://")) &&
		!strings.ContainsAny(s, " \t\r\n")
}

// isKnownURL reports whether the address stands in what the model was given: see [turn.inventedURL].
func (t *turn) isKnownURL(url string) bool {
	bare := bareURL(url)
	for text := range t.givenTexts {
		if strings.Contains(strings.ToLower(text), bare) {
			return true
		}
	}
	return bare == ""
}

// knownURLs are the addresses in what the model was given, each once, the latest first, at most maxKnownURLs.
func (t *turn) knownURLs() []string {
	var out []string
	for text := range t.givenTexts {
		for _, url := range findURLs(text) {
			if !slices.Contains(out, url) {
				out = append(out, url)
			}
			if len(out) == maxKnownURLs {
				return out
			}
		}
	}
	return out
}

// findURLs returns the addresses in text. Those without a scheme count as https; names of files are left out.
func findURLs(text string) (out []string) {
	for _, url := range addressPattern.FindAllString(text, -1) {
		if url = strings.TrimRight(url, ".,;:!?"); filePattern.MatchString(url) {
			continue
		} else if !isURL(url) {
			url = "https://" + url
		}
		out = append(out, url)
	}
	return out
}

// maxKnownURLs bounds the addresses that are collected for one decision.
const maxKnownURLs = 32

// addressPattern matches addresses as users write them: with a scheme, with "www.", or a host name with a letter-only
// last label of two to six letters.
var addressPattern = regexp.MustCompile(
	`(?i)https?://[^\s<>"'()\[\]]+|\b(?:www\.)?(?:[a-z0-9-]+\.)+[a-z]{2,6}\b(?:/[^\s<>"'()\[\]]*)?`)

// filePattern matches a name that is a file more likely than a host, although some of these endings are top-level
// domains.
var filePattern = regexp.MustCompile(
	`(?i)^[^/:]+\.(?:md|sh|py|rs|pl|ps|cc|so|zip|mov|txt|go|js|ts|css|html?|json|ya?ml|toml|xml|csv|pdf|docx?|png|` +
		`jpe?g|gif|tar|gz|log|conf|exe|cpp|java)$`)

// givenTexts is an iterator over the texts that are not the model's own, the latest first: messages of the user,
// results and the summary.
func (t *turn) givenTexts(yield func(text string) bool) {
	for _, list := range [][]model.Message{t.state.Messages, t.history} {
		for _, m := range slices.Backward(list) {
			if m.Role != model.Assistant && !yield(m.Content) {
				return
			}
		}
	}
	yield(t.summary)
}

// bareURL is the address in lower case without scheme, "www." and final slash.
func bareURL(url string) string {
	url = strings.ToLower(url)
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	return strings.TrimSuffix(strings.TrimPrefix(url, "www."), "/")
}
