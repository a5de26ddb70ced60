package subjects

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// tricks are invalid tokens: strings with a meaning in NATS or elsewhere, and lookalikes.
var tricks = map[string]string{
	"empty":                "",
	"star":                 "*",
	"greater than":         ">",
	"star inside":          "a*",
	"greater than inside":  "a>b",
	"first capture":        "$1",
	"mapping function":     "{{wildcard(1)}}",
	"mapping with account": "{{accountname}}",
	"system prefix":        "$SYS",
	"dot":                  ".",
	"two tokens":           "a.b",
	"trailing dot":         "a.",
	"leading dot":          ".a",
	"double dot":           "a..b",
	"space":                "a b",
	"only a space":         " ",
	"trailing space":       "a ",
	"tab":                  "a\tb",
	"line break":           "a\r\nPUB b 0",
	"NUL":                  "a\x00",
	"delete":               "a\x7f",
	"vertical tab":         "a\vb",
	"wide space":           "a\u2003b",
	"no-break space":       "a\u00a0b",
	"zero width":           "a\u200bb",
	"right to left":        "a\u202eb",
	"lookalike letter":     "run_\u0455hell",
	"lookalike digit":      "\uff11",
	"accent":               "caf\u00e9",
	"not UTF-8":            "a\xff",
	"slash":                "../etc",
	"backslash":            `a\b`,
	"colon":                "llama3:8b",
	"quote":                `a"b`,
	"percent":              "a%2eb",
	"one too long":         strings.Repeat("a", MaxToken+1),
	"300 characters":       strings.Repeat("a", 300),
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"a", "Z", "0", "_", "-", "get_datetime", "coder-2", "mcp_github_create_issue",
		"01JABCDEF", strings.Repeat("a", MaxToken),
	} {
		if err := CheckToken(s); err != nil {
			t.Errorf("CheckToken(%q): %v", s, err)
		}
	}
	for name, s := range tricks {
		err := CheckToken(s)
		if !errors.Is(err, ErrToken) {
			t.Errorf("%s: CheckToken(%q) = %v, want ErrToken", name, s, err)
			continue
		}
		if len(err.Error()) > 200 {
			t.Errorf("%s: the error has %d characters", name, len(err.Error()))
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, subject string
		tokens           []string
		ok               bool
	}{
		{"a", "a", nil, true},
		{"a", "b", nil, false},
		{"a.b", "a.b", nil, true},
		{"a.b", "a", nil, false},
		{"a", "a.b", nil, false},
		{"*", "a", []string{"a"}, true},
		{"*", "a.b", nil, false},
		{"*", "", nil, false},
		{"a.*", "a.b", []string{"b"}, true},
		{"a.*", "a", nil, false},
		{"a.*", "a.", nil, false},
		{"a.*.c", "a..c", nil, false},
		{"*.*", "a.b", []string{"a", "b"}, true},
		{"a.*.c", "a.b.c", []string{"b"}, true},
		{"a.*.c", "a.b.d", nil, false},
		{">", "a", []string{"a"}, true},
		{">", "a.b.c", []string{"a", "b", "c"}, true},
		{">", "", nil, false},
		{"a.>", "a", nil, false},
		{"a.>", "a.b", []string{"b"}, true},
		{"a.>", "a.b.c", []string{"b", "c"}, true},
		{"a.>", "b.c", nil, false},
		{"a.>", "a.", nil, false},
		{"a.*.>", "a.b", nil, false},
		{"a.*.>", "a.b.c.d", []string{"b", "c", "d"}, true},
		{
			"agent.*.tool.request.>", "agent.generator.tool.request.fs_read.coder-2",
			[]string{"generator", "fs_read", "coder-2"},
			true,
		},
		{"agent.*.tool.request.>", "agent.generator.tool.result.fs_read", nil, false},
		{"agent.*.tool.request.>", "agent.a.b.tool.request.fs_read", nil, false},
		// Odd tokens of the subject are text here: the caller checks them.
		{"a.*", "a.*", []string{"*"}, true},
		{"a.*", "a.>", []string{">"}, true},
		{"a.b", "a.*", nil, false},
		{"a.>", "a.b..c", []string{"b", "", "c"}, true},
	} {
		tokens, ok := Match(tt.pattern, tt.subject)
		if ok != tt.ok || (ok && !slices.Equal(tokens, tt.tokens)) {
			t.Errorf("Match(%q, %q) = %q, %v, want %q, %v", tt.pattern, tt.subject, tokens, ok, tt.tokens, tt.ok)
		}
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a.b", "a", false},
		{"a.*", "a.b", true},
		{"a.*", "*.b", true},
		{"a.*", "b.*", false},
		{"a.*", "a.b.c", false},
		{"a.>", "a", false},
		{"a.>", "a.b.c", true},
		{">", "a", true},
		{">", "*.*", true},
		{"a.*.c", "a.>", true},
		{"a.*.c", "a.b.d", false},
		{"a.>", "a.*", true},
		{"a.*.>", "a.b", false},
		{"*.b.>", "a.*.c", true},
		{"tool.request.>", "agent.*.tool.request.>", false},
		{"$JS.API.STREAM.*.EVENTS", "$JS.API.STREAM.DELETE.>", true},
	} {
		if got := Overlap(tt.a, tt.b); got != tt.want {
			t.Errorf("Overlap(%q, %q) = %v", tt.a, tt.b, got)
		}
		if got := Overlap(tt.b, tt.a); got != tt.want {
			t.Errorf("Overlap(%q, %q) = %v, but not the other way round", tt.b, tt.a, got)
		}
	}
}

