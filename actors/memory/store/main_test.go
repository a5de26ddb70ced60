//go:build cgo

package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// The test binary plays another process when its environment asks for it.
const (
	roleEnv  = "CONCLAVE_TEST_PART"
	pathEnv  = "CONCLAVE_TEST_PATH"
	limitEnv = "CONCLAVE_TEST_MOST" // bytes that a file may have
)

var childRoles = map[string]func(path string) error{
	"hold":      hold,
	"fill":      fillTheDisk,
	"act":       actUntilKilled,
	"footprint": measureFootprint,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		if err := childRoles[name](os.Getenv(pathEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold opens the memory, says so, and closes it when its input ends.
func hold(path string) error {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		return err
	}
	printLine("open")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Close(context.Background())
}

// childProcess is a process that plays a part. It ends with the test.
type childProcess struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t *testing.T, part, path string, env ...string) *childProcess {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := &childProcess{cmd: exec.Command(exe)}
	o.cmd.Env = append(os.Environ(), append(env, roleEnv+"="+part, pathEnv+"="+path)...)
	o.cmd.Stderr = os.Stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.lines = bufio.NewScanner(out)
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if o.cmd.ProcessState == nil {
			_ = o.cmd.Process.Kill()
			_ = o.cmd.Wait()
		}
	})
	return o
}

// line is the next thing that the other process says.
func (o *childProcess) line(t *testing.T) string {
	t.Helper()
	if !o.lines.Scan() {
		t.Fatalf("the other process said nothing: %v", o.lines.Err())
	}
	return o.lines.Text()
}

// printLine writes a line to the parent process.
func printLine(words ...any) { _, _ = os.Stdout.WriteString(fmt.Sprintln(words...)) }
