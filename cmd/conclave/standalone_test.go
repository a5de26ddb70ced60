package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
)

// TestStandAlone takes the long way: a nats-server of its own with the nats.conf of conclave keys, streams made by
// provision, the broker and the tools as two more processes. Then it speaks the plain protocol over a socket with the
// user's key, as any NATS rawClient would.
func TestStandAlone(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	p.run(cli.ExitOK, "conclave", "keys")

	url := p.natsServer(t)
	p.run(cli.ExitOK, "conclave", "provision", "--server", url)
	for _, role := range []string{"core_prov", "audit_prov"} {
		if _, err := os.Stat(filepath.Join(p.data, "keys", role+".nk")); !os.IsNotExist(err) {
			t.Errorf("the seed of %s is still there: %v", role, err)
		}
	}
	var again provisionReport
	if err := json.Unmarshal([]byte(p.run(cli.ExitOK, "conclave", "provision", "--server", url, "--json")),
		&again); err != nil || again.Done {
		t.Errorf("provisioning again: %+v, %v", again, err)
	}

	broker := p.begin("conclave", "actor", "broker", "--server", url)
	p.must(broker.stdout, `"pid"`)
	tools := p.begin("conclave", "actor", "tools", "--server", url)
	p.must(tools.stdout,
		`"actors":\["get_datetime","fs_read","fs_write","fs_list","fs_search","calendar_read","calendar_add",`+
			`"notes_read","notes_add","web_search","web_fetch","get_location","run_code","run_shell",`+
			`"package_install"\]`)
	p.call(url)

	c := p.speak(url)
	c.send("SUB response.> 1", "SUB tool.request.> 2", "SUB _INBOX.test.* 3")
	c.publish("query.received", "_INBOX.test.ack", `What time is it?`)
	if ack := c.message("_INBOX.test.ack"); !strings.Contains(ack, `"stream":"QUERIES"`) {
		t.Errorf("a question was acknowledged with %s", ack)
	}
	p.call(url)
	if seen := c.message("tool.request.get_datetime"); !strings.Contains(seen, `"caller":"operator"`) {
		t.Errorf("the broker's copy of a call is %s", seen)
	}
	for _, verb := range []string{"PING", "INFO"} {
		for _, name := range []string{"broker", "get_datetime"} {
			c.publish("$SRV."+verb+"."+name, "_INBOX.test."+verb, "")
			var v struct {
				Name string `json:"name"`
				Type string `json:"type"`
			}
			if err := json.Unmarshal([]byte(c.message("_INBOX.test."+verb)), &v); err != nil || v.Name != name ||
				!strings.HasSuffix(v.Type, strings.ToLower(verb)+"_response") {
				t.Fatalf("%s of %s was answered with %+v, %v", verb, name, v, err)
			}
		}
	}
	p.run(cli.ExitOK, "conclave", "audit", "verify", "--server", url)
	if code, err := tools.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("the tools ended with %d, %v: %s", code, err, tools.stderr)
	}
	p.run(cli.ExitAbsent, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`, "--server", url)
	if code, err := broker.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("the broker ended with %d, %v: %s", code, err, broker.stderr)
	}
	p.run(cli.ExitOK, "conclave", "audit", "verify", "--server", url)
	p.changePrincipals(t, url)

	// No second server on the same store.
	p.run(cli.ExitOK, "conclave", "keys", "--listen", strings.TrimPrefix(url, "nats://"))
	for _, v := range [][]string{{"up"}, {"audit", "verify"}, {"audit", "rotate"}} {
		c := p.begin("conclave", v...)
		if code, err := c.wait(); code != cli.ExitFailed || err != nil ||
			!strings.Contains(c.stderr.String(), "uses this data folder") {
			t.Errorf("%v on the store of a stand-alone server: %d, %v, %s", v, code, err, c.stderr)
		}
	}

	lost := p.begin("conclave", "ask", "hello") // the advice is not to start a second server
	if code, err := lost.wait(); code == cli.ExitOK || err != nil ||
		!strings.Contains(lost.stderr.String(), "--server "+url) ||
		strings.Contains(lost.stderr.String(), "conclave up") {
		t.Errorf("ask without --server: %d, %v, %s", code, err, lost.stderr)
	}

	// New provisioners' keys mean nothing to a server that was started before them.
	late := p.begin("conclave", "provision", "--server", url)
	if code, err := late.wait(); code != cli.ExitFailed || err != nil ||
		!strings.Contains(late.stderr.String(), "restart nats-server") {
		t.Errorf("with keys the server does not know: %d, %v, %s", code, err, late.stderr)
	}
}

// changePrincipals adds, rotates and revokes a principal of the stand-alone server, which reads its configuration again
// each time.
func (p *installation) changePrincipals(t *testing.T, url string) {
	t.Helper()
	registry := p.begin("conclave", "actor", "registry", "--server", url)
	p.must(registry.stdout, `"pid"`)
	b := bus.Bus{URL: url, Keys: bus.Home{Data: p.data}.Keys()}
	connect := func() <-chan struct{} {
		closed := make(chan struct{})
		bustest.Dial(t, &b, "phone", nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		return closed
	}
	await := func(closed <-chan struct{}, what string) {
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Errorf("%s: the connection stays open", what)
		}
	}
	p.run(cli.ExitOK, "conclave", "principal", "add", "phone", "--kind", "client", "--server", url)
	closed := connect()
	p.run(cli.ExitOK, "conclave", "principal", "rotate", "phone", "--server", url)
	await(closed, "rotate")
	closed = connect()
	p.run(cli.ExitOK, "conclave", "principal", "revoke", "phone", "--server", url)
	await(closed, "revoke")
	if code, err := registry.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("the registry ended with %d, %v: %s", code, err, registry.stderr)
	}
	p.run(cli.ExitOK, "conclave", "audit", "verify", "--server", url)
}

// natsServer starts the stand-alone server as "conclave keys" says, on a free port.
func (p *installation) natsServer(t *testing.T) string {
	t.Helper()
	conf := filepath.Join(p.data, "nats.conf")
	script := fmt.Sprintf("set -a; . '%s/nats.env'; set +a; exec '%s' -c '%s' -p -1", p.data, built(t, "nats-server"),
		conf)
	server := p.begin("sh", "-c", script)
	line := p.must(server.stderr, `Listening for client connections on `)
	_, address, _ := strings.Cut(strings.TrimSpace(line), "connections on ")
	p.must(server.stderr, `Server is ready`)
	return "nats://" + address
}

func (p *installation) call(url string) {
	p.t.Helper()
	if got := p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`, "--server",
		url); !strings.Contains(got, "UTC)") {
		p.t.Errorf("the call gave %q", got)
	}
}

