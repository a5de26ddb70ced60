package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"conclave/actors/mcp"
	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/file"
	"conclave/pkg/firewall"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// maxImport bounds a file with MCP servers, in bytes.
const maxImport = 1 << 20

// foreignServer is a server in the file of another client. Other fields are left out.
type foreignServer struct {
	Type     string            `yaml:"type"`
	Command  string            `yaml:"command"`
	Args     []string          `yaml:"args"`
	Env      map[string]string `yaml:"env"`
	URL      string            `yaml:"url"`
	Server   string            `yaml:"serverUrl"`
	Headers  map[string]string `yaml:"headers"`
	Disabled bool              `yaml:"disabled"`
}

// foreignFile is a file of Claude Desktop, or of VS Code: mcp.json, or its settings.
type foreignFile struct {
	Desktop map[string]foreignServer `yaml:"mcpServers"`
	Code    map[string]foreignServer `yaml:"servers"`
	MCP     struct {
		Servers map[string]foreignServer `yaml:"servers"`
	} `yaml:"mcp"`
}

// mcpImported is a server that was imported.
type mcpImported struct {
	Server  string   `json:"server"`
	Was     string   `json:"was"`     // its name in the file
	Stored  []string `json:"stored"`  // credentials that were stored in the keyring
	Missing []string `json:"missing"` // credentials that the file does not have
}

// mcpImportCommand reads the servers of another client.
func mcpImportCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "import <file>",
		Short: "Import the MCP servers of Claude Desktop or VS Code",
		Long: `Reads the servers from a file of Claude Desktop (claude_desktop_config.json) or VS Code (mcp.json,
settings.json) and writes them to mcp.yaml. Values of env and headers that look like credentials go
to the keyring, and mcp.yaml gets references to them; no value is printed. A server with a
credential in its arguments or its URL is not imported, and neither is one whose name is in
mcp.yaml. Nothing is started: each server needs "conclave mcp add <server>" first, after you have
set in mcp.yaml which files and hosts its program may use.`,
		Example: `  conclave mcp import ~/.config/Claude/claude_desktop_config.json
  conclave mcp import .vscode/mcp.json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			found, err := readForeign(v[0])
			if err != nil {
				return err
			}
			if err := a.Home.CreateFolders(); err != nil {
				return err
			}
			done, err := importServers(cmd.Context(), a, found)
			if a.JSON {
				return errors.Join(a.PrintJSON(append([]mcpImported{}, done...)), err)
			}
			for _, d := range done {
				fmt.Fprintf(a.Out, "%s: in mcp.yaml\n", d.Server)
				for _, name := range d.Stored {
					fmt.Fprintf(a.Out, "  %s is stored in the keyring\n", name)
				}
				for _, name := range d.Missing {
					fmt.Fprintf(a.Out, "  store its credential: %s secret set %s\n", a.Program(), name)
				}
				fmt.Fprintf(a.Out, "  set read, write and hosts in mcp.yaml, then: %s mcp add %s\n", a.Program(),
					d.Server)
			}
			return err
		},
	}
}

// readForeign reads the servers of a file. It may have comments and trailing commas, as VS Code writes them.
func readForeign(path string) (map[string]foreignServer, error) {
	data, err := file.Read(path, maxImport)
	if err != nil {
		return nil, cli.Fail(cli.ExitFailed, err.Error(), "name a file with MCP servers")
	}
	var f foreignFile
	// JSON is YAML; an error of the parser could quote a credential
	if err := yaml.Unmarshal([]byte(stripComments(string(data))), &f); err != nil {
		return nil, cli.Fail(cli.ExitFailed, path+" is not a JSON file with MCP servers", "it needs an object "+
			"mcpServers, servers or mcp.servers")
	}
	for _, all := range []map[string]foreignServer{f.Desktop, f.Code, f.MCP.Servers} {
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, cli.Fail(cli.ExitFailed, path+" has no MCP servers", "it needs an object mcpServers, servers or "+
		"mcp.servers")
}

// stripComments removes the comments of JSON with comments, and replaces tabs, which YAML rejects between values.
func stripComments(s string) string {
	return textOrComment.ReplaceAllStringFunc(s, func(part string) string {
		switch part[0] {
		case '"':
			return part
		case '\t':
			return " "
		}
		return ""
	})
}

// textOrComment matches a text of JSON, a comment or a tab.
var textOrComment = regexp.MustCompile(`"(?:\\.|[^"\\])*"|//[^\n]*|(?s:/\*.*?(?:\*/|$))|\t`)

