package genai_test

import (
	"context"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/genai"
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
	b, err := genai.New(genai.Config{URL: url + "/genai", Key: key(secret)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Profile{
		New:      open,
		Protocol: modeltest.GenAI(secret),

		SortsKeys:    true,
		NoDurations:  true,
		NoWindow:     true,
		NoRemoteHost: true, // it never runs here: the address of the service is always named
		NoCapability: true,
		NoKeepAlive:  true,
		NoPull:       true,
	})
}
