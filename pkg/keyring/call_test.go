package keyring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	lib "github.com/99designs/keyring"
	"github.com/godbus/dbus/v5"

	"conclave/pkg/seal"
)

// canary is a text that must not appear in an error.
const canary = "canary-in-an-error"

// blockedLibrary is a library whose Get waits for an item in release, and panics when release is closed.
type blockedLibrary struct {
	lib.Keyring
	called  chan string
	release chan lib.Item
}

func (s *blockedLibrary) Get(name string) (lib.Item, error) {
	s.called <- name
	item, ok := <-s.release
	if !ok {
		panic("nil map of " + canary)
	}
	return item, nil
}

// A call of the library that blocks is abandoned when its context ends. The next call waits for it, at most until its
// own context ends; the library is usable again when the abandoned call has returned, and its value is wiped.
func TestBlockedLibraryCallTimesOut(t *testing.T) {
	t.Parallel()
	s := &blockedLibrary{called: make(chan string, 9), release: make(chan lib.Item)}
	r := &ring{backend: Pass, lib: s, slot: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := r.Get(ctx, "token")
		first <- err
	}()
	<-s.called // the call has begun
	cancel()
	if err := <-first; !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first: %v", err)
	}
	soon, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := r.Get(soon, "token"); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "earlier call") {
		t.Errorf("the second: %v", err)
	}
	late := []byte(canary)
	s.release <- lib.Item{Key: "token", Data: late}

	third := make(chan Secret)
	go func() {
		v, err := r.Get(t.Context(), "token")
		if err != nil {
			t.Error(err)
		}
		third <- v
	}()
	<-s.called // the abandoned call has ended
	if strings.Contains(string(late), "canary") {
		t.Error("the value of an abandoned call was not wiped")
	}
	s.release <- lib.Item{Key: "token", Data: []byte("v")}
	if got := <-third; string(got.Reveal()) != "v" {
		t.Errorf("the third: %q", got.Reveal())
	}

	go func() { <-s.called; close(s.release) }()
	if _, err := r.Get(t.Context(), "token"); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), canary) {
		t.Errorf("after a panic: %v", err)
	}
}

func TestLibraryErrorsQuoteNoCredential(t *testing.T) {
	t.Parallel()
	bad := json.Unmarshal([]byte(`{"Key":"`+canary+`","Data":12345}`), &lib.Item{})
	notJSON := json.Unmarshal([]byte(canary), &lib.Item{})
	for _, tt := range []struct {
		name    string
		backend string
		err     error
		want    error
	}{
		{"not there", KWallet, lib.ErrKeyNotFound, ErrNotFound},
		{
			"locked", SecretService,
			dbus.Error{Name: "org.freedesktop.Secret.Error.IsLocked", Body: []any{canary}},
			ErrLocked,
		},
		{"no service", SecretService, dbus.Error{
			Name: "org.freedesktop.DBus.Error.ServiceUnknown",
			Body: []any{canary},
		}, ErrUnavailable},
		{"ours", File, fmt.Errorf("x: %w", ErrDamaged), ErrDamaged},
		{"unknown", Pass, errors.New(canary), ErrUnavailable},
		{"trick: a name that is a text", KWallet, dbus.Error{Name: canary + " and more"}, ErrUnavailable},
		{"trick: a parser that quotes a number", Pass, bad, ErrDamaged},
		{"trick: a parser that quotes a letter", SecretService, notJSON, ErrDamaged},
		{"trick: a cipher that quotes", File, errors.New("could not decrypt " + canary), ErrDamaged},
	} {
		got := translateError(tt.backend, tt.err)
		if tt.err == nil || !errors.Is(got, tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
		for _, part := range []string{canary, "canary", "12345", "'c'"} {
			if strings.Contains(got.Error(), part) {
				t.Errorf("%s: it quotes %s: %v", tt.name, part, got)
			}
		}
	}
}

// An entry that holds another name, or no valid credential, is not returned.
func TestForeignEntryIsNotReturned(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]lib.Item{
		"another name": {Key: "other", Data: []byte(canary)},
		"no name":      {Data: []byte(canary)},
		"no value":     {Key: "token"},
		"too long":     {Key: "token", Data: make([]byte, seal.MaxValue+1)},
	} {
		s := &blockedLibrary{called: make(chan string, 1), release: make(chan lib.Item, 1)}
		s.release <- item
		r := &ring{backend: Pass, lib: s, slot: make(chan struct{}, 1)}
		if got, err := r.Get(t.Context(), "token"); !errors.Is(err, ErrDamaged) || got.Reveal() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
