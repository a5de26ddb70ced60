package mcp

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/local"
	"conclave/pkg/sandbox"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Config is the section mcp of the configuration.
type Config struct {
	// holds a working folder for each server; "" = that of the installation
	Folder  string            `yaml:"folder"`
	Servers map[string]Server `yaml:"mcpServers"` // by name
}

// Server is how one MCP server is reached, in the form that other clients use, and what it may reach. It has either a
// command or a URL.
type Server struct {
	Type    string   `yaml:"type,omitempty"`    // stdio or http; "" = by the other fields
	Command string   `yaml:"command,omitempty"` // program; it runs in the sandbox
	Args    []string `yaml:"args,omitempty"`
	// values may hold ${secret:mcp_<server>_name}, or ${secretfile:mcp_<server>_name} for the path of a file with it
	Env map[string]string `yaml:"env,omitempty"`

	URL     string            `yaml:"url,omitempty"`     // of a server with streamable HTTP
	Headers map[string]string `yaml:"headers,omitempty"` // values may hold ${secret:mcp_<server>_name}

	// files and folders that the program may read, besides those of the system
	Read  []string `yaml:"read,omitempty"`
	Write []string `yaml:"write,omitempty"` // folders that the program may change
	// host:port, or a host for port 443, that the program may connect to
	Hosts    []string      `yaml:"hosts,omitempty"`
	Timeout  time.Duration `yaml:"timeout,omitempty"`  // of one call; 0 = that of the caller
	Disabled bool          `yaml:"disabled,omitempty"` // not started
}

// maxServers bounds the number of servers.
const maxServers = 50

var (
	serverName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,19}$`)
	variable   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	secretRef  = regexp.MustCompile(`\$\{secret(file)?:([^}]*)\}`) // the second part is the name
	secretName = regexp.MustCompile(`^` + subjects.MCPSecretPrefix + `[a-z0-9_-]{1,60}$`)
	hostPort   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$`)
)

// CheckName rejects a name that no server can have.
func CheckName(server string) error {
	if !serverName.MatchString(server) {
		return fmt.Errorf("server name %q: use a to z, 0 to 9 and \"-\", at most 20 characters, a letter first",
			text.Clip(server, 40))
	}
	return nil
}

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c.
func (c Config) Problems() (out strict.Problems) {
	if c.Folder != "" && (!filepath.IsAbs(c.Folder) || filepath.Clean(c.Folder) != c.Folder ||
		strings.Count(c.Folder, "/") < 2) {
		out.Add("folder", "%q is not an absolute path of at least two folders; write /var/lib/mcp, or leave it out",
			text.Clip(c.Folder, 64))
	}
	if len(c.Servers) > maxServers {
		out.Add("mcpServers", "%d servers, at most %d", len(c.Servers), maxServers)
	}
	for _, name := range strict.SortedKeys(c.Servers) {
		at := strict.JoinPath("mcpServers", name)
		if err := CheckName(name); err != nil {
			out.Add(at, "%v", err)
			continue
		}
		for _, p := range c.Servers[name].Problems() {
			out.Add(at+"."+p.Path, "%s", p.Text)
		}
		for _, secret := range c.Servers[name].Secrets() {
			if err := checkOwner(name, secret); err != nil {
				out.Add(at, "%v", err)
			}
		}
	}
	return out
}

// Problems returns everything wrong with s.
func (s Server) Problems() (out strict.Problems) {
	switch {
	case (s.Command == "") == (s.URL == ""):
		out.Add("command", "a server has either a command or a url")
	case s.Type == "sse":
		out.Add("type", "the old SSE transport is not supported; use the url of streamable HTTP, often .../mcp")
	case s.Type != "" && s.Type != "stdio" && s.Type != "http" && s.Type != "streamable-http", s.Type == "stdio" &&
		s.Command == "", s.Type != "" && s.Type != "stdio" && s.URL == "":
		out.Add("type", "%q does not fit: a command is stdio, a url is http", text.Clip(s.Type, 40))
	}
	if s.URL != "" {
		if _, err := parseEndpoint(s.URL); err != nil {
			out.Add("url", "%v", err)
		}
		if len(s.Args)+len(s.Env)+len(s.Read)+len(s.Write)+len(s.Hosts) > 0 {
			out.Add("url", "args, env, read, write and hosts are for a command, which runs in the sandbox")
		}
	} else if len(s.Headers) > 0 {
		out.Add("headers", "headers are for a url")
	}
	for _, name := range strict.SortedKeys(s.Env) {
		if !variable.MatchString(name) {
			out.Add("env", "%q is not the name of a variable", text.Clip(name, 40))
		}
		checkReferences(&out, strict.JoinPath("env", name), s.Env[name])
	}
	for _, name := range strict.SortedKeys(s.Headers) {
		if !headerName.MatchString(name) || strings.ContainsAny(s.Headers[name], "\r\n\x00") {
			out.Add("headers", "%q is not a header", text.Clip(name, 40))
		}
		checkReferences(&out, strict.JoinPath("headers", name), s.Headers[name])
		if strings.Contains(s.Headers[name], "${secretfile:") {
			out.Add(strict.JoinPath("headers", name), "a header holds the credential itself: write ${secret:...}")
		}
	}
	for field, paths := range map[string][]string{"read": s.Read, "write": s.Write} {
		for _, p := range paths {
			if !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
				out.Add(field, "%q is not an absolute path; leave out .., ~ and a final /", text.Clip(p, 80))
			}
		}
	}
	for _, h := range s.Hosts {
		if !hostPort.MatchString(h) {
			out.Add("hosts", "%q is not a host; write api.example.org or api.example.org:8443", text.Clip(h, 80))
		}
		host, _, _ := strings.Cut(h, ":")
		if err := checkHost(host); err != nil {
			out.Add("hosts", "%v", err)
		}
	}
	out.CheckDuration("timeout", s.Timeout, 0, 30*time.Minute)
	return out
}

