package acceptance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestOfficialClients runs clients that others wrote, unchanged, against the whole system with the demo model. They
// come from package registries: CONCLAVE_CLIENTS is a folder with their node_modules, see the step clients of .ci/run.
func TestOfficialClients(t *testing.T) {
	folder := os.Getenv("CONCLAVE_CLIENTS")
	if folder == "" {
		t.Skip("official clients are tested with .ci/run clients, which installs them")
	}
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}})
	c.Models.Ollama.URL = "http://127.0.0.1:1" // nothing answers there, so the demo model does
	home := newHome(t)
	up(t, c, home, config.Actors...)
	base := "http://" + <-address
	token, err := os.ReadFile(home.HTTPToken())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("openai", func(t *testing.T) {
		var seen struct {
			Models                     []string
			Answer, Streamed, Thinking string
			Usage, StreamUsage         int
			Finish, Helper, Plain      string
			SameSession                bool
			Embedding                  []int
			UnknownModel, WrongKey     string
			Response, ResponseDeltas   string
			ResponseFinal              bool
		}
		runClient(t, folder, "openai.mjs", base, string(bytes.TrimSpace(token)), &seen)
		switch {
		case !slices.Equal(seen.Models, []string{"assistant", "committee", "orchestrator"}):
			t.Errorf("models %v", seen.Models)
		case !strings.Contains(seen.Answer, "Asia/Tokyo") || seen.Usage == 0:
			t.Errorf("answer %q, usage %d", seen.Answer, seen.Usage)
		case !strings.Contains(seen.Streamed, "Europe/Lisbon") || seen.Finish != "stop" || seen.StreamUsage == 0 ||
			!seen.SameSession:
			t.Errorf("stream %+v", seen)
		case seen.Helper != "stop" || seen.Plain != "stop" || len(seen.Embedding) != 2 || seen.Embedding[0] == 0:
			t.Errorf("%+v", seen)
		case !strings.Contains(seen.Response, "America/Lima") ||
			!strings.Contains(seen.ResponseDeltas, "Europe/Oslo") || !seen.ResponseFinal:
			t.Errorf("responses: %+v", seen)
		case seen.UnknownModel != "model_not_found" || seen.WrongKey != "invalid_api_key":
			t.Errorf("errors: %q %q", seen.UnknownModel, seen.WrongKey)
		}
	})
	t.Run("python", func(t *testing.T) {
		var seen map[string]struct {
			Models           []string
			Model            string
			Answer, Streamed string
			Embedding        int
		}
		runClient(t, folder, "openai_clients.py", base, string(bytes.TrimSpace(token)), &seen,
			"PYTHONPATH="+filepath.Join(folder, "python"))
		for _, name := range []string{"openai", "langchain", "litellm", "llm"} {
			s := seen[name]
			if !strings.Contains(s.Answer, "Asia/Tokyo") || !strings.Contains(s.Streamed, "America/Lima") ||
				name != "llm" && s.Embedding == 0 {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if s := seen["openai"]; len(s.Models) != 3 || s.Model != "assistant" {
			t.Errorf("models %v, retrieved %q", s.Models, s.Model)
		}
	})
}

// TestOfficialMCP runs MCP clients and servers that others wrote, unchanged: the clients of the npm and of the Python
// SDK and the MCP Inspector against /mcp and conclave mcp serve, each with the identity of a client, and two servers
// from npm and one from PyPI behind the broker.
func TestOfficialMCP(t *testing.T) {
	folder := os.Getenv("CONCLAVE_CLIENTS")
	if folder == "" {
		t.Skip("official clients are tested with .ci/run clients, which installs them")
	}
	base, err := os.MkdirTemp(folder, "mcp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	notes := filepath.Join(base, "notes")
	for _, err := range []error{
		os.Chmod(base, 0o711), os.Mkdir(notes, 0o755),
		os.WriteFile(filepath.Join(notes, "a.txt"), []byte("a note"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0").WithWiring(config.Wiring{OnListen: func(addr string) {
		address <- addr
	}})
	c.Models.Ollama.URL = "http://127.0.0.1:1"
	modules, python := filepath.Join(folder, "node_modules"), filepath.Join(folder, "python")
	c.MCP.Folder = filepath.Join(base, "servers")
	c.MCP.Servers = map[string]mcp.Server{
		"files": {
			Command: "node",
			Args:    []string{filepath.Join(modules, "@modelcontextprotocol/server-filesystem/dist/index.js"), notes},
			Read:    []string{modules, notes},
		},
		"memory": {
			Command: "node",
			Args:    []string{filepath.Join(modules, "@modelcontextprotocol/server-memory/dist/index.js")},
			Read:    []string{modules}, Env: map[string]string{"MEMORY_FILE_PATH": "/tmp/memory.json"},
		},
		"time": {
			Command: "/usr/bin/python3", Args: []string{"-m", "mcp_server_time"}, Read: []string{python},
			Env: map[string]string{"PYTHONPATH": python},
		},
	}
	home := newHome(t)
	addMCPPrincipals(t, home, map[string][]string{
		"files": {"read_text_file", "write_file"}, "memory": {"create_entities", "search_nodes"},
		"time": {"get_current_time"},
	}, nil)
	r := up(t, c, home, config.Actors...)
	url := "http://" + <-address

	t.Run("servers", func(t *testing.T) {
		operator := dialOperator(t, r.Bus)
		for _, tt := range []struct {
			tool, args, want string
			fails            bool
		}{
			{"mcp_files_read_text_file", `{"path":"` + notes + `/a.txt"}`, "a note", false},
			{"mcp_files_read_text_file", `{"path":"/etc/passwd"}`, "access denied", true},
			// it may only read there
			{"mcp_files_write_file", `{"path":"` + notes + `/b.txt","content":"x"}`, "read-only file system", true},
			{
				"mcp_memory_create_entities",
				`{"entities":[{"name":"Ada","entityType":"person","observations":["wrote a program"]}]}`, "Ada", false,
			},
			{"mcp_memory_search_nodes", `{"query":"Ada"}`, "wrote a program", false},
			{"mcp_time_get_current_time", `{"timezone":"Asia/Tokyo"}`, "Asia/Tokyo", false},
		} {
			var got subjects.ToolResult
			for end := time.Now().Add(testTimeout); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
				if got = operator.callTool(t.Context(), tt.tool, "", tt.args); got.Error == nil ||
					got.Error.Code != subjects.CodeUnknownTool {
					break
				}
			}
			said := got.Result
			if got.Error != nil {
				said = got.Error.Text
			}
			if (got.Error != nil) != tt.fails || !strings.Contains(strings.ToLower(said), strings.ToLower(tt.want)) {
				t.Errorf("%s: %q, %v, want %q", tt.tool, got.Result, got.Error, tt.want)
			}
		}
		if _, err := os.Stat(filepath.Join(notes, "b.txt")); err == nil {
			t.Error("a file was written where the server may only read")
		}
	})

	token := addClient(t, home, dialClient(t, r.Bus, "user"), "desktop", "search_memory")
	program := filepath.Join(base, "conclave")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "conclave/cmd/conclave").
		CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	t.Run("inspector", func(t *testing.T) {
		for _, tt := range []struct {
			args []string
			want string
		}{
			{[]string{"--method", "tools/list"}, `"name": "search_memory"`},
			{
				[]string{
					"--method", "tools/call", "--tool-name", "ask", "--tool-arg",
					"question=What time is it in Tokyo?",
				},
				"Asia/Tokyo",
			},
		} {
			args := append([]string{
				"--cli", url + "/mcp", "--transport", "http", "--header",
				"Authorization: Bearer " + token,
			}, tt.args...)
			inspector := filepath.Join(modules, ".bin", "mcp-inspector")
			out, err := exec.CommandContext(t.Context(), inspector, args...).Output()
			if err != nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v: %v\n%s", tt.args, err, out)
			}
		}
	})
	serve, err := json.Marshal([]string{
		program, "mcp", "serve", "--client", "desktop", "--data", home.Data, "--config",
		home.Config,
	})
	if err != nil {
		t.Fatal(err)
	}
	for script, version := range map[string]string{"mcp.mjs": "", "mcp_client.py": "2026-07-28"} {
		t.Run(script, func(t *testing.T) {
			var seen map[string]struct {
				Tools           []string
				Answer, Version string
			}
			runClient(t, folder, script, url, token, &seen, "CONCLAVE_SERVE="+string(serve), "PYTHONPATH="+python)
			for _, transport := range []string{"http", "stdio"} {
				s := seen[transport]
				if !slices.Equal(s.Tools, []string{"ask", "list_sessions", "search_memory"}) ||
					!strings.Contains(s.Answer, "Asia/Tokyo") {
					t.Errorf("%s: %+v", transport, s)
				}
			}
			if got := seen["stdio"].Version; got != version {
				t.Errorf("protocol %q, want %q", got, version)
			}
		})
	}
}

