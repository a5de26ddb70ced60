package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"conclave/actors/model"
	"conclave/actors/registry"
	"conclave/pkg/bus"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// When a change of a setting applies.
const (
	onRestart = "restart" // when conclave is started again
	live      = "live"    // at once: its actors are started again
)

// editable lists the settings that can be changed while the system runs, by path or by a group that ends in ".*", and
// when a change applies. The first match holds. A setting that is not listed can be changed in its file only. None of
// those listed widens what agents, tools or models may reach: addresses, credentials, other hosts, programs, folders
// and the manifest are not among them.
var editable = []struct{ path, applies string }{
	{"generator.respondent_b.enabled", onRestart},
	{"generator.steps", live},
	{"generator.tokens", live},
	{"generator.wall", live},
	{"generator.call_timeout", live},
	{"generator.first_token_timeout", live},
	{"generator.tool_timeout", live},
	{"generator.predict", live},
	{"generator.answer", live},
	{"generator.result", live},
	{"generator.nudges", live},
	{"generator.hedge.reask", live},
	{"generator.max_tools", live},
	{"generator.recall_first", live},
	{"generator.stream", live},
	{"generator.thinking", live},
	{"generator.turns", live},
	{"generator.compact_at", live},
	{"generator.concurrency", live},
	{"generator.grades.*", live},
	{"generator.respondent_b.*", live},
	{"critic.enabled", onRestart},
	{"critic.retry_at", live},
	{"memory.enabled", onRestart},
	{"memory.*", live},
	{"orchestrator.*", live},
	{"models.roles.*", live},
	{"models.defaults.*", live},
	{"models.demo_model", live},
	{"models.ollama.slots", live},
	{"models.ollama.ahead", live},
	{"models.ollama.queue", live},
	{"models.ollama.exclusive", live},
	{"models.ollama.batch", live},
	{"web_search.max_results", onRestart},
	{"web_search.timeout_seconds", onRestart},
	{"web_search.language", onRestart},
	{"web_search.safe", onRestart},
	{"web_fetch.max_chars", onRestart},
	{"web_fetch.timeout_seconds", onRestart},
	{"web_fetch.cache", onRestart},
	{"web_fetch.every", onRestart},
	{"system.log_level", onRestart},
	{"system.gateway.query_timeout", onRestart},
	{"system.gateway.grade_wait", onRestart},
}

// appliesAt returns when a change of the setting applies, "" when it cannot be changed here.
func appliesAt(path string) string {
	for _, e := range editable {
		group, ok := strings.CutSuffix(e.path, "*")
		if e.path == path || ok && strings.HasPrefix(path, group) {
			return e.applies
		}
	}
	return ""
}

// actorsOf returns the actors that are started again for a live setting of a section.
func actorsOf(section string) []string {
	switch section {
	case "generator":
		return []string{subjects.Generator, subjects.RespondentB}
	case "models":
		return []string{"model"}
	}
	return []string{section}
}

// actorOf returns the actor whose settings list a path belongs to.
func actorOf(path string) string {
	section, rest, _ := strings.Cut(path, ".")
	switch {
	case strings.HasPrefix(rest, "respondent_b."):
		return subjects.RespondentB
	case section == "models":
		return "model"
	case section == "personas":
		return subjects.Committee
	case section == "manifest", section == "system" && strings.HasPrefix(rest, "broker."):
		return "broker"
	case section == "system" && strings.HasPrefix(rest, "gateway."):
		return "gateway"
	}
	return section
}

// liveSettings are the settings of a running system. It implements [registry.Settings]. The configuration in force
// differs from the user's files by flags, and by changes that need a restart.
type liveSettings struct {
	home    bus.Home
	restart func(ctx context.Context, actor string) (found bool, err error)

	changing sync.Mutex
	inForce  atomic.Pointer[Config]
}

// newLiveSettings returns the settings of a system that runs with c. restart restarts the actors of a name of this
// process.
func newLiveSettings(c Config, home bus.Home, restart func(context.Context, string) (bool, error)) *liveSettings {
	s := &liveSettings{home: home, restart: restart}
	s.inForce.Store(&c)
	return s
}

// config returns the configuration in force.
func (s *liveSettings) config() Config { return *s.inForce.Load() }