func TestWith(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, pattern string
		tokens        []string
		want          string // "" = refused
	}{
		{"no wildcard", "query.received", nil, "query.received"},
		{"no wildcard, a token", "query.received", []string{"a"}, ""},
		{"one", "query.cancel.*", []string{"q1"}, "query.cancel.q1"},
		{"one, none given", "query.cancel.*", nil, ""},
		{"one, two given", "query.cancel.*", []string{"a", "b"}, ""},
		{"two", "tool.call.*.*", []string{"tools", "fs_read"}, "tool.call.tools.fs_read"},
		{"two, one given", "tool.call.*.*", []string{"tools"}, ""},
		{"rest of one", "agent.state.>", []string{"generator"}, "agent.state.generator"},
		{
			"rest of three", "tool.request.>",
			[]string{"fs_read", "coder-2", "researcher-5"},
			"tool.request.fs_read.coder-2.researcher-5",
		},
		{"rest of none", "tool.request.>", nil, ""},
		{"token and rest", "a.*.b.>", []string{"x", "y", "z"}, "a.x.b.y.z"},
		{"token and no rest", "a.*.b.>", []string{"x"}, ""},
		{"longest", "a.>", []string{
			strings.Repeat("b", 64), strings.Repeat("c", 64), strings.Repeat("d", 64),
			strings.Repeat("e", 58),
		}, "a." + strings.Repeat("b", 64) + "." + strings.Repeat("c", 64) + "." +
			strings.Repeat("d", 64) + "." + strings.Repeat("e", 58)},
		{"one too long", "a.>", []string{
			strings.Repeat("b", 64), strings.Repeat("c", 64), strings.Repeat("d", 64),
			strings.Repeat("e", 59),
		}, ""},
	} {
		topic, err := Topic[Query]{Spec{Name: tt.pattern, Received: "kept"}}.With(tt.tokens...)
		service, serr := Service[Query, Delta]{Spec{Name: tt.pattern, Received: "kept"}}.With(tt.tokens...)
		if (err == nil) != (tt.want != "") || (serr == nil) != (tt.want != "") {
			t.Errorf("%s: %v, %v", tt.name, err, serr)
			continue
		}
		if err != nil {
			if !errors.Is(err, ErrToken) || !errors.Is(serr, ErrToken) {
				t.Errorf("%s: %v, %v, want ErrToken", tt.name, err, serr)
			}
			continue
		}
		if topic.Name != tt.want || service.Name != tt.want || topic.Received != "kept" {
			t.Errorf("%s: %q, %q, want %q", tt.name, topic.Name, service.Name, tt.want)
		}
	}
	for name, s := range tricks {
		if got, err := QueryCancel.With(s); !errors.Is(err, ErrToken) {
			t.Errorf("%s: With(%q) = %q, %v", name, s, got.Name, err)
		}
		if got, err := ToolRequestService.With("fs_read", s); !errors.Is(err, ErrToken) {
			t.Errorf("%s in a path: With(%q) = %q, %v", name, s, got.Name, err)
		}
	}
}

