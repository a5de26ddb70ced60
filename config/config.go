// Package config has the shipped configuration, overlays it with the user's files and flags, records the origin of each
// value, and composes the actors from it. It decodes strictly: an unknown field is an error with file and line.
package config

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"conclave/actors/committee"
	"conclave/actors/critic"
	"conclave/actors/gateway"
	"conclave/actors/generator"
	"conclave/actors/mcp"
	"conclave/actors/memory"
	"conclave/actors/model"
	"conclave/actors/orchestrator"
	"conclave/actors/secrets"
	"conclave/actors/tools"
	"conclave/pkg/file"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

//go:embed critic.yaml generator.yaml manifest.yaml mcp.yaml memory.yaml models.yaml orchestrator.yaml
//go:embed personas.yaml secrets.yaml system.yaml tools.yaml web_fetch.yaml web_search.yaml
var shipped embed.FS

// Files are the file names that a config folder may contain.
var Files = []string{
	"critic.yaml", "generator.yaml", "manifest.yaml", "mcp.yaml", "memory.yaml", "models.yaml",
	"orchestrator.yaml", "personas.yaml", "secrets.yaml", "system.yaml", "tools.yaml", "web_fetch.yaml",
	"web_search.yaml",
}

// Origins of values that are not from a file.
const (
	Shipped = "shipped"
	Flag    = "flag"
)

// Config is the complete configuration. The zero value is not usable; [Load] returns one.
type Config struct {
	System    System
	Models    model.Config
	Generator Generator
	WebSearch tools.WebSearch
	WebFetch  tools.WebFetch
	Workspace tools.Workspace
	Secrets   secrets.Config
	Memory    memory.Config
	Critic    critic.Config
	Personas  Personas

	Orchestrator orchestrator.Config
	MCP          mcp.Config

	Manifest policy.Manifest

	wiring   Wiring
	origins  map[string]string // by path such as "system.listen"; missing = shipped
	manifest string            // file of the manifest, "" = shipped
	mcpFile  []byte            // the user's mcp.yaml that MCP was read from, nil = none
	edited   map[string][]byte // files of the user's folder with a change that is not written yet, by name
}

// section is a part of the configuration with a file of its own, which overlays the shipped one field by field. Its
// name is the file name and the first element of its paths.
type section struct {
	name  string
	value interface{ Problems() strict.Problems } // a pointer into the Config
}

// sections returns pointers to all sections of c, in the order of [Config.Explain]. The manifest is not among them.
func (c *Config) sections() []section {
	return []section{
		{"system", &c.System},
		{"generator", &c.Generator},
		{"web_search", &c.WebSearch},
		{"web_fetch", &c.WebFetch},
		{"tools", &c.Workspace},
		{"secrets", &c.Secrets},
		{"memory", &c.Memory},
		{"critic", &c.Critic},
		{"personas", &c.Personas},
		{"orchestrator", &c.Orchestrator},
		{"mcp", &c.MCP},
		{"models", &c.Models},
	}
}

// Load returns the shipped configuration overlaid with the files of dir: sections field by field, manifest.yaml as a
// whole, because a policy must be readable in one place. A missing folder or file is fine, and so is dir "". A YAML
// file with an unknown name is rejected, because it is most likely misspelled, and so is what [readFile] rejects.
func Load(dir string) (Config, error) {
	var c Config
	if err := c.load(dir); err != nil {
		return Config{}, err
	}
	return c, nil
}

// load is [Load] into c, with c.edited in place of the files of dir. After an error c must not be used.
func (c *Config) load(dir string) error {
	c.origins = map[string]string{}
	c.System.Gateway, c.Generator.Config = gateway.Defaults(), generator.Defaults()
	c.Critic, c.Orchestrator, c.Personas.Config = critic.Defaults(), orchestrator.Defaults(), committee.Defaults()
	if err := c.loadFolder("", shipped); err != nil {
		return err
	}
	if dir == "" {
		return nil
	}
	var folder fs.FS = os.DirFS(dir)
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist) && len(c.edited) == 0:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		folder = embed.FS{} // an empty one
	case err != nil:
		return fmt.Errorf("reading the configuration: %w", err)
	case !info.IsDir():
		return fmt.Errorf("reading the configuration: %s is not a folder", dir)
	}
	return c.loadFolder(dir, folder)
}

// readFile is the function of the same name, with the files of c.edited in place of the user's.
func (c *Config) readFile(dir, name string) ([]byte, bool, error) {
	if data, ok := c.edited[name]; ok && dir != "" {
		return data, true, nil
	}
	return readFile(dir, name)
}

// Overlay overlays c with the files of dir, as [Load] does with the user's config folder. dir must exist. After an
// error c must not be used.
func (c *Config) Overlay(dir string) error { return c.loadFolder(dir, os.DirFS(dir)) }

