package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/text"
	"conclave/subjects"
)

// OverrideLayer refuses what the user took away for the session. It is the first to judge: what is disabled stays
// disabled under every level and every grant. What a level lifts is up to the layers that it concerns.
type OverrideLayer struct{}

// Name implements [Layer].
func (OverrideLayer) Name() string { return "override" }

// Rules of the override layer.
const (
	ruleDisabled     = "disabled"      // the user disabled the tool for the session
	ruleUnknownLevel = "unknown_level" // nobody knows what the session's level means
)

// Levels are those that an override may have. Nothing said is the first.
var Levels = []string{subjects.OverrideNone, subjects.OverrideRelax, subjects.OverrideAll}

// Judge implements [Layer].
func (OverrideLayer) Judge(_ context.Context, c Call) Verdict {
	o := c.Override
	if o.Level != "" && !slices.Contains(Levels, o.Level) {
		return Deny(ruleUnknownLevel, fmt.Sprintf("the session's override %q is not known, so nothing may run; set it anew", text.OneLine(o.Level, 40)), Levels...)
	}
	if slices.Contains(o.Disable, c.Tool.Name) {
		return Deny(ruleDisabled, fmt.Sprintf("%s is disabled in this session; enable it again to use it", c.Tool.Name))
	}
	return Pass()
}

// hasGrant reports whether the user gave the tool to agents of the type, for the session. A grant is "type:tool", whole
// names: anything else grants nothing.
func hasGrant(grants []string, typ, tool string) bool {
	return typ != "" && tool != "" && slices.Contains(grants, typ+":"+tool)
}

// toolsOfType are the tools of a type, with those granted to it, in order of name.
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

// CheckGrant reports what is wrong with a grant that the user wants to give.
func (m Manifest) CheckGrant(grant string) error {
	typ, tool, ok := strings.Cut(grant, ":")
	if !ok || subjects.CheckToken(tool) != nil {
		return fmt.Errorf("%q is not a grant; write type:tool, like coder:web_fetch", text.OneLine(grant, 60))
	}
	if _, ok := m.Types[typ]; !ok {
		return fmt.Errorf("there is no agent type %q to grant %s to; types: %s", text.OneLine(typ, 60), tool, strings.Join(m.typeNames(), ", "))
	}
	return nil
}
