package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// Links is a server that knows the connections of machines: the embedded one.
type Links interface {
	LeafLinks() ([]bus.LeafLink, error)
	LeafAddress() string
}

// MachineConfig is what the registry needs to let machines join. Without it the registry has no machines.
type MachineConfig struct {
	Listen      string // host:port; "off" = no machine may join or connect
	Hub         string // name of this machine, for the user
	Certificate tls.Certificate
	Invitations *machine.Invitations
	Links       Links
	// OnListen is called with the address each time the port is opened; may be nil.
	OnListen func(address string)
}

// listenOff is the value of Listen without a port.
const listenOff = "off"

// pollInterval is how often the connections of machines are read.
const pollInterval = 2 * time.Second

// machines is the part of the registry for machines. It implements [machine.Registrar].
type machines struct {
	cfg      MachineConfig
	registry *Registry
	out      actor.Out // of the actor's start: enrolments arrive outside the bus
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu       sync.Mutex
	listener *machine.Listener // nil while no machine has joined and no invitation is open
	seen     map[string]seen   // by machine
}

// seen is what is known of the connection of a machine.
type seen struct {
	since, last time.Time // since is zero while it is not connected
	rtt         time.Duration
	address     string
	claimed     bool // by the name that its server gives itself: another machine has the same accounts
}

// ServeMachines lets machines join and connect. It must be called before the actor starts.
func (r *Registry) ServeMachines(cfg MachineConfig) {
	r.machines = &machines{cfg: cfg, registry: r, seen: map[string]seen{}}
}

// routes returns the requests about machines.
func (m *machines) routes() []actor.Route {
	if m == nil {
		return nil
	}
	return []actor.Route{
		actor.Serve(subjects.MachineInviteService, m.onInvite, actor.Workers(1)),
		actor.Serve(subjects.MachineListService, m.onList),
	}
}

// start opens the port if a machine has joined or an invitation is open, and reads the connections until close.
func (m *machines) start(ctx context.Context, out actor.Out) error {
	if m == nil {
		return nil
	}
	m.out = out
	if err := m.adjustListener(); err != nil {
		return err
	}
	ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.running.Go(func() {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for {
			m.readLinks()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := m.adjustListener(); err != nil {
				out.LogError(err)
			}
		}
	})
	return nil
}

// close closes the port. Machines reconnect when it is opened again.
func (m *machines) close() {
	if m == nil || m.stop == nil {
		return
	}
	m.stop()
	m.running.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listener != nil {
		m.listener.Close()
		m.listener = nil
	}
}

// adjustListener opens the port while a machine has joined, an invitation is open or an enrolment may be incomplete,
// and closes it otherwise.
func (m *machines) adjustListener() error {
	joined := slices.ContainsFunc(m.registry.principals(), func(p subjects.Principal) bool {
		return p.Kind == subjects.MachinePrincipal
	})
	wanted := m.cfg.Listen != listenOff && (joined || m.cfg.Invitations.NeedListener(m.out.Now()))
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case wanted && m.listener == nil:
		l, err := machine.Listen(m.cfg.Listen, machine.ListenerConfig{
			Certificate: m.cfg.Certificate, LeafAddress: m.cfg.Links.LeafAddress, Invitations: m.cfg.Invitations,
			Registrar: m,
			OnRefuse:  m.out.LogError, Now: m.out.Now,
		})
		if err != nil {
			return err
		}
		m.listener = l
		if m.cfg.OnListen != nil {
			m.cfg.OnListen(l.Addr())
		}
	case !wanted && m.listener != nil:
		l := m.listener
		m.listener = nil
		go l.Close() // an enrolment that is refused may hold it
	}
	return nil
}

