package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/subjects"
)

// keysCommand creates the keys, the configuration and the environment file of a stand-alone server. The embedded one
// needs none.
func keysCommand(a *cli.App) *cobra.Command {
	var (
		listen           string
		exports, cluster []string
	)
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Create the keys and files of a stand-alone NATS server",
		Long: `Creates missing keys, one per role, and writes two files for a stand-alone nats-server: its
configuration, and an environment file with public keys and paths. Neither contains a secret, and no
seed is ever printed. Existing keys are not touched.

The embedded server of conclave up needs none of this.

With --cluster it prepares three servers instead, each with a folder to copy to its host:
configuration, environment file, and a TLS certificate with its private key. Every stream is then
kept on all three, and one of them may be down. Servers and clients recognize one another by an
authority that is made here and stays in the data folder. Commands on this data folder use the
cluster from then on, without --server.

Among the keys are those of the two provisioners, which may create streams. conclave provision uses
them once and deletes them; to provision again, run conclave keys again and restart the server with
the new environment file.

With --export it creates missing keys and copies those of some actors to the data folder of another
process or container, which then has these keys and no others; it writes no files for a stand-alone
server, and may run beside conclave up.`,
		Example: `  conclave keys
  conclave keys --listen 127.0.0.1:4333 --json
  conclave keys --cluster nats1.lan,nats2.lan,nats3.lan
  conclave keys --export /services/broker=broker --export /services/web=web_search,web_fetch`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if len(exports) > 0 {
				return exportKeys(a, exports)
			}
			if len(cluster) == 0 {
				cluster = a.Home.ClusterHosts()
			}
			if len(cluster) == 0 {
				return createKeys(a, listen)
			}
			if listen != "" {
				return cli.Usage("--listen is for a single server: write host:port in --cluster")
			}
			hosts, err := bus.ParseClusterHosts(cluster)
			if err != nil {
				return cli.Usage("--cluster: %v", err)
			}
			return createCluster(a, hosts)
		},
	}
	cmd.Flags().StringArrayVar(&exports, "export", nil, "copy the keys of some actors to another data folder, "+
		"`folder=actor,...`; may be repeated")
	cmd.Flags().StringVar(&listen, "listen", "", "`host:port` of the NATS server (system.listen)")
	cmd.Flags().StringSliceVar(&cluster, "cluster", nil, "`hosts` of three servers, host or host:port for clients; "+
		"the port for the other servers is 2000 above it")
	return cmd
}

// keysReport is what conclave keys wrote.
type keysReport struct {
	Env     string              `json:"env,omitempty"`
	Conf    string              `json:"conf,omitempty"`
	Servers []bus.ClusterServer `json:"servers,omitempty"` // of a cluster
	Keys    []publicKey         `json:"keys"`
}

// publicKey is the public half of a role's key; seeds are never printed.
type publicKey struct {
	Role   string `json:"role"`
	Public string `json:"public"`
}

// ensureKeys creates missing keys and returns the public half of all, and how many were created. It refuses while
// conclave up runs on the data folder: a second server on the same store destroys it. Existing keys stay.
func ensureKeys(a *cli.App) (all []publicKey, created int, err error) {
	if err := a.Home.CreateFolders(); err != nil {
		return nil, 0, err
	}
	if r, err := a.Home.ReadRunning(); err == nil {
		return nil, 0, cli.Fail(cli.ExitFailed, fmt.Sprintf("conclave runs on this data folder (process %d at %s)",
			r.PID, r.URL), "stop it first: a second server on the same store destroys it")
	}
	lasting, boot := subjects.Table().Roles()
	roles := append(lasting, boot...)
	keys := a.Home.Keys()
	if created, err = keys.Ensure(roles); err != nil {
		return nil, 0, err
	}
	for _, r := range roles {
		p, err := keys.Public(r)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, publicKey{r, p})
	}
	return all, created, nil
}

