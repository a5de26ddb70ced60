package config

import (
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/strict"
)

// renamedFields maps the path of a field of an earlier version, with the section in front, to what became of it.
var renamedFields = map[string]string{
	"critic.claim_cap":        "removed; delete the line",
	"critic.claims":           "removed; delete the line",
	"manifest.shadow":         "renamed to monitor_only",
	"models.background_limit": "removed; delete the line",
	"models.ollama.rest":      "removed; delete the line",
	"models.stand_in":         "renamed to demo_model",
	"system.gateway.trail":    "renamed to grade_wait",
	"web_search.results":      "renamed to max_results",
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
	return &strict.Error{File: e.File, Line: e.Line, Path: e.Path, Text: fmt.Sprintf("unknown field: %s was %s",
		old, became)}
}