// loadFolder overlays c with the files of one folder and validates it. dir is "" for the shipped files. It rejects
// unknown files, unknown fields and invalid values. After an error c may be changed in part.
func (c *Config) loadFolder(dir string, folder fs.FS) error {
	if err := rejectUnknownFiles(dir, folder); err != nil {
		return err
	}
	for _, s := range c.sections() {
		if err := c.loadSection(dir, s); err != nil {
			return err
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	data, ok, err := c.readFile(dir, "manifest.yaml")
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	if ok {
		file := filepath.Join(dir, "manifest.yaml")
		if c.Manifest, err = policy.ParseManifest(data, file); err != nil {
			return explainRenamed("manifest", err)
		}
		if dir != "" {
			c.manifest = file
			var all map[string]any
			if lines, err := strict.Decode(data, file, &all); err == nil { // ParseManifest has validated it
				c.recordOrigins(dir, "manifest", file, lines)
			}
		}
	}
	return nil
}

// loadSection overlays one section with its file and records the origins of the values. A missing file changes nothing.
// The result is not validated.
func (c *Config) loadSection(dir string, s section) error {
	data, ok, err := c.readFile(dir, s.name+".yaml")
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	if !ok {
		return nil
	}
	file := filepath.Join(dir, s.name+".yaml")
	var lines strict.Lines
	if m, ok := s.value.(*model.Config); ok {
		lines, err = overlayModels(m, data, file)
	} else {
		lines, err = strict.Decode(data, file, s.value)
	}
	if err != nil {
		return explainRenamed(s.name, err)
	}
	if s.name == "mcp" && dir != "" {
		c.mcpFile = data
	}
	c.recordOrigins(dir, s.name, file, lines)
	return nil
}

// recordOrigins records file and line of the values in a user's file. Shipped files (dir "") are not recorded.
func (c *Config) recordOrigins(dir, section, file string, lines strict.Lines) {
	if dir == "" {
		return
	}
	for path, line := range lines {
		c.origins[section+"."+path] = fmt.Sprintf("%s:%d", file, line)
	}
}

// rejectUnknownFiles rejects .yaml and .yml files with an unknown name, except hidden ones. dir is only part of the
// error.
func rejectUnknownFiles(dir string, folder fs.FS) error {
	entries, err := fs.ReadDir(folder, ".")
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		ext := strings.ToLower(filepath.Ext(name))
		if (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".") && !slices.Contains(Files, name) {
			return &strict.Error{File: filepath.Join(dir, name), Text: "unknown configuration file; known: " +
				strings.Join(Files, ", ")}
		}
	}
	return nil
}

// readFile returns the content of a file of the folder dir, and false when there is no entry of that name. dir "" is
// the shipped files. It rejects a symbolic link without a target, which is no missing file, and everything but a
// regular file: reading a FIFO or a device could block for ever. Of a file that is too large it returns one byte more
// than [strict.MaxFile], which the decoder rejects.
func readFile(dir, name string) ([]byte, bool, error) {
	if dir == "" {
		data, err := shipped.ReadFile(name)
		return data, err == nil, err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	f, err := file.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("%s is a symbolic link to a file that does not exist", path)
	case err != nil:
		return nil, false, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, strict.MaxFile+1))
	return data, err == nil, err
}

