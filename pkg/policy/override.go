package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/text"
	"conclave/subjects"
)

// OverrideLayer denies the tools that the user disabled for the session, and those that read the user's memory in the
// question of a client that may not use it. It judges first: a disabled tool stays disabled under every level and
// grant. Which checks a level lifts is decided by the other layers.
type OverrideLayer struct{}

// Name implements [Layer].
func (OverrideLayer) Name() string { return "override" }

// Rules of the override layer.
const (
	ruleDisabled     = "disabled"      // the user disabled the tool for the session
	ruleUnknownLevel = "unknown_level" // the session's level is not one of Levels
	ruleClientMemory = "client_memory" // a client asked that may not use the user's memory
)

// memoryReaders are the tools that return what memory has stored.
var memoryReaders = []string{"search_memory", "search_knowledge_graph"}

// Levels lists the override levels. An empty level counts as the first.
var Levels = []string{subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}

// Judge denies a disabled tool, a reader of memory for such a client, and every tool when the level is unknown. Tool
// names match exactly. It never asks.
func (OverrideLayer) Judge(_ context.Context, c Call) Verdict {
	o := c.Override
	if o.Level != "" && !slices.Contains(Levels, o.Level) {
		return Deny(ruleUnknownLevel, fmt.Sprintf("the override level %q of the session is unknown, so every call is "+
			"denied; set a valid level", text.OneLine(o.Level, 40)), Levels...)
	}
	if slices.Contains(o.Disable, c.Tool.Name) {
		return Deny(ruleDisabled, fmt.Sprintf("%s is disabled in this session; enable it again to use it", c.Tool.Name))
	}
	if c.Flow.isWithoutMemory(c.Query) && slices.Contains(memoryReaders, c.Tool.Name) {
		return Deny(ruleClientMemory, "the client that asked may not use the user's memory; the user allows it with "+
			"conclave principal add --allow search_memory")
	}
	return Pass()
}

// hasGrant reports whether the user granted the tool to agents of the type for the session. A grant is "type:tool" with
// full names; wildcards and malformed grants grant nothing.
func hasGrant(grants []string, typ, tool string) bool {
	return typ != "" && tool != "" && slices.Contains(grants, typ+":"+tool)
}

// toolsOfType returns the tools of a type and those granted to it, sorted, in a new slice; nil for an unknown type.
// Malformed grants and those of other types are ignored.
func (m Manifest) toolsOfType(typ string, grants []string) []string {
	t, ok := m.Types[typ]
	if !ok {
		return nil
	}
	out := slices.Clone(t.Tools)
	for _, g := range grants {
		if of, tool, ok := strings.Cut(g, ":"); ok && of == typ && subjects.CheckToken(tool) == nil {
			out = append(out, tool)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// CheckGrant rejects a grant that is not "type:tool" or names an unknown type. The tool need not be served yet.
func (m Manifest) CheckGrant(grant string) error {
	typ, tool, ok := strings.Cut(grant, ":")
	if !ok || subjects.CheckToken(tool) != nil {
		return fmt.Errorf("%q is not a grant; write type:tool, like coder:web_fetch", text.OneLine(grant, 60))
	}
	if _, ok := m.Types[typ]; !ok {
		return fmt.Errorf("no agent type %q to grant %s to; types: %s", text.OneLine(typ, 60), tool,
			strings.Join(m.typeNames(), ", "))
	}
	return nil
}
