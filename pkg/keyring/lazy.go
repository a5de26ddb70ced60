package keyring

import (
	"context"
	"fmt"
)

// OpenLazily returns the keyring of cfg, which it opens at the first call: starting a process does not wait for a
// desktop, and a keyring that was unavailable is opened again at the next call. With [Auto] each call follows the note
// of the chosen backend, so that a credential that the user sets while the system runs is found.
func OpenLazily(cfg Config) Ring { return &lazyRing{cfg: cfg, slot: make(chan struct{}, 1)} }

// lazyRing is the [Ring] of [OpenLazily].
type lazyRing struct {
	cfg  Config
	slot chan struct{} // guards ring and info; a channel, so that waiting for it ends with the context
	ring Ring
	info Info
}

// open returns the ring of the backend that is chosen now, and opens it at the first call and after the choice has
// changed. A failed open is not remembered. Calls wait for one another; the error wraps [ErrUnavailable] when ctx ends
// first.
func (l *lazyRing) open(ctx context.Context) (Ring, error) {
	select {
	case l.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: timeout while another call opens it", ErrUnavailable)
	}
	defer func() { <-l.slot }()
	if l.ring != nil {
		if now, err := Inspect(l.cfg); err != nil {
			return nil, err
		} else if now.Backend == Auto || now.Backend == l.info.Backend {
			return l.ring, nil
		}
	}
	ring, info, err := Open(ctx, l.cfg)
	if err != nil {
		return nil, err
	}
	l.ring, l.info = ring, info
	return ring, nil
}

// Get implements [Ring].
func (l *lazyRing) Get(ctx context.Context, name string) (Secret, error) {
	r, err := l.open(ctx)
	if err != nil {
		return Secret{}, err
	}
	return r.Get(ctx, name)
}

// Set implements [Ring].
func (l *lazyRing) Set(ctx context.Context, name string, value Secret) error {
	r, err := l.open(ctx)
	if err != nil {
		return err
	}
	return r.Set(ctx, name, value)
}

// Remove implements [Ring].
func (l *lazyRing) Remove(ctx context.Context, name string) error {
	r, err := l.open(ctx)
	if err != nil {
		return err
	}
	return r.Remove(ctx, name)
}

// Names implements [Ring].
func (l *lazyRing) Names(ctx context.Context) ([]string, error) {
	r, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	return r.Names(ctx)
}
