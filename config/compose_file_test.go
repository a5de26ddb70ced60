package config_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"conclave/config"
	"conclave/subjects"
)

// composeFile is compose.yaml.
type composeFile struct {
	Services map[string]map[string]any `yaml:"services"`
	Networks map[string]struct {
		Internal bool              `yaml:"internal"`
		Options  map[string]string `yaml:"driver_opts"`
	} `yaml:"networks"`
	Volumes map[string]any `yaml:"volumes"`
}

func parseCompose(t *testing.T, text string) (f composeFile) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// serviceFields are the fields that a service may have. Others, such as privileged, devices, pid, ipc and env_file, are
// denied.
var serviceFields = []string{
	"build", "cap_add", "cap_drop", "command", "cpus", "depends_on", "dns", "environment", "extra_hosts", "healthcheck",
	"image", "logging", "mem_limit",
	"memswap_limit", "network_mode", "networks", "pids_limit", "ports", "read_only", "restart", "security_opt",
	"stop_grace_period", "tmpfs", "user", "volumes",
}

// serviceNetworks are the networks of the services that are not only in internal.
var serviceNetworks = map[string][]string{
	"keys": nil, "web": {"internal", "egress"}, "model": {"internal", "egress"}, "gateway": {"edge", "internal"},
	"caddy": {"ingress", "edge"}, "searxng": {"egress"},
}

// sharedVolumes are the volumes that more than one service mounts besides keys, which mounts every folder of keys.
var sharedVolumes = map[string][]string{
	"heads":     {"bus", "secrets", "broker", "model", "memory", "orchestrator", "gateway"},
	"workspace": {"tools", "broker"},
}

// items returns a list of the YAML file as text.
func items(v any) (out []string) {
	list, _ := v.([]any)
	for _, x := range list {
		out = append(out, fmt.Sprint(x))
	}
	return out
}

// composeProblems returns every rule that f breaks.
func composeProblems(f composeFile) (out []string) {
	add := func(format string, v ...any) { out = append(out, fmt.Sprintf(format, v...)) }
	mounts := map[string][]string{} // services by volume
	for _, name := range slices.Sorted(maps.Keys(f.Services)) {
		s := f.Services[name]
		for field := range s {
			if !slices.Contains(serviceFields, field) {
				add("%s: field %s is not allowed", name, field)
			}
		}
		if s["read_only"] != true {
			add("%s: the root is not read-only", name)
		}
		if !slices.Equal(items(s["cap_drop"]), []string{"ALL"}) {
			add("%s: keeps capabilities", name)
		}
		if added := items(s["cap_add"]); len(added) > 0 &&
			(name != "caddy" || !slices.Equal(added, []string{"NET_BIND_SERVICE"})) {
			add("%s: has capabilities %v", name, added)
		}
		if !slices.Equal(items(s["security_opt"]), []string{"no-new-privileges:true"}) {
			add("%s: may gain privileges, or has another profile", name)
		}
		if user := fmt.Sprint(s["user"]); !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
			add("%s: user %s is not a number of a user without privileges", name, user)
		}
		for _, limit := range []string{"mem_limit", "memswap_limit", "pids_limit", "cpus"} {
			if v := fmt.Sprint(s[limit]); s[limit] == nil || strings.HasPrefix(v, "0") || strings.HasPrefix(v, "-") {
				add("%s: no %s", name, limit)
			}
		}
		if check, _ := s["healthcheck"].(map[string]any); name != "keys" &&
			(len(items(check["test"])) < 2 || check["disable"] != nil) {
			add("%s: no health check", name)
		}
		out = append(out, networkProblems(name, s)...)
		if environment, ok := s["environment"].(map[string]any); s["environment"] != nil && !ok {
			add("%s: the environment is not a map", name)
		} else {
			for v := range environment {
				if v != "GOMEMLIMIT" && v != "CONCLAVE_HOST" {
					add("%s: environment variable %s: secrets belong into files", name, v)
				}
			}
		}
		for _, m := range items(s["volumes"]) {
			volume, _, _ := strings.Cut(m, ":")
			if _, ok := f.Volumes[volume]; !ok {
				add("%s: mounts %s, which is not a volume of this file", name, volume)
			}
			mounts[volume] = append(mounts[volume], name)
		}
	}
	for volume := range f.Volumes {
		users := slices.DeleteFunc(slices.Clone(mounts[volume]), func(s string) bool { return s == "keys" })
		want := sharedVolumes[volume]
		if want == nil {
			want = []string{volume}
			if volume == "audit-head" {
				want = []string{"bus"}
			}
		}
		if !slices.Equal(users, slices.Sorted(slices.Values(want))) || sharedVolumes[volume] != nil &&
			slices.Contains(mounts[volume], "keys") {
			add("volume %s is mounted by %v, want %v", volume, mounts[volume], want)
		}
	}
	for name, want := range map[string]bool{"edge": true, "internal": true, "ingress": false, "egress": false} {
		n, ok := f.Networks[name]
		if !ok || n.Internal != want || want && n.Options["com.docker.network.bridge.inhibit_ipv4"] != "true" {
			add("network %s: internal is %t", name, n.Internal)
		}
	}
	if len(f.Networks) != 4 ||
		f.Networks["ingress"].Options["com.docker.network.bridge.enable_ip_masquerade"] != "false" {
		add("networks: another network, or ingress translates addresses")
	}
	return out
}

