package acceptance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/file"
	"conclave/pkg/programtest"
	"conclave/pkg/sandbox"
	"conclave/subjects"
)

// TestMCPFoldersOfInstances runs two systems at once with the default folder: a server writes to the working folder of
// its own system. A folder that another user could have made is rejected, and nothing is written to it. File tools
// cannot open it.
func TestMCPFoldersOfInstances(t *testing.T) {
	t.Parallel()
	base, program := programFolder(t)
	start := func(home bus.Home) busCaller {
		t.Cleanup(func() { os.RemoveAll(home.MCP()) })
		addMCPPrincipals(t, home, map[string][]string{"files": {"act"}}, nil)
		c := settings(t).WithWiring(config.Wiring{Program: program})
		c.MCP.Servers = map[string]mcp.Server{"files": {Command: program, Env: map[string]string{hostileEnv: "files"}}}
		r := up(t, c, home, append(slices.Clone(hubActors), "fs_read", subjects.MCP)...)
		return dialOperator(t, r.Bus)
	}
	makeHome := func(name string) bus.Home {
		home := bus.Home{Data: filepath.Join(base, name), Config: filepath.Join(base, name, "config")}
		if err := home.CreateFolders(); err != nil {
			t.Fatal(err)
		}
		return home
	}
	first, second, taken := makeHome("first"), makeHome("second"), makeHome("taken")
	if err := errors.Join(file.MakeFolder(taken.MCP()), os.Mkdir(filepath.Join(taken.MCP(), "files"),
		0o700)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(taken.MCP(), 65533, 65533); err != nil {
			t.Fatal(err)
		}
	} else if err := os.Chmod(taken.MCP(), 0o777); err != nil {
		t.Fatal(err)
	}
	systems := map[string]busCaller{"first": start(first), "second": start(second), "taken": start(taken)}
	for name, home := range map[string]bus.Home{"first": first, "second": second} {
		h := &mcpHarness{operator: systems[name]}
		if r := h.call(t, "mcp_files_act", fmt.Sprintf(`{"Write":["%s"]}`, name)); r.Error != nil ||
			!strings.Contains(r.Result, "write failed: false") {
			t.Errorf("%s: %+v", name, r)
		}
		entries, err := os.ReadDir(filepath.Join(home.MCP(), "files"))
		if err != nil || len(entries) != 1 || entries[0].Name() != name {
			t.Errorf("the working folder of the %s system has %v, %v", name, entries, err)
		}
		if info, err := os.Stat(home.MCP()); err != nil || info.Mode().Perm()&0o066 != 0 {
			t.Errorf("%v, %v: other users can read the folder", info, err)
		}
		if r := h.call(t, "fs_read",
			fmt.Sprintf(`{"path":"%s"}`, filepath.Join(home.MCP(), "files", name))); r.Error == nil ||
			!strings.Contains(r.Error.Text, "closed") {
			t.Errorf("reading a file of an MCP server with fs_read: %+v", r)
		}
	}
	if r := systems["taken"].callTool(t.Context(), "mcp_files_act", "", `{"Write":["taken"]}`); r.Error == nil {
		t.Errorf("a server runs in the folder of another user: %+v", r)
	}
	s, err := mcp.Connect(t.Context(), func() mcp.Options {
		o := settings(t).MCPOptions(taken)
		o.Name, o.Server = "files", mcp.Server{Command: program, Env: map[string]string{hostileEnv: "files"}}
		return o
	}())
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "belongs to another user") ||
		!strings.Contains(err.Error(), "set folder in mcp.yaml") {
		t.Errorf("the folder of another user: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(taken.MCP(), "files")); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// programFolder returns a folder that programs can search, also when this is root, and the test binary in it.
// A test on a machine without bubblewrap is skipped, and fails in CI.
func programFolder(t *testing.T) (base, program string) {
	t.Helper()
	programtest.SkipIf(t, sandbox.SelfTest(t.Context()))
	base, err := os.MkdirTemp("", "mcp-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(base, "server")
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	if os.Link(own, program) == nil {
		return base, program
	}
	content, err := os.ReadFile(own) // on another file system
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return base, program
}
