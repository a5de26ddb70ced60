package policy

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Manifest is the static policy: what each type of agent may use, which account is of which type, and what the layers
// go by. The zero value gives nothing to anybody.
type Manifest struct {
	Types     map[string]AgentType
	Accounts  map[string]string // account -> type
	HighRisk  []string          // tools that ask the user, unless the session is relaxed
	AlwaysAsk []string          // tools that ask the user in a relaxed session too
	Egress    Reach
	Limits    Limits
	Approvals Approvals
	Monitored map[string][]string // layer -> rules that are watched and not enforced, see [monitorRules]

	lines strict.Lines
}

// AgentType is what agents of one type may do. Globs are already expanded.
type AgentType struct {
	Tools     []string            // may use, in order of name
	Delegable []string            // may pass on to a child without using them itself
	CanSpawn  []string            // types of children
	Paths     map[string][]string // file tool -> folders, each ending in "/"; a tool without an entry reaches no folder
	Unbound   bool                // inherit_constraints: false. The zero value inherits: a child never has more than its parent
}

// TypeOf is the type of a caller that is an account itself. It knows nothing of spawned agents: their type stands in
// the spawn registry, and must not be taken from the account above them.
func (m Manifest) TypeOf(c subjects.Caller) (string, bool) {
	if len(c.Path) > 0 {
		return "", false
	}
	typ, ok := m.Accounts[c.Account]
	return typ, ok
}

// HasTool reports whether the manifest gives the tool to agents of type typ. Names are compared as they are: no case folding,
// no globs.
func (m Manifest) HasTool(typ, tool string) bool {
	return slices.Contains(m.Types[typ].Tools, tool)
}

