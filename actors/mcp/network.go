package mcp

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"conclave/pkg/egress"
	"conclave/pkg/sandbox"
)

// ForwardArg as first argument has this program run [Forward] instead of anything else.
const ForwardArg = "mcp-forward"

// Bounds of the connections of a program, which runs for days: bytes that it sends and receives in an hour, and the
// time that a connection may be idle.
const (
	maxTransfer    = 4 << 30
	transferWindow = time.Hour
	maxIdle        = 15 * time.Minute
)

// startProxy starts the proxy to the hosts that the program of spec may connect to, and has the program run behind a
// forwarder, see [Forward]; without hosts it does nothing. Addresses pass checkAddress. self is the file of this
// program. The caller calls stop.
func startProxy(spec *sandbox.Spec, hosts []string, self string) (stop func(), err error) {
	if len(hosts) == 0 {
		return func() {}, nil
	}
	s := egress.Settings{Limit: maxTransfer, Window: transferWindow, Idle: maxIdle, Check: checkAddress}
	for _, h := range hosts {
		if !strings.Contains(h, ":") {
			h += ":443"
		}
		s.Tunnels = append(s.Tunnels, h)
	}
	p, err := egress.Start(s)
	if err != nil {
		return nil, err
	}
	if err := throughProxy(spec, p, self); err != nil {
		p.Close()
		return nil, err
	}
	return p.Close, nil
}

// throughProxy has the program of spec run behind a forwarder: in the sandbox, where there is no network, it listens on
// loopback and passes each connection to the socket of the proxy. self is the file of this program.
func throughProxy(spec *sandbox.Spec, p *egress.Proxy, self string) error {
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return err
		}
	}
	self, err := filepath.EvalSymlinks(self)
	if err != nil {
		return err
	}
	if !isVisible(self, spec.ReadOnly) {
		spec.ReadOnly = append(spec.ReadOnly, self)
	}
	spec.Socket = p.Socket
	spec.Args = append([]string{self, ForwardArg, p.Socket}, spec.Args...)
	return nil
}

// Forward is the forwarder in the sandbox: args are the socket of the proxy, and a program, which it runs with the
// usual variables for a proxy. It returns the exit code of the program.
func Forward(args []string) int {
	if len(args) < 2 {
		return 2
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_, _ = io.WriteString(os.Stderr, "starting the forwarder: "+err.Error()+"\n")
		return 1
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forwardConn(c, args[0])
		}
	}()
	proxy := "http://" + l.Addr().String()
	c := exec.Command(args[1], args[2:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "HTTPS_PROXY="+proxy, "https_proxy="+proxy, "HTTP_PROXY="+proxy, "http_proxy="+proxy,
		"ALL_PROXY="+proxy, "NODE_USE_ENV_PROXY=1", "NO_PROXY=", "no_proxy=")
	var exit *exec.ExitError
	switch err := c.Run(); {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		_, _ = io.WriteString(os.Stderr, "starting the program: "+err.Error()+"\n")
		return 127
	}
	return 0
}

// forwardConn connects one connection with the socket of the proxy.
func forwardConn(c net.Conn, socket string) {
	defer c.Close()
	up, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		_, _ = io.Copy(up, c)
		up.Close()
	}()
	_, _ = io.Copy(c, up)
}
