package loop

import (
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/model"
)

// inventedURL is the first argument of c that is an address and that the model made up: the address stands in no message
// of the user, no tool result and no summary. "" = there is none. An address counts as known without its scheme, a
// leading "www." and a final slash, in any case, because users write it so.
func (t *turn) inventedURL(c *model.Call) string {
	v, err := jsonschema.Parse(c.Arguments)
	if err != nil {
		return ""
	}
	for _, m := range v.Members {
		if url := m.Value.Text; m.Value.Type == jsonschema.String && isURL(url) && !t.isKnownURL(url) {
			return url
		}
	}
	return ""
}

// isURL reports whether s as a whole is an address of the web.
func isURL(s string) bool {
	lower := strings.ToLower(s)
	return (strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://")) && !strings.ContainsAny(s, " \t\r\n")
}

// isKnownURL reports whether the address stands in what the model was given: see [turn.inventedURL].
func (t *turn) isKnownURL(url string) bool {
	bare := bareURL(url)
	isIn := func(m *model.Message) bool {
		return m.Role != model.Assistant && strings.Contains(strings.ToLower(m.Content), bare)
	}
	for i := range t.history {
		if isIn(&t.history[i]) {
			return true
		}
	}
	for i := range t.state.Messages {
		if isIn(&t.state.Messages[i]) {
			return true
		}
	}
	return bare == "" || strings.Contains(strings.ToLower(t.summary), bare)
}

// bareURL is the address in lower case without scheme, "www." and final slash.
func bareURL(url string) string {
	_, rest, _ := strings.Cut(strings.ToLower(url), "://")
	return strings.TrimSuffix(strings.TrimPrefix(rest, "www."), "/")
}
