package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
	b := &mcpBridge{client: &http.Client{Transport: &http.Transport{DialContext: dial}}, out: &out, running: map[string]context.CancelFunc{}}
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

func TestMCPServeReportsBrokenStream(t *testing.T) {
	t.Parallel()
	got := runBridge(t, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n"), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if !strings.Contains(got, `"id":1`) || !strings.Contains(got, "incomplete") {
		t.Errorf("%q", got)
	}
}
