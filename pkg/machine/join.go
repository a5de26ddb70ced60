package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// State is what a machine that joined knows of its hub. Its keys are in a folder of their own.
type State struct {
	Hub     string    `json:"hub"`
	Address string    `json:"address"`
	Pin     string    `json:"pin"`
	Machine string    `json:"machine"`
	Actors  []string  `json:"actors"`
	Keys    string    `json:"keys"` // name of the folder of the seeds, in the key folder
	Joined  time.Time `json:"joined"`
}

// StatePath is the file of the state in the data folder of a machine that joined.
func StatePath(home bus.Home) string { return filepath.Join(home.Data, "machine.json") }

// ErrNotJoined means that the data folder is not that of a machine that joined a hub.
var ErrNotJoined = errors.New("this machine has not joined a hub: get a token with conclave invite on the hub, then " +
	"run conclave join - here")

// ReadState reads the state; the error wraps [ErrNotJoined] when there is none.
func ReadState(home bus.Home) (State, error) {
	var s State
	b, err := os.ReadFile(StatePath(home))
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotJoined
	}
	if err == nil {
		err = strict.DecodeJSON(b, &s)
	}
	if err == nil {
		_, err = bus.ParsePin(s.Pin)
	}
	if err != nil {
		return s, fmt.Errorf("reading %s: %w: restore it, or join again with a new token", StatePath(home), err)
	}
	return s, nil
}

// Principal returns the machine as the hub knows it, without its keys.
func (s State) Principal() subjects.Principal {
	return subjects.Principal{Name: s.Machine, Kind: subjects.MachinePrincipal, Actors: s.Actors}
}

// LeafConfig returns the configuration of the machine's server.
func (s State) LeafConfig(home bus.Home) (bus.LeafConfig, error) {
	pin, err := bus.ParsePin(s.Pin)
	return bus.LeafConfig{
		Machine: s.Principal(), Address: s.Address, Pin: pin, Seeds: s.seeds(home),
		Store: home.Store(),
	}, err
}

func (s State) seeds(home bus.Home) bus.Keys {
	return bus.Keys{Dir: filepath.Join(home.Keys().Dir, s.Keys)}
}

// Join enrols this machine with a token and stores the state. A folder that has the keys of a hub is rejected, and so
// is one that joined already, unless the token is for the same machine of the same hub: then its keys are replaced.
// newHubKey accepts a token of a hub with another TLS key than the one that the machine joined, for the same machine
// name. The folder must exist.
func Join(ctx context.Context, home bus.Home, t Token, newHubKey bool, now time.Time) (State, error) {
	if _, err := os.Stat(home.Keys().Path("broker")); err == nil {
		return State{}, fmt.Errorf("%s is the data folder of a hub: choose another one with --data", home.Data)
	}
	before, err := ReadState(home)
	joined := err == nil
	if err != nil && !errors.Is(err, ErrNotJoined) {
		return State{}, err
	}
	if joined && before.Pin != t.Pin.String() && !newHubKey {
		return State{}, fmt.Errorf("this data folder joined the hub %s as %s, and the token is of a hub with another "+
			"TLS key: if that hub was restored without its keys, add --new-hub-key; else choose another folder with "+
			"--data", before.Hub, before.Machine)
	}
	s := State{Address: t.Address, Pin: t.Pin.String(), Keys: "hub-" + t.ID, Joined: now.UTC()}
	offer, err := Enrol(ctx, t, func(o Offer) (map[string]string, error) {
		p := subjects.Principal{Name: o.Machine, Kind: subjects.MachinePrincipal, Actors: o.Actors}
		switch {
		case joined && o.Machine != before.Machine:
			return nil, fmt.Errorf("this data folder joined the hub %s as %s, and the token is for %s: choose "+
				"another folder with --data", before.Hub, before.Machine, o.Machine)
		case p.CheckRights() != nil:
			return nil, fmt.Errorf("the hub offers what this build does not know: run the same build of conclave on "+
				"both (%w)", p.CheckRights())
		case !slices.Equal(p.Accounts(), o.Accounts):
			return nil,
				errors.New("the hub has other accounts for these actors: run the same build of conclave on both")
		}
		if _, err := s.seeds(home).Ensure(o.Accounts); err != nil {
			return nil, err
		}
		keys := map[string]string{}
		for _, a := range o.Accounts {
			var err error
			if keys[a], err = s.seeds(home).Public(a); err != nil {
				return nil, err
			}
		}
		return keys, nil
	})
	if err != nil {
		_ = os.RemoveAll(s.seeds(home).Dir)
		return State{}, err
	}
	s.Hub, s.Machine, s.Actors = offer.Hub, offer.Machine, offer.Actors
	if err := file.ReplaceJSON(StatePath(home), s); err != nil {
		return State{},
			fmt.Errorf("storing what the hub answered: %w: get a new token with conclave machines rotate %s", err,
				s.Machine)
	}
	if joined {
		_ = os.RemoveAll(before.seeds(home).Dir)
	}
	return s, nil
}
