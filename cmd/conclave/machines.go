package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// inviteFlags are the flags of conclave invite and conclave machines rotate.
type inviteFlags struct {
	actors  []string
	address string
	expires time.Duration
}

func (f *inviteFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "address", "", "`host:port` under which the machine reaches this one (default: "+
		"an address of this machine)")
	cmd.Flags().DurationVar(&f.expires, "expires", time.Hour, "how long the token is valid, at most 168h")
}

// inviteCommand prints a token with which another machine joins.
func inviteCommand(a *cli.App) *cobra.Command {
	var f inviteFlags
	cmd := &cobra.Command{
		Use:   "invite <machine> --actors list",
		Short: "Invite another machine to run actors",
		Long: `Prints a token. conclave join - on the other machine reads it from stdin and starts a NATS leaf node
there and the named actors, with a key for each account and no rights beyond those of these actors.
The token is valid once and expires. It is a secret: anyone who has it can join in that machine's
place.

Actors of a machine: model (its language models), witness (a copy of the audit log), the tools
get_datetime, web_search and web_fetch, and generator, respondent_b, committee, critic, reward.

The machine recognizes this one by its TLS key, which is pinned in the token. This machine listens
on machines.listen of system.yaml (port 7422) while an invitation is open or a machine has joined.`,
		Example: `  conclave invite gpu-box --actors model,witness
  conclave invite gpu-box --actors model | ssh gpu-box conclave join - --only
  conclave invite laptop --actors web_search,web_fetch --address 192.168.1.10:7422 --expires 10m`,
		Args: cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, v []string) error {
			p := subjects.Principal{Name: v[0], Kind: subjects.MachinePrincipal, Actors: f.actors}
			if len(f.actors) == 0 {
				return cli.Usage("name what the machine shall run with --actors: %s",
					strings.Join(subjects.MachineActors(), ", "))
			}
			if err := p.CheckRights(); err != nil {
				return cli.Usage("%v", err)
			}
			return printInvitation(cmd.Context(), a, subjects.MachineInvite{Machine: v[0], Actors: f.actors}, f)
		},
	}
	cmd.Flags().StringSliceVar(&f.actors, "actors", nil, "`names` of what the machine runs, separated by commas")
	f.add(cmd)
	cli.CompleteFlags(cmd, map[string]cli.Completion{"actors": cli.Words(subjects.MachineActors()...)})
	return cmd
}

// invitation is the output of conclave invite. The token is a secret, and the purpose of the command.
type invitation struct {
	Machine string    `json:"machine"`
	Actors  []string  `json:"actors"`
	Address string    `json:"address"`
	Expires time.Time `json:"expires"`
	Token   string    `json:"token"`
}

// printInvitation makes an invitation, whose secret does not leave this process but in the token, and prints it.
func printInvitation(ctx context.Context, a *cli.App, q subjects.MachineInvite, f inviteFlags) error {
	if f.expires < time.Minute || f.expires > 7*24*time.Hour {
		return cli.Usage("--expires %s: give 1m to 168h", f.expires)
	}
	if f.address != "" {
		if err := machine.CheckAddress(f.address); err != nil {
			return cli.Usage("--address %q: %v", f.address, err)
		}
	}
	id, secret, err := machine.NewSecret()
	if err != nil {
		return err
	}
	q.ID, q.Hash, q.Expires = id, secret.Hash(), time.Now().Add(f.expires)
	return a.WithClient(func(c *client.Client) error {
		got, err := c.InviteMachine(ctx, q)
		if err != nil {
			return machineError(err)
		}
		address := f.address
		if address == "" {
			if address, err = reachableAddress(got.Listen); err != nil {
				return err
			}
		}
		pin, err := bus.ParsePin(got.Pin)
		if err != nil {
			return err
		}
		text, err := machine.Token{Address: address, Pin: pin, ID: id, Secret: secret}.Encode()
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(invitation{q.Machine, got.Actors, address, q.Expires.UTC(), text})
		}
		a.Say("%s may run %s. Run conclave join - on that machine before %s, and paste this token, which is a "+
			"secret:\n", q.Machine, strings.Join(got.Actors, ", "), term.Stamp(q.Expires))
		if _, err := fmt.Fprintln(a.Out, text); err != nil {
			return err
		}
		a.Say("\nIt connects to %s; if it reaches this machine under another address, use --address.", address)
		return nil
	})
}

