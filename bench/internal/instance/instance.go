// Package instance runs conclave as a user does, for a measurement: a process of its own with folders of its own,
// everything else as shipped.
package instance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// readyTimeout bounds the wait for the readiness line.
const readyTimeout = time.Minute

// Instance is a conclave program with a temporary folder for its settings, data and log.
type Instance struct {
	program string
	dir     string
}

// Create makes the folder and writes the settings, file contents by file name. Credentials are kept in a file, so that
// the keyring of the user is not touched. The caller must call [Instance.Remove].
func Create(program string, settings map[string]string) (*Instance, error) {
	dir, err := os.MkdirTemp("", "conclave-bench-")
	if err != nil {
		return nil, err
	}
	i := &Instance{program: program, dir: dir}
	if err = os.Mkdir(i.ConfigDir(), 0o700); err == nil {
		err = i.Configure("secrets.yaml", "backend: file\n")
	}
	for name, content := range settings {
		if err == nil {
			err = i.Configure(name, content)
		}
	}
	if err != nil {
		i.Remove()
		return nil, err
	}
	return i, nil
}

// Build compiles conclave from the module above the folder bench, in which the caller runs. remove deletes the program.
func Build(ctx context.Context) (program string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "conclave-build-")
	if err != nil {
		return "", nil, err
	}
	program = filepath.Join(dir, "conclave")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/conclave")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", nil, fmt.Errorf("building conclave (run this in the folder bench, or give -conclave): %w: %s", err,
			out)
	}
	return program, func() { os.RemoveAll(dir) }, nil
}

// DataDir is the data folder.
func (i *Instance) DataDir() string { return filepath.Join(i.dir, "data") }

// ConfigDir is the folder of the settings.
func (i *Instance) ConfigDir() string { return filepath.Join(i.dir, "config") }

// Configure replaces a file of the settings. It takes effect at the next start.
func (i *Instance) Configure(name, content string) error {
	return os.WriteFile(filepath.Join(i.ConfigDir(), name), []byte(content), 0o600)
}

// Remove deletes the folder. No process of the instance may run.
func (i *Instance) Remove() { _ = os.RemoveAll(i.dir) }

// Command is the program with the folders of the instance, interrupted when ctx ends. Nothing is attached to its input.
func (i *Instance) Command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, "--data", i.DataDir(), "--config", i.ConfigDir())
	cmd := exec.CommandContext(ctx, i.program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// System is a running conclave up.
type System struct {
	API   string // base URL of HTTP
	Token string // of HTTP, empty for a build without one
	PID   int

	cancel context.CancelFunc
	ended  chan struct{} // closed when the process has ended
}

// Start starts conclave up on free ports, with more flags, and waits until every actor is ready. The caller must call
// [System.Stop].
func (i *Instance) Start(ctx context.Context, flags ...string) (*System, error) {
	log, err := os.Create(filepath.Join(i.dir, "log"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	up := i.Command(ctx, append([]string{"up", "--listen", "127.0.0.1:0", "--api-port", "0", "--json"}, flags...)...)
	up.Stderr = log
	out, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		cancel()
		log.Close()
		return nil, err
	}
	s := &System{cancel: cancel, ended: make(chan struct{})}
	ready := make(chan []byte, 1)
	go func() {
		defer close(s.ended)
		defer log.Close()
		line, _ := bufio.NewReader(out).ReadBytes('\n')
		ready <- line
		_ = up.Wait()
	}()
	var line []byte
	select {
	case line = <-ready:
	case <-time.After(readyTimeout):
	case <-ctx.Done():
	}
	if err := s.readReady(line, i.DataDir()); err != nil {
		s.Stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("starting conclave: %w: %s", err, strings.TrimSpace(string(text)))
	}
	return s, nil
}

// readReady fills in s from the readiness line and the token in the data folder. It fails when the line is empty.
func (s *System) readReady(line []byte, data string) error {
	if len(line) == 0 {
		return errors.New("it is not ready")
	}
	var ready struct {
		API string `json:"api"`
		PID int    `json:"pid"`
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		return fmt.Errorf("reading the readiness line: %w", err)
	}
	token, err := os.ReadFile(filepath.Join(data, "http.token"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // older builds have none
		return err
	}
	s.API, s.PID, s.Token = ready.API, ready.PID, strings.TrimSpace(string(token))
	return nil
}

// Stop interrupts the process and waits until it has ended.
func (s *System) Stop() {
	s.cancel()
	<-s.ended
}

// connections are kept for as many requests as a measurement has at once.
var connections = http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Request sends a request to the HTTP interface, with body as JSON unless it is nil, and decodes the reply into into.
// Any status that is no success is an error with the reply's text.
func (s *System) Request(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	data, err := s.send(ctx, method, path, content)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// ErrUnavailable means that the system has too much to do and asks to retry the request.
var ErrUnavailable = errors.New("unavailable")

// Get returns the body of the reply to a GET.
func (s *System) Get(ctx context.Context, path string) ([]byte, error) {
	return s.send(ctx, http.MethodGet, path, nil)
}

// send sends a request with the token, and a body of JSON unless it is nil.
func (s *System) send(ctx context.Context, method, path string, content io.Reader) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.API+path, content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.Token)
	if content != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := connections.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusGatewayTimeout:
		return nil, fmt.Errorf("%w: %s %s: %s: %s", ErrUnavailable, method, path, res.Status,
			strings.TrimSpace(string(data)))
	}
	if res.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, res.Status, strings.TrimSpace(string(data)))
	}
	return data, nil
}
