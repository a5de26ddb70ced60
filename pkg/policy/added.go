package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"conclave/subjects"
)

// AddedTool is a tool of a run-time principal, with what the user declared about it.
type AddedTool struct {
	Tool
	Types []string // agent types that may call it, besides those to which the manifest gives it
}

// operatorAccount is the account of the user's own calls, which may call every added tool.
const operatorAccount = "operator"

// ParseDeclaration returns the tool name of the account zone as declared. It rejects what [ToolFacts.Tool] rejects, and
// facts without an act. Without an act its effects are undeclared, so each call of an agent needs approval.
func ParseDeclaration(name, zone string, d subjects.ToolDeclaration) (AddedTool, error) {
	added := AddedTool{
		Tool:  Tool{Name: name, Zone: zone, Known: true, Foreign: true, AskEach: true},
		Types: slices.Clone(d.Agents),
	}
	if d.Act == "" {
		if d.Effects != nil || len(d.Args)+len(d.About)+len(d.IDs)+len(d.People) > 0 {
			return AddedTool{}, errors.New("effects and arguments are declared without an act; name the act, such as " +
				"read or send")
		}
		return added, nil
	}
	var err error
	added.Tool, err = ToolFacts{
		Act: d.Act, Effects: d.Effects, Args: d.Args, About: d.About, IDs: d.IDs,
		People: d.People,
	}.Tool(name, zone)
	return added, err
}

// ParseTools returns the tools of a run-time principal as declared; none for a principal of another kind. It returns
// the valid ones with an error that names the others, which are denied to everybody.
func ParseTools(p subjects.Principal) (tools []AddedTool, err error) {
	if p.Kind != subjects.ToolPrincipal {
		return nil, nil
	}
	for _, name := range p.Tools {
		tool, invalid := ParseDeclaration(name, p.Name, p.Declared[name])
		if invalid != nil {
			err = errors.Join(err, fmt.Errorf("the declaration about tool %s: %w", name, invalid))
			continue
		}
		tools = append(tools, tool)
	}
	return tools, err
}

// WithTools returns the manifest with added tools: their facts, unless the manifest has an entry about the tool, and
// the tool in the set of each of its types that the manifest has, and of the user's own calls. m is not changed.
func (m Manifest) WithTools(tools []AddedTool) Manifest {
	declared := m.Tools
	m.Tools, m.Types = maps.Clone(m.Tools), maps.Clone(m.Types)
	if m.Tools == nil {
		m.Tools = map[string]Tool{}
	}
	for _, t := range tools {
		if _, own := declared[t.Name]; !own {
			m.Tools[t.Name] = t.Tool
		}
		for _, typ := range append(slices.Clone(t.Types), m.Accounts[operatorAccount]) {
			of, ok := m.Types[typ]
			if !ok || slices.Contains(of.Tools, t.Name) {
				continue
			}
			of.Tools = append(slices.Clone(of.Tools), t.Name)
			slices.Sort(of.Tools)
			m.Types[typ] = of
		}
	}
	return m
}

// withTools returns the rules of the manifest with added tools, see [Manifest.WithTools]. r is not changed.
func (r Rules) withTools(tools []AddedTool) Rules {
	if len(tools) == 0 {
		return r
	}
	m := r.Manifest.WithTools(tools)
	chain := slices.Clone(r.Chain)
	for i, l := range chain { // the other layers do not read the tools of a type
		switch l.(type) {
		case ManifestLayer:
			chain[i] = ManifestLayer{Manifest: m}
		case LineageLayer:
			chain[i] = LineageLayer{Manifest: m}
		}
	}
	return Rules{Manifest: m, Chain: chain}
}
