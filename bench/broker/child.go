package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"conclave/config"
	"conclave/pkg/bus"
)

// child is a part in a process of its own.
type child struct {
	part string
	url  string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// start starts one part in a process of its own and returns when it has printed its address. It ends when its standard
// input does, so that nothing is left behind.
func start(part string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{part: part, cmd: exec.Command(self, append([]string{"-child", part}, args...)...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if c.url, err = c.line(); err != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		return nil, fmt.Errorf("starting %s: %w", part, err)
	}
	return c, nil
}

func (c *child) line() (string, error) {
	s, err := c.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// tell says a word to the part and waits until it has said it back.
func (c *child) tell(word string) error {
	if _, err := fmt.Fprintln(c.in, word); err != nil {
		return err
	}
	back, err := c.line()
	if err == nil && back != word {
		err = fmt.Errorf("was told %q and said %q", word, back)
	}
	return err
}

// allocations asks the part how many objects it has allocated.
func (c *child) allocations() (n uint64, err error) {
	if _, err = fmt.Fprintln(c.in, "allocations"); err != nil {
		return 0, err
	}
	line, err := c.line()
	if err == nil {
		_, err = fmt.Sscan(line, &n)
	}
	return n, err
}

func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// runChild is one part: it prints its address and runs until its standard input ends.
func runChild(part string, args []string) (err error) {
	ctx := context.Background()
	end, err := profilePart(part)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	ready := func(url string) {
		fmt.Println(url)
		for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
			fmt.Println(ownAllocations())
		}
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
	case "empty-tool", "empty-broker":
		b := &bus.Bus{URL: args[2], Keys: homeIn(args[0]).Keys()}
		run := runEmptyTool
		if part == "empty-broker" {
			run = runEmptyBroker
		}
		if err := run(b); err != nil {
			return err
		}
		ready(b.URL)
	case "bus", "bus+broker", "bus+empty-broker":
		c, err := startServer(ctx, part, args[0], args[1])
		if err != nil {
			return err
		}
		ready(c.Bus.URL)
		return c.Stop(ctx)
	case "tools", "broker", "router", "turning":
		home := homeIn(args[0])
		cfg, err := load(args[1])
		if err != nil {
			return err
		}
		var names []string // the turning broker is not one of the system's
		if part != "turning" {
			names = []string{part}
		}
		c, err := cfg.Join(ctx, home, args[2], nil, names...)
		if err != nil {
			return err
		}
		if part == "turning" {
			return errors.Join(turnByWord(ctx, c, cfg, home), c.Stop(ctx))
		}
		ready(args[2])
		return c.Stop(ctx)
	default:
		return fmt.Errorf("no part %q", part)
	}
	return nil
}

// startServer starts the server, alone or with a broker in its process.
func startServer(ctx context.Context, part, dir, syncMode string) (*config.Instance, error) {
	cfg, err := load(syncMode)
	if err != nil {
		return nil, err
	}
	var names []string
	if part == "bus+broker" {
		names = append(names, "broker")
	}
	c, err := cfg.Start(ctx, homeIn(dir), nil, names...)
	if err != nil || part != "bus+empty-broker" {
		return c, err
	}
	return c, runEmptyBroker(c.Bus)
}