// importServers writes the servers with a valid form to mcp.yaml, and their credentials to the keyring. The error says
// which servers were left out and why; done lists the others.
func importServers(ctx context.Context, a *cli.App, found map[string]foreignServer) (done []mcpImported, err error) {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return nil, err
	}
	servers, secrets := map[string]bool{}, map[string]string{}
	for name, s := range cfg.MCP.Servers {
		servers[name] = true
		for _, secret := range s.Secrets() {
			secrets[secret] = "the server " + name
		}
	}
	var left []string
	for _, was := range strict.SortedKeys(found) {
		d := mcpImported{Server: foldServerName(was), Was: was, Stored: []string{}, Missing: []string{}}
		if servers[d.Server] {
			left = append(left, fmt.Sprintf("mcp.yaml has a server %s, which %s mcp remove %[1]s removes", d.Server,
				a.Program()))
			continue
		}
		s, values, err := d.convert(found[was], secrets)
		if err != nil {
			left = append(left, fmt.Sprintf("%s: %v", text.OneLine(was, 64), err))
			continue
		}
		exists, err := storeNewSecrets(ctx, a, values)
		if err != nil {
			return done, err
		}
		if exists != "" {
			left = append(left, fmt.Sprintf("%s: the keyring has a credential %s, which %s secret rm %[2]s removes",
				text.OneLine(was, 64), exists, a.Program()))
			continue
		}
		if err := config.SetMCPServer(a.Home, d.Server, &s); err != nil {
			return done, err
		}
		servers[d.Server] = true
		done = append(done, d)
	}
	if len(left) > 0 {
		return done, cli.Fail(cli.ExitFailed, "not imported: "+strings.Join(left, "; "), "change them in the file "+
			"and import it again")
	}
	return done, nil
}

// storeNewSecrets stores credentials by their names in the keyring. When the keyring has one of the names it stores
// none and returns that name.
func storeNewSecrets(ctx context.Context, a *cli.App, values map[string]string) (exists string, err error) {
	if len(values) == 0 {
		return "", nil
	}
	err = withKeyring(ctx, a, func(ctx context.Context, r keyring.Ring, _ keyring.Info) error {
		stored, err := r.Names(ctx)
		if err != nil {
			return err
		}
		for secret := range values {
			if slices.Contains(stored, secret) {
				exists = secret
				return nil
			}
		}
		for secret, value := range values {
			if err := r.Set(ctx, secret, seal.NewSecret([]byte(value))); err != nil {
				return err
			}
		}
		return nil
	})
	return exists, err
}

// convert returns the settings of a server, and its credentials by their names in the keyring. It rejects a credential
// where mcp.yaml cannot refer to the keyring, and a name of a credential that another value has: secrets are those in
// use, by their origin. No error holds a value.
func (d *mcpImported) convert(f foreignServer, secrets map[string]string) (s mcp.Server, values map[string]string,
	err error,
) {
	if err := mcp.CheckName(d.Server); err != nil {
		return s, nil, err
	}
	s = mcp.Server{Type: f.Type, Command: f.Command, Args: f.Args, URL: cmp.Or(f.URL, f.Server), Disabled: f.Disabled}
	for i, arg := range f.Args {
		if isCredentialArg(f.Args[:i], arg) {
			return s, nil, fmt.Errorf("argument %d looks like a credential; give it to the program in env", i+1)
		}
	}
	if holdsCredential(s.URL) {
		return s, nil, errors.New("the url looks like it holds a credential; send it in headers")
	}
	values, used := map[string]string{}, maps.Clone(secrets)
	if s.Env, err = d.takeSecrets(f.Env, values, used); err != nil {
		return s, nil, err
	}
	if s.Headers, err = d.takeSecrets(f.Headers, values, used); err != nil {
		return s, nil, err
	}
	if err := s.Problems().Err(); err != nil {
		return s, nil, err
	}
	maps.Copy(secrets, used)
	return s, values, nil
}

