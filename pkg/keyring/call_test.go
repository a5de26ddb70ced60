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
	"github.com/godbus/dbus"

	"conclave/pkg/seal"
)

const told = "canary-in-an-error"

// stuck is a library that answers when it is let.
type stuck struct {
	lib.Keyring
	asked chan string
	let   chan lib.Item
}

func (s *stuck) Get(name string) (lib.Item, error) {
	s.asked <- name
	item, ok := <-s.let
	if !ok {
		panic("nil map of " + told)
	}
	return item, nil
}

// A call that does not come back is given up in time. The next one waits for it, no longer than it may, and both find the
// library free again when it has answered.
func TestStuck(t *testing.T) {
	t.Parallel()
	s := &stuck{asked: make(chan string, 9), let: make(chan lib.Item)}
	r := &ring{backend: SecretService, lib: s, slot: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := r.Get(ctx, "token")
		first <- err
	}()
	<-s.asked // it is in the library's hands
	cancel()
	if err := <-first; !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("the first: %v", err)
	}
	soon, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := r.Get(soon, "token"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "earlier call") {
		t.Errorf("the second: %v", err)
	}
	late := []byte(told)
	s.let <- lib.Item{Key: "token", Data: late}

	third := make(chan Secret)
	go func() {
		v, err := r.Get(t.Context(), "token")
		if err != nil {
			t.Error(err)
		}
		third <- v
	}()
	<-s.asked // so the first has let go of the library
	if strings.Contains(string(late), "canary") {
		t.Error("what came too late was not wiped")
	}
	s.let <- lib.Item{Key: "token", Data: []byte("v")}
	if got := <-third; string(got.Reveal()) != "v" {
		t.Errorf("the third: %q", got.Reveal())
	}

	go func() { <-s.asked; close(s.let) }()
	if _, err := r.Get(t.Context(), "token"); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), told) {
		t.Errorf("after a panic: %v", err)
	}
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	bad := json.Unmarshal([]byte(`{"Key":"`+told+`","Data":12345}`), &lib.Item{})
	notJSON := json.Unmarshal([]byte(told), &lib.Item{})
	for _, tt := range []struct {
		name    string
		backend string
		err     error
		want    error
	}{
		{"not there", KWallet, lib.ErrKeyNotFound, ErrNotFound},
		{"locked", SecretService, dbus.Error{Name: "org.freedesktop.Secret.Error.IsLocked", Body: []any{told}}, ErrLocked},
		{"no service", SecretService, dbus.Error{Name: "org.freedesktop.DBus.Error.ServiceUnknown", Body: []any{told}}, ErrUnavailable},
		{"ours", File, fmt.Errorf("x: %w", ErrDamaged), ErrDamaged},
		{"unknown", Pass, errors.New(told), ErrUnavailable},
		{"trick: a name that is a text", KWallet, dbus.Error{Name: told + " and more"}, ErrUnavailable},
		{"trick: a parser that quotes a number", Pass, bad, ErrDamaged},
		{"trick: a parser that quotes a letter", SecretService, notJSON, ErrDamaged},
		{"trick: a cipher that quotes", File, errors.New("could not decrypt " + told), ErrDamaged},
	} {
		got := translate(tt.backend, tt.err)
		if tt.err == nil || !errors.Is(got, tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
		for _, part := range []string{told, "canary", "12345", "'c'"} {
			if strings.Contains(got.Error(), part) {
				t.Errorf("%s: it tells %s: %v", tt.name, part, got)
			}
		}
	}
}

// An entry under our name that is another's, or no credential, is not handed out.
func TestNotOurs(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]lib.Item{
		"another name": {Key: "other", Data: []byte(told)},
		"no name":      {Data: []byte(told)},
		"no value":     {Key: "token"},
		"too long":     {Key: "token", Data: make([]byte, seal.MaxValue+1)},
	} {
		s := &stuck{asked: make(chan string, 1), let: make(chan lib.Item, 1)}
		s.let <- item
		r := &ring{backend: KWallet, lib: s, slot: make(chan struct{}, 1)}
		if got, err := r.Get(t.Context(), "token"); !errors.Is(err, ErrDamaged) || got.Reveal() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