// rawClient speaks the NATS protocol in plain text.
type rawClient struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

// speak connects with the user's key: the server sends a nonce, the rawClient signs it.
func (p *installation) speak(url string) *rawClient {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(waitTimeout)); err != nil {
		p.t.Fatal(err)
	}
	c := &rawClient{p.t, conn, bufio.NewReader(conn)}
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(c.line(), "INFO ")), &info); err != nil || info.Nonce == "" {
		p.t.Fatalf("no nonce: %v", err)
	}
	seed, err := bus.Keys{Dir: filepath.Join(p.data, "keys")}.Seed("user")
	if err != nil {
		p.t.Fatal(err)
	}
	public, err := seed.PublicKey()
	if err != nil {
		p.t.Fatal(err)
	}
	signature, err := seed.Sign([]byte(info.Nonce))
	if err != nil {
		p.t.Fatal(err)
	}
	c.send(
		fmt.Sprintf(`CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"nkey":%q,"sig":%q}`,
			public, base64.RawURLEncoding.EncodeToString(signature)))
	c.send("PING")
	if l := c.line(); l != "PONG" {
		p.t.Fatalf("not let in: %s", l)
	}
	return c
}

func (c *rawClient) send(lines ...string) {
	c.t.Helper()
	if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) publish(subject, reply, body string) {
	c.send(fmt.Sprintf("PUB %s %s %d\r\n%s", subject, reply, len(body), body))
}

func (c *rawClient) line() string {
	c.t.Helper()
	l, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimRight(l, "\r\n")
}

// message returns the body of the next message on a subject and passes over the others.
func (c *rawClient) message(subject string) string {
	c.t.Helper()
	for {
		f := strings.Fields(c.line())
		if len(f) == 0 {
			continue
		}
		headers := 0
		switch f[0] {
		case "PING":
			c.send("PONG")
			continue
		case "HMSG":
			headers, _ = strconv.Atoi(f[len(f)-2])
		case "MSG":
		case "-ERR":
			c.t.Fatalf("the server says %v", f)
		default:
			continue
		}
		n, err := strconv.Atoi(f[len(f)-1])
		if err != nil {
			c.t.Fatal(err)
		}
		data := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, data); err != nil {
			c.t.Fatal(err)
		}
		if f[1] == subject && n > headers {
			return string(data[headers:n])
		}
	}
}
