package anthropic_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/anthropic"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/modeltest/conformance"
)

const secret = modeltest.Secret

func open(t *testing.T, url string) model.Backend {
	t.Helper()
	return modeltest.MustOpen(t)(
		anthropic.New(anthropic.Config{URL: url + "/anthropic", Key: modeltest.StaticKey(secret)}))
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
