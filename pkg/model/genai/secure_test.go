package genai_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/genai"
	"conclave/pkg/model/internal/remote/remotetest"
	"conclave/pkg/model/modeltest"
)

func TestKey(t *testing.T) {
	remotetest.Run(t, remotetest.Profile{
		New: func(t *testing.T, url string, key remotetest.Key, limit int64) model.Backend {
			t.Helper()
			return modeltest.MustOpen(t)(genai.New(genai.Config{URL: url, Key: key, Limit: limit}))
		},
		Header:     "X-Goog-Api-Key",
		Prefix:     "",
		EmptyEvent: "data: {}\n\n",
		HasEmbed:   true,
	})
}
