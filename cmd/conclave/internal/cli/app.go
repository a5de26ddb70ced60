// Package cli is what every command shares: the global flags, the folders, the configuration, connections, exit codes
// and help texts for arguments.
package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/nats-io/nats.go"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/pkg/firewall"
	"conclave/pkg/logfile"
	"conclave/subjects"
)

// App is the streams and the global flags of a command.
type App struct {
	*term.Streams
	Started time.Time

	Home   bus.Home // from --data and --config, or the XDG folders
	Server string
	JSON   bool
	Level  string
}

// New returns an app without flags.
func New(in io.Reader, out, err io.Writer) *App {
	return &App{Streams: term.NewStreams(in, out, err), Started: time.Now()}
}

// ResolveFolders rejects an unknown --log-level and sets the folders that no flag names to the XDG ones. Both become
// absolute: they are printed, and written into nats contexts. Without --server it names the cluster of the data folder,
// if it has one. It creates nothing.
func (a *App) ResolveFolders() error {
	if a.Level != "" {
		if err := new(slog.Level).UnmarshalText([]byte(a.Level)); err != nil {
			return Usage("--log-level %q: use debug, info, warn or error", a.Level)
		}
	}
	if a.Home.Data == "" || a.Home.Config == "" {
		home, err := bus.DefaultHome()
		if err != nil {
			return err
		}
		a.Home.Data, a.Home.Config = cmp.Or(a.Home.Data, home.Data), cmp.Or(a.Home.Config, home.Config)
	}
	var err error
	if a.Home.Data, err = filepath.Abs(a.Home.Data); err != nil {
		return err
	}
	if info, err := os.Stat(a.Home.Data); err == nil && !info.IsDir() || errors.Is(err, syscall.ENOTDIR) {
		return Usage("the data folder %s is not a folder: choose another one with --data", a.Home.Data)
	}
	if a.Home.Config, err = filepath.Abs(a.Home.Config); err != nil {
		return err
	}
	a.Server = cmp.Or(a.Server, a.Home.ClusterURL())
	return nil
}

// Logger logs to stderr: as readable lines without control characters on a terminal, as JSON elsewhere. Records below
// level are dropped.
func (a *App) Logger(level slog.Level) *slog.Logger {
	if term.IsTerminal(a.Err) {
		return slog.New(tint.NewTextHandler(a.Err, &tint.Options{
			Level: level, TimeFormat: time.TimeOnly,
			NoColor: !term.HasColour(a.Err), ReplaceAttr: replaceText(term.PlainText),
		}))
	}
	return slog.New(slog.NewJSONHandler(a.Err, &slog.HandlerOptions{Level: level}))
}

// ServiceLogger is [App.Logger] of a process that stays, which also keeps its log in a file of at most maxBytes for
// conclave logs, none with 0. Credentials in texts are redacted there. A file that cannot be written is only logged.
func (a *App) ServiceLogger(level slog.Level, maxBytes int64, name string) (log *slog.Logger, closeLog func()) {
	stderr := a.Logger(level)
	if maxBytes == 0 {
		return stderr, func() {}
	}
	f := logfile.New(a.Home.Logs(), name, maxBytes, func(err error) {
		stderr.Warn("conclave logs has no records of this process", "err", err) // not to the file, which is locked here
	})
	redact := replaceText(func(s string) string {
		s, _ = firewall.Redact(s)
		return s
	})
	file := slog.NewJSONHandler(f, &slog.HandlerOptions{Level: level, ReplaceAttr: redact})
	return slog.New(slog.NewMultiHandler(stderr.Handler(), file)), func() { _ = f.Close() }
}

// replaceText returns a ReplaceAttr of slog that replaces the text of attributes that are strings or errors.
func replaceText(replace func(string) string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, at slog.Attr) slog.Attr {
		switch v := at.Value.Any().(type) {
		case string:
			at.Value = slog.StringValue(replace(v))
		case error:
			at.Value = slog.StringValue(replace(v.Error()))
		}
		return at
	}
}

// QuietLogger is the logger of a short command: warnings and errors, unless --log-level names another level.
func (a *App) QuietLogger() *slog.Logger {
	level := slog.LevelWarn
	if a.Level != "" {
		_ = level.UnmarshalText([]byte(a.Level)) // checked by ResolveFolders
	}
	return a.Logger(level)
}

