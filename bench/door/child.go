package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"conclave/pkg/bus"
)

// process starts one part in a process of its own and returns the address it prints when it is ready. It ends when its
// standard input does, so that nothing is left behind.
func process(part string, args ...string) (url string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, append([]string{"-child", part}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		return "", nil, fmt.Errorf("starting %s: %w", part, err)
	}
	return strings.TrimSpace(line), func() {
		_ = in.Close()
		_ = cmd.Wait()
	}, nil
}

// runChild is one part: it prints its address and runs until its standard input ends.
func runChild(part string, args []string) error {
	ctx := context.Background()
	ready := func(url string) {
		fmt.Println(url)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	switch part {
	case "raw-server":
		ns, err := bareServer()
		if err != nil {
			return err
		}
		defer ns.Shutdown()
		ready(ns.ClientURL())
	case "raw-echo":
		nc, err := echo(args[0])
		if err != nil {
			return err
		}
		defer nc.Close()
		ready(args[0])
	case "mcp":
		url, stop, err := mcpServer()
		if err != nil {
			return err
		}
		defer stop()
		ready(url)
	case "bus", "tools", "broker":
		home := bus.Home{Data: args[0] + "/data", Config: args[0] + "/config"}
		cfg, err := load(args[1])
		if err != nil {
			return err
		}
		if part == "bus" {
			c, err := cfg.Start(ctx, home, nil)
			if err != nil {
				return err
			}
			ready(c.Bus.URL)
			return c.Stop(ctx)
		}
		c, err := cfg.Join(ctx, home, args[2], nil, part)
		if err != nil {
			return err
		}
		ready(args[2])
		return c.Stop(ctx)
	default:
		return fmt.Errorf("no part %q", part)
	}
	return nil
}
