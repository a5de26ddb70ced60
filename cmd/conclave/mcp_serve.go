package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/file"
)

// mcpServeCommand is a server on standard input and output.
func mcpServeCommand(a *cli.App) *cobra.Command {
	name, asUser := "", false
	cmd := &cobra.Command{
		Use:   "serve --client <name>",
		Short: "Serve Conclave to an MCP client on standard input and output",
		Long: `Connects a program that starts MCP servers with the running system: questions, memory and states as
tools, as at /mcp of the gateway. The program has the identity of the client that you name, and its
rights and limits: add it with "conclave principal add <name> --kind client". With --as-user it has
yours.`,
		Example: `  conclave principal add desktop --kind client
  conclave mcp serve --client desktop`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (name == "") == !asUser {
				return cli.Usage("give --client with the name of a client, or --as-user")
			}
			cfg, err := a.LoadConfig(nil)
			if err != nil {
				return err
			}
			token := ""
			if name != "" {
				path, err := tokenPath(a, name)
				if err != nil {
					return err
				}
				data, err := file.Read(path, 1<<10)
				if errors.Is(err, fs.ErrNotExist) {
					return cli.Fail(cli.ExitFailed, "no client is named "+name, "add it with "+a.Program()+
						" principal add "+name+" --kind client")
				}
				if err != nil {
					return err
				}
				// without a token a request over the socket is the user's
				if token = strings.TrimSpace(string(data)); token == "" {
					return cli.Fail(cli.ExitFailed, "there is no token in "+path, "make a new one with "+a.Program()+
						" principal rotate "+name)
				}
			}
			socket := cfg.GatewayConfig(a.Home).Socket
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return gateway.DialSocket(ctx, socket)
			}}
			defer tr.CloseIdleConnections()
			b := &mcpBridge{
				client: &http.Client{Transport: tr}, token: token, out: a.Out,
				running: map[string]context.CancelFunc{},
			}
			return cli.IgnoreInterrupt(cmd.Context(), b.run(cmd.Context(), a.Reader(cmd.Context())))
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "`name` of the client whose identity the program has")
	cmd.Flags().BoolVar(&asUser, "as-user", false, "give the program your own identity")
	return cmd
}

// maxLine bounds a message of the client, in bytes; the gateway accepts no more.
const maxLine = 1 << 20

// mcpBridge passes the messages of one client to the gateway, each as a request of its own.
type mcpBridge struct {
	client *http.Client
	token  string // "" = the user, by the socket

	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	version string                        // that was negotiated
	running map[string]context.CancelFunc // requests by id
}

// mcpMessage is what the bridge reads of a message.
type mcpMessage struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method"`
	Params struct {
		Name    string                     `json:"name"`
		URI     string                     `json:"uri"`
		Request json.RawMessage            `json:"requestId"`
		Meta    map[string]json.RawMessage `json:"_meta"`
	} `json:"params"`
}

// versionKey names the version of the protocol in the newer messages.
const versionKey = "io.modelcontextprotocol/protocolVersion"

// replyTimeout is how long replies are waited for after the client has closed its side: a question may take minutes,
// and its client may be gone.
const replyTimeout = 10 * time.Second

// run passes messages on until the client closes its side, and waits replyTimeout for the replies.
func (b *mcpBridge) run(ctx context.Context, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	var requests sync.WaitGroup
	for lines.Scan() {
		line := bytes.Clone(bytes.TrimSpace(lines.Bytes()))
		if len(line) == 0 {
			continue
		}
		var m mcpMessage
		if err := json.Unmarshal(line, &m); err != nil {
			b.fail(nil, -32700, "the message is not a JSON object")
			continue
		}
		if m.Method == "notifications/cancelled" {
			b.cancelRequest(m.Params.Request)
		}
		if m.Method == "initialize" || m.Method == "server/discover" { // the version of all others depends on it
			b.send(ctx, m, line)
			continue
		}
		ctx, end := b.begin(ctx, m)
		requests.Go(func() {
			defer end()
			b.send(ctx, m, line)
		})
	}
	defer time.AfterFunc(replyTimeout, cancel).Stop()
	requests.Wait()
	return lines.Err()
}