// createCluster creates missing keys, writes the folders of the servers of a cluster and prints the commands that
// follow. hosts are their client addresses.
func createCluster(a *cli.App, hosts []string) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	var out keysReport
	var created int
	if out.Keys, created, err = ensureKeys(a); err != nil {
		return err
	}
	if out.Servers, err = a.Home.WriteCluster(cfg.ServerConfig(a.Home), hosts); err != nil {
		return err
	}
	var start []string
	for _, server := range out.Servers {
		start = append(start, "cd "+term.ShellQuote(server.Folder)+
			" && set -a && . ./nats.env && set +a && nats-server -c nats.conf   # "+server.URL)
	}
	return printKeys(a, out, created, "Each server has a folder with its configuration and its private TLS key. Copy "+
		"each to its host and start it there.", start, "")
}

// printKeys prints what was written, and the commands that follow: start, then those of this program with the flag
// server.
func printKeys(a *cli.App, out keysReport, created int, wrote string, start []string, server string) error {
	return a.Print(out, nil, func() {
		a.Say("%d keys in %s, %d of them new.", len(out.Keys), a.Home.Keys().Dir, created)
		a.Say("%s Next:\n", wrote)
		for _, command := range start {
			fmt.Fprintln(a.Out, command)
		}
		fmt.Fprintf(a.Out, "conclave provision%s%s\n", server, a.FolderFlags())
		actors := a.NamingConfig().EnabledActors()
		fmt.Fprintf(a.Out, "conclave actor %s%s%s\n", strings.Join(actors, " "), server, a.FolderFlags())
	})
}

// createKeys creates missing keys, writes the configuration of a stand-alone server and prints the commands that
// follow. listen is host:port, "" for the setting; port 0 becomes 4222.
func createKeys(a *cli.App, listen string) error {
	cfg, err := a.LoadConfig(map[string]string{"system.listen": listen})
	if err != nil {
		return err
	}
	public, created, err := ensureKeys(a)
	if err != nil {
		return err
	}
	server := cfg.ServerConfig(a.Home)
	host, port, err := net.SplitHostPort(server.Listen)
	if err != nil {
		return err
	}
	if port == "0" { // for a stand-alone server 0 means its default port
		port = "4222"
		server.Listen = net.JoinHostPort(host, port)
	}
	out := keysReport{Env: a.Home.Env(), Conf: a.Home.Conf(), Keys: public}
	if err := a.Home.WriteEnv(server); err != nil {
		return err
	}
	principals, err := a.Home.ReadPrincipals()
	if err != nil {
		return err
	}
	if err := a.Home.WriteConf(principals); err != nil {
		return err
	}
	return printKeys(a, out, created, "Public keys and paths are in "+out.Env+", the server's configuration is in "+
		out.Conf+".", []string{"set -a; . " + term.ShellQuote(out.Env) + "; set +a; nats-server -c " +
		term.ShellQuote(out.Conf)}, " --server nats://"+net.JoinHostPort(host, port))
}

// provisionCommand creates the streams of a stand-alone server, which --server must name.
func provisionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "provision --server URL",
		Short: "Create the streams on a stand-alone NATS server or cluster, once",
		Long: `Creates the streams, buckets and consumers on a NATS server that was started with the files of
conclave keys, and opens the audit log. Then it deletes the seeds of the two provisioners, so that
no key for the accounts of the streams is left.

Running it again when the streams exist and the seeds are gone changes nothing and succeeds. To let
a new version change the streams, run conclave keys, restart the server with the new environment
file, and provision again.`,
		Example: "  conclave provision --server nats://127.0.0.1:4222",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Server == "" {
				return cli.Usage("name the server with --server URL; the embedded server of conclave up needs no " +
					"provisioning")
			}
			return provisionServer(cmd.Context(), a)
		},
	}
}

// provisionReport is the result of provisioning.
type provisionReport struct {
	URL     string   `json:"url"`
	Done    bool     `json:"done"`    // false: it was done before
	Deleted []string `json:"deleted"` // seeds
}

