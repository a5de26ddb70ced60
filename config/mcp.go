package config

import (
	"bytes"
	"cmp"
	"sync"

	"github.com/nats-io/nats.go"

	"conclave/actors/mcp"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// newMCP returns the actor that runs the MCP servers.
func (c Config) newMCP(home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	secrets, err := newBrokeredKeyring(nc)
	if err != nil {
		return nil, err
	}
	o := c.MCPOptions(home)
	o.Secret = mcp.SecretLookup(secrets)
	servers := &mcpServers{home: home, config: c.MCP, file: c.mcpFile}
	return &mcp.Host{Options: o, Load: servers.load, Dial: c.wiring.dial, Actor: c.wiring.mounts}, nil
}

// MCPOptions returns how MCP servers are reached, without their credentials.
func (c Config) MCPOptions(home bus.Home) mcp.Options {
	return mcp.Options{
		Folder: cmp.Or(c.MCP.Folder, home.MCP()), Closed: []string{home.Data, home.Config, c.BackupFolder(home)},
		Version: c.wiring.Version, Self: c.wiring.Program,
	}
}

// mcpServers reads the servers that should run from the settings and the list of principals.
type mcpServers struct {
	home bus.Home

	mu     sync.Mutex
	config mcp.Config
	file   []byte // the user's mcp.yaml that config was read from
}

// load returns the servers that have settings, a principal and the key of that principal, by name.
func (s *mcpServers) load() (map[string]mcp.Wanted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, _, err := readFile(s.home.Config, "mcp.yaml")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(data, s.file) {
		c, err := Load(s.home.Config)
		if err != nil {
			return nil, err
		}
		s.config, s.file = c.MCP, c.mcpFile
	}
	principals, err := s.home.ReadPrincipals()
	if err != nil {
		return nil, err
	}
	out := map[string]mcp.Wanted{}
	for _, p := range principals {
		for name, server := range s.config.Servers {
			if p.Name != subjects.MCPPrincipal(name) || p.Kind != subjects.ToolPrincipal || server.Disabled {
				continue
			}
			// The key is stored after the principal was added: without it the server is not started yet.
			if key, err := s.home.Keys().Public(p.Name); err == nil && key == p.Keys[p.Name] {
				out[name] = mcp.Wanted{
					Server: server, Folder: cmp.Or(s.config.Folder, s.home.MCP()), Tools: p.Tools,
					Key: key,
				}
			}
		}
	}
	return out, nil
}

// SetMCPServer writes the settings of an MCP server into the user's mcp.yaml, or removes them when server is nil.
// Nothing is written when the settings would not be valid.
func SetMCPServer(home bus.Home, name string, server *mcp.Server) error {
	var value any
	if server != nil {
		value = *server
	}
	_, err := EditFile(home.Config, "mcp.yaml", func(data []byte, path string) ([]byte, error) {
		return strict.SetEntry(data, path, "mcpServers", name, value)
	})
	return err
}
