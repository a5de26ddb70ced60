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

// Manifest is the static policy: the tools of each agent type, the type of each account, and the settings of the
// layers. The zero value permits nothing.
type Manifest struct {
	Types     map[string]AgentType
	Accounts  map[string]string // account -> type
	HighRisk  []string          // tools that need approval unless the session is relaxed
	AlwaysAsk []string          // tools that need approval in a relaxed session too
	Egress    EgressRules
	Limits    Limits
	Approvals Approvals
	// AskReversible has a call that can be undone judged like any other
	AskReversible bool
	Monitored     map[string][]string // layer -> monitor-only rules, see [monitorRules]
	Tools         map[string]Tool     // facts about tools that are not part of the build, by name

	lines strict.Lines
}

// AgentType lists what agents of one type may do. Globs are already expanded.
type AgentType struct {
	Tools     []string // may use, sorted
	Delegable []string // may delegate to a child without using them itself
	CanSpawn  []string // types that it may spawn
	// file tool -> allowed folders, each ending in "/"; a tool without an entry may access none
	Paths map[string][]string
	// inherit_constraints: false, ancestors withhold nothing. The zero value inherits: a child never has more than its
	// parent
	Unbound bool
}

// TypeOf returns the type of a caller that is an account itself. It returns false for a spawned agent: its type is in
// the spawn registry and must not be derived from its account.
func (m Manifest) TypeOf(c subjects.Caller) (string, bool) {
	if len(c.Path) > 0 {
		return "", false
	}
	typ, ok := m.Accounts[c.Account]
	return typ, ok
}

// HasTool reports whether the manifest gives the tool to agents of type typ. Names match exactly: no case folding, no
// globs.
func (m Manifest) HasTool(typ, tool string) bool {
	return slices.Contains(m.Types[typ].Tools, tool)
}