// onInvite stores an invitation and opens the port. The secret is with the user: the request has only its hash.
func (m *machines) onInvite(ctx context.Context, in actor.Msg[subjects.MachineInvite],
	out actor.Out,
) (subjects.MachineInvited, error) {
	var none subjects.MachineInvited
	q := in.Body
	rec := subjects.AuditRecord{
		AgentID: in.From, Action: subjects.ActionMachineInvite,
		ParamsHash: m.registry.hash.Hash([]byte(q.Machine + "\n" + q.ID)),
	}
	inv, err := m.newInvitation(q, out.Now())
	if err != nil {
		m.registry.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.CodeMalformed)
		return none, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	pin, err := bus.PinOf(m.cfg.Certificate)
	if err != nil {
		return none, err
	}
	rec.Tool = inv.Machine
	return actor.Audited(ctx, out, m.registry.gate, rec,
		func(_ context.Context, p *actor.Permit) (subjects.MachineInvited, error) {
			if err := p.Check(); err != nil {
				return none, err
			}
			if err := m.cfg.Invitations.Add(inv, out.Now()); err != nil {
				return none, subjects.Faultf(subjects.CodeUnavailable, "%v", err)
			}
			address, err := m.openListener()
			if err != nil { // without the port nobody could use the invitation
				if err := m.cancelInvitations(inv.Machine, out.Now()); err != nil {
					out.LogError(err)
				}
				return none, subjects.Faultf(subjects.CodeUnavailable, "this machine cannot be reached by others: %v: "+
					"check machines.listen in system.yaml, then invite again", err)
			}
			return subjects.MachineInvited{Hub: m.cfg.Hub, Pin: pin.String(), Listen: address, Actors: inv.Actors}, nil
		})
}

// openListener opens the port if it is not open, and returns its address.
func (m *machines) openListener() (string, error) {
	if err := m.adjustListener(); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listener == nil { // closed since, by the end of the invitation
		return "", errors.New("the invitation has expired")
	}
	return m.listener.Addr(), nil
}

// minInvitation and maxInvitation bound the time for which an invitation is open. The command permits a minute or more,
// some of which has passed when the request arrives.
const (
	minInvitation = 30 * time.Second
	maxInvitation = 7 * 24 * time.Hour
)

// newInvitation returns the invitation of a request, or why it cannot be made.
func (m *machines) newInvitation(q subjects.MachineInvite, now time.Time) (machine.Invitation, error) {
	inv := machine.Invitation{
		ID: q.ID, Hash: q.Hash, Machine: q.Machine, Actors: q.Actors, Expires: q.Expires.UTC(),
		Replaces: q.Rotate,
	}
	if m.cfg.Listen == listenOff {
		return inv, errors.New("no machine may join: machines.listen in system.yaml is off; set it to an address " +
			"such as 0.0.0.0:7422")
	}
	if inv.Expires.Before(now.Add(minInvitation)) || inv.Expires.After(now.Add(maxInvitation)) {
		return inv, errors.New("an invitation is open for a minute to seven days")
	}
	list := m.registry.principals()
	at := slices.IndexFunc(list, func(p subjects.Principal) bool { return p.Name == q.Machine })
	switch {
	case q.Rotate && (at < 0 || list[at].Kind != subjects.MachinePrincipal):
		return inv, errors.New("no machine has this name")
	case q.Rotate:
		inv.Actors = list[at].Actors
		return inv, nil
	}
	p := subjects.Principal{Name: q.Machine, Kind: subjects.MachinePrincipal, Actors: q.Actors}
	_, err := subjects.Table().With(append(list, p.WithPlaceholderKeys()))
	return inv, err
}

// cancelInvitations drops the open invitations of a name.
func (m *machines) cancelInvitations(name string, now time.Time) error {
	if m == nil {
		return nil
	}
	_, err := m.cfg.Invitations.Cancel(name, now)
	return err
}

// isInvited reports whether an invitation of this name is open.
func (m *machines) isInvited(name string, now time.Time) bool {
	return m != nil && slices.ContainsFunc(m.cfg.Invitations.Open(now), func(i machine.Invitation) bool {
		return i.Machine == name
	})
}

