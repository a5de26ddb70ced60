package tools

import "conclave/pkg/seal"

// ConfiguredAt is Configured with the providers of searches at another address.
func ConfiguredAt(c Config, at string) []*Tool { return newTools(c, at) }

// StripSearchOperators is what is sent to SearXNG for a query.
var StripSearchOperators = stripSearchOperators

// SecretSpellings are the spellings that a redactor looks for.
var SecretSpellings = seal.Spellings

// StartEgress starts an egress proxy and returns its socket.
func StartEgress(registries []string, limit int64) (socket string, stop func(), err error) {
	p, err := startEgress(registries, limit)
	if err != nil {
		return "", nil, err
	}
	return p.Socket, p.Close, nil
}

// PipState is why pip cannot be used on this machine.
func PipState() string { return pipState() }
