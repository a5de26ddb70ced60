package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/actors/tools"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/client"
	"conclave/pkg/keyring"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// checkKeyring reports which keyring holds the credentials and why, and fails when its file is invalid. It does not
// open the keyring: that could prompt for a password.
func (x *examination) checkKeyring(cfg config.Config) {
	ring := cfg.Secrets.Ring(x.Home.Data)
	info, err := keyring.Inspect(ring)
	switch {
	case err != nil:
		x.fail("keyring", "correct the file, or remove it if no credentials are stored", "%v", err)
	case info.Backend == keyring.File:
		x.ok("keyring", "file (%s): encrypted files in %s; protects against a copied file only, not against programs "+
			"that run as you", info.Reason, ring.Dir)
	case info.Backend == keyring.Auto:
		x.ok("keyring", "none yet (%s): conclave secret set uses the first available of %s", info.Reason,
			strings.Join(keyring.Order, ", "))
	default:
		x.ok("keyring", "%s (%s)", info.Backend, info.Reason)
	}
}

// checkCredentials warns of credentials that the settings name and the keyring does not have. It reads names only, and
// only of the file backend; with another one it reports that they are not known.
func (x *examination) checkCredentials(ctx context.Context, cfg config.Config) {
	named := requiredCredentials(cfg)
	if len(named) == 0 {
		x.ok("secrets", "the settings name no credential")
		return
	}
	missing, known, err := missingCredentials(ctx, cfg, x.Home.Data)
	switch {
	case err != nil:
		x.fail("secrets", "see conclave secret check", "%v", err)
	case !known:
		x.ok("secrets", "the settings name %s; conclave secret check shows whether they are stored",
			strings.Join(named, ", "))
	case len(missing) > 0:
		x.warn("secrets", "conclave secret set "+missing[0], "not in the keyring: %s", strings.Join(missing, ", "))
	default:
		x.ok("secrets", "%s in the keyring", strings.Join(named, ", "))
	}
}

