package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/chat"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/subjects"
)

// chatHelp is the help text of conclave chat.
const chatHelp = `Talks with the assistant. The answer is rendered as it is generated, in the terminal's own
scrollback; the last line shows the phase and its seconds. A call that needs your approval is shown
with its exact arguments and asked about; Enter alone denies it.

Enter sends; Alt-Enter, Ctrl-J or a backslash at the end begins a new line. Up and Down recall
earlier inputs, which are stored in chat_history in the state folder with mode 0600 (an input that
begins with a blank is not). Ctrl-C or Esc stops the answer and keeps what is there; Ctrl-C again
quits. A question that is sent while an answer runs is asked after it. /help lists the commands, Tab
completes them.

What you type is your own words. A paste of several lines and a file of /attach are UNTRUSTED
content that the question is about. A call that waits for you is decided with y, or with the first
characters of its id on a terminal that does not mark pastes.

When no system runs here, chat offers to start one in the background.`

// chatCommand is the interactive conversation. It rejects --session together with --continue, and invalid ids and
// models.
func chatCommand(a *cli.App) *cobra.Command {
	var (
		o      chat.Options
		resume bool
	)
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Talk with the assistant",
		Long:  chatHelp,
		Example: `  conclave chat
  conclave chat --continue
  conclave chat --session 3f9c01d2 --model gemma3:4b`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Session != "" && resume:
				return cli.Usage("--session and --continue exclude each other")
			case a.JSON:
				return cli.Usage("chat is for people: programs use conclave ask --json or --stream-json")
			}
			if err := cli.CheckID("session", o.Session); err != nil {
				return err
			}
			if o.Model != "" {
				if err := cli.CheckModel(o.Model); err != nil {
					return err
				}
			}
			return runChat(cmd.Context(), a, o, resume)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Session, "session", "", "`id` of the session (default: a new one)")
	f.BoolVar(&resume, "continue", false, "continue the last session")
	f.StringVar(&o.Model, "model", "", "`model` to answer (default: the assistant's)")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"session": a.CompleteSessions(), "model": completeModels(a)})
	return cmd
}

// runChat connects, starts a system if the user wants one, and runs the conversation.
func runChat(ctx context.Context, a *cli.App, o chat.Options, resume bool) error {
	if _, ok := term.Keyboard(a.In); !ok || !term.IsTerminal(a.Out) {
		return cli.Usage("chat needs a terminal: in a pipe use conclave ask")
	}
	if err := offerStart(ctx, a); err != nil {
		return err
	}
	link := make(chan bool, 16)
	report := func(up bool) {
		select {
		case link <- up:
		default: // nobody reads it any more
		}
	}
	c, done, err := a.Connect("user",
		nats.DisconnectErrHandler(func(nc *nats.Conn, _ error) { report(nc.IsClosed()) }),
		nats.ReconnectHandler(func(*nats.Conn) { report(true) }))
	if err != nil {
		return err
	}
	defer done()
	o.Link = link
	if f := diskFault(a); f != nil {
		return diskError(f)
	}
	switch {
	case resume:
		o.Session, err = a.LastSession(cli.Fail(cli.ExitFailed, "there is no session to continue in "+a.Home.Data,
			"chat without --continue first, or name a session with --session"))
	case o.Session != "":
		var id string
		if id, err = c.FindSession(ctx, o.Session); errors.Is(err, client.ErrNotFound) {
			id, err = o.Session, nil // a name of the user's own begins a session
		}
		o.Session = id
	}
	if err != nil {
		return err
	}
	o.App, o.Client, o.Resume = a, c, o.Session != ""
	return chat.Run(ctx, o)
}

// startTimeout is how long a system in the background may take until it is ready.
const startTimeout = time.Minute

// offerStart asks whether a system shall be started in the background when none runs on the data folder, and waits
// until it is ready. It does nothing when one runs or --server names one. stdin must be a terminal.
func offerStart(ctx context.Context, a *cli.App) error {
	if a.Server != "" {
		return nil
	}
	_, err := a.Home.ReadRunning()
	if !errors.Is(err, bus.ErrNotRunning) {
		return err
	}
	keyboard, _ := term.Keyboard(a.In)
	start, cerr := a.Confirm(ctx, keyboard, "Conclave is not running. Start it in the background?")
	if cerr != nil || !start {
		return errors.Join(stoppedError(cerr), err)
	}
	return startInBackground(ctx, a)
}

// startInBackground starts conclave up in a session of its own, which outlives this command, and waits until its
// assistant is ready. Its log is in the state folder.
func startInBackground(ctx context.Context, a *cli.App) error {
	folder, err := a.StateFolder()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(folder, "up.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "up", "--data", a.Home.Data, "--config", a.Home.Config)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		select {
		case <-ended:
			return cli.Fail(cli.ExitFailed, "conclave up ended at once", "see "+log.Name())
		case <-ready.Done():
			return cli.Fail(cli.ExitFailed, fmt.Sprintf("conclave up is not ready after %s", startTimeout),
				"see "+log.Name())
		case <-time.After(100 * time.Millisecond):
		}
		if isAssistantReady(ready, a) {
			a.Say("started as process %d; it keeps running: stop it with kill %d, its log is %s", cmd.Process.Pid,
				cmd.Process.Pid, log.Name())
			return nil
		}
	}
}

// isAssistantReady reports whether the assistant of the running system answers.
func isAssistantReady(ctx context.Context, a *cli.App) bool {
	if _, err := a.Home.ReadRunning(); err != nil {
		return false
	}
	c, done, err := a.Connect("user")
	if err != nil {
		return false
	}
	defer done()
	running, err := c.Ping(ctx, subjects.Generator)
	return err == nil && len(running) > 0
}
