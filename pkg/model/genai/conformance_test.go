package genai_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/genai"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/modeltest/conformance"
)

const secret = modeltest.Secret

func open(t *testing.T, url string) model.Backend {
	t.Helper()
	return modeltest.MustOpen(t)(genai.New(genai.Config{URL: url + "/genai", Key: modeltest.StaticKey(secret)}))
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Profile{
		New:      open,
		Protocol: modeltest.GenAI(secret),

		NoDurations:  true,
		NoWindow:     true,
		NoRemoteHost: true, // it never runs here: the address of the service is always named
		NoCapability: true,
		NoKeepAlive:  true,
		NoPull:       true,
	})
}
