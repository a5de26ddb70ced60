package machine

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"conclave/pkg/file"
	"conclave/pkg/strict"
)

// Invitation lets one machine join once, until it expires.
type Invitation struct {
	ID      string    `json:"id"`
	Hash    string    `json:"hash"` // of the secret: see [Secret.Hash]
	Machine string    `json:"machine"`
	Actors  []string  `json:"actors"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`
	// Replaces is set when the machine exists and gets new keys: those that it has are valid until it joins again.
	Replaces bool `json:"replaces,omitempty"`
}

// IsOpen reports whether the invitation can still be used.
func (i Invitation) IsOpen(now time.Time) bool { return i.Used.IsZero() && now.Before(i.Expires) }

// Errors of an invitation, with what to do. The first does not tell an unknown invitation from a wrong secret.
var (
	ErrUnknownInvitation = errors.New("the hub does not know this invitation: ask for a new one with conclave invite")
	ErrUsed              = errors.New("this invitation was used already: each is for one machine and one join. Ask " +
		"for a new one with conclave invite, or conclave machines rotate if the machine is listed")
	ErrExpired = errors.New("this invitation has expired: ask for a new one with conclave invite")
	// ErrTooMany means that the hub has as many open invitations as it keeps.
	ErrTooMany = fmt.Errorf("there are %d open invitations: wait until some expire", maxOpen)
)

const (
	maxOpen = 32                 // open invitations
	keepFor = 7 * 24 * time.Hour // how long a used or expired one is kept, so that its error stays exact
)

// Invitations is the list of invitations in a file. It may be used concurrently by one process.
type Invitations struct {
	path string
	mu   sync.Mutex
	all  []Invitation
}

// OpenInvitations reads the file at path; a missing one is an empty list.
func OpenInvitations(path string) (*Invitations, error) {
	l := &Invitations{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = strict.DecodeJSON(b, &struct {
			Invitations *[]Invitation `json:"invitations"`
		}{&l.all})
	}
	if err != nil {
		return nil, fmt.Errorf("reading the invitations %s: %w", path, err)
	}
	return l, nil
}

// Add stores an invitation, and drops the other open ones of its machine. It is on disk when Add returns.
func (l *Invitations) Add(inv Invitation, now time.Time) error {
	if !validID(inv.ID) || len(inv.Hash) != 64 || !inv.Used.IsZero() || !inv.IsOpen(now) {
		return errors.New("malformed invitation")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(l.all), func(o Invitation) bool {
		return o.ID == inv.ID || o.IsOpen(now) && o.Machine == inv.Machine || !o.IsOpen(now) &&
			now.Sub(o.Expires) > keepFor
	})
	if len(openOf(all, now)) >= maxOpen {
		return ErrTooMany
	}
	return l.replace(append(all, inv))
}

// Check returns the invitation for which the secret is right. The error is [ErrUnknownInvitation], or for the right
// secret [ErrUsed] or [ErrExpired].
func (l *Invitations) Check(id string, s Secret, now time.Time) (Invitation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(id, s, now)
	if err != nil {
		return Invitation{}, err
	}
	return l.all[i], nil
}

// Use is [Invitations.Check], and marks the invitation as used, on disk, before it returns.
func (l *Invitations) Use(id string, s Secret, now time.Time) (Invitation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(id, s, now)
	if err != nil {
		return Invitation{}, err
	}
	all := slices.Clone(l.all)
	all[i].Used = now.UTC()
	if err := l.replace(all); err != nil {
		return Invitation{}, err
	}
	return all[i], nil
}

// Cancel drops the open invitations of a machine and reports whether there were any.
func (l *Invitations) Cancel(name string, now time.Time) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(l.all), func(o Invitation) bool { return o.Machine == name && o.IsOpen(now) })
	if len(all) == len(l.all) {
		return false, nil
	}
	return true, l.replace(all)
}

// Open returns the invitations that can still be used.
func (l *Invitations) Open(now time.Time) []Invitation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return openOf(l.all, now)
}

// NeedListener reports whether an invitation is open, or was used so recently that its enrolment may not be complete.
func (l *Invitations) NeedListener(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(i Invitation) bool {
		return i.IsOpen(now) || !i.Used.IsZero() && now.Sub(i.Used) < enrolTimeout
	})
}

// openOf returns the invitations of a list that can still be used.
func openOf(all []Invitation, now time.Time) []Invitation {
	return slices.DeleteFunc(slices.Clone(all), func(i Invitation) bool { return !i.IsOpen(now) })
}

// find returns the index of an invitation that can be used. It compares in constant time, also for an unknown id.
func (l *Invitations) find(id string, s Secret, now time.Time) (int, error) {
	hash, at := s.Hash(), -1
	for i, inv := range l.all {
		if subtle.ConstantTimeCompare([]byte(inv.ID), []byte(id))&subtle.ConstantTimeCompare([]byte(inv.Hash),
			[]byte(hash)) == 1 {
			at = i
		}
	}
	switch {
	case at < 0:
		return 0, ErrUnknownInvitation
	case !l.all[at].Used.IsZero():
		return 0, ErrUsed
	case !l.all[at].IsOpen(now):
		return 0, ErrExpired
	}
	return at, nil
}

// replace writes the list aside and renames it, and keeps it when that succeeded.
func (l *Invitations) replace(all []Invitation) error {
	if err := file.ReplaceJSON(l.path, map[string][]Invitation{"invitations": all}); err != nil {
		return fmt.Errorf("storing the invitations: %w", err)
	}
	l.all = all
	return nil
}
