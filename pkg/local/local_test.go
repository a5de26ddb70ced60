package local_test

import (
	"testing"

	"conclave/pkg/local"
)

func TestIsLocalHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost": true, "127.0.0.1": true, "127.9.8.7": true, "::1": true,
		"0:0:0:0:0:0:0:1":  true,
		"::ffff:127.0.0.1": true, "::FFFF:7f00:1": true,

		"": false, ".": false, "localhost.": false, "api.localhost": false, "localhost.example.org": false,
		"localhost:11434": false, "127.0.0.1:80": false, "[::1]": false, " localhost": false,
		"127.0.0.1.example.org": false, "127.1": false, "2130706433": false, "0177.0.0.1": false, "127.0.0.01": false,
		"::1%lo": false, "fe80::1%eth0": false, "::ffff:127.0.0.1%eth0": false, "::127.0.0.1": false,
		"0.0.0.0": false, "::": false, "10.0.0.1": false, "::ffff:10.0.0.1": false, "128.0.0.1": false,
		"126.255.255.255": false,
		"gpu-box":         false, "example.org": false, "ip6-localhost": false, "localhos\u0074\u200b": false,
		"ſocalhost": false,
	} {
		if got := local.IsLocalHost(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}

// Letters that fold to those of localhost in Unicode are other names.
func TestUnicodeFoldingIsNotLocal(t *testing.T) {
	t.Parallel()
	if local.IsLocalHost("localho\u017ft") { // a long s folds to s
		t.Error("a name with a long s counts as localhost")
	}
}
