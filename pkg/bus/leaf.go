package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"conclave/subjects"
)

// LeafConfig configures the server of a machine that joined a hub.
type LeafConfig struct {
	Machine subjects.Principal // name and actors
	Address string             // host:port of the hub
	Pin     Pin                // of the hub's TLS key
	Seeds   Keys               // keys of the machine's accounts on the hub, by account
	Store   string             // folder of the streams
}

// StartLeaf starts the embedded server of a machine, which connects to the hub as a leaf node once per account and
// repeats that forever: a hub that is not reachable is no error. It listens on no port: the actors run in this process.
// keys are those of the local roles and must exist, see [LeafRoles]. [Server.URL] is of no use, and there is nothing to
// provision.
func StartLeaf(cfg LeafConfig, keys Keys, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(cfg.Store, 0o700); err != nil {
		return nil, fmt.Errorf("making the store: %w", err)
	}
	s := &Server{
		cfg: ServerConfig{Store: cfg.Store, Listen: "in-process"}, log: log, serverLog: &serverLog{log: log},
		leaf: &leafServer{cfg, keys},
	}
	if err := s.startServer(); err != nil {
		return nil, err
	}
	return s, nil
}

// LeafRoles lists the local roles of a machine.
func LeafRoles(machine subjects.Principal) (roles []string, err error) {
	l, err := subjects.MachineLayout(machine)
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			roles = append(roles, u.Role)
		}
	}
	return roles, err
}

// leafServer is what a server of a machine has instead of the table.
type leafServer struct {
	cfg  LeafConfig
	keys Keys
}

// options returns the options of the server: the accounts of the machine's actors, and a connection to the hub for
// each.
func (l *leafServer) options(log *slog.Logger) (*server.Options, error) {
	layout, err := subjects.MachineLayout(l.cfg.Machine)
	if err != nil {
		return nil, err
	}
	public := map[string]string{}
	roles, err := LeafRoles(l.cfg.Machine)
	if err != nil {
		return nil, err
	}
	for _, r := range roles {
		if public[r], err = l.keys.Public(r); err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
	}
	conf, err := layout.MachineConf(l.cfg.Machine.Name, l.cfg.Store, public)
	if err != nil {
		return nil, err
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(conf); err != nil {
		return nil, fmt.Errorf("reading the generated configuration of the machine: %w", err)
	}
	opts.DontListen, opts.NoSigs, opts.NoLog = true, true, log == nil
	opts.LeafNode.ReconnectInterval, opts.LeafNode.DialTimeout = time.Second, 5*time.Second
	for _, account := range l.cfg.Machine.Accounts() {
		seed, err := l.cfg.Seeds.Seed(account)
		if err != nil {
			return nil, err
		}
		text, err := seed.Seed()
		if err != nil {
			return nil, err
		}
		opts.LeafNode.Remotes = append(opts.LeafNode.Remotes, &server.RemoteLeafOpts{
			LocalAccount: account, URLs: []*url.URL{{Scheme: "tls", Host: l.cfg.Address}}, Nkey: string(text),
			TLS: true, TLSHandshakeFirst: true, TLSConfig: l.cfg.Pin.ClientTLS(), TLSTimeout: 5,
			IgnoreDiscoveredServers: true,
			// it costs more time than it saves, and shows the length of secrets
			Compression: server.CompressionOpts{Mode: server.CompressionOff},
		})
	}
	return opts, nil
}

// LeafLink is one connection between a machine and the hub, of one account.
type LeafLink struct {
	ID      uint64
	Account string
	Server  string // name of the other server
	Address string // of the other server, as the connection shows it
	Port    int
	RTT     time.Duration // 0 = not measured yet
}

// LeafLinks lists the leaf node connections. It fails while the server is down.
func (s *Server) LeafLinks() (out []LeafLink, err error) {
	ns := s.current()
	if ns == nil {
		return nil, errors.New("embedded server down")
	}
	z, err := ns.Leafz(nil)
	if err != nil {
		return nil, fmt.Errorf("listing the connections to machines: %w", err)
	}
	for _, l := range z.Leafs {
		rtt, _ := time.ParseDuration(l.RTT)
		out = append(out, LeafLink{ID: l.ID, Account: l.Account, Server: l.Name, Address: l.IP, Port: l.Port, RTT: rtt})
	}
	return out, nil
}
