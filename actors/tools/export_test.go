package tools

// ConfiguredAt is Configured with the providers of searches at another address.
func ConfiguredAt(c Config, at string) []*Tool { return configured(c, at) }

// PlainWords is what is sent to SearXNG for a query.
var PlainWords = plainWords

// Forms are the spellings that a redactor looks for.
var Forms = forms
