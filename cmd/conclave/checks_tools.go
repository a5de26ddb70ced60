package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/config"
	"conclave/pkg/keyring"
	"conclave/pkg/strict"
)

// ringLook says which keyring holds the credentials, without opening it: opening one may ask for a password.
func (x *examination) ringLook(cfg config.Config) {
	ring := cfg.Secrets.Ring(x.home.Data)
	info, err := keyring.Inspect(ring)
	switch {
	case err != nil:
		x.fail("keyring", "correct the file, or take it away if no credentials were kept", "%v", err)
		return
	case info.Backend == keyring.File:
		x.ok("keyring", "file (%s): encrypted files in %s; it protects against a copied file only, not against programs that run as you", info.Reason, ring.Dir)
	case info.Backend == keyring.Auto:
		x.ok("keyring", "none yet (%s): conclave secret set takes the first of %s that is there", info.Reason, strings.Join(keyring.Order, ", "))
	default:
		x.ok("keyring", "%s (%s)", info.Backend, info.Reason)
	}
}

// credentials says which credentials the settings name and the keyring does not have. Names only.
func (x *examination) credentials(ctx context.Context, cfg config.Config) {
	named := credentialsOf(cfg)
	if len(named) == 0 {
		x.ok("secrets", "the settings name no credential")
		return
	}
	lost, known, err := missingCredentials(ctx, cfg, x.home.Data)
	switch {
	case err != nil:
		x.fail("secrets", "conclave secret check says more", "%v", err)
	case !known:
		x.ok("secrets", "the settings name %s; conclave secret check says whether they are there", strings.Join(named, ", "))
	case len(lost) > 0:
		x.warn("secrets", "conclave secret set "+lost[0], "the settings name %s, which %s not in the keyring", strings.Join(lost, ", "), isAre(len(lost)))
	default:
		x.ok("secrets", "%s in the keyring", strings.Join(named, ", "))
	}
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// credentialsOf are the names of the credentials that the settings in force name: of tools that are turned on, and of
// servers of models.
func credentialsOf(cfg config.Config) []string {
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

// missingCredentials are those that the keyring does not have. Only the encrypted files are asked: they answer at once
// and open no dialog. known is false for every other keyring.
func missingCredentials(ctx context.Context, cfg config.Config, data string) (lost []string, known bool, err error) {
	named := credentialsOf(cfg)
	ring := cfg.Secrets.Ring(data)
	info, err := keyring.Inspect(ring)
	if err != nil || len(named) == 0 || info.Backend != keyring.File {
		return nil, false, err
	}
	// Opening makes the folder; whoever only looks must not.
	if _, err := os.Stat(filepath.Join(ring.Dir, "file")); errors.Is(err, fs.ErrNotExist) {
		return named, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, _, err := keyring.Open(ctx, ring)
	if err != nil {
		return nil, false, err
	}
	there, err := r.Names(ctx)
	if err != nil {
		return nil, false, err
	}
	return slices.DeleteFunc(named, func(n string) bool { return slices.Contains(there, n) }), true, nil
}

// manifest says whose rules hold, and what in them is most likely not meant.
func (x *examination) manifest(cfg config.Config) {
	own := cfg.Origin("manifest.types") != config.Shipped
	good := true
	if unserved := cfg.Manifest.UnservedTools(); len(unserved) > 0 {
		good = false
		x.warn("manifest", "correct the names in manifest.yaml", "nobody serves %s", plain(strings.Join(unserved, ", ")))
	}
	var watched []string
	for _, layer := range strict.SortedKeys(cfg.Manifest.Monitored) {
		for _, rule := range cfg.Manifest.Monitored[layer] {
			watched = append(watched, layer+"."+rule)
		}
	}
	if len(watched) > 0 {
		good = false
		x.warn("manifest", "take them out of monitor_only in manifest.yaml when you have seen enough", "only watched and not enforced: %s", strings.Join(watched, ", "))
	}
	switch {
	case good && own:
		x.ok("manifest", "yours, in the place of the one as shipped: %s", filepath.Join(x.home.Config, "manifest.yaml"))
	case good:
		x.ok("manifest", "as shipped")
	}
}

// web says who searches and whether pages are read.
func (x *examination) web(ctx context.Context, cfg config.Config) {
	switch search := cfg.WebSearch; search.Provider {
	case "none":
		x.ok("web_search", "off: provider none in web_search.yaml; searxng, brave or tavily turn it on")
	case "searxng":
		if l := askSearXNG(ctx, search.SearXNG.URL, 2*time.Second); l != nil {
			x.warn("web_search", l.fix, "%s", l.what)
		} else {
			x.ok("web_search", "SearXNG answers in JSON at %s", search.SearXNG.URL)
		}
	case "mock":
		x.warn("web_search", "set provider: searxng in web_search.yaml", "mock: it finds what stands in web_search.yaml, whatever is asked")
	default:
		x.ok("web_search", "%s, a service of somebody else: it learns what is searched for", search.Provider)
	}
	if !cfg.WebFetch.Enabled {
		x.ok("web_fetch", "off: enabled in web_fetch.yaml turns it on")
		return
	}
	ports := []string{"80", "443"}
	for _, p := range cfg.WebFetch.Ports {
		ports = append(ports, fmt.Sprint(p))
	}
	x.ok("web_fetch", "on, ports %s, from hosts that egress.fetch in the manifest allows", strings.Join(ports, ", "))
}

// askSearXNG says what a SearXNG lacks, nil when it can be searched. It is asked for the form of an answer without a
// question: that it refuses, in the form that it would answer in, and nothing leaves this machine.
func askSearXNG(ctx context.Context, at string, wait time.Duration) *lack {
	absent := &lack{"web_search: SearXNG does not answer at " + at, "start it there, or set searxng.url or provider in web_search.yaml; provider: none turns the tool off"}
	u, err := url.Parse(at)
	if err != nil {
		return absent // the settings are valid: not to be met
	}
	u = u.JoinPath("search")
	u.RawQuery = "format=json"
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return absent
	}
	req.Header.Set("Accept", "application/json")
	client := &http.Client{ // as the tool asks: no proxy, and nowhere else
		Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return absent
	}
	resp.Body.Close()
	isJSON := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
	switch {
	case isJSON && (resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusOK):
		return nil
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusOK:
		return &lack{"web_search: SearXNG at " + at + " does not answer in JSON", "set search.formats: [html, json] in its settings.yml and restart it"}
	case resp.StatusCode == http.StatusTooManyRequests:
		return &lack{"web_search: SearXNG at " + at + " lets nobody ask so often", "set server.limiter: false in its settings.yml and restart it"}
	}
	return &lack{fmt.Sprintf("web_search: what answers at %s is no SearXNG (status %d)", at, resp.StatusCode), "correct searxng.url in web_search.yaml"}
}

// approvals says whether something waits for the user.
func (x *examination) approvals(ctx context.Context) {
	out, done, err := x.asUser(quickly)
	if err != nil {
		x.fail("approvals", "see the log of conclave up", "%v", err)
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l, err := fetchApprovals(ctx, out, false)
	switch n := len(l.Approvals); {
	case err != nil:
		x.fail("approvals", "see the log of conclave up", "%v", oneLine(err.Error()))
	case n > 0:
		x.warn("approvals", "conclave approve shows and answers them", "%s", waitingCalls(n))
	default:
		x.ok("approvals", "nothing waits for your answer; %s remembered", count(len(l.Rules), "answer"))
	}
}

// waitingCalls says how many calls wait for the user.
func waitingCalls(n int) string {
	if n == 1 {
		return "1 call waits for your answer"
	}
	return fmt.Sprintf("%d calls wait for your answer", n)
}
