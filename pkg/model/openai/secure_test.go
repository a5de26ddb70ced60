package openai_test

import (
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote/remotetest"
	"conclave/pkg/model/openai"
)

func TestKey(t *testing.T) {
	remotetest.Run(t, remotetest.Profile{
		New: func(t *testing.T, url string, key remotetest.Key, limit int64) model.Backend {
			t.Helper()
			b, err := openai.New(openai.Config{URL: url, Key: key, Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Header:     "Authorization",
		Prefix:     "Bearer ",
		EmptyEvent: "data: {}\n\n",
		HasEmbed:   true,
	})
}