// ListSettings implements [registry.Settings]. No setting is a secret: the loader accepts names of credentials only,
// and no address with a password.
func (s *liveSettings) ListSettings() (subjects.SettingList, error) {
	defaults, err := Load("")
	if err != nil {
		return subjects.SettingList{}, err
	}
	now := s.config()
	list := subjects.SettingList{Folder: s.home.Config}
	files, err := Load(s.home.Config)
	if err != nil {
		files, list.Error = now, err.Error()
	}
	shippedValues, fileValues := defaults.settingValues(), files.settingValues()
	texts := describeSettings()
	fields := now.settingFields()
	for _, role := range model.Roles {
		if _, ok := now.Models.Roles[role]; !ok {
			fields = append(fields, strict.Field{Path: "models.roles." + role, Type: "text"})
		}
	}
	for _, f := range fields {
		list.Settings = append(list.Settings, describeSetting(f, now, files, shippedValues[f.Path], fileValues[f.Path],
			texts))
	}
	return list, nil
}

// describeSetting returns one setting as the user sees it.
func describeSetting(f strict.Field, now, files Config, def, inFile string, texts map[string]string) subjects.Setting {
	out := subjects.Setting{
		Name: f.Path, Actor: actorOf(f.Path), Value: f.Value, Default: def, Type: f.Type, Origin: now.Origin(f.Path),
		Description: findText(texts, f.Path),
	}
	if inFile == f.Value && out.Origin != Flag {
		out.Origin = files.Origin(f.Path)
	} else if inFile != f.Value {
		out.Pending = inFile
	}
	applies := appliesAt(f.Path)
	out.Live, out.Editable = applies == live, applies != "" && f.Type != "list" && f.Type != "table"
	file, _, _ := strings.Cut(f.Path, ".")
	switch {
	case !out.Editable:
		out.Live, out.Locked = false, fmt.Sprintf("change it in %s.yaml of the config folder and restart conclave",
			file)
		if file == "manifest" {
			out.Locked = "the broker's rules are changed in manifest.yaml of the config folder only; the broker " +
				"reads it again within seconds"
		}
	case out.Origin == Flag:
		out.Editable, out.Locked = false,
			"a flag of this start sets it; start conclave without the flag to use the file"
	}
	return out
}

// findText returns the description of a path, or that of the group around it.
func findText(texts map[string]string, path string) string {
	for path != "" {
		if t := texts[path]; t != "" {
			return t
		}
		path = path[:max(0, strings.LastIndex(path, "."))]
	}
	return ""
}

