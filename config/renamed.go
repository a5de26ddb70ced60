package config

import (
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/strict"
)

// removed is what became of a setting for which nobody could choose a better value.
const removed = "is no longer a setting; delete it"

// renamedFields maps the path of a field of an earlier version, with the section in front, to what became of it.
var renamedFields = map[string]string{
	"critic.claim_cap":          removed,
	"critic.claims":             removed,
	"manifest.shadow":           "was renamed to monitor_only",
	"memory.cache":              removed,
	"memory.embed_timeout":      removed,
	"memory.model_timeout":      removed,
	"memory.threads":            removed,
	"models.background_limit":   removed,
	"models.ollama.rest":        removed,
	"models.stand_in":           "was renamed to demo_model",
	"system.actor.call_timeout": removed,
	"system.actor.concurrency":  removed,
	"system.actor.mailbox":      removed,
	"system.actor.restarts":     removed,
	"system.gateway.trail":      "was renamed to grade_wait",
	"web_search.results":        "was renamed to max_results",
}

// explainRenamed adds what became of a field to the errors of a section that has a field of an earlier version: the
// list of known fields would not say it. The old name is still rejected, so
// that a file has one meaning. Other errors are returned unchanged.
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
	became, ok := renamedFields[section+"."+e.Path]
	if !ok {
		return err
	}
	old := e.Path[strings.LastIndex(e.Path, ".")+1:]
	return &strict.Error{File: e.File, Line: e.Line, Path: e.Path, Text: fmt.Sprintf("unknown field: %s %s",
		old, became)}
}