// requiredCredentials are the names of the credentials of enabled tools and of model servers, sorted, each once.
func requiredCredentials(cfg config.Config) []string {
	var out []string
	for _, t := range cfg.Tools() {
		out = append(out, t.Facts().Secrets...)
	}
	for _, s := range cfg.Models.Servers() {
		if s.Key != "" {
			out = append(out, s.Key)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// missingCredentials are the required credentials that the keyring does not have; data is the data folder. Only the
// file backend is read: it answers at once and opens no dialog. known is false for every other backend, on an error,
// and when none is required: then missing says nothing.
func missingCredentials(ctx context.Context, cfg config.Config, data string) (missing []string, known bool, err error) {
	named := requiredCredentials(cfg)
	ring := cfg.Secrets.Ring(data)
	info, err := keyring.Inspect(ring)
	if err != nil || len(named) == 0 || info.Backend != keyring.File {
		return nil, false, err
	}
	// Opening creates the folder, which a check must not do.
	if _, err := os.Stat(filepath.Join(ring.Dir, "file")); errors.Is(err, fs.ErrNotExist) {
		return named, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, _, err := keyring.Open(ctx, ring)
	if err != nil {
		return nil, false, err
	}
	stored, err := r.Names(ctx)
	if err != nil {
		return nil, false, err
	}
	return slices.DeleteFunc(named, func(n string) bool { return slices.Contains(stored, n) }), true, nil
}

// checkAddedTools warns of tools of the user whose definition changed or was rejected, and of those that do not run.
// Without added tools it says nothing.
func (x *examination) checkAddedTools(ctx context.Context, c *client.Client) {
	all, err := c.Tools(ctx, "")
	if err != nil {
		x.fail("tools", seeLog, "%v", err)
		return
	}
	good, running := true, 0
	for _, s := range all {
		switch {
		case s.State == subjects.ToolChanged:
			x.warn("tools", "conclave tool accept "+s.Tool, "definition changed: %s is not offered until you accept it",
				s.Tool)
		case s.Rejected != "":
			x.warn("tools", "correct its program; conclave tool show "+s.Tool, "the last announcement of %s was "+
				"rejected", s.Tool)
		case s.Running:
			running++
			continue
		case strings.HasPrefix(s.Principal, subjects.MCP+"-"): // conclave mcp list shows the state of the servers
			continue
		default:
			x.warn("tools", "start its program, or let it reply on $SRV.INFO."+s.Principal+" as docs/tools.md says; "+
				"conclave tool show "+s.Tool, "%s is not running, or does not answer discovery ($SRV.INFO)", s.Tool)
		}
		good = false
	}
	if len(all) > 0 && good {
		x.ok("tools", "%d of %d added tools run", running, len(all))
	}
}

// checkManifest fails when the user's manifest is gone, and warns of tools that the manifest names and nobody serves,
// and of rules that are logged and not enforced. Otherwise it reports whether the manifest is the user's own or the
// shipped one.
func (x *examination) checkManifest(cfg config.Config) {
	good := true
	if err := config.MissingManifest(x.Home); err != nil {
		good = false
		what, fix, _ := strings.Cut(err.Error(), ": ")
		x.fail("manifest", term.Plain(fix), "%s", term.Plain(what))
	}
	if unserved := cfg.Manifest.UnservedTools(); len(unserved) > 0 {
		good = false
		x.warn("manifest", "correct the names in manifest.yaml", "no tool is called %s",
			term.Plain(strings.Join(unserved, ", ")))
	}
	for _, err := range cfg.OmittedFolders(x.Home) {
		good = false
		x.warn("manifest", "remove the symlink if you did not make it, or write the folder that it leads to in "+
			"manifest.yaml", "%s", term.OneLine(err.Error()))
	}
	var monitored []string
	for _, layer := range strict.SortedKeys(cfg.Manifest.Monitored) {
		for _, rule := range cfg.Manifest.Monitored[layer] {
			monitored = append(monitored, layer+"."+rule)
		}
	}
	if len(monitored) > 0 {
		good = false
		x.warn("manifest", "remove them from monitor_only in manifest.yaml to enforce them",
			"logged and not enforced: %s", strings.Join(monitored, ", "))
	}
	switch {
	case good && cfg.Origin("manifest.types") != config.Shipped:
		x.ok("manifest", "your own replaces the shipped one: %s", filepath.Join(x.Home.Config, "manifest.yaml"))
	case good:
		x.ok("manifest", "as shipped")
	}
}

// checkSandbox checks whether the tools that run programs can run on this machine. Each reason is one check, with the
// tools that it disables.
func (x *examination) checkSandbox(cfg config.Config) {
	disabled := map[string][]string{}
	for _, t := range cfg.Tools() {
		// off by choice, so there is nothing to fix
		if t.Name() == "package_install" && len(cfg.Workspace.Registries) == 0 {
			continue
		}
		switch {
		case t.Name() == "get_location" && t.Disabled() != "": // needs no sandbox, and is off by choice
			x.ok("get_location", "off: %s", t.Disabled())
		case t.Disabled() != "":
			disabled[t.Disabled()] = append(disabled[t.Disabled()], t.Name())
		}
	}
	for _, why := range slices.Sorted(maps.Keys(disabled)) {
		x.warn("sandbox", "fix it and restart conclave up", "%s disabled: %s", strings.Join(disabled[why], ", "), why)
	}
	if len(disabled) == 0 {
		x.ok("sandbox", "programs run in bubblewrap, without network; the self-test observed the denials")
	}
}

// checkWeb reports the search provider and whether pages are fetched. It warns when a SearXNG cannot be used and when
// the results are mock ones. Other providers are not contacted.
func (x *examination) checkWeb(ctx context.Context, cfg config.Config) {
	switch search := cfg.WebSearch; search.Provider {
	case "none":
		x.ok("web_search", "off (provider none in web_search.yaml); searxng, brave or tavily switch it on")
	case "searxng":
		if what, fix := tools.ProbeSearXNG(ctx, search.SearXNG.URL, 2*time.Second); what != "" {
			x.warn("web_search", fix, "%s", what)
		} else {
			x.ok("web_search", "SearXNG answers in JSON at %s", search.SearXNG.URL)
		}
	case "mock":
		x.warn("web_search", "set provider: searxng in web_search.yaml", "mock: every search returns the results in "+
			"web_search.yaml")
	default:
		x.ok("web_search", "%s, an external service that receives every search", search.Provider)
	}
	if !cfg.WebFetch.Enabled {
		x.ok("web_fetch", "off; enabled in web_fetch.yaml switches it on")
		return
	}
	ports := []string{"80", "443"}
	for _, p := range cfg.WebFetch.Ports {
		ports = append(ports, fmt.Sprint(p))
	}
	x.ok("web_fetch", "on, ports %s, from hosts that egress.fetch in the manifest allows", strings.Join(ports, ", "))
}
