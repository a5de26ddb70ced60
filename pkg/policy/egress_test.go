package policy

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// fetchCall is a call of a tool that fetches the address.
func fetchCall(address string) Call {
	c := newCall()
	c.Tool = Tool{Name: "web_fetch", Zone: "tools", Known: true, Effects: Declare(Fetch, ReadsUntrusted), URL: "url"}
	c.Args, _ = json.Marshal(map[string]string{"url": address})
	return c
}

func TestEgressLayer(t *testing.T) {
	some := HostRules{
		Allow: []string{"example.org", "*.example.net", "intern:8080", "192.0.2.7", "[2001:db8::1]:8443", "tool.example.com:9000"},
		Deny:  []string{"bad.example.net", "*.bad.example.net", "192.0.2.66", "tracker.example.net:443"},
	}
	open := HostRules{Allow: []string{"*"}, Deny: []string{"evil.example", "*.evil.example", "10.0.0.1", "xn--bcher-kva.example"}}
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
		{name: "below a star", url: "https://a.b.example.net/", rules: some},
		{name: "a port that is listed", url: "http://intern:8080/", rules: some},
		{name: "a number that is listed", url: "http://192.0.2.7/", rules: some},
		{name: "a number of six with a port", url: "https://[2001:db8::1]:8443/", rules: some},
		{name: "any name", url: "https://whatever.example.com/", rules: open},
		{name: "a name of another script", url: "https://müller.example/", rules: open},
		{name: "another host", url: "https://example.com/", rules: some, rule: RuleHost},
		{name: "another port", url: "https://example.org:8080/", rules: some, rule: rulePort},
		{name: "a port of another host", url: "https://intern/", rules: some, rule: RuleHost},
		{name: "only its port is listed", url: "https://tool.example.com/", rules: some, rule: RuleHost},
		{name: "denied", url: "https://bad.example.net/", rules: some, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "denied at one port", url: "https://tracker.example.net/", rules: some, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "not denied at the other", url: "http://tracker.example.net/", rules: some},
		{name: "nothing is allowed", url: "https://example.org/", rule: RuleHost},

		{name: "trick: the host as a prefix", url: "https://example.org.evil.example/", rules: some, rule: RuleHost},
		{name: "trick: the host as an ending", url: "https://notexample.org/", rules: some, rule: RuleHost},
		{name: "trick: the star's own host", url: "https://example.net/", rules: some, rule: RuleHost},
		{name: "trick: the host as a name of a person", url: "https://example.org@evil.example/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a password", url: "https://a:b@example.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a backslash", url: `https://evil.example\@example.org/`, rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a fragment that some skip", url: "https://evil.example#@example.org/", rules: some, rule: RuleHost},
		{name: "trick: an escape in the host", url: "https://ex%61mple.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a blank", url: " https://example.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a line break", url: "https://example.org/\r\nHost: evil", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a character that is not seen", url: "https://example\u200b.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a full-width host that is denied", url: "https://ｅvil.example/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: another dot in a host that is denied", url: "https://evil。example/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: a final dot behind a host that is denied", url: "https://EVIL.example./", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: below a host that is denied", url: "https://a.evil.example/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: the other spelling of a denied name", url: "https://bücher.example/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: a denied number dressed as one of six", url: "http://[::ffff:10.0.0.1]/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: a denied number at another port", url: "http://10.0.0.1:8080/", rules: open, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: a number where any name is allowed", url: "http://169.254.169.254/latest/", rules: open, rule: ruleNumeric},
		{name: "trick: a number of six where any name is allowed", url: "http://[::1]/", rules: open, rule: ruleNumeric},
		{name: "trick: a number as one", url: "http://2130706433/", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a number in base 16", url: "http://0x7f.0.0.1/", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a number in base 8", url: "http://0177.0.0.01/", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a short number", url: "http://127.1/", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a number with a zone", url: "http://[fe80::1%25eth0]/", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a name without a dot", url: "http://localhost/", rules: open, rule: RuleHost},
		{name: "trick: a file", url: "file:///etc/passwd", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: gopher", url: "gopher://example.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a script", url: "javascript:alert(1)", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: no scheme", url: "//example.org/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: no slashes", url: "https:example.org", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: no host", url: "https:///example.org", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a port out of range", url: "https://example.org:65616/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: a port with zeros", url: "https://example.org:0443/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: an empty port", url: "https://example.org:/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: empty parts of a name", url: "https://a..example.net/", rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: an address without end", url: "https://example.org/" + strings.Repeat("a", 5000), rules: some, rule: ruleAddress, all: ruleAddress},
		{name: "trick: nothing", url: "", rules: open, rule: ruleAddress, all: ruleAddress},
		{name: "trick: everything is denied", url: "http://10.9.9.9/", rules: HostRules{Allow: []string{"10.9.9.9"}, Deny: []string{"*"}}, rule: ruleDeniedHost, all: ruleDeniedHost},
		{name: "trick: a policy that cannot be read", url: "https://example.org/", rules: HostRules{Allow: []string{"*"}, Deny: []string{"http://evil"}}, rule: ruleBadHosts, all: ruleBadHosts},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := EgressLayer{Fetch: tt.rules}
			for _, person := range []bool{false, true} {
				c := fetchCall(tt.url)
				c.FromUser = person
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
	url := func(t *Tool) { t.URL = "url" }
	for _, tt := range []struct {
		name string
		tool Tool
		args string
		rule string
	}{
		{"nothing leaves", tool(none, ReadsPrivate), `{}`, ""},
		{"a search", tool(func(t *Tool) { t.Query = "q" }, Egress), `{"q":"x"}`, ""},
		{"a message", tool(func(t *Tool) { t.Sinks = []string{"to"} }, Egress), `{"to":"x"}`, ""},
		{"several addresses", tool(url, Fetch), `{"url":["https://example.org","https://example.org/2"]}`, ""},
		{"trick: nobody knows where it goes", tool(none, Egress), `{}`, ruleNowhere},
		{"trick: only text is declared", tool(func(t *Tool) { t.Content = []string{"text"} }, Egress), `{}`, ruleNowhere},
		{"trick: effects that nobody declared", Tool{Name: "x", Zone: "tools", Known: true}, `{}`, ruleNowhere},
		{"trick: it fetches, and has no address", tool(none, Fetch), `{}`, ruleNoAddress},
		{"trick: it fetches, and its address is a query", tool(func(t *Tool) { t.Query = "q" }, Fetch), `{"q":"https://example.org"}`, ruleNoAddress},
		{"trick: an address without the effect", tool(url), `{"url":"https://evil.example"}`, RuleHost},
		{"trick: one of several is elsewhere", tool(url, Fetch), `{"url":["https://example.org","https://evil.example"]}`, RuleHost},
		{"trick: no address given", tool(url, Fetch), `{}`, ruleNoAddress},
		{"trick: no address in the list", tool(url, Fetch), `{"url":[]}`, ruleNoAddress},
		{"trick: an object", tool(url, Fetch), `{"url":{"href":"https://example.org"}}`, ruleNoAddress},
		{"trick: null", tool(url, Fetch), `{"url":null}`, ruleNoAddress},
		{"trick: two addresses of one name", tool(url, Fetch), `{"url":"https://example.org","url":"https://evil.example"}`, ruleUnreadable},
		{"trick: the name in other letters", tool(url, Fetch), `{"url":"https://example.org","URL":"https://evil.example"}`, ruleMisspelling},
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
	for _, s := range []string{"example.org", "Example.ORG", "*.example.org", "*", "*:8080", "localhost", "example.org:8080", "10.0.0.1", "10.0.0.1:80", "::1", "[::1]", "[::1]:8080", "bücher.example", "a-b.c1"} {
		if h, err := parseHosts([]string{s}); err != nil || len(h) != 1 {
			t.Errorf("%s: %v", s, err)
		}
	}
	for name, s := range map[string]string{
		"nothing": "", "a blank": " ", "an address": "https://example.org", "a path": "example.org/x", "a network": "10.0.0.0/8", "a port out of range": "example.org:70000",
		"no port": "example.org:", "a star inside": "a.*.example.org", "a star of a part": "ex*.org", "two stars": "*.*", "a star and a dot": "*.", "a star of a number": "*.10.0.0.1",
		"a short number": "127.1", "a zone": "fe80::1%eth0", "a user": "a@example.org", "empty parts": "a..b", "a hyphen first": "-a.org", "brackets that stay open": "[::1",
		"too long": strings.Repeat("a.", 200) + "a", "a line break": "example.org\n",
	} {
		if _, err := parseHosts([]string{"example.org", s}); err == nil || len(err.Error()) > 300 {
			t.Errorf("trick: %s (%q) was taken for a host: %v", name, s, err)
		}
	}
}

// Whatever is denied is refused, in every spelling of it that leads there.
func TestEgressDenyWins(t *testing.T) {
	l := EgressLayer{Fetch: HostRules{Allow: []string{"*", "evil.example", "evil.example:8080"}, Deny: []string{"evil.example"}}}
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
	l := EgressLayer{Fetch: HostRules{Allow: []string{"example.org", "*.example.org"}, Deny: []string{"bad.example.org"}}}
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
		// What passed leads there for the standard library too, where it can read the name as it is.
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
	l := EgressLayer{Fetch: HostRules{Allow: []string{"*"}, Deny: []string{"localhost", "*.localhost", "*.local", "*.internal", "*.lan", "*.home.arpa"}}}
	c := fetchCall("https://www.example.org/a/b?c=d")
	b.ReportAllocs()
	for b.Loop() {
		if l.Judge(b.Context(), c).kind != verdictPass {
			b.Fatal("refused")
		}
	}
}

// A rule that is only watched takes no other with it, at redirects neither.
func TestHostRulesCheck(t *testing.T) {
	h := HostRules{Allow: []string{"a.example"}, Deny: []string{"evil.example"}}
	for _, tt := range []struct {
		name, address string
		watched       []string
		ok            bool
	}{
		{"allowed", "https://a.example/", nil, true},
		{"not allowed", "https://b.example/", nil, false},
		{"denied", "https://evil.example/", nil, false},
		{"not allowed, watched", "https://b.example/", []string{RuleHost}, true},
		{"trick: denied, and another rule is watched", "https://evil.example/", []string{RuleHost, rulePort, ruleNumeric}, false},
		{"trick: denied and watched, and still not allowed", "https://evil.example/", []string{ruleDeniedHost}, false},
		{"denied and not allowed, both watched", "https://evil.example/", []string{ruleDeniedHost, RuleHost}, true},
		{"trick: a number, and hosts are watched", "https://10.0.0.1/", []string{RuleHost}, false},
		{"trick: no address at all", "file:///etc/passwd", []string{RuleHost, ruleDeniedHost, ruleNumeric, rulePort}, false},
	} {
		if err := h.CheckURL(tt.address, tt.watched...); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