// agentStream is what a client of the agent protocol saw of a prompt.
type agentStream struct {
	Text, Error       string
	Statuses, Queries []string
}

// TestOfficialAgents runs the client of the Synadia Agent Protocol from PyPI, unchanged, over the NATS listener: as a
// client principal, which gets a status for a call that waits for approval, and with the user's key, which gets a query
// and approves.
func TestOfficialAgents(t *testing.T) {
	folder := os.Getenv("CONCLAVE_CLIENTS")
	if folder == "" {
		t.Skip("official clients are tested with .ci/run clients, which installs them")
	}
	c := settings(t, "system.gateway.listen", "127.0.0.1:0", "system.gateway.heartbeat", "1s")
	c.Models.Ollama.URL = "http://127.0.0.1:1"
	c.Manifest.AlwaysAsk = append(slices.Clone(c.Manifest.AlwaysAsk), "get_datetime")
	home := newHome(t)
	r := up(t, c, home, config.Actors...)
	user := dialClient(t, r.Bus, "user")
	addClient(t, home, user, "phone")
	var seen struct {
		Agents, Errors                                       []string
		Limits, Ping, Status                                 []any
		Online                                               bool
		Hello, Attached, Committee, Clock, Unknown, Approved agentStream
	}
	runClient(t, folder, "agents.py", r.Bus.URL, home.Keys().Path("phone"), &seen, "USER_KEY="+home.Keys().Path("user"),
		"PYTHONPATH="+filepath.Join(folder, "python"))
	waiting, err := user.Approvals(t.Context(), false)
	if err != nil || len(waiting.Approvals) != 1 {
		t.Errorf("the approval of the client's call: %+v, %v", waiting.Approvals, err)
	}
	for _, a := range waiting.Approvals { // its prompt ends, and with it the stop of the gateway
		if _, err := user.DecideApproval(t.Context(), a.ID, subjects.ApprovalDecision{}); err != nil {
			t.Error(err)
		}
	}
	var agents []string
	for _, a := range []string{"assistant", "committee", "orchestrator"} {
		agents = append(agents, a+" phone main 0.3 agents.prompt."+a+".phone.main")
	}
	for _, tt := range []struct {
		name string
		ok   bool
		seen any
	}{
		{"agents of discovery", slices.Equal(seen.Agents, agents), seen.Agents},
		{"no denied subject", len(seen.Errors) == 0, seen.Errors},
		{"limits", slices.Equal(seen.Limits, []any{float64(subjects.MaxBody), true}), seen.Limits},
		{"ping", slices.Equal(seen.Ping, []any{true, false}), seen.Ping},
		{"status", slices.Equal(seen.Status, []any{"assistant", "phone", "main", true}), seen.Status},
		{"heartbeat", seen.Online, seen.Online},
		{"answer", seen.Hello.Error == "" && seen.Hello.Text != "" && seen.Hello.Statuses[0] == "ack", seen.Hello},
		{"attachment", seen.Attached.Error == "" && seen.Attached.Text != "", seen.Attached},
		{"committee", seen.Committee.Error == "" && seen.Committee.Text != "", seen.Committee},
		{"a client may not approve", len(seen.Clock.Queries) == 0 &&
			strings.HasPrefix(strings.Join(seen.Clock.Statuses, " "), "ack waiting: get_datetime needs the approval "+
				"of the user"), seen.Clock},
		{"unknown agent", strings.Contains(seen.Unknown.Error, "service error 404"), seen.Unknown},
		{"the user approves", len(seen.Approved.Queries) == 1 && strings.Contains(seen.Approved.Text, "Asia/Tokyo") &&
			slices.Contains(seen.Approved.Statuses, "decided: approved"), seen.Approved},
	} {
		if !tt.ok {
			t.Errorf("%s: %+v", tt.name, tt.seen)
		}
	}
}