// provisionServer creates the streams with the provisioners' keys and then deletes these keys. With the keys gone and
// the streams there it changes nothing and succeeds; with both missing it fails and names the way back. It waits ten
// seconds for a server that does not answer, and fails when the data folder is locked.
func provisionServer(ctx context.Context, a *cli.App) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	if err := a.Home.CreateFolders(); err != nil {
		return err
	}
	unlock, err := a.Home.Lock() // nobody else may write the audit anchors meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	b := a.Home.Connect(a.Server, a.QuietLogger())
	err = auditlog.Provision(ctx, a.Home, b, func(ctx context.Context, genesis []byte) error {
		return retryUnreachable(ctx, func() error {
			return bus.ProvisionRemote(ctx, b, cfg.ServerConfig(a.Home), genesis)
		})
	})
	out := provisionReport{URL: a.Server, Done: true, Deleted: []string{}}
	again := "run conclave keys" + a.FolderFlags() + " and restart nats-server with the new environment file"
	switch {
	case errors.Is(err, bus.ErrMissingKey):
		if !hasStreams(ctx, a) {
			return cli.Fail(cli.ExitFailed, "the provisioners' keys are gone and streams are missing",
				again+", then provision again")
		}
		out.Done = false
	case errors.Is(err, bus.ErrKeyRejected):
		return cli.Fail(cli.ExitFailed, err.Error(), again)
	case err != nil:
		return err
	}
	if out.Deleted, err = deleteProvisioners(b.Keys); err != nil {
		return err
	}
	if _, err := writeContexts(a, b.Keys, b.URL, b.CA); err != nil {
		a.Say("the nats contexts could not be written: %v", err)
	}
	said := "The streams exist and the provisioners' keys are gone: nothing to do. To provision again, %s."
	if out.Done {
		said = "The streams are created. The provisioners' seeds are deleted, so nobody can change the streams; to " +
			"provision again, %s."
	}
	return a.Print(out, nil, a.Saying(said, again))
}

// deleteProvisioners deletes the seeds of the provisioners and returns the files it deleted, never nil. A seed that is
// gone already is no error.
func deleteProvisioners(keys bus.Keys) ([]string, error) {
	deleted := []string{}
	_, boot := subjects.Table().Roles()
	for _, r := range boot {
		switch err := os.Remove(keys.Path(r)); {
		case err == nil:
			deleted = append(deleted, keys.Path(r))
		case !errors.Is(err, fs.ErrNotExist):
			return deleted, fmt.Errorf("the streams are created, but a provisioner's seed could not be deleted: %w: "+
				"delete it", err)
		}
	}
	return deleted, nil
}

// retryUnreachable calls step until it no longer fails with [bus.ErrUnreachable], for ten seconds, because the server
// was often started a moment before. It returns the last error, also when ctx ends.
func retryUnreachable(ctx context.Context, step func() error) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := step()
		if !errors.Is(err, bus.ErrUnreachable) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// hasStreams reports whether the event log and the audit log exist, read with the user's and the auditor's key. It is
// false also when the server or a key cannot be used.
func hasStreams(ctx context.Context, a *cli.App) bool {
	for role, read := range map[string]func(*client.Client) error{
		"user":    func(c *client.Client) error { _, err := c.EventStatus(ctx); return err },
		"auditor": func(c *client.Client) error { _, err := c.AuditStatus(ctx); return err },
	} {
		c, done, err := a.Connect(role)
		if err != nil {
			return false
		}
		err = read(c)
		done()
		if err != nil {
			return false
		}
	}
	return true
}

// keyExport is a data folder of other processes and the roles that they run.
type keyExport struct {
	Folder string   `json:"folder"`
	Roles  []string `json:"roles"`
	hashes bool     // one of them writes audit records, which needs the key of params_hash
}

