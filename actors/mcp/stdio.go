package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"conclave/pkg/file"
	"conclave/pkg/sandbox"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// serverLimits bound the program of a server. The wall clock and the processor time are those of a service and not of a
// run; the address space is large because Node reserves most of it without using it, and total memory is what counts.
var serverLimits = sandbox.Limits{
	Time: 7 * 24 * time.Hour, CPU: 12 * time.Hour, Memory: 256 << 30, TotalMemory: 1 << 30, Processes: 256,
	OpenFiles: 1024,
	FileSize:  256 << 20, Disk: 512 << 20, Entries: 100_000, Output: 16 << 10,
}

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 4 << 20

// stopTime is how long a program may take to end after its standard input is closed.
const stopTime = 2 * time.Second

// program is the transport of a server that is a program: standard input and output of a process in the sandbox. It has
// no environment, files and hosts but those of its settings.
type program struct {
	server Server
	folder string   // working folder, made when it is missing
	closed []string // folders that no program may see
	env    map[string]string
	files  map[string][]byte // credentials as files, by name
	self   string            // file of this program; "" = that of the process

	redact  func(string) string // replaces credentials
	longest int                 // bytes of the longest credential

	mu      sync.Mutex
	running *programConn // nil before Connect
}

// kill ends the program and waits until it is gone.
func (p *program) kill() {
	if c := p.started(); c != nil {
		c.stop()
		<-c.ended
	}
}

// outcome returns why the program ended, nil while it runs.
func (p *program) outcome() error {
	if c := p.started(); c != nil {
		select {
		case <-c.ended:
			return c.outcome
		case <-time.After(100 * time.Millisecond): // the end of its output comes before its own
		}
	}
	return nil
}

func (p *program) started() *programConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// Connect implements [sdk.Transport]: it starts the program.
func (p *program) Connect(ctx context.Context) (sdk.Connection, error) {
	spec, err := p.spec()
	if err != nil {
		return nil, err
	}
	stopProxy, err := startProxy(&spec, p.server.Hosts, p.self)
	if err != nil {
		return nil, err
	}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		stopProxy()
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		stopProxy()
		inRead.Close()
		inWrite.Close()
		return nil, err
	}
	spec.Pipes = &sandbox.Pipes{In: inRead, Out: outWrite}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &programConn{stop: stop, ended: make(chan struct{})}
	p.mu.Lock()
	p.running = c
	p.mu.Unlock()
	go func() {
		defer close(c.ended)
		r, err := sandbox.Run(running, spec)
		stopProxy()
		c.outcome = p.describeEnd(r, err)
	}()
	c.Connection, err = (&sdk.IOTransport{
		Reader: &floodGuard{from: outRead}, Writer: inWrite,
		MaxLineLength: maxMessage,
	}).Connect(ctx)
	return c, err
}

// longestSpelling is the length of the longest spelling of a credential, relative to it: URL-escaped.
const longestSpelling = 3

// missingFile matches the line by which Node, Python or a shell says that a file is missing.
var missingFile = regexp.MustCompile(
	`(?m)^.*(?:Cannot find (?:module|package)|ModuleNotFoundError|No such file or directory|can't open file|ENOENT).*$`)

// describeEnd says why a program is not running, with the end of what it wrote to standard error. Credentials are
// replaced before the text is cut: a part of one would not be recognized.
func (p *program) describeEnd(r sandbox.Result, err error) error {
	if err != nil {
		return fmt.Errorf("the program was not started: %w", err)
	}
	why := fmt.Sprintf("the program ended with exit code %d", r.ExitCode)
	if r.Stopped != sandbox.StopNone {
		why = "the program was stopped: " + string(r.Stopped)
	}
	last := strings.TrimSpace(p.redact(cleanText(string(r.Output))))
	if len(r.Output) >= serverLimits.Output { // it may end in a part of a credential, in some spelling
		last = last[:max(0, len(last)-longestSpelling*p.longest)] + "..."
	}
	missing := missingFile.FindString(last)
	if missing != "" {
		last = text.Clip(missing, 300) // a stack trace follows it
	}
	if len(last) > 400 {
		last = "..." + last[len(last)-400:]
	}
	if last != "" {
		why += "; it wrote: " + text.OneLine(strings.ToValidUTF8(last, ""), 500)
	}
	if missing != "" {
		why += "; it sees the files of the system and those of read and write, no others"
	}
	return errors.New(why)
}

// spec returns the run of the program. Its own file is readable, wherever it is.
func (p *program) spec() (sandbox.Spec, error) {
	if err := makeFolder(p.folder); err != nil {
		return sandbox.Spec{}, err
	}
	s := sandbox.Spec{
		Args: append([]string{p.server.Command}, p.server.Args...), Dir: p.folder, Closed: p.closed,
		Limits: serverLimits, ReadWrite: p.server.Write, Secrets: p.files,
	}
	for _, path := range p.server.Read {
		if !slices.Contains(s.ReadWrite, path) {
			s.ReadOnly = append(s.ReadOnly, path)
		}
	}
	if c := p.server.Command; filepath.IsAbs(c) && !isVisible(c, append(slices.Clone(s.ReadOnly), s.ReadWrite...)) {
		s.ReadOnly = append(s.ReadOnly, c)
	}
	for _, name := range strict.SortedKeys(p.env) {
		s.Env = append(s.Env, name+"="+p.env[name])
	}
	return s, nil
}

// isVisible reports whether a program in the sandbox can read path: it is below a folder of the system or of list.
func isVisible(path string, list []string) bool {
	for _, f := range append([]string{"/usr", "/bin", "/sbin", "/lib", "/lib64"}, list...) {
		if path == f || strings.HasPrefix(path, f+"/") {
			return true
		}
	}
	return false
}

// makeFolder makes the working folder of a server, in a folder that belongs to this user and that no other user can
// change.
func makeFolder(dir string) error {
	if err := file.MakeFolder(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("making the working folder: %w; set folder in mcp.yaml", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// programConn is the connection to a program.
type programConn struct {
	sdk.Connection
	stop    context.CancelFunc
	ended   chan struct{} // closed when every process is gone
	outcome error         // why; valid after ended
	once    sync.Once
}

// Close implements [sdk.Connection]: it closes standard input, and stops the program when it does not end by itself.
func (c *programConn) Close() error {
	err := c.Connection.Close()
	c.once.Do(func() {
		awaitStop(c.ended)
		c.stop()
		<-c.ended
	})
	return err
}

// awaitStop waits until done is closed, at most stopTime.
func awaitStop(done <-chan struct{}) {
	t := time.NewTimer(stopTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// Bounds of what a server may send within floodWindow: more is a flood and ends the connection.
const (
	floodWindow   = 10 * time.Second
	floodBytes    = 64 << 20
	floodMessages = 5_000
)

// errFlood is the error of a server that sends more than it may.
var errFlood = errors.New("the server sends too many messages")

// floodGuard is a reader that fails when a server floods.
type floodGuard struct {
	from  io.ReadCloser
	since time.Time
	bytes int
	lines int
}

func (g *floodGuard) Read(b []byte) (int, error) {
	n, err := g.from.Read(b)
	if now := time.Now(); now.Sub(g.since) > floodWindow {
		g.since, g.bytes, g.lines = now, 0, 0
	}
	g.bytes += n
	for _, c := range b[:n] {
		if c == '\n' {
			g.lines++
		}
	}
	if g.bytes > floodBytes || g.lines > floodMessages {
		return 0, errFlood
	}
	return n, err
}

func (g *floodGuard) Close() error { return g.from.Close() }
