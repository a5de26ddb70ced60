package policy

import (
	"encoding/json"
	"slices"
	"testing"

	"conclave/subjects"
)

// addedManifest gives no type the added tools; the generator is an assistant.
const addedManifest = `
types:
  assistant: {tools: [get_datetime]}
  operator: {tools: [get_datetime]}
accounts: {generator: assistant, operator: operator}
tools:
  listed: {act: read, effects: []}
`

// TestAddedTools judges calls of tools that were added at run time: by the user's declaration, by the manifest first,
// and each call of a tool without facts by the user.
func TestAddedTools(t *testing.T) {
	t.Parallel()
	m, err := ParseManifest([]byte(addedManifest), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	book := NewActiveRules(Rules{Manifest: m, Chain: m.Chain(Env{Home: t.TempDir()})})
	var tools []AddedTool
	for name, d := range map[string]subjects.ToolDeclaration{
		"unknown": {Agents: []string{"assistant"}},
		"reader":  {Agents: []string{"assistant", "nobody"}, Act: "read", Effects: []string{}},
		"mine":    {Act: "read", Effects: []string{}},
		"listed":  {Agents: []string{"assistant"}, Act: "pay"},
	} {
		tool, err := ParseDeclaration(name, "zone", d)
		if err != nil {
			t.Fatal(err)
		}
		tools = append(tools, tool)
	}
	book.ReplaceTools(tools)
	judge := func(account, typ, tool string, o Override) Decision {
		r := book.Load()
		facts := r.Manifest.Tools[tool]
		facts.Zone = "zone"
		return r.Chain.Decide(t.Context(), Call{
			Caller: subjects.Caller{Account: account}, Type: typ, Tool: facts, Override: o, Args: json.RawMessage(`{}`),
			Schema:   json.RawMessage(`{"type":"object"}`),
			FromUser: account == "operator", Flow: &Flow{}, Session: "s", Query: "q",
		})
	}
	for name, tt := range map[string]struct {
		account, typ, tool string
		override           Override
		allowed, asks      bool
	}{
		"a declared tool": {
			account: "generator", typ: "assistant", tool: "reader",
			allowed: true,
		},
		"a tool without facts asks": {
			account: "generator", typ: "assistant", tool: "unknown",
			asks: true,
		},
		"also in a relaxed session": {
			account: "generator", typ: "assistant", tool: "unknown",
			override: Override{Level: subjects.OverrideRelax}, asks: true,
		},
		"not the user": {
			account: "operator", typ: "operator", tool: "unknown",
			allowed: true,
		},
		"a tool that was given to no agent": {account: "generator", typ: "assistant", tool: "mine"},
		"which the user may call":           {account: "operator", typ: "operator", tool: "mine", allowed: true},
		"the manifest's facts come first": {
			account: "generator", typ: "assistant", tool: "listed",
			allowed: true,
		},
		"trick: a tool that was never added":       {account: "generator", typ: "assistant", tool: "other"},
		"trick: a type that the user did not name": {account: "committee", typ: "persona", tool: "reader"},
	} {
		d := judge(tt.account, tt.typ, tt.tool, tt.override)
		if d.Allowed() != tt.allowed || (len(d.Asks()) > 0) != tt.asks {
			t.Errorf("%s: allowed %v, asks %v, %+v", name, d.Allowed(), d.Asks(), d.Denial())
		}
	}
	if base := book.LoadBase().Manifest; slices.Contains(base.Types["assistant"].Tools, "reader") ||
		len(base.Tools) != 1 {
		t.Errorf("the manifest itself changed: %+v", base.Types)
	}
	// A new manifest keeps them, and they go with their principal.
	book.Replace(book.LoadBase())
	if !book.Load().Manifest.HasTool("assistant", "reader") {
		t.Error("a reload lost the added tools")
	}
	book.ReplaceTools(nil)
	if book.Load().Manifest.HasTool("assistant", "reader") {
		t.Error("a removed tool stayed")
	}
}

// TestDeclarationRejects shows what a declaration may not hold.
func TestDeclarationRejects(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]subjects.ToolDeclaration{
		"an unknown act":         {Act: "improve"},
		"an unknown effect":      {Act: "read", Effects: []string{"none"}},
		"an unknown role":        {Act: "send", Args: map[string]string{"to": "friend"}},
		"effects without an act": {Effects: []string{}},
		"roles without an act":   {Args: map[string]string{"to": "destination"}},
	} {
		if _, err := ParseDeclaration("x", "zone", d); err == nil {
			t.Errorf("accepted %s", name)
		}
	}
}
