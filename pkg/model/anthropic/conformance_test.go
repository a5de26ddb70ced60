package anthropic_test

import (
	"context"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/anthropic"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/modeltest/conformance"
)

// secret is the key that the servers of these tests ask for.
const secret = "sk-test-0123456789abcdefghijklmnop"

func key(k string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return k, nil }
}

func open(t *testing.T, url string) model.Backend {
	t.Helper()
	b, err := anthropic.New(anthropic.Config{URL: url + "/anthropic", Key: key(secret)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Profile{
		New:      open,
		Protocol: modeltest.Anthropic(secret),

		NoDurations:  true,
		NoWindow:     true,
		NoSeed:       true,
		NoRemoteHost: true, // it never runs here: the address of the service is always named
		NoCapability: true,
		NoKeepAlive:  true,
		NoEmbed:      true,
		NoPull:       true,
	})
}