// addClient adds a client at run time, stores its token and returns it.
func addClient(t *testing.T, home bus.Home, user *client.Client, name string, allow ...string) (token string) {
	t.Helper()
	if _, err := home.Keys().Ensure([]string{name}); err != nil {
		t.Fatal(err)
	}
	key, err := home.Keys().Public(name)
	if err != nil {
		t.Fatal(err)
	}
	token = strings.Repeat("5a", 32)
	sum := sha256.Sum256([]byte(token))
	p := subjects.Principal{
		Name: name, Kind: subjects.ClientPrincipal, Keys: map[string]string{name: key},
		Allow: allow, TokenHash: hex.EncodeToString(sum[:]),
	}
	if err := user.ChangePrincipal(t.Context(), subjects.PrincipalChange{
		Action:    subjects.PrincipalAdd,
		Principal: p,
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home.Keys().Dir, name+".token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return token
}

// runClient runs a script of testdata/clients with Node beside the node_modules of folder, or with Python, and decodes
// the JSON that it prints.
func runClient(t *testing.T, folder, script, base, key string, into any, env ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "clients", script))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(folder, "run-") // modules are found from the script's folder upwards
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, script)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	interpreter := "node"
	if strings.HasSuffix(script, ".py") {
		interpreter = "/usr/bin/python3"
	}
	cmd := exec.CommandContext(ctx, interpreter, path)
	cmd.Env = append(append(os.Environ(), "BASE_URL="+base, "API_KEY="+key), env...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, problems.String())
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("%s printed %q: %v", script, out.String(), err)
	}
}