// begin registers a request, so that it can be cancelled.
func (b *mcpBridge) begin(ctx context.Context, m mcpMessage) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	id := string(m.ID)
	if id == "" {
		return ctx, cancel
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running[id] = cancel
	return ctx, func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.running, id)
	}
}

// cancelRequest ends a running request: the gateway cancels the question when its client is gone.
func (b *mcpBridge) cancelRequest(id json.RawMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cancel := b.running[string(id)]; cancel != nil {
		cancel()
	}
}

// send passes one message to the gateway and writes the reply.
func (b *mcpBridge) send(ctx context.Context, m mcpMessage, line []byte) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", bytes.NewReader(line))
	if err != nil {
		b.fail(m.ID, -32603, "internal error")
		return
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	b.setVersion(r.Header, m)
	resp, err := b.client.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			b.fail(m.ID, -32000, "conclave does not answer; start it with conclave up")
		}
		return
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case kind == "text/event-stream":
		if err := b.copyEvents(resp.Body); err != nil && ctx.Err() == nil {
			b.fail(m.ID, -32000, "the reply of conclave is incomplete")
		}
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		b.fail(m.ID, -32000, "conclave denies this client; see conclave principal list")
	case kind == "application/json":
		b.copyReply(m, resp.Body)
	case resp.StatusCode >= http.StatusBadRequest:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		b.fail(m.ID, -32000, fmt.Sprintf("conclave answered %s: %s", resp.Status, strings.TrimSpace(string(text))))
	}
}

// setVersion sets the headers that newer versions of the protocol need.
func (b *mcpBridge) setVersion(h http.Header, m mcpMessage) {
	var version string
	if raw := m.Params.Meta[versionKey]; raw != nil {
		_ = json.Unmarshal(raw, &version)
	}
	b.mu.Lock()
	if version == "" {
		version = b.version
	}
	b.mu.Unlock()
	if version == "" || strings.ContainsAny(version, "\r\n") {
		return
	}
	h.Set("Mcp-Protocol-Version", version)
	h.Set("Mcp-Method", strings.NewReplacer("\r", "", "\n", "").Replace(m.Method))
	if name := m.Params.Name + m.Params.URI; name != "" {
		h.Set("Mcp-Name", strings.NewReplacer("\r", "", "\n", "").Replace(name))
	}
}

// copyReply writes a reply on one line.
func (b *mcpBridge) copyReply(m mcpMessage, from io.Reader) {
	data, err := io.ReadAll(from)
	var line bytes.Buffer
	if err != nil || json.Compact(&line, data) != nil {
		b.fail(m.ID, -32000, "the reply of conclave is incomplete")
		return
	}
	if m.Method == "initialize" {
		var r struct {
			Result struct {
				Version string `json:"protocolVersion"`
			} `json:"result"`
		}
		if json.Unmarshal(data, &r) == nil {
			b.mu.Lock()
			b.version = r.Result.Version
			b.mu.Unlock()
		}
	}
	b.write(line.Bytes())
}

// copyEvents writes the messages of a stream of events, each on one line.
func (b *mcpBridge) copyEvents(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), 16<<20)
	var data []byte
	for lines.Scan() {
		part, isData := strings.CutPrefix(lines.Text(), "data:")
		switch {
		case isData:
			data = append(data, strings.TrimPrefix(part, " ")...)
		case lines.Text() == "" && len(data) > 0:
			b.write(data)
			data = nil
		}
	}
	return lines.Err()
}

// fail writes an error as the reply to a request; a notification gets none.
func (b *mcpBridge) fail(id json.RawMessage, code int, text string) {
	if id == nil && code != -32700 {
		return
	}
	if id == nil {
		id = json.RawMessage("null")
	}
	line, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": code, "message": text},
	})
	if err == nil {
		b.write(line)
	}
}

func (b *mcpBridge) write(line []byte) {
	b.writing.Lock()
	defer b.writing.Unlock()
	_, _ = b.out.Write(append(bytes.Clone(line), '\n'))
}
