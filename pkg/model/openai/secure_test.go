package openai_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote/remotetest"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/openai"
)

func TestKey(t *testing.T) {
	remotetest.Run(t, remotetest.Profile{
		New: func(t *testing.T, url string, key remotetest.Key, limit int64) model.Backend {
			t.Helper()
			return modeltest.MustOpen(t)(openai.New(openai.Config{URL: url, Key: key, Limit: limit}))
		},
		Header:     "Authorization",
		Prefix:     "Bearer ",
		EmptyEvent: "data: {}\n\n",
		HasEmbed:   true,
	})
}
