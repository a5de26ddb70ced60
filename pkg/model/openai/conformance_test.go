package openai_test

import (
	"context"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest/conformance"
	"conclave/pkg/model/openai"
	"conclave/pkg/model/scriptserver"
)

// secret is the key that the servers of these tests ask for.
const secret = "sk-test-0123456789abcdefghijklmnop"

func key(k string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return k, nil }
}

func open(t *testing.T, url string) model.Backend {
	t.Helper()
	b, err := openai.New(openai.Config{URL: url, Key: key(secret)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Profile{
		New:      open,
		Protocol: scriptserver.OpenAI(secret),

		NoDurations:  true,
		NoWindow:     true,
		NoRemoteHost: true,
		NoCapability: true,
		NoKeepAlive:  true,
		NoPull:       true,
	})
}