func TestParseToolRequest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		subject, id, tool string
	}{
		{"agent.generator.tool.request.get_datetime", "generator", "get_datetime"},
		{"agent.respondent_b.tool.request.mcp_github_create_issue", "respondent_b", "mcp_github_create_issue"},
		{"agent.orchestrator.tool.request.fs_read.coder-2", "orchestrator.coder-2", "fs_read"},
		{"agent.orchestrator.tool.request.fs_read.a.b.c.d", "orchestrator.a.b.c.d", "fs_read"},
	} {
		c, tool, err := ParseToolRequest(tt.subject)
		if err != nil || c.ID() != tt.id || tool != tt.tool {
			t.Errorf("ParseToolRequest(%q) = %v, %q, %v", tt.subject, c.ID(), tool, err)
		}
	}
	bad := map[string]string{
		"nothing":             "",
		"no tool":             "agent.generator.tool.request",
		"empty tool":          "agent.generator.tool.request.",
		"another subject":     "agent.generator.tool.result.fs_read",
		"an agent's own form": "tool.request.fs_read",
		"the tool's form":     "tool.request.fs_read.x",
		"a stored copy":       "from.broker.tool.request.fs_read",
		"upper case":          "AGENT.generator.tool.request.fs_read",
		"two accounts":        "agent.a.b.tool.request.fs_read",
		"no account":          "agent..tool.request.fs_read",
		"path too deep":       "agent.generator.tool.request.fs_read.a.b.c.d.e",
		"trailing dot":        "agent.generator.tool.request.fs_read.",
		"double dot":          "agent.generator.tool.request.fs_read..a",
		"leading dot":         ".agent.generator.tool.request.fs_read",
		"too long": "agent.generator.tool.request." +
			strings.Join([]string{
				strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64),
				strings.Repeat("d", 64),
			}, "."),
	}
	for name, s := range tricks {
		bad[name+" as the tool"] = "agent.generator.tool.request." + s
		bad[name+" in the path"] = "agent.generator.tool.request.fs_read." + s
		bad[name+" as the account"] = "agent." + s + ".tool.request.fs_read"
	}
	// Two tokens stay two tokens: "a.b" names tool a and child b, which is a request like any other.
	delete(bad, "two tokens as the tool")
	delete(bad, "two tokens in the path")
	for name, s := range bad {
		if c, tool, err := ParseToolRequest(s); !errors.Is(err, ErrToken) || tool != "" || c.Account != "" {
			t.Errorf("%s: ParseToolRequest(%q) = %v, %q, %v, want ErrToken and nothing else", name, s, c, tool, err)
		}
	}
}

// TestCallerID shows that ID does not append to the path in place.
func TestCallerID(t *testing.T) {
	t.Parallel()
	c := Caller{Account: "a", Path: []string{"b", "c"}}
	for range 2 {
		if c.ID() != "a.b.c" {
			t.Errorf("ID = %q", c.ID())
		}
	}
	if id := (Caller{Account: "a"}).ID(); id != "a" {
		t.Errorf("ID = %q", id)
	}
}

