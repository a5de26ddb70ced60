package keyring

import (
	"context"
	"fmt"
)

// Later is the keyring of cfg, opened when it is first asked: a start does not wait for a desktop, and a keyring that was
// not there the first time is tried again. With [Auto] it follows the note which keyring was chosen, so that a credential
// that the user sets while the system runs is found.
func Later(cfg Config) Ring { return &later{cfg: cfg, slot: make(chan struct{}, 1)} }

type later struct {
	cfg  Config
	slot chan struct{} // guards what is below, for as long as a context lasts
	ring Ring
	info Info
}

// open returns the ring to ask now.
func (l *later) open(ctx context.Context) (Ring, error) {
	select {
	case l.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: it is still being opened", ErrUnavailable)
	}
	defer func() { <-l.slot }()
	if l.ring != nil {
		if now, err := Look(l.cfg); err != nil {
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
func (l *later) Get(ctx context.Context, name string) (Secret, error) {
	r, err := l.open(ctx)
	if err != nil {
		return Secret{}, err
	}
	return r.Get(ctx, name)
}

// Set implements [Ring].
func (l *later) Set(ctx context.Context, name string, value Secret) error {
	r, err := l.open(ctx)
	if err != nil {
		return err
	}
	return r.Set(ctx, name, value)
}

// Remove implements [Ring].
func (l *later) Remove(ctx context.Context, name string) error {
	r, err := l.open(ctx)
	if err != nil {
		return err
	}
	return r.Remove(ctx, name)
}

// Names implements [Ring].
func (l *later) Names(ctx context.Context) ([]string, error) {
	r, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	return r.Names(ctx)
}
