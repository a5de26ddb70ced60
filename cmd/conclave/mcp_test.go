package main

import (
	"testing"

	"conclave/pkg/policy"
	"conclave/subjects"
)

func TestDescribeCallers(t *testing.T) {
	t.Parallel()
	m := policy.Manifest{Types: map[string]policy.AgentType{
		"operator": {Tools: []string{"mcp_memory_write"}}, "assistant": {},
		"researcher": {Tools: []string{"mcp_memory_read"}}, "writer": {},
	}}
	p := subjects.Principal{
		Tools: []string{"mcp_memory_read", "mcp_memory_write"},
		Declared: map[string]subjects.ToolDeclaration{
			"mcp_memory_read":  {Agents: []string{"assistant", "writer"}},
			"mcp_memory_write": {Agents: []string{"assistant"}},
		},
	}
	want := "assistant can call all of them; researcher can call 1 of them: mcp_memory_read; writer can call 1 of " +
		"them: mcp_memory_read"
	if got := describeCallers(p, m); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.Types["researcher"], p.Declared = policy.AgentType{}, nil
	if got := describeCallers(p, m); got != "" {
		t.Errorf("%q of tools of the user alone", got)
	}
}

func TestMovePath(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]string{
		"/srv/mcp/memory":                         "/tmp/run/memory",
		"/srv/mcp/memory/a.jsonl":                 "/tmp/run/memory/a.jsonl",
		"--db=/srv/mcp/memory/a:/srv/mcp/memory/": "--db=/tmp/run/memory/a:/tmp/run/memory/",
		"/srv/mcp/memory2/a":                      "/srv/mcp/memory2/a",
		"/srv/mcp/memory-old":                     "/srv/mcp/memory-old",
		"/backup/srv/mcp/memory":                  "/backup/srv/mcp/memory",
		"//srv/mcp/memory":                        "//srv/mcp/memory",
		"":                                        "",
	} {
		if got := movePath(v, "/srv/mcp/memory", "/tmp/run/memory"); got != want {
			t.Errorf("%q: %q, want %q", v, got, want)
		}
	}
}
