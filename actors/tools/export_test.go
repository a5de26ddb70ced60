package tools

// ConfiguredAt is Configured with the providers of searches at another address.
func ConfiguredAt(c Config, at string) []*Tool { return newTools(c, at) }

// StripSearchOperators is what is sent to SearXNG for a query.
var StripSearchOperators = stripSearchOperators

// SecretSpellings are the spellings that a redactor looks for.
var SecretSpellings = secretSpellings
