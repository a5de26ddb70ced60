package anthropic_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/anthropic"
	"conclave/pkg/model/internal/remote/remotetest"
	"conclave/pkg/model/modeltest"
)

func TestKey(t *testing.T) {
	remotetest.Run(t, remotetest.Profile{
		New: func(t *testing.T, url string, key remotetest.Key, limit int64) model.Backend {
			t.Helper()
			return modeltest.MustOpen(t)(anthropic.New(anthropic.Config{URL: url, Key: key, Limit: limit}))
		},
		Header:     "X-Api-Key",
		Prefix:     "",
		EmptyEvent: "event: ping\ndata: {\"type\":\"ping\"}\n\n",
		HasEmbed:   false,
	})
}
