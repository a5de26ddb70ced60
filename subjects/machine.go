package subjects

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// WitnessStore is the account and role of a machine's server with the copies of the audit log. No leaf node connects to
// it, so that the hub cannot reach the copies.
const WitnessStore = "witness_store"

// WitnessHeads is what a machine has copied of the audit log.
type WitnessHeads struct {
	// head of each copied log, in the text form of package audit; the present log last
	Heads    []string  `json:"heads"`
	Synced   time.Time `json:"synced"`             // last comparison with the hub
	Conflict string    `json:"conflict,omitempty"` // why the hub's log does not continue the copy; "" = it does
}

// MachineInvite invites a machine, or lets one that joined replace its keys. It has no secret: the user keeps it.
type MachineInvite struct {
	Machine string    `json:"machine"`
	Actors  []string  `json:"actors,omitempty"` // see [MachineActors]; not with Rotate
	ID      string    `json:"id"`
	Hash    string    `json:"hash"` // of the secret
	Expires time.Time `json:"expires"`
	Rotate  bool      `json:"rotate,omitempty"` // the machine exists and gets new keys
}

// MachineInvited is what the token of an invitation needs besides its secret.
type MachineInvited struct {
	Hub    string   `json:"hub"`
	Pin    string   `json:"pin"`    // of the hub's TLS key
	Listen string   `json:"listen"` // host:port that the hub listens on
	Actors []string `json:"actors"`
}

// MachineList is the list of the machines.
type MachineList struct {
	Machines []MachineStatus `json:"machines"`
}

// MachineStatus is one machine that joined or is invited.
type MachineStatus struct {
	Name         string        `json:"name"`
	Actors       []string      `json:"actors"`
	Added        time.Time     `json:"added,omitzero"`         // when it joined; zero = not yet
	Connected    time.Time     `json:"connected,omitzero"`     // since when; zero = not connected
	LastSeen     time.Time     `json:"last_seen,omitzero"`     // since the hub was started; zero = never
	InvitedUntil time.Time     `json:"invited_until,omitzero"` // an invitation is open
	RTT          time.Duration `json:"rtt_ns,omitempty"`
	Address      string        `json:"address,omitempty"`
	// Claimed means that the connection is known only by the name that the machine gives itself, because another
	// machine has the same accounts.
	Claimed bool `json:"claimed,omitempty"`
}

// machineHead is the part of a machine's configuration that does not depend on its actors. The leaf nodes to the hub
// are added by the program: their keys are secret.
const machineHead = `server_name: %q
max_payload: 1MB
max_control_line: 4KB
max_pending: 32MB
ping_interval: "2s"
ping_max: 2
write_deadline: "5s"
jetstream { store_dir: %q, domain: %q, max_mem: 0, max_file: 1TB, max_buffered_size: 16MB }
system_account: SYS

accounts {
  SYS: {}
`

// MachineLayout returns the accounts of the NATS server of a machine: those of p, with the keys of the actors that run
// there. Each key has the permissions that it would have on the hub. The accounts have no edges: imports and exports
// are on the hub, which decides what reaches the machine and what leaves it. p must be a valid machine; its keys do not
// matter.
func MachineLayout(p Principal) (Layout, error) {
	if p.Kind != MachinePrincipal {
		return Layout{}, fmt.Errorf("%w %s: not a machine", ErrPrincipal, p.Name)
	}
	p = p.WithPlaceholderKeys() // the machine's server has keys of its own
	hub, err := Table().With([]Principal{p})
	if err != nil {
		return Layout{}, err
	}
	out := Layout{}
	for _, name := range p.Accounts() {
		out.Accounts = append(out.Accounts, hub.machineAccount(p, name))
	}
	if slices.Contains(p.Actors, witnessActor) {
		out.Accounts = append(out.Accounts, Account{
			Name: WitnessStore, Doc: "copies of the audit log of the hub", Store: "{ max_file: 1TB, max_mem: 0, " +
				"max_streams: 1, max_consumers: 16 }", MaxConns: 24,
			Users: []User{{Role: WitnessStore, Isolated: true, Pub: []string{
				"copy.>", "$JS.API.>", "$JS.ACK.>",
				"$JS.FC.>",
			}, Sub: []string{"_INBOX.>"}}},
		})
	}
	if wrong := checkUniqueNames(out); len(wrong) > 0 {
		return Layout{}, fmt.Errorf("%w %s: %s", ErrPrincipal, p.Name, strings.Join(wrong, "; "))
	}
	return out, nil
}

// machineAccount returns the account of that name for the server of p.
func (l Layout) machineAccount(p Principal, name string) Account {
	i := slices.IndexFunc(l.Accounts, func(a Account) bool { return a.Name == name })
	a := Account{Name: name, Doc: l.Accounts[i].Doc, MaxConns: 24, MaxLeafs: 2}
	if zone, tools, ok := p.Zone(); ok && zone == name {
		for _, t := range tools {
			u := User{
				Role: ToolRole(t), Isolated: true, Sub: append(discoverySubjects(t), "_INBOX.>"),
				Pub: []string{"_R_.>"},
			}
			u.serveTools([]string{t})
			a.Users = append(a.Users, u)
		}
		return a
	}
	role := strings.TrimSuffix(name, "_"+p.Name)
	from, u := l.Accounts[i], l.Accounts[i].Users[0]
	if j := slices.IndexFunc(l.Accounts, func(a Account) bool { return a.Name == role }); j >= 0 {
		from, u = l.Accounts[j], l.Accounts[j].Users[0] // the same actor on the hub
	}
	_, pub, sub := l.importsOf(name)
	local := User{
		Role: role, Isolated: true, Pub: slices.Concat(pub, u.Pub),
		Sub: slices.Concat([]string{"_INBOX.>"}, sub, u.Sub, discoverySubjects(role), discoverySubjects(name)),
	}
	if from.Serves {
		local.Pub = append(local.Pub, "_R_.>")
	}
	a.Users = []User{local}
	return a
}

// MachineConf returns the configuration of the machine's NATS server. keys are the public keys of its roles.
func (l Layout) MachineConf(machine, store string, keys map[string]string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, machineHead, machine, store, machine)
	for _, a := range l.Accounts {
		a.Users = slices.Clone(a.Users)
		for i, u := range a.Users {
			if a.Users[i].Key = keys[u.Role]; !publicUserKey.MatchString(a.Users[i].Key) {
				return "", fmt.Errorf("no key for %s", u.Role)
			}
		}
		l.writeAccount(&b, a, true)
	}
	b.WriteString("}\n")
	return b.String(), nil
}
