// Package modeltest has what tests of model clients need beside [scriptserver]: a scripted server that fails the test
// on a mismatch, the protocols of Anthropic and Google, and a canned server for benchmarks.
package modeltest

import (
	"context"

	"conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
)

// TB is the part of [testing.TB] that this package uses.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// object is a JSON object.
type object = map[string]any

// New starts a scripted server and closes it at the end of the test. A mismatch with the script fails the test then,
// unless the test has read [scriptserver.Server.Err] itself.
func New(t TB, s scriptserver.Script, opts ...scriptserver.Option) *scriptserver.Server {
	t.Helper()
	server := scriptserver.Start(s, opts...)
	t.Cleanup(func() {
		server.Close()
		if err := server.UnreadErr(); err != nil {
			t.Errorf("requests did not match the script:\n%v", err)
		}
	})
	return server
}

// Secret is the key that the servers of backend tests ask for.
const Secret = "sk-test-0123456789abcdefghijklmnop"

// StaticKey returns a source of keys that always returns key.
func StaticKey(key string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return key, nil }
}

// MustOpen returns a function that returns its backend, and fails the test on an error.
func MustOpen(t TB) func(model.Backend, error) model.Backend {
	return func(b model.Backend, err error) model.Backend {
		t.Helper()
		if err != nil {
			t.Fatalf("opening a backend: %v", err)
		}
		return b
	}
}