// PrepareSetting implements [registry.Settings]: it validates a change by the loader that reads the files at a start.
func (s *liveSettings) PrepareSetting(name, value string) (func(ctx context.Context) (subjects.SettingChanged, error),
	error,
) {
	list, err := s.ListSettings()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Settings, func(x subjects.Setting) bool { return x.Name == name })
	switch {
	case i < 0:
		return nil, subjects.Faultf(subjects.CodeMalformed, "unknown setting; GET /settings lists them")
	case !list.Settings[i].Editable:
		return nil, subjects.Faultf(subjects.CodeDenied, "%s cannot be changed here: %s", name, list.Settings[i].Locked)
	case list.Error != "":
		return nil, subjects.Faultf(subjects.CodeMalformed, "the config folder has an error, correct it first: %s",
			list.Error)
	case isModelName(name) && strings.Contains(value, "/") && !s.namesModel(value):
		return nil, subjects.Faultf(subjects.CodeDenied, "%s cannot be set to a model of another machine or registry "+
			"here: name it in %s.yaml of the config folder and restart conclave", name, name[:strings.Index(name, ".")])
	}
	if _, err := s.prepareSetting(list.Settings[i], value); err != nil {
		return nil, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	if _, err := s.config().withValue(name, value); err != nil {
		return nil, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	setting := list.Settings[i]
	return func(ctx context.Context) (subjects.SettingChanged, error) {
		return s.changeSetting(ctx, setting, value)
	}, nil
}

// isModelName reports whether the value of a setting is the name of a model.
func isModelName(setting string) bool {
	return strings.HasPrefix(setting, "models.roles.") || strings.HasSuffix(setting, ".model")
}

// namesModel reports whether the user's files or the shipped ones name a model. A name with a slash can send every
// prompt to another machine, or run a model of an unknown publisher, so it comes from a file first.
func (s *liveSettings) namesModel(name string) bool {
	c, err := Load(s.home.Config)
	if err != nil {
		return false
	}
	_, listed := c.Models.Models[name]
	return listed || slices.Contains(slices.Collect(maps.Values(c.Models.Roles)), name) ||
		slices.Contains(slices.Collect(maps.Values(c.Models.Hints)), name)
}

// prepareSetting returns the edit of the file of a setting.
func (s *liveSettings) prepareSetting(x subjects.Setting, value string) (fileEdit, error) {
	section, field, _ := strings.Cut(x.Name, ".")
	return prepareEdit(s.home.Config, section+".yaml", func(data []byte, path string) ([]byte, error) {
		return strict.SetValue(data, path, strings.Split(field, "."), value, x.Type == "text")
	})
}

// changeSetting writes the file, and applies a live setting. When an actor does not start with the new value, the file
// and the actor are set back.
func (s *liveSettings) changeSetting(ctx context.Context, x subjects.Setting, value string) (subjects.SettingChanged,
	error,
) {
	s.changing.Lock()
	defer s.changing.Unlock()
	var none subjects.SettingChanged
	unlock, err := lockConfig(s.home.Config) // also over an undo, which writes the whole file
	if err != nil {
		return none, subjects.Faultf(subjects.CodeUnavailable, "the setting could not be written: %v", err)
	}
	defer unlock()
	edit, err := s.prepareSetting(x, value) // again: the file may have changed
	if err != nil {
		return none, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	if err := edit.write(); err != nil {
		return none, subjects.Faultf(subjects.CodeUnavailable, "the setting could not be written: %v", err)
	}
	var restarted []string
	if x.Live {
		section, _, _ := strings.Cut(x.Name, ".")
		was := s.config()
		next, err := was.withValue(x.Name, value)
		if err != nil {
			return none, subjects.Faultf(subjects.CodeMalformed, "%v", err)
		}
		s.inForce.Store(&next)
		if restarted, err = s.restartActors(ctx, section); err != nil {
			s.inForce.Store(&was)
			back := edit.undo()
			if _, again := s.restartActors(ctx, section); again != nil || back != nil {
				return none, subjects.Faultf(subjects.CodeUnavailable, "the actor did not start with the new value "+
					"(%v), and the earlier one could not be restored: %v; check %s and restart conclave", err,
					errors.Join(again, back), edit.path)
			}
			return none, subjects.Faultf(subjects.CodeUnavailable, "the actor did not start with the new value, and "+
				"the earlier one is in force: %v", err)
		}
	}
	list, err := s.ListSettings()
	if err != nil {
		return none, err
	}
	i := slices.IndexFunc(list.Settings, func(y subjects.Setting) bool { return y.Name == x.Name })
	return subjects.SettingChanged{Setting: list.Settings[i], Restarted: restarted}, nil
}

// restartActors restarts the actors of a section that run in this process. Those of other processes have the value
// after their own restart.
func (s *liveSettings) restartActors(ctx context.Context, section string) (restarted []string, err error) {
	for _, a := range actorsOf(section) {
		found, err := s.restart(ctx, a)
		if err != nil {
			return restarted, err
		}
		if found {
			restarted = append(restarted, a)
		}
	}
	return restarted, nil
}

// withValue returns c with one setting changed and validated. c is unchanged.
func (c Config) withValue(path, value string) (Config, error) {
	name, field, _ := strings.Cut(path, ".")
	next := c
	next.origins = maps.Clone(c.origins)
	delete(next.origins, path)
	if role, ok := strings.CutPrefix(path, "models.roles."); ok {
		next.Models.Roles = mergeMaps(c.Models.Roles, map[string]string{role: value})
		return next, next.Validate()
	}
	i := slices.IndexFunc(next.sections(), func(s section) bool { return s.name == name })
	if i < 0 {
		return c, errors.New("unknown setting")
	}
	if err := strict.Assign(next.sections()[i].value, field, value, path); err != nil {
		return c, err
	}
	return next, next.Validate()
}

// settingFields lists the settings in force with their types, in the order of the files.
func (c Config) settingFields() []strict.Field {
	var out []strict.Field
	for _, s := range c.sections() {
		for _, f := range strict.Fields(s.value) {
			f.Path = s.name + "." + f.Path
			out = append(out, f)
		}
	}
	c.listManifestSettings(func(key, value string) {
		out = append(out, strict.Field{Path: key, Value: value, Type: "list"})
	})
	return out
}

// settingValues returns the values of the settings by path.
func (c Config) settingValues() map[string]string {
	out := map[string]string{}
	for _, f := range c.settingFields() {
		out[f.Path] = f.Value
	}
	return out
}

var _ registry.Settings = (*liveSettings)(nil)