// Apply sets fields from flags, by path such as "system.listen", and validates the result. It rejects unknown fields
// and those of the manifest and the models, except models.roles.assistant. On an error c is unchanged.
func (c *Config) Apply(flags map[string]string) error {
	next := *c
	next.origins = maps.Clone(c.origins)
	var errs []error
	for _, path := range strict.SortedKeys(flags) {
		name, field, _ := strings.Cut(path, ".")
		if path == "models.roles.assistant" { // the only setting of the models with a flag
			next.Models.Roles = mergeMaps(next.Models.Roles, map[string]string{subjects.RoleAssistant: flags[path]})
			next.origins[path] = Flag
			continue
		}
		i := slices.IndexFunc(next.sections(), func(s section) bool { return s.name == name })
		if i < 0 || name == "models" {
			errs = append(errs, &strict.Error{File: Flag, Path: path, Text: "cannot be set by a flag"})
			continue
		}
		if err := strict.Assign(next.sections()[i].value, field, flags[path], Flag); err != nil {
			errs = append(errs, err)
		}
		next.origins[path] = Flag
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := next.Validate(); err != nil {
		return err
	}
	*c = next
	return nil
}

// Validate returns all errors of the sections of c joined, each with the origin of the value, nil when there are none.
// The manifest is validated when it is parsed.
func (c Config) Validate() error {
	var errs []error
	for _, s := range c.sections() {
		for _, p := range s.value.Problems() {
			errs = append(errs, fmt.Errorf("%s: %w", c.findOrigin(s.name, p.Path), p))
		}
	}
	return errors.Join(errs...)
}

// findOrigin returns the origin of a field with an error, or of the nearest field around it.
func (c Config) findOrigin(section, path string) string {
	for {
		if from, ok := c.origins[section+"."+path]; ok || path == "" {
			return cmp.Or(from, Shipped)
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// Origin returns the origin of the value at path: [Shipped], [Flag], or file:line. Paths look like "system.listen",
// "system.backup.every" and "manifest.types.coder.tools". It is [Shipped] also for a path that does not exist.
func (c Config) Origin(path string) string {
	if from, ok := c.origins[path]; ok {
		return from
	}
	// Types and accounts are all from the user's manifest when there is one, perhaps by a pattern such as fs_*. Its
	// other sections may be missing and are then the shipped ones.
	field, _ := strings.CutPrefix(path, "manifest.")
	if first, _, _ := strings.Cut(field, "."); c.manifest != "" && field != path &&
		(first == "types" || first == "accounts") {
		return fmt.Sprintf("%s:%d", c.manifest, c.Manifest.LineOf(field))
	}
	return Shipped
}

// Setting is one value and its origin.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// Explain lists every setting with its value and origin, in the order of the files. Empty lists of a manifest type are
// left out.
func (c Config) Explain() (out []Setting) {
	for _, f := range c.settingFields() {
		out = append(out, Setting{Key: f.Path, Value: f.Value, Origin: c.Origin(f.Path)})
	}
	return out
}

// listManifestSettings calls add for every setting of the manifest, without empty lists of a type.
func (c Config) listManifestSettings(add func(key, value string)) {
	list := func(key string, values []string) {
		if len(values) > 0 {
			add(key, strings.Join(values, ", "))
		}
	}
	for _, typ := range strict.SortedKeys(c.Manifest.Types) {
		t, key := c.Manifest.Types[typ], "manifest.types."+typ
		list(key+".tools", t.Tools)
		list(key+".delegable", t.Delegable)
		list(key+".can_spawn", t.CanSpawn)
		for _, tool := range strict.SortedKeys(t.Paths) {
			list(key+".paths."+tool, t.Paths[tool])
		}
		add(key+".inherit_constraints", fmt.Sprint(!t.Unbound))
	}
	for _, account := range strict.SortedKeys(c.Manifest.Accounts) {
		add("manifest.accounts."+account, c.Manifest.Accounts[account])
	}
	c.listManifestRules(add)
}

// listManifestRules calls add for the rules of the manifest beside types and accounts. Empty lists are included,
// because an empty allow list or always_ask is a fact that a user looks for. A budget that is not set is no limit and
// left out.
func (c Config) listManifestRules(add func(key, value string)) {
	m := c.Manifest
	add("manifest.high_risk", strings.Join(m.HighRisk, ", "))
	add("manifest.always_ask", strings.Join(m.AlwaysAsk, ", "))
	add("manifest.egress.fetch.allow", strings.Join(m.Egress.Fetch.Allow, ", "))
	add("manifest.egress.fetch.deny", strings.Join(m.Egress.Fetch.Deny, ", "))
	add("manifest.limits.same", fmt.Sprint(m.Limits.Identical))
	add("manifest.limits.window", strict.FormatDuration(m.Limits.Window))
	add("manifest.limits.calls", fmt.Sprint(m.Limits.Calls))
	add("manifest.limits.spawns", fmt.Sprint(m.Limits.Spawns))
	add("manifest.limits.depth", fmt.Sprint(m.Limits.Depth))
	for _, typ := range strict.SortedKeys(m.Limits.Budgets) {
		b, key := m.Limits.Budgets[typ], "manifest.limits.budgets."+typ
		for _, f := range []struct {
			name  string
			given bool
			value any
		}{
			{"calls", b.Calls > 0, b.Calls},
			{"seconds", b.Seconds > 0, b.Seconds},
			{"bytes", b.Bytes > 0, strict.Size(b.Bytes)},
		} {
			if f.given { // a missing value is no limit
				add(key+"."+f.name, fmt.Sprint(f.value))
			}
		}
	}
	add("manifest.approvals.expires", strict.FormatDuration(m.Approvals.Expires))
	var watched []string
	for _, layer := range strict.SortedKeys(m.Monitored) {
		for _, rule := range m.Monitored[layer] {
			watched = append(watched, layer+"."+rule)
		}
	}
	add("manifest.reversible", m.Reversible())
	add("manifest.monitor_only", strings.Join(watched, ", "))
}