// UnservedTools returns the tools that the manifest names and no account serves, sorted. They are not errors, because
// tools may be added later, but a warning about them reveals a misspelled name.
func (m Manifest) UnservedTools() []string {
	var out []string
	named := slices.Concat(m.HighRisk, m.AlwaysAsk) // a misspelled name here would never ask
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

// LineOf returns the line of a field such as "types.coder.tools" in the manifest file; 0 when it is unknown.
func (m Manifest) LineOf(field string) int { return m.lines.At(field) }

// ManifestLayer denies tools that are neither in the set of the caller's type nor granted to that type for the session.
// Under the override ALL an account itself may use every tool; a spawned agent may not, because the user did not choose
// it.
type ManifestLayer struct{ Manifest Manifest }

// Name implements [Layer].
func (ManifestLayer) Name() string { return "manifest" }

// Rules of the manifest layer.
const (
	ruleUnknownAccount = "unknown_account" // the account has no type
	ruleUnknownType    = "unknown_type"    // the manifest has no such type
	ruleWrongType      = "wrong_type"      // the call claims a type that its account does not have
	ruleNotInSet       = "not_in_set"      // the type may not use the tool
)

// Judge denies an account or type that the manifest does not list, a call that claims another type than its account's,
// a spawned agent without a registered type, and a tool that is neither in the type's set nor granted to it. A full
// override lifts only the last. It never asks.
func (l ManifestLayer) Judge(_ context.Context, c Call) Verdict {
	m := l.Manifest
	root, ok := m.Accounts[c.Caller.Account]
	if !ok {
		return Deny(ruleUnknownAccount,
			fmt.Sprintf("the manifest gives account %q no agent type, so it may use no tool", c.Caller.Account))
	}
	if len(c.Caller.Path) == 0 && c.Type != root {
		return Deny(ruleWrongType, fmt.Sprintf("account %q is of type %q, but the call claims type %q",
			c.Caller.Account, root, c.Type))
	}
	if len(c.Caller.Path) > 0 && c.Type == "" {
		return Deny(RuleUnregistered, "no agent "+c.Caller.ID()+" was spawned in this session; call as "+
			c.Caller.Account)
	}
	t, ok := m.Types[c.Type]
	if !ok {
		return Deny(ruleUnknownType, fmt.Sprintf("the manifest has no agent type %q, so it may use no tool", c.Type))
	}
	if c.HasFullOverride() {
		return Pass()
	}
	if !slices.Contains(t.Tools, c.Tool.Name) && !hasGrant(c.Override.Grant, c.Type, c.Tool.Name) {
		return Deny(ruleNotInSet, fmt.Sprintf("the manifest does not give %q to agents of type %q", c.Tool.Name,
			c.Type), m.toolsOfType(c.Type, c.Override.Grant)...)
	}
	return Pass()
}

// manifestFile is the YAML form of the manifest.
type manifestFile struct {
	Types     map[string]typeFile `yaml:"types"`
	Accounts  map[string]string   `yaml:"accounts"`
	HighRisk  []string            `yaml:"high_risk"`
	AlwaysAsk []string            `yaml:"always_ask"`
	Egress    egressFile          `yaml:"egress"`
	Limits    limitsFile          `yaml:"limits"`
	Approvals approvalsFile       `yaml:"approvals"`
	Monitored []string            `yaml:"monitor_only"`
	// Reversible is "pass" or "ask": whether a call that can be undone runs without a question.
	Reversible string `yaml:"reversible"`

	Tools map[string]ToolFacts `yaml:"tools"`
}

// typeFile is the YAML form of an [AgentType].
type typeFile struct {
	Tools     []string            `yaml:"tools"`
	Delegable []string            `yaml:"delegable"`
	CanSpawn  []string            `yaml:"can_spawn"`
	Paths     map[string][]string `yaml:"paths"`
	Inherit   *bool               `yaml:"inherit_constraints"` // nil = true
}

// ParseManifest parses and validates a manifest. It rejects unknown fields, a manifest without types, unknown accounts,
// types and rules, types that could spawn themselves, and values out of range. It reports all errors at once, each with
// file:line; name is the file name in them. A section that the file omits has its default.
func ParseManifest(data []byte, name string) (Manifest, error) {
	f := defaultManifestFile()
	lines, err := strict.Decode(data, name, &f)
	if err != nil {
		return Manifest{}, err
	}
	p := &manifestParser{file: name, lines: lines}
	m := Manifest{Types: map[string]AgentType{}, Accounts: map[string]string{}, lines: lines}
	if len(f.Types) == 0 {
		p.fail("types", "no agent types; without one every call is denied")
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

// manifestParser validates the decoded fields and collects the errors.
type manifestParser struct {
	file  string
	lines strict.Lines
	errs  []error
}

// fail records an error at the field with path at.
func (p *manifestParser) fail(at, format string, a ...any) {
	p.errs = append(p.errs, &strict.Error{
		File: p.file, Line: p.lines.At(at), Path: at,
		Text: fmt.Sprintf(format, a...),
	})
}

// parseAgentType validates one type; at is its field path, types are all types of the file. It rejects an empty type,
// unknown or repeated child types, and folders for tools that the type neither uses nor may delegate.
func (p *manifestParser) parseAgentType(at string, f typeFile, types map[string]typeFile) AgentType {
	t := AgentType{
		Tools:     p.parseTools(at+".tools", f.Tools),
		Delegable: p.parseTools(at+".delegable", f.Delegable),
		CanSpawn:  slices.Sorted(slices.Values(f.CanSpawn)),
		Paths:     map[string][]string{},
		Unbound:   f.Inherit != nil && !*f.Inherit,
	}
	if len(f.Tools)+len(f.Delegable)+len(f.CanSpawn) == 0 {
		p.fail(at, "the type may do nothing; give it tools or remove it")
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
				p.fail(field, "folders for %s, which the type neither uses nor may delegate", tool)
			case twice:
				p.fail(field, "%s has folders already in another entry; list each tool once", tool)
			default:
				t.Paths[tool] = folders
			}
		}
	}
	return t
}

// parseTools expands a list of names and globs into sorted, distinct names; at is the list's field path. It reports
// repeated entries and those that [manifestParser.expandTool] rejects, and leaves them out.
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

// expandTool validates one tool name, or expands a glob like fs_*. A name need not be served yet; a glob must match a
// served tool, because it is expanded when the manifest is parsed. It rejects "*" alone. nil means that an error was
// reported.
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

// parseFolders validates the folders of a file tool and returns a copy, also after an error. It rejects relative
// folders, "..", wildcards and a missing final slash: /etc/managed without it would seem to include
// /etc/managed-by-others.
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

// servedTools returns the tools that accounts of the subjects table serve, sorted.
func servedTools() []string {
	var out []string
	for _, tools := range subjects.Zones {
		out = append(out, tools...)
	}
	slices.Sort(out)
	return out
}