// Bus is the server named by --server, or the running one; without either the error wraps [bus.ErrNotRunning]. It does
// not connect.
func (a *App) Bus() (*bus.Bus, error) {
	url := a.Server
	if url == "" {
		r, err := a.Home.ReadRunning()
		if errors.Is(err, bus.ErrNotRunning) {
			if found := a.CheckNoStandalone(); found != nil { // conclave up would be wrong advice
				return nil, fmt.Errorf("%w: %w", bus.ErrNotRunning, found)
			}
		}
		if err != nil {
			return nil, err
		}
		url = r.URL
	}
	return a.Home.Connect(url, a.QuietLogger()), nil
}

// Connect connects to the server with the key of a role, such as user, operator or auditor. The caller must call close
// unless there is an error.
func (a *App) Connect(role string, opts ...nats.Option) (c *client.Client, close func(), err error) {
	b, err := a.Bus()
	if err != nil {
		return nil, nil, err
	}
	nc, err := b.Dial(role, opts...)
	if err != nil {
		return nil, nil, err
	}
	if c, err = client.New(nc); err != nil {
		nc.Close()
		return nil, nil, err
	}
	return c, nc.Close, nil
}

// WithClient connects with the user's key, runs f and closes the connection. It returns the error of either.
func (a *App) WithClient(f func(c *client.Client) error, opts ...nats.Option) error {
	c, done, err := a.Connect("user", opts...)
	if err != nil {
		return err
	}
	defer done()
	return f(c)
}

// ReadWithClient is [App.WithClient] for a command that changes nothing: once ctx has ended, which is the user's
// interrupt, every error is dropped and the command succeeds.
func (a *App) ReadWithClient(ctx context.Context, f func(c *client.Client) error, opts ...nats.Option) error {
	return IgnoreInterrupt(ctx, a.WithClient(f, opts...))
}

// IgnoreInterrupt returns err, or nil once ctx has ended: the user has interrupted a read.
func IgnoreInterrupt(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ReportLink returns options that print on stderr when a connection is lost, is back or has an error. back is printed
// after a reconnect, slow when messages were lost because the reader is slow; "" prints nothing.
func (a *App) ReportLink(back, slow string) []nats.Option {
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil on our own close
				a.Say("the connection to the server is lost: reconnecting")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			if back != "" {
				a.Say("%s", back)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			switch {
			case !errors.Is(err, nats.ErrSlowConsumer):
				a.Say("%s", term.OneLine(err.Error()))
			case slow != "":
				a.Say("%s", slow)
			}
		}),
	}
}

// CheckNoStandalone refuses to start a server on a store that a stand-alone server uses: two servers on one store
// destroy it. nil means that none was found: no environment file, nothing at its address within two seconds, or another
// program there. It only reads the greeting of the server. Answering its challenge would let an impostor on that port
// relay our signature.
func (a *App) CheckNoStandalone() error {
	vars, err := ReadEnv(a.Home.Env())
	if err != nil {
		return nil // none was ever prepared
	}
	address := vars["CONCLAVE_LISTEN"]
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return nil // none runs
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	greeting, err := bufio.NewReaderSize(conn, 64<<10).ReadSlice('\n')
	var info struct {
		Name string `json:"server_name"`
	}
	rest, ok := bytes.CutPrefix(greeting, []byte("INFO "))
	if err != nil || !ok || json.Unmarshal(rest, &info) != nil || info.Name != bus.ServerName {
		return nil // another program
	}
	return Fail(ExitFailed, "a stand-alone server at nats://"+address+" uses this data folder",
		"connect to it with --server nats://"+address+", or stop it first")
}

// ReadEnv reads the environment file that conclave keys writes for a stand-alone server: NAME=value lines, with quotes
// around a value removed. Comments and other lines are skipped; a missing file is [fs.ErrNotExist].
func ReadEnv(file string) (map[string]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			vars[name] = strings.Trim(v, `'"`)
		}
	}
	return vars, nil
}

// FolderFlags are --data and --config, quoted and each after a blank, as they must be repeated for another command to
// use the same folders; "" for the default ones.
func (a *App) FolderFlags() string {
	home, err := bus.DefaultHome()
	s := ""
	if err != nil || a.Home.Data != home.Data {
		s += " --data " + term.ShellQuote(a.Home.Data)
	}
	if err != nil || a.Home.Config != home.Config {
		s += " --config " + term.ShellQuote(a.Home.Config)
	}
	return s
}

// Program is the beginning of another command on the same system: conclave, and the folder and server flags that differ
// from the defaults.
func (a *App) Program() string {
	s := "conclave" + a.FolderFlags()
	if a.Server != "" {
		s += " --server " + term.ShellQuote(a.Server)
	}
	return s
}