// parseKeyExport parses "folder=actor,actor". An actor is one of this build, a tool, or another lasting role such as
// user. It rejects unknown names, and the roles of the provisioners.
func parseKeyExport(a *cli.App, text string) (keyExport, error) {
	folder, names, ok := strings.Cut(text, "=")
	if !ok || !filepath.IsAbs(folder) || names == "" {
		return keyExport{}, cli.Usage("--export %q: write an absolute folder and its actors, like "+
			"/services/broker=broker", text)
	}
	out := keyExport{Folder: filepath.Clean(folder)}
	lasting, _ := subjects.Table().Roles()
	for n := range strings.SplitSeq(names, ",") {
		roles := []string{n, n + "_in"} // an actor that consumes a stream pulls in an account of its own
		switch {
		case n == "tools":
			roles = nil
			for _, tool := range a.NamingConfig().ToolNames() {
				roles = append(roles, subjects.ToolRole(tool))
			}
		case slices.Contains(a.NamingConfig().ToolNames(), n):
			roles = []string{subjects.ToolRole(n)}
		}
		roles = slices.DeleteFunc(roles, func(r string) bool { return !slices.Contains(lasting, r) })
		if len(roles) == 0 {
			return keyExport{}, cli.Usage("--export %q: unknown actor %q%s", text, n, cli.Nearest(n, runnableActors(a)))
		}
		out.Roles = append(out.Roles, roles...)
		out.hashes = out.hashes || slices.Contains(subjects.AuditWriters, n)
	}
	return out, nil
}

// exportKeys creates missing keys, and copies to each folder the keys of its roles and no others. Unlike createKeys it
// may run beside a server, whose keys it does not change, and writes no files of a stand-alone server.
func exportKeys(a *cli.App, texts []string) error {
	exports := []keyExport{}
	for _, text := range texts {
		e, err := parseKeyExport(a, text)
		if err != nil {
			return err
		}
		exports = append(exports, e)
	}
	if err := a.Home.CreateFolders(); err != nil {
		return err
	}
	lasting, _ := subjects.Table().Roles()
	if _, err := a.Home.Keys().Ensure(lasting); err != nil {
		return err
	}
	if _, err := audit.LoadHasher(a.Home.HashKey()); err != nil { // creates its key
		return err
	}
	for _, e := range exports {
		if err := copyKeys(a.Home, e); err != nil {
			return err
		}
	}
	return a.Print(exports, nil, func() {
		for _, e := range exports {
			a.Say("%s has the keys of %s.", e.Folder, strings.Join(e.Roles, ", "))
		}
	})
}

// copyKeys makes the keys of a folder exactly those of its roles, with the key of params_hash for a writer of audit
// records: an actor that was moved to another folder leaves no key behind.
func copyKeys(from bus.Home, e keyExport) error {
	to := bus.Home{Data: e.Folder}
	if err := os.MkdirAll(to.Keys().Dir, 0o700); err != nil {
		return fmt.Errorf("exporting keys: %w", err)
	}
	keep := map[string]string{} // by file name, the file that it is a copy of
	for _, r := range e.Roles {
		keep[filepath.Base(to.Keys().Path(r))] = from.Keys().Path(r)
	}
	if e.hashes {
		keep[filepath.Base(to.HashKey())] = from.HashKey()
	}
	entries, err := os.ReadDir(to.Keys().Dir)
	if err != nil {
		return fmt.Errorf("exporting keys: %w", err)
	}
	for _, f := range entries {
		if keep[f.Name()] == "" {
			if err := os.RemoveAll(filepath.Join(to.Keys().Dir, f.Name())); err != nil {
				return fmt.Errorf("exporting keys: %w", err)
			}
		}
	}
	for name, source := range keep {
		key, err := os.ReadFile(source)
		if err == nil {
			err = file.Replace(filepath.Join(to.Keys().Dir, name), key)
			clear(key)
		}
		if err != nil {
			return fmt.Errorf("exporting keys: %w", err)
		}
	}
	return nil
}