// UnservedTools lists the tools that the manifest names and no account of this machine serves. They are not errors, because
// tools may appear later, but a misspelled name is found here.
func (m Manifest) UnservedTools() []string {
	var out []string
	named := slices.Concat(m.HighRisk, m.AlwaysAsk) // one that is misspelled here never asks
	for _, t := range m.Types {
		named = slices.Concat(named, t.Tools, t.Delegable)
	}
	for _, tool := range named {
		if subjects.ZoneOf(tool) == "" {
			out = append(out, tool)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// LineOf is the line of the file on which a field stands, like "types.coder.tools"; 0 when the manifest has no file.
func (m Manifest) LineOf(field string) int { return m.lines.At(field) }

// ManifestLayer refuses tools that are not in the set of the caller's type. What the user grants the type for the
// session is in the set too. Under ALL an account itself may use every tool; an agent that was spawned may not, because
// the user did not choose it.
type ManifestLayer struct{ Manifest Manifest }

// Name implements [Layer].
func (ManifestLayer) Name() string { return "manifest" }

// Rules of the manifest layer.
const (
	ruleUnknownAccount = "unknown_account" // the account has no type
	ruleUnknownType    = "unknown_type"    // the manifest has no such type
	ruleWrongType      = "wrong_type"      // the call claims another type than its account has
	ruleNotInSet       = "not_in_set"      // the type may not use the tool
)

// Judge implements [Layer].
func (l ManifestLayer) Judge(_ context.Context, c Call) Verdict {
	m := l.Manifest
	root, ok := m.Accounts[c.Caller.Account]
	if !ok {
		return Deny(ruleUnknownAccount, fmt.Sprintf("the manifest gives account %q no agent type, so it may use no tool", c.Caller.Account))
	}
	if len(c.Caller.Path) == 0 && c.Type != root {
		return Deny(ruleWrongType, fmt.Sprintf("account %q is of type %q, and the call says %q", c.Caller.Account, root, c.Type))
	}
	if len(c.Caller.Path) > 0 && c.Type == "" {
		return Deny(RuleUnregistered, "no agent "+c.Caller.ID()+" was spawned in this session; call as "+c.Caller.Account)
	}
	t, ok := m.Types[c.Type]
	if !ok {
		return Deny(ruleUnknownType, fmt.Sprintf("the manifest has no agent type %q, so it may use no tool", c.Type))
	}
	if c.hasFullOverride() {
		return Pass()
	}
	if !slices.Contains(t.Tools, c.Tool.Name) && !hasGrant(c.Override.Grant, c.Type, c.Tool.Name) {
		return Deny(ruleNotInSet, fmt.Sprintf("the manifest does not give %q to agents of type %q", c.Tool.Name, c.Type), m.toolsOfType(c.Type, c.Override.Grant)...)
	}
	return Pass()
}

// manifestFile is the manifest as it is written.
type manifestFile struct {
	Types     map[string]typeFile `yaml:"types"`
	Accounts  map[string]string   `yaml:"accounts"`
	HighRisk  []string            `yaml:"high_risk"`
	AlwaysAsk []string            `yaml:"always_ask"`
	Egress    egressFile          `yaml:"egress"`
	Limits    limitsFile          `yaml:"limits"`
	Approvals approvalsFile       `yaml:"approvals"`
	Monitored []string            `yaml:"monitor_only"`
}

type typeFile struct {
	Tools     []string            `yaml:"tools"`
	Delegable []string            `yaml:"delegable"`
	CanSpawn  []string            `yaml:"can_spawn"`
	Paths     map[string][]string `yaml:"paths"`
	Inherit   *bool               `yaml:"inherit_constraints"` // nil = true
}

// ParseManifest reads a manifest strictly and reports everything wrong with it, each as file:line. name stands for the
// file in errors.
func ParseManifest(data []byte, name string) (Manifest, error) {
	f := defaultManifestFile() // a section that the file leaves out is as shipped
	lines, err := strict.Decode(data, name, &f)
	if err != nil {
		return Manifest{}, err
	}
	p := &manifestParser{file: name, lines: lines}
	m := Manifest{Types: map[string]AgentType{}, Accounts: map[string]string{}, lines: lines}
	if len(f.Types) == 0 {
		p.fail("types", "no agent types; without one nothing may be called")
	}
	for _, typ := range strict.SortedKeys(f.Types) {
		at := strict.JoinPath("types", typ)
		if err := subjects.CheckToken(typ); err != nil {
			p.fail(at, "the name of the type: %v", err)
			continue
		}
		m.Types[typ] = p.parseAgentType(at, f.Types[typ], f.Types)
	}
	for _, account := range strict.SortedKeys(f.Accounts) {
		at, typ := strict.JoinPath("accounts", account), f.Accounts[account]
		if !slices.Contains(subjects.Agents, account) {
			p.fail(at, "no such account; accounts that call tools: %s", strings.Join(subjects.Agents, ", "))
		}
		if _, ok := f.Types[typ]; !ok {
			p.fail(at, "no agent type %q; types: %s", typ, strings.Join(strict.SortedKeys(f.Types), ", "))
		}
		m.Accounts[account] = typ
	}
	p.rejectSpawnCycles(f.Types)
	p.parseSections(f, &m)
	if len(p.errs) > 0 {
		return Manifest{}, errors.Join(p.errs...)
	}
	return m, nil
}

// manifestParser checks what the fields mean, and collects what is wrong.
type manifestParser struct {
	file  string
	lines strict.Lines
	errs  []error
}

func (p *manifestParser) fail(at, format string, a ...any) {
	p.errs = append(p.errs, &strict.Error{File: p.file, Line: p.lines.At(at), Path: at, Text: fmt.Sprintf(format, a...)})
}

func (p *manifestParser) parseAgentType(at string, f typeFile, types map[string]typeFile) AgentType {
	t := AgentType{
		Tools:     p.parseTools(at+".tools", f.Tools),
		Delegable: p.parseTools(at+".delegable", f.Delegable),
		CanSpawn:  slices.Sorted(slices.Values(f.CanSpawn)),
		Paths:     map[string][]string{},
		Unbound:   f.Inherit != nil && !*f.Inherit,
	}
	if len(f.Tools)+len(f.Delegable)+len(f.CanSpawn) == 0 {
		p.fail(at, "the type may do nothing; give it tools or leave it out")
	}
	for i, child := range f.CanSpawn {
		item := fmt.Sprintf("%s.can_spawn[%d]", at, i)
		if _, ok := types[child]; !ok {
			p.fail(item, "no agent type %q; types: %s", child, strings.Join(strict.SortedKeys(types), ", "))
		}
		if slices.Index(f.CanSpawn, child) < i {
			p.fail(item, "%s is listed twice", child)
		}
	}
	for _, key := range strict.SortedKeys(f.Paths) {
		field := strict.JoinPath(at+".paths", key)
		folders := p.parseFolders(field, f.Paths[key])
		for _, tool := range p.expandTool(field, key) {
			switch _, twice := t.Paths[tool]; {
			case !slices.Contains(t.Tools, tool) && !slices.Contains(t.Delegable, tool):
				p.fail(field, "folders for %s, which the type neither uses nor passes on", tool)
			case twice:
				p.fail(field, "%s has folders already by another line; write each tool once", tool)
			default:
				t.Paths[tool] = folders
			}
		}
	}
	return t
}

// parseTools reads a list of names and globs into names in order.
func (p *manifestParser) parseTools(at string, names []string) []string {
	var out []string
	for i, name := range names {
		item := fmt.Sprintf("%s[%d]", at, i)
		if slices.Index(names, name) < i {
			p.fail(item, "%q is listed twice", name)
			continue
		}
		out = append(out, p.expandTool(item, name)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// expandTool checks one name, or expands a glob like fs_*. A name need not be served by anyone yet; a glob must match,
// because it stands for what is known when the manifest is read.
func (p *manifestParser) expandTool(at, name string) []string {
	prefix, glob := strings.CutSuffix(name, "*")
	if err := subjects.CheckToken(prefix); err != nil {
		p.fail(at, "%q is neither the name of a tool nor a prefix like fs_*", name)
		return nil
	}
	if !glob {
		return []string{name}
	}
	var out []string
	for _, tool := range servedTools() {
		if strings.HasPrefix(tool, prefix) {
			out = append(out, tool)
		}
	}
	if out == nil {
		p.fail(at, "%s matches no tool; tools: %s", name, strings.Join(servedTools(), ", "))
	}
	return out
}

// parseFolders checks what file tools may reach. The final slash is asked for because /etc/managed without it would also
// seem to mean /etc/managed-by-others.
func (p *manifestParser) parseFolders(at string, in []string) []string {
	for i, f := range in {
		item := fmt.Sprintf("%s[%d]", at, i)
		rest := strings.TrimPrefix(f, "~")
		switch {
		case !strings.HasPrefix(rest, "/"), !strings.HasSuffix(f, "/"):
			p.fail(item, "%q is not a folder; write it from / or ~/ and end it with /", f)
		case rest != "/" && path.Clean(rest)+"/" != rest, strings.ContainsAny(f, "\x00\n*?["):
			p.fail(item, "%q is not a plain folder; leave out .., //, and wildcards", f)
		}
	}
	return slices.Clone(in)
}

// servedTools lists the tools that the table of edges names, in order.
func servedTools() []string {
	var out []string
	for _, tools := range subjects.Zones {
		out = append(out, tools...)
	}
	slices.Sort(out)
	return out
}