// Finish prints an error, if any, and returns the exit code. Without one, a failed write to stdout is the error. A
// reader of stdout that has gone ([term.ErrReaderGone]) is no error unless a command made a [Failure] of it.
func (a *App) Finish(err error) int {
	if err == nil {
		err = a.Out.Err
	}
	var f *Failure
	if errors.Is(err, term.ErrReaderGone) && !errors.As(err, &f) {
		return ExitOK
	}
	if err != nil {
		fmt.Fprintln(a.Err, term.Paint(a.Err, term.Red, "conclave:"), term.OneLine(err.Error()))
	}
	return Code(err)
}

// Interruptible returns a context that ends with the first SIGINT, SIGTERM or SIGHUP; the second exits the process with
// 1. SIGHUP stays ignored under nohup. SIGPIPE is ignored, so that a write fails and the command can end in order.
// release must be called once; it ends the context and the handling of signals.
func Interruptible(ctx context.Context, stderr io.Writer) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // set by nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			fmt.Fprintln(stderr, "conclave: stopped at once: running work was cut off")
			os.Exit(ExitFailed)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// StateFolder is the folder of what is kept between runs and can be lost, such as the history of chat and the log of a
// system in the background: conclave in $XDG_STATE_HOME (default ~/.local/state), or with --data that folder. It is not
// created.
func (a *App) StateFolder() (string, error) {
	if home, err := bus.DefaultHome(); err != nil || a.Home.Data != home.Data {
		return a.Home.Data, nil
	}
	return bus.DefaultState()
}

// lastSessionFile holds the session that ask used last, and the id of the question.
func (a *App) lastSessionFile() string { return filepath.Join(a.Home.Data, "last_session") }

// LastSession is the id of the session that ask used last. When nothing was asked yet, the error is none, which the
// caller words. A file without a valid id is an error too.
func (a *App) LastSession(none error) (string, error) {
	session, _, err := a.LastQuestion(none)
	return session, err
}

// LastQuestion is [App.LastSession] with the id of the question; "" = it is not known.
func (a *App) LastQuestion(none error) (session, query string, err error) {
	b, err := os.ReadFile(a.lastSessionFile())
	if errors.Is(err, os.ErrNotExist) {
		return "", "", none
	}
	if err != nil {
		return "", "", fmt.Errorf("reading the last session: %w", err)
	}
	session, query, _ = strings.Cut(strings.TrimSpace(string(b)), " ")
	if subjects.CheckToken(session) != nil || query != "" && subjects.CheckToken(query) != nil {
		return "", "", Fail(ExitFailed, a.lastSessionFile()+" does not hold a session id", "delete the file, or name "+
			"a session with --session")
	}
	return session, query, nil
}

// SaveLastQuestion stores a question for [App.LastQuestion]. The file is replaced atomically: another ask may read it.
// The data folder must exist.
func (a *App) SaveLastQuestion(session, query string) error {
	return file.Replace(a.lastSessionFile(), []byte(session+" "+query+"\n"))
}

// ForgetLastSession removes the session from [App.LastSession] if it is the one stored there, because it was deleted.
func (a *App) ForgetLastSession(session string) error {
	if last, err := a.LastSession(nil); err != nil || last != session {
		return nil
	}
	return os.Remove(a.lastSessionFile())
}

// WriteNewFile creates a file with what write writes, complete or not at all, with mode 0600. It refuses a file that
// exists, also one created meanwhile, and a folder that cannot be written to.
func WriteNewFile(file string, write func(w io.Writer) error) error {
	exists := Fail(ExitFailed, file+" exists already", "choose another name")
	switch _, err := os.Lstat(file); {
	case err == nil:
		return exists
	case !errors.Is(err, os.ErrNotExist):
		return Fail(ExitFailed, err.Error(), "choose a folder that you can write to")
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".export-*") // with mode 0600
	if err != nil {
		return Fail(ExitFailed, err.Error(), "choose a folder that you can write to")
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(write(tmp), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	// Unlike a rename, a link never replaces a file.
	err = os.Link(tmp.Name(), file)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, errors.ErrUnsupported) { // a file system without links
		var claim *os.File
		if claim, err = os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			err = errors.Join(claim.Close(), os.Rename(tmp.Name(), file))
		}
	}
	if errors.Is(err, os.ErrExist) {
		return exists
	}
	return err
}