// checkReferences adds a problem for each reference to a credential that is malformed. The value itself is not quoted.
func checkReferences(out *strict.Problems, at, value string) {
	for _, m := range secretRef.FindAllStringSubmatch(value, -1) {
		if !secretName.MatchString(m[2]) {
			out.Add(at, "the name of a credential of an MCP server begins with %s and has a to z, 0 to 9 and \"_\"",
				subjects.MCPSecretPrefix)
		}
	}
	rest := secretRef.ReplaceAllString(value, "")
	if strings.Contains(rest, "${secret:") || strings.Contains(rest, "${secretfile:") {
		out.Add(at, "a reference to a credential has no end; write ${secret:%sname}", subjects.MCPSecretPrefix)
	}
}

// checkOwner rejects a credential that belongs to another server. A server could send it to its own address.
func checkOwner(server, secret string) error {
	if subjects.MCPSecretServer(secret) != server {
		return fmt.Errorf("the credential %s does not belong to the server %s, whose credentials are named "+
			"%[3]s%[2]s or %[3]s%[2]s_<name>", text.Clip(secret, 64), server, subjects.MCPSecretPrefix)
	}
	return nil
}

// Secrets returns the names of the credentials that s uses.
func (s Server) Secrets() (out []string) {
	for _, values := range []map[string]string{s.Env, s.Headers} {
		for _, v := range values {
			for _, m := range secretRef.FindAllStringSubmatch(v, -1) {
				out = append(out, m[2])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SecretLookup returns the value of a credential.
type SecretLookup func(ctx context.Context, name string) (string, error)

// resolved are the values of a server's settings with the references to credentials replaced.
type resolved struct {
	values  map[string]string
	secrets [][]byte          // every credential
	files   map[string][]byte // those that are named by the path of a file, by name
}

// resolveSecrets looks up the credentials in the values of a server's settings. It rejects a credential of another
// server. The error names the credential and never holds a value.
func resolveSecrets(ctx context.Context, server string, values map[string]string,
	lookup SecretLookup,
) (out resolved, err error) {
	out = resolved{values: map[string]string{}, files: map[string][]byte{}}
	for name, v := range values {
		out.values[name] = secretRef.ReplaceAllStringFunc(v, func(ref string) string {
			parts := secretRef.FindStringSubmatch(ref)
			secret := parts[2]
			if foreign := checkOwner(server, secret); foreign != nil {
				err = foreign
				return ""
			}
			value, failed := lookup(ctx, secret)
			if failed != nil {
				err = fmt.Errorf("the credential %s is not available: %w; store it with: conclave secret set %s",
					secret, failed, secret)
				return ""
			}
			out.secrets = append(out.secrets, []byte(value))
			if parts[1] == "" {
				return value
			}
			out.files[secret] = []byte(value)
			return sandbox.SecretFolder + "/" + secret
		})
	}
	return out, err
}

// parseEndpoint parses the URL of a server. Without encryption it must be on this machine. An address of another
// network that is written as a number is the user's choice; link-local addresses, where clouds keep their credentials,
// are rejected.
func parseEndpoint(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.Fragment != "":
		return nil, fmt.Errorf("%q is not a URL of http or https", text.Clip(raw, 80))
	case u.User != nil:
		return nil, fmt.Errorf("a URL must not hold a password; use headers with ${secret:%sname}",
			subjects.MCPSecretPrefix)
	case u.Scheme == "http" && !local.IsLocalHost(u.Hostname()):
		return nil, fmt.Errorf("%s is not encrypted and not on this machine; use https", text.Clip(u.Host, 80))
	}
	return u, checkHost(u.Hostname())
}

// checkHost rejects link-local, multicast and unspecified addresses that are written as numbers.
func checkHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil && (a.Unmap().IsLinkLocalUnicast() || a.Unmap().IsMulticast() ||
		a.Unmap().IsUnspecified()) {
		return fmt.Errorf("%s is not the address of a server", a)
	}
	return nil
}