// isCredentialArg reports whether an argument of a program looks like a credential: by its own form, or by the flag
// that it is the value of. before are the arguments before it.
func isCredentialArg(before []string, arg string) bool {
	if holdsCredential(arg) {
		return true
	}
	flag, value, ok := strings.Cut(arg, "=")
	if !ok && len(before) > 0 {
		flag, value = before[len(before)-1], arg
	}
	return strings.HasPrefix(flag, "-") && secretFlag.MatchString(flag) && value != "" &&
		!strings.HasPrefix(value, "-") && !filepath.IsAbs(value) && !strings.HasPrefix(value, "${")
}

// holdsCredential reports whether a value has the form of a credential, or is a URL with one in its query.
func holdsCredential(value string) bool {
	if _, n := firewall.Redact(value); n > 0 {
		return true
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" {
		return false
	}
	for name, values := range u.Query() {
		if secretWord.MatchString(name) && strings.Join(values, "") != "" {
			return true
		}
	}
	return false
}

var (
	// secretWord matches names of variables and headers whose values are credentials.
	secretWord = regexp.MustCompile(`(?i)key|token|secret|pass|credential|auth|cookie|pat$`)
	// secretFlag matches flags of programs whose values are credentials.
	secretFlag = regexp.MustCompile(
		`(?i)(key|token|secret|pass|passwd|password|passphrase|credentials?|[-_](pat|auth|bearer))$`)
	// inputRef is a value that VS Code asks its user for.
	inputRef     = regexp.MustCompile(`\$\{(?:input|env):([^}]*)\}`)
	notTokenChar = regexp.MustCompile(`[^a-z0-9]+`)
)

// foldServerName returns the name of a server here.
func foldServerName(name string) string {
	name = strings.Trim(notTokenChar.ReplaceAllString(strings.ToLower(name), "-"), "-")
	return strings.Trim(name[:min(len(name), 20)], "-")
}

// takeSecrets returns the values with references in place of credentials. Those that the file has are added to values;
// d lists both kinds. used holds the names of credentials in use by their origin: a second origin of a name is
// rejected.
func (d *mcpImported) takeSecrets(from, values, used map[string]string) (out map[string]string, err error) {
	refer := func(part, origin string) string {
		part = strings.Trim(notTokenChar.ReplaceAllString(strings.ToLower(part), "_"), "_")
		name := subjects.MCPSecretPrefix + d.Server + "_" + part
		name = name[:min(len(name), 60)]
		if other, ok := used[name]; ok && other != origin {
			err = fmt.Errorf("%s and %s would share the credential %s; rename one of them", other, origin, name)
		}
		used[name] = origin
		return name
	}
	for _, name := range strict.SortedKeys(from) {
		v := from[name]
		if out == nil {
			out = map[string]string{}
		}
		switch {
		case strings.Contains(v, "${secret:"):
			// of this system: it could name a credential that was stored for another server
			return nil, fmt.Errorf("%s refers to a credential of the keyring; write its value, or ${input:name}",
				text.OneLine(name, 64))
		case inputRef.MatchString(v):
			v = inputRef.ReplaceAllStringFunc(v, func(ref string) string {
				secret := refer(inputRef.FindStringSubmatch(ref)[1], "the input "+text.OneLine(ref, 64)+" of "+d.Was)
				d.Missing = append(d.Missing, secret)
				return "${secret:" + secret + "}"
			})
		case v != "" && (secretWord.MatchString(name) || holdsCredential(v)):
			secret := refer(name, text.OneLine(name, 64)+" of "+d.Was)
			scheme := ""
			if before, after, ok := strings.Cut(v, " "); ok && strings.EqualFold(before, "bearer") {
				scheme, v = before+" ", after
			}
			values[secret] = v
			d.Stored = append(d.Stored, secret)
			v = scheme + "${secret:" + secret + "}"
		}
		out[name] = v
	}
	return out, err
}
