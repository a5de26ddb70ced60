package policy

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// fetchCall returns a call of web_fetch with this URL.
func fetchCall(address string) Call {
	c := newCall()
	c.Tool = Tool{
		Name: "web_fetch", Zone: "tools", Known: true, Effects: Declare(Fetch, ReadsUntrusted),
		Args: Args{"url": {Role: RoleURL}},
	}
	c.Args, _ = json.Marshal(map[string]string{"url": address})
	return c
}

func TestEgressLayer(t *testing.T) {
	some := HostRules{
		Allow: []string{
			"example.org", "*.example.net", "intern:8080", "192.0.2.7", "[2001:db8::1]:8443",
			"tool.example.com:9000",
		},
		Deny: []string{"bad.example.net", "*.bad.example.net", "192.0.2.66", "tracker.example.net:443"},
	}
	open := HostRules{Allow: []string{"*"}, Deny: []string{
		"evil.example", "*.evil.example", "10.0.0.1",
		"xn--bcher-kva.example",
	}}
	for _, tt := range []struct {
		name, url string
		rules     HostRules
		rule      string // "" = passes
		all       string // under ALL
	}{
		{name: "a host", url: "https://example.org/a?b=c#d", rules: some},
		{name: "in other case", url: "HTTPS://EXAMPLE.org", rules: some},
		{name: "with a final dot", url: "https://example.org./", rules: some},
		{name: "its plain port", url: "http://example.org:80/", rules: some},
		{name: "the other plain port", url: "http://example.org:443/", rules: some},
		{name: "a subdomain of a wildcard", url: "https://a.b.example.net/", rules: some},
		{name: "a port that is listed", url: "http://intern:8080/", rules: some},
		{name: "an IP address that is listed", url: "http://192.0.2.7/", rules: some},
		{name: "an IPv6 address with a port", url: "https://[2001:db8::1]:8443/", rules: some},
		{name: "any name", url: "https://whatever.example.com/", rules: open},
		{name: "a name of another script", url: "https://müller.example/", rules: open},
		{name: "another host", url: "https://example.com/", rules: some, rule: RuleHost},
		{name: "another port", url: "https://example.org:8080/", rules: some, rule: rulePort},
		{name: "a port of another host", url: "https://intern/", rules: some, rule: RuleHost},
		{name: "only its port is listed", url: "https://tool.example.com/", rules: some, rule: RuleHost},
		{name: "denied", url: "https://bad.example.net/", rules: some, rule: ruleDeniedHost, all: ruleDeniedHost},
		{
			name: "denied at one port", url: "https://tracker.example.net/", rules: some, rule: ruleDeniedHost,
			all: ruleDeniedHost,
		},
		{name: "not denied at the other", url: "http://tracker.example.net/", rules: some},
		{name: "nothing is allowed", url: "https://example.org/", rule: RuleHost},

		{name: "trick: the host as a prefix", url: "https://example.org.evil.example/", rules: some, rule: RuleHost},
		{name: "trick: the host as an ending", url: "https://notexample.org/", rules: some, rule: RuleHost},
		{name: "trick: the wildcard's own domain", url: "https://example.net/", rules: some, rule: RuleHost},
		{
			name: "trick: the host as a user name", url: "https://example.org@evil.example/", rules: some,
			rule: ruleBadURL, all: ruleBadURL,
		},
		{name: "trick: a password", url: "https://a:b@example.org/", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{
			name: "trick: a backslash", url: `https://evil.example\@example.org/`, rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: a fragment that some parsers skip", url: "https://evil.example#@example.org/", rules: some,
			rule: RuleHost,
		},
		{
			name: "trick: an escape in the host", url: "https://ex%61mple.org/", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{name: "trick: a blank", url: " https://example.org/", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{
			name: "trick: a line break", url: "https://example.org/\r\nHost: evil", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: an invisible character", url: "https://example\u200b.org/", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: a full-width host that is denied", url: "https://ｅvil.example/", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: another dot in a host that is denied", url: "https://evil。example/", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: a final dot behind a host that is denied", url: "https://EVIL.example./", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: below a host that is denied", url: "https://a.evil.example/", rules: open,
			rule: ruleDeniedHost,
			all:  ruleDeniedHost,
		},
		{
			name: "trick: the other spelling of a denied name", url: "https://bücher.example/", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: a denied IP address mapped to IPv6", url: "http://[::ffff:10.0.0.1]/", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: a denied IP address at another port", url: "http://10.0.0.1:8080/", rules: open,
			rule: ruleDeniedHost, all: ruleDeniedHost,
		},
		{
			name: "trick: an IP address where any name is allowed", url: "http://169.254.169.254/latest/", rules: open,
			rule: ruleIPLiteral,
		},
		{
			name: "trick: an IPv6 address where any name is allowed", url: "http://[::1]/", rules: open,
			rule: ruleIPLiteral,
		},
		{
			name: "trick: an IP address as one integer", url: "http://2130706433/", rules: open, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: an IP address in hexadecimal", url: "http://0x7f.0.0.1/", rules: open, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: an IP address in octal", url: "http://0177.0.0.01/", rules: open, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{name: "trick: a short IP address", url: "http://127.1/", rules: open, rule: ruleBadURL, all: ruleBadURL},
		{
			name: "trick: an IP address with a zone", url: "http://[fe80::1%25eth0]/", rules: open, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{name: "trick: a name without a dot", url: "http://localhost/", rules: open, rule: RuleHost},
		{name: "trick: a file", url: "file:///etc/passwd", rules: open, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: gopher", url: "gopher://example.org/", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: a script", url: "javascript:alert(1)", rules: open, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: no scheme", url: "//example.org/", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: no slashes", url: "https:example.org", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: no host", url: "https:///example.org", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{
			name: "trick: a port out of range", url: "https://example.org:65616/", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: a port with zeros", url: "https://example.org:0443/", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{name: "trick: an empty port", url: "https://example.org:/", rules: some, rule: ruleBadURL, all: ruleBadURL},
		{
			name: "trick: empty parts of a name", url: "https://a..example.net/", rules: some, rule: ruleBadURL,
			all: ruleBadURL,
		},
		{
			name: "trick: an overlong URL", url: "https://example.org/" + strings.Repeat("a", 5000), rules: some,
			rule: ruleBadURL, all: ruleBadURL,
		},
		{name: "trick: nothing", url: "", rules: open, rule: ruleBadURL, all: ruleBadURL},
		{name: "trick: everything is denied", url: "http://10.9.9.9/", rules: HostRules{
			Allow: []string{"10.9.9.9"},
			Deny:  []string{"*"},
		}, rule: ruleDeniedHost, all: ruleDeniedHost},
		{
			name: "trick: an invalid host pattern in the policy", url: "https://example.org/",
			rules: HostRules{Allow: []string{"*"}, Deny: []string{"http://evil"}}, rule: ruleBadHosts,
			all: ruleBadHosts,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := EgressLayer{Fetch: tt.rules}
			for _, fromUser := range []bool{false, true} {
				c := fetchCall(tt.url)
				c.FromUser = fromUser
				rule, reason, _ := judgeCall(t, l, c)
				if rule != tt.rule || len(reason) > 300 {
					t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
				}
				c.Override.Level = subjects.OverrideRelax
				if rule, _, _ := judgeCall(t, l, c); rule != tt.rule {
					t.Errorf("relaxed: rule %q, want %q", rule, tt.rule)
				}
				c.Override.Level = subjects.OverrideAll
				if rule, reason, _ := judgeCall(t, l, c); rule != tt.all {
					t.Errorf("under ALL: rule %q (%s), want %q", rule, reason, tt.all)
				}
			}
		})
	}
}

func TestEgressToolFacts(t *testing.T) {
	l := EgressLayer{Fetch: HostRules{Allow: []string{"example.org"}}}
	tool := func(change func(*Tool), effects ...Effect) Tool {
		t := Tool{Name: "x", Zone: "tools", Known: true, Effects: Declare(effects...)}
		change(&t)
		return t
	}
	none := func(*Tool) {}
	url := func(t *Tool) { t.Args = Args{"url": {Role: RoleURL}} }
	for _, tt := range []struct {
		name string
		tool Tool
		args string
		rule string
	}{
		{"nothing leaves", tool(none, ReadsPrivate), `{}`, ""},
		{"a search", tool(func(t *Tool) { t.Args = Args{"q": {Role: RoleQuery}} }, Egress), `{"q":"x"}`, ""},
		{"a message", tool(func(t *Tool) { t.Args = Args{"to": {Role: RoleDestination}} }, Egress), `{"to":"x"}`, ""},
		{"several addresses", tool(url, Fetch), `{"url":["https://example.org","https://example.org/2"]}`, ""},
		{"trick: no destination argument", tool(none, Egress), `{}`, ruleNoDestination},
		{
			"trick: only text is declared", tool(func(t *Tool) { t.Args = Args{"text": {Role: RoleContent}} }, Egress),
			`{}`, ruleNoDestination,
		},
		{"trick: undeclared effects", Tool{Name: "x", Zone: "tools", Known: true}, `{}`, ruleNoDestination},
		{"trick: it fetches, and has no address", tool(none, Fetch), `{}`, ruleNoURL},
		{"trick: it fetches, and its address is a query", tool(func(t *Tool) {
			t.Args = Args{"q": {Role: RoleQuery}}
		}, Fetch), `{"q":"https://example.org"}`, ruleNoURL},
		{"trick: an address without the effect", tool(url), `{"url":"https://evil.example"}`, RuleHost},
		{
			"trick: one of several is elsewhere", tool(url, Fetch),
			`{"url":["https://example.org","https://evil.example"]}`, RuleHost,
		},
		{"trick: no address given", tool(url, Fetch), `{}`, ruleNoURL},
		{"trick: no address in the list", tool(url, Fetch), `{"url":[]}`, ruleNoURL},
		{"trick: an object", tool(url, Fetch), `{"url":{"href":"https://example.org"}}`, ruleNoURL},
		{"trick: null", tool(url, Fetch), `{"url":null}`, ruleNoURL},
		{
			"trick: two addresses of one name", tool(url, Fetch),
			`{"url":"https://example.org","url":"https://evil.example"}`, ruleMalformed,
		},
		{
			"trick: the argument name in another case", tool(url, Fetch),
			`{"url":"https://example.org","URL":"https://evil.example"}`, ruleArgumentCase,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Tool, c.Args = tt.tool, json.RawMessage(tt.args)
			if rule, reason, _ := judgeCall(t, l, c); rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
		})
	}
}

func TestParseHosts(t *testing.T) {
	for _, s := range []string{
		"example.org", "Example.ORG", "*.example.org", "*", "*:8080", "localhost",
		"example.org:8080", "10.0.0.1", "10.0.0.1:80", "::1", "[::1]", "[::1]:8080", "bücher.example", "a-b.c1",
	} {
		if h, err := parseHosts([]string{s}); err != nil || len(h) != 1 {
			t.Errorf("%s: %v", s, err)
		}
	}
	for name, s := range map[string]string{
		"nothing": "", "a blank": " ", "an address": "https://example.org", "a path": "example.org/x",
		"a network": "10.0.0.0/8", "a port out of range": "example.org:70000",
		"no port": "example.org:", "a star inside": "a.*.example.org", "a star of a part": "ex*.org",
		"two stars": "*.*", "a star and a dot": "*.", "a wildcard of an IP address": "*.10.0.0.1",
		"a short IP address": "127.1", "a zone": "fe80::1%eth0", "a user": "a@example.org", "empty parts": "a..b",
		"a hyphen first": "-a.org", "brackets that stay open": "[::1",
		"too long": strings.Repeat("a.", 200) + "a", "a line break": "example.org\n",
	} {
		if _, err := parseHosts([]string{"example.org", s}); err == nil || len(err.Error()) > 300 {
			t.Errorf("trick: %s (%q) was accepted as a host: %v", name, s, err)
		}
	}
}

// TestEgressDenyWins: a denied host is denied in every spelling that resolves to it.
func TestEgressDenyWins(t *testing.T) {
	l := EgressLayer{Fetch: HostRules{
		Allow: []string{"*", "evil.example", "evil.example:8080"},
		Deny:  []string{"evil.example"},
	}}
	rapid.Check(t, func(rt *rapid.T) {
		var host strings.Builder
		for _, r := range "evil.example" {
			forms := []string{string(r), strings.ToUpper(string(r))}
			if r == '.' {
				forms = []string{".", "。", "．"}
			} else {
				forms = append(forms, string(r-'a'+'ａ'), string(r-'a'+'Ａ'))
			}
			host.WriteString(rapid.SampledFrom(forms).Draw(rt, "form"))
		}
		address := rapid.SampledFrom([]string{"http://", "https://", "HTTP://"}).Draw(rt, "scheme") + host.String() +
			rapid.SampledFrom([]string{"", ".", ":80", ":8080", ".:443", "/x", "?x", "#x"}).Draw(rt, "rest")
		if rule, reason, _ := judgeCall(t, l, fetchCall(address)); rule != ruleDeniedHost {
			rt.Fatalf("%s: rule %q (%s)", address, rule, reason)
		}
	})
}

func FuzzHosts(f *testing.F) {
	l := EgressLayer{Fetch: HostRules{
		Allow: []string{"example.org", "*.example.org"},
		Deny:  []string{"bad.example.org"},
	}}
	for _, s := range [][2]string{
		{"https://example.org/", "example.org"},
		{"https://example.org@evil.example/", "*.example.org:8080"},
		{"http://[::ffff:10.0.0.1]:80", "[::1]:80"},
		{"https://bad.example.org./", "*"},
		{"http://0x7f.1", "10.0.0.1"},
		{"https://ｅxample.org\\", "bücher.example"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, address, host string) {
		if hosts, err := parseHosts([]string{host}); (err == nil) != (len(hosts) == 1) {
			t.Errorf("%q: %v and %v", host, hosts, err)
		}
		c := fetchCall(address)
		rule, reason, _ := judgeCall(t, l, c)
		if len(reason) > 400 {
			t.Errorf("%d bytes of reason: %q", len(reason), reason)
		}
		if rule != "" {
			return
		}
		var sent struct{ URL string }
		if err := json.Unmarshal(c.Args, &sent); err != nil {
			t.Fatal(err)
		}
		// The standard library must find an allowed host in a URL that passed.
		u, err := url.Parse(sent.URL)
		if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			t.Fatalf("%q passed: %v", sent.URL, err)
		}
		name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		ascii := !strings.ContainsFunc(name, func(r rune) bool { return r > 127 })
		if ascii && (name != "example.org" && !strings.HasSuffix(name, ".example.org") || name == "bad.example.org") {
			t.Errorf("%q passed and leads to %q", sent.URL, name)
		}
	})
}

func BenchmarkEgress(b *testing.B) {
	l := EgressLayer{Fetch: HostRules{Allow: []string{"*"}, Deny: []string{
		"localhost", "*.localhost", "*.local",
		"*.internal", "*.lan", "*.home.arpa",
	}}}
	c := fetchCall("https://www.example.org/a/b?c=d")
	b.ReportAllocs()
	for b.Loop() {
		if l.Judge(b.Context(), c).kind != verdictPass {
			b.Fatal("denied")
		}
	}
}

// TestHostRulesCheck: a monitor-only rule lifts no other rule, at redirects too.
func TestHostRulesCheck(t *testing.T) {
	h := HostRules{Allow: []string{"a.example"}, Deny: []string{"evil.example"}}
	for _, tt := range []struct {
		name, address string
		monitorOnly   []string
		ok            bool
	}{
		{"allowed", "https://a.example/", nil, true},
		{"not allowed", "https://b.example/", nil, false},
		{"denied", "https://evil.example/", nil, false},
		{"not allowed, monitorOnly", "https://b.example/", []string{RuleHost}, true},
		{
			"trick: denied, and another rule is monitorOnly", "https://evil.example/",
			[]string{RuleHost, rulePort, ruleIPLiteral},
			false,
		},
		{
			"trick: denied and monitorOnly, and still not allowed", "https://evil.example/",
			[]string{ruleDeniedHost},
			false,
		},
		{"denied and not allowed, both monitorOnly", "https://evil.example/", []string{ruleDeniedHost, RuleHost}, true},
		{"trick: a number, and hosts are monitorOnly", "https://10.0.0.1/", []string{RuleHost}, false},
		{
			"trick: no address at all", "file:///etc/passwd",
			[]string{RuleHost, ruleDeniedHost, ruleIPLiteral, rulePort},
			false,
		},
	} {
		if err := h.CheckURL(tt.address, tt.monitorOnly...); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