// Offer implements [machine.Registrar].
func (m *machines) Offer(inv machine.Invitation) machine.Offer {
	p := subjects.Principal{Name: inv.Machine, Kind: subjects.MachinePrincipal, Actors: inv.Actors}
	return machine.Offer{Hub: m.cfg.Hub, Machine: inv.Machine, Actors: inv.Actors, Accounts: p.Accounts()}
}

// Admit implements [machine.Registrar]: the machine is added, or its keys are replaced, in the name of the user who
// invited it.
func (m *machines) Admit(ctx context.Context, inv machine.Invitation, keys map[string]string) error {
	change := subjects.PrincipalChange{Action: subjects.PrincipalAdd, Principal: subjects.Principal{
		Name: inv.Machine,
		Kind: subjects.MachinePrincipal, Actors: inv.Actors, Keys: keys,
	}}
	if inv.Replaces {
		change.Action = subjects.PrincipalRotate
	}
	_, err := m.registry.Change(ctx, m.out, "user", change)
	return err
}

// readLinks notes which machines are connected.
func (m *machines) readLinks() {
	links, err := m.cfg.Links.LeafLinks()
	if err != nil { // the server restarts
		return
	}
	now, list := m.out.Now().UTC(), m.registry.principals()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range list {
		if p.Kind != subjects.MachinePrincipal {
			continue
		}
		s := m.seen[p.Name]
		own, connected := ownAccounts(list, p), false
		s.claimed = len(own) == 0
		for _, l := range links {
			if !slices.Contains(own, l.Account) &&
				!(s.claimed && l.Server == p.Name && slices.Contains(p.Accounts(), l.Account)) {
				continue
			}
			connected, s.last, s.rtt = true, now, l.RTT
			if m.listener != nil {
				if remote := m.listener.Remote(l.Port); remote != "" {
					s.address = remote
				}
			}
		}
		switch {
		case connected && s.since.IsZero():
			s.since = now
		case !connected:
			s.since = time.Time{}
		}
		m.seen[p.Name] = s
	}
}

// ownAccounts returns the accounts of a machine that no other machine has. A connection to one of them is by its key;
// the name of the server at the other end is a claim.
func ownAccounts(list []subjects.Principal, p subjects.Principal) []string {
	return slices.DeleteFunc(p.Accounts(), func(account string) bool {
		return slices.ContainsFunc(list, func(o subjects.Principal) bool {
			return o.Kind == subjects.MachinePrincipal && o.Name != p.Name && slices.Contains(o.Accounts(), account)
		})
	})
}

// onList returns the machines that joined or are invited.
func (m *machines) onList(_ context.Context, _ actor.Msg[subjects.Empty], out actor.Out) (subjects.MachineList, error) {
	m.readLinks()
	m.mu.Lock()
	defer m.mu.Unlock()
	list := subjects.MachineList{Machines: []subjects.MachineStatus{}}
	for _, p := range m.registry.principals() {
		if p.Kind == subjects.MachinePrincipal {
			s := m.seen[p.Name]
			list.Machines = append(list.Machines, subjects.MachineStatus{
				Name: p.Name, Actors: p.Actors, Added: p.Added,
				Connected: s.since, LastSeen: s.last, RTT: s.rtt, Address: s.address, Claimed: s.claimed,
			})
		}
	}
	for _, inv := range m.cfg.Invitations.Open(out.Now()) {
		at := slices.IndexFunc(list.Machines, func(s subjects.MachineStatus) bool { return s.Name == inv.Machine })
		if at < 0 {
			list.Machines = append(list.Machines, subjects.MachineStatus{Name: inv.Machine, Actors: inv.Actors})
			at = len(list.Machines) - 1
		}
		list.Machines[at].InvitedUntil = inv.Expires
	}
	return list, nil
}

var _ machine.Registrar = (*machines)(nil)