// machineError is [cli.RequestError] of a request about machines.
func machineError(err error) error {
	return cli.RequestError(err, cli.Fail(cli.ExitAbsent, "the registry does not answer", "machines join the embedded "+
		"server of conclave up: start it"), func(f *subjects.Fault) error {
		return cli.Fail(cli.ExitFailed, f.Text, "see conclave machines")
	})
}

// reachableAddress returns the address of the hub for other machines: that of listen, with an address of this machine
// in place of "every address".
func reachableAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return listen, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	var candidates []string
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			candidates = append(candidates, n.IP.String())
		}
	}
	if len(candidates) == 0 {
		return "", cli.Fail(cli.ExitFailed, "this machine has no address that another machine could reach",
			"name one with --address host:"+port)
	}
	return net.JoinHostPort(candidates[0], port), nil
}

// joinCommand joins a hub, or runs a machine that joined.
func joinCommand(a *cli.App) *cobra.Command {
	var once, newHubKey bool
	cmd := &cobra.Command{
		Use:   "join [token]",
		Short: "Join a hub with its token, and run the actors that it invited",
		Long: `Presents the token of conclave invite to the hub, stores a key for each account and runs the actors
until Ctrl-C. Without a token it runs a machine that has joined already; conclave up does the same
on this data folder.

The token is read from stdin, one line, when it is "-": an argument is in the process list and in
the history of the shell. A data folder joins one hub; a new token of conclave machines rotate
replaces its keys; with --new-hub-key also after the hub lost its TLS key. When the hub is not
reachable, the actors wait and the connection is repeated.`,
		Example: `  conclave join -
  conclave join`,
		Args: cli.Args(cobra.MaximumNArgs(1)), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, v []string) error {
			cfg, err := a.LoadConfig(nil)
			if err != nil {
				return err
			}
			if len(v) == 1 {
				if err := joinHub(cmd.Context(), a, v[0], newHubKey); err != nil || once {
					return err
				}
			}
			return runMachine(cmd.Context(), a, cfg, "")
		},
	}
	cmd.Flags().BoolVar(&once, "only", false, "join, and do not run the actors")
	cmd.Flags().BoolVar(&newHubKey, "new-hub-key", false, "accept that the hub has another TLS key than when this "+
		"machine joined, for example after a restore without keys")
	return cmd
}

