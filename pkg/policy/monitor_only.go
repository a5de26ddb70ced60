package policy

import (
	"context"
	"slices"

	"conclave/subjects"
)

// MonitorOnly watches rules of a layer instead of enforcing them: what they would have refused or asked passes and is told
// in the decision. It is how a new rule is tried. Only rules that are told apart by name can be watched: a layer that
// breaks or says nothing refuses as ever.
func MonitorOnly(l Layer, rules ...string) Layer {
	if len(rules) == 0 || absent(l) {
		return l
	}
	return monitorOnly{l, slices.Clone(rules)}
}

type monitorOnly struct {
	Layer
	rules []string
}

// Judge implements [Layer].
func (s monitorOnly) Judge(ctx context.Context, c Call) Verdict {
	var left []Verdict
	var watched []subjects.Denial
	for _, v := range s.Layer.Judge(ctx, c).each() {
		if v.kind != passes && v.rule != "" && slices.Contains(s.rules, v.rule) {
			watched = append(watched, subjects.Denial{Layer: s.Name(), Rule: v.rule, Reason: v.reason})
			continue
		}
		left = append(left, v)
	}
	v := Every(left...)
	v.monitored = watched
	return v
}
