package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/strict"
)

// removed is what became of a setting for which nobody could choose a better value.
const removed = "is no longer a setting; delete it"

// ofGenerator is what became of a setting of the committee or of tasks that repeated one of the generator.
const ofGenerator = "is no longer a setting here; delete it: that of generator.yaml holds"

// renamedFields maps the path of a field of an earlier version, or of the documents that Conclave started from, with
// the section in front, to what became of it.
var renamedFields = map[string]string{
	"generator.agent_id":            "is not a setting: an actor's key is its identity; delete it",
	"generator.max_tool_iterations": "was renamed to steps",
	"generator.model":               "is the role assistant below roles in models.yaml",
	"generator.num_ctx":             "is window below defaults in models.yaml",
	"generator.think":               "was renamed to thinking",
	"generator.timeout_seconds":     "is call_timeout for a token, tool_timeout for a tool and wall for the question",
	"generator.tools":               "is not a setting: tools announce themselves, manifest.yaml says for whom",
	"manifest.agent_types":          "was renamed to types; in it, allowed_tools to tools and allowed_paths to paths",
	"manifest.shadow":               "was renamed to monitor_only",
	"models.stand_in":               "was renamed to demo_model",
	"system.bus_pub_address":        "is listen, one address for all",
	"system.bus_sub_address":        "is listen, one address for all",
	"system.gateway.trail":          "was renamed to grade_wait",
	"system.ollama_debug":           "is log_level: debug",
	"web_search.fetch_enabled":      "is enabled in web_fetch.yaml",
	"web_search.fetch_max_chars":    "is max_chars in web_fetch.yaml",
	"web_search.results":            "was renamed to max_results",
	"web_search.searxng_url":        "is url below searxng",
}

// removedFields lists the paths of removed fields by what became of them.
var removedFields = map[string][]string{
	removed: {
		"critic.call_timeout", "critic.claim_cap", "critic.claims", "critic.max_age", "critic.pair_wait",
		"critic.predict",
		"generator.hot_sessions", "generator.respondent_b.max_age", "generator.retries",
		"memory.cache", "memory.embed_timeout", "memory.model_timeout", "memory.threads",
		"models.background_limit", "models.ollama.rest",
		"orchestrator.answer", "orchestrator.compact_at", "orchestrator.max_tools", "orchestrator.memories",
		"orchestrator.predict", "orchestrator.verify_attempts", "orchestrator.whole_rounds",
		"personas.answer", "personas.predict", "personas.tool_timeout",
		"system.actor.call_timeout", "system.actor.concurrency", "system.actor.mailbox", "system.actor.restarts",
		"system.gateway.header_timeout", "system.gateway.max_streams", "system.gateway.max_waiting",
		"system.gateway.write_timeout",
		"tools.sandbox.cpu", "tools.sandbox.entries", "tools.sandbox.file_size", "tools.sandbox.open_files",
		"tools.sandbox.output",
	},
	ofGenerator: {
		"orchestrator.call_timeout", "orchestrator.first_token_timeout", "orchestrator.result",
		"orchestrator.tool_timeout",
		"personas.call_timeout", "personas.first_token_timeout", "personas.result", "personas.stream",
		"personas.turns",
	},
}

// explainRenamed adds what became of a field to the errors of a section that has a field of an earlier version: the
// list of known fields would not say it. The old name is still rejected, so that a file has one meaning. Other errors
// are returned unchanged.
func explainRenamed(section string, err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, explainRenamed(section, e))
		}
		return errors.Join(errs...)
	}
	var e *strict.Error
	if !errors.As(err, &e) {
		return err
	}
	became := renamedFields[section+"."+e.Path]
	for text, fields := range removedFields {
		if slices.Contains(fields, section+"."+e.Path) {
			became = text
		}
	}
	if became == "" {
		return err
	}
	old := e.Path[strings.LastIndex(e.Path, ".")+1:]
	return &strict.Error{File: e.File, Line: e.Line, Path: e.Path, Text: fmt.Sprintf("unknown field: %s %s",
		old, became)}
}
