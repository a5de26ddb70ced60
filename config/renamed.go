package config

import (
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/strict"
)

// renamedFields maps the path of a field of an earlier version, with the section in front, to its new name.
var renamedFields = map[string]string{
	"manifest.shadow":      "monitor_only",
	"models.stand_in":      "demo_model",
	"system.gateway.trail": "grade_wait",
	"web_search.results":   "max_results",
}

// explainRenamed adds the new name to the errors of a section whose field has been renamed: such a file was valid for
// the previous version, and the list of known fields would not name the new one. The old name is still rejected, so
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
	name, ok := renamedFields[section+"."+e.Path]
	if !ok {
		return err
	}
	old := e.Path[strings.LastIndex(e.Path, ".")+1:]
	return &strict.Error{File: e.File, Line: e.Line, Path: e.Path, Text: fmt.Sprintf("unknown field: %s was renamed "+
		"to %s", old, name)}
}
