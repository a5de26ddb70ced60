package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"conclave/actors/mcp"
	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/pkg/strict"
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
		Long: `Reads the servers from a file of Claude Desktop (claude_desktop_config.json) or VS Code (mcp.json, settings.json) and writes them to
mcp.yaml. Values that look like credentials go to the keyring, and mcp.yaml gets references to them; no value is printed. Nothing is started:
each server needs "conclave mcp add <server>" first, after you have set in mcp.yaml which files and hosts its program may use.`,
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
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(done)
			}
			for _, d := range done {
				fmt.Fprintf(a.Out, "%s: in mcp.yaml\n", d.Server)
				for _, name := range d.Stored {
					fmt.Fprintf(a.Out, "  %s is stored in the keyring\n", name)
				}
				for _, name := range d.Missing {
					fmt.Fprintf(a.Out, "  store its credential: %s secret set %s\n", a.Program(), name)
				}
				fmt.Fprintf(a.Out, "  set read, write and hosts in mcp.yaml, then: %s mcp add %s\n", a.Program(), d.Server)
			}
			return nil
		},
	}
}

// readForeign reads the servers of a file. It may have comments and trailing commas, as VS Code writes them.
func readForeign(path string) (map[string]foreignServer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxImport {
		return nil, cli.Fail(cli.ExitFailed, fmt.Sprintf("%s has more than %d KB", path, maxImport>>10), "it is no file with MCP servers")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f foreignFile
	if err := yaml.Unmarshal([]byte(stripComments(string(data))), &f); err != nil { // JSON is YAML; an error of the parser could quote a credential
		return nil, cli.Fail(cli.ExitFailed, path+" is not a JSON file with MCP servers", "it needs an object mcpServers, servers or mcp.servers")
	}
	for _, all := range []map[string]foreignServer{f.Desktop, f.Code, f.MCP.Servers} {
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, cli.Fail(cli.ExitFailed, path+" has no MCP servers", "it needs an object mcpServers, servers or mcp.servers")
}

// stripComments removes the comments of JSON with comments, and replaces tabs, which YAML rejects between values.
func stripComments(s string) string {
	var b strings.Builder
	inText := false
	for i := 0; i < len(s); i++ {
		switch {
		case inText && s[i] == '\\' && i+1 < len(s):
			b.WriteByte(s[i])
			i++
			b.WriteByte(s[i])
			continue
		case s[i] == '"':
			inText = !inText
		case inText:
		case strings.HasPrefix(s[i:], "//"):
			for i < len(s) && s[i] != '\n' {
				i++
			}
			b.WriteByte('\n')
			continue
		case strings.HasPrefix(s[i:], "/*"):
			if end := strings.Index(s[i+2:], "*/"); end >= 0 {
				i += end + 3
				continue
			}
			return b.String()
		case s[i] == '\t':
			b.WriteByte(' ')
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// importServers writes the servers to mcp.yaml, those with a valid form, and their credentials to the keyring.
func importServers(ctx context.Context, a *cli.App, found map[string]foreignServer) (done []mcpImported, err error) {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return nil, err
	}
	for _, was := range strict.SortedKeys(found) {
		f := found[was]
		if f.URL == "" {
			f.URL = f.Server
		}
		name := foldServerName(was)
		d := mcpImported{Server: name, Was: was, Stored: []string{}, Missing: []string{}}
		if err := mcp.CheckName(name); err != nil {
			return done, cli.Fail(cli.ExitFailed, err.Error(), "rename it in the file")
		}
		if _, ok := cfg.MCP.Servers[name]; ok || slices.ContainsFunc(done, func(o mcpImported) bool { return o.Server == name }) {
			return done, cli.Fail(cli.ExitFailed, "mcp.yaml has a server "+name, "remove it first: "+a.Program()+" mcp remove "+name)
		}
		s := mcp.Server{Type: f.Type, Command: f.Command, Args: f.Args, URL: f.URL, Disabled: f.Disabled}
		values := map[string]string{}
		s.Env, s.Headers = d.takeSecrets(f.Env, values), d.takeSecrets(f.Headers, values)
		if err := s.Problems().Err(); err != nil {
			return done, cli.Fail(cli.ExitFailed, name+": "+err.Error(), "change it in the file")
		}
		if len(values) > 0 {
			if err := withKeyring(ctx, a, func(ctx context.Context, r keyring.Ring, _ keyring.Info) error {
				for secret, value := range values {
					if err := r.Set(ctx, secret, seal.NewSecret([]byte(value))); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return done, err
			}
		}
		if err := config.SetMCPServer(a.Home, name, &s); err != nil {
			return done, err
		}
		done = append(done, d)
	}
	return done, nil
}

var (
	// secretWord matches names of variables and headers whose values are credentials.
	secretWord = regexp.MustCompile(`(?i)key|token|secret|pass|credential|auth|cookie|pat$`)
	// inputRef is a value that VS Code asks its user for.
	inputRef     = regexp.MustCompile(`\$\{(?:input|env):([^}]*)\}`)
	notTokenChar = regexp.MustCompile(`[^a-z0-9]+`)
)

// foldServerName returns the name of a server here.
func foldServerName(name string) string {
	name = strings.Trim(notTokenChar.ReplaceAllString(strings.ToLower(name), "-"), "-")
	return strings.Trim(name[:min(len(name), 20)], "-")
}

// takeSecrets returns the values with references in place of credentials. Those that the file has are added to values; d lists both
// kinds.
func (d *mcpImported) takeSecrets(from map[string]string, values map[string]string) map[string]string {
	secretName := func(part string) string {
		part = strings.Trim(notTokenChar.ReplaceAllString(strings.ToLower(part), "_"), "_")
		name := subjects.MCPSecretPrefix + strings.ReplaceAll(d.Server, "-", "_") + "_" + part
		return name[:min(len(name), 60)]
	}
	var out map[string]string
	for _, name := range strict.SortedKeys(from) {
		v := from[name]
		if out == nil {
			out = map[string]string{}
		}
		switch {
		case inputRef.MatchString(v):
			v = inputRef.ReplaceAllStringFunc(v, func(ref string) string {
				secret := secretName(inputRef.FindStringSubmatch(ref)[1])
				d.Missing = append(d.Missing, secret)
				return "${secret:" + secret + "}"
			})
		case secretWord.MatchString(name) && v != "":
			secret := secretName(name)
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
	return out
}
