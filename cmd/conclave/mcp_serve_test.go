package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
)

// endingReader closes ended before it returns the end of its text.
type endingReader struct {
	io.Reader
	ended chan struct{}
}

func (r endingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err == io.EOF {
		close(r.ended)
	}
	return n, err
}

// runBridge passes messages to a gateway and returns the replies.
func runBridge(t *testing.T, in io.Reader, gateway http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(gateway)
	t.Cleanup(s.Close)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	}
	var out bytes.Buffer
	b := &mcpBridge{
		client: &http.Client{Transport: &http.Transport{DialContext: dial}}, out: &out,
		running: map[string]context.CancelFunc{},
	}
	if err := b.run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestMCPServeAnswersAfterTheEndOfInput(t *testing.T) {
	t.Parallel()
	in := endingReader{strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}` + "\n"), make(chan struct{})}
	got := runBridge(t, in, func(w http.ResponseWriter, r *http.Request) {
		<-in.ended
		select {
		case <-r.Context().Done():
		case <-time.After(200 * time.Millisecond): // a cancelled request has ended by then
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	if got != `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n" {
		t.Errorf("%q", got)
	}
}

// TestMCPServeWithoutToken has a client whose token file is empty: a request without a token is the user's on the Unix
// socket, so none may be sent.
func TestMCPServeWithoutToken(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := cli.New(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n"), &out, io.Discard)
	a.Home.Data, a.Home.Config = t.TempDir(), t.TempDir()
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	path, err := tokenPath(a, "phone")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := gateway.ListenSocket(t.Context(), cfg.GatewayConfig(a.Home).Socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{
		Listener: l,
		Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("a request with the credential %q", r.Header.Values("Authorization"))
		})},
	}
	s.Start()
	defer s.Close()
	cmd := mcpServeCommand(a)
	cmd.SetArgs([]string{"--client", "phone"})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no token") {
		t.Errorf("%v, output %q", err, out.String())
	}
}

func TestMCPServeReportsBrokenStream(t *testing.T) {
	t.Parallel()
	got := runBridge(t, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n"),
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: {\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
	if !strings.Contains(got, `"id":1`) || !strings.Contains(got, "incomplete") {
		t.Errorf("%q", got)
	}
}
