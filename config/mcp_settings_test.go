package config_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// newMCPHome returns an installation with the principals of MCP servers.
func newMCPHome(t *testing.T, servers ...string) bus.Home {
	t.Helper()
	dir := t.TempDir()
	home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	var principals []subjects.Principal
	for _, server := range servers {
		principals = append(principals, subjects.Principal{
			Name: subjects.MCPPrincipal(server), Kind: subjects.ToolPrincipal, Added: time.Now(),
			Tools: []string{"mcp_" + server + "_act"},
		})
	}
	bustest.AddPrincipals(t, home, principals...)
	return home
}

// TestRestartedMCPReadsCurrentSettings starts the actor mcp a second time with the configuration of the system's start,
// as the supervisor does: it must use the settings of the file, not those of that configuration.
func TestRestartedMCPReadsCurrentSettings(t *testing.T) {
	t.Parallel()
	home := newMCPHome(t, "narrowed", "disabled", "added")
	set := func(name string, s mcp.Server) {
		t.Helper()
		if err := config.SetMCPServer(home, name, &s); err != nil {
			t.Fatal(err)
		}
	}
	set("narrowed", mcp.Server{Command: "sh", Hosts: []string{"example.org"}})
	set("disabled", mcp.Server{Command: "sh"})
	c, err := config.Load(home.Config)
	if err != nil {
		t.Fatal(err)
	}
	nc := bustest.Start(t).Connect(subjects.MCP)
	for start := range 2 {
		if start == 1 {
			set("narrowed", mcp.Server{Command: "sh"})
			set("disabled", mcp.Server{Command: "sh", Disabled: true})
			set("added", mcp.Server{Command: "sh"})
		}
		host, err := c.NewMCP(home, nc)
		if err != nil {
			t.Fatal(err)
		}
		servers, err := host.(*mcp.Host).Load()
		if err != nil {
			t.Fatal(err)
		}
		hosts := map[string]int{}
		for name, w := range servers {
			hosts[name] = len(w.Server.Hosts)
		}
		if want := []map[string]int{{"narrowed": 1, "disabled": 0}, {"narrowed": 0, "added": 0}}[start]; !maps.Equal(
			hosts, want) {
			t.Errorf("start %d: servers with their number of hosts are %v, want %v", start, hosts, want)
		}
	}
}

// TestChangedMCPFolder checks that a change of the folder in mcp.yaml reaches the servers.
func TestChangedMCPFolder(t *testing.T) {
	t.Parallel()
	home := newMCPHome(t, "one")
	c, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	host, err := c.NewMCP(home, bustest.Start(t).Connect(subjects.MCP))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(home.Config, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"/tmp/agent-a", "/tmp/agent-b"} {
		if err := os.WriteFile(filepath.Join(home.Config, "mcp.yaml"),
			[]byte("folder: "+folder+"\nmcpServers: {one: {command: sh}}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if servers, err := host.(*mcp.Host).Load(); err != nil || servers["one"].Folder != folder {
			t.Errorf("%+v, %v: want the folder %s", servers, err, folder)
		}
	}
}
