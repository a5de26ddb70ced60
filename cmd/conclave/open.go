package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/bus"
)

// requestTimeout bounds a request to the gateway on this machine.
const requestTimeout = 10 * time.Second

// openCommand prints a login link for a browser, and replaces the token with --new-token.
func openCommand(a *cli.App) *cobra.Command {
	var newToken bool
	cmd := &cobra.Command{
		Use:   "open",
		Short: "Print a login link for a browser",
		Long: `Prints a link that logs a browser in. It is valid once, for ten minutes, and sets a cookie that is
valid for 30 days in that browser, also when conclave is restarted. The page lists the browsers that
are logged in, under Machines, and logs them out. The link is a credential: do not share it, and do
not write it to a log.

Every HTTP request needs a credential, because other users of this machine can reach the port.
Programs send the header Authorization: Bearer with the token of the file http.token in the data
folder, or use the Unix socket http.sock there, which needs no token. Only you can read the file and
connect to the socket.

With --new-token the token is replaced first: the old one, every login link and every cookie stop
working at once. This works on a stopped system too; then no link is printed.

The exit code is 4 if conclave is not running.`,
		Example: `  conclave open
  conclave open --new-token
  conclave open --json | jq -r .url`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.LoadConfig(nil)
			if err != nil {
				return err
			}
			if newToken {
				running, err := replaceToken(cmd.Context(), a, cfg)
				if err != nil || !running {
					return err
				}
			}
			link, err := requestLoginLink(cmd.Context(), a, cfg)
			return a.Print(link, err, func() {
				if term.IsTerminal(a.Out) {
					fmt.Fprintln(a.Err, "Open this link in a browser. It is valid once, for ten minutes.")
				}
				fmt.Fprintln(a.Out, link.URL)
			})
		},
	}
	cmd.Flags().BoolVar(&newToken, "new-token", false, "replace the token; revokes every login")
	return cmd
}

// requestLoginLink requests a login link from the running gateway.
func requestLoginLink(ctx context.Context, a *cli.App, cfg config.Config) (link gateway.LoginLink, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return link, a.RequestHTTP(ctx, cfg.GatewayConfig(a.Home).Socket, http.MethodPost, "/login/links", &link)
}

// replaceToken replaces the token of HTTP and reports whether a gateway runs. On a stopped system it replaces the file
// only. It refuses when conclave runs without a gateway that answers: the token in use would stay valid.
func replaceToken(ctx context.Context, a *cli.App, cfg config.Config) (running bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = a.RequestHTTP(ctx, cfg.GatewayConfig(a.Home).Socket, http.MethodPost, "/login/token", nil)
	if cli.Code(err) != cli.ExitAbsent {
		if err == nil {
			fmt.Fprintln(a.Err, "The token is replaced. Earlier tokens, login links and logins are revoked.")
		}
		return true, err
	}
	if _, rerr := a.Home.ReadRunning(); !errors.Is(rerr, bus.ErrNotRunning) {
		return false, err
	}
	file := cfg.GatewayConfig(a.Home).TokenFile
	if err := gateway.ReplaceToken(file); err != nil {
		return false, cli.Fail(cli.ExitFailed, err.Error(), "start conclave up once, which creates the data folder")
	}
	fmt.Fprintf(a.Err, "The token in %s is replaced. conclave is not running, so there is no login link yet.\n", file)
	return false, nil
}