// networkProblems returns what is wrong with the networks, the name servers and the published ports of a service.
func networkProblems(name string, s map[string]any) (out []string) {
	add := func(format string, v ...any) { out = append(out, name+": "+fmt.Sprintf(format, v...)) }
	want, ok := serviceNetworks[name]
	if !ok {
		want = []string{"internal"}
	}
	if got := items(s["networks"]); !slices.Equal(got, want) {
		add("networks %v, want %v", got, want)
	}
	if mode := s["network_mode"]; (name == "keys") != (mode == "none") || name != "keys" && mode != nil {
		add("network mode %v", mode)
	}
	if !slices.Contains(want, "egress") && name != "keys" && !slices.Equal(items(s["dns"]), []string{"127.0.0.1"}) {
		add("its DNS queries can leave")
	}
	if name != "caddy" && s["ports"] != nil {
		add("publishes ports")
	}
	if hosts := items(s["extra_hosts"]); len(hosts) > 0 &&
		(name != "model" || !slices.Equal(hosts, []string{"host.docker.internal:host-gateway"})) {
		add("extra hosts %v", hosts)
	}
	return out
}

func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := parseCompose(t, string(text))
	for _, p := range composeProblems(f) {
		t.Error(p)
	}

	// Every actor runs in exactly one service, which gets the keys of its actors and no others.
	exports := map[string]string{}
	for _, arg := range items(f.Services["keys"]["command"])[1:] {
		folder, actors, _ := strings.Cut(strings.TrimPrefix(arg, "--export=/services/"), "=")
		exports[folder] = actors
	}
	image, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, folders, _ := strings.Cut(string(image), "for s in ")
	folders, _, _ = strings.Cut(folders, ";")
	if got, want := slices.Sorted(slices.Values(strings.Fields(folders))),
		slices.Sorted(maps.Keys(exports)); !slices.Equal(got, want) {
		t.Errorf("the image has folders for the keys of %v, want %v: a volume without one belongs to root", got, want)
	}
	runs := map[string]string{}
	for name, s := range f.Services {
		command := items(s["command"])
		if len(command) == 0 || command[0] != "actor" {
			continue
		}
		actors := command[1:slices.Index(command, "--server")]
		if got := exports[name]; got != strings.Join(actors, ",") {
			t.Errorf("%s runs %v and has the keys of %s", name, actors, got)
		}
		delete(exports, name)
		for _, a := range actors {
			if runs[a] != "" {
				t.Errorf("%s runs in %s and in %s", a, runs[a], name)
			}
			runs[a] = name
		}
	}
	if len(exports) > 0 {
		t.Errorf("keys for services that do not run: %v", exports)
	}
	// in the process of the server; not in containers, which have no sandbox for its servers
	elsewhere := []string{"registry", "mcp"}
	sandboxed := []string{"run_code", "run_shell", "package_install"}
	cfg, err := config.Load("../deploy/config")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range config.Actors {
		if a != "tools" && a != subjects.RespondentB && runs[a] == "" && !slices.Contains(elsewhere, a) {
			t.Errorf("the actor %s runs nowhere", a)
		}
	}
	for _, tool := range cfg.Tools() {
		if (runs[tool.Name()] == "") != slices.Contains(sandboxed, tool.Name()) {
			t.Errorf("the tool %s runs in %q", tool.Name(), runs[tool.Name()])
		}
	}
	if cfg.Models.Ollama.RemoteHost() != "" || cfg.Secrets.Backend != "file" || cfg.System.AuditHead.Keyring {
		t.Error("deploy/config: Ollama of the host, or the files of credentials and audit heads, are not set")
	}

	// Each trick breaks a rule.
	for name, change := range map[string][2]string{
		"a writable root":   {"  read_only: true\n", "  read_only: false\n"},
		"root":              {`user: "977:977"`, `user: "0:0"`},
		"a user by name":    {`user: "977:977"`, `user: "searxng"`},
		"a capability":      {"    extra_hosts:", "    cap_add: [SYS_ADMIN]\n    extra_hosts:"},
		"kept capabilities": {"cap_drop: [ALL]", "cap_drop: [NET_RAW]"},
		"new privileges":    {"no-new-privileges:true", "no-new-privileges:false"},
		"no seccomp": {
			`["no-new-privileges:true"]`,
			`["no-new-privileges:true", "seccomp=unconfined"]`,
		},
		"privileged": {"    extra_hosts:", "    privileged: true\n    extra_hosts:"},
		"the socket of Docker": {
			`["web:/var/lib/conclave"]`,
			`["web:/var/lib/conclave", "/var/run/docker.sock:/s"]`,
		},
		"the keys of another":         {`["web:/var/lib/conclave"]`, `["web:/var/lib/conclave", "broker:/b"]`},
		"the keys of all":             {`["web:/var/lib/conclave"]`, `["web:/var/lib/conclave", "bus:/b"]`},
		"the network of the host":     {"    networks: [egress]", "    network_mode: host"},
		"a way out of the gateway":    {"[edge, internal]", "[edge, internal, egress]"},
		"a way in for SearXNG":        {"    networks: [egress]", "    networks: [egress, internal]"},
		"a network with a route":      {"  internal:\n    internal: true", "  internal:\n    internal: false"},
		"an address of the host":      {`inhibit_ipv4: "true"`, `inhibit_ipv4: "false"`},
		"a name server outside":       {"dns: [127.0.0.1]", "dns: [1.1.1.1]"},
		"a port of the bus":           {"    command: [up,", "    ports: [\"4222:4222\"]\n    command: [up,"},
		"a secret in the environment": {"{GOMEMLIMIT: 400MiB}", "{GOMEMLIMIT: 400MiB, BRAVE_API_KEY: x}"},
		"no limit of memory":          {"  mem_limit: 512m\n", ""},
		"no limit of processes":       {"pids_limit: 128", "pids_limit: -1"},
		"no health check": {
			"    test: [CMD, /usr/bin/conclave, health, /tmp/health.sock]\n",
			"    test: [NONE]\n",
		},
		"a network that nobody checks": {"  egress: {}\n", "  egress: {}\n  other: {}\n"},
	} {
		broken := strings.Replace(string(text), change[0], change[1], 1)
		if broken == string(text) {
			t.Errorf("trick %s changes nothing", name)
		} else if len(composeProblems(parseCompose(t, broken))) == 0 {
			t.Errorf("trick %s breaks no rule", name)
		}
	}
}