// FuzzParseToolRequest: an accepted subject is rebuilt exactly from the parsed tokens, all of them valid.
func FuzzParseToolRequest(f *testing.F) {
	f.Add("agent.generator.tool.request.fs_read.coder-2")
	for _, s := range tricks {
		f.Add("agent.generator.tool.request." + s)
		f.Add("agent." + s + ".tool.request.fs_read")
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, tool, err := ParseToolRequest(s)
		if err != nil {
			if !errors.Is(err, ErrToken) || tool != "" || c.Account != "" {
				t.Fatalf("refused %q with %v and still said %v, %q", s, err, c, tool)
			}
			return
		}
		for _, tok := range append([]string{c.Account, tool}, c.Path...) {
			if err := CheckToken(tok); err != nil {
				t.Fatalf("accepted %q with the token %q: %v", s, tok, err)
			}
		}
		if len(c.Path) > MaxDepth || len(s) > MaxSubject {
			t.Fatalf("accepted %q: too deep or too long", s)
		}
		if again := strings.Join(append([]string{"agent", c.Account, "tool", "request", tool}, c.Path...),
			"."); again != s {
			t.Fatalf("read %q as %q", s, again)
		}
	})
}

// simpleMatch is the reference implementation of Match: it compares token by token.
func simpleMatch(pattern, subject string) ([]string, bool) {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	var tokens []string
	for i := range p {
		if p[i] == ">" {
			if i >= len(s) || strings.Join(s[i:], ".") == "" {
				return nil, false
			}
			return append(tokens, s[i:]...), true
		}
		if i >= len(s) {
			return nil, false
		}
		if p[i] == "*" && s[i] != "" {
			tokens = append(tokens, s[i])
		} else if p[i] == "*" || p[i] != s[i] {
			return nil, false
		}
	}
	return tokens, len(p) == len(s)
}

// FuzzMatch: Match agrees with simpleMatch, and with Overlap: patterns that match one subject overlap.
func FuzzMatch(f *testing.F) {
	f.Add("agent.*.tool.request.>", "agent.generator.tool.request.x")
	f.Add("a.>", "a..")
	f.Add("*", "")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, pattern, subject string) {
		tokens, ok := Match(pattern, subject)
		want, wantOK := simpleMatch(pattern, subject)
		if ok != wantOK || (ok && !slices.Equal(tokens, want)) {
			t.Fatalf("Match(%q, %q) = %q, %v, want %q, %v", pattern, subject, tokens, ok, want, wantOK)
		}
		if ok && !strings.ContainsAny(subject, "*>") && !Overlap(pattern, subject) {
			t.Fatalf("%q matches %q and does not overlap it", subject, pattern)
		}
	})
}

// FuzzWith: a result of With matches its pattern, has no wildcard, and yields the tokens again.
func FuzzWith(f *testing.F) {
	f.Add(uint8(5), "q1", "", "")
	f.Add(uint8(12), "fs_read", "coder-2", "researcher-5")
	for _, s := range tricks {
		f.Add(uint8(12), "fs_read", s, "x")
	}
	specs := AllSpecs()
	f.Fuzz(func(t *testing.T, which uint8, a, b, c string) {
		spec := specs[int(which)%len(specs)]
		given := []string{a, b, c}
		for n := range len(given) + 1 {
			tokens := given[:n]
			topic, err := Topic[Query]{spec}.With(tokens...)
			if err != nil {
				if !errors.Is(err, ErrToken) {
					t.Fatalf("With(%q) of %q: %v", tokens, spec.Name, err)
				}
				continue
			}
			got, ok := Match(spec.Name, topic.Name)
			if !ok || !slices.Equal(got, slices.Clone(tokens)) && len(got)+len(tokens) > 0 {
				t.Fatalf("With(%q) of %q = %q, which gives back %q, %v", tokens, spec.Name, topic.Name, got, ok)
			}
			if strings.ContainsAny(topic.Name, "*> \t\r\n") || len(topic.Name) > MaxSubject {
				t.Fatalf("With(%q) of %q = %q", tokens, spec.Name, topic.Name)
			}
		}
	})
}
