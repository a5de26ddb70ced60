package tools

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/egress"
	"conclave/pkg/policy"
	"conclave/pkg/sandbox"
	"conclave/subjects"
)

var (
	//go:embed package_install.md
	packageInstallText string
	//go:embed package_install.py
	pipScript string
)

// packageFolder is the folder in a working folder that packages are installed into.
const packageFolder = "packages"

// packageName is a name with an optional version: no option, path, URL, marker or extra.
var packageName = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?(==[A-Za-z0-9]([A-Za-z0-9.!+_-]{0,62}[A-Za-z0-9])?)?$`)

// authorities are where systems keep the certificates that pip checks an index with.
var authorities = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
}

// packageInstall returns the tool package_install. Its preview is pip's dry run, in an empty folder. pip runs in the
// sandbox and reaches the registries alone, through an [egress.Proxy].
func packageInstall(w Workspace, disabled string) *Tool {
	switch {
	case len(w.Registries) == 0 && w.Folder != "":
		disabled = "no package index is configured; set registries in tools.yaml to the base URL of the index that " +
			"you use, and restart"
	case disabled == "":
		disabled = pipState()
	}
	t := newTool("package_install", packageInstallText, `"manager", "packages"`, `
		"manager": {"type": "string", "enum": ["pip"], "description": "the package manager"},
		"packages": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200},
			"minItems": 1, "maxItems": 32,
			"description": "names of packages, each with an optional version: name or name==1.2.3"}`, policy.Tool{
		Act: policy.ActExecute, Preview: true,
		Args: policy.Args{
			"manager":  {Role: policy.RoleOption, Values: []string{"pip"}},
			"packages": {Role: policy.RoleQuery}, // the index receives the names
		},
		Effects: policy.Declare(policy.Exec, policy.Mutate, policy.Egress, policy.ReadsUntrusted),
		Timeout: programTimeout(w), MaxArgs: 16 << 10, MaxResult: maxOutput + 16<<10,
	}, withArgs(func(ctx context.Context, c Call, a struct {
		Manager  string   `json:"manager"`
		Packages []string `json:"packages"`
	},
	) (Output, error) {
		if a.Manager != "pip" {
			return Output{}, fmt.Errorf("%w: manager must be pip", actor.ErrArguments)
		}
		if len(a.Packages) == 0 {
			return Output{}, fmt.Errorf("%w: packages is empty", actor.ErrArguments)
		}
		for _, p := range a.Packages {
			if !packageName.MatchString(p) {
				return Output{}, fmt.Errorf("%w: %q is not a package; write name or name==version, without "+
					"options, paths and URLs", actor.ErrArguments, p)
			}
		}
		return c.runPip(ctx, w, a.Packages)
	}))
	t.disabled = disabled
	return t
}

// runPip installs packages into the working folder, or reports in a preview which ones it would install. Neither
// environment nor files of the working folder configure pip: a program of the task may have written them.
func (c Call) runPip(ctx context.Context, w Workspace, packages []string) (Output, error) {
	args := []string{
		"--index-url", w.Registries[0], "--only-binary", ":all:", "--target", packageFolder, "--upgrade",
		"--no-compile",
		"--isolated", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--no-color", "--progress-bar",
		"off", "--quiet", "--retries", "1", "--timeout", "15",
	}
	var dir string
	var closed []string
	if c.Folders != nil {
		dir, closed = c.Folders.Work, c.Folders.Closed
	}
	if c.Mode == subjects.ModePreview {
		empty, remove, err := sandbox.MakeTemp() // a preview changes nothing in the working folder
		if err != nil {
			return Output{}, fileFailure("preview", err)
		}
		defer remove()
		dir = empty
		args = append(args, "--dry-run")
	} else {
		work, err := c.openWorkFolder()
		if err != nil {
			return Output{}, err
		}
		work.Close()
	}
	proxy, err := startEgress(w.Registries, int64(w.Sandbox.Disk))
	if err != nil {
		return Output{}, Failure("the egress proxy was not started: " + err.Error())
	}
	defer proxy.Close()
	var readOnly []string
	for _, path := range authorities {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			readOnly, args = append(readOnly, real), append(args, "--cert", real)
			break
		}
	}
	r, err := sandbox.Run(ctx, sandbox.Spec{
		Args: append(append([]string{findInterpreter("python"), "-I", "-c", pipScript, proxy.Socket},
			append(args, "--")...), packages...),
		Dir: dir, ReadOnly: readOnly, Socket: proxy.Socket, Closed: closed, Env: []string{
			"HOME=/tmp",
			"PIP_CONFIG_FILE=/dev/null",
		}, Limits: w.Sandbox.limits(),
	})
	if err != nil {
		return Output{}, Failure("pip was not started: " + err.Error())
	}
	if r.Stopped == sandbox.StopCanceled {
		return Output{}, context.Cause(ctx)
	}
	return Output{Text: proxy.Describe() + "\n" + describeRun(r, dir), Artifacts: r.Changed}, nil
}

// minPip is the first major version of pip with dry runs and reports in their present form.
const minPip = 23

// pipState returns why pip cannot be used, "" when it can.
var pipState = sync.OnceValue(func() string {
	const fix = "; install it on the system (Debian, Ubuntu: apt-get install python3-pip) and restart"
	python := findInterpreter("python")
	if python == "" {
		return "Python is not installed below /usr" + fix
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, python, "-I", "-m", "pip", "--version")
	c.Env = []string{}
	out, err := c.Output()
	if err != nil {
		return "pip is not installed for " + python + fix
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(string(out), "pip "), ".")
	if n, err := strconv.Atoi(version); err != nil || n < minPip {
		return fmt.Sprintf("pip of %s is older than version %d%s", python, minPip, fix)
	}
	return ""
})

// startEgress starts a proxy to the registries, which transfers at most limit bytes. The caller closes it.
func startEgress(registries []string, limit int64) (*egress.Proxy, error) {
	s := egress.Settings{Limit: limit}
	for _, r := range registries {
		u, err := parseRegistry(r)
		if err != nil {
			return nil, fmt.Errorf("a registry %w", err)
		}
		if u.Scheme == "https" {
			s.Tunnels = append(s.Tunnels, dialAddress(u))
		} else {
			s.Plain = append(s.Plain, dialAddress(u))
		}
	}
	return egress.Start(s)
}

// parseRegistry parses the base URL of a package index. Without encryption it must be on this machine.
func parseRegistry(raw string) (*url.URL, error) {
	u, err := parseEndpoint(raw)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" &&
		(ip == nil || !ip.IsLoopback()) {
		return nil, errors.New("is not encrypted and not on this machine; use https")
	}
	return u, nil
}
