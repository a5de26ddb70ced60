package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"conclave/subjects"
)

// keysCommand makes what a stand-alone server needs.
func (a *app) keysCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make the keys and settings of a stand-alone NATS server",
		Long: `Makes the keys that are missing, one per role, and writes two files that a stand-alone nats-server reads: its
configuration, and an environment file with the public keys and places. Nothing in them is secret, and no seed is ever
printed. Existing keys are never touched.

The embedded server of conclave up needs none of this.

Among the keys are those of the two provisioners, who may make streams. conclave provision uses them once and deletes
them; to provision again, run conclave keys again and restart the server with the new environment file.`,
		Example: `  conclave keys
  conclave keys --listen 127.0.0.1:4333 --json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.keys(listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", "", "`host:port` of the NATS server (system.listen)")
	return cmd
}

// public is a role and its public key.
type public struct {
	Role   string `json:"role"`
	Public string `json:"public"`
}

func (a *app) keys(listen string) error {
	cfg, err := a.load(map[string]string{"system.listen": listen})
	if err != nil {
		return err
	}
	if err := a.home.Make(); err != nil {
		return err
	}
	if r, err := a.home.Running(); err == nil {
		return fail(exitFailed, fmt.Sprintf("conclave runs on this data folder (process %d at %s)", r.PID, r.URL), "stop it first: a second server on the same store destroys it")
	}
	lasting, boot := subjects.Table().Roles()
	roles := append(lasting, boot...)
	keys := a.home.Keys()
	made, err := keys.Ensure(roles)
	if err != nil {
		return err
	}
	server := cfg.ServerConfig(a.home)
	host, port, err := net.SplitHostPort(server.Listen)
	if err != nil {
		return err
	}
	if port == "0" { // a stand-alone server reads 0 as its usual port
		port = "4222"
		server.Listen = net.JoinHostPort(host, port)
	}
	if err := a.home.WriteEnv(server); err != nil {
		return err
	}
	conf := filepath.Join(a.home.Data, "nats.conf")
	if err := os.WriteFile(conf, []byte(subjects.Table().Conf()), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", conf, err)
	}
	out := struct {
		Env  string   `json:"env"`
		Conf string   `json:"conf"`
		Keys []public `json:"keys"`
	}{Env: a.home.Env(), Conf: conf}
	for _, r := range roles {
		p, err := keys.Public(r)
		if err != nil {
			return err
		}
		out.Keys = append(out.Keys, public{r, p})
	}
	if a.json {
		return a.document(out)
	}
	a.say("%d keys in %s, %d of them new.", len(roles), keys.Dir, made)
	a.say("Public keys and places are in %s, the server's configuration is in %s. Now:\n", out.Env, out.Conf)
	url := "nats://" + net.JoinHostPort(host, port)
	fmt.Fprintf(a.stdout, "set -a; . %s; set +a; nats-server -c %s\n", shellQuote(out.Env), shellQuote(out.Conf))
	fmt.Fprintf(a.stdout, "conclave provision --server %s%s\n", url, a.again())
	fmt.Fprintf(a.stdout, "conclave actor %s --server %s%s\n", strings.Join(staff(a.settings()), " "), url, a.again())
	return nil
}
