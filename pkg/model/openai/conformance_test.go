package openai_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/modeltest/conformance"
	"conclave/pkg/model/openai"
	"conclave/pkg/model/scriptserver"
)

const secret = modeltest.Secret

func open(t *testing.T, url string) model.Backend {
	t.Helper()
	return modeltest.MustOpen(t)(openai.New(openai.Config{URL: url, Key: modeltest.StaticKey(secret)}))
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