// joinHub enrols this machine with a token; "-" reads it from stdin.
func joinHub(ctx context.Context, a *cli.App, text string, newHubKey bool) error {
	if text == "-" {
		line, err := bufio.NewReader(io.LimitReader(a.Reader(ctx), 8<<10)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		text = strings.TrimSpace(line)
	}
	token, err := machine.ParseToken(text)
	if err != nil {
		return cli.Usage("%v", err)
	}
	if err := a.Home.CreateFolders(); err != nil {
		return err
	}
	unlock, err := a.Home.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := machine.Join(ctx, a.Home, token, newHubKey, time.Now())
	if err != nil {
		return cli.Fail(cli.ExitFailed, "joining failed: "+err.Error(), "see conclave join --help")
	}
	a.Say("joined %s as %s: %s", s.Hub, s.Machine, strings.Join(s.Actors, ", "))
	return nil
}

// runMachine runs the actors of a machine that joined until ctx ends. health is the socket for conclave health, "" =
// none.
func runMachine(ctx context.Context, a *cli.App, cfg config.Config, health string) error {
	log, closeLog := a.ServiceLogger(cfg.System.Level(), int64(cfg.System.LogMax), "up")
	defer closeLog()
	c, state, err := cfg.WithWiring(config.Wiring{Version: readBuild().Version}).StartMachine(ctx, a.Home, log)
	if errors.Is(err, machine.ErrNotJoined) {
		return cli.Usage("%v", err)
	}
	if err != nil {
		return err
	}
	if err := serveHealth(ctx, health, c); err != nil {
		return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	printReady(a, c, "")
	a.Say("%s of the hub %s at %s runs %s", state.Machine, state.Hub, state.Address, strings.Join(readyActors(c), ", "))
	go c.ReportLink(ctx, func(up bool) {
		if up {
			a.Say("connected to %s", state.Address)
			return
		}
		a.Say("not connected to %s: check that conclave up runs there, that the address is reachable and that "+
			"conclave machines there lists %s; the connection is repeated", state.Address, state.Machine)
	})
	return waitAndStop(ctx, nil, c, log)
}

// machinesCommand lists, revokes and rotates machines.
func machinesCommand(a *cli.App) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the machines and their connections",
		Long: `Lists the machines: name, state of the connection, round trip, what they run. With --json it prints
one array.`,
		Example: "  conclave machines list --json",
		Args:    cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Machines(ctx)
			return cli.PrintTable(a, all, machineError(err),
				"no machine has joined: invite one with "+a.Program()+" invite", term.Layout{Whole: true},
				func(m subjects.MachineStatus) []string {
					return []string{m.Name, describeLink(m, time.Now()), strings.Join(m.Actors, ",")}
				})
		}),
	}
	revoke := &cobra.Command{
		Use:   "revoke <machine>",
		Short: "Remove a machine and close its connections, or cancel its invitation",
		Long: `Removes a machine: its connections are closed before the command returns, and its keys are not
accepted any more. The invitation of a machine that has not joined is cancelled.`,
		Example: "  conclave machines revoke gpu-box",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeNames(a),
		RunE: a.ChangeEach(func(ctx context.Context, c *client.Client, name string) (any, string, error) {
			done, err := revokeMachine(ctx, c, name)
			return principalReport{Name: name, Action: subjects.PrincipalRevoke}, done, err
		}),
	}
	var f inviteFlags
	rotate := &cobra.Command{
		Use:   "rotate <machine>",
		Short: "Print a token with which a machine replaces its keys",
		Long: `Prints a token for a machine that has joined. conclave join - there replaces its keys; the old ones
are valid until then.`,
		Example: "  conclave machines rotate gpu-box",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeNames(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			return printInvitation(cmd.Context(), a, subjects.MachineInvite{Machine: v[0], Rotate: true}, f)
		},
	}
	f.add(rotate)
	cmd := &cobra.Command{
		Use:     "machines",
		Short:   "List, revoke and rotate the machines that joined",
		Long:    `Without a command it lists the machines. conclave invite adds one.`,
		Example: "  conclave machines\n  conclave machines revoke gpu-box",
		Args:    cli.NoArgs,
		RunE:    list.RunE,
	}
	cmd.AddCommand(list, revoke, rotate)
	return cmd
}

// revokeMachine removes a machine, or cancels its invitation, and says which. It fails for a principal of another kind.
func revokeMachine(ctx context.Context, c *client.Client, name string) (done string, err error) {
	all, err := c.Machines(ctx)
	if err != nil {
		return "", machineError(err)
	}
	switch p, err := findPrincipal(ctx, c, isNamed(name)); {
	case err != nil:
		return "", machineError(err)
	case p != nil && p.Kind != subjects.MachinePrincipal:
		return "", cli.Fail(cli.ExitFailed, name+" is not a machine", "see conclave principal revoke")
	}
	done = "revoked " + name
	if slices.ContainsFunc(all, func(m subjects.MachineStatus) bool { return m.Name == name && m.Added.IsZero() }) {
		done = "cancelled the invitation of " + name
	}
	// Also for a name that is not listed: the server may not have applied an earlier revocation.
	err = c.ChangePrincipal(ctx, subjects.PrincipalChange{
		Action:    subjects.PrincipalRevoke,
		Principal: subjects.Principal{Name: name},
	})
	var f *subjects.Fault
	if errors.As(err, &f) && f.Code == subjects.CodeMalformed {
		return "", cli.Fail(cli.ExitFailed, "no machine has joined or is invited as "+name, "see conclave machines")
	}
	return done, machineError(err)
}

// describeLink says how a machine is connected.
func describeLink(m subjects.MachineStatus, now time.Time) string {
	switch {
	case m.Added.IsZero():
		return "invited until " + m.InvitedUntil.Local().Format("2006-01-02 15:04")
	case !m.Connected.IsZero():
		if m.Claimed {
			return "unidentified connection from " + term.OneLine(m.Address) +
				" that names itself so: another machine has the same actors"
		}
		text := fmt.Sprintf("connected for %s from %s", now.Sub(m.Connected).Round(time.Second),
			term.OneLine(m.Address))
		if m.RTT > 0 { // measured after some seconds
			text += ", round trip " + m.RTT.Round(10*time.Microsecond).String()
		}
		return text
	case !m.LastSeen.IsZero():
		return "not connected, last seen " + m.LastSeen.Local().Format("2006-01-02 15:04:05")
	}
	return "not connected since conclave was started"
}
