// Command mcp measures the cost of an MCP tool behind the broker: the same call of the same server, started by the SDK
// without a sandbox, connected to directly in the sandbox, and behind the broker with audit records, all in one run and
// interleaved. Only ratios mean anything.
//
// Run it from the folder bench: go run ./mcp
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/actors/mcp"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// serverVariable has this program run as the MCP server.
const serverVariable = "CONCLAVE_BENCH_SERVER"

const tool = "mcp_echo_say"

func main() {
	if os.Getenv(serverVariable) != "" {
		serve()
		return
	}
	n := flag.Int("n", 1000, "calls of each kind")
	flag.Parse()
	if err := measure(context.Background(), *n); err != nil {
		fmt.Fprintln(os.Stderr, "mcp:", err)
		os.Exit(1)
	}
}

// serve is the server: one tool that returns its argument.
func serve() {
	s := sdk.NewServer(&sdk.Implementation{Name: "echo", Version: "1"}, nil)
	type text struct {
		Text string `json:"text"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "say", Description: "Returns its argument."},
		func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
		})
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

// kind is one way to call the tool.
type kind struct {
	name  string
	call  func(ctx context.Context, args string) error
	times []time.Duration
}

// measure prints a table of the kinds.
func measure(ctx context.Context, n int) error {
	dir, err := os.MkdirTemp("", "conclave-bench-mcp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "server")
	// as root, programs run as another user
	if err := errors.Join(os.Chmod(dir, 0o711), os.WriteFile(program, own, 0o755)); err != nil {
		return err
	}
	server := mcp.Server{Command: program, Env: map[string]string{serverVariable: "1"}}

	command := exec.Command(program)
	command.Env = append(os.Environ(), serverVariable+"=1")
	plain, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx,
		&sdk.CommandTransport{Command: command}, nil)
	if err != nil {
		return err
	}
	defer plain.Close()
	sandboxed, err := mcp.Connect(ctx, mcp.Options{Name: "echo", Server: server, Folder: filepath.Join(dir, "direct")})
	if err != nil {
		return err
	}
	defer sandboxed.Close()
	brokered, stop, err := startSystem(ctx, dir, server)
	if err != nil {
		return err
	}
	defer stop()
	kinds := []*kind{
		{name: "SDK, no sandbox", call: func(ctx context.Context, args string) error {
			_, err := plain.CallTool(ctx, &sdk.CallToolParams{Name: "say", Arguments: json.RawMessage(args)})
			return err
		}},
		{name: "in the sandbox", call: func(ctx context.Context, args string) error {
			_, err := sandboxed.Call(ctx, "say", json.RawMessage(args))
			return err
		}},
		{name: "behind the broker", call: brokered},
	}
	for i := range n + 20 {
		for _, k := range kinds {
			began := time.Now()
			if err := k.call(ctx, fmt.Sprintf(`{"text":"call %d"}`, i)); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if i >= 20 { // the first ones warm up
				k.times = append(k.times, time.Since(began))
			}
		}
	}
	base := kinds[0].percentile(50)
	fmt.Printf("| %d calls each | p50 | p99 | p50 to the first |\n|---|---|---|---|\n", n)
	for _, k := range kinds {
		fmt.Printf("| %s | %d us | %d us | %.1f |\n", k.name, k.percentile(50).Microseconds(),
			k.percentile(99).Microseconds(), float64(k.percentile(50))/float64(base))
	}
	return nil
}

func (k *kind) percentile(p int) time.Duration {
	all := slices.Sorted(slices.Values(k.times))
	return all[min(len(all)*p/100, len(all)-1)]
}

// startSystem starts a system with the server behind its broker, and returns a call of the user.
func startSystem(ctx context.Context, dir string, server mcp.Server) (call func(ctx context.Context, args string) error,
	stop func(), err error,
) {
	c, err := config.Load("")
	if err != nil {
		return nil, nil, err
	}
	if err := c.Apply(map[string]string{"system.listen": "127.0.0.1:0"}); err != nil {
		return nil, nil, err
	}
	c.MCP.Folder, c.MCP.Servers = filepath.Join(dir, "servers"), map[string]mcp.Server{"echo": server}
	home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	if err := home.CreateFolders(); err != nil {
		return nil, nil, err
	}
	name := subjects.MCPPrincipal("echo")
	if _, err := home.Keys().Ensure([]string{name}); err != nil {
		return nil, nil, err
	}
	key, err := home.Keys().Public(name)
	if err != nil {
		return nil, nil, err
	}
	p := subjects.Principal{
		Name: name, Kind: subjects.ToolPrincipal, Tools: []string{tool},
		Keys: map[string]string{name: key}, Added: time.Now(),
	}
	if err := home.WritePrincipals([]subjects.Principal{p}); err != nil {
		return nil, nil, err
	}
	r, err := c.Start(ctx, home, nil, subjects.Registry, "secrets", "broker", subjects.MCP)
	if err != nil {
		return nil, nil, err
	}
	stop = func() { _ = r.Stop(ctx) }
	nc, err := r.Bus.Dial("operator")
	if err != nil {
		stop()
		return nil, nil, err
	}
	end := stop
	stop = func() { nc.Close(); end() }
	operator, err := client.New(nc)
	if err != nil {
		stop()
		return nil, nil, err
	}
	n := 0
	call = func(ctx context.Context, args string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		n++
		res, err := operator.CallTool(ctx, tool, "", subjects.ToolRequest{
			CallID: fmt.Sprintf("bench-%d", n),
			Args:   json.RawMessage(args),
		})
		if err == nil && res.Error != nil {
			err = res.Error
		}
		return err
	}
	for late := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) { // until the server is announced
		if err = call(ctx, `{"text":"first"}`); err == nil || time.Now().After(late) {
			break
		}
	}
	if err != nil {
		stop()
	}
	return call, stop, err
}
