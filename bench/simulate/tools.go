package main

import (
	_ "embed" // the shipped declarations
	"encoding/json"
	"fmt"

	"conclave/pkg/file"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
)

// Tools are the facts of tools by name. A tool that is missing has every effect and no declared act.
type Tools map[string]policy.Tool

// declarations are the acts and roles of the tools of the published suites.
//
//go:embed declarations.yaml
var declarations []byte

// effectLabels maps the labels of an effects file to effects.
var effectLabels = map[string]policy.Effect{
	"egress": policy.Egress, "egress_url": policy.Fetch, "search": policy.Egress, "mutate": policy.Mutate,
	"destroy": policy.Destroy, "money": policy.Spend,
	"auth": policy.Authenticate, "physical": policy.Physical, "exec": policy.Exec,
}

// ReadEffects reads a JSON file with the effects of tools: {"tools": {"<name>": {"reads": ..., "result_trust": ...,
// "effects": [...]}}}. A result_trust other than "trusted" reads untrusted content, and reads "private" reads private
// data. It may also have act, args, about, ids and people as in [ReadDeclarations]. It rejects unknown effects; unknown
// fields are ignored.
func ReadEffects(path string) (Tools, error) {
	data, err := file.Read(path, strict.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("reading tool effects: %w", err)
	}
	var f struct {
		Tools map[string]struct {
			Reads   string            `json:"reads"`
			Trust   string            `json:"result_trust"`
			Effects []string          `json:"effects"`
			Act     string            `json:"act"`
			Args    map[string]string `json:"args"`
			About   []string          `json:"about"`
			IDs     []string          `json:"ids"`
			People  []string          `json:"people"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	out := Tools{}
	for name, t := range f.Tools {
		var all []policy.Effect
		if t.Reads == "private" {
			all = append(all, policy.ReadsPrivate)
		}
		if t.Trust != "trusted" {
			all = append(all, policy.ReadsUntrusted)
		}
		for _, e := range t.Effects {
			effect, ok := effectLabels[e]
			if !ok {
				return nil, fmt.Errorf("%s: tool %s: unknown effect %q", path, name, e)
			}
			all = append(all, effect)
		}
		tool := policy.Tool{Name: name, Zone: zone, Known: true}
		if t.Act != "" {
			if tool, err = (policy.ToolFacts{Act: t.Act, Args: t.Args, About: t.About, IDs: t.IDs, People: t.People}).
				Tool(name, zone); err != nil {
				return nil, fmt.Errorf("%s: tool %s: %w", path, name, err)
			}
		}
		tool.Effects = policy.Declare(all...)
		out[name] = tool
	}
	return out, nil
}

// ReadDeclarations reads acts and roles of tools from a YAML file with the section tools of a manifest; "" is the
// shipped file for the published suites. It rejects unknown fields, acts and roles.
func ReadDeclarations(path string) (Tools, error) {
	data, name := declarations, "declarations.yaml"
	if path != "" {
		var err error
		if data, err = file.Read(path, strict.MaxFile); err != nil {
			return nil, fmt.Errorf("reading tool declarations: %w", err)
		}
		name = path
	}
	return decodeDeclarations(data, name)
}

// decodeDeclarations is [ReadDeclarations] for the content of a file; name is used in errors.
func decodeDeclarations(data []byte, name string) (Tools, error) {
	var f struct {
		Tools map[string]policy.ToolFacts `yaml:"tools"`
	}
	if _, err := strict.Decode(data, name, &f); err != nil {
		return nil, err
	}
	out := Tools{}
	for tool, facts := range f.Tools {
		t, err := facts.Tool(tool, zone)
		if err != nil {
			return nil, fmt.Errorf("%s: tool %s: %w", name, tool, err)
		}
		out[tool] = t
	}
	return out, nil
}

// With returns the effects in t with the acts and roles in declared. A tool without effects has those of its
// declaration.
func (t Tools) With(declared Tools) Tools {
	out := Tools{}
	for name, d := range declared {
		if e, ok := t[name]; ok {
			d.Effects = e.Effects
		}
		out[name] = d
	}
	for name, e := range t {
		if d, ok := out[name]; !ok || e.Act != "" && d.Act == "" {
			out[name] = e
		}
	}
	return out
}

// hasSideEffect reports whether a tool does anything but read; fetching counts, storing in memory does not. A tool that
// is not in t does.
func (t Tools) hasSideEffect(tool string) bool {
	facts := t[tool]
	for _, effect := range []policy.Effect{
		policy.Egress, policy.Fetch, policy.Mutate, policy.Destroy, policy.Exec,
		policy.Spend, policy.Authenticate, policy.Physical,
	} {
		if facts.Has(effect) {
			return true
		}
	}
	return false
}

// readsData reports whether a tool's result holds data that was not in its arguments.
func (t Tools) readsData(tool string) bool {
	return !t.hasSideEffect(tool) || t[tool].Has(policy.Fetch) || t[tool].Args.With(policy.RoleQuery) != ""
}
